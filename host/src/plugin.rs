//! Plugins: builds made from components, and the registry of those that serve.

pub mod canary_selector;
pub mod carried;
pub mod config;
mod from_object;
pub mod health;
pub mod install;
mod registry;
pub mod spec;
mod state;
pub mod summary;

use std::{sync::Arc, time::Duration};

use sha2::{Digest, Sha256};

pub use self::{
    from_object::{config_of_spec, load_for_object, recorded_rollback},
    health::{BuildHealth, CallResult, CallSubject},
    registry::{
        CanaryReport, PluginRegistry, PreflightDifference, PreflightReport, Rollback, SlotChange, SlotReport,
    },
    state::{HookState, LoadState, SlotId},
    summary::GrantSummary,
};

use crate::{
    contract::{
        bindings::reconciler::Descriptor,
        inspection::{self, ContractError},
        limits::PluginLimits,
        trap::Trap,
    },
    kube::{
        hash::encode_hex,
        key::{Gvk, is_dns_label, own_cluster},
        object::KubeObject,
        scope::{NamespaceScope, Projection, Scope},
        selector::LabelSelector,
        well_known::{bookkeeping, plugin_reason},
    },
    policy::{
        components::ComponentViolation,
        grants::{Access, Grants, PluginGrants},
        manifest::{self, Manifest},
        plugin_policy::PluginPolicy,
    },
    sandbox::{
        capabilities::PluginCall,
        engine::{Compiled, Engine},
    },
    schedule::host_lane::HostLane,
};

/// The kind `Plugin`, whose objects configure plugins.
pub fn kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Plugin")
}

/// Error that keeps a build from serving, with the reason for a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LoadError {
    /// Reason of the condition, as a CamelCase word.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
    /// True when it may pass by itself, so that loading is retried.
    pub passing: bool,
}

impl From<ComponentViolation> for LoadError {
    fn from(violation: ComponentViolation) -> Self {
        Self::new(violation.reason, violation.message)
    }
}

impl From<LoadError> for String {
    fn from(error: LoadError) -> Self {
        error.message
    }
}

impl LoadError {
    /// True when another slot stands in the way: it is retried when one is removed or gives up a kind.
    fn is_conflict(&self) -> bool {
        [
            plugin_reason::MANAGED_BY_PLUGIN_OBJECT,
            plugin_reason::NAME_CONFLICT,
            plugin_reason::KIND_CONFLICT,
        ]
        .contains(&self.reason)
    }

    /// An error that stays until something is changed.
    pub fn new(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            passing: false,
        }
    }
}

/// A kind that a plugin reconciles.
#[derive(Clone, Debug)]
pub struct PluginKind {
    /// The kind.
    pub gvk: Gvk,
    /// Finalizer that the host sets, if the plugin cleans up.
    pub finalizer: Option<Box<str>>,
    /// Label selector of the objects; none for all.
    pub selector: Option<LabelSelector>,
    /// True when the host writes `status.phase`.
    pub phase: bool,
    /// Namespaces of its objects, to which the grants narrow the plugin; none for all.
    pub namespaces: Option<Vec<Arc<str>>>,
    /// Cluster of its objects: the home cluster of the plugin, empty for the host's own.
    pub cluster: Arc<str>,
}

impl PluginKind {
    /// The watches of its objects: one, or one per namespace in a host that is confined to namespaces. With a finalizer
    /// the host selects, not the API server: a watch with the selector would report an object whose labels have changed
    /// as deleted, and its finalizer would never be removed.
    pub fn scopes(&self, namespaces: &NamespaceScope) -> Vec<Scope> {
        let selector = self.selector.as_ref().filter(|_| self.finalizer.is_none());
        self.scopes_in(self.namespaces.as_deref(), namespaces, selector)
    }

    /// The watches of all objects of the kind, also those that the selector leaves out, and on the host's own cluster the
    /// grants. The credentials of another one may be for the granted namespaces only.
    pub fn all_scopes(&self, namespaces: &NamespaceScope) -> Vec<Scope> {
        let granted = self.namespaces.as_deref().filter(|_| !self.cluster.is_empty());
        self.scopes_in(granted, namespaces, None)
    }

    /// Returns true if its selector matches an object.
    pub fn selects(&self, object: &KubeObject) -> bool {
        self.selector
            .as_ref()
            .is_none_or(|selector| selector.matches(&object.labels))
    }

    fn scopes_in(
        &self,
        granted: Option<&[Arc<str>]>,
        namespaces: &NamespaceScope,
        selector: Option<&LabelSelector>,
    ) -> Vec<Scope> {
        let visible = self.visible(namespaces);
        let scopes = match granted {
            None => visible.kind_scopes(&self.gvk, selector, Projection::Full),
            Some(granted) => visible
                .narrow_to(granted)
                .named_scopes(&self.gvk, selector, Projection::Full),
        };
        self.in_cluster(scopes)
    }

    /// The namespaces to which the host is confined are those of its own cluster.
    fn visible(&self, namespaces: &NamespaceScope) -> NamespaceScope {
        if self.cluster.is_empty() {
            namespaces.clone()
        } else {
            NamespaceScope::default()
        }
    }

    fn in_cluster(&self, scopes: Vec<Scope>) -> Vec<Scope> {
        let place = |scope| Scope {
            cluster: self.cluster.clone(),
            ..scope
        };
        scopes.into_iter().map(place).collect()
    }

    /// An object in this cluster is one that the plugin may reconcile.
    pub fn is_of_cluster(&self, cluster: &str) -> bool {
        *self.cluster == *cluster
    }

    /// An object in this namespace is one that the plugin reconciles.
    pub fn is_granted_in(&self, namespace: &str) -> bool {
        let granted = self.namespaces.as_ref();
        granted.is_none_or(|granted| granted.iter().any(|n| **n == *namespace))
    }
}

/// Build of a plugin: a compiled component with its configuration and policy.
pub struct Plugin {
    /// Its name, grants, configuration and limits.
    pub policy: Arc<PluginPolicy>,
    /// Version that the component gives itself.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
    /// The kinds it reconciles.
    pub kinds: Vec<PluginKind>,
    /// Number of concurrent reconciles that the component asks for at most; 0 for no limit of its own.
    pub max_concurrent: u32,
    /// True when it has life-cycle hooks.
    pub lifecycle: bool,
    /// True when it has a message handler.
    pub messages: bool,
    /// The compiled component.
    pub compiled: Arc<Compiled>,
    /// Its manifest; none in components that were built without one.
    pub manifest: Option<Manifest>,
    /// Its source: a file, or a reference in an OCI registry.
    pub source: String,
    /// Remarks for the `Loaded` condition.
    pub notes: Vec<String>,
    /// Result of the preflight, if it has replaced another build.
    pub preflight: Option<PreflightReport>,
    /// True when its objects wait, since the `Plugin` object suspends it.
    pub suspended: bool,
    /// Results of its calls. Copies of a build with another policy share it.
    pub health: Arc<BuildHealth>,
}

impl Plugin {
    /// Name of the plugin.
    pub fn name(&self) -> &Arc<str> {
        &self.policy.plugin
    }

    /// Its home cluster, as keys name it: empty for the host's own.
    pub fn home_cluster(&self) -> &Arc<str> {
        self.policy.grants.home_cluster()
    }

    /// The settings for a kind, if it reconciles that.
    pub fn kind(&self, gvk: &Gvk) -> Option<&PluginKind> {
        self.kinds.iter().find(|k| k.gvk == *gvk)
    }

    /// True when both are the same component with the same configuration. Grants and limits don't count: they are an
    /// administrator's and apply to any build.
    pub fn same_build(&self, other: &Self) -> bool {
        self.digest == other.digest && self.policy.config == other.policy.config
    }

    /// True when both are the same component with the same policy, and nothing has to be reconciled again.
    pub fn is_same(&self, other: &Self) -> bool {
        self.digest == other.digest
            && self.suspended == other.suspended
            && self.policy.is_equivalent(&other.policy)
    }

    /// True when it has a kind, or a name, that the other does not have and leaves to other plugins.
    fn has_more_than(&self, other: &Self) -> bool {
        self.name() != other.name() || self.kinds.iter().any(|k| other.kind(&k.gvk).is_none())
    }

    /// Copies this build with the grants, limits and suspension of another one of the same plugin. These are an
    /// administrator's decision, which a rollback does not undo.
    fn with_policy_of(&self, other: &Self) -> Self {
        let asks = self.manifest.as_ref().map(|m| m.permissions.clone());
        let policy = PluginPolicy {
            plugin: self.policy.plugin.clone(),
            grants: other.policy.grants.clone().with_asks(asks),
            config: self.policy.config.clone(),
            limits: other.policy.limits.clone(),
        };
        self.with_policy(policy, self.health.clone(), other.suspended)
    }

    /// Copies this build, suspended.
    fn suspend(&self) -> Self {
        Self {
            suspended: true,
            notes: self.notes.clone(),
            ..self.with_policy_of(self)
        }
    }

    /// Copies this build with its configuration and another policy.
    fn rebind(&self, grants: &Grants, limits: &PluginLimits, suspended: bool) -> Self {
        let config = self.policy.config.clone();
        let policy = bind_policy(self.name(), self.manifest.as_ref(), config, grants, limits);
        Self {
            notes: self.notes.clone(),
            ..self.with_policy(policy, self.health.clone(), suspended)
        }
    }

    /// Copies this build with another configuration and policy, without compiling it a second time.
    pub fn reconfigure(
        &self,
        config: Option<&str>,
        grants: &Grants,
        limits: &PluginLimits,
    ) -> Result<Self, LoadError> {
        let config = parse_config(config, self.manifest.as_ref())?;
        let policy = bind_policy(self.name(), self.manifest.as_ref(), config, grants, limits);
        let build = self.with_policy(policy, Arc::default(), false);
        build.check_grants(grants)?;
        Ok(build)
    }

    /// Checks the name before the kinds: the grants of a `Plugin` object are those of the plugin with its name.
    fn check_grants(&self, grants: &Grants) -> Result<(), LoadError> {
        if let Some(name) = grants.object_name() {
            self.check_object_name(name)?;
        }
        if !self.messages && !self.policy.grants.subscriptions().is_empty() {
            return Err(LoadError::new(
                plugin_reason::INCOMPATIBLE_CONTRACT,
                "it has `subscriptions` but no message handler: the component must export ostler:plugin/messages".into(),
            ));
        }
        self.check_kinds()
    }

    /// Checks that the plugin may reconcile its kinds, and read Secrets if it reconciles them: a reconciler gets the whole
    /// object.
    fn check_kinds(&self) -> Result<(), LoadError> {
        for kind in &self.kinds {
            let access = Access::Reconcile { gvk: &kind.gvk };
            let checked = self.policy.grants.check_access(&access, "");
            checked.map_err(|e| LoadError::new(plugin_reason::KINDS_NOT_GRANTED, e.to_string()))?;
            if kind.namespaces.as_ref().is_some_and(Vec::is_empty) {
                let why = format!(
                    "`reconciles` of its manifest and of its grants have no namespace of {} in common",
                    kind.gvk.kind
                );
                return Err(LoadError::new(plugin_reason::KINDS_NOT_GRANTED, why));
            }
        }
        if self.kinds.iter().any(|k| k.gvk.is_secret()) && !self.policy.grants.can_read_secrets() {
            return Err(LoadError::new(
                plugin_reason::SECRETS_NOT_GRANTED,
                "it reconciles Secrets with their values, which needs `readSecrets` in its manifest and in its grants"
                    .into(),
            ));
        }
        Ok(())
    }

    fn with_policy(&self, policy: PluginPolicy, health: Arc<BuildHealth>, suspended: bool) -> Self {
        Self {
            version: self.version.clone(),
            digest: self.digest.clone(),
            kinds: confine_kinds(self.kinds.clone(), &policy.grants),
            policy: Arc::new(policy),
            max_concurrent: self.max_concurrent,
            lifecycle: self.lifecycle,
            messages: self.messages,
            compiled: self.compiled.clone(),
            manifest: self.manifest.clone(),
            source: self.source.clone(),
            notes: Vec::new(),
            preflight: self.preflight.clone(),
            suspended,
            health,
        }
    }

    /// The difference that keeps another build from being a canary beside this one: its objects must be able to go
    /// back.
    fn find_canary_difference(&self, other: &Self) -> Option<String> {
        if self.lifecycle || other.lifecycle {
            return Some(
                "a plugin with life-cycle hooks can't have a canary: a rollback does not revert upgraded objects"
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
                "the canary does not reconcile {gvk}, which the primary build does"
            ));
        }
        if let Some(gvk) = missing(other, self) {
            return Some(format!(
                "the canary reconciles {gvk}, which the primary build does not"
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
                "the {other} of {} differs between the canary and the primary build",
                ours.gvk
            ))
        })
    }
}

/// Limit of the CPU time of `describe`, unless more is configured: an interpreter starts in it, which takes a part of a second, and on
/// a busy machine several. A build that fails there is not loaded again.
const DESCRIBE_CPU_TIME: Duration = Duration::from_secs(5);

/// Makes a build of a component: checks that it is one and fits the host's contract, compiles it, and checks its
/// description and configuration. Without a configuration the component is only inspected: neither its configuration
/// nor its grants are checked.
pub async fn load(
    engine: &Arc<Engine>,
    wasm: Vec<u8>,
    config: Option<&str>,
    grants: &Grants,
    limits: &PluginLimits,
) -> Result<Plugin, LoadError> {
    // Parsing and hashing a component with an interpreter takes longer than an async thread may be blocked.
    let inspecting = tokio::task::spawn_blocking(move || {
        let (inspection, manifest) = (inspection::inspect(&wasm), manifest::read_manifest(&wasm));
        let digest = encode_hex(&Sha256::digest(&wasm));
        (inspection, manifest, digest, wasm)
    });
    let (inspection, manifest, digest, wasm) = inspecting.await.map_err(|e| {
        LoadError::new(
            plugin_reason::NOT_A_COMPONENT,
            format!("inspecting it stopped: {e}"),
        )
    })?;
    let inspection = inspection.map_err(|e| {
        let reason = match e {
            ContractError::Differs(_) => plugin_reason::INCOMPATIBLE_CONTRACT,
            _ => plugin_reason::NOT_A_COMPONENT,
        };
        LoadError::new(reason, e.to_string())
    })?;
    let manifest = manifest.map_err(|e| LoadError::new(plugin_reason::INVALID_MANIFEST, e.to_string()))?;
    let only_inspected = config.is_none();
    let config = parse_config(config, manifest.as_ref())?;
    let compiled = engine
        .compile_in_turn(wasm, inspection.wasi)
        .await
        .map_err(|e| LoadError::new(plugin_reason::COMPILE_FAILED, format!("does not compile: {e:#}")))?;
    let policy = |name: &str| bind_policy(name, manifest.as_ref(), config.clone(), grants, limits);
    let mut describing = policy("describe");
    describing.limits.cpu_time = describing.limits.cpu_time.max(DESCRIBE_CPU_TIME);
    let sealed = PluginCall::new(Arc::new(describing), None);
    let described = engine.describe(&compiled, sealed).await;
    let descriptor = described.map_err(|e| LoadError {
        passing: matches!(e, Trap::HostExhausted(_)),
        ..LoadError::new(plugin_reason::DESCRIBE_FAILED, format!("`describe` failed: {e}"))
    })?;
    let kinds = check_descriptor(&descriptor, inspection.messages)
        .map_err(|e| LoadError::new(plugin_reason::INVALID_DESCRIPTOR, e))?;
    let policy = policy(&descriptor.name);
    let plugin = Plugin {
        kinds: confine_kinds(kinds, &policy.grants),
        policy: Arc::new(policy),
        version: descriptor.version,
        digest,
        max_concurrent: descriptor.max_concurrent.unwrap_or(0),
        lifecycle: inspection.lifecycle,
        messages: inspection.messages,
        compiled,
        manifest,
        source: String::new(),
        notes: Vec::new(),
        preflight: None,
        suspended: false,
        health: Arc::default(),
    };
    if !only_inspected {
        plugin.check_grants(grants)?;
    }
    Ok(plugin)
}

/// The kinds, confined to the cluster and the namespaces in which the grants let the plugin reconcile them.
fn confine_kinds(kinds: Vec<PluginKind>, grants: &PluginGrants) -> Vec<PluginKind> {
    let confine = |kind: PluginKind| PluginKind {
        // Without an entry nothing is reconciled, and what is watched must not widen.
        namespaces: if grants.reconciles_kind(&kind.gvk) {
            grants.reconciled_namespaces(&kind.gvk)
        } else {
            kind.namespaces
        },
        cluster: grants.home_cluster().clone(),
        ..kind
    };
    kinds.into_iter().map(confine).collect()
}

/// Policy of a plugin: of its grants only those that its manifest asks for count.
fn bind_policy(
    name: &str,
    manifest: Option<&Manifest>,
    config: Vec<u8>,
    grants: &Grants,
    limits: &PluginLimits,
) -> PluginPolicy {
    let grants = grants
        .grants_for(name)
        .with_asks(manifest.map(|m| m.permissions.clone()));
    PluginPolicy {
        plugin: name.into(),
        limits: grants.effective_limits(limits),
        grants,
        config,
    }
}

/// The configuration as the component gets it, validated against the schema in the manifest. An empty one for a
/// component that is only inspected.
fn parse_config(config: Option<&str>, manifest: Option<&Manifest>) -> Result<Vec<u8>, LoadError> {
    let Some(config) = config else {
        return Ok(b"{}".to_vec());
    };
    let config = parse_yaml(config).and_then(|config| match manifest.and_then(|m| m.config.as_ref()) {
        Some(configuration) => config::validate_config(config, &configuration.schema),
        None => Ok(config),
    });
    let config = config.map_err(|e| LoadError::new(plugin_reason::INVALID_CONFIG, e))?;
    Ok(config.to_string().into_bytes())
}

fn parse_yaml(text: &str) -> Result<serde_json::Value, String> {
    let value: serde_json::Value =
        serde_saphyr::from_str(text).map_err(|e| format!("its configuration is not YAML: {e}"))?;
    if !value.is_object() {
        return Err("its configuration must be a mapping of names to values".into());
    }
    Ok(value)
}

/// Checks a component's description of itself. The error names the field. A component that exports a message handler may
/// reconcile no kind: the reconcilers of others do the work.
fn check_descriptor(descriptor: &Descriptor, handles_messages: bool) -> Result<Vec<PluginKind>, String> {
    let name = &descriptor.name;
    if !is_dns_label(name) {
        return Err(format!(
            "`describe` names the plugin {name:?}: a DNS label is needed (a-z, 0-9, -)"
        ));
    }
    if HostLane::find(name).is_some() {
        return Err(format!(
            "`describe` names the plugin {name:?}: the name is reserved for the host"
        ));
    }
    if descriptor.kinds.is_empty() && !handles_messages {
        return Err(
            "`describe` lists no kinds, and the component exports no ostler:plugin/messages: there is nothing to reconcile or \
             to handle"
                .into(),
        );
    }
    let mut kinds = Vec::new();
    for kind in &descriptor.kinds {
        let gvk = Gvk::new(&kind.gvk.group, &kind.gvk.version, &kind.gvk.kind);
        gvk.validate()
            .map_err(|e| format!("`describe` lists a kind whose {e}"))?;
        if *gvk.group == *"ostler.dev" {
            return Err(format!(
                "`describe` lists {gvk}, which the host itself reconciles"
            ));
        }
        if let Some(finalizer) = &kind.finalizer
            && let Some((domain, _)) = finalizer.split_once('/')
            && is_reserved_domain(domain, &gvk.group)
        {
            return Err(format!(
                "the finalizer of {gvk} is {finalizer:?}: the domain is reserved, since the finalizers of Kubernetes and of \
                 the host are in it. Use the group of the kind or a domain of your own"
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
                Some(LabelSelector::parse(text).map_err(|e| format!("the label-selector of {gvk}: {e}"))?)
            }
        };
        kinds.push(PluginKind {
            gvk,
            finalizer: kind.finalizer.as_deref().map(Into::into),
            selector,
            phase: kind.phase,
            namespaces: None,
            cluster: own_cluster(),
        });
    }
    Ok(kinds)
}

/// Domains whose finalizers, also in subdomains, belong to Kubernetes and to the host.
const RESERVED_DOMAINS: [&str; 3] = ["kubernetes.io", "k8s.io", "ostler.dev"];

/// Returns true for a finalizer that a plugin may have for a kind of a group: not one of Kubernetes, and no protection or hold.
pub fn is_plugin_finalizer(finalizer: &str, group: &str) -> bool {
    let domain = finalizer.split_once('/').map(|(domain, _)| domain);
    domain.is_some_and(|domain| !is_reserved_domain(domain, group))
}

/// The domain is, or is in, a reserved one. A group within one is free for finalizers of its own kinds.
fn is_reserved_domain(domain: &str, group: &str) -> bool {
    let is_within = |reserved: &&str| {
        domain
            .strip_suffix(*reserved)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let held_by = bookkeeping::HELD_BY.trim_end_matches('/');
    domain == held_by || domain != group && RESERVED_DOMAINS.iter().any(is_within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::bindings::{reconciler::ReconciledKind, types};

    fn descriptor(name: &str, group: &str, finalizer: &str) -> Descriptor {
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
            max_concurrent: None,
        }
    }

    #[test]
    fn descriptor_without_kinds_needs_a_message_handler() {
        let mut descriptor = descriptor("thing", "example.org", "example.org/thing");
        descriptor.kinds.clear();
        assert_eq!(check_descriptor(&descriptor, true).expect("accepted").len(), 0);
        let why = check_descriptor(&descriptor, false).expect_err("refused");
        assert!(why.contains("exports no ostler:plugin/messages"), "{why}");
    }

    #[test]
    fn descriptor_with_names_of_the_host_is_refused() {
        for (group, finalizer) in [
            ("example.org", "example.org/thing"),
            ("examples.ostler.dev", "examples.ostler.dev/thing"),
            ("example.org", "notkubernetes.io/thing"),
        ] {
            assert!(
                check_descriptor(&descriptor("thing", group, finalizer), false).is_ok(),
                "{finalizer}"
            );
        }
        for (name, group, finalizer, words) in [
            (
                "plugins",
                "example.org",
                "example.org/thing",
                "reserved for the host",
            ),
            ("thing", "ostler.dev", "example.org/thing", "itself reconciles"),
            (
                "thing",
                "example.org",
                "kubernetes.io/pvc-protection",
                "the domain is reserved",
            ),
            (
                "thing",
                "example.org",
                "ostler.dev/plugin",
                "the domain is reserved",
            ),
            (
                "thing",
                "example.org",
                "service.kubernetes.io/load-balancer-cleanup",
                "the domain is reserved",
            ),
            (
                "thing",
                "batch",
                "batch.kubernetes.io/job-tracking",
                "the domain is reserved",
            ),
            (
                "thing",
                "example.org",
                "held-by.ostler.dev/x",
                "the domain is reserved",
            ),
            (
                "thing",
                "held-by.ostler.dev",
                "held-by.ostler.dev/x",
                "the domain is reserved",
            ),
        ] {
            let why = check_descriptor(&descriptor(name, group, finalizer), true).expect_err("refused");
            assert!(why.contains(words), "{why}");
        }
    }
}
