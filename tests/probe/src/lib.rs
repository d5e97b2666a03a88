//! A plugin that executes the steps in its objects' specs and in the messages it is sent, so that scenarios of the host
//! can be written as objects and messages.

mod messages;

use ostler_sdk::{
    ApplyOptions, ConditionStatus, CreateOptions, Encoding, Error, Gvk, Level, Message, ObjectRef,
    Preconditions, SecretKeyRef, Selection, Substitution, UpstreamRef, prelude::*, serde_json::Value,
};

pub use messages::MessageProber;

/// Steps of each reconcile and of the cleanup.
#[ostler_sdk::resource(
    group = "tests.ostler.dev",
    version = "v1alpha1",
    kind = "Probe",
    namespaced,
    status = ProbeStatus,
    doc = "An object whose reconcile executes its steps."
)]
pub struct ProbeSpec {
    /// Steps of a reconcile, in order.
    #[serde(default)]
    pub steps: Vec<ProbeStep>,
    /// Steps of the cleanup.
    #[serde(default)]
    pub cleanup: Vec<ProbeStep>,
}

/// Results of the steps.
#[ostler_sdk::api]
#[derive(Default)]
pub struct ProbeStatus {
    /// Phase, as computed by the host.
    pub phase: Option<String>,
    /// Result of each step.
    pub seen: Vec<String>,
}

/// One step. Its result is in `status.seen`.
#[ostler_sdk::api]
pub struct ProbeStep {
    /// Action: `get`, `metadata`, `ready`, `condition`, `list`, `apply`, `force`, `create`, `insert`, `digest`, `patch`, `hold`,
    /// `holders`, `http`, `clean`, `post-once`, `publish`, `permit`, `checkpoint`, `poll`, `after`, `log`, `debug`, or a failure: `retry`, `yield`, `park`.
    pub r#do: String,
    /// API version of the object or the list.
    pub api_version: Option<String>,
    /// Kind of the object or the list.
    pub kind: Option<String>,
    /// Name of the object.
    pub name: Option<String>,
    /// Cluster of the object or the list, by namespace and name.
    pub cluster: Option<String>,
    /// For `apply` and `create` on another cluster: the probe owns the object. For `permit`: it holds one already.
    pub owned: Option<bool>,
    /// Label selector of the list.
    pub labels: Option<String>,
    /// Field selector of the list.
    pub fields: Option<String>,
    /// Object to write, as JSON. Its namespace is the probe's. For `patch` the JSON merge patch, for `checkpoint` the
    /// status fields.
    pub object: Option<String>,
    /// Type of the condition that `condition` requires to be true.
    pub condition: Option<String>,
    /// The resourceVersion that `patch` requires.
    pub resource_version: Option<String>,
    /// Path of the GET request that `http` sends to the Upstream `name`.
    pub path: Option<String>,
    /// Exchange that `publish` publishes to, by the Upstream `name`; the default is the default exchange.
    pub exchange: Option<String>,
    /// Routing key of `publish`.
    pub routing_key: Option<String>,
    /// Body of `publish`; text of `log` and `debug`, which write it at that level.
    pub body: Option<String>,
    /// Message id of `publish`.
    pub message_id: Option<String>,
    /// Milliseconds of `poll` and `after`; in a message, of `spin`, `retry` and `throttle`.
    pub milliseconds: Option<u64>,
    /// In a message: the step is skipped once the message has been delivered this many times before. For `permit`: the number of
    /// permits of the pool `name`.
    pub times: Option<u32>,
}

/// Executes the steps.
pub struct Prober;

impl Reconciler for Prober {
    type Spec = ProbeSpec;
    const FINALIZER: Option<&'static str> = Some("tests.ostler.dev/probe");
    const PHASE: bool = true;

    fn reconcile(&self, ctx: &Context, probe: &Probe) -> Result<Outcome, Failure> {
        run_steps(ctx, &probe.spec.steps, probe)
    }

    fn cleanup(&self, ctx: &Context, probe: &Probe) -> Result<Outcome, Failure> {
        run_steps(ctx, &probe.spec.cleanup, probe)
    }
}

/// A kind of which only the objects with the label `tier=a` are reconciled.
#[ostler_sdk::resource(
    group = "tests.ostler.dev",
    version = "v1alpha1",
    kind = "SelectedProbe",
    namespaced,
    doc = "An object that is reconciled while it has the label tier=a."
)]
pub struct SelectedProbeSpec {}

/// Reconciles the objects with the label `tier=a`.
pub struct SelectedProber;

impl Reconciler for SelectedProber {
    type Spec = SelectedProbeSpec;
    const FINALIZER: Option<&'static str> = Some("tests.ostler.dev/selected");
    const LABEL_SELECTOR: Option<&'static str> = Some("tier=a");

    fn reconcile(&self, _: &Context, _: &SelectedProbe) -> Result<Outcome, Failure> {
        Ok(Outcome::await_change())
    }

    fn cleanup(&self, ctx: &Context, probe: &SelectedProbe) -> Result<Outcome, Failure> {
        ctx.event("CleanedUp", probe.name());
        Ok(Outcome::await_change())
    }
}

fn run_steps(ctx: &Context, steps: &[ProbeStep], probe: &Probe) -> Result<Outcome, Failure> {
    let namespace = &*probe.metadata.namespace;
    let recorded = &probe.status.seen;
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
            cluster: step.cluster.clone(),
            // Namespaces are in none.
            namespace: Some(namespace.into()).filter(|_| step.kind.as_deref() != Some("Namespace")),
            name: step.name.clone().unwrap_or_default(),
        };
        let json = || -> Result<Value, Failure> {
            let text = step.object.as_deref().unwrap_or_default();
            ostler_sdk::serde_json::from_str(text)
                .map_err(|e| Failure::terminal("InvalidStep", e.to_string()))
        };
        let object = || -> Result<Value, Failure> {
            let mut object = json()?;
            object["metadata"]["namespace"] = namespace.into();
            Ok(object)
        };
        let result = match &*step.r#do {
            "get" => format_object(ctx.get_json(&reference())?),
            "metadata" => format_object(ctx.get_metadata(&reference())?),
            "ready" => format_object(Some(ctx.require_ready_json(&reference())?)),
            "condition" => {
                let condition = step.condition.as_deref().unwrap_or_default();
                let found = ctx.require_condition(&reference(), condition, ConditionStatus::True)?;
                format_object(Some(found))
            }
            "list" => {
                let selection = Selection {
                    cluster: step.cluster.as_deref(),
                    namespace: Some(namespace).filter(|_| step.kind.as_deref() != Some("Namespace")),
                    labels: step.labels.as_deref(),
                    fields: step.fields.as_deref(),
                    live: false,
                };
                let found = ctx.list_json(&gvk(), &selection, &[])?;
                let names: Vec<&str> = found
                    .iter()
                    .filter_map(|o| o["metadata"]["name"].as_str())
                    .collect();
                names.join(",")
            }
            "apply" if step.cluster.is_some() => {
                let options = ApplyOptions {
                    cluster: step.cluster.clone(),
                    owned: step.owned.unwrap_or(false),
                    force: true,
                    ..ApplyOptions::default()
                };
                format_object(Some(ctx.apply_with(&object()?, &options)?.json()?))
            }
            "apply" => format_object(Some(ctx.apply_owned(&object()?)?.json()?)),
            "force" => format_object(Some(ctx.apply(&object()?, true)?.json()?)),
            "create" => {
                let options = CreateOptions {
                    cluster: step.cluster.clone(),
                    owned: step.owned.unwrap_or(step.cluster.is_none()),
                    ..CreateOptions::default()
                };
                format_object(Some(ctx.create_with(&object()?, &options)?.json()?))
            }
            // The value of the Secret `name`, key `body`, takes the place of the placeholder.
            "insert" => {
                let secret = step.name.as_deref().unwrap_or_default();
                let key = step.body.as_deref().unwrap_or_default();
                let secret = SecretKeyRef::new(secret, key);
                let inserted = Substitution::key("(inserted-secret)", secret, Encoding::Plain);
                let options = ApplyOptions {
                    force: true,
                    substitutions: vec![inserted],
                    ..ApplyOptions::default()
                };
                format_object(Some(ctx.apply_with(&object()?, &options)?.json()?))
            }
            // Applies an object with the digest of the Secret `name`, key `body`, in place of `(digest)`.
            "digest" => {
                let secret = step.name.as_deref().unwrap_or_default();
                let digest = ctx.secret_digest(secret, step.body.as_deref().unwrap_or_default())?;
                let digest = digest.unwrap_or_default();
                let text = step
                    .object
                    .as_deref()
                    .unwrap_or_default()
                    .replace("(digest)", &digest);
                let mut object: Value = ostler_sdk::serde_json::from_str(&text)
                    .map_err(|e| Failure::terminal("InvalidStep", e.to_string()))?;
                object["metadata"]["namespace"] = namespace.into();
                ctx.apply_owned(&object)?;
                digest
            }
            "patch" => {
                let preconditions = Preconditions {
                    uid: None,
                    resource_version: step.resource_version.clone(),
                };
                format_object(Some(ctx.patch(&reference(), &json()?, &preconditions)?.json()?))
            }
            "delete" => {
                ctx.delete(&reference())?;
                "deleted".into()
            }
            "holders" => {
                let holders = ctx.list_holders(&reference())?;
                let names: Vec<String> = holders.into_iter().map(|holder| holder.name).collect();
                names.join(",")
            }
            "http" => {
                let upstream = step.name.as_deref().unwrap_or_default();
                let path = step.path.as_deref().unwrap_or("/");
                ctx.upstream(upstream).get(path).send()?.status().to_string()
            }
            // Nothing can be left at an Upstream that does not exist.
            "clean" => {
                let upstream = step.name.as_deref().unwrap_or_default();
                let path = step.path.as_deref().unwrap_or("/");
                match ctx.upstream(upstream).get(path).send() {
                    Err(Error::NotFound(_)) => "absent".into(),
                    response => response?.status().to_string(),
                }
            }
            // Sends a POST unless the status of an earlier reconcile has its result.
            "post-once" => match recorded.iter().any(|result| result == "posted") {
                true => "posted".into(),
                false => {
                    let upstream = step.name.as_deref().unwrap_or_default();
                    ctx.upstream(upstream)
                        .post(step.path.as_deref().unwrap_or("/"))
                        .send()?;
                    "posted".into()
                }
            },
            "publish" => {
                ctx.publish(&broker(step), &message(step))?;
                "published".into()
            }
            "checkpoint" => {
                ctx.checkpoint(&json()?)?;
                "saved".into()
            }
            "permit" => {
                let pool = step.name.as_deref().unwrap_or_default();
                let limit = step.times.unwrap_or(1);
                match ctx.acquire_permit(pool, limit, step.owned.unwrap_or(false))? {
                    true => "granted".into(),
                    false => "waiting".into(),
                }
            }
            "hold" => {
                ctx.hold(&reference())?;
                "held".into()
            }
            "log" | "debug" => {
                let text = step.body.as_deref().unwrap_or_default();
                let level = if step.r#do == "log" {
                    Level::Info
                } else {
                    Level::Debug
                };
                ctx.log(level, text, &[]);
                continue;
            }
            "poll" => {
                outcome = Outcome::poll(step.milliseconds);
                continue;
            }
            "after" => {
                outcome = Outcome::after(step.milliseconds.unwrap_or(0));
                continue;
            }
            "retry" => return Err(Failure::retry("Requested", "requested by a step")),
            "yield" => return Err(Failure::wait("Requested", "requested by a step")),
            "park" => return Err(Failure::terminal("Requested", "requested by a step")),
            other => {
                return Err(Failure::terminal(
                    "InvalidStep",
                    format!("no step is called `{other}`"),
                ));
            }
        };
        seen.push(result);
    }
    Ok(outcome.status(&json!({ "seen": seen })))
}

/// Returns the broker of a step that publishes.
fn broker(step: &ProbeStep) -> UpstreamRef {
    UpstreamRef::new(step.name.as_deref().unwrap_or_default())
}

/// Builds the message of a step that publishes.
fn message(step: &ProbeStep) -> Message {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let message = Message::new(
        &text(&step.exchange),
        &text(&step.routing_key),
        text(&step.body).into(),
    );
    match &step.message_id {
        Some(id) => message.id(id),
        None => message,
    }
}

/// Formats the result of a step that read an object: its data, or that there is none.
fn format_object(object: Option<Value>) -> String {
    match object {
        None => "absent".into(),
        Some(object) => match &object["data"] {
            Value::Null => "present".into(),
            data => data.to_string(),
        },
    }
}

ostler_sdk::plugin!(Prober, SelectedProber; messages = MessageProber);
