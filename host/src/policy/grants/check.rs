//! The check of an access: the manifest asks for it, and a grant allows it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Access, Grant, GrantVerb, KubernetesGrant, Permissions, ReconcileSettings, ServiceAccount, Subscription,
    access::EntrySuggestion, entry::OwnPlace, kubernetes::matches_cluster, patterns::matches_any,
};
use crate::{
    contract::limits::PluginLimits,
    kube::key::{Gvk, IN_CLUSTER},
};

/// The error of a denied access: names the missing field, in the manifest or in the grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugin {plugin} may not {action}: {}", self.describe_missing())]
pub struct Denied {
    plugin: Arc<str>,
    action: String,
    /// The entry that would allow it; none if none would.
    suggestion: Option<EntrySuggestion>,
    is_asked: bool,
    /// Prefix of the field in the grant; `None` if it is granted.
    grant_prefix: Option<Arc<str>>,
}

impl Denied {
    fn describe_missing(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| {
            let Some(suggestion) = &self.suggestion else {
                return f.write_str("no grant allows it, since a Plugin holds the grants themselves");
            };
            if !self.is_asked {
                let entry = suggestion.display_in("permissions.");
                write!(f, "its manifest does not ask for it: add {entry} to plugin.yaml")?;
            }
            if !self.is_asked && self.grant_prefix.is_some() {
                f.write_str("; nor is it granted: ")?;
            }
            match &self.grant_prefix {
                Some(place) => write!(f, "grant it with {}", suggestion.display_in(place)),
                None => Ok(()),
            }
        })
    }
}

/// The permissions of one plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginGrants {
    plugin: Arc<str>,
    /// Prefix of the grant's fields in errors.
    field_prefix: Arc<str>,
    /// The permissions asked for; `None` means all that are granted.
    asks: Option<Permissions>,
    grant: Grant,
    /// The home cluster, as keys name it: empty for the host's own.
    home: Arc<str>,
    used: Arc<UsedEntries>,
}

/// The entries asked for that have been used. Marking reads first, so that the usual check writes no shared memory; two
/// policies are equal regardless of it.
#[derive(Debug, Default)]
struct UsedEntries(Box<[AtomicU64]>);

impl UsedEntries {
    fn for_permissions(permissions: &Permissions) -> Arc<Self> {
        let words = permissions.entries().count().div_ceil(64);
        Arc::new(Self((0..words).map(|_| AtomicU64::default()).collect()))
    }

    fn mark_used(&self, entry: usize) {
        let bit = 1 << (entry % 64);
        if let Some(word) = self.0.get(entry / 64)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

impl PartialEq for UsedEntries {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for UsedEntries {}

impl PluginGrants {
    /// The permissions of a plugin that asks for `asks` and is granted `grant`; without `asks`, it asks for all that it
    /// is granted. `place` is the prefix of the grant's fields in errors (`spec.grants.`).
    pub fn new(plugin: &str, place: &str, asks: Option<Permissions>, grant: Grant) -> Self {
        Self {
            plugin: plugin.into(),
            field_prefix: place.into(),
            used: UsedEntries::for_permissions(asks.as_ref().unwrap_or(&grant.permissions)),
            asks,
            home: grant.home_cluster(),
            grant,
        }
    }

    /// The home cluster: its objects are reconciled. Empty for the host's own.
    pub fn home_cluster(&self) -> &Arc<str> {
        &self.home
    }

    /// The namespace of the `Cluster` of another home cluster. The objects there use Upstreams, Clusters and Secrets of the
    /// host's own cluster as objects of this namespace would.
    pub fn home_namespace(&self) -> Option<&str> {
        self.home.split_once('/').map(|(namespace, _)| namespace)
    }

    /// Sets the permissions that the manifest asks for.
    pub fn with_asks(self, asks: Option<Permissions>) -> Self {
        let used = UsedEntries::for_permissions(asks.as_ref().unwrap_or(self.granted()));
        Self { asks, used, ..self }
    }

    /// The indexes of used entries among the [`Permissions::entries`] asked for (without them: granted).
    pub fn used_entries(&self) -> Vec<usize> {
        let marked = |i: &usize| {
            let word = self.used.0.get(i / 64);
            word.is_some_and(|w| w.load(Ordering::Relaxed) & (1 << (i % 64)) != 0)
        };
        (0..self.used.0.len() * 64).filter(marked).collect()
    }

    /// The pace of its reconciles, as far as it is granted.
    pub fn reconcile(&self) -> ReconcileSettings {
        self.grant.reconcile
    }

    /// The queues whose messages it handles.
    pub fn subscriptions(&self) -> &[Subscription] {
        &self.grant.subscriptions
    }

    /// Its identity at the API server; `None` for the host's own.
    pub fn service_account(&self) -> Option<&ServiceAccount> {
        self.grant.service_account.as_ref()
    }

    /// The plugin may use at least one other cluster.
    pub fn has_clusters(&self) -> bool {
        let is_other = |cluster: &String| cluster != IN_CLUSTER;
        let mut entries = self.granted().kubernetes.iter();
        !self.home.is_empty() || entries.any(|g| g.clusters.iter().any(is_other))
    }

    /// Its limits, on a host with these limits.
    pub fn effective_limits(&self, host: &PluginLimits) -> PluginLimits {
        self.grant.limits.with_defaults(host)
    }

    /// The permissions its manifest asks for; `None` without a manifest.
    pub fn asks(&self) -> Option<&Permissions> {
        self.asks.as_ref()
    }

    /// The permissions granted, asked for or not.
    pub fn granted(&self) -> &Permissions {
        &self.grant.permissions
    }

    /// The plugin itself may read some Secret.
    pub fn can_read_secrets(&self) -> bool {
        self.secret_namespaces().next().is_some()
    }

    /// The responses to its calls have the values of Secrets.
    pub fn shows_secret_values(&self) -> bool {
        self.granted().read_secrets && self.asks.as_ref().is_none_or(|asks| asks.read_secrets)
    }

    /// The granted namespaces whose Secrets it may read.
    pub fn secret_namespaces(&self) -> impl Iterator<Item = &str> {
        let asked = self
            .asks
            .as_ref()
            .is_none_or(|asks| asks.readable_secret_grants().next().is_some());
        let granted = self.granted().readable_secret_grants().filter(move |_| asked);
        granted.flat_map(|grant| grant.namespaces.iter().map(String::as_str))
    }

    /// Groups and kinds it may hold. Patterns are left out. An object of another cluster holds nothing.
    pub fn holdable_kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        let can_hold = self.home.is_empty();
        self.named_kinds(&[GrantVerb::Hold]).filter(move |_| can_hold)
    }

    /// Groups and kinds it may write on the host's own cluster. Patterns are left out.
    pub fn writable_kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named_kinds(&[GrantVerb::Apply, GrantVerb::Create])
    }

    fn named_kinds<'a>(&'a self, verbs: &'a [GrantVerb]) -> impl Iterator<Item = (&'a str, &'a str)> {
        let of_own = move |g: &&KubernetesGrant| matches_cluster(&g.clusters, "", self.own_place(""));
        let granting = self.granted().kubernetes.iter().filter(of_own);
        let granting = granting.filter(|g| g.verbs.iter().any(|v| verbs.contains(v)));
        let kinds = granting.flat_map(|g| g.kinds.iter().map(|kind| (&*g.group, &**kind)));
        kinds.filter(|(group, kind)| !group.contains('*') && !kind.contains('*'))
    }

    /// Returns true if both sides have an entry for the kind, in whichever namespaces.
    pub fn reconciles_kind(&self, gvk: &Gvk) -> bool {
        let covers = |permissions: &Permissions| permissions.reconciles.iter().any(|g| g.covers(gvk));
        covers(self.granted()) && self.asks.as_ref().is_none_or(covers)
    }

    /// The namespaces whose objects of a kind it reconciles: both sides list them; none for all.
    pub fn reconciled_namespaces(&self, gvk: &Gvk) -> Option<Vec<Arc<str>>> {
        let granted = self.granted().reconciled_namespaces(gvk);
        let asked = self
            .asks
            .as_ref()
            .and_then(|asks| asks.reconciled_namespaces(gvk));
        match (asked, granted) {
            (Some(asked), Some(granted)) => Some(asked.into_iter().filter(|n| granted.contains(n)).collect()),
            (one, other) => one.or(other),
        }
    }

    /// Returns whether an access is allowed, as [`Self::check_access`] decides it. It does not count as a use.
    pub fn allows(&self, access: &Access<'_>, own: &str) -> bool {
        matches!(self.find_entries(access, self.own_place(own)), (Some(_), true))
    }

    /// The entry that asks for an access (without a manifest: that grants it), and whether it is granted.
    fn find_entries(&self, access: &Access<'_>, own: OwnPlace<'_>) -> (Option<usize>, bool) {
        let granting = || self.granted().find_entry(access, own);
        match &self.asks {
            Some(asks) => (asks.find_entry(access, own), granting().is_some()),
            None => {
                let entry = granting();
                (entry, entry.is_some())
            }
        }
    }

    fn own_place<'a>(&'a self, namespace: &'a str) -> OwnPlace<'a> {
        OwnPlace {
            namespace,
            cluster: &self.home,
        }
    }

    /// Checks an access in a call for an object in `own` namespace, which is empty for a cluster-scoped object or without
    /// one. The error names the missing permission.
    pub fn check_access(&self, access: &Access<'_>, own: &str) -> Result<(), Denied> {
        let own = self.own_place(own);
        let (entry, granted) = self.find_entries(access, own);
        if let (Some(entry), true) = (entry, granted) {
            self.used.mark_used(entry);
            return Ok(());
        }
        let asked = self.asks.is_none() || entry.is_some();
        // A grant of what the manifest asks for is written from it: the author changes the manifest.
        let follows_manifest = !asked && self.asks.as_ref() == Some(self.granted());
        Err(Denied {
            plugin: self.plugin.clone(),
            action: access.describe(own),
            suggestion: access.suggest_entry(own),
            is_asked: asked,
            grant_prefix: (!granted && !follows_manifest).then(|| self.field_prefix.clone()),
        })
    }
}

/// The response to this verb contains the object.
fn returns_object(verb: &GrantVerb) -> bool {
    matches!(
        verb,
        GrantVerb::Get | GrantVerb::List | GrantVerb::Apply | GrantVerb::Create
    )
}

impl Permissions {
    /// The entries that let the plugin read Secrets.
    fn readable_secret_grants(&self) -> impl Iterator<Item = &KubernetesGrant> {
        let shown = |g: &&KubernetesGrant| {
            matches!(&*g.group, "" | "*")
                && matches_any(&g.kinds, "Secret")
                && g.verbs.iter().any(returns_object)
        };
        let readable = self.read_secrets;
        self.kubernetes.iter().filter(move |g| readable && shown(g))
    }

    /// The index among [`Self::entries`] of the one that allows an access.
    fn find_entry(&self, access: &Access<'_>, own: OwnPlace<'_>) -> Option<usize> {
        self.entries().position(|entry| entry.allows(access, own, self))
    }

    /// The namespaces whose objects of a kind are reconciled; none for all, and for a kind that no entry covers: its objects
    /// are denied, not ignored.
    fn reconciled_namespaces(&self, gvk: &Gvk) -> Option<Vec<Arc<str>>> {
        let covering = self.reconciles.iter().filter(|g| g.covers(gvk));
        let names: Vec<&String> = covering.flat_map(|g| &g.namespaces).collect();
        let is_narrow = !names.is_empty() && !names.iter().any(|n| *n == "*");
        is_narrow.then(|| names.into_iter().map(|n| n.as_str().into()).collect())
    }
}

#[cfg(test)]
mod tests;
