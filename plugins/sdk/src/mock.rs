//! A host in memory, for native tests of a plugin's logic.
//!
//! Objects are put with [`Host::put`], HTTP answers with [`Host::answer`]; what
//! the plugin did is read back afterwards. A request without an answer fails
//! the test, naming the request.

use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;

use crate::bindings::ostler::plugin::{
    events::EventType,
    http::{self, Header},
    kubernetes::{GetOptions, ListOptions, Page, WriteOptions},
    messaging::Message,
};
use crate::guest::{Call, call_with, of_hook, upgrade_with};
use crate::outcome::json;
use crate::{
    Capabilities, Context, DeleteOptions, Error, Failure, Gvk, Level, Lifecycle, NotReady, ObjectRef,
    Outcome, Reconciler, Request, Resource,
};

/// Group, kind, namespace and name.
type Key = (String, String, String, String);
type Answers = VecDeque<Result<http::Response, Error>>;

/// What a plugin did.
#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Value>,
    answers: BTreeMap<(String, String), Answers>,
    requests: Vec<http::Request>,
    writes: Vec<String>,
    events: Vec<(String, String)>,
    logs: Vec<String>,
    held: BTreeSet<String>,
    checkpoints: Vec<Value>,
    messages: Vec<(String, Message)>,
    subscriptions: Vec<String>,
    streams: BTreeMap<String, Vec<http::Event>>,
    secrets: BTreeMap<(String, String), String>,
    memo: BTreeMap<String, Vec<u8>>,
    denied: BTreeSet<String>,
    config: Value,
    now: u64,
}

/// A host in memory.
#[derive(Default)]
pub struct Host(RefCell<State>);

impl Host {
    /// An empty world at time zero.
    #[must_use]
    pub fn new() -> Self {
        let host = Self::default();
        host.0.borrow_mut().config = Value::Object(serde_json::Map::new());
        host
    }

    /// Puts an object into the cluster, replacing the one of that name.
    pub fn put(&self, object: Value) -> &Self {
        let key = key_of(&object);
        self.0.borrow_mut().objects.insert(key, object);
        self
    }

    /// Takes an object out of the cluster.
    pub fn remove(&self, reference: &ObjectRef) -> &Self {
        self.0.borrow_mut().objects.remove(&key(reference));
        self
    }

    /// An object as it is now.
    #[must_use]
    pub fn object(&self, reference: &ObjectRef) -> Option<Value> {
        self.0.borrow().objects.get(&key(reference)).cloned()
    }

    /// Gives a Secret's key a digest; [`Host::remove_secret`] takes it away.
    pub fn secret(&self, secret: &str, key: &str, digest: &str) -> &Self {
        let key = (secret.to_owned(), key.to_owned());
        self.0.borrow_mut().secrets.insert(key, digest.to_owned());
        self
    }

    /// Takes a Secret's key away.
    pub fn remove_secret(&self, secret: &str, key: &str) -> &Self {
        let key = (secret.to_owned(), key.to_owned());
        self.0.borrow_mut().secrets.remove(&key);
        self
    }

    /// Answers a request from now on with this status and JSON body (none: empty).
    pub fn answer(&self, method: &str, path: &str, status: u16, body: impl Into<Value>) -> &Self {
        self.answers(method, path, [Ok(response(status, &[], body))])
    }

    /// Answers a request in turn; the last answer stays.
    pub fn answers(
        &self,
        method: &str,
        path: &str,
        answers: impl IntoIterator<Item = Result<http::Response, Error>>,
    ) -> &Self {
        let key = (method.to_owned(), path.to_owned());
        let answers = answers.into_iter().collect();
        self.0.borrow_mut().answers.insert(key, answers);
        self
    }

    /// Gives an event stream these events, by name and data; `http.read-events` reads them.
    pub fn stream(&self, path: &str, events: &[(&str, &str)]) -> &Self {
        let event = |(name, data): &(&str, &str)| http::Event {
            id: None,
            name: (*name).to_owned(),
            data: (*data).to_owned(),
        };
        let events = events.iter().map(event).collect();
        self.0.borrow_mut().streams.insert(path.to_owned(), events);
        self
    }

    /// Makes a capability (`kubernetes.apply`, …) answer `denied`.
    pub fn deny(&self, capability: &str) -> &Self {
        self.0.borrow_mut().denied.insert(capability.to_owned());
        self
    }

    /// Sets the plugin's configuration.
    pub fn set_config(&self, config: Value) -> &Self {
        self.0.borrow_mut().config = config;
        self
    }

    /// Sets the time.
    pub fn set_now(&self, milliseconds: u64) -> &Self {
        self.0.borrow_mut().now = milliseconds;
        self
    }

    /// Reconciles an object as the host would.
    ///
    /// # Errors
    /// The reconciler's failure.
    pub fn reconcile<R: Reconciler>(&self, reconciler: &R, object: &Value) -> Result<Outcome, Failure> {
        self.call(reconciler, object, Call::Reconcile)
    }

    /// Cleans an object up as the host would.
    ///
    /// # Errors
    /// The reconciler's failure.
    pub fn cleanup<R: Reconciler>(&self, reconciler: &R, object: &Value) -> Result<Outcome, Failure> {
        self.call(reconciler, object, Call::Cleanup)
    }

    /// Calls the hook `initialize` as the host would.
    ///
    /// # Errors
    /// The hook's.
    pub fn initialize<L: Lifecycle>(&self, hooks: &L) -> Result<(), Error> {
        let request = of_hook(Vec::new());
        hooks.initialize(&Context {
            host: self,
            request: &request,
        })
    }

    /// Calls the hook `upgrade` as the host would.
    ///
    /// # Errors
    /// The hook's.
    pub fn upgrade<L: Lifecycle>(&self, hooks: &L, object: &Value) -> Result<Option<Value>, Error> {
        let request = of_hook(json(object));
        let ctx = Context {
            host: self,
            request: &request,
        };
        let upgraded = upgrade_with(hooks, &ctx)?;
        Ok(upgraded.map(|bytes| serde_json::from_slice(&bytes).expect("it was JSON a moment ago")))
    }

    fn call<R: Reconciler>(&self, reconciler: &R, object: &Value, call: Call) -> Result<Outcome, Failure> {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
        let request = Request {
            object: json(object),
            ref_: R::Spec::reference(text("namespace"), text("name")),
            attempt: 0,
            causes: vec!["change".into()],
        };
        let ctx = Context {
            host: self,
            request: &request,
        };
        call_with(reconciler, &ctx, call)
    }

    /// Requests sent, as `METHOD /path`.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        let state = self.0.borrow();
        state
            .requests
            .iter()
            .map(|r| format!("{} {}", r.method, r.path_and_query))
            .collect()
    }

    /// Requests sent, in full.
    #[must_use]
    pub fn sent(&self) -> Ref<'_, [http::Request]> {
        Ref::map(self.0.borrow(), |state| state.requests.as_slice())
    }

    /// Writes to the cluster, as `apply Kind name`.
    #[must_use]
    pub fn writes(&self) -> Vec<String> {
        self.0.borrow().writes.clone()
    }

    /// Forgets the requests, writes and events so far.
    pub fn forget(&self) {
        let mut state = self.0.borrow_mut();
        state.requests.clear();
        state.subscriptions.clear();
        state.writes.clear();
        state.events.clear();
    }

    /// Reasons and notes of the Events emitted.
    #[must_use]
    pub fn events(&self) -> Vec<(String, String)> {
        self.0.borrow().events.clone()
    }

    /// Log lines.
    #[must_use]
    pub fn logs(&self) -> Vec<String> {
        self.0.borrow().logs.clone()
    }

    /// Objects held, as `Kind namespace/name`.
    #[must_use]
    pub fn held(&self) -> Vec<String> {
        self.0.borrow().held.iter().cloned().collect()
    }

    /// Paths of the event streams followed.
    #[must_use]
    pub fn subscriptions(&self) -> Vec<String> {
        self.0.borrow().subscriptions.clone()
    }

    /// Status fields checkpointed.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<Value> {
        self.0.borrow().checkpoints.clone()
    }

    /// Messages published, with their broker.
    #[must_use]
    pub fn messages(&self) -> Vec<(String, Message)> {
        self.0.borrow().messages.clone()
    }

    fn allowed(&self, capability: &str) -> Result<(), Error> {
        match self.0.borrow().denied.contains(capability) {
            true => Err(Error::Denied(capability.to_owned())),
            false => Ok(()),
        }
    }

    fn write(&self, verb: &str, bytes: &[u8], options: WriteOptions) -> Result<Vec<u8>, Error> {
        let object: Value =
            serde_json::from_slice(bytes).map_err(|error| Error::Invalid(error.to_string()))?;
        let key = key_of(&object);
        let mut state = self.0.borrow_mut();
        let owned = if options.owned { " owned" } else { "" };
        let line = format!("{verb} {} {}{owned}", key.1, key.3);
        let before = state.objects.get(&key);
        if verb == "create" && before.is_some() {
            return Err(Error::Conflict(format!("{} exists", key.3)));
        }
        let mut after = before.cloned().unwrap_or(Value::Null);
        merge(&mut after, &object);
        // A write that changes nothing is suppressed, as the host does.
        if before != Some(&after) {
            state.writes.push(line);
        }
        state.objects.insert(key, after.clone());
        Ok(json(&after))
    }
}

/// An HTTP answer.
#[must_use]
pub fn response(status: u16, headers: &[(&str, &str)], body: impl Into<Value>) -> http::Response {
    let body = match body.into() {
        Value::Null => Vec::new(),
        Value::String(text) => text.into_bytes(),
        value => json(&value),
    };
    let headers = headers.iter().map(|(name, value)| Header {
        name: (*name).to_owned(),
        value: (*value).to_owned(),
    });
    http::Response {
        status,
        headers: headers.collect(),
        body,
    }
}

fn key(reference: &ObjectRef) -> Key {
    (
        reference.gvk.group.clone(),
        reference.gvk.kind.clone(),
        reference.namespace.clone().unwrap_or_default(),
        reference.name.clone(),
    )
}

fn key_of(object: &Value) -> Key {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&object["apiVersion"]);
    let group = api_version
        .rsplit_once('/')
        .map_or("", |(group, _)| group)
        .to_owned();
    let kind = text(&object["kind"]);
    assert!(!kind.is_empty(), "an object without a kind: {object}");
    let metadata = &object["metadata"];
    (group, kind, text(&metadata["namespace"]), text(&metadata["name"]))
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// Whether an object is selected by `key=value` terms; `at` finds what a key names.
fn matches<'a>(selector: Option<&str>, at: impl Fn(&str) -> &'a Value) -> bool {
    let terms = selector
        .into_iter()
        .flat_map(|s| s.split(','))
        .filter(|t| !t.is_empty());
    terms.into_iter().all(|term| {
        let (key, value) = term
            .split_once('=')
            .expect("the mock knows key=value selectors only");
        let found = match at(key.trim()) {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        found == value.trim()
    })
}

impl Capabilities for Host {
    fn kubernetes_get(&self, reference: &ObjectRef, _: &GetOptions) -> Result<Option<Vec<u8>>, Error> {
        self.allowed("kubernetes.get")?;
        Ok(self.object(reference).as_ref().map(json))
    }

    fn kubernetes_list(&self, gvk: &Gvk, options: &ListOptions) -> Result<Page, Error> {
        self.allowed("kubernetes.list")?;
        let state = self.0.borrow();
        let wanted = |(key, object): &(&Key, &Value)| {
            key.0 == gvk.group
                && key.1 == gvk.kind
                && options.namespace.as_ref().is_none_or(|ns| *ns == key.2)
                && matches(options.label_selector.as_deref(), |key| {
                    &object["metadata"]["labels"][key]
                })
                && matches(options.field_selector.as_deref(), |path| {
                    path.split('.').fold(*object, |value, key| &value[key])
                })
        };
        let items = state
            .objects
            .iter()
            .filter(wanted)
            .map(|(_, object)| json(object));
        Ok(Page {
            items: items.collect(),
            continue_token: None,
        })
    }

    fn kubernetes_require_ready(&self, reference: &ObjectRef) -> Result<Vec<u8>, Error> {
        self.allowed("kubernetes.require-ready")?;
        let not_ready = |exists, condition: &Value| {
            let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
            Error::NotReady(NotReady {
                ref_: reference.clone(),
                exists,
                reason: text("reason"),
                message: text("message"),
            })
        };
        let Some(object) = self.object(reference) else {
            return Err(not_ready(false, &Value::Null));
        };
        let conditions = object["status"]["conditions"].as_array();
        let ready = conditions.and_then(|all| all.iter().find(|c| c["type"] == "Ready"));
        match ready {
            Some(c) if c["status"] == "True" => Ok(json(&object)),
            other => Err(not_ready(true, other.unwrap_or(&Value::Null))),
        }
    }

    fn kubernetes_apply(&self, object: &[u8], options: WriteOptions) -> Result<Vec<u8>, Error> {
        self.allowed("kubernetes.apply")?;
        self.write("apply", object, options)
    }

    fn kubernetes_create(&self, object: &[u8], options: WriteOptions) -> Result<Vec<u8>, Error> {
        self.allowed("kubernetes.create")?;
        self.write("create", object, options)
    }

    fn kubernetes_delete(&self, reference: &ObjectRef, _: &DeleteOptions) -> Result<(), Error> {
        self.allowed("kubernetes.delete")?;
        let mut state = self.0.borrow_mut();
        if state.objects.remove(&key(reference)).is_some() {
            let line = format!("delete {} {}", reference.gvk.kind, reference.name);
            state.writes.push(line);
        }
        Ok(())
    }

    fn references_hold(&self, reference: &ObjectRef) -> Result<(), Error> {
        self.allowed("references.hold")?;
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let line = format!("{} {namespace}/{}", reference.gvk.kind, reference.name);
        self.0.borrow_mut().held.insert(line);
        Ok(())
    }

    fn http_send(&self, request: &http::Request) -> Result<http::Response, Error> {
        self.allowed("http.send")?;
        let mut state = self.0.borrow_mut();
        state.requests.push(request.clone());
        let key = (request.method.clone(), request.path_and_query.clone());
        let Some(answers) = state.answers.get_mut(&key) else {
            panic!("unexpected request: {} {}", key.0, key.1);
        };
        match answers.len() {
            0 => panic!("no answer left for {} {}", key.0, key.1),
            1 => answers[0].clone(),
            _ => answers.pop_front().expect("not empty"),
        }
    }

    fn http_send_all(&self, requests: &[http::Request]) -> Vec<Result<http::Response, Error>> {
        requests.iter().map(|r| self.http_send(r)).collect()
    }

    fn http_secret_digest(&self, _: Option<&str>, secret: &str, key: &str) -> Result<Option<String>, Error> {
        self.allowed("http.secret-digest")?;
        let key = (secret.to_owned(), key.to_owned());
        Ok(self.0.borrow().secrets.get(&key).cloned())
    }

    fn http_subscribe(&self, subscription: &http::Subscription) -> Result<(), Error> {
        self.allowed("http.subscribe")?;
        let path = subscription.path_and_query.clone();
        self.0.borrow_mut().subscriptions.push(path);
        Ok(())
    }

    fn http_read_events(&self, query: &http::EventQuery) -> Result<http::EventTail, Error> {
        self.allowed("http.read-events")?;
        let state = self.0.borrow();
        let Some(events) = state.streams.get(&query.path_and_query) else {
            panic!("unexpected event stream: {}", query.path_and_query);
        };
        let skipped = events.len().saturating_sub(query.last as usize);
        Ok(http::EventTail {
            events: events[skipped..].to_vec(),
            skipped: skipped as u64,
            complete: true,
        })
    }

    fn messaging_publish(&self, broker: &str, message: &Message) -> Result<(), Error> {
        self.allowed("messaging.publish")?;
        let message = (broker.to_owned(), message.clone());
        self.0.borrow_mut().messages.push(message);
        Ok(())
    }

    fn status_checkpoint(&self, fields: &[u8]) -> Result<(), Error> {
        self.allowed("status.checkpoint")?;
        let fields = serde_json::from_slice(fields).map_err(|error| Error::Invalid(error.to_string()))?;
        self.0.borrow_mut().checkpoints.push(fields);
        Ok(())
    }

    fn events_emit(&self, _: EventType, reason: &str, note: &str) {
        let event = (reason.to_owned(), note.to_owned());
        self.0.borrow_mut().events.push(event);
    }

    fn log_write(&self, _: Level, message: &str, _: &[(String, String)]) {
        self.0.borrow_mut().logs.push(message.to_owned());
    }

    fn metrics_counter(&self, _: &str, _: u64) {}

    fn metrics_gauge(&self, _: &str, _: f64) {}

    fn clock_now(&self) -> u64 {
        self.0.borrow().now
    }

    fn clock_remaining(&self) -> u64 {
        60_000
    }

    fn config_get(&self) -> Vec<u8> {
        json(&self.0.borrow().config)
    }

    fn memo_get_bytes(&self, key: &str) -> Option<Vec<u8>> {
        self.0.borrow().memo.get(key).cloned()
    }

    fn memo_put_bytes(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let mut state = self.0.borrow_mut();
        state.memo.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn memo_remove_key(&self, key: &str) {
        self.0.borrow_mut().memo.remove(key);
    }
}
