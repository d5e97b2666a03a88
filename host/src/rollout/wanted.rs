//! What `Plugin` objects want is loaded beside everything else, and tried again where that may help.

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
    plugin_objects::{Objects, Wanted},
    preflight::probe,
};
use crate::{
    contract::limits::Limits,
    kube::hash::encode_hex,
    plugin::{Plugin, Refusal, Registry, canary_selector::Choice, governed, of_object, spec::Source},
    policy::grants::Grants,
    sandbox::engine::Engine,
};

/// What could not be pulled is tried again after so long at first, and at last.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Which build of which `Plugin` object.
pub(super) type Slot = (String, Part);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Stable,
    Canary,
}

pub(super) struct Loading {
    revision: String,
    wanted: Arc<Wanted>,
    failures: u32,
    task: Option<AbortHandle>,
}

/// A build of a `Plugin` object, ready or not.
pub(super) struct Loaded {
    slot: Slot,
    revision: String,
    since: Instant,
    result: Result<Plugin, Refusal>,
}

impl Reloader {
    /// Looks at every object; gives the files that are theirs.
    pub(super) fn look_at_objects(&mut self, since: Instant) -> BTreeSet<String> {
        let Some(objects) = self.objects.clone() else {
            return BTreeSet::new();
        };
        let Some(list) = objects.list() else {
            return BTreeSet::new();
        };
        let names: BTreeSet<String> = list.iter().map(|(key, _)| of_object(&key.name)).collect();
        let slots = self.registry.slots();
        for gone in slots.iter().filter(|id| id.contains('/') && !names.contains(*id)) {
            self.loading.retain(|(name, _), loading| {
                let other = of_object(name) != *gone;
                if !other && let Some(task) = &loading.task {
                    task.abort();
                }
                other
            });
            self.unload(gone);
        }
        let mut claimed = BTreeSet::new();
        for (key, object) in list {
            self.registry.govern(&key.name);
            match Wanted::parse(&key, &object) {
                Ok(wanted) => {
                    claimed.extend(wanted.spec.files().map(str::to_owned));
                    self.want(&Arc::new(wanted), since);
                }
                Err(refusal) => {
                    let id = of_object(&key.name);
                    let revision = format!("generation {}", object.generation);
                    if !self.registry.knows(&id, &revision) {
                        self.refuse(&id, &revision, refusal);
                    }
                    self.registry.observed(&id, object.generation);
                    objects.news(&key.name);
                }
            }
        }
        claimed
    }

    fn want(&mut self, wanted: &Arc<Wanted>, since: Instant) {
        let id = of_object(&wanted.name);
        self.want_part(wanted, Part::Stable, &wanted.spec.source, since);
        let stable = self.loading.contains_key(&(wanted.name.clone(), Part::Stable));
        // What becomes of the canary shows when it is known what is beside it: one that is promoted serves on until
        // then.
        if !stable {
            match &wanted.spec.canary {
                Some(canary) => match Choice::new(&canary.objects) {
                    Ok(choice) => {
                        if self.registry.choose(&id, &choice) {
                            info!(plugin = wanted.name, "the canary reconciles {choice}");
                            self.look_again(&id);
                        }
                        self.want_part(wanted, Part::Canary, &canary.source, since);
                    }
                    Err(why) => self.registry.refuse_canary(
                        &id,
                        "",
                        Choice::Share(0),
                        Some(Refusal::new("SpecInvalid", why)),
                    ),
                },
                None => {
                    self.loading.remove(&(wanted.name.clone(), Part::Canary));
                    if self.registry.drop_canary(&id) {
                        info!(plugin = wanted.name, "there is no canary any more");
                        self.look_again(&id);
                    }
                }
            }
        }
        self.dealt(wanted);
    }

    /// The objects of a plugin are reconciled again: another build may do it.
    fn look_again(&self, id: &str) {
        if let Some(serving) = self.registry.serves(id) {
            (self.on_swap)(Some(&serving), Some(&serving));
        }
    }

    /// Tells the status, when everything has been dealt with as far as it can be.
    fn dealt(&self, wanted: &Wanted) {
        let pending = |part| {
            let loading = self.loading.get(&(wanted.name.clone(), part));
            loading.is_some_and(|l| l.task.is_some() && l.failures == 0)
        };
        if !pending(Part::Stable) && !pending(Part::Canary) {
            self.registry
                .observed(&of_object(&wanted.name), wanted.generation);
            self.news(&wanted.name);
        }
    }

    fn news(&self, plugin: &str) {
        if let Some(objects) = &self.objects {
            objects.news(plugin);
        }
    }

    fn want_part(&mut self, wanted: &Arc<Wanted>, part: Part, source: &Source, since: Instant) {
        let content = match &source.file {
            None => None,
            // A mistake of a person that shows at once: the schema allows no path.
            Some(file) if file.contains('/') => return,
            Some(file) => Some(std::fs::read(self.directory.join(file)).map_err(|e| {
                let why = format!("{file} in the host's plugin directory can't be read: {e}");
                Refusal::new("FileMissing", why)
            })),
        };
        let spec = &wanted.spec;
        let mut revision = Sha256::new();
        revision.update(match &content {
            Some(Ok(wasm)) => encode_hex(&Sha256::digest(wasm)),
            Some(Err(refusal)) => refusal.message.clone(),
            None => String::new(),
        });
        let agreed = json!([source, spec.verify, spec.config, spec.grant(), spec.suspended]);
        revision.update(agreed.to_string());
        let revision = encode_hex(&revision.finalize());
        let id = of_object(&wanted.name);
        let known = match part {
            Part::Stable => self.registry.knows(&id, &revision),
            Part::Canary => self.registry.knows_canary(&id, &revision),
        };
        let slot = (wanted.name.clone(), part);
        // What is agreed counts at once, also where a change that was being loaded is taken back.
        if part == Part::Stable {
            self.agree(
                &id,
                &Grants::of_object(&wanted.name, spec.grant()),
                spec.suspended,
            );
        }
        if let Some(loading) = self.loading.get_mut(&slot).filter(|l| l.revision == revision) {
            loading.wanted = wanted.clone();
            return;
        }
        if let Some(Loading { task: Some(task), .. }) = self.loading.remove(&slot) {
            task.abort();
        }
        if known {
            return;
        }
        if part == Part::Canary
            && let Some(canary) = &spec.canary
            && let Ok(choice) = Choice::new(&canary.objects)
        {
            self.registry.refuse_canary(&id, "", choice, None);
        }
        self.loading.insert(
            slot.clone(),
            Loading {
                revision,
                wanted: wanted.clone(),
                failures: 0,
                task: None,
            },
        );
        self.begin(&slot, content, since);
    }

    /// Loads a build beside everything else.
    fn begin(&mut self, slot: &Slot, content: Option<Result<Vec<u8>, Refusal>>, since: Instant) {
        let (Some(loading), Some(objects)) = (self.loading.get_mut(slot), self.objects.clone()) else {
            return;
        };
        let (engine, registry, limits) = (self.engine.clone(), self.registry.clone(), self.limits.clone());
        let tapes = self.tapes.clone();
        let (slot, revision, wanted) = (slot.clone(), loading.revision.clone(), loading.wanted.clone());
        let twice = self.grants.name(&wanted.name);
        let task = async move {
            let built = build(&engine, &registry, &objects, &wanted, slot.1, content, &limits).await;
            let built = match built {
                Ok(plugin) => probe(&engine, &tapes, &registry, &of_object(&wanted.name), plugin).await,
                Err(refusal) => Err(refusal),
            };
            Loaded {
                slot,
                revision,
                since,
                result: built.map(|mut plugin| {
                    if twice {
                        plugin.notes.push(
                            "the host's grants file has an entry for it, too: this object counts".into(),
                        );
                    }
                    plugin
                }),
            }
        };
        loading.task = Some(self.tasks.spawn(task));
    }

    pub(super) fn retry(&mut self, slot: Slot) {
        if self.loading.get(&slot).is_some_and(|l| l.task.is_none()) {
            self.begin(&slot, None, Instant::now());
        }
    }

    pub(super) async fn loaded(&mut self, loaded: Result<Loaded, tokio::task::JoinError>) {
        let Loaded {
            slot,
            revision,
            since,
            result,
        } = match loaded {
            Ok(loaded) => loaded,
            Err(e) if e.is_cancelled() => return,
            Err(e) => return warn!("loading ended: {e}"),
        };
        let Some(loading) = self.loading.get_mut(&slot).filter(|l| l.revision == revision) else {
            return;
        };
        let wanted = loading.wanted.clone();
        loading.task = None;
        match &result {
            Err(refusal) if refusal.passing => {
                let wait = (AGAIN.0 * 2u32.saturating_pow(loading.failures)).min(AGAIN.1);
                loading.failures = (loading.failures + 1).min(16);
                let slot = slot.clone();
                self.again.spawn(async move {
                    tokio::time::sleep(wait).await;
                    slot
                });
            }
            _ => drop(self.loading.remove(&slot)),
        }
        let id = of_object(&wanted.name);
        match (slot.1, result) {
            (Part::Stable, Ok(plugin)) => self.serve(&id, &revision, plugin, Some(since)),
            (Part::Stable, Err(refusal)) => self.refuse(&id, &revision, refusal),
            (Part::Canary, result) => self.serve_canary(&wanted, &revision, result),
        }
        match slot.1 {
            // The canary comes after what is beside it, and files may be free now.
            Part::Stable => self.scan(Some(since)).await,
            Part::Canary => self.dealt(&wanted),
        }
        self.news(&wanted.name);
    }

    fn serve_canary(&self, wanted: &Wanted, revision: &str, result: Result<Plugin, Refusal>) {
        let id = of_object(&wanted.name);
        let Some(Ok(choice)) = wanted.spec.canary.as_ref().map(|c| Choice::new(&c.objects)) else {
            return;
        };
        let served = result.and_then(|plugin| {
            let (version, short) = (plugin.version.clone(), plugin.digest[..12].to_owned());
            self.registry
                .serve_canary(&id, revision, plugin, choice.clone())?;
            info!(
                plugin = wanted.name,
                version,
                digest = short,
                "canary for {choice}"
            );
            Ok(())
        });
        match served {
            Ok(()) => self.look_again(&id),
            Err(refusal) => {
                warn!("the canary of {id} is not loaded: {refusal}");
                self.registry.refuse_canary(&id, revision, choice, Some(refusal));
            }
        }
    }
}

/// Gets the component of a `Plugin` object and makes a build of it.
async fn build(
    engine: &Arc<Engine>,
    registry: &Registry,
    objects: &Objects,
    wanted: &Wanted,
    part: Part,
    content: Option<Result<Vec<u8>, Refusal>>,
    limits: &Limits,
) -> Result<Plugin, Refusal> {
    let spec = &wanted.spec;
    let source = match (part, &spec.canary) {
        (Part::Canary, Some(canary)) => &canary.source,
        _ => &spec.source,
    };
    let (wasm, note) = match (content, &source.oci) {
        (Some(content), _) => (content?, None),
        (None, Some(oci)) => objects.pull(oci, spec.verify.as_ref()).await?,
        (None, None) => {
            return Err(Refusal::new(
                "SpecInvalid",
                "spec.source names no component".into(),
            ));
        }
    };
    let plugin = governed(engine, registry, &wanted.name, spec, wasm, limits).await?;
    Ok(Plugin {
        source: source.to_string(),
        notes: note.into_iter().collect(),
        ..plugin
    })
}
