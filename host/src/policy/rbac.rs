//! RBAC rules derived from the permissions of a plugin: those of its service account, and those that the host needs for
//! it besides its own.
//!
//! A permission names kinds and the verbs of the contract; RBAC names resources and the verbs of the API server. The
//! derivation is pure, so that `ostler plugin install`, the manifests in `deploy/` and the tests have the same rules.

mod catalog;
mod objects;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

pub use self::{
    catalog::{ApiResource, ResourceCatalog},
    objects::{HOST_CLUSTER_ROLE, HOST_NAMESPACE, LEASE_NAME, RightsObjects, host_objects, rights_objects},
    rules::{RuleSet, Verbs},
};
use crate::{
    kube::key::{Gvk, IN_CLUSTER},
    policy::grants::{GrantVerb, HOST_GROUP, KubernetesGrant, Permissions, SAME_NAMESPACE},
};

/// A kind that a component reconciles, as it describes itself.
#[derive(Clone, Debug)]
pub struct ReconciledKind {
    /// The kind.
    pub gvk: Gvk,
    /// True if the host sets a finalizer on its objects.
    pub has_finalizer: bool,
    /// True if the component has the hook `upgrade`, with which it changes labels and annotations of its objects.
    pub has_upgrade: bool,
}

/// The rules of one subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopedRules {
    /// Rules for all namespaces and for cluster-scoped kinds.
    pub cluster: RuleSet,
    /// Rules by namespace.
    pub namespaces: BTreeMap<String, RuleSet>,
}

/// The RBAC rules that a plugin needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginRights {
    /// Rules of its service account.
    pub account: ScopedRules,
    /// Rules of the host for this plugin, without those that it has in each namespace that it watches
    /// ([`RuleSet::of_host`]).
    pub host: ScopedRules,
    /// True if requests may be sent as the service account: writes, and reads past the cache.
    pub impersonates: bool,
    /// Named kinds that the API server does not serve. Their resources are guessed.
    pub unserved: BTreeSet<String>,
}

/// The facts that the rules of a plugin are derived from.
#[derive(Clone, Copy, Debug)]
pub struct RightsRequest<'a> {
    /// The permissions that are granted to it.
    pub permissions: &'a Permissions,
    /// The kinds that its component reconciles.
    pub reconciled: &'a [ReconciledKind],
    /// True if its component handles messages, for which `Same` is the namespace of the Upstream.
    pub handles_messages: bool,
    /// The namespaces in which it is installed; empty for all.
    pub namespaces: &'a [String],
    /// The resources of the API server.
    pub catalog: &'a ResourceCatalog,
}

impl PluginRights {
    /// Derives the rules from the permissions.
    pub fn derive(request: RightsRequest<'_>) -> Self {
        Derivation {
            own_namespaces: find_own_namespaces(&request),
            request,
            rights: Self::default(),
        }
        .run()
    }

    /// Adds namespaces of Upstreams to which the host connects without a permission: those of subscriptions.
    pub fn add_upstreams<'a>(&mut self, namespaces: impl Iterator<Item = &'a String>) {
        for namespace in namespaces {
            self.host.namespaces.entry(namespace.clone()).or_default();
        }
    }

    /// The namespaces of which the host reads or writes objects for the plugin: in each it needs its own role, too.
    pub fn host_namespaces<'a>(&'a self, installed: &'a [String]) -> BTreeSet<&'a str> {
        let named = self.account.namespaces.keys().chain(self.host.namespaces.keys());
        named.chain(installed).map(String::as_str).collect()
    }
}

/// The entry allows to create objects, which the reconciled object may own.
fn creates_objects(grant: &KubernetesGrant) -> bool {
    grant.verbs.contains(&GrantVerb::Apply) || grant.verbs.contains(&GrantVerb::Create)
}

/// The RBAC verbs that a service account needs for verbs of the contract.
fn account_verbs(verbs: &[GrantVerb]) -> Verbs {
    let mut needed = Verbs::default();
    for verb in verbs {
        needed |= match verb {
            // The host reviews a hold as `get`, and writes it itself.
            GrantVerb::Get | GrantVerb::Hold => Verbs::GET,
            GrantVerb::List => Verbs::LIST | Verbs::WATCH,
            GrantVerb::Apply => Verbs::CREATE | Verbs::PATCH,
            GrantVerb::Create => Verbs::CREATE,
            GrantVerb::Patch => Verbs::PATCH,
            GrantVerb::Delete => Verbs::DELETE,
        };
    }
    needed
}

/// The namespaces of the `Cluster` objects of an entry, as it names them.
fn cluster_namespaces(grant: &KubernetesGrant) -> Vec<String> {
    let pairs = grant
        .clusters
        .iter()
        .filter_map(|cluster| cluster.split_once('/'));
    pairs.map(|(namespace, _)| namespace.to_owned()).collect()
}

/// The namespaces that `Same` stands for; none for all. They are those of the objects that are reconciled, where each kind has
/// some by name, and those of the installation otherwise.
fn find_own_namespaces(request: &RightsRequest<'_>) -> Option<BTreeSet<String>> {
    let installed = || -> Option<BTreeSet<String>> {
        (!request.namespaces.is_empty()).then(|| request.namespaces.iter().cloned().collect())
    };
    if request.handles_messages || request.reconciled.is_empty() {
        return installed();
    }
    let mut names = BTreeSet::new();
    for kind in request.reconciled {
        let resource = request.catalog.find(&kind.gvk.group, &kind.gvk.kind);
        let is_namespaced = resource.is_none_or(|resource| resource.namespaced);
        for namespace in reconciled_namespaces(request, kind, is_namespaced) {
            match &*namespace {
                "*" => names.extend(installed()?),
                _ => drop(names.insert(namespace)),
            }
        }
    }
    Some(names)
}

/// The namespaces in which objects of a kind are reconciled, as the entries name them; `*` for those of the installation.
fn reconciled_namespaces(
    request: &RightsRequest<'_>,
    kind: &ReconciledKind,
    is_namespaced: bool,
) -> Vec<String> {
    let entries = request.permissions.reconciles.iter();
    let covering = entries.filter(|entry| entry.covers(&kind.gvk));
    let names: Vec<String> = covering.flat_map(|entry| entry.namespaces.clone()).collect();
    if names.is_empty() || !is_namespaced {
        return vec!["*".to_owned()];
    }
    names
}

/// The place of a rule.
enum Place {
    Cluster,
    Namespaces(BTreeSet<String>),
}

struct Derivation<'a> {
    request: RightsRequest<'a>,
    /// The namespaces that `Same` stands for; none for all.
    own_namespaces: Option<BTreeSet<String>>,
    rights: PluginRights,
}

impl<'a> Derivation<'a> {
    fn run(mut self) -> PluginRights {
        let RightsRequest {
            permissions,
            reconciled,
            ..
        } = self.request;
        for kind in reconciled {
            self.add_reconciled(kind);
        }
        for grant in self.home_grants() {
            self.add_grant(grant);
        }
        // The host connects to the Upstreams and Clusters, and reads the Secrets that are named, whose values the plugin does
        // not see.
        let upstreams = permissions.upstreams.iter().map(|grant| grant.namespaces.clone());
        let messages = permissions.messages.iter().map(|grant| grant.namespaces.clone());
        let secrets = permissions.secrets.iter().map(|grant| grant.namespaces.clone());
        let clusters = permissions.kubernetes.iter().map(cluster_namespaces);
        for namespaces in upstreams.chain(messages).chain(secrets).chain(clusters) {
            if let Place::Namespaces(names) = self.place(&namespaces, true, self.own_namespaces.as_ref()) {
                for name in names {
                    self.rights.host.namespaces.entry(name).or_default();
                }
            }
        }
        let is_upgraded = reconciled.iter().any(|kind| kind.has_upgrade);
        self.rights.impersonates = is_upgraded || self.home_grants().next().is_some();
        let base = RuleSet::of_host();
        self.rights.host.cluster.subtract(&base);
        self.rights.host.cluster.subtract(&RuleSet::of_host_in_cluster());
        for rules in self.rights.host.namespaces.values_mut() {
            rules.subtract(&base);
        }
        self.rights
    }

    /// The entries about the host's own cluster. What is allowed on another one, the credentials of its `Cluster` decide.
    fn home_grants(&self) -> impl Iterator<Item = &'a KubernetesGrant> + use<'a> {
        let grants: &'a [KubernetesGrant] = &self.request.permissions.kubernetes;
        let is_own = |grant: &&KubernetesGrant| {
            grant.clusters.is_empty() || grant.clusters.iter().any(|c| c == IN_CLUSTER)
        };
        grants.iter().filter(is_own)
    }

    /// True if the plugin may own objects on other clusters, of which the host keeps an inventory at the owner.
    fn owns_elsewhere(&self) -> bool {
        let mut grants = self.request.permissions.kubernetes.iter();
        let is_other = |cluster: &String| cluster != IN_CLUSTER;
        grants.any(|grant| grant.clusters.iter().any(is_other) && creates_objects(grant))
    }

    fn add_reconciled(&mut self, kind: &ReconciledKind) {
        let resource = self.find_resource(&kind.gvk.group, &kind.gvk.kind);
        let namespaces = reconciled_namespaces(&self.request, kind, resource.namespaced);
        let mut verbs = Verbs::GET;
        if kind.has_upgrade {
            verbs |= Verbs::PATCH;
        }
        self.add_account_rule(&namespaces, &resource, &resource.plural, verbs);
        // An owner reference with blockOwnerDeletion needs it where the admission plugin
        // OwnerReferencesPermissionEnforcement is enabled.
        let may_own = |grant: &KubernetesGrant| {
            let is_near = |namespace: &String| {
                namespace == SAME_NAMESPACE
                    || namespace.ends_with('*')
                    || !resource.namespaced
                    || self.request.namespaces.contains(namespace)
                    || namespaces.contains(namespace)
            };
            creates_objects(grant) && grant.namespaces.iter().any(is_near)
        };
        if self.home_grants().any(may_own) {
            let finalizers = format!("{}/finalizers", resource.plural);
            self.add_account_rule(&namespaces, &resource, &finalizers, Verbs::UPDATE);
        }
        let mut verbs = Verbs::LIST | Verbs::WATCH;
        if kind.has_finalizer || !resource.has_status {
            verbs |= Verbs::PATCH;
        }
        // The holds of an object, and the inventory of what it owns on other clusters, are written to what the API server has,
        // not to what is cached. An object without a finalizer owns nothing there.
        let holds = self
            .home_grants()
            .any(|grant| grant.verbs.contains(&GrantVerb::Hold));
        if holds || kind.has_finalizer && self.owns_elsewhere() {
            verbs |= Verbs::GET | Verbs::PATCH;
        }
        self.add_host_rule(&namespaces, &resource, &resource.plural, verbs);
        if resource.has_status {
            let status = format!("{}/status", resource.plural);
            self.add_host_rule(&namespaces, &resource, &status, Verbs::PATCH);
        }
    }

    fn add_grant(&mut self, grant: &KubernetesGrant) {
        for kind in &grant.kinds {
            if let Some((kind, subresource)) = kind.split_once('/') {
                let resource = self.find_resource(&grant.group, kind);
                let name = format!("{}/{subresource}", resource.plural);
                self.add_account_rule(&grant.namespaces, &resource, &name, account_verbs(&grant.verbs));
                continue;
            }
            for resource in self.expand_kind(&grant.group, kind) {
                // No grant allows a plugin to write Plugins, and other users of its account must not either.
                let is_plugin = resource.group == HOST_GROUP && resource.kind == "Plugin";
                let is_allowed =
                    |verb: &&GrantVerb| !is_plugin || matches!(verb, GrantVerb::Get | GrantVerb::List);
                let allowed: Vec<GrantVerb> = grant.verbs.iter().filter(is_allowed).copied().collect();
                if allowed.is_empty() {
                    continue;
                }
                let verbs = account_verbs(&allowed);
                // Whatever is read or written is watched.
                let mut host_verbs = Verbs::LIST | Verbs::WATCH;
                if allowed.contains(&GrantVerb::Hold) {
                    host_verbs |= Verbs::GET | Verbs::PATCH;
                }
                self.add_account_rule(&grant.namespaces, &resource, &resource.plural, verbs);
                self.add_host_rule(&grant.namespaces, &resource, &resource.plural, host_verbs);
            }
        }
    }

    /// The resources that a kind of a grant stands for. Patterns cover neither Secrets, unless their values may be read, nor
    /// the host's own kinds.
    fn expand_kind(&mut self, group: &str, kind: &str) -> Vec<ApiResource> {
        if !group.contains('*') && !kind.contains('*') {
            return vec![self.find_resource(group, kind)];
        }
        let reads_secrets = self.request.permissions.read_secrets;
        let covers = |resource: &&ApiResource| {
            let is_kind = match kind.strip_suffix('*') {
                Some(prefix) => resource.kind.starts_with(prefix),
                None => resource.kind == kind,
            };
            let is_secret = resource.group.is_empty() && resource.kind == "Secret";
            is_kind
                && (group == "*" || resource.group == group)
                && resource.group != HOST_GROUP
                && (!is_secret || reads_secrets || kind == "Secret")
        };
        self.request.catalog.iter().filter(covers).cloned().collect()
    }

    fn find_resource(&mut self, group: &str, kind: &str) -> ApiResource {
        match self.request.catalog.find(group, kind) {
            Some(resource) => resource.clone(),
            None => {
                let dot = if group.is_empty() { "" } else { "." };
                self.rights.unserved.insert(format!("{kind}{dot}{group}"));
                ApiResource::guess(group, kind)
            }
        }
    }

    /// The place of a rule for the namespaces of a grant, where `Same` stands for these namespaces, or all. A cluster-scoped
    /// kind is granted by `*` only.
    fn place(&self, namespaces: &[String], is_namespaced: bool, same: Option<&BTreeSet<String>>) -> Place {
        let installed = self.request.namespaces;
        if !is_namespaced {
            let is_granted = namespaces.iter().any(|n| n == "*");
            return if is_granted {
                Place::Cluster
            } else {
                Place::Namespaces(BTreeSet::new())
            };
        }
        let mut names = BTreeSet::new();
        for namespace in namespaces {
            match (namespace.strip_suffix('*'), same) {
                (Some(_), _) if installed.is_empty() => return Place::Cluster,
                (Some(prefix), _) => {
                    names.extend(installed.iter().filter(|n| n.starts_with(prefix)).cloned());
                }
                (None, None) if namespace == SAME_NAMESPACE => return Place::Cluster,
                (None, Some(same)) if namespace == SAME_NAMESPACE => names.extend(same.iter().cloned()),
                (None, _) => drop(names.insert(namespace.clone())),
            }
        }
        Place::Namespaces(names)
    }

    fn add_account_rule(&mut self, namespaces: &[String], resource: &ApiResource, name: &str, verbs: Verbs) {
        let place = self.place(namespaces, resource.namespaced, self.own_namespaces.as_ref());
        self.rights.account.add(place, &resource.group, name, verbs);
    }

    /// Adds a rule of the host. In an installation for all namespaces the host answers reads of other kinds than Secrets by one
    /// watch of all, so that a Role would not do.
    fn add_host_rule(&mut self, namespaces: &[String], resource: &ApiResource, name: &str, verbs: Verbs) {
        let is_secret = resource.group.is_empty() && resource.kind == "Secret";
        let same = self.own_namespaces.as_ref();
        let same = same.filter(|_| is_secret || !self.request.namespaces.is_empty());
        let place = self.place(namespaces, resource.namespaced, same);
        self.rights.host.add(place, &resource.group, name, verbs);
    }
}

impl ScopedRules {
    fn add(&mut self, place: Place, group: &str, resource: &str, verbs: Verbs) {
        match place {
            Place::Cluster => self.cluster.add(group, resource, verbs),
            Place::Namespaces(names) => {
                for name in names {
                    self.namespaces
                        .entry(name)
                        .or_default()
                        .add(group, resource, verbs);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
