//! Explanation of an object: dependencies, reads, next reconcile, holders.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Admin, question::Question};
use crate::{
    cache::{informer::SyncState, store::ListQuery},
    cluster,
    kube::{
        key::{Gvk, ObjectRef},
        object::KubeObject,
        owned, references,
        scope::{Projection, Scope},
        well_known::annotation,
    },
    plugin::HookState,
    reconcile::stats::{ObjectStats, RecordedError},
    schedule::{
        dependencies::{List, ReadDependency},
        dispatcher::{Cause, SchedulingState as Scheduled, Turn},
        host_lane::HostLane,
        queue::{ItemState, Priority},
    },
    upstream::{self, HandleResult, StreamState, StreamStatus, SubscriptionKey, SubscriptionStats},
};

/// Maximum number of causes; the newest are shown.
const MAX_CAUSES: usize = 10;
/// Maximum number of reads.
const MAX_READS: usize = 200;
/// Maximum number of named objects per list.
const MAX_NAMED_OBJECTS: usize = 10;
/// Maximum number of held objects in an explanation.
const MAX_LISTED_HOLDS: u32 = 100;

/// The response of `/explain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObjectExplanation {
    /// Its kind, with version and group.
    pub kind: String,
    /// Its namespace; empty for cluster-scoped ones.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: ExplainedState,
    /// Reason of its Ready condition.
    pub reason: String,
    /// Message of its Ready condition.
    pub message: String,
    /// Reads that it waits for: absent or not Ready.
    pub waits_for: Vec<Read>,
    /// Reads of the last reconcile; a change of any of them wakes the object.
    pub reads: Vec<Read>,
    /// Event streams it follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub follows: Vec<Followed>,
    /// Subscriptions to queues: of a Plugin, or at an Upstream.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscriptions: Vec<Subscribed>,
    /// Permits that it has or waits for, each with the use of its pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permits: Vec<String>,
    /// Time and reason of the next reconcile.
    pub next: NextRun,
    /// Latest wake-ups, oldest first.
    pub woken_by: Vec<String>,
    /// Objects that hold it and block its deletion.
    pub holders: Vec<String>,
    /// Objects that it holds.
    pub holds: Vec<String>,
    /// Objects that it owns: of those that it read or wrote in its last reconcile, and those of its inventory, on other clusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owns: Vec<String>,
    /// Obstacles of its deletion, if it is being deleted.
    pub finalizers: Vec<String>,
    /// True if an annotation suspends it.
    pub paused: bool,
    /// The plugin that reconciles it.
    pub plugin: String,
    /// The build that reconciled it last.
    pub plugin_digest: String,
    /// Reconciles so far.
    pub reconciles: u64,
    /// Failures in a row.
    pub attempts: u32,
    /// Time of the end of the last reconcile.
    pub last_reconcile: Option<String>,
    /// Duration of the last reconcile in milliseconds.
    pub last_ms: Option<f64>,
    /// Its last errors, newest last.
    pub errors: Vec<RecordedError>,
}

/// The state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExplainedState {
    /// It is Ready.
    Ready,
    /// It is not Ready.
    NotReady,
    /// The annotation `ostler.dev/paused` suspends it.
    Paused,
    /// It is being deleted.
    Terminating,
    /// It was not reconciled yet.
    New,
}

/// The state of an object with these statistics.
pub fn find_object_state(object: &KubeObject, stats: &ObjectStats) -> ExplainedState {
    match () {
        () if object.is_deleting() => ExplainedState::Terminating,
        () if is_paused(object) => ExplainedState::Paused,
        () if stats.ready => ExplainedState::Ready,
        () if stats.reason.is_empty() && stats.reconciles == 0 => ExplainedState::New,
        () => ExplainedState::NotReady,
    }
}

fn is_paused(object: &KubeObject) -> bool {
    object.annotation(annotation::PAUSED) == Some("true")
}

/// A read of a reconcile, with the current state of its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// The object, or the kind, namespace and selector of a list.
    pub what: String,
    /// Current state.
    pub state: ReadState,
    /// Reason why it is not Ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Current state of the target of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadState {
    /// It does not exist.
    Absent,
    /// It exists and has no Ready condition.
    Exists,
    /// It exists and is not Ready.
    NotReady,
    /// It is Ready.
    Ready,
    /// It is being deleted.
    Terminating,
    /// A list with this number of objects.
    List(usize),
    /// Unknown: its informer has not synced.
    Unknown,
}

/// An event stream that an object follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// Upstream and path.
    pub what: String,
    /// `connecting`, `open`, `waiting`, `ended` or `outdated`.
    pub state: String,
    /// Reason why it is not open.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Number of events.
    pub events: u64,
    /// Number of reconnects.
    pub reconnects: u64,
    /// Number of objects that share it, including this one.
    pub followers: usize,
}

/// A subscription to a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscribed {
    /// The plugin.
    pub plugin: String,
    /// Namespace and name of the Upstream.
    pub upstream: String,
    /// The queue.
    pub queue: String,
    /// `consuming` or `waiting`.
    pub state: String,
    /// The reason why it waits, or the last problem with a message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Number of messages that are ready in the queue, when it was last asked for.
    pub depth: Option<u32>,
    /// Number of messages that are being handled.
    pub in_flight: u64,
    /// Number of messages that were acknowledged, delivered again, and dead-lettered.
    pub acknowledged: u64,
    /// Number of deliveries that are repeated later.
    pub retried: u64,
    /// Number of dead letters.
    pub dead_lettered: u64,
}

impl Subscribed {
    fn new(key: &SubscriptionKey, stats: &SubscriptionStats) -> Self {
        let state = stats.state();
        Self {
            plugin: key.plugin.to_string(),
            upstream: key.upstream.to_string(),
            queue: key.queue.to_string(),
            state: if state.is_consuming {
                "consuming"
            } else {
                "waiting"
            }
            .into(),
            why: state.message,
            depth: state.depth,
            in_flight: stats.in_flight(),
            acknowledged: stats.total(HandleResult::Acknowledged),
            retried: stats.total(HandleResult::Retried) + stats.total(HandleResult::Requeued),
            dead_lettered: stats.total(HandleResult::DeadLettered),
        }
    }
}

impl From<StreamStatus> for Followed {
    fn from(facts: StreamStatus) -> Self {
        Self {
            what: facts.key.to_string(),
            state: facts.state.as_str().into(),
            why: match facts.state {
                StreamState::Waiting(why) => why,
                _ => String::new(),
            },
            events: facts.events,
            reconnects: facts.reconnects,
            followers: facts.subscribers,
        }
    }
}

/// The next reconcile of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextRun {
    /// `running`, `queued`, `delayed`, `held` (all objects of its plugin wait), `parked` or `settled`.
    pub place: String,
    /// Seconds until it is due.
    pub in_seconds: Option<f64>,
    /// Human-readable explanation.
    pub why: String,
}

impl Admin {
    /// Explains an object. The error lists similar objects.
    pub fn explain(&self, question: &Question) -> Result<ObjectExplanation, String> {
        let key = question.find(&self.stats.keys())?;
        self.explain_object(&key)
    }

    /// Explains an object that is reconciled. The error says that it was deleted meanwhile.
    pub(super) fn explain_object(&self, key: &ObjectRef) -> Result<ObjectExplanation, String> {
        let gone = || format!("{key} was deleted a moment ago");
        let store = &self.services.cache.store;
        let object = store.get(key, Projection::Full).ok_or_else(gone)?;
        let facts = self.stats.describe(key, Some(&object)).ok_or_else(gone)?;
        let mut scheduled = self.services.dispatcher.explain(key);
        let (plugin, held) = self.find_plugin(&key.gvk);
        let scopes = self.services.list_watches();
        let reads = std::mem::take(&mut scheduled.reads);
        let found = self.find_dependencies(reads, &scopes);
        let follows = self
            .services
            .upstreams
            .streams
            .streams_of(key)
            .into_iter()
            .map(Into::into);
        let upstream = format!("{}/{}", key.namespace, key.name);
        let concerns = |subscription: &SubscriptionKey| match &key.gvk {
            gvk if *gvk == upstream::upstream_gvk() => *subscription.upstream == *upstream,
            gvk if *gvk == crate::plugin::kind() => subscription.plugin == key.name,
            _ => false,
        };
        let subscriptions = self.services.upstreams.subscriptions.list();
        let subscriptions = subscriptions
            .iter()
            .filter(|(subscription, _)| concerns(subscription));
        Ok(ObjectExplanation {
            follows: follows.collect(),
            subscriptions: subscriptions
                .map(|(key, stats)| Subscribed::new(key, stats))
                .collect(),
            ..build_explanation(key, &object, facts, scheduled, plugin, held, found)
        })
    }

    /// The names of the objects that one waits for.
    pub(super) fn list_causes(&self, key: &ObjectRef, scopes: &[(Scope, SyncState)]) -> Vec<String> {
        let reads = self.services.dispatcher.explain(key).reads;
        let waits = list_waits(&self.find_dependencies(reads, scopes), key);
        waits.into_iter().map(|read| read.what).collect()
    }

    /// The plugin of a kind, or the lane of the host for one of its own, and why it holds all objects.
    pub(super) fn find_plugin(&self, gvk: &Gvk) -> (Option<String>, Option<String>) {
        let own = match gvk {
            gvk if *gvk == upstream::upstream_gvk() => Some(HostLane::Upstreams.name().to_owned()),
            gvk if *gvk == cluster::cluster_gvk() => Some(HostLane::Clusters.name().to_owned()),
            gvk if *gvk == crate::plugin::kind() => Some(HostLane::Plugins.name().to_owned()),
            _ => None,
        };
        let serving = self.registry.find_by_kind(gvk);
        let held = serving.as_ref().and_then(|p| {
            let reports = self.registry.reports();
            // Of what serves: an object of that name may still be loading its own.
            let ours = |r: &crate::plugin::SlotReport| *r.name == **p.name() && !r.digest.is_empty();
            let report = reports.into_iter().find(ours);
            pause_reason(p.suspended, &report.unwrap_or_default().hooks)
        });
        let plugin = serving.map(|p| p.name().to_string()).or(own);
        (plugin, held)
    }

    fn find_dependencies(&self, reads: Vec<ReadDependency>, scopes: &[(Scope, SyncState)]) -> Vec<Found> {
        let reads = reads.into_iter();
        reads.map(|read| self.find_dependency(read, scopes)).collect()
    }

    /// The current state of the target of a read, from the cache. No watch is started for it.
    fn find_dependency(&self, dependency: ReadDependency, scopes: &[(Scope, SyncState)]) -> Found {
        let services = &self.services;
        let scope = dependency.scope(&services.cache.namespaces);
        let covering = || scopes.iter().filter(|(wider, _)| wider.covers(&scope));
        let synced = covering().find(|(_, synced)| synced.is_synced());
        let why = || {
            let failed = covering().find_map(|(_, synced)| match synced {
                SyncState::Failed(why) | SyncState::Refused(why) => Some(why.clone()),
                _ => None,
            });
            failed.unwrap_or_else(|| "not listed yet".into())
        };
        match dependency {
            ReadDependency::Object(ref key, form) | ReadDependency::Owned(ref key, form) => {
                match services.cache.store.get(key, form) {
                    None if synced.is_none() => Found::Unknown(dependency, why()),
                    object => Found::Object(key.clone(), object),
                }
            }
            ReadDependency::List(list) => match synced {
                None => Found::Unknown(ReadDependency::List(list), why()),
                Some((scope, _)) => {
                    let query = ListQuery {
                        namespace: &list.namespace,
                        labels: list.labels.as_ref(),
                        fields: list.fields.as_ref(),
                        ..ListQuery::default()
                    };
                    let objects = services.cache.store.list(scope, &query);
                    Found::List(*list, objects)
                }
            },
        }
    }
}

/// The current state of the target of a read.
enum Found {
    Object(ObjectRef, Option<Arc<KubeObject>>),
    List(List, Vec<(ObjectRef, Arc<KubeObject>)>),
    Unknown(ReadDependency, String),
}

/// Builds the explanation without I/O.
fn build_explanation(
    key: &ObjectRef,
    object: &KubeObject,
    facts: ObjectStats,
    scheduled: Scheduled,
    plugin: Option<String>,
    held: Option<String>,
    found: Vec<Found>,
) -> ObjectExplanation {
    let state = find_object_state(object, &facts);
    let mut reads: Vec<_> = found.iter().map(describe_read).collect();
    reads.sort_by(|a, b| a.what.cmp(&b.what));
    // One may be read in several forms.
    reads.dedup();
    let waits_for = if facts.ready {
        Vec::new()
    } else {
        list_waits(&found, key)
    };
    reads.truncate(MAX_READS);
    let causes = scheduled
        .causes
        .iter()
        .skip(scheduled.causes.len().saturating_sub(MAX_CAUSES));
    let finalizers = || object.finalizers().iter().map(ToString::to_string);
    ObjectExplanation {
        kind: key.gvk.to_string(),
        namespace: facts.namespace,
        name: facts.name,
        state,
        reason: facts.reason,
        message: facts.message,
        waits_for,
        reads,
        follows: Vec::new(),
        subscriptions: Vec::new(),
        permits: scheduled.permits.iter().map(ToString::to_string).collect(),
        next: NextRun::of_turn(&scheduled.turn, plugin.is_some(), held),
        woken_by: causes.map(ToString::to_string).collect(),
        holders: references::list_holders(object)
            .iter()
            .map(ToString::to_string)
            .collect(),
        holds: references::list_held(object, MAX_LISTED_HOLDS)
            .iter()
            .map(ToString::to_string)
            .collect(),
        owns: list_owned(object, &found),
        finalizers: finalizers().filter(|_| object.is_deleting()).collect(),
        paused: is_paused(object),
        plugin: plugin.unwrap_or(facts.plugin),
        plugin_digest: facts.plugin_digest,
        reconciles: facts.reconciles,
        attempts: scheduled.turn.failures,
        last_reconcile: facts.last_reconcile,
        last_ms: facts.last_ms,
        errors: facts.errors,
    }
}

impl Read {
    /// Returns true for a state that a reconcile may wait for.
    fn is_missing(&self) -> bool {
        matches!(
            self.state,
            ReadState::Absent | ReadState::NotReady | ReadState::Terminating | ReadState::Unknown
        )
    }
}

/// The target of a read with its current state.
fn describe_read(found: &Found) -> Read {
    match found {
        Found::Object(key, object) => of_object(key, object.as_deref()),
        Found::List(list, objects) => Read {
            what: describe_list(list),
            state: ReadState::List(objects.len()),
            why: String::new(),
        },
        Found::Unknown(dependency, why) => Read {
            what: match dependency {
                ReadDependency::Object(key, _) | ReadDependency::Owned(key, _) => key.to_string(),
                ReadDependency::List(list) => describe_list(list),
            },
            state: ReadState::Unknown,
            why: why.clone(),
        },
    }
}

/// Describes a list, as in `Pod in demo where app=web`.
fn describe_list(list: &List) -> String {
    let place = match (&*list.cluster, &*list.namespace) {
        ("", "") => "all namespaces".to_owned(),
        ("", namespace) => namespace.to_owned(),
        (cluster, "") => format!("all namespaces of {cluster}"),
        (cluster, namespace) => format!("{cluster}:{namespace}"),
    };
    let selectors = [
        list.labels.as_ref().map(ToString::to_string),
        list.fields.as_ref().map(ToString::to_string),
    ];
    let selectors: Vec<_> = selectors.into_iter().flatten().collect();
    if selectors.is_empty() {
        format!("{} in {place}", list.gvk.kind)
    } else {
        format!("{} in {place} where {}", list.gvk.kind, selectors.join(","))
    }
}

fn of_object(key: &ObjectRef, object: Option<&KubeObject>) -> Read {
    let (state, why) = match object {
        None => (ReadState::Absent, String::new()),
        Some(object) => {
            let ready = object.check_ready(&key.gvk);
            let why = match (ready.reason.as_str(), ready.message.as_str()) {
                (reason, "") => reason.to_owned(),
                (reason, message) => format!("{reason}: {message}"),
            };
            match ready.reason.is_empty() {
                _ if object.is_deleting() => (ReadState::Terminating, why),
                // A built-in kind without a status, for example a ConfigMap, has no reason either.
                _ if ready.ready && object.status().is_some_and(|status| status.is_object()) => {
                    (ReadState::Ready, String::new())
                }
                true => (ReadState::Exists, String::new()),
                false => (ReadState::NotReady, why),
            }
        }
    };
    Read {
        what: key.to_string(),
        state,
        why,
    }
}

/// The objects that one owns: dependencies with its UID in the label of their owner, and those of its inventory.
fn list_owned(owner: &KubeObject, found: &[Found]) -> Vec<String> {
    let is_owned = |child: &KubeObject| owned::is_owned_by(child, &owner.uid);
    let here = found.iter().filter_map(|found| match found {
        Found::Object(key, Some(child)) if is_owned(child) => Some(key.to_string()),
        _ => None,
    });
    let elsewhere = owned::list_owned(owner);
    let names: BTreeSet<String> = here.chain(elsewhere.iter().map(ToString::to_string)).collect();
    names.into_iter().collect()
}

/// The reads of an object that is not Ready that it may wait for, by name; then objects of its lists.
fn list_waits(found: &[Found], asking: &ObjectRef) -> Vec<Read> {
    let mut waits: Vec<Read> = found.iter().map(describe_read).filter(Read::is_missing).collect();
    waits.sort_by(|a, b| a.what.cmp(&b.what));
    waits.dedup();
    waits.extend(found.iter().flat_map(|read| list_missing(read, asking)));
    waits
}

/// Objects of a list that are not Ready, without the explained object itself.
fn list_missing(found: &Found, asking: &ObjectRef) -> Vec<Read> {
    let Found::List(_, objects) = found else {
        return Vec::new();
    };
    objects
        .iter()
        .filter(|(key, _)| key != asking)
        .map(|(key, object)| of_object(key, Some(object)))
        .filter(Read::is_missing)
        .take(MAX_NAMED_OBJECTS)
        .collect()
}

/// End of the pause of all objects of a plugin, if there is one.
fn pause_reason(suspended: bool, hooks: &HookState) -> Option<String> {
    Some(match hooks {
        _ if suspended => "when its plugin is no longer suspended".into(),
        HookState::None | HookState::Done => return None,
        HookState::Pending => "when the life-cycle hooks of its plugin have run".into(),
        HookState::Failed(why) => {
            format!("when the life-cycle hooks of its plugin, which are retried, have succeeded: {why}")
        }
    })
}

impl NextRun {
    /// The next run by the turn in the queue, whether a plugin serves the kind, and why that holds all its objects.
    pub(super) fn of_turn(turn: &Turn, served: bool, held: Option<String>) -> Self {
        if let (Some(ItemState::Queued(_) | ItemState::Delayed(_)), Some(why)) = (turn.state, held) {
            return Self {
                place: "held".into(),
                in_seconds: None,
                why,
            };
        }
        let (place, why) = match turn.state {
            _ if !served => ("settled", "no running plugin reconciles its kind".to_owned()),
            Some(ItemState::InFlight { requeue: false }) => ("running", "it runs now".to_owned()),
            Some(ItemState::InFlight { requeue: true }) => ("running", "it runs now, and again right after: something changed meanwhile".to_owned()),
            Some(ItemState::Queued(priority)) => {
                let word = match priority {
                    Priority::High => "high",
                    Priority::Normal => "normal",
                    Priority::Low => "low",
                };
                ("queued", format!("as soon as a worker is free ({word} priority)"))
            }
            Some(ItemState::Delayed(_)) => {
                let why = match &turn.due_cause {
                    Some(Cause::Poll) => "next poll",
                    Some(Cause::Timer) => "requested by its plugin",
                    Some(Cause::Retry) if turn.failures > 0 => "retry after a failure",
                    Some(Cause::Retry) => "next check of what it waits for",
                    _ => "scheduled",
                };
                ("delayed", format!("{why}; sooner if it or an object it read changes"))
            }
            Some(ItemState::Parked) => ("parked", "no retry, since it would not help; a change of it, of an object it read, or of its plugin wakes it".to_owned()),
            None => ("settled", "when it or an object it read changes".to_owned()),
        };
        Self {
            place: place.into(),
            in_seconds: turn.due_in.map(|d| d.as_millis() as f64 / 1000.0),
            why,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, extra: &str, rest: &str) -> (ObjectRef, Arc<KubeObject>) {
        let json = format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"{name}","resourceVersion":"1"{extra}}}{rest}}}"#
        );
        let (key, object) =
            KubeObject::parse(&Gvk::new("g", "v1", "Thing"), json.as_bytes()).expect("an object");
        (key, Arc::new(object))
    }

    fn conditioned(name: &str, status: &str) -> (ObjectRef, Arc<KubeObject>) {
        let condition = format!(
            r#","status":{{"conditions":[{{"type":"Ready","status":"{status}","reason":"Because","message":"of this"}}]}}"#
        );
        object(name, "", &condition)
    }

    #[test]
    fn explain_lists_unready_dependencies_holders_and_owned_objects() {
        let there = |(key, object): (ObjectRef, Arc<KubeObject>)| Found::Object(key, Some(object));
        let (key, asked) = object(
            "a",
            r#","finalizers":["held-by.ostler.dev/1","other/f"],"annotations":{"ostler.dev/paused":"true","held-by.ostler.dev/1":"Thing.v1 n/x","ostler.dev/owned-objects":"ConfigMap.v1 fleet/east apps/c"}"#,
            "",
        );
        let of_kind = |name: &str| ObjectRef::new(key.gvk.clone(), "n", name);
        let list = List {
            gvk: key.gvk.clone(),
            cluster: "".into(),
            namespace: "n".into(),
            labels: crate::kube::selector::LabelSelector::parse("app=web").ok(),
            fields: None,
            projection: Projection::Full,
        };
        let found = vec![
            there(conditioned("ready", "True")),
            there(conditioned("not-ready", "False")),
            there(object("plain", "", "")),
            Found::Object(of_kind("absent"), None),
            Found::Unknown(
                ReadDependency::Object(of_kind("unknown"), Projection::Full),
                "forbidden".into(),
            ),
            Found::List(
                list,
                vec![(key.clone(), asked.clone()), conditioned("listed", "False")],
            ),
        ];
        let stats = crate::reconcile::stats::ReconcileStats::new(Default::default());
        stats.abandon_reconcile(&key);
        let scheduled = Scheduled {
            turn: Turn {
                state: Some(ItemState::Delayed(Default::default())),
                failures: 0,
                due_in: Some(std::time::Duration::from_millis(1500)),
                due_cause: Some(Cause::Poll),
            },
            causes: vec![Cause::Start; 30],
            reads: Vec::new(),
            permits: Vec::new(),
        };
        let facts = stats.object(&key).expect("facts");
        let explanation = build_explanation(&key, &asked, facts, scheduled, Some("p".into()), None, found);
        let waits = explanation.waits_for.iter().map(|r| (&*r.what, r.state, &*r.why));
        assert_eq!(
            waits.collect::<Vec<_>>(),
            [
                ("Thing/n/absent", ReadState::Absent, ""),
                ("Thing/n/not-ready", ReadState::NotReady, "Because: of this"),
                ("Thing/n/unknown", ReadState::Unknown, "forbidden"),
                ("Thing/n/listed", ReadState::NotReady, "Because: of this"),
            ]
        );
        let reads = explanation.reads.iter().map(|r| (&*r.what, r.state));
        assert_eq!(
            reads.collect::<Vec<_>>(),
            [
                ("Thing in n where app=web", ReadState::List(2)),
                ("Thing/n/absent", ReadState::Absent),
                ("Thing/n/not-ready", ReadState::NotReady),
                ("Thing/n/plain", ReadState::Exists),
                ("Thing/n/ready", ReadState::Ready),
                ("Thing/n/unknown", ReadState::Unknown),
            ]
        );
        assert_eq!(explanation.holders, ["Thing/n/x"]);
        assert_eq!(explanation.owns, ["ConfigMap/fleet/east:apps/c"]);
        assert_eq!(
            (explanation.state, explanation.paused, explanation.woken_by.len()),
            (ExplainedState::Paused, true, MAX_CAUSES)
        );
        assert_eq!(
            (&*explanation.next.place, explanation.next.in_seconds),
            ("delayed", Some(1.5))
        );
        assert!(
            explanation.next.why.contains("next poll"),
            "{}",
            explanation.next.why
        );
    }

    #[test]
    fn queued_object_of_held_plugin_explains_the_hold() {
        for (suspended, hooks, words) in [
            (false, HookState::None, None),
            (false, HookState::Done, None),
            (false, HookState::Pending, Some("hooks of its plugin have run")),
            (
                false,
                HookState::Failed("initialize: no".into()),
                Some("have succeeded: initialize: no"),
            ),
            (true, HookState::Done, Some("suspended")),
        ] {
            let explanation = pause_reason(suspended, &hooks);
            let said = |words: &str| explanation.as_ref().is_some_and(|why| why.contains(words));
            assert!(words.map_or(explanation.is_none(), said), "{explanation:?}");
        }
        for (place, expected) in [
            (Some(ItemState::Queued(Priority::Low)), "held"),
            (Some(ItemState::Delayed(Default::default())), "held"),
            // What has begun ends, and what is not queued waits for nothing.
            (Some(ItemState::InFlight { requeue: false }), "running"),
            (Some(ItemState::Parked), "parked"),
            (None, "settled"),
        ] {
            let turn = Turn {
                state: place,
                failures: 0,
                due_in: Some(std::time::Duration::from_secs(1)),
                due_cause: None,
            };
            let next = NextRun::of_turn(&turn, true, pause_reason(true, &HookState::None));
            assert_eq!(next.place, expected);
            assert_eq!(next.in_seconds.is_none(), expected == "held");
        }
    }
}
