//! What would be otherwise: between the host and the API server, in a plan.
//!
//! Each write is tried as a dry run, so that defaults, admission, validation and conflicts are the server's own.
//! What it came to is kept here, and found by every read from then on. The server knows nothing of what is only
//! planned, so a second write of an object is tried as everything together that was planned for it; what can't be
//! tried at all is worked out here, and said to be.

mod writes;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Mutex, OnceLock, Weak},
};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::{merge::same, secrets};
use crate::{
    client::api::{ApiClient, ApiError, CollectionOverlay, Interceptor, Target, WriteRequest, WriteResponse},
    kube::{
        key::{Gvk, ObjectRef},
        object::Labels,
        selector::Selector,
    },
    sandbox::capabilities::Services,
    schedule::dependencies::Dependency,
    upstream,
};

/// Versions of what is only planned: newer than anything live.
const PLANNED: u64 = 1 << 62;

/// One object that is touched.
#[derive(Clone, Debug)]
pub struct Entry {
    target: Target,
    /// As the server has it; none when it does not.
    pub live: Option<Value>,
    /// As it would be; none when it would be gone.
    pub planned: Option<Value>,
    /// What the server answered last to what each manager applied.
    applied: BTreeMap<String, Value>,
    /// On whose behalf it was written.
    pub by: BTreeSet<String>,
    /// What the server was not asked about, and why.
    pub unchecked: BTreeSet<String>,
    /// Whether some of it rests on an answer that nobody gave.
    pub guess: bool,
}

impl Entry {
    fn new(target: &Target, live: Option<Value>) -> Self {
        Self {
            target: target.clone(),
            planned: live.clone(),
            live,
            applied: BTreeMap::new(),
            by: BTreeSet::new(),
            unchecked: BTreeSet::new(),
            guess: false,
        }
    }

    /// Whether there is anything to tell.
    pub fn changed(&self) -> bool {
        match (&self.live, &self.planned) {
            (Some(live), Some(planned)) => !same(live, planned),
            (live, planned) => live.is_some() != planned.is_some(),
        }
    }

    /// The object's name; none where it neither is nor would be.
    pub fn key(&self) -> Option<ObjectRef> {
        self.planned.as_ref().or(self.live.as_ref()).map(key)
    }
}

/// A request to an upstream that is not sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Request {
    /// The object whose reconcile asks for it.
    pub by: String,
    /// Namespace and name of the Upstream.
    pub upstream: String,
    /// The HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The body, with placeholders; JSON where it is some.
    pub body: Value,
    /// Whether it rests on an earlier answer that nobody gave.
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

/// What came of one reconcile, as far as the plan is concerned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// It rests on an answer that nobody gave.
    pub guess: bool,
    /// Somebody else changed what it wrote.
    pub conflict: bool,
}

/// Who writes now.
#[derive(Default)]
struct Run {
    by: String,
    subject: Option<ObjectRef>,
    ran: Ran,
    written: BTreeSet<String>,
    /// The first of its requests.
    requests: usize,
}

#[derive(Default)]
struct State {
    /// By path.
    entries: BTreeMap<String, Entry>,
    version: u64,
    run: Run,
    /// Objects that rest on an answer that nobody gave.
    guessed: HashSet<ObjectRef>,
    requests: Vec<Request>,
    news: Vec<PlannedEvent>,
    /// What Secrets hold, as far as it has passed.
    secrets: BTreeSet<Vec<u8>>,
}

/// The overlay of one plan.
#[derive(Default)]
pub struct Overlay {
    state: Mutex<State>,
    /// What is to be told of what changes.
    world: OnceLock<Weak<Services>>,
}

impl Overlay {
    /// Tells these from now on.
    pub fn tell(&self, services: &Arc<Services>) {
        let _ = self.world.set(Arc::downgrade(services));
    }

    /// From now on writes are on behalf of this object, or of what else `by` says.
    pub fn begin(&self, by: &str, subject: Option<ObjectRef>) {
        self.with(|state| {
            state.run = Run {
                by: by.to_owned(),
                subject,
                requests: state.requests.len(),
                ..Run::default()
            };
        });
    }

    /// The reconcile has ended, having read this.
    pub fn end(&self, reads: &[Dependency]) -> Ran {
        self.with(|state| {
            let run = std::mem::take(&mut state.run);
            let mut ran = run.ran;
            let foreign = |key: &&ObjectRef| Some(*key) != run.subject.as_ref();
            let read = state.guessed.iter().filter(foreign).any(|guessed| {
                reads.iter().any(|read| match read {
                    Dependency::Object(key, _) => key == guessed,
                    Dependency::List(list) => {
                        list.gvk == guessed.gvk
                            && (list.namespace.is_empty() || list.namespace == guessed.namespace)
                    }
                })
            });
            if read {
                ran.guess = true;
                state
                    .requests
                    .iter_mut()
                    .skip(run.requests)
                    .for_each(|r| r.guess = true);
            }
            if ran.guess {
                for path in &run.written {
                    let Some(entry) = state.entries.get_mut(path) else {
                        continue;
                    };
                    entry.guess = true;
                    state.guessed.extend(entry.key());
                }
            }
            ran
        })
    }

    /// A request to an upstream that may change something: noted, and answered as if it had been done.
    pub fn request(
        &self,
        upstream: &upstream::UpstreamObject,
        request: &upstream::Request,
    ) -> upstream::Response {
        let body = request.body.as_deref().unwrap_or_default();
        let body = match serde_json::from_slice(body) {
            Ok(json) => json,
            Err(_) if body.is_empty() => Value::Null,
            Err(_) => match std::str::from_utf8(body) {
                Ok(text) => text.into(),
                Err(_) => format!("{} bytes", body.len()).into(),
            },
        };
        self.with(|state| {
            let request = Request {
                by: state.run.by.clone(),
                upstream: format!("{}/{}", upstream.namespace, upstream.name),
                method: request.method.clone(),
                path: request.path_and_query.clone(),
                body,
                guess: state.run.ran.guess,
            };
            state.run.ran.guess = true;
            // Asked for again by a later reconcile, it is still the same.
            let alike = |r: &Request| {
                Request {
                    guess: request.guess,
                    ..r.clone()
                } == request
            };
            if !state.requests.iter().any(alike) {
                state.requests.push(request);
            }
        });
        upstream::Response {
            status: 200,
            headers: vec![
                ("content-type".into(), "application/json".into()),
                ("x-ostler-plan".into(), "assumed".into()),
            ],
            body: b"{}".to_vec(),
        }
    }

    /// All that changes, in order of the paths.
    pub fn changes(&self) -> Vec<Entry> {
        self.with(|state| state.entries.values().filter(|e| e.changed()).cloned().collect())
    }

    /// Everything that has passed and is not to be shown.
    pub(super) fn secrets(&self) -> BTreeSet<Vec<u8>> {
        self.with(|state| state.secrets.clone())
    }

    /// The uids of objects that exist in the plan alone.
    pub fn uids(&self) -> Vec<String> {
        let uid = |object: &Value| object["metadata"]["uid"].as_str().map(str::to_owned);
        self.with(|state| {
            let new = state.entries.values().filter_map(|e| {
                let planned = e.planned.as_ref().and_then(uid);
                planned.filter(|planned| e.live.as_ref().and_then(uid).as_ref() != Some(planned))
            });
            new.collect()
        })
    }

    /// Requests and Events, in their order.
    pub fn noted(&self) -> (Vec<Request>, Vec<PlannedEvent>) {
        self.with(|state| (state.requests.clone(), state.news.clone()))
    }

    fn event(&self, mut event: Value) -> Bytes {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let about = ObjectRef::new(
            Gvk::from_api_version(text("/involvedObject/apiVersion"), text("/involvedObject/kind")),
            text("/involvedObject/namespace"),
            text("/involvedObject/name"),
        );
        let news = PlannedEvent {
            about: about.to_string(),
            kind: text("/type").into(),
            reason: text("/reason").into(),
            note: text("/message").into(),
        };
        // A count that goes up is no news.
        if !news.reason.is_empty() {
            self.with(|state| {
                if !state.news.contains(&news) {
                    state.news.push(news);
                }
            });
        }
        event["metadata"]["resourceVersion"] = "1".into();
        event.to_string().into()
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().expect("lock"))
    }
}

impl Interceptor for Overlay {
    fn intercept_get(&self, path: &str) -> Option<Result<Bytes, ApiError>> {
        let target = Target::parse(path)?;
        let path = target.object(&target.name);
        self.with(|state| {
            let entry = state.entries.get(&path)?;
            Some(match &entry.planned {
                Some(planned) => Ok(planned.to_string().into()),
                None => Err(missing(&target)),
            })
        })
    }

    fn overlay_collection(&self, path: &str) -> Option<CollectionOverlay> {
        let list = Target::parse(path)?;
        let selector = list.parameter("labelSelector").map(Selector::parse);
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
        self.with(|state| {
            let entries = state.entries.values().filter(|e| list.contains(&e.target));
            let mut collected = CollectionOverlay {
                names: HashSet::new(),
                objects: Vec::new(),
            };
            for entry in entries {
                let Target { namespace, name, .. } = &entry.target;
                collected.names.insert((namespace.clone(), name.clone()));
                let planned = entry.planned.iter().filter(|p| selected(p));
                collected.objects.extend(planned.map(Value::to_string));
            }
            (!collected.names.is_empty()).then_some(collected)
        })
    }

    fn observe_response(&self, path: &str, body: &[u8]) {
        let values = secrets::values(path, body);
        if !values.is_empty() {
            self.with(|state| state.secrets.extend(values));
        }
    }

    fn intercept_write<'a>(&'a self, under: &'a ApiClient, write: WriteRequest<'a>) -> WriteResponse<'a> {
        Box::pin(self.take(under, write))
    }
}

/// What names an object.
fn key(object: &Value) -> ObjectRef {
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

fn missing(target: &Target) -> ApiError {
    status(
        404,
        "NotFound",
        format!("{} {:?} not found", target.plural, target.name),
    )
}

fn status(code: u16, reason: &str, message: String) -> ApiError {
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

    /// An overlay in which `new` is planned and `gone` is not there any more.
    fn overlay() -> Overlay {
        let overlay = Overlay::default();
        overlay.begin("Probe/n/p", None);
        for (name, live, planned) in [
            ("new", None, Some(map("new", "x"))),
            ("gone", Some(map("gone", "x")), None),
        ] {
            let path = format!("/api/v1/namespaces/n/configmaps/{name}");
            let target = Target::parse(&path).expect("an object");
            let entry = Entry {
                planned,
                ..Entry::new(&target, live)
            };
            overlay.with(|state| state.entries.insert(path, entry));
        }
        overlay
    }

    #[test]
    fn reads_and_lists_see_what_is_planned() {
        let overlay = overlay();
        let new = overlay
            .intercept_get("/api/v1/namespaces/n/configmaps/new")
            .expect("it is here");
        assert_eq!(
            serde_json::from_slice::<Value>(&new.expect("there")).expect("JSON"),
            map("new", "x")
        );
        let gone = overlay
            .intercept_get("/api/v1/namespaces/n/configmaps/gone")
            .expect("it is here");
        assert_eq!(gone.expect_err("it is gone").code(), 404);
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
            // What was live under a name is hidden, whether it is selected now or not.
            assert!(collected.hides(&map("gone", "x").to_string()), "{path}");
            assert!(!collected.hides(&map("other", "x").to_string()), "{path}");
        }
        assert_eq!(overlay.changes().len(), 2);
        let planned: Vec<_> = overlay.changes().into_iter().filter_map(|e| e.planned).collect();
        assert_eq!(planned, [map("new", "x")]);
    }

    #[test]
    fn what_rests_on_a_guess_is_one() {
        let overlay = overlay();
        let path = "/api/v1/namespaces/n/configmaps/new";
        let guess = |by: &ObjectRef, assumed: bool, reads: &[Dependency]| {
            overlay.begin("it", Some(by.clone()));
            overlay.with(|state| {
                state.run.ran.guess = assumed;
                state.run.written.insert(path.into());
            });
            overlay.end(reads).guess
        };
        let [one, other] = ["one", "other"].map(|name| ObjectRef::new(Gvk::new("g", "v1", "A"), "n", name));
        let new = key(&map("new", "x"));
        let reads = [Dependency::Object(new, Projection::Full)];
        assert!(!guess(&one, false, &reads), "nothing is guessed yet");
        assert!(guess(&one, true, &[]));
        assert!(overlay.changes().iter().any(|e| e.guess));
        assert!(guess(&other, false, &reads), "it reads what rests on a guess");
        assert!(!guess(&other, false, &[]));
    }
}
