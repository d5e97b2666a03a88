//! Life-cycle hooks: what a build does once per leader term, before its first reconcile.
//!
//! First `initialize`, then `upgrade` for every stored object of its kinds. Until all of that has succeeded the
//! plugin's objects wait in the queue. That it is done is remembered here, not in the objects: an object is
//! written only when `upgrade` gives something.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, stream};
use serde_json::{Map, Value, json};
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinSet},
};
use tracing::{info, warn};

use crate::{
    cache::store::Query,
    client::{access_review::ReadAccess, api::ApiError},
    contract::{bindings::types::Error, trap::Trap},
    kube::{
        key::{Gvk, ObjectRef},
        object::Object,
        scope::Projection,
    },
    plugin::{self, Plugin, Registry},
    sandbox::{
        capabilities::{Call, Services, Subject},
        engine::Engine,
    },
    schedule::{dispatcher::Cause, queue::Priority},
};

/// Objects upgraded at the same time.
const CONCURRENCY: usize = 8;

/// Runs the hooks of all plugins.
pub struct Hooks {
    services: Arc<Services>,
    registry: Arc<Registry>,
    engine: Arc<Engine>,
    /// First and longest delay between failing attempts.
    backoff: (Duration, Duration),
    /// By plugin, the build and the term for which all is done.
    done: Mutex<HashMap<Arc<str>, (String, u64)>>,
    swapped: Notify,
}

impl Hooks {
    /// Nothing is done yet.
    pub fn new(
        services: Arc<Services>,
        registry: Arc<Registry>,
        engine: Arc<Engine>,
        backoff: (Duration, Duration),
    ) -> Self {
        Self {
            services,
            registry,
            engine,
            backoff,
            done: Mutex::default(),
            swapped: Notify::new(),
        }
    }

    /// Whether a build may reconcile in this term.
    pub fn done(&self, plugin: &Plugin) -> bool {
        if !plugin.lifecycle {
            return true;
        }
        let Some(term) = self.services.fence.term() else {
            return false;
        };
        let done = self.done.lock().expect("lock");
        done.get(plugin.name())
            .is_some_and(|(digest, of)| *digest == plugin.digest && *of == term)
    }

    /// Calls everything once for these objects, in a plan. The error says what failed: the plugin's objects would wait.
    pub async fn once(&self, plugin: &Arc<Plugin>, of: impl Fn(&ObjectRef) -> bool) -> Result<(), String> {
        if self.done(plugin) {
            return Ok(());
        }
        let initialized = self.initialize(plugin).await;
        initialized.map_err(|why| format!("initialize: {why}"))?;
        for key in self.stored(plugin).await?.into_iter().filter(of) {
            let upgraded = self.upgrade(plugin, &key).await;
            upgraded.map_err(|why| format!("upgrade of {key}: {why}"))?;
        }
        if let Some(term) = self.services.fence.term() {
            let done = (plugin.digest.clone(), term);
            self.done
                .lock()
                .expect("lock")
                .insert(plugin.name().clone(), done);
        }
        Ok(())
    }

    /// Other builds serve: looks at them.
    pub fn swapped(&self) {
        self.swapped.notify_one();
    }

    /// Runs hooks while this host leads, until it is drained.
    pub async fn run(self: Arc<Self>) {
        let gate = &self.services.fence;
        while let Some(term) = gate.wait_open().await {
            let mut running = JoinSet::new();
            let mut known: HashMap<Arc<str>, (Arc<Plugin>, AbortHandle)> = HashMap::new();
            let drained = loop {
                for plugin in self.registry.serving() {
                    let name = plugin.name();
                    let waits = plugin.suspended || !self.done(&plugin);
                    self.services.dispatcher.set_paused(name, waits);
                    // The same build with another configuration is another try.
                    if known
                        .get(name)
                        .is_some_and(|(tried, _)| Arc::ptr_eq(tried, &plugin))
                    {
                        continue;
                    }
                    if let Some((_, superseded)) = known.remove(name) {
                        superseded.abort();
                    }
                    if !plugin.suspended && !self.done(&plugin) {
                        let task = running.spawn(self.clone().prepare(plugin.clone(), term));
                        known.insert(name.clone(), (plugin.clone(), task));
                    }
                }
                tokio::select! {
                    () = self.swapped.notified() => {}
                    () = gate.wait_term_end(term) => break false,
                    () = gate.wait_drain() => break true,
                }
            };
            // In a drain a call in flight has its time to end; without the lead it is dropped.
            while drained && running.join_next().await.is_some() {}
        }
    }

    async fn prepare(self: Arc<Self>, plugin: Arc<Plugin>, term: u64) {
        let name = plugin.name();
        self.tell(&plugin, "pending".into());
        if self
            .services
            .fence
            .run_in_term(term, self.call_all(&plugin))
            .await
            != Ok(true)
        {
            return;
        }
        info!(
            plugin = &**name,
            digest = &plugin.digest[..12],
            "life-cycle hooks done"
        );
        let done = (plugin.digest.clone(), term);
        self.done.lock().expect("lock").insert(name.clone(), done);
        self.tell(&plugin, "done".into());
        self.services.dispatcher.set_paused(name, false);
    }

    /// Calls everything until it has succeeded; `false` when the host is drained before.
    async fn call_all(&self, plugin: &Arc<Plugin>) -> bool {
        let mut pause = self.backoff.0;
        while let Err(why) = self.initialize(plugin).await {
            if !self
                .failed(plugin, &mut pause, format!("initialize: {why}"))
                .await
            {
                return false;
            }
        }
        let mut pause = self.backoff.0;
        let mut left = loop {
            match self.stored(plugin).await {
                Ok(stored) => break stored,
                Err(why) => {
                    if !self.failed(plugin, &mut pause, why).await {
                        return false;
                    }
                }
            }
        };
        let mut pause = self.backoff.0;
        loop {
            let mut upgrading = stream::iter(std::mem::take(&mut left))
                .map(|key| async move { (self.upgrade(plugin, &key).await, key) })
                .buffer_unordered(CONCURRENCY);
            let mut first = None;
            while let Some((result, key)) = upgrading.next().await {
                if self.services.fence.is_draining() {
                    return false;
                }
                if let Err(why) = result {
                    first.get_or_insert_with(|| format!("upgrade of {key}: {why}"));
                    left.push(key);
                }
            }
            let Some(why) = first else { return true };
            if !self.failed(plugin, &mut pause, why).await {
                return false;
            }
        }
    }

    /// Makes known how far a plugin is.
    fn tell(&self, plugin: &Plugin, hooks: String) {
        self.registry.hooks(plugin.name(), hooks);
        let key = ObjectRef::new(plugin::kind(), "", plugin.name());
        self.services
            .dispatcher
            .enqueue(&key, Priority::Normal, Cause::UpstreamStatus);
    }

    /// Makes a failure known and waits; `false` when the host is drained.
    async fn failed(&self, plugin: &Plugin, pause: &mut Duration, why: String) -> bool {
        warn!(
            plugin = &**plugin.name(),
            digest = &plugin.digest[..12],
            "its objects wait: {why}"
        );
        self.tell(plugin, why);
        let wait = *pause;
        *pause = (wait * 2).min(self.backoff.1).min(LONGEST);
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = self.services.fence.wait_drain() => false,
        }
    }

    /// All objects of the plugin's kinds, once they are all known.
    async fn stored(&self, plugin: &Plugin) -> Result<Vec<ObjectRef>, String> {
        let services = &self.services;
        let mut stored = Vec::new();
        for scope in plugin.kinds.iter().flat_map(|k| k.scopes(&services.namespaces)) {
            let serving = services.informers.wait_synced(&scope, PATIENCE).await?;
            let query = Query {
                namespace: &scope.namespace,
                labels: scope.selector.as_ref(),
                ..Query::default()
            };
            let objects = services.store.list(&serving, &query);
            stored.extend(objects.into_iter().map(|(key, _)| key));
        }
        Ok(stored)
    }

    async fn initialize(&self, plugin: &Plugin) -> Result<(), String> {
        let subject = of_plugin(plugin, self.services.clone())?;
        let call = Call::hook(plugin.terms.clone(), subject);
        said(self.engine.initialize(&plugin.compiled, call).await)
    }

    /// Upgrades one object, in the newest version there is.
    async fn upgrade(&self, plugin: &Plugin, key: &ObjectRef) -> Result<(), String> {
        let effects = &self.services.writer;
        let account = plugin.terms.grants.service_account();
        if let Some(account) = account {
            let read = ReadAccess::for_object("get", key);
            let may = self.services.reviewer.check_access(account, read).await;
            may.map_err(|e| e.to_string())?;
        }
        let mut stored = self.services.store.get(key, Projection::Full);
        while let Some(object) = stored {
            let subject = Subject {
                key: key.clone(),
                object: object.clone(),
                services: self.services.clone(),
            };
            let call = Call::hook(plugin.terms.clone(), subject);
            let upgraded = self.engine.upgrade(&plugin.compiled, call, object.json.to_vec());
            let Some(upgraded) = said(upgraded.await)? else {
                return Ok(());
            };
            let upgraded: Value =
                serde_json::from_slice(&upgraded).map_err(|e| format!("it gave no JSON: {e}"))?;
            let Some(patch) = metadata_patch(&object.to_value(), &upgraded)? else {
                return Ok(());
            };
            match effects.patch_metadata(account, key, &object, patch).await {
                Ok(_) => return Ok(()),
                Err(e) if e.code() == 404 => return Ok(()),
                // Somebody changed it meanwhile: what that made of it is upgraded.
                Err(ApiError::Status { code: 409, .. }) => {
                    stored = effects
                        .read_uncached(account, key, key)
                        .await
                        .map_err(|e| e.to_string())?;
                }
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(())
    }
}

/// Failing hooks are tried this often at least.
const LONGEST: Duration = Duration::from_secs(60);

/// How long a list may take before it is complained of.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a call that is about no object is about: the plugin itself, which is no object of the API server.
fn of_plugin(plugin: &Plugin, services: Arc<Services>) -> Result<Subject, String> {
    let gvk = Gvk::new("ostler.dev", "v1alpha1", "Plugin");
    let object = json!({"metadata": {"name": &**plugin.name()}}).to_string();
    let (key, object) = Object::parse(&gvk, object.as_bytes()).map_err(|e| e.to_string())?;
    Ok(Subject {
        key,
        object: Arc::new(object),
        services,
    })
}

/// What came of a call, for people.
fn said<T>(result: Result<Result<T, Error>, Trap>) -> Result<T, String> {
    match result {
        Ok(Ok(value)) => Ok(value),
        Err(trap) => Err(trap.to_string()),
        Ok(Err(error)) => Err(match error {
            Error::Denied(why) => format!("denied: {why}"),
            Error::NotFound(why) => format!("not found: {why}"),
            Error::Conflict(why) => format!("conflict: {why}"),
            Error::Invalid(why) => format!("invalid: {why}"),
            Error::Throttled(ms) => format!("throttled for {ms} ms"),
            Error::Unavailable(why) => format!("unavailable: {why}"),
            Error::NotReady(other) => format!("{} {} is not ready", other.ref_.gvk.kind, other.ref_.name),
            Error::Budget(why) => format!("budget: {why}"),
            Error::Unsupported(why) => format!("unsupported: {why}"),
        }),
    }
}

/// The merge patch of labels and annotations from one object to the other; none when they are the same. The
/// error names the field that may not differ.
fn metadata_patch(old: &Value, new: &Value) -> Result<Option<Value>, String> {
    let bare = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("labels");
            metadata.remove("annotations");
        }
        object
    };
    if let Some(field) = difference("", &bare(old), &bare(new)) {
        return Err(format!(
            "it changes {field}; only metadata.labels and metadata.annotations may differ"
        ));
    }
    let none = Map::new();
    let mut patch = Map::new();
    for field in ["labels", "annotations"] {
        let of = |object: &Value| object["metadata"][field].as_object().cloned();
        let (old, new) = (
            of(old).unwrap_or_default(),
            of(new).unwrap_or_else(|| none.clone()),
        );
        if let Some((name, _)) = new.iter().find(|(_, value)| !value.is_string()) {
            return Err(format!("metadata.{field}.{name} is not a text"));
        }
        let gone = old.keys().filter(|k| !new.contains_key(*k));
        let mut changes: Map<_, _> = gone.map(|k| (k.clone(), Value::Null)).collect();
        changes.extend(new.into_iter().filter(|(k, v)| old.get(k) != Some(v)));
        if !changes.is_empty() {
            patch.insert(field.into(), changes.into());
        }
    }
    Ok((!patch.is_empty()).then_some(patch.into()))
}

/// The path of the first field that differs.
fn difference(path: &str, old: &Value, new: &Value) -> Option<String> {
    if let (Value::Object(old), Value::Object(new)) = (old, new) {
        let names = old.keys().chain(new.keys().filter(|k| !old.contains_key(*k)));
        return names.into_iter().find_map(|name| {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            match (old.get(name), new.get(name)) {
                (Some(old), Some(new)) => difference(&path, old, new),
                _ => Some(path),
            }
        });
    }
    (old != new).then(|| {
        if path.is_empty() {
            "the whole object".into()
        } else {
            path.into()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_annotations_may_differ_and_nothing_else() {
        let old = json!({"kind": "A", "metadata": {"name": "a", "labels": {"x": "1", "y": "2"}}, "spec": {"n": [1]}});
        let with = |pointer: &str, value: Value| {
            let mut new = old.clone();
            let (parent, name) = pointer.rsplit_once('/').expect("a path");
            new.pointer_mut(parent).expect("its parent")[name] = value;
            metadata_patch(&old, &new)
        };
        assert_eq!(metadata_patch(&old, &old), Ok(None));
        assert_eq!(
            with("/metadata/labels", json!({"y": "3", "z": "4"})),
            Ok(Some(json!({"labels": {"x": null, "y": "3", "z": "4"}})))
        );
        assert_eq!(
            with("/metadata/annotations", json!({"a": "b"})),
            Ok(Some(json!({"annotations": {"a": "b"}})))
        );
        for (pointer, value, field) in [
            ("/metadata/name", json!("b"), "metadata.name"),
            ("/metadata/finalizers", json!(["f/f"]), "metadata.finalizers"),
            ("/spec/n", json!([1, 2]), "spec.n"),
            ("/status", json!({}), "status"),
            ("/kind", json!("B"), "kind"),
            (
                "/metadata/labels",
                json!({"n": 1}),
                "metadata.labels.n is not a text",
            ),
        ] {
            let said = with(pointer, value).expect_err(field);
            assert!(said.contains(field), "{said}");
        }
        assert!(metadata_patch(&old, &json!([])).is_err());
    }
}
