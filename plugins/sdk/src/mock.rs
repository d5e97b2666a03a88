//! An in-memory host for native tests of a plugin.
//!
//! A message is handled with [`MockHost::handle`], and what the plugin published is in [`MockHost::messages`].
//!
//! An object that the plugin creates gets a UID of its own, so that one of the same name is another object.
//!
//! A test adds objects with [`MockHost::put`] and HTTP responses with [`MockHost::answer`], runs the plugin, and then reads back
//! its requests, writes and Events. An object with finalizers or dependents that is deleted in the foreground stays, with a
//! deletion timestamp, until [`MockHost::remove`]; any other one is gone at once. A request without a response fails the test
//! and names the request.
//!
//! ```
//! use ostler_sdk::{Next, mock::MockHost, prelude::*};
//!
//! #[ostler_sdk::resource(group = "examples.dev", version = "v1", namespaced)]
//! pub struct PageSpec {
//!     path: String,
//! }
//!
//! #[ostler_sdk::reconciler]
//! fn reconcile(ctx: &Context, page: &Page) -> Result<Outcome, Failure> {
//!     let response = ctx.upstream("site").get(&page.spec.path).send()?;
//!     if !response.is_success() {
//!         return Err(Failure::wait("NotPublished", "The page is not published yet."));
//!     }
//!     Ok(Outcome::poll(60_000))
//! }
//!
//! let host = MockHost::new();
//! host.answer("GET", "/a", 200, "Hello");
//! let page = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"path": "/a"}});
//! assert_eq!(host.reconcile(&reconcile, &page).expect("an outcome").next, Next::Poll(Some(60_000)));
//! assert_eq!(host.requests(), ["GET /a"]);
//! ```

mod capabilities;
mod objects;

use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;

pub use self::objects::merge_patch;
use self::objects::{
    check_preconditions, format_cluster, format_entry, format_reference, key_of, key_on, merge_applied,
    name_cluster, object_key, raise_version, resize_containers,
};
use crate::bindings::ostler::plugin::http::{self, Header};
use crate::guest::{GuestCall, call_with, hook_request, upgrade_with};
use crate::outcome::to_json_bytes;
use crate::{
    ConditionStatus, Context, Delivery, Disposition, Error, Failure, Gvk, KindSpec, Lifecycle, Message,
    MessageHandler, NotReady, OWNER_UID_LABEL, ObjectRef, Outcome, Preconditions, Reconciler, Request,
    Substitution,
};

/// Group, kind, namespace, name and cluster; the last is empty for the own cluster.
type Key = (String, String, String, String, String);
type Answers = VecDeque<Result<http::Response, Error>>;
type Server = Box<dyn Fn(&http::Request) -> Result<http::Response, Error>>;

/// The simulated cluster and upstreams, and the record of what a plugin did.
#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Value>,
    /// Objects that the cache does not have yet.
    uncached: BTreeSet<Key>,
    /// Number of objects that the plugin has created, from which their UIDs are made.
    created: u64,
    answers: BTreeMap<(String, String), Answers>,
    response_headers: Vec<Header>,
    server: Option<Server>,
    requests: Vec<http::Request>,
    writes: Vec<String>,
    listed_objects: usize,
    events: Vec<(String, String)>,
    logs: Vec<String>,
    /// Logs of containers, by pod and the name of the container.
    container_logs: BTreeMap<(Key, String), String>,
    /// What the last reconcile holds.
    held: BTreeSet<String>,
    /// What was held before a reconcile that has not ended.
    held_before: BTreeSet<String>,
    checkpoints: Vec<Value>,
    holders: BTreeMap<String, Vec<ObjectRef>>,
    messages: Vec<(String, Message)>,
    substitutions: Vec<(String, Substitution)>,
    subscriptions: Vec<String>,
    streams: BTreeMap<String, Vec<http::Event>>,
    secrets: BTreeMap<(String, String), String>,
    cache: BTreeMap<String, Vec<u8>>,
    /// Number of permits that objects outside of the test have, by pool.
    used_permits: BTreeMap<String, usize>,
    /// Permits: the pool and the UID of the object.
    permits: BTreeSet<(String, String)>,
    /// Permits that were requested in a reconcile that has not ended.
    requested_permits: BTreeSet<(String, String)>,
    /// Errors of host functions that fail.
    failing: BTreeMap<String, Error>,
    config: Value,
    now: u64,
    /// Reference to the object being reconciled, as the objects it owns have it.
    owner: Value,
    /// Inventories: what an object owns on other clusters, by its uid.
    owned: BTreeMap<String, BTreeSet<String>>,
    /// Number of effects that may still happen before the host stops; none for no limit.
    effects_left: Option<usize>,
}

impl State {
    /// Returns whether another object has an owner reference to this one.
    fn has_dependents(&self, object: &Value) -> bool {
        let uid = &object["metadata"]["uid"];
        let owners = |other: &Value| other["metadata"]["ownerReferences"].as_array().cloned();
        let mut references = self.objects.values().filter_map(owners).flatten();
        uid.is_string() && references.any(|owner| owner["uid"] == *uid)
    }

    /// Removes an object that is gone from the inventory of the object being reconciled.
    fn unlist_owned(&mut self, reference: &ObjectRef, key: &Key) {
        let uid = self.owner["uid"].as_str().unwrap_or_default();
        let object = serde_json::json!({ "apiVersion": reference.gvk.api_version() });
        if let Some(owned) = self.owned.get_mut(uid) {
            owned.remove(&format_entry(&object, key));
        }
    }

    /// The permit of the object being reconciled.
    fn permit_of(&self, pool: &str) -> (String, String) {
        let uid = self.owner["uid"].as_str().unwrap_or_default();
        (pool.to_owned(), uid.to_owned())
    }

    /// Counts an effect, after it has happened. The guard of the state is released by the panic.
    fn count_effect(&mut self) {
        if let Some(left) = &mut self.effects_left {
            *left = left.saturating_sub(1);
            assert!(*left > 0, "{STOPPED}");
        }
    }
}

/// Time at which objects are deleted that have finalizers.
const DELETION_TIME: &str = "2026-01-01T00:00:00Z";

/// Message of the panic with which a host stops.
const STOPPED: &str = "the host stops after this effect";

/// An in-memory host.
#[derive(Default)]
pub struct MockHost(RefCell<State>);

impl MockHost {
    /// Builds an empty cluster at time zero.
    #[must_use]
    pub fn new() -> Self {
        let host = Self::default();
        host.0.borrow_mut().config = Value::Object(serde_json::Map::new());
        host
    }

    /// Adds an object to the cluster, or replaces the one of that name.
    pub fn put(&self, object: Value) -> &Self {
        let key = key_of(&object);
        self.0.borrow_mut().objects.insert(key, object);
        self
    }

    /// Adds an object to another cluster, or replaces the one of that name. `cluster` is as the component names it.
    pub fn put_on(&self, cluster: &str, object: Value) -> &Self {
        let key = key_on(Some(cluster), &object);
        self.0.borrow_mut().objects.insert(key, object);
        self
    }

    /// Removes an object from the cluster.
    pub fn remove(&self, reference: &ObjectRef) -> &Self {
        self.0.borrow_mut().objects.remove(&object_key(reference));
        self
    }

    /// Hides an object from reads of the cache, as a watch that is behind does. Live reads return it.
    pub fn hide_from_cache(&self, reference: &ObjectRef) -> &Self {
        self.0.borrow_mut().uncached.insert(object_key(reference));
        self
    }

    /// Lets other objects have this many permits of a pool.
    pub fn use_permits(&self, pool: &str, count: usize) -> &Self {
        self.0.borrow_mut().used_permits.insert(pool.to_owned(), count);
        self
    }

    /// Returns the number of permits of a pool that objects of the test have.
    #[must_use]
    pub fn permits(&self, pool: &str) -> usize {
        self.0
            .borrow()
            .permits
            .iter()
            .filter(|(of, _)| of == pool)
            .count()
    }

    /// Returns the current state of an object.
    #[must_use]
    pub fn object(&self, reference: &ObjectRef) -> Option<Value> {
        self.0.borrow().objects.get(&object_key(reference)).cloned()
    }

    /// Returns the current state of all objects of a kind, on all clusters.
    #[must_use]
    pub fn objects(&self, gvk: &Gvk) -> Vec<Value> {
        let state = self.0.borrow();
        let is_of_kind = |(key, _): &(&Key, &Value)| key.0 == gvk.group && key.1 == gvk.kind;
        let found = state.objects.iter().filter(is_of_kind);
        found.map(|(_, object)| object.clone()).collect()
    }

    /// Sets the digest of a Secret's key; [`MockHost::remove_secret`] removes it.
    pub fn secret(&self, secret: &str, key: &str, digest: &str) -> &Self {
        let key = (secret.to_owned(), key.to_owned());
        self.0.borrow_mut().secrets.insert(key, digest.to_owned());
        self
    }

    /// Removes a Secret's key.
    pub fn remove_secret(&self, secret: &str, key: &str) -> &Self {
        let key = (secret.to_owned(), key.to_owned());
        self.0.borrow_mut().secrets.remove(&key);
        self
    }

    /// Sets the response to a request: this status and JSON body, or no body for null.
    pub fn answer(&self, method: &str, path: &str, status: u16, body: impl Into<Value>) -> &Self {
        self.answers(method, path, [Ok(response(status, &[], body))])
    }

    /// Sets several responses to a request, which are returned in turn; the last one stays.
    pub fn answers(
        &self,
        method: &str,
        path: &str,
        answers: impl IntoIterator<Item = Result<http::Response, Error>>,
    ) -> &Self {
        let key = (method.to_owned(), path.to_owned());
        let mut state = self.0.borrow_mut();
        let mut answers: Answers = answers.into_iter().collect();
        for response in answers.iter_mut().flatten() {
            response.headers.extend_from_slice(&state.response_headers);
        }
        state.answers.insert(key, answers);
        drop(state);
        self
    }

    /// Sets headers that the responses set from now on carry in addition to their own.
    pub fn set_response_headers(&self, headers: &[(&str, &str)]) -> &Self {
        self.0.borrow_mut().response_headers = build_headers(headers);
        self
    }

    /// Answers the requests that have no response of their own, for example by a simulator.
    pub fn serve(&self, server: impl Fn(&http::Request) -> Result<http::Response, Error> + 'static) -> &Self {
        self.0.borrow_mut().server = Some(Box::new(server));
        self
    }

    /// Sets the events of a stream, by name and data; `http.read-events` reads them.
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

    /// Makes a host function (`kubernetes.apply`, …) fail with `denied`.
    pub fn deny(&self, capability: &str) -> &Self {
        self.fail(capability, Error::Denied(capability.to_owned()))
    }

    /// Makes a host function (`messaging.publish`, …) fail with an error; with none it works again.
    pub fn fail(&self, capability: &str, error: impl Into<Option<Error>>) -> &Self {
        let mut state = self.0.borrow_mut();
        match error.into() {
            Some(error) => state.failing.insert(capability.to_owned(), error),
            None => state.failing.remove(capability),
        };
        drop(state);
        self
    }

    /// Makes an object hold another one; `references.list-holders` returns it.
    pub fn add_holder(&self, held: &ObjectRef, holder: ObjectRef) -> &Self {
        let mut state = self.0.borrow_mut();
        state
            .holders
            .entry(format_reference(held))
            .or_default()
            .push(holder);
        drop(state);
        self
    }

    /// Sets the log of a container of a pod; the empty name stands for the only container.
    pub fn set_log(&self, pod: &ObjectRef, container: &str, log: &str) -> &Self {
        let key = (object_key(pod), container.to_owned());
        self.0.borrow_mut().container_logs.insert(key, log.to_owned());
        self
    }

    /// Sets the plugin's configuration.
    pub fn set_config(&self, config: Value) -> &Self {
        self.0.borrow_mut().config = config;
        self
    }

    /// Sets the current time.
    pub fn set_now(&self, milliseconds: u64) -> &Self {
        self.0.borrow_mut().now = milliseconds;
        self
    }

    /// Makes the host stop right after a number of effects, by a panic: writes, requests other than GET, messages and
    /// checkpoints. The caller of the plugin gets no answer to the last one. With none the host does not stop any more.
    pub fn stop_after(&self, effects: impl Into<Option<usize>>) -> &Self {
        self.0.borrow_mut().effects_left = effects.into();
        self
    }

    /// Reconciles an object as the host does.
    ///
    /// # Errors
    /// The reconciler's failure.
    pub fn reconcile<R: Reconciler>(&self, reconciler: &R, object: &Value) -> Result<Outcome, Failure> {
        self.call_reconciler(reconciler, object, GuestCall::Reconcile)
    }

    /// Cleans up an object as the host does.
    ///
    /// # Errors
    /// The reconciler's failure.
    pub fn cleanup<R: Reconciler>(&self, reconciler: &R, object: &Value) -> Result<Outcome, Failure> {
        self.call_reconciler(reconciler, object, GuestCall::Cleanup)
    }

    /// Calls the hook `initialize` as the host does.
    ///
    /// # Errors
    /// The error of the hook.
    pub fn initialize<L: Lifecycle>(&self, hooks: &L) -> Result<(), Error> {
        let request = hook_request(Vec::new());
        hooks.initialize(&Context {
            host: self,
            request: &request,
        })
    }

    /// Calls the hook `upgrade` as the host does.
    ///
    /// # Errors
    /// The error of the hook.
    pub fn upgrade<L: Lifecycle>(&self, hooks: &L, object: &Value) -> Result<Option<Value>, Error> {
        let request = hook_request(to_json_bytes(object));
        let ctx = Context {
            host: self,
            request: &request,
        };
        let upgraded = upgrade_with(hooks, &ctx)?;
        Ok(upgraded.map(|bytes| serde_json::from_slice(&bytes).expect("the hook returned JSON")))
    }

    /// Handles a message as the host does.
    ///
    /// # Errors
    /// The error of the handler.
    pub fn handle<H: MessageHandler>(&self, handler: &H, delivery: &Delivery) -> Result<Disposition, Error> {
        let request = hook_request(Vec::new());
        let ctx = Context {
            host: self,
            request: &request,
        };
        handler.handle(&ctx, delivery)
    }

    fn call_reconciler<R: Reconciler>(
        &self,
        reconciler: &R,
        object: &Value,
        call: GuestCall,
    ) -> Result<Outcome, Failure> {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
        let mut listed = object.clone();
        if let Some(owned) = self.0.borrow().owned.get(text("uid")).filter(|o| !o.is_empty()) {
            let inventory: Vec<_> = owned.iter().map(String::as_str).collect();
            listed["metadata"]["annotations"]["ostler.dev/owned-objects"] = inventory.join(", ").into();
        }
        let request = Request {
            object: to_json_bytes(&listed),
            ref_: R::Spec::reference(text("namespace"), text("name")),
            attempt: 0,
            causes: vec!["change".into()],
        };
        self.0.borrow_mut().owner = serde_json::json!({
            "apiVersion": R::Spec::gvk().api_version(),
            "kind": R::Spec::KIND,
            "name": text("name"),
            "uid": text("uid"),
            "controller": true,
        });
        let ctx = Context {
            host: self,
            request: &request,
        };
        let held = std::mem::take(&mut self.0.borrow_mut().held);
        self.0.borrow_mut().held_before.extend(held);
        let result = call_with(reconciler, &ctx, call);
        let mut state = self.0.borrow_mut();
        let before = std::mem::take(&mut state.held_before);
        let requested = std::mem::take(&mut state.requested_permits);
        // What a successful reconcile does not hold or request again is released.
        if result.is_err() {
            state.held.extend(before);
        } else {
            let uid = state.permit_of("").1;
            state
                .permits
                .retain(|permit| permit.1 != uid || requested.contains(permit));
        }
        drop(state);
        result
    }

    /// Returns the requests, each as `METHOD /path`.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        let state = self.0.borrow();
        state
            .requests
            .iter()
            .map(|r| format!("{} {}", r.method.as_str(), r.path_and_query))
            .collect()
    }

    /// Returns the whole requests.
    #[must_use]
    pub fn sent(&self) -> Ref<'_, [http::Request]> {
        Ref::map(self.0.borrow(), |state| state.requests.as_slice())
    }

    /// Returns the writes to the cluster, each as `apply Kind name`.
    #[must_use]
    pub fn writes(&self) -> Vec<String> {
        self.0.borrow().writes.clone()
    }

    /// Returns how many objects the lists have returned.
    #[must_use]
    pub fn listed_objects(&self) -> usize {
        self.0.borrow().listed_objects
    }

    /// Clears the recorded requests, subscriptions, messages, writes and Events, and the number of listed objects.
    pub fn forget(&self) {
        let mut state = self.0.borrow_mut();
        state.messages.clear();
        state.requests.clear();
        state.subscriptions.clear();
        state.writes.clear();
        state.events.clear();
        state.listed_objects = 0;
    }

    /// Returns the reason and note of each Event.
    #[must_use]
    pub fn events(&self) -> Vec<(String, String)> {
        self.0.borrow().events.clone()
    }

    /// Returns the log lines.
    #[must_use]
    pub fn logs(&self) -> Vec<String> {
        self.0.borrow().logs.clone()
    }

    /// Returns the objects that the last reconcile holds, each as `Kind namespace/name`. A failed one holds also what the one
    /// before it held.
    #[must_use]
    pub fn held(&self) -> Vec<String> {
        self.0.borrow().held.iter().cloned().collect()
    }

    /// Returns the paths of the subscribed event streams.
    #[must_use]
    pub fn subscriptions(&self) -> Vec<String> {
        self.0.borrow().subscriptions.clone()
    }

    /// Returns the checkpointed status fields.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<Value> {
        self.0.borrow().checkpoints.clone()
    }

    /// Returns the substitutions in objects that were applied or created, each with the object's name.
    #[must_use]
    pub fn substitutions(&self) -> Vec<(String, Substitution)> {
        self.0.borrow().substitutions.clone()
    }

    fn record_substitutions(&self, object: &[u8], substitutions: &[Substitution]) {
        let object: Value = serde_json::from_slice(object).unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let named = substitutions.iter().map(|s| (name.to_owned(), s.clone()));
        self.0.borrow_mut().substitutions.extend(named);
    }

    /// Returns the published messages with the names of their brokers.
    #[must_use]
    pub fn messages(&self) -> Vec<(String, Message)> {
        self.0.borrow().messages.clone()
    }

    fn check_allowed(&self, function: &str) -> Result<(), Error> {
        self.0.borrow().failing.get(function).cloned().map_or(Ok(()), Err)
    }

    fn require_condition(
        &self,
        reference: &ObjectRef,
        kind: &str,
        status: ConditionStatus,
    ) -> Result<Vec<u8>, Error> {
        let not_ready = |exists, condition: &Value| {
            let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
            Error::NotReady(NotReady {
                ref_: reference.clone(),
                condition: kind.to_owned(),
                status,
                exists,
                reason: text("reason"),
                message: text("message"),
            })
        };
        let Some(object) = self.object(reference) else {
            return Err(not_ready(false, &Value::Null));
        };
        let required = match status {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        };
        let conditions = object["status"]["conditions"].as_array();
        let condition = conditions.and_then(|all| all.iter().find(|c| c["type"] == kind));
        match condition {
            Some(c) if c["status"] == required => Ok(to_json_bytes(&object)),
            other => Err(not_ready(true, other.unwrap_or(&Value::Null))),
        }
    }

    /// Patches an object, or with its name a subresource.
    fn write_patch(
        &self,
        reference: &ObjectRef,
        subresource: Option<&str>,
        patch: &[u8],
        preconditions: &Preconditions,
    ) -> Result<Vec<u8>, Error> {
        let patch: Value =
            serde_json::from_slice(patch).map_err(|error| Error::Invalid(error.to_string()))?;
        let Some(mut object) = self.object(reference) else {
            return Err(Error::NotFound(format_reference(reference)));
        };
        check_preconditions(&object, preconditions)?;
        match subresource {
            Some("resize") => resize_containers(&mut object, &patch),
            _ => merge_patch(&mut object, &patch),
        }
        let mut state = self.0.borrow_mut();
        let on = format_cluster(name_cluster(reference.cluster.as_deref()));
        let part = subresource.map(|name| format!("/{name}")).unwrap_or_default();
        let write = format!("patch {}{part} {}{on}", reference.gvk.kind, reference.name);
        state.writes.push(write);
        raise_version(&mut object);
        state.objects.insert(object_key(reference), object.clone());
        state.count_effect();
        Ok(to_json_bytes(&object))
    }

    fn write_object(
        &self,
        verb: &str,
        bytes: &[u8],
        cluster: Option<&str>,
        owned: bool,
    ) -> Result<Vec<u8>, Error> {
        let mut object: Value =
            serde_json::from_slice(bytes).map_err(|error| Error::Invalid(error.to_string()))?;
        let key = key_on(cluster, &object);
        let is_near = key.4.is_empty();
        let mut state = self.0.borrow_mut();
        let uid = state.owner["uid"].as_str().unwrap_or_default().to_owned();
        if owned {
            object["metadata"]["labels"][OWNER_UID_LABEL] = uid.as_str().into();
        }
        // Owner references do not cross clusters.
        if owned && is_near {
            object["metadata"]["ownerReferences"] = Value::Array(vec![state.owner.clone()]);
        }
        if owned && !is_near {
            let mark = state
                .objects
                .get(&key)
                .map(|live| &live["metadata"]["labels"][OWNER_UID_LABEL]);
            if mark.is_some_and(|mark| mark.is_string() && *mark != uid.as_str()) {
                return Err(Error::Conflict(format!("{}: another object owns it", key.3)));
            }
            state
                .owned
                .entry(uid)
                .or_default()
                .insert(format_entry(&object, &key));
        }
        let owned = if owned { " owned" } else { "" };
        let line = format!("{verb} {} {}{owned}{}", key.1, key.3, format_cluster(&key.4));
        let before = state.objects.get(&key);
        if verb == "create" && before.is_some() {
            return Err(Error::Conflict(format!("{} exists", key.3)));
        }
        let mut after = before.cloned().unwrap_or(Value::Null);
        merge_applied(&mut after, &object);
        // The host does not send a write that changes nothing.
        let is_changed = before != Some(&after);
        if before.is_none() && after["metadata"]["uid"].is_null() {
            state.created += 1;
            let uid = format!("00000000-0000-4000-8000-{:012x}", state.created);
            after["metadata"]["uid"] = uid.into();
        }
        if is_changed {
            raise_version(&mut after);
            state.writes.push(line);
        }
        state.objects.insert(key, after.clone());
        if is_changed {
            state.count_effect();
        }
        Ok(to_json_bytes(&after))
    }
}

/// Builds an HTTP response.
#[must_use]
pub fn response(status: u16, headers: &[(&str, &str)], body: impl Into<Value>) -> http::Response {
    let body = match body.into() {
        Value::Null => Vec::new(),
        Value::String(text) => text.into_bytes(),
        value => to_json_bytes(&value),
    };
    http::Response {
        status,
        headers: build_headers(headers),
        body,
    }
}

fn build_headers(headers: &[(&str, &str)]) -> Vec<Header> {
    let header = |(name, value): &(&str, &str)| Header {
        name: (*name).to_owned(),
        value: (*value).to_owned(),
    };
    headers.iter().map(header).collect()
}
