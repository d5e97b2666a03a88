//! Life-cycle hooks, which a build runs once per leader term.
//!
//! `initialize` is called before the first reconcile of the build; until it has succeeded the plugin's objects wait in the
//! queue. `upgrade` is called for each object that was stored by then, before its first reconcile, so that one that fails
//! holds up no other. Success is remembered in memory, not in the objects: an object is only written when `upgrade`
//! returns a changed one.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinSet},
};
use tracing::{info, warn};

use crate::{
    cache::store::ListQuery,
    client::api::ApiError,
    contract::{bindings::types::Error, trap::Trap},
    kube::{
        backoff::Backoff,
        key::{Gvk, ObjectRef},
        object::KubeObject,
        secret_view::{check_patched_marks, visible_value},
    },
    plugin::{self, HookState, Plugin, PluginRegistry},
    sandbox::{
        capabilities::{CallTarget, PluginCall},
        engine::Engine,
        services::Services,
    },
    schedule::{dispatcher::Cause, queue::Priority},
};

/// Maximum number of `upgrade` calls for one object while other writers change it.
const MAX_UPGRADE_ATTEMPTS: u32 = 5;

/// Runs the hooks of all plugins.
pub struct HookRunner {
    services: Arc<Services>,
    registry: Arc<PluginRegistry>,
    engine: Arc<Engine>,
    /// Delays between failing attempts.
    backoff: Backoff,
    /// By plugin, the build that is initialized.
    initialized: Mutex<HashMap<Arc<str>, InitializedBuild>>,
    activated: Notify,
}

/// A build whose `initialize` has succeeded.
struct InitializedBuild {
    digest: String,
    /// The leader term of the call.
    term: u64,
    /// Objects that were stored before it, and that it has not upgraded.
    outdated: HashSet<ObjectRef>,
}

impl HookRunner {
    /// Creates a runner; no hooks have run yet. Failing attempts back off, but no longer than [`MAX_RETRY_DELAY`].
    pub fn new(
        services: Arc<Services>,
        registry: Arc<PluginRegistry>,
        engine: Arc<Engine>,
        backoff: Backoff,
    ) -> Self {
        Self {
            services,
            registry,
            engine,
            backoff: backoff.with_max(MAX_RETRY_DELAY),
            initialized: Mutex::default(),
            activated: Notify::new(),
        }
    }

    /// True when a build is initialized in this term, or has no hooks.
    pub fn is_initialized(&self, plugin: &Plugin) -> bool {
        !plugin.lifecycle || self.with_initialized(plugin, |_| ()).is_some()
    }

    /// Calls a function with the state of a build; none if it is not initialized in this term.
    fn with_initialized<T>(&self, plugin: &Plugin, f: impl FnOnce(&mut InitializedBuild) -> T) -> Option<T> {
        let term = self.services.fence.term()?;
        let mut initialized = self.initialized.lock();
        let build = initialized.get_mut(plugin.name())?;
        (build.digest == plugin.digest && build.term == term).then(|| f(build))
    }

    /// Initializes a build once, for a plan.
    pub async fn run_once(&self, plugin: &Plugin) -> Result<(), String> {
        if self.is_initialized(plugin) {
            return Ok(());
        }
        let outdated = self.prepare_build(plugin).await?;
        if let Some(term) = self.services.fence.term() {
            self.record_initialized(plugin, term, outdated);
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
                    let waits = plugin.suspended || !self.is_initialized(&plugin);
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
                    if !plugin.suspended && !self.is_initialized(&plugin) {
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
        let fence = &self.services.fence;
        let prepared = Box::pin(self.prepare_until_done(&plugin));
        let prepared = fence.run_in_term(term, prepared).await;
        let Ok(Some(outdated)) = prepared else { return };
        info!(
            plugin = &**name,
            digest = &plugin.digest[..12],
            outdated = outdated.len(),
            "plugin initialized"
        );
        self.record_initialized(&plugin, term, outdated);
        self.set_state(&plugin, HookState::Done);
        self.services.dispatcher.set_paused(name, false);
    }

    fn record_initialized(&self, plugin: &Plugin, term: u64, outdated: HashSet<ObjectRef>) {
        let build = InitializedBuild {
            digest: plugin.digest.clone(),
            term,
            outdated,
        };
        self.initialized.lock().insert(plugin.name().clone(), build);
    }

    /// Initializes a build until that succeeds. Returns none when the host is drained before.
    async fn prepare_until_done(&self, plugin: &Plugin) -> Option<HashSet<ObjectRef>> {
        let mut failures = 0;
        loop {
            match self.prepare_build(plugin).await {
                Ok(outdated) => return Some(outdated),
                Err(why) => {
                    failures += 1;
                    if !self.back_off(plugin, failures, why).await {
                        return None;
                    }
                }
            }
        }
    }

    /// Calls `initialize`, and lists the objects that are stored now: the build upgrades them.
    async fn prepare_build(&self, plugin: &Plugin) -> Result<HashSet<ObjectRef>, String> {
        let initialized = self.initialize(plugin).await;
        initialized.map_err(|why| format!("initialize: {why}"))?;
        self.list_objects(plugin).await
    }

    /// Records the progress and queues the `Plugin` object, to have it in the status.
    fn set_state(&self, plugin: &Plugin, hooks: HookState) {
        self.registry.set_hook_state(plugin.name(), hooks);
        let key = ObjectRef::new(plugin::kind(), "", plugin.name());
        self.services
            .dispatcher
            .enqueue(&key, Priority::Normal, Cause::StatusStale);
    }

    /// Records a failure and waits for the next attempt. Returns `false` when the host is drained.
    async fn back_off(&self, plugin: &Plugin, failures: u32, why: String) -> bool {
        warn!(
            plugin = &**plugin.name(),
            digest = &plugin.digest[..12],
            error = %why,
            "lifecycle hooks failed"
        );
        self.set_state(plugin, HookState::Failed(why));
        tokio::select! {
            () = tokio::time::sleep(self.backoff.delay(failures)) => true,
            () = self.services.fence.wait_drain() => false,
        }
    }

    /// All objects of the plugin's kinds, once their informers are synced.
    async fn list_objects(&self, plugin: &Plugin) -> Result<HashSet<ObjectRef>, String> {
        let services = &self.services;
        let mut stored = HashSet::new();
        for scope in plugin
            .kinds
            .iter()
            .flat_map(|k| k.scopes(&services.cache.namespaces))
        {
            let serving = services.wait_synced(&scope, SYNC_TIMEOUT).await?;
            let query = ListQuery {
                namespace: &scope.namespace,
                labels: scope.selector.as_ref(),
                ..ListQuery::default()
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
        let call = PluginCall::hook(plugin.policy.clone(), target);
        flatten_result(self.engine.initialize(&plugin.compiled, call).await)
    }

    /// Upgrades an object before its first reconcile by a build, if it was stored before the build was initialized. Returns
    /// the newest version. The caller has checked the access of the plugin to the object.
    pub(super) async fn upgrade_if_outdated(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        object: &Arc<KubeObject>,
    ) -> Result<Arc<KubeObject>, String> {
        let is_outdated = plugin.lifecycle
            && self
                .with_initialized(plugin, |build| build.outdated.contains(key))
                .unwrap_or(false);
        if !is_outdated {
            return Ok(object.clone());
        }
        let upgraded = Box::pin(self.upgrade_object(plugin, key, object.clone())).await?;
        self.with_initialized(plugin, |build| build.outdated.remove(key));
        Ok(upgraded)
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&self, plugin: &Plugin, key: &ObjectRef) {
        if plugin.lifecycle {
            self.with_initialized(plugin, |build| build.outdated.remove(key));
        }
    }

    /// Upgrades an object. A conflict (HTTP 409) is retried with a fresh read.
    async fn upgrade_object(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        mut object: Arc<KubeObject>,
    ) -> Result<Arc<KubeObject>, String> {
        let api = self.services.find_api(&key.cluster);
        let api = api.ok_or_else(|| format!("Cluster {} is not connected", key.cluster))?;
        let effects = &api.writer;
        let account = plugin.policy.grants.service_account();
        let account = account.filter(|_| api.acts_as_plugins);
        for _ in 0..MAX_UPGRADE_ATTEMPTS {
            let target = CallTarget {
                fresh_term: None,
                key: key.clone(),
                object: object.clone(),
                is_finalized: false,
                services: self.services.clone(),
            };
            let call = PluginCall::hook(plugin.policy.clone(), target);
            let shows_values = plugin.policy.grants.shows_secret_values();
            let visible = visible_value(&key.gvk, &object, shows_values);
            let upgraded = self
                .engine
                .upgrade(&plugin.compiled, call, visible.to_string().into_bytes());
            let Some(upgraded) = flatten_result(upgraded.await)? else {
                return Ok(object);
            };
            let upgraded: Value =
                serde_json::from_slice(&upgraded).map_err(|e| format!("it returned invalid JSON: {e}"))?;
            let Some(patch) = diff_metadata(&visible, &upgraded)? else {
                return Ok(object);
            };
            check_patched_marks(&key.gvk, &json!({ "metadata": patch }))?;
            match effects.patch_metadata(account, key, &object, patch).await {
                Ok(written) => return Ok(written),
                Err(e) if e.code() == 404 => return Ok(object),
                // Another writer was faster: its version is upgraded instead.
                Err(ApiError::Status { code: 409, .. }) => {
                    let read = effects.read_uncached(account, key, key).await;
                    match read.map_err(|e| e.to_string())? {
                        Some(newest) => object = newest,
                        None => return Ok(object),
                    }
                }
                Err(e) => return Err(e.to_string()),
            }
        }
        Err("other writers keep changing the object".into())
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
    let (key, object) = KubeObject::parse(&gvk, object.as_bytes()).map_err(|e| e.to_string())?;
    Ok(CallTarget {
        fresh_term: None,
        key,
        object: Arc::new(object),
        is_finalized: false,
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
