//! A plugin that records its calls: each reconcile writes into a ConfigMap beside its object, `initialize` counts its
//! calls in another, `upgrade` in an annotation; a message becomes a ConfigMap.

use ostler_sdk::prelude::*;
use ostler_sdk::serde_json::Value;

/// An object whose reconcile records its calls.
#[ostler_sdk::resource(
    group = "tests.ostler.dev",
    version = "v1alpha1",
    kind = "Beat",
    namespaced,
    doc = "An object whose reconciles leave traces."
)]
pub struct BeatSpec {
    /// `beat` records a trace at intervals, `patient` waits until the host ends the call, `stubborn` ignores that and keeps
    /// waiting.
    pub behaviour: String,
    /// Milliseconds between traces; a single trace without it.
    pub interval: Option<u32>,
    /// Action of `upgrade`: `count` (the default), `fail` or `overreach`.
    pub upgrade: Option<String>,
}

/// A cluster-scoped object, whose reconcile and cleanup succeed at once.
#[ostler_sdk::resource(
    group = "tests.ostler.dev",
    version = "v1alpha1",
    kind = "ClusterBeat",
    doc = "An object in no namespace."
)]
pub struct ClusterBeatSpec {}

/// Reconciles the cluster-scoped objects.
pub struct ClusterHeart;

impl Reconciler for ClusterHeart {
    type Spec = ClusterBeatSpec;
    const FINALIZER: Option<&'static str> = Some("tests.ostler.dev/cluster-beat");

    fn reconcile(&self, _: &Context, _: &ClusterBeat) -> Result<Outcome, Failure> {
        Ok(Outcome::await_change())
    }

    fn cleanup(&self, _: &Context, _: &ClusterBeat) -> Result<Outcome, Failure> {
        Ok(Outcome::await_change())
    }
}

/// The plugin's configuration.
#[ostler_sdk::api]
struct Config {
    /// Text in each trace.
    writer: Option<String>,
    /// ConfigMap in which `initialize` counts its calls. Without it calls are not counted.
    namespace: Option<String>,
    /// Error message with which `initialize` fails.
    failure: Option<String>,
}

/// Annotation with the number of upgrades of an object.
pub const UPGRADES: &str = "tests.ostler.dev/upgrades";

/// The reconciler, which records its calls.
pub struct Heart;

impl Reconciler for Heart {
    type Spec = BeatSpec;

    fn reconcile(&self, ctx: &Context, beat: &Beat) -> Result<Outcome, Failure> {
        if beat.spec.behaviour != "beat" {
            let stubborn = beat.spec.behaviour == "stubborn";
            ctx.event("Waiting", "Until it is asked to end");
            while stubborn || ctx.remaining() > 0 {
                let waiting = ctx.upstream("silent").get("/").timeout(100).send();
                if matches!(waiting, Err(Error::LimitExceeded(_))) {
                    break;
                }
            }
            return Ok(Outcome::await_change().with(Condition::new_true(
                "Ready",
                "Asked",
                "It was asked to end",
            )));
        }
        ctx.apply_owned(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": beat.name(), "namespace": beat.namespace() },
            "data": {
                "writer": ctx.config::<Config>()?.writer.unwrap_or_default(),
                "at": ctx.now().to_string(),
                "upgrades": beat.metadata.annotation(UPGRADES).unwrap_or("0"),
            },
        }))?;
        Ok(match beat.spec.interval {
            Some(interval) => Outcome::after(interval.into()),
            None => Outcome::await_change(),
        })
    }
}

/// The hooks, which count their calls.
pub struct Counted;

impl Lifecycle for Counted {
    fn initialize(&self, ctx: &Context) -> Result<(), Error> {
        let config = ctx
            .config::<Config>()
            .map_err(|failure| Error::Invalid(failure.message))?;
        if let Some(failure) = config.failure {
            return Err(Error::Unavailable(failure));
        }
        let Some(namespace) = config.namespace else {
            return Ok(());
        };
        let mut counter = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": "initialized", "namespace": namespace },
        });
        let reference = gvk("", "v1", "ConfigMap").named(&namespace, "initialized");
        let before = ctx.get_json(&reference)?.unwrap_or_default();
        counter["data"] = json!({ "times": increment_count(&before["data"]["times"]) });
        ctx.apply(&counter, false).map(drop)
    }

    fn upgrade(&self, _: &Context, object: &Value) -> Result<Option<Value>, Error> {
        let mut upgraded = object.clone();
        match object["spec"]["upgrade"].as_str().unwrap_or("count") {
            "fail" => return Err(Error::Unavailable("as requested".into())),
            "overreach" => upgraded["spec"]["interval"] = json!(1),
            _ => {
                let count = increment_count(&object["metadata"]["annotations"][UPGRADES]);
                upgraded["metadata"]["annotations"][UPGRADES] = json!(count);
            }
        }
        Ok(Some(upgraded))
    }
}

fn increment_count(count: &Value) -> String {
    let before = count.as_str().and_then(|n| n.parse::<u32>().ok());
    (before.unwrap_or(0) + 1).to_string()
}

/// Applies a ConfigMap that has the body of a message as its name.
pub fn record_message(ctx: &Context, delivery: &Delivery) -> Result<Disposition, Error> {
    ctx.apply(
        &json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": String::from_utf8_lossy(&delivery.body),
                "namespace": delivery.broker.namespace,
            },
            "data": { "queue": delivery.queue },
        }),
        false,
    )?;
    Ok(Disposition::Ack)
}

ostler_sdk::plugin!(Heart, ClusterHeart; lifecycle = Counted; messages = record_message);
