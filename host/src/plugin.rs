//! Plugins: from the bytes of a component to something that reconciles, and the registry of what serves.

use std::{
    collections::BTreeMap,
    sync::{Arc, RwLock},
    time::Duration,
};

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    bindings::reconciler::Descriptor,
    capabilities::{Call, Terms},
    contract,
    engine::{Compiled, Engine, Limits, hex},
    grants::Grants,
    key::Gvk,
    manifest,
    selector::Selector,
};

/// A kind a plugin reconciles.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The kind.
    pub gvk: Gvk,
    /// The finalizer the host keeps for it, when the plugin cleans up.
    pub finalizer: Option<Box<str>>,
    /// Which objects; none for all.
    pub selector: Option<Selector>,
    /// Whether the host keeps a phase in its status.
    pub phase: bool,
}

/// A build of a plugin that is ready to be called.
pub struct Plugin {
    /// Its name, grants, configuration and limits.
    pub terms: Arc<Terms>,
    /// Its own version.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
    /// What it reconciles.
    pub kinds: Vec<Kind>,
    /// Reconciles at the same time at most; 0 for no limit of its own.
    pub max_concurrent: u32,
    /// Whether it has life-cycle hooks.
    pub lifecycle: bool,
    /// What is called.
    pub compiled: Compiled,
}

impl Plugin {
    /// The plugin's name.
    pub fn name(&self) -> &Arc<str> {
        &self.terms.plugin
    }

    /// How it reconciles a kind.
    pub fn kind(&self, gvk: &Gvk) -> Option<&Kind> {
        self.kinds.iter().find(|k| k.gvk == *gvk)
    }
}

/// Takes a component through all that must hold before it may serve: it is one, it fits this host's
/// contract, it compiles, and what it says of itself makes sense. The error is for people.
pub async fn load(
    engine: &Arc<Engine>,
    wasm: Vec<u8>,
    config: Option<&str>,
    grants: &Grants,
    limits: &Limits,
) -> Result<Plugin, String> {
    let inspection = contract::inspect(&wasm).map_err(|e| e.to_string())?;
    let manifest = manifest::read(&wasm).map_err(|e| e.to_string())?;
    let asks = manifest.map(|m| m.asks);
    let config = parse_config(config)?;
    let digest = hex(&Sha256::digest(&wasm));
    let compiling = engine.clone();
    let compiled = tokio::task::spawn_blocking(move || compiling.compile(&wasm, inspection.wasi))
        .await
        .map_err(|e| format!("compiling stopped: {e}"))?
        .map_err(|e| format!("does not compile: {e:#}"))?;
    let terms = |name: &str| {
        let grants = grants.of(name).asking(asks.clone());
        Terms {
            plugin: name.into(),
            limits: grants.limits(limits),
            grants,
            config: config.clone(),
        }
    };
    let sealed = Call::new(Arc::new(terms("describe")), None);
    let described = engine.describe(&compiled, sealed).await;
    let descriptor = described.map_err(|e| format!("`describe` failed: {e}"))?;
    let kinds = check(&descriptor)?;
    Ok(Plugin {
        terms: Arc::new(terms(&descriptor.name)),
        version: descriptor.version,
        digest,
        kinds,
        max_concurrent: descriptor.max_concurrent,
        lifecycle: inspection.lifecycle,
        compiled,
    })
}

fn parse_config(config: Option<&str>) -> Result<Vec<u8>, String> {
    let Some(text) = config else {
        return Ok(b"{}".to_vec());
    };
    let value: serde_json::Value =
        serde_saphyr::from_str(text).map_err(|e| format!("its configuration is not YAML: {e}"))?;
    if !value.is_object() {
        return Err("its configuration must be a mapping of names to values".into());
    }
    Ok(value.to_string().into_bytes())
}

fn check(descriptor: &Descriptor) -> Result<Vec<Kind>, String> {
    let name = &descriptor.name;
    let label = |s: &str| {
        !s.is_empty()
            && s.len() <= 63
            && s.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !s.starts_with('-')
            && !s.ends_with('-')
    };
    if !label(name) {
        return Err(format!(
            "`describe` names the plugin {name:?}: a DNS label is needed (a-z, 0-9, -)"
        ));
    }
    if descriptor.kinds.is_empty() {
        return Err("`describe` lists no kinds: there is nothing to reconcile".into());
    }
    let mut kinds = Vec::new();
    for kind in &descriptor.kinds {
        let gvk = Gvk::new(&kind.gvk.group, &kind.gvk.version, &kind.gvk.kind);
        if gvk.version.is_empty() || gvk.kind.is_empty() {
            return Err(format!("`describe` lists a kind without version or name: {gvk}"));
        }
        if let Some(finalizer) = &kind.finalizer
            && finalizer
                .split_once('/')
                .is_none_or(|(domain, name)| domain.is_empty() || name.is_empty())
        {
            return Err(format!(
                "the finalizer of {gvk} is {finalizer:?}: `domain/name` is needed"
            ));
        }
        let selector = match kind.label_selector.as_deref() {
            None | Some("") => None,
            Some(text) => {
                Some(Selector::parse(text).map_err(|e| format!("the label-selector of {gvk}: {e}"))?)
            }
        };
        kinds.push(Kind {
            gvk,
            finalizer: kind.finalizer.as_deref().map(Into::into),
            selector,
            phase: kind.phase,
        });
    }
    Ok(kinds)
}

/// What is known of one component file.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The plugin's name; the file's until it has been loaded once.
    pub name: String,
    /// The component file.
    pub file: String,
    /// The plugin's version.
    pub version: String,
    /// Digest of the build that serves; empty when none does.
    pub digest: String,
    /// `serving`, `failed` (nothing serves), or `kept` (the newest file is bad, the one before serves).
    pub state: &'static str,
    /// What is wrong with the newest file.
    pub message: String,
    /// Milliseconds from the file's change to serving, of the last swap.
    pub swapped_ms: Option<f64>,
    /// Builds that came to serve.
    pub served: u64,
    /// Builds that did not.
    pub refused: u64,
    /// Its life-cycle hooks: empty when it has none, `pending`, `done`, or what is wrong (its objects wait).
    pub hooks: String,
    /// The kinds it reconciles.
    pub kinds: Vec<String>,
}

/// Which build of which plugin serves.
#[derive(Default)]
pub struct Registry {
    slots: RwLock<BTreeMap<String, Slot>>,
}

struct Slot {
    serving: Option<Arc<Plugin>>,
    /// Digest of the newest file, serving or not.
    seen: String,
    message: String,
    swapped: Option<Duration>,
    served: u64,
    refused: u64,
    hooks: String,
}

impl Registry {
    /// The plugin that reconciles a kind, in the build that serves now.
    pub fn of_kind(&self, gvk: &Gvk) -> Option<Arc<Plugin>> {
        let slots = self.slots.read().expect("lock");
        let mut serving = slots.values().filter_map(|s| s.serving.as_ref());
        serving.find(|p| p.kind(gvk).is_some()).cloned()
    }

    /// The builds that serve now.
    pub fn serving(&self) -> Vec<Arc<Plugin>> {
        let slots = self.slots.read().expect("lock");
        slots.values().filter_map(|s| s.serving.clone()).collect()
    }

    /// Whether this content of a file has been dealt with.
    pub fn knows(&self, file: &str, digest: &str) -> bool {
        self.slots
            .read()
            .expect("lock")
            .get(file)
            .is_some_and(|s| s.seen == digest)
    }

    /// Lets a build serve from now on. Calls in flight finish on the one before, which is given back.
    pub fn serve(
        &self,
        file: &str,
        digest: &str,
        plugin: Arc<Plugin>,
        took: Option<Duration>,
    ) -> Result<Option<Arc<Plugin>>, String> {
        let mut slots = self.slots.write().expect("lock");
        for (other, slot) in slots.iter().filter(|(other, _)| *other != file) {
            let Some(theirs) = &slot.serving else { continue };
            if theirs.name() == plugin.name() {
                return Err(format!("the plugin name {} is taken by {other}", plugin.name()));
            }
            if let Some(kind) = plugin.kinds.iter().find(|k| theirs.kind(&k.gvk).is_some()) {
                return Err(format!(
                    "{} is reconciled by {} ({other}) already",
                    kind.gvk,
                    theirs.name()
                ));
            }
        }
        let (served, refused) = slots.get(file).map_or((0, 0), |s| (s.served, s.refused));
        let slot = Slot {
            hooks: if plugin.lifecycle {
                "pending".into()
            } else {
                String::new()
            },
            serving: Some(plugin),
            seen: digest.into(),
            message: String::new(),
            swapped: took,
            served: served + 1,
            refused,
        };
        let before = slots.insert(file.into(), slot);
        Ok(before.and_then(|s| s.serving))
    }

    /// The newest content of a file is bad: what served goes on serving.
    pub fn refuse(&self, file: &str, digest: &str, message: String) {
        let mut slots = self.slots.write().expect("lock");
        let slot = slots.entry(file.into()).or_insert(Slot {
            serving: None,
            seen: String::new(),
            message: String::new(),
            swapped: None,
            served: 0,
            refused: 0,
            hooks: String::new(),
        });
        slot.refused += 1;
        slot.seen = digest.into();
        slot.message = message;
    }

    /// How far the hooks of a plugin are.
    pub fn hooks(&self, plugin: &str, hooks: String) {
        let mut slots = self.slots.write().expect("lock");
        let of_plugin = |s: &&mut Slot| s.serving.as_ref().is_some_and(|p| **p.name() == *plugin);
        if let Some(slot) = slots.values_mut().find(of_plugin) {
            slot.hooks = hooks;
        }
    }

    /// The file is gone; gives what served.
    pub fn remove(&self, file: &str) -> Option<Arc<Plugin>> {
        self.slots
            .write()
            .expect("lock")
            .remove(file)
            .and_then(|s| s.serving)
    }

    /// The files known.
    pub fn files(&self) -> Vec<String> {
        self.slots.read().expect("lock").keys().cloned().collect()
    }

    /// All that is known, in order of the files.
    pub fn reports(&self) -> Vec<Report> {
        let slots = self.slots.read().expect("lock");
        let report = |(file, slot): (&String, &Slot)| {
            let serving = slot.serving.as_ref();
            Report {
                name: serving.map_or_else(
                    || file.trim_end_matches(".wasm").to_owned(),
                    |p| p.name().to_string(),
                ),
                file: file.clone(),
                version: serving.map(|p| p.version.clone()).unwrap_or_default(),
                digest: serving.map(|p| p.digest.clone()).unwrap_or_default(),
                state: match (serving, slot.message.is_empty()) {
                    (Some(_), true) => "serving",
                    (Some(_), false) => "kept",
                    (None, _) => "failed",
                },
                message: slot.message.clone(),
                hooks: slot.hooks.clone(),
                swapped_ms: slot.swapped.map(|d| d.as_micros() as f64 / 1000.0),
                served: slot.served,
                refused: slot.refused,
                kinds: serving
                    .map(|p| p.kinds.iter().map(|k| k.gvk.to_string()).collect())
                    .unwrap_or_default(),
            }
        };
        slots.iter().map(report).collect()
    }
}
