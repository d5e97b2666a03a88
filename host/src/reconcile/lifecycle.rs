//! Life-cycle hooks, which a build runs once per leader term before its first reconcile.
//!
//! First `initialize` is called, then `upgrade` for every stored object of its kinds. Until all have succeeded the
//! plugin's objects wait in the queue. Success is remembered in memory, not in the objects: an object is only written
//! when `upgrade` returns a changed one.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use parking_lot::Mutex;
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
    plugin::{self, HookState, Plugin, Registry},
    sandbox::{
        capabilities::{Call, CallTarget},
        engine::Engine,
        services::Services,
    },
    schedule::{dispatcher::Cause, queue::Priority},
    settings::Backoff,
};

/// Limit of concurrent `upgrade` calls per plugin.
const MAX_CONCURRENT_UPGRADES: usize = 8;

/// Runs the hooks of all plugins.
pub struct HookRunner {
    services: Arc<Services>,
    registry: Arc<Registry>,
    engine: Arc<Engine>,
    /// Delays between failing attempts.
    backoff: Backoff,
    /// By plugin, the digest of the build and the term for which all hooks have succeeded.
    done: Mutex<HashMap<Arc<str>, (String, u64)>>,
    activated: Notify,
}

impl HookRunner {
    /// Creates a runner; no hooks have run yet.
    pub fn new(
        services: Arc<Services>,
        registry: Arc<Registry>,
        engine: Arc<Engine>,
        backoff: Backoff,
    ) -> Self {
        Self {
            services,
            registry,
            engine,
            backoff,
            done: Mutex::default(),
            activated: Notify::new(),
        }
    }

    /// True when the hooks of a build have succeeded in this term, or it has none.
    pub fn has_run(&self, plugin: &Plugin) -> bool {
        if !plugin.lifecycle {
            return true;
        }
        let Some(term) = self.services.fence.term() else {
            return false;
        };
        let done = self.done.lock();
        done.get(plugin.name())
            .is_some_and(|(digest, of)| *digest == plugin.digest && *of == term)
    }

    /// Calls all hooks once for the objects selected by `of`, in a plan. The error names the hook that failed.
    pub async fn run_once(
        &self,
        plugin: &Arc<Plugin>,
        of: impl Fn(&ObjectRef) -> bool,
    ) -> Result<(), String> {
        if self.has_run(plugin) {
            return Ok(());
        }
        let initialized = self.initialize(plugin).await;
        initialized.map_err(|why| format!("initialize: {why}"))?;
        for key in self.list_objects(plugin).await?.into_iter().filter(of) {
            let upgraded = self.upgrade_object(plugin, &key).await;
            upgraded.map_err(|why| format!("upgrade of {key}: {why}"))?;
        }
        if let Some(term) = self.services.fence.term() {
            let done = (plugin.digest.clone(), term);
            self.done.lock().insert(plugin.name().clone(), done);
        }
        Ok(())
    }

    /// Has the builds that serve now examined: one of them is new.
    pub fn on_activate(&self) {
        self.activated.notify_one();
    }

    /// Runs hooks while this host leads, until it is drained.
    pub async fn run(self: Arc<Self>) {
        let fence = &self.services.fence;
        while let Some(term) = fence.wait_open().await {
            let mut running = JoinSet::new();
            let mut known: HashMap<Arc<str>, (Arc<Plugin>, AbortHandle)> = HashMap::new();
            let drained = loop {
                for plugin in self.registry.serving() {
                    let name = plugin.name();
                    let waits = plugin.suspended || !self.has_run(&plugin);
                    self.services.dispatcher.set_paused(name, waits);
                    // Hooks that fail are restarted for the same build with another configuration.
                    if known
                        .get(name)
                        .is_some_and(|(tried, _)| Arc::ptr_eq(tried, &plugin))
                    {
                        continue;
                    }
                    if let Some((_, superseded)) = known.remove(name) {
                        superseded.abort();
                    }
                    if !plugin.suspended && !self.has_run(&plugin) {
                        let task = running.spawn(self.clone().run_for_build(plugin.clone(), term));
                        known.insert(name.clone(), (plugin.clone(), task));
                    }
                }
                tokio::select! {
                    () = self.activated.notified() => {}
                    () = fence.wait_term_end(term) => break false,
                    () = fence.wait_drain() => break true,
                }
            };
            // In a drain calls in flight may end; without leadership they are dropped.
            while drained && running.join_next().await.is_some() {}
        }
    }

    async fn run_for_build(self: Arc<Self>, plugin: Arc<Plugin>, term: u64) {
        let name = plugin.name();
        self.set_state(&plugin, HookState::Pending);
        if self
            .services
            .fence
            .run_in_term(term, self.run_until_done(&plugin))
            .await
            != Ok(true)
        {
            return;
        }
        info!(
            plugin = &**name,
            digest = &plugin.digest[..12],
            "lifecycle hooks finished"
        );
        let done = (plugin.digest.clone(), term);
        self.done.lock().insert(name.clone(), done);
        self.set_state(&plugin, HookState::Done);
        self.services.dispatcher.set_paused(name, false);
    }

    /// Calls all hooks until they have succeeded. Returns `false` when the host is drained before.
    async fn run_until_done(&self, plugin: &Arc<Plugin>) -> bool {
        let mut pause = self.backoff.initial;
        while let Err(why) = self.initialize(plugin).await {
            if !self
                .back_off(plugin, &mut pause, format!("initialize: {why}"))
                .await
            {
                return false;
            }
        }
        let mut pause = self.backoff.initial;
        let mut left = loop {
            match self.list_objects(plugin).await {
                Ok(stored) => break stored,
                Err(why) => {
                    if !self.back_off(plugin, &mut pause, why).await {
                        return false;
                    }
                }
            }
        };
        let mut pause = self.backoff.initial;
        loop {
            let mut upgrading = stream::iter(std::mem::take(&mut left))
                .map(|key| async move { (self.upgrade_object(plugin, &key).await, key) })
                .buffer_unordered(MAX_CONCURRENT_UPGRADES);
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
            if !self.back_off(plugin, &mut pause, why).await {
                return false;
            }
        }
    }

    /// Records the progress and queues the `Plugin` object, to have it in the status.
    fn set_state(&self, plugin: &Plugin, hooks: HookState) {
        self.registry.set_hook_state(plugin.name(), hooks);
        let key = ObjectRef::new(plugin::kind(), "", plugin.name());
        self.services
            .dispatcher
            .enqueue(&key, Priority::Normal, Cause::UpstreamStatus);
    }

    /// Records a failure and waits for the next attempt. Returns `false` when the host is drained.
    async fn back_off(&self, plugin: &Plugin, pause: &mut Duration, why: String) -> bool {
        warn!(
            plugin = &**plugin.name(),
            digest = &plugin.digest[..12],
            error = %why,
            "lifecycle hooks failed"
        );
        self.set_state(plugin, HookState::Failed(why));
        let wait = *pause;
        *pause = (wait * 2).min(self.backoff.max).min(MAX_RETRY_DELAY);
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = self.services.fence.wait_drain() => false,
        }
    }

    /// All objects of the plugin's kinds, once their informers are synced.
    async fn list_objects(&self, plugin: &Plugin) -> Result<Vec<ObjectRef>, String> {
        let services = &self.services;
        let mut stored = Vec::new();
        for scope in plugin
            .kinds
            .iter()
            .flat_map(|k| k.scopes(&services.cache.namespaces))
        {
            let serving = services.cache.informers.wait_synced(&scope, SYNC_TIMEOUT).await?;
            let query = Query {
                namespace: &scope.namespace,
                labels: scope.selector.as_ref(),
                ..Query::default()
            };
            let objects = services.cache.store.list(&serving, &query);
            stored.extend(objects.into_iter().map(|(key, _)| key));
        }
        Ok(stored)
    }

    async fn initialize(&self, plugin: &Plugin) -> Result<(), String> {
        self.registry
            .check_service_account(plugin)
            .map_err(|e| e.message)?;
        let target = plugin_target(plugin, self.services.clone())?;
        let call = Call::hook(plugin.policy.clone(), target);
        flatten_result(self.engine.initialize(&plugin.compiled, call).await)
    }

    /// Upgrades one object in its newest version. A conflict (HTTP 409) is retried with a fresh read.
    async fn upgrade_object(&self, plugin: &Plugin, key: &ObjectRef) -> Result<(), String> {
        let effects = &self.services.api.writer;
        let account = plugin.policy.grants.service_account();
        if let Some(account) = account {
            let read = ReadAccess::for_object("get", key);
            let may = self.services.api.reviewer.check_access(account, read).await;
            may.map_err(|e| e.to_string())?;
        }
        let mut stored = self.services.cache.store.get(key, Projection::Full);
        while let Some(object) = stored {
            let target = CallTarget {
                key: key.clone(),
                object: object.clone(),
                services: self.services.clone(),
            };
            let call = Call::hook(plugin.policy.clone(), target);
            let upgraded = self.engine.upgrade(&plugin.compiled, call, object.json.to_vec());
            let Some(upgraded) = flatten_result(upgraded.await)? else {
                return Ok(());
            };
            let upgraded: Value =
                serde_json::from_slice(&upgraded).map_err(|e| format!("it returned invalid JSON: {e}"))?;
            let Some(patch) = diff_metadata(&object.to_value(), &upgraded)? else {
                return Ok(());
            };
            match effects.patch_metadata(account, key, &object, patch).await {
                Ok(_) => return Ok(()),
                Err(e) if e.code() == 404 => return Ok(()),
                // Another writer was faster: its version is upgraded instead.
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

/// Limit of the delay between attempts, which the host's own backoff may exceed.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Limit of the time for the initial list of a kind, after which the attempt fails.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// The target of a call without an object: the plugin itself, which need not be an object of the API server.
pub fn plugin_target(plugin: &Plugin, services: Arc<Services>) -> Result<CallTarget, String> {
    let gvk = Gvk::new("ostler.dev", "v1alpha1", "Plugin");
    let object = json!({"metadata": {"name": &**plugin.name()}}).to_string();
    let (key, object) = Object::parse(&gvk, object.as_bytes()).map_err(|e| e.to_string())?;
    Ok(CallTarget {
        key,
        object: Arc::new(object),
        services,
    })
}

/// Joins the trap and the error of a call into one message.
fn flatten_result<T>(result: Result<Result<T, Error>, Trap>) -> Result<T, String> {
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
            Error::LimitExceeded(why) => format!("limit exceeded: {why}"),
            Error::Unsupported(why) => format!("unsupported: {why}"),
        }),
    }
}

/// The merge patch of labels and annotations from one object to the other; none when they are equal. The error names
/// another field that differs.
fn diff_metadata(old: &Value, new: &Value) -> Result<Option<Value>, String> {
    let bare = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("labels");
            metadata.remove("annotations");
        }
        object
    };
    if let Some(field) = find_difference("", &bare(old), &bare(new)) {
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
            return Err(format!("metadata.{field}.{name} is not a string"));
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

/// Path of the first field that differs.
fn find_difference(path: &str, old: &Value, new: &Value) -> Option<String> {
    if let (Value::Object(old), Value::Object(new)) = (old, new) {
        let names = old.keys().chain(new.keys().filter(|k| !old.contains_key(*k)));
        return names.into_iter().find_map(|name| {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            match (old.get(name), new.get(name)) {
                (Some(old), Some(new)) => find_difference(&path, old, new),
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
    fn diff_metadata_with_other_changes_names_the_field() {
        let old = json!({"kind": "A", "metadata": {"name": "a", "labels": {"x": "1", "y": "2"}}, "spec": {"n": [1]}});
        let with = |pointer: &str, value: Value| {
            let mut new = old.clone();
            let (parent, name) = pointer.rsplit_once('/').expect("a path");
            new.pointer_mut(parent).expect("its parent")[name] = value;
            diff_metadata(&old, &new)
        };
        assert_eq!(diff_metadata(&old, &old), Ok(None));
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
                "metadata.labels.n is not a string",
            ),
        ] {
            let error = with(pointer, value).expect_err(field);
            assert!(error.contains(field), "{error}");
        }
        assert!(diff_metadata(&old, &json!([])).is_err());
    }
}
