//! A plugin that does, step by step, what its objects say: scenarios of the host are written as objects.

use ostler_sdk::{Gvk, ObjectRef, Selection, prelude::*, serde_json::Value};

/// What to do in each reconcile.
#[ostler_sdk::resource(
    group = "tests.ostler.dev",
    version = "v1alpha1",
    kind = "Probe",
    namespaced,
    status = ProbeStatus,
    doc = "An object whose reconcile does what its steps say."
)]
pub struct ProbeSpec {
    /// What to do, in this order.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// What to do when it is deleted.
    #[serde(default)]
    pub cleanup: Vec<Step>,
}

/// What the steps came to.
#[ostler_sdk::api]
#[derive(Default)]
pub struct ProbeStatus {
    /// The host's word for how it is.
    pub phase: Option<String>,
    /// What each step saw.
    pub seen: Vec<String>,
}

/// One thing to do. What it gave is in `status.seen`.
#[ostler_sdk::api]
pub struct Step {
    /// `get`, `metadata`, `ready`, `list`, `apply`, `force`, `create`, `hold`, `poll`, `after`, or how to fail:
    /// `retry`, `yield`, `park`.
    pub r#do: String,
    /// Of the object or the list.
    pub api_version: Option<String>,
    /// Of the object or the list.
    pub kind: Option<String>,
    /// Of the object.
    pub name: Option<String>,
    /// A label selector.
    pub labels: Option<String>,
    /// A field selector.
    pub fields: Option<String>,
    /// The object to write, as JSON text; its namespace is the probe's.
    pub object: Option<String>,
    /// For `poll` and `after`.
    pub milliseconds: Option<u64>,
}

/// Does it.
pub struct Prober;

impl Reconciler for Prober {
    type Spec = ProbeSpec;
    const FINALIZER: Option<&'static str> = Some("tests.ostler.dev/probe");
    const PHASE: bool = true;

    fn reconcile(&self, ctx: &Context, probe: &Probe) -> Result<Outcome, Failure> {
        run(ctx, &probe.spec.steps, &probe.metadata.namespace)
    }

    fn cleanup(&self, ctx: &Context, probe: &Probe) -> Result<Outcome, Failure> {
        run(ctx, &probe.spec.cleanup, &probe.metadata.namespace)
    }
}

fn run(ctx: &Context, steps: &[Step], namespace: &str) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::await_change();
    let mut seen: Vec<String> = Vec::new();
    for step in steps {
        let gvk = || {
            let api_version = step.api_version.as_deref().unwrap_or("v1");
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            Gvk {
                group: group.into(),
                version: version.into(),
                kind: step.kind.clone().unwrap_or_default(),
            }
        };
        let reference = || ObjectRef {
            gvk: gvk(),
            cluster: None,
            namespace: Some(namespace.into()),
            name: step.name.clone().unwrap_or_default(),
        };
        let object = || -> Result<Value, Failure> {
            let text = step.object.as_deref().unwrap_or_default();
            let mut object: Value = ostler_sdk::serde_json::from_str(text)
                .map_err(|e| Failure::terminal("InvalidStep", e.to_string()))?;
            object["metadata"]["namespace"] = namespace.into();
            Ok(object)
        };
        let said = match &*step.r#do {
            "get" => shown(ctx.get_json(&reference())?),
            "metadata" => shown(ctx.get_metadata(&reference())?),
            "ready" => shown(Some(ctx.require_ready_json(&reference())?)),
            "list" => {
                let selection = Selection {
                    namespace: Some(namespace),
                    labels: step.labels.as_deref(),
                    fields: step.fields.as_deref(),
                };
                let found = ctx.list_json(&gvk(), &selection, &[])?;
                let names: Vec<&str> = found
                    .iter()
                    .filter_map(|o| o["metadata"]["name"].as_str())
                    .collect();
                names.join(",")
            }
            "apply" => shown(Some(ctx.apply_owned(&object()?)?.json()?)),
            "force" => shown(Some(ctx.apply(&object()?, true)?.json()?)),
            "create" => shown(Some(ctx.create(&object()?, true)?.json()?)),
            "hold" => {
                ctx.hold(&reference())?;
                "held".into()
            }
            "poll" => {
                outcome = Outcome::poll(step.milliseconds);
                continue;
            }
            "after" => {
                outcome = Outcome::after(step.milliseconds.unwrap_or(0));
                continue;
            }
            "retry" => return Err(Failure::retry("AsTold", "a step says so")),
            "yield" => return Err(Failure::wait("AsTold", "a step says so")),
            "park" => return Err(Failure::terminal("AsTold", "a step says so")),
            other => {
                return Err(Failure::terminal(
                    "InvalidStep",
                    format!("no step is called `{other}`"),
                ));
            }
        };
        seen.push(said);
    }
    Ok(outcome.status(&json!({ "seen": seen })))
}

/// What a step shows of an object: its data, or that there is none.
fn shown(object: Option<Value>) -> String {
    match object {
        None => "absent".into(),
        Some(object) => match &object["data"] {
            Value::Null => "present".into(),
            data => data.to_string(),
        },
    }
}

ostler_sdk::plugin!(Prober);
