//! Builds of `Plugin` objects: loaded in the background, and retried when the error may pass.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::{
    Reloader,
    plugin_objects::{DesiredPlugin, JudgedBuilds, PluginObjects},
    preflight::preflight_replay,
};
use crate::{
    contract::limits::PluginLimits,
    kube::{backoff::Backoff, hash::encode_hex, object::KubeObject, well_known::plugin_reason},
    plugin::{
        LoadError, Plugin, PluginRegistry, SlotId,
        canary_selector::CanarySelector,
        load_for_object, recorded_rollback,
        spec::{ComponentSource, Oci},
    },
    policy::{components::ComponentPolicy, grants::Grants},
    sandbox::engine::Engine,
};

/// Backoff between attempts to load a component that could not be pulled.
pub(super) const LOAD_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(300)).with_jitter(50);

/// Name of a `Plugin` object, and which of its builds.
pub(super) type BuildKey = (String, BuildRole);

/// Role of a build in its `Plugin` object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum BuildRole {
    Stable,
    Canary,
}

/// A build that is being loaded, or waits for its next attempt.
pub(super) struct PendingLoad {
    revision: String,
    desired: Arc<DesiredPlugin>,
    failures: u32,
    task: Option<AbortHandle>,
}

/// Result of one attempt to load a build.
pub(super) struct FinishedLoad {
    key: BuildKey,
    revision: String,
    since: Instant,
    result: Result<Plugin, LoadError>,
    /// The build to serve in place of the result, which another process has rolled back.
    previous: Option<Plugin>,
    /// Judgement of the builds that are kept.
    judged: JudgedBuilds,
}

impl Reloader {
    /// Scans every `Plugin` object. Returns the component files that they name, which are theirs alone.
    pub(super) fn scan_objects(&mut self, since: Instant) -> BTreeSet<String> {
        let Some(objects) = self.objects.clone() else {
            return BTreeSet::new();
        };
        let Some(list) = objects.list() else {
            return BTreeSet::new();
        };
        let names: BTreeSet<&str> = list.iter().map(|(key, _)| &*key.name).collect();
        for id in self.registry.slot_ids() {
            if let SlotId::Object(name) = &id
                && !names.contains(&**name)
            {
                self.abort_loads(name);
                self.unload(&id);
            }
        }
        let (mut claimed, mut key_objects) = (BTreeSet::new(), BTreeSet::new());
        for (key, object) in list {
            self.registry.reserve_name(&key.name);
            self.follow_rollback_record(&SlotId::object(&*key.name), &object);
            match DesiredPlugin::parse(&key, &object) {
                Ok(desired) => {
                    key_objects.extend(desired.spec.key_objects());
                    claimed.extend(desired.spec.files().map(str::to_owned));
                    self.load_object(&Arc::new(desired), since);
                }
                Err(refusal) => {
                    let id = SlotId::object(&*key.name);
                    let revision = format!("generation {}", object.generation);
                    if !self.registry.is_current(&id, &revision) {
                        self.refuse(&id, &revision, refusal);
                    }
                    self.registry.set_observed_generation(&id, object.generation);
                    objects.requeue_status(&key.name);
                }
            }
        }
        objects.follow_keys(key_objects);
        claimed
    }

    /// Makes a rollback apply that another process has recorded in the status of a `Plugin` object.
    fn follow_rollback_record(&self, id: &SlotId, object: &KubeObject) {
        let change = self
            .registry
            .update_rollback_record(id, recorded_rollback(object));
        if change.requires_reconcile()
            && let Some(before) = &change.before
        {
            warn!(source = %id, digest = &before.digest[..12], "build rolled back by another process");
        }
        self.apply_change(id, &change);
    }

    /// Stops loading the builds of a `Plugin` object that is gone.
    fn abort_loads(&mut self, name: &str) {
        self.loading.retain(|(other, _), pending| {
            let keep = other != name;
            if !keep && let Some(task) = &pending.task {
                task.abort();
            }
            keep
        });
    }

    /// Loads the builds of a `Plugin` object whose revision has changed.
    fn load_object(&mut self, desired: &Arc<DesiredPlugin>, since: Instant) {
        let id = SlotId::object(&*desired.name);
        let has_new_keys = self
            .objects
            .as_ref()
            .is_some_and(|objects| objects.observe_changed_keys(&desired.spec));
        if has_new_keys {
            info!(plugin = desired.name, "keys of spec.verify changed");
            self.forget_attempt(&id, desired);
        }
        self.load_build(desired, BuildRole::Stable, &desired.spec.source, since);
        let stable = (desired.name.clone(), BuildRole::Stable);
        // The canary is compared with the stable build, which has to be loaded first. One that is promoted serves
        // until then.
        if !self.loading.contains_key(&stable) {
            self.load_canary(desired, &id, since);
        }
        self.finish_generation(desired);
    }

    /// Has the build that serves judged, and the newest one loaded, as if the spec had changed.
    fn forget_attempt(&mut self, id: &SlotId, desired: &DesiredPlugin) {
        self.abort_loads(&desired.name);
        self.registry.forget_revision(id);
    }

    fn load_canary(&mut self, desired: &Arc<DesiredPlugin>, id: &SlotId, since: Instant) {
        let Some(canary) = &desired.spec.canary else {
            self.loading.remove(&(desired.name.clone(), BuildRole::Canary));
            if self.registry.remove_canary(id) {
                info!(plugin = desired.name, "canary removed");
                self.requeue_objects(id);
            }
            return;
        };
        match CanarySelector::new(&canary.objects) {
            Ok(selector) => {
                if self.registry.select_canary_objects(id, &selector) {
                    info!(plugin = desired.name, objects = %selector, "canary selection changed");
                    self.requeue_objects(id);
                }
                self.load_build(desired, BuildRole::Canary, &canary.source, since);
            }
            Err(why) => {
                let refusal = LoadError::new(plugin_reason::INVALID_SPEC, why);
                let none = CanarySelector::Weight(0);
                let change = self.registry.refuse_canary(id, "", none, Some(refusal));
                self.apply_change(id, &change);
            }
        }
    }

    /// Has all objects of a plugin reconciled, since another of its builds may reconcile them now.
    fn requeue_objects(&self, id: &SlotId) {
        if let Some(serving) = self.registry.serving_in(id) {
            (self.on_activate)(Some(&serving), Some(&serving));
        }
    }

    /// Records the generation as observed and has the status written, unless a first attempt is still loading.
    fn finish_generation(&self, desired: &DesiredPlugin) {
        let is_loading = |role| {
            let pending = self.loading.get(&(desired.name.clone(), role));
            pending.is_some_and(|p| p.task.is_some() && p.failures == 0)
        };
        if !is_loading(BuildRole::Stable) && !is_loading(BuildRole::Canary) {
            self.registry
                .set_observed_generation(&SlotId::object(&*desired.name), desired.generation);
            self.requeue_status(&desired.name);
        }
    }

    fn requeue_status(&self, plugin: &str) {
        if let Some(objects) = &self.objects {
            objects.requeue_status(plugin);
        }
    }

    /// Loads one build of a `Plugin` object unless its revision is loaded or being loaded.
    fn load_build(
        &mut self,
        desired: &Arc<DesiredPlugin>,
        role: BuildRole,
        source: &ComponentSource,
        since: Instant,
    ) {
        // The CRD's schema allows no path: the API server has refused such an object with a message.
        if source.file.as_ref().is_some_and(|file| file.contains('/')) {
            return;
        }
        let content = self.read_file_source(source);
        let spec = &desired.spec;
        let revision = compute_revision(desired, source, content.as_ref(), &self.grants.components);
        let id = SlotId::object(&*desired.name);
        let is_current = match role {
            BuildRole::Stable => self.registry.is_current(&id, &revision),
            BuildRole::Canary => self.registry.is_canary_current(&id, &revision),
        };
        let key = (desired.name.clone(), role);
        // Policy applies at once, also where a change that was being loaded is reverted.
        if role == BuildRole::Stable {
            self.rebind(
                &id,
                &Grants::from_object(&desired.name, spec.grant()),
                spec.suspend,
            );
        }
        if let Some(pending) = self.loading.get_mut(&key).filter(|p| p.revision == revision) {
            pending.desired = desired.clone();
            return;
        }
        if let Some(PendingLoad { task: Some(task), .. }) = self.loading.remove(&key) {
            task.abort();
        }
        if is_current {
            return;
        }
        if role == BuildRole::Canary
            && let Some(canary) = &spec.canary
            && let Ok(selector) = CanarySelector::new(&canary.objects)
        {
            let change = self.registry.refuse_canary(&id, "", selector, None);
            self.apply_change(&id, &change);
        }
        self.loading.insert(
            key.clone(),
            PendingLoad {
                revision,
                desired: desired.clone(),
                failures: 0,
                task: None,
            },
        );
        self.spawn_load(&key, content, since);
    }

    /// Loads a build in a task of its own.
    fn spawn_load(&mut self, key: &BuildKey, content: Option<Result<Vec<u8>, LoadError>>, since: Instant) {
        let (Some(pending), Some(objects)) = (self.loading.get_mut(key), self.objects.clone()) else {
            return;
        };
        let (engine, registry, limits) = (self.engine.clone(), self.registry.clone(), self.limits.clone());
        let recordings = self.recordings.clone();
        let (key, revision, desired) = (key.clone(), pending.revision.clone(), pending.desired.clone());
        let in_grants_file = self.grants.contains_plugin(&desired.name);
        let host_policy = self.grants.components.clone();
        let task = async move {
            // Before the new build, which may take long or fail: a revoked key must stop what serves.
            let kept = registry.kept_sources(&SlotId::object(&*desired.name));
            let judged = objects.judge_builds(&desired.spec, &host_policy, kept).await;
            let context = BuildContext {
                engine: &engine,
                registry: &registry,
                objects: &objects,
                host_policy: &host_policy,
                limits: &limits,
            };
            let built = build_component(&context, &desired, key.1, content).await;
            let built = match built {
                Ok(plugin) => {
                    let id = SlotId::object(&*desired.name);
                    preflight_replay(&engine, &recordings, &registry, &id, plugin).await
                }
                Err(refusal) => Err(refusal),
            };
            let (built, previous) = match built {
                Ok(plugin) if key.1 == BuildRole::Stable => load_previous(&context, &desired, plugin).await,
                built => (built, None),
            };
            FinishedLoad {
                key,
                revision,
                since,
                judged,
                previous,
                result: built.map(|mut plugin| {
                    if in_grants_file {
                        plugin.notes.push(
                            "the host's grants file has an entry for it, too: this object takes precedence"
                                .into(),
                        );
                    }
                    plugin
                }),
            }
        };
        pending.task = Some(self.tasks.spawn(task));
    }

    /// Loads a build again after its backoff.
    pub(super) fn retry_load(&mut self, key: BuildKey) {
        let Some(pending) = self.loading.get(&key).filter(|p| p.task.is_none()) else {
            return;
        };
        let spec = &pending.desired.spec;
        let source = match key.1 {
            BuildRole::Stable => Some(&spec.source),
            BuildRole::Canary => spec.canary.as_ref().map(|canary| &canary.source),
        };
        let content = source.and_then(|source| self.read_file_source(source));
        self.spawn_load(&key, content, Instant::now());
    }

    /// The content of a file of the plugin directory; `None` for a source of another type.
    fn read_file_source(&self, source: &ComponentSource) -> Option<Result<Vec<u8>, LoadError>> {
        let file = source.file.as_ref()?;
        let read = std::fs::read(self.directory.join(file));
        Some(read.map_err(|e| {
            let why = format!("{file} in the host's plugin directory can't be read: {e}");
            LoadError::new(plugin_reason::FILE_NOT_FOUND, why)
        }))
    }

    /// Hands a loaded build to the registry, and schedules a retry where the error may pass.
    pub(super) async fn finish_load(&mut self, loaded: Result<FinishedLoad, tokio::task::JoinError>) {
        let FinishedLoad {
            key,
            revision,
            since,
            result,
            previous,
            judged,
        } = match loaded {
            Ok(loaded) => loaded,
            Err(e) if e.is_cancelled() => return,
            Err(e) => return warn!(error = %e, "load task panicked"),
        };
        let Some(pending) = self.loading.get_mut(&key).filter(|p| p.revision == revision) else {
            return;
        };
        let desired = pending.desired.clone();
        pending.task = None;
        match &result {
            Err(refusal) if refusal.passing => {
                pending.failures = pending.failures.saturating_add(1);
                let wait = LOAD_BACKOFF.delay(pending.failures);
                let key = key.clone();
                self.retries.spawn(async move {
                    tokio::time::sleep(wait).await;
                    key
                });
            }
            _ => drop(self.loading.remove(&key)),
        }
        let id = SlotId::object(&*desired.name);
        let JudgedBuilds {
            violations,
            unverified,
        } = judged;
        let change = self.registry.judge_signatures(&id, &violations, unverified);
        self.apply_change(&id, &change);
        if let Some(previous) = previous {
            self.restore_previous(&id, previous);
        }
        match (key.1, result) {
            (BuildRole::Stable, Ok(plugin)) => self.serve(&id, &revision, plugin, Some(since)),
            (BuildRole::Stable, Err(refusal)) => self.refuse(&id, &revision, refusal),
            (BuildRole::Canary, result) => self.serve_canary(&desired, &revision, result),
        }
        match key.1 {
            // The canary can be loaded now, and files may no longer be claimed.
            BuildRole::Stable => self.scan(Some(since)).await,
            BuildRole::Canary => self.finish_generation(&desired),
        }
        self.requeue_status(&desired.name);
    }

    /// Makes the build serve that the host before this one has rolled back to.
    fn restore_previous(&self, id: &SlotId, previous: Plugin) {
        match self.registry.restore_previous(id, previous) {
            Ok(change) => {
                self.log_loaded(id, &change, "previous build loaded again");
                self.apply_change(id, &change);
            }
            Err(refusal) => {
                warn!(source = %id, reason = refusal.reason, error = %refusal.message, "previous build does not serve");
            }
        }
    }

    fn serve_canary(&self, desired: &DesiredPlugin, revision: &str, result: Result<Plugin, LoadError>) {
        let id = SlotId::object(&*desired.name);
        let Some(Ok(selector)) = desired
            .spec
            .canary
            .as_ref()
            .map(|c| CanarySelector::new(&c.objects))
        else {
            return;
        };
        let change = match result {
            Ok(plugin) => {
                let (version, short) = (plugin.version.clone(), plugin.digest[..12].to_owned());
                let served = self
                    .registry
                    .serve_canary(&id, revision, plugin, selector.clone());
                served.inspect(|_| {
                    info!(
                        plugin = desired.name,
                        version,
                        digest = short,
                        objects = %selector,
                        "canary loaded"
                    );
                })
            }
            Err(refusal) => {
                self.registry
                    .refuse_canary(&id, revision, selector, Some(refusal.clone()));
                Err(refusal)
            }
        };
        match change {
            Ok(change) => self.apply_change(&id, &change),
            Err(refusal) => {
                warn!(source = %id, reason = refusal.reason, error = %refusal.message, "loading canary failed");
            }
        }
    }
}

/// Digest of everything that makes a difference to a build: its content, or the error of reading that, and its spec.
fn compute_revision(
    desired: &DesiredPlugin,
    source: &ComponentSource,
    content: Option<&Result<Vec<u8>, LoadError>>,
    host_policy: &ComponentPolicy,
) -> String {
    let spec = &desired.spec;
    let mut revision = Sha256::new();
    revision.update(match content {
        Some(Ok(wasm)) => encode_hex(&Sha256::digest(wasm)),
        Some(Err(refusal)) => refusal.message.clone(),
        None => String::new(),
    });
    let policy = json!([source, spec.verify, spec.config, spec.grant(), spec.suspend]);
    revision.update(policy.to_string());
    revision.update(format!("{host_policy:?}"));
    encode_hex(&revision.finalize())
}

/// Dependencies of loading a build.
struct BuildContext<'a> {
    engine: &'a Arc<Engine>,
    registry: &'a PluginRegistry,
    objects: &'a PluginObjects,
    host_policy: &'a ComponentPolicy,
    limits: &'a PluginLimits,
}

/// Reads or pulls the component of a `Plugin` object and makes a build of it.
async fn build_component(
    context: &BuildContext<'_>,
    desired: &DesiredPlugin,
    role: BuildRole,
    content: Option<Result<Vec<u8>, LoadError>>,
) -> Result<Plugin, LoadError> {
    let BuildContext {
        engine,
        registry,
        objects,
        host_policy,
        limits,
    } = context;
    let spec = &desired.spec;
    let source = match (role, &spec.canary) {
        (BuildRole::Canary, Some(canary)) => &canary.source,
        _ => &spec.source,
    };
    let (wasm, note) = match (content, &source.oci) {
        (Some(content), _) => (content?, None),
        (None, Some(oci)) => {
            // Before the pull: a revoked artifact need not be fetched.
            host_policy.check_component("", &oci.reference)?;
            objects.pull(oci, spec.verify.as_ref(), host_policy).await?
        }
        (None, None) => {
            return Err(LoadError::new(
                plugin_reason::INVALID_SPEC,
                "spec.source names no component".into(),
            ));
        }
    };
    host_policy.check_component(&encode_hex(&Sha256::digest(&wasm)), &source.to_string())?;
    let plugin = load_for_object(engine, registry, &desired.name, spec, wasm, limits).await?;
    Ok(Plugin {
        source: source.to_string(),
        notes: note.into_iter().collect(),
        ..plugin
    })
}

/// Pulls the previous build if another process has rolled back the given one and nothing serves here, as after a restart.
/// Returns both, or the error of pulling.
async fn load_previous(
    context: &BuildContext<'_>,
    desired: &DesiredPlugin,
    rolled_back: Plugin,
) -> (Result<Plugin, LoadError>, Option<Plugin>) {
    let id = SlotId::object(&*desired.name);
    let Some(reference) = context.registry.previous_source(&id, &rolled_back) else {
        return (Ok(rolled_back), None);
    };
    let mut previous = DesiredPlugin {
        name: desired.name.clone(),
        generation: desired.generation,
        spec: desired.spec.clone(),
    };
    let oci = desired.spec.source.oci.as_ref();
    previous.spec.source = ComponentSource {
        file: None,
        oci: Some(Oci {
            reference: reference.clone(),
            pull_secret_ref: oci.and_then(|oci| oci.pull_secret_ref.clone()),
        }),
    };
    match build_component(context, &previous, BuildRole::Stable, None).await {
        Ok(previous) => (Ok(rolled_back), Some(previous)),
        Err(error) => {
            let short = &rolled_back.digest[..12];
            let message = format!(
                "{short} was rolled back, and the build before it can't be loaded from {reference}: {}",
                error.message
            );
            let refusal = LoadError {
                reason: plugin_reason::ROLLED_BACK,
                message,
                passing: error.passing,
            };
            (Err(refusal), None)
        }
    }
}
