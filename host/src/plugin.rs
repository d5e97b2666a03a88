//! Plugins: from the bytes of a component to something that reconciles, and the registry of what serves.

pub mod canary_selector;
pub mod config;
mod from_object;
pub mod health;
mod probe;
mod registry;
pub mod spec;
mod summary;

use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use self::{
    from_object::{configuration, governed},
    health::{Ending, Record},
    probe::{Differing, Probe},
    registry::{Back, CanaryReport, Registry, Report, Served, of_object},
    summary::Summary,
};

use crate::{
    contract::{
        bindings::reconciler::Descriptor,
        inspection::{self, ContractError},
        limits::Limits,
    },
    kube::{
        hash::encode_hex,
        key::Gvk,
        scope::{Form, Reach, Scope},
        selector::Selector,
    },
    policy::{
        grants::Grants,
        manifest::{self, Manifest},
        plugin_policy::Terms,
    },
    sandbox::{
        capabilities::Call,
        engine::{Compiled, Engine},
    },
};

/// The kind of the objects that govern plugins.
pub fn kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Plugin")
}

/// Why something does not serve: a word for conditions, and words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// In a word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// Whether it may pass by itself.
    pub passing: bool,
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        refusal.message
    }
}

impl Refusal {
    /// One that stays until something is changed.
    pub fn new(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            passing: false,
        }
    }
}

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

impl Kind {
    /// The watches of its objects: one, or one in each namespace of a confined host.
    pub fn scopes(&self, reach: &Reach) -> Vec<Scope> {
        reach.everywhere(&self.gvk, self.selector.as_ref(), Form::Whole)
    }
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
    pub compiled: Arc<Compiled>,
    /// What it says of itself; none in components that were built without.
    pub manifest: Option<Manifest>,
    /// Where it is from: a file, or a reference in a registry.
    pub source: String,
    /// What there is to say of it besides.
    pub notes: Vec<String>,
    /// What recordings said of it when it was to replace the build before.
    pub probe: Option<Probe>,
    /// Whether its objects have to wait.
    pub suspended: bool,
    /// How its calls ended.
    pub record: Arc<Record>,
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

    /// Whether both are the same component, configured alike: what they may do is agreed anew each time, and is not
    /// theirs.
    pub fn same_build(&self, other: &Self) -> bool {
        self.digest == other.digest && self.terms.config == other.terms.config
    }

    /// Whether one is as good as the other.
    pub fn same(&self, other: &Self) -> bool {
        self.digest == other.digest && self.suspended == other.suspended && self.terms.same(&other.terms)
    }

    /// Whether it has a kind, or a name, that the other leaves to others.
    fn has_more_than(&self, other: &Self) -> bool {
        self.name() != other.name() || self.kinds.iter().any(|k| other.kind(&k.gvk).is_none())
    }

    /// This build, as it is agreed with another of the same plugin: what may be done is an administrator's word, to
    /// which no build goes back.
    fn under(&self, other: &Self) -> Self {
        let asks = self.manifest.as_ref().map(|m| m.asks.clone());
        let terms = Terms {
            plugin: self.terms.plugin.clone(),
            grants: other.terms.grants.clone().asking(asks),
            config: self.terms.config.clone(),
            limits: other.terms.limits.clone(),
        };
        self.with(terms, self.record.clone(), other.suspended)
    }

    /// This build as it is configured, with what else is agreed now.
    fn bound(&self, grants: &Grants, limits: &Limits, suspended: bool) -> Self {
        let config = self.terms.config.clone();
        let terms = agree(self.name(), self.manifest.as_ref(), config, grants, limits);
        Self {
            notes: self.notes.clone(),
            ..self.with(terms, self.record.clone(), suspended)
        }
    }

    /// This build, agreed otherwise; nothing is compiled anew.
    pub fn agreed(&self, config: Option<&str>, grants: &Grants, limits: &Limits) -> Result<Self, Refusal> {
        let config = configure(config, self.manifest.as_ref())?;
        let terms = agree(self.name(), self.manifest.as_ref(), config, grants, limits);
        let agreed = self.with(terms, Arc::default(), false);
        agreed.may_have_its_kinds()?;
        Ok(agreed)
    }

    /// What is reconciled is given whole.
    fn may_have_its_kinds(&self) -> Result<(), Refusal> {
        if self.kinds.iter().any(|k| k.gvk.is_secret()) && !self.terms.grants.reads_secrets() {
            return Err(Refusal::new(
                "SecretsNotGranted",
                "it reconciles Secrets, whole ones, and `secretsAreReadable` is not both asked for and granted"
                    .into(),
            ));
        }
        Ok(())
    }

    fn with(&self, terms: Terms, record: Arc<Record>, suspended: bool) -> Self {
        Self {
            terms: Arc::new(terms),
            version: self.version.clone(),
            digest: self.digest.clone(),
            kinds: self.kinds.clone(),
            max_concurrent: self.max_concurrent,
            lifecycle: self.lifecycle,
            compiled: self.compiled.clone(),
            manifest: self.manifest.clone(),
            source: self.source.clone(),
            notes: Vec::new(),
            probe: self.probe.clone(),
            suspended,
            record,
        }
    }

    /// Why another build can't have a part of this one's objects, if it can't: those have to be able to go back.
    fn differs_for_objects(&self, other: &Self) -> Option<String> {
        if self.lifecycle || other.lifecycle {
            return Some(
                "a plugin with life-cycle hooks has no canary: what `upgrade` does to stored objects is not taken back"
                    .into(),
            );
        }
        let missing = |a: &Self, b: &Self| {
            a.kinds
                .iter()
                .find(|k| b.kind(&k.gvk).is_none())
                .map(|k| k.gvk.clone())
        };
        if let Some(gvk) = missing(self, other) {
            return Some(format!(
                "the canary does not reconcile {gvk}, the build beside it does"
            ));
        }
        if let Some(gvk) = missing(other, self) {
            return Some(format!(
                "the canary reconciles {gvk}, the build beside it does not"
            ));
        }
        self.kinds.iter().find_map(|ours| {
            let theirs = other.kind(&ours.gvk)?;
            let other = if ours.finalizer != theirs.finalizer {
                "finalizer"
            } else if ours.selector != theirs.selector {
                "label-selector"
            } else {
                return None;
            };
            Some(format!(
                "the {other} of {} is another in the canary than in the build beside it",
                ours.gvk
            ))
        })
    }
}

/// Takes a component through all that must hold before it may serve: it is one, it fits this host's
/// contract, it compiles, and what it says of itself makes sense. Without a configuration it is only looked at, and
/// neither what its manifest says of one nor what it may read is.
pub async fn load(
    engine: &Arc<Engine>,
    wasm: Vec<u8>,
    config: Option<&str>,
    grants: &Grants,
    limits: &Limits,
) -> Result<Plugin, Refusal> {
    let inspection = inspection::inspect(&wasm).map_err(|e| {
        let reason = match e {
            ContractError::Differs(_) => "ContractDiffers",
            _ => "NotAComponent",
        };
        Refusal::new(reason, e.to_string())
    })?;
    let manifest = manifest::read(&wasm).map_err(|e| Refusal::new("ManifestInvalid", e.to_string()))?;
    let looked_at = config.is_none();
    let config = configure(config, manifest.as_ref())?;
    let digest = encode_hex(&Sha256::digest(&wasm));
    let compiling = engine.clone();
    let compiled = tokio::task::spawn_blocking(move || compiling.compile(&wasm, inspection.wasi))
        .await
        .map_err(|e| Refusal::new("DoesNotCompile", format!("compiling stopped: {e}")))?
        .map_err(|e| Refusal::new("DoesNotCompile", format!("does not compile: {e:#}")))?;
    let terms = |name: &str| agree(name, manifest.as_ref(), config.clone(), grants, limits);
    let sealed = Call::new(Arc::new(terms("describe")), None);
    let described = engine.describe(&compiled, sealed).await;
    let descriptor =
        described.map_err(|e| Refusal::new("DescribeFailed", format!("`describe` failed: {e}")))?;
    let kinds = check(&descriptor).map_err(|e| Refusal::new("DescriptorInvalid", e))?;
    let plugin = Plugin {
        terms: Arc::new(terms(&descriptor.name)),
        version: descriptor.version,
        digest,
        kinds,
        max_concurrent: descriptor.max_concurrent,
        lifecycle: inspection.lifecycle,
        compiled: Arc::new(compiled),
        manifest,
        source: String::new(),
        notes: Vec::new(),
        probe: None,
        suspended: false,
        record: Arc::default(),
    };
    if !looked_at {
        plugin.may_have_its_kinds()?;
    }
    Ok(plugin)
}

/// What a plugin may do and is told.
fn agree(
    name: &str,
    manifest: Option<&Manifest>,
    config: Vec<u8>,
    grants: &Grants,
    limits: &Limits,
) -> Terms {
    let grants = grants.of(name).asking(manifest.map(|m| m.asks.clone()));
    Terms {
        plugin: name.into(),
        limits: grants.limits(limits),
        grants,
        config,
    }
}

/// Its configuration as it is told, if that is as its manifest says. Without one it is only looked at.
fn configure(config: Option<&str>, manifest: Option<&Manifest>) -> Result<Vec<u8>, Refusal> {
    let Some(config) = config else {
        return Ok(b"{}".to_vec());
    };
    let config = parse_config(config).and_then(|config| match manifest.and_then(|m| m.config.as_ref()) {
        Some(configuration) => config::check(config, &configuration.schema),
        None => Ok(config),
    });
    let config = config.map_err(|e| Refusal::new("ConfigInvalid", e))?;
    Ok(config.to_string().into_bytes())
}

fn parse_config(text: &str) -> Result<serde_json::Value, String> {
    let value: serde_json::Value =
        serde_saphyr::from_str(text).map_err(|e| format!("its configuration is not YAML: {e}"))?;
    if !value.is_object() {
        return Err("its configuration must be a mapping of names to values".into());
    }
    Ok(value)
}

/// Lanes and managers of the host's own.
const OWN: [&str; 3] = ["ostler", "plugins", "upstreams"];

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
    if OWN.contains(&&**name) {
        return Err(format!(
            "`describe` names the plugin {name:?}, which is what the host calls work of its own"
        ));
    }
    if descriptor.kinds.is_empty() {
        return Err("`describe` lists no kinds: there is nothing to reconcile".into());
    }
    let mut kinds = Vec::new();
    for kind in &descriptor.kinds {
        let gvk = Gvk::new(&kind.gvk.group, &kind.gvk.version, &kind.gvk.kind);
        gvk.check()
            .map_err(|e| format!("`describe` lists a kind whose {e}"))?;
        if *gvk.group == *"ostler.dev" {
            return Err(format!(
                "`describe` lists {gvk}, which the host itself reconciles"
            ));
        }
        if let Some(finalizer) = &kind.finalizer
            && let Some((domain, _)) = finalizer.split_once('/')
            && ["kubernetes.io", "k8s.io", "ostler.dev"].contains(&domain)
        {
            return Err(format!(
                "the finalizer of {gvk} is {finalizer:?}: that domain is not a plugin's"
            ));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::bindings::{reconciler::ReconciledKind, types};

    fn described(name: &str, group: &str, finalizer: &str) -> Descriptor {
        let gvk = types::Gvk {
            group: group.into(),
            version: "v1".into(),
            kind: "Thing".into(),
        };
        Descriptor {
            name: name.into(),
            version: "1.0.0".into(),
            kinds: vec![ReconciledKind {
                gvk,
                finalizer: Some(finalizer.into()),
                label_selector: None,
                phase: false,
            }],
            max_concurrent: 0,
        }
    }

    #[test]
    fn nobody_describes_himself_as_the_host() {
        assert!(check(&described("thing", "example.org", "example.org/thing")).is_ok());
        for (name, group, finalizer, words) in [
            ("plugins", "example.org", "example.org/thing", "work of its own"),
            ("thing", "ostler.dev", "example.org/thing", "itself reconciles"),
            (
                "thing",
                "example.org",
                "kubernetes.io/pvc-protection",
                "not a plugin's",
            ),
            ("thing", "example.org", "ostler.dev/plugin", "not a plugin's"),
        ] {
            let why = check(&described(name, group, finalizer)).expect_err("refused");
            assert!(why.contains(words), "{why}");
        }
    }
}
