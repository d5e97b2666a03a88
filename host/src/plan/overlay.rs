//! Overlay of planned objects between the host and the API server.
//!
//! Each write is sent as a dry run, so that defaulting, admission, validation and conflicts are the server's own. The
//! response is stored here and returned by all later reads. The server does not know planned objects, so a second
//! write of an object is sent as the sum of all its planned changes. A write that cannot be sent as a dry run is
//! computed locally and marked as unchecked.

mod writes;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Mutex, OnceLock, Weak},
};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::{merge::is_same_state, secrets};
use crate::{
    client::api::{
        ApiClient, ApiError, ApiTarget, CollectionOverlay, Interceptor, WriteRequest, WriteResponse,
    },
    kube::{
        key::{Gvk, ObjectRef},
        object::Labels,
        selector::LabelSelector,
    },
    sandbox::services::Services,
    schedule::dependencies::ReadDependency,
    upstream,
};

/// First `resourceVersion` of planned objects: higher than any live one.
const FIRST_PLANNED_VERSION: u64 = 1 << 62;

/// State of one object that the plan writes.
#[derive(Clone, Debug)]
pub struct Entry {
    target: ApiTarget,
    /// The cluster; empty for the host's own.
    cluster: Arc<str>,
    /// The live object; `None` if it does not exist.
    pub live: Option<Value>,
    /// The planned object; `None` if it would be deleted.
    pub planned: Option<Value>,
    /// The server's last dry-run response to an apply of each field manager.
    applied: BTreeMap<String, Value>,
    /// Reconciled objects and files that wrote it.
    pub by: BTreeSet<String>,
    /// Parts that the server could not validate, with the reason.
    pub unchecked: BTreeSet<String>,
    /// `true` if some of it depends on the assumed response of a request that was not sent.
    pub guess: bool,
}

impl Entry {
    fn new(target: &ApiTarget, live: Option<Value>) -> Self {
        Self {
            target: target.clone(),
            cluster: Arc::default(),
            planned: live.clone(),
            live,
            applied: BTreeMap::new(),
            by: BTreeSet::new(),
            unchecked: BTreeSet::new(),
            guess: false,
        }
    }

    /// Returns `true` if the planned object differs from the live one in more than bookkeeping.
    pub fn is_changed(&self) -> bool {
        match (&self.live, &self.planned) {
            (Some(live), Some(planned)) => !is_same_state(live, planned),
            (live, planned) => live.is_some() != planned.is_some(),
        }
    }

    /// Returns `true` if the object exists live, and the plan leaves these fields as they are.
    fn has_live_fields(&self, pointers: &[&str]) -> bool {
        let (Some(live), Some(planned)) = (&self.live, &self.planned) else {
            return false;
        };
        pointers.iter().all(|p| live.pointer(p) == planned.pointer(p))
    }

    /// The object's reference; `None` if it exists neither live nor in the plan.
    pub fn object_ref(&self) -> Option<ObjectRef> {
        let object = self.planned.as_ref().or(self.live.as_ref())?;
        Some(object_ref(object).with_cluster(&self.cluster))
    }
}

/// Method of a message in the list of requests.
pub const PUBLISH: &str = "PUBLISH";

/// A request to an upstream that is not sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnsentRequest {
    /// The object whose reconcile makes the request.
    pub by: String,
    /// Namespace and name of the Upstream.
    pub upstream: String,
    /// The HTTP method, or `PUBLISH` for a message.
    pub method: String,
    /// Path and query; for a message its exchange and routing key.
    pub path: String,
    /// The body, with placeholders for secrets; parsed if it is JSON.
    pub body: Value,
    /// `true` if it depends on the assumed response of an earlier request.
    pub guess: bool,
}

/// Kubernetes Event that the plan would write.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedEvent {
    /// The object it is about.
    pub about: String,
    /// `Normal` or `Warning`.
    pub kind: String,
    /// Its reason.
    pub reason: String,
    /// Its note.
    pub note: String,
}

/// Outcome of one reconcile for the plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOutcome {
    /// It depends on the assumed response of a request that was not sent.
    pub guess: bool,
    /// One of its writes failed with HTTP 409 Conflict.
    pub conflict: bool,
}

/// The reconcile that is in progress, the origin of writes and requests.
#[derive(Default)]
struct Run {
    by: String,
    subject: Option<ObjectRef>,
    outcome: RunOutcome,
    written: BTreeSet<String>,
    /// Index of its first request.
    requests: usize,
}

#[derive(Default)]
struct State {
    /// Written objects by API path.
    entries: BTreeMap<String, Entry>,
    version: u64,
    run: Run,
    /// Objects that depend on the assumed response of a request that was not sent.
    guessed: HashSet<ObjectRef>,
    requests: Vec<UnsentRequest>,
    events: Vec<PlannedEvent>,
    /// Values of all Secrets that were read or written.
    secrets: BTreeSet<Vec<u8>>,
    /// Upstreams that the plan changes may be connected to.
    trust_files: bool,
    /// Upstreams that were not connected to, as `namespace/name`.
    unconnected: BTreeSet<String>,
}

impl State {
    /// Adds a request. A later reconcile repeats it, perhaps as a guess: it is reported once.
    fn add_request(&mut self, request: UnsentRequest) {
        let is_repeated = |r: &UnsentRequest| {
            UnsentRequest {
                guess: request.guess,
                ..r.clone()
            } == request
        };
        if !self.requests.iter().any(is_repeated) {
            self.requests.push(request);
        }
    }
}

/// The overlay of one plan over the API server of one cluster.
#[derive(Default)]
pub struct Overlay {
    /// The cluster; empty for the host's own.
    cluster: Arc<str>,
    state: Mutex<State>,
    /// The overlays over other clusters, which this one includes.
    others: Mutex<Vec<Arc<Overlay>>>,
    /// The services whose store and dispatcher receive planned changes.
    services: OnceLock<Weak<Services>>,
}

impl Overlay {
    /// Sets the services whose store and dispatcher receive planned changes.
    pub fn attach_services(&self, services: &Arc<Services>) {
        let _ = self.services.set(Arc::downgrade(services));
    }

    /// Adds the overlay over another cluster, whose changes are part of this plan.
    pub fn add_cluster(&self, cluster: &Arc<str>) -> Arc<Self> {
        let other = Self {
            cluster: cluster.clone(),
            ..Self::default()
        };
        if let Some(services) = self.services.get() {
            let _ = other.services.set(services.clone());
        }
        let other = Arc::new(other);
        self.others.lock().expect("lock").push(other.clone());
        other
    }

    fn list_others(&self) -> Vec<Arc<Self>> {
        self.others.lock().expect("lock").clone()
    }

    /// Connects to Upstreams whose server or credentials the plan changes, if `trust` is set.
    pub fn trust_files(&self, trust: bool) {
        self.with_state(|state| state.trust_files = trust);
    }

    /// The Upstreams that were not connected to, as `namespace/name`.
    pub fn unconnected_upstreams(&self) -> impl Iterator<Item = String> + use<> {
        self.with_state(|state| state.unconnected.clone()).into_iter()
    }

    /// Attributes the following writes and requests to `by`, which reconciles `subject` if that is set.
    pub fn begin_run(&self, by: &str, subject: Option<ObjectRef>) {
        for other in self.list_others() {
            other.begin_run(by, subject.clone());
        }
        self.with_state(|state| {
            state.run = Run {
                by: by.to_owned(),
                subject,
                requests: state.requests.len(),
                ..Run::default()
            };
        });
    }

    /// Ends the current reconcile. If it read an object that depends on an assumed response, its writes do so as well.
    pub fn end_run(&self, reads: &[ReadDependency]) -> RunOutcome {
        let others = self.list_others();
        let read = self.has_guessed(reads) || others.iter().any(|other| other.has_guessed(reads));
        let mut outcome = self.finish_run(read);
        for other in others {
            outcome.conflict |= other.finish_run(outcome.guess).conflict;
        }
        outcome
    }

    /// The current reconcile read an object that depends on an assumed response.
    fn has_guessed(&self, reads: &[ReadDependency]) -> bool {
        self.with_state(|state| {
            let foreign = |key: &&ObjectRef| Some(*key) != state.run.subject.as_ref();
            let mut guessed = state.guessed.iter().filter(foreign);
            guessed.any(|guessed| {
                reads.iter().any(|read| match read {
                    ReadDependency::Object(key, _) | ReadDependency::Owned(key, _) => key == guessed,
                    ReadDependency::List(list) => {
                        list.gvk == guessed.gvk
                            && list.cluster == guessed.cluster
                            && (list.namespace.is_empty() || list.namespace == guessed.namespace)
                    }
                })
            })
        })
    }

    /// Ends the current reconcile; `read` if it read an object that depends on an assumed response.
    fn finish_run(&self, read: bool) -> RunOutcome {
        self.with_state(|state| {
            let run = std::mem::take(&mut state.run);
            let mut outcome = run.outcome;
            if read {
                outcome.guess = true;
                state
                    .requests
                    .iter_mut()
                    .skip(run.requests)
                    .for_each(|r| r.guess = true);
            }
            if outcome.guess {
                for path in &run.written {
                    let Some(entry) = state.entries.get_mut(path) else {
                        continue;
                    };
                    entry.guess = true;
                    state.guessed.extend(entry.object_ref());
                }
            }
            outcome
        })
    }

    /// Records a message that would be published.
    pub fn record_message(&self, upstream: &upstream::UpstreamObject, message: &upstream::OutgoingMessage) {
        let exchange = match message.exchange.as_str() {
            "" => "(default exchange)",
            exchange => exchange,
        };
        self.with_state(|state| {
            let request = UnsentRequest {
                by: state.run.by.clone(),
                upstream: format!("{}/{}", upstream.namespace, upstream.name),
                method: PUBLISH.into(),
                path: format!("{exchange} {}", message.routing_key),
                body: display_body(&message.body),
                guess: state.run.outcome.guess,
            };
            state.add_request(request);
        });
    }

    /// Records a request to an upstream that may change something, and returns an assumed response.
    pub fn record_request(
        &self,
        upstream: &upstream::UpstreamObject,
        request: &upstream::UpstreamRequest,
    ) -> upstream::UpstreamResponse {
        let body = display_body(request.body.as_deref().unwrap_or_default());
        self.with_state(|state| {
            let request = UnsentRequest {
                by: state.run.by.clone(),
                upstream: format!("{}/{}", upstream.namespace, upstream.name),
                method: request.method.clone(),
                path: request.path_and_query.clone(),
                body,
                guess: state.run.outcome.guess,
            };
            state.run.outcome.guess = true;
            state.add_request(request);
        });
        upstream::UpstreamResponse {
            status: 200,
            headers: vec![
                ("content-type".into(), "application/json".into()),
                ("x-ostler-plan".into(), "assumed".into()),
            ],
            body: b"{}".to_vec(),
        }
    }

    /// The entries that differ from the live objects, in order of their paths.
    pub fn changes(&self) -> Vec<Entry> {
        let mut changes: Vec<Entry> = self.with_state(|state| {
            let entries = state.entries.values();
            entries.filter(|e| e.is_changed()).cloned().collect()
        });
        changes.extend(self.list_others().iter().flat_map(|other| other.changes()));
        changes
    }

    /// The values of all Secrets that were read or written.
    pub(super) fn secrets(&self) -> BTreeSet<Vec<u8>> {
        let mut secrets = self.with_state(|state| state.secrets.clone());
        secrets.extend(self.list_others().iter().flat_map(|other| other.secrets()));
        secrets
    }

    /// The UIDs of objects that exist in the plan only.
    pub fn planned_uids(&self) -> Vec<String> {
        let uid = |object: &Value| object["metadata"]["uid"].as_str().map(str::to_owned);
        let mut uids: Vec<String> = self.with_state(|state| {
            let new = state.entries.values().filter_map(|e| {
                let planned = e.planned.as_ref().and_then(uid);
                planned.filter(|planned| e.live.as_ref().and_then(uid).as_ref() != Some(planned))
            });
            new.collect()
        });
        uids.extend(self.list_others().iter().flat_map(|other| other.planned_uids()));
        uids
    }

    /// Recorded requests and Events, in order.
    pub fn recorded_effects(&self) -> (Vec<UnsentRequest>, Vec<PlannedEvent>) {
        self.with_state(|state| (state.requests.clone(), state.events.clone()))
    }

    fn record_event(&self, mut event: Value) -> Bytes {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let about = ObjectRef::new(
            Gvk::from_api_version(text("/involvedObject/apiVersion"), text("/involvedObject/kind")),
            text("/involvedObject/namespace"),
            text("/involvedObject/name"),
        );
        let planned = PlannedEvent {
            about: about.to_string(),
            kind: text("/type").into(),
            reason: text("/reason").into(),
            note: text("/message").into(),
        };
        // A patch that only raises the count of an Event has no reason, and is not reported again.
        if !planned.reason.is_empty() {
            self.with_state(|state| {
                if !state.events.contains(&planned) {
                    state.events.push(planned);
                }
            });
        }
        event["metadata"]["resourceVersion"] = "1".into();
        event.to_string().into()
    }

    fn with_state<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().expect("lock"))
    }
}

impl Interceptor for Overlay {
    fn intercept_get(&self, path: &str) -> Option<Result<Bytes, ApiError>> {
        let target = ApiTarget::parse(path)?;
        let path = target.object(&target.name);
        self.with_state(|state| {
            let entry = state.entries.get(&path)?;
            Some(match &entry.planned {
                Some(planned) => Ok(planned.to_string().into()),
                None => Err(not_found(&target)),
            })
        })
    }

    fn overlay_collection(&self, path: &str) -> Option<CollectionOverlay> {
        let list = ApiTarget::parse(path)?;
        let selector = list.parameter("labelSelector").map(LabelSelector::parse);
        let selector = selector.and_then(Result::ok);
        let selected = |object: &Value| {
            let labels = object["metadata"]["labels"].as_object();
            let labels: Labels = labels
                .into_iter()
                .flatten()
                .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
                .collect();
            selector.as_ref().is_none_or(|s| s.matches(&labels))
        };
        self.with_state(|state| {
            let entries = state.entries.values().filter(|e| list.contains(&e.target));
            let mut collected = CollectionOverlay {
                names: HashSet::new(),
                objects: Vec::new(),
            };
            for entry in entries {
                let ApiTarget { namespace, name, .. } = &entry.target;
                collected.names.insert((namespace.clone(), name.clone()));
                let planned = entry.planned.iter().filter(|p| selected(p));
                collected.objects.extend(planned.map(Value::to_string));
            }
            (!collected.names.is_empty()).then_some(collected)
        })
    }

    fn observe_response(&self, path: &str, body: &[u8]) {
        let values = secrets::extract_values(path, body);
        if !values.is_empty() {
            self.with_state(|state| state.secrets.extend(values));
        }
    }

    fn intercept_write<'a>(&'a self, under: &'a ApiClient, write: WriteRequest<'a>) -> WriteResponse<'a> {
        Box::pin(self.apply_write(under, write))
    }
}

impl upstream::DryRun for Overlay {
    /// A live Upstream may be connected to. One whose server or credentials the plan changes may not: whoever wrote the
    /// files would choose the address that the live Secrets are sent to.
    fn may_connect(&self, upstream: &upstream::UpstreamObject) -> bool {
        let path = |api: &str, plural: &str, name: &str| {
            format!("{api}/namespaces/{}/{plural}/{name}", upstream.namespace)
        };
        let gvk = upstream::upstream_gvk();
        let api = format!("/apis/{}/{}", gvk.group, gvk.version);
        let object = path(&api, "upstreams", &upstream.name);
        let tls = upstream.spec.tls.as_ref();
        let trusted_ca = tls.and_then(|tls| tls.ca_secret_ref.as_ref());
        let trusted_ca = trusted_ca.map(|ca| path("/api/v1", "secrets", &ca.name));
        self.with_state(|state| {
            let unchanged = |path: &String, fields: &[&str]| {
                state.entries.get(path).is_none_or(|e| e.has_live_fields(fields))
            };
            state.trust_files
                || (unchanged(&object, &["/spec/url", "/spec/tls", "/spec/auth"])
                    && trusted_ca.is_none_or(|ca| unchanged(&ca, &["/data"])))
        })
    }

    fn record_message(&self, upstream: &upstream::UpstreamObject, message: &upstream::OutgoingMessage) {
        self.record_message(upstream, message);
    }

    fn answer_request(
        &self,
        upstream: &upstream::UpstreamObject,
        request: &upstream::UpstreamRequest,
    ) -> upstream::UpstreamResponse {
        if !self.may_connect(upstream) {
            self.assume_health(upstream);
        }
        self.record_request(upstream, request)
    }

    fn assume_health(&self, upstream: &upstream::UpstreamObject) {
        self.with_state(|state| {
            state.run.outcome.guess = true;
            state
                .unconnected
                .insert(format!("{}/{}", upstream.namespace, upstream.name));
        });
    }
}

/// The reference of an object, from its JSON.
/// A body as a plan shows it: parsed if it is JSON.
fn display_body(body: &[u8]) -> Value {
    match serde_json::from_slice(body) {
        Ok(json) => json,
        Err(_) if body.is_empty() => Value::Null,
        Err(_) => match std::str::from_utf8(body) {
            Ok(text) => text.into(),
            Err(_) => format!("{} bytes", body.len()).into(),
        },
    }
}

fn object_ref(object: &Value) -> ObjectRef {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    ObjectRef::new(
        Gvk::from_api_version(text("/apiVersion"), text("/kind")),
        text("/metadata/namespace"),
        text("/metadata/name"),
    )
}

fn not_found(target: &ApiTarget) -> ApiError {
    status_error(
        404,
        "NotFound",
        format!("{} {:?} not found", target.plural, target.name),
    )
}

fn status_error(code: u16, reason: &str, message: String) -> ApiError {
    ApiError::Status {
        code,
        reason: reason.into(),
        message,
        fields: Vec::new(),
        retry_after: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube::scope::Projection;

    fn map(name: &str, label: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "n", "labels": {"l": label}}})
    }

    /// An overlay in which `new` is created and `gone` is deleted.
    fn overlay() -> Overlay {
        let overlay = Overlay::default();
        overlay.begin_run("Probe/n/p", None);
        for (name, live, planned) in [
            ("new", None, Some(map("new", "x"))),
            ("gone", Some(map("gone", "x")), None),
        ] {
            let path = format!("/api/v1/namespaces/n/configmaps/{name}");
            let target = ApiTarget::parse(&path).expect("an object");
            let entry = Entry {
                planned,
                ..Entry::new(&target, live)
            };
            overlay.with_state(|state| state.entries.insert(path, entry));
        }
        overlay
    }

    #[test]
    fn reads_and_lists_return_planned_objects() {
        let overlay = overlay();
        let new = overlay
            .intercept_get("/api/v1/namespaces/n/configmaps/new")
            .expect("the overlay has an entry");
        assert_eq!(
            serde_json::from_slice::<Value>(&new.expect("the object exists")).expect("JSON"),
            map("new", "x")
        );
        let gone = overlay
            .intercept_get("/api/v1/namespaces/n/configmaps/gone")
            .expect("the overlay has an entry");
        assert_eq!(gone.expect_err("the object is deleted").code(), 404);
        assert!(
            overlay
                .intercept_get("/api/v1/namespaces/n/configmaps/other")
                .is_none()
        );
        assert!(overlay.intercept_get("/api/v1").is_none());
        for (path, count) in [
            ("/api/v1/configmaps?", Some(1)),
            ("/api/v1/namespaces/n/configmaps?labelSelector=l%3Dx&", Some(1)),
            ("/api/v1/namespaces/n/configmaps?labelSelector=l%3Dy&", Some(0)),
            ("/api/v1/namespaces/other/configmaps?", None),
            ("/api/v1/secrets?", None),
        ] {
            let collected = overlay.overlay_collection(path);
            assert_eq!(collected.as_ref().map(|c| c.objects.len()), count, "{path}");
            let Some(collected) = collected else { continue };
            // A live object with an entry is hidden, whether its planned state is selected or not.
            assert!(collected.hides(&map("gone", "x").to_string()), "{path}");
            assert!(!collected.hides(&map("other", "x").to_string()), "{path}");
        }
        assert_eq!(overlay.changes().len(), 2);
        let planned: Vec<_> = overlay.changes().into_iter().filter_map(|e| e.planned).collect();
        assert_eq!(planned, [map("new", "x")]);
    }

    #[test]
    fn reconcile_that_reads_a_guess_is_a_guess() {
        let overlay = overlay();
        let path = "/api/v1/namespaces/n/configmaps/new";
        let guess = |by: &ObjectRef, assumed: bool, reads: &[ReadDependency]| {
            overlay.begin_run("it", Some(by.clone()));
            overlay.with_state(|state| {
                state.run.outcome.guess = assumed;
                state.run.written.insert(path.into());
            });
            overlay.end_run(reads).guess
        };
        let [one, other] = ["one", "other"].map(|name| ObjectRef::new(Gvk::new("g", "v1", "A"), "n", name));
        let new = object_ref(&map("new", "x"));
        let reads = [ReadDependency::Object(new, Projection::Full)];
        assert!(!guess(&one, false, &reads), "there is no guess yet");
        assert!(guess(&one, true, &[]));
        assert!(overlay.changes().iter().any(|e| e.guess));
        assert!(guess(&other, false, &reads), "it reads an object that is a guess");
        assert!(!guess(&other, false, &[]));
    }
}
