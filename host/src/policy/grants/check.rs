//! The check of an access: the manifest asks for it, and a grant allows it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Access, Grant, KubernetesGrant, MessageGrant, Permissions, ReconcileGrant, ReconcileSettings,
    SAME_NAMESPACE, SecretDestination, SecretGrant, ServiceAccount, Subscription, UpstreamGrant, Verb,
    topic::matches_topic,
};
use crate::{
    contract::limits::Limits,
    kube::key::{Gvk, IN_CLUSTER},
};

/// The error of a denied access: names the missing field, in the manifest or in the grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugin {plugin} may not {action}: {}", self.describe_missing())]
pub struct Denied {
    plugin: Arc<str>,
    action: String,
    /// The field that would allow it, without its prefix; empty if none would.
    field: String,
    is_asked: bool,
    /// Prefix of the field in the grant; `None` if it is granted.
    grant_prefix: Option<Arc<str>>,
}

impl Denied {
    fn describe_missing(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| {
            let term = &self.field;
            if term.is_empty() {
                return f.write_str("no grant allows it, since a Plugin holds the grants themselves");
            }
            if !self.is_asked {
                write!(
                    f,
                    "its manifest does not ask for it, which would be `permissions.{term}"
                )?;
            }
            if !self.is_asked && self.grant_prefix.is_some() {
                f.write_str("; nor is it granted: ")?;
            }
            match &self.grant_prefix {
                Some(place) => write!(f, "grant it with `{place}{term}"),
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

/// The place of the reconciled object, which entries are relative to.
#[derive(Clone, Copy)]
struct OwnPlace<'a> {
    /// Its namespace; empty for a cluster-scoped object.
    namespace: &'a str,
    /// Its cluster; empty for the host's own.
    cluster: &'a str,
}

impl<'a> OwnPlace<'a> {
    /// The namespace that `Same` stands for on a cluster. On the host's own, objects of another one count as objects in the
    /// namespace of their `Cluster`: who may create a namespace there must not reach that of its name here.
    fn namespace_on(&self, cluster: &str) -> &'a str {
        match self.cluster.split_once('/') {
            Some((namespace, _)) if cluster.is_empty() => namespace,
            _ => self.namespace,
        }
    }
}

/// The entries asked for that have been used. Marking reads first, so that the usual check writes no shared memory; two
/// policies are equal regardless of it.
#[derive(Debug, Default)]
struct UsedEntries(Box<[AtomicU64]>);

impl UsedEntries {
    fn for_permissions(permissions: &Permissions) -> Arc<Self> {
        let words = permissions.entry_count().div_ceil(64);
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

    /// The indexes of used entries of the permissions asked for (without them: granted): reconciles, kubernetes, upstreams,
    /// messages and secrets in their order, then events.
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
    pub fn effective_limits(&self, host: &Limits) -> Limits {
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
        self.named_kinds(&[Verb::Hold]).filter(move |_| can_hold)
    }

    /// Groups and kinds it may write on the host's own cluster. Patterns are left out.
    pub fn writable_kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named_kinds(&[Verb::Apply, Verb::Create])
    }

    fn named_kinds<'a>(&'a self, verbs: &'a [Verb]) -> impl Iterator<Item = (&'a str, &'a str)> {
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
        let (action, field) = access.describe_access(own);
        Err(Denied {
            plugin: self.plugin.clone(),
            action,
            field,
            is_asked: asked,
            grant_prefix: (!granted).then(|| self.field_prefix.clone()),
        })
    }
}

/// The response to this verb contains the object.
fn returns_object(verb: &Verb) -> bool {
    matches!(verb, Verb::Get | Verb::List | Verb::Apply | Verb::Create)
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

    /// The number of entries: each item of a list, and `events`. `read_secrets` is none, since it only extends the entries
    /// of `kubernetes`.
    fn entry_count(&self) -> usize {
        // Destructured, so that the compiler asks for the entries of a new field.
        let Self {
            reconciles,
            kubernetes,
            upstreams,
            messages,
            secrets,
            events: _,
            read_secrets: _,
        } = self;
        reconciles.len() + kubernetes.len() + upstreams.len() + messages.len() + secrets.len() + 1
    }

    /// The index of the entry that allows an access, in the order of [`PluginGrants::used_entries`].
    fn find_entry(&self, access: &Access<'_>, own: OwnPlace<'_>) -> Option<usize> {
        // Upstreams, and Secrets that are named, are on the host's own cluster.
        let here = own.namespace_on("");
        let after_reconciles = self.reconciles.len();
        let after_kubernetes = after_reconciles + self.kubernetes.len();
        let after_upstreams = after_kubernetes + self.upstreams.len();
        let after_messages = after_upstreams + self.messages.len();
        match *access {
            Access::Reconcile { gvk } => self.reconciles.iter().position(|g| g.covers(gvk)),
            Access::Kubernetes {
                verb,
                gvk,
                namespace,
                cluster,
            } => {
                let covers = |g: &KubernetesGrant| {
                    matches_kind(&g.group, &g.kinds, gvk)
                        && g.covers_place(verb, namespace, cluster, own)
                        && (self.read_secrets || !gvk.is_secret() || g.names_secrets())
                };
                let possible = !access.is_plugin_write() && (self.read_secrets || !access.is_secret_access());
                let found = self.kubernetes.iter().position(covers).filter(|_| possible);
                found.map(|i| i + after_reconciles)
            }
            Access::Subresource {
                verb,
                gvk,
                subresource,
                namespace,
                cluster,
            } => {
                let covers = |g: &KubernetesGrant| {
                    matches_subresource(&g.group, &g.kinds, gvk, subresource)
                        && g.covers_place(verb, namespace, cluster, own)
                };
                let found = self.kubernetes.iter().position(covers);
                found.map(|i| i + after_reconciles)
            }
            Access::Upstream {
                namespace,
                name,
                method,
                path,
            } => {
                let path = path.split('?').next().unwrap_or_default();
                let covers = |g: &UpstreamGrant| {
                    matches_any(&g.names, name)
                        && matches_namespace(&g.namespaces, namespace, here)
                        && matches_any(&g.methods, method)
                        && matches_any(&g.paths, path)
                };
                let found = self.upstreams.iter().position(covers);
                found.map(|i| i + after_kubernetes)
            }
            Access::Publish {
                namespace,
                name,
                exchange,
                routing_key,
            } => {
                let covers = |g: &MessageGrant| {
                    matches_any(&g.names, name)
                        && matches_namespace(&g.namespaces, namespace, here)
                        && matches_exchange(&g.exchanges, exchange)
                        && g.routing_keys.iter().any(|p| matches_topic(p, routing_key))
                };
                let found = self.messages.iter().position(covers);
                found.map(|i| i + after_upstreams)
            }
            Access::Secret {
                namespace,
                name,
                destination,
            } => {
                let covers = |g: &SecretGrant| {
                    matches_any(&g.names, name)
                        && matches_namespace(&g.namespaces, namespace, here)
                        && destination.is_none_or(|destination| g.covers_destination(destination, here))
                };
                let found = self.secrets.iter().position(covers);
                found.map(|i| i + after_messages)
            }
            Access::SecretMetadata { namespace, cluster } => {
                let covers = |g: &KubernetesGrant| {
                    matches!(&*g.group, "" | "*")
                        && (g.names_secrets() || self.read_secrets && matches_any(&g.kinds, "Secret"))
                        && g.covers_place(Verb::Get, namespace, cluster, own)
                };
                let found = self.kubernetes.iter().position(covers);
                found.map(|i| i + after_reconciles)
            }
            Access::Events => self.events.then(|| self.entry_count() - 1),
        }
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

impl ReconcileGrant {
    /// The entry names the kind, or has a pattern for it.
    pub fn covers(&self, gvk: &Gvk) -> bool {
        matches_kind(&self.group, &self.kinds, gvk)
    }
}

impl SecretGrant {
    fn covers_destination(&self, destination: SecretDestination<'_>, own: &str) -> bool {
        match destination {
            SecretDestination::Origin(origin) => match &self.origins {
                Some(origins) => origins.iter().any(|pattern| pattern.matches(origin)),
                None => self.allows_any_origin(),
            },
            SecretDestination::Object { namespace } => {
                matches_namespace(&self.target_namespaces, namespace, own)
            }
        }
    }
}

impl KubernetesGrant {
    /// Allows a verb in a namespace of a cluster, whatever the kind.
    fn covers_place(&self, verb: Verb, namespace: &str, cluster: &str, own: OwnPlace<'_>) -> bool {
        self.verbs.contains(&verb)
            && matches_cluster(&self.clusters, cluster, own)
            && matches_namespace(&self.namespaces, namespace, own.namespace_on(cluster))
    }

    /// Names Secrets, and not by a pattern, which is not meant to cover them.
    fn names_secrets(&self) -> bool {
        self.kinds.iter().any(|kind| kind == "Secret")
    }
}

impl Access<'_> {
    /// An access that shows values of Secrets. The response to a deletion has none, and those to `apply` and `create` have
    /// none without `readSecrets`.
    fn is_secret_access(&self) -> bool {
        let shows_values = |verb| !matches!(verb, Verb::Apply | Verb::Create | Verb::Delete);
        matches!(self, Self::Kubernetes { gvk, verb, .. } if gvk.is_secret() && shows_values(*verb))
    }

    /// Whoever may write a Plugin may give itself any grant.
    fn is_plugin_write(&self) -> bool {
        matches!(self, Self::Kubernetes { verb, gvk, .. }
            if *gvk.group == *HOST_GROUP && *gvk.kind == *"Plugin" && !matches!(verb, Verb::Get | Verb::List))
    }

    /// Text of the access, and the field that would allow it. The field ends with a backtick, because text may follow it;
    /// [`Denied`] writes the opening one.
    fn describe_access(&self, own: OwnPlace<'_>) -> (String, String) {
        let shown_on = |cluster: &str, namespace: &str| match namespace {
            "" => "\"*\"".to_owned(),
            namespace if namespace == own.namespace_on(cluster) => SAME_NAMESPACE.into(),
            namespace => format!("{namespace:?}"),
        };
        let shown = |namespace: &str| shown_on("", namespace);
        match *self {
            Self::Reconcile { gvk } => (
                format!("reconcile {}", gvk.kind),
                format!(
                    "reconciles: [{{group: \"{}\", kinds: [{}]}}]`",
                    gvk.group, gvk.kind
                ),
            ),
            Self::Kubernetes {
                verb,
                gvk,
                namespace,
                cluster,
            } if self.is_plugin_write() => (
                format!(
                    "{verb} {}{}{}",
                    gvk.kind,
                    namespace_suffix(namespace),
                    cluster_suffix(cluster, own)
                ),
                String::new(),
            ),
            Self::Kubernetes {
                verb,
                gvk,
                namespace,
                cluster,
            } => {
                let readable = if self.is_secret_access() {
                    " and `readSecrets: true`"
                } else {
                    ""
                };
                (
                    format!(
                        "{verb} {}{}{}",
                        gvk.kind,
                        namespace_suffix(namespace),
                        cluster_suffix(cluster, own)
                    ),
                    format!(
                        "kubernetes: [{{group: \"{}\", kinds: [{}], verbs: [{verb}], namespaces: [{}]{}}}]`{readable}",
                        gvk.group,
                        gvk.kind,
                        shown_on(cluster, namespace),
                        clusters_field(cluster, own)
                    ),
                )
            }
            Self::Subresource {
                verb,
                gvk,
                subresource,
                namespace,
                cluster,
            } => (
                format!(
                    "{verb} {}/{subresource}{}{}",
                    gvk.kind,
                    namespace_suffix(namespace),
                    cluster_suffix(cluster, own)
                ),
                format!(
                    "kubernetes: [{{group: \"{}\", kinds: [{}/{subresource}], verbs: [{verb}], namespaces: [{}]{}}}]`",
                    gvk.group,
                    gvk.kind,
                    shown_on(cluster, namespace),
                    clusters_field(cluster, own)
                ),
            ),
            Self::Upstream {
                namespace,
                name,
                method,
                path,
            } => (
                format!(
                    "{method} {} at upstream {name}{}",
                    path.split('?').next().unwrap_or_default(),
                    namespace_suffix(namespace)
                ),
                format!(
                    "upstreams: [{{names: [{name}], namespaces: [{}], methods: [{method}]}}]`",
                    shown(namespace)
                ),
            ),
            Self::Publish {
                namespace,
                name,
                exchange,
                routing_key,
            } => {
                let exchange_name = match exchange {
                    "" => "the default exchange".to_owned(),
                    exchange => format!("exchange {exchange}"),
                };
                (
                    format!(
                        "publish to {exchange_name} with routing key {routing_key:?} at upstream {name}{}",
                        namespace_suffix(namespace)
                    ),
                    format!(
                        "messages: [{{names: [{name}], namespaces: [{}], exchanges: [{exchange:?}], routingKeys: \
                         [{routing_key:?}]}}]`",
                        shown(namespace)
                    ),
                )
            }
            Self::Secret {
                namespace,
                name,
                destination,
            } => {
                let (target, field) = match destination {
                    None => (String::new(), "origins: […]".to_owned()),
                    Some(SecretDestination::Origin(origin)) => (
                        format!(" for {origin}"),
                        format!("origins: [{:?}]", origin.to_string()),
                    ),
                    Some(SecretDestination::Object { namespace: target }) => (
                        format!(" for Secrets{}", namespace_suffix(target)),
                        format!("targetNamespaces: [{}]", shown(target)),
                    ),
                };
                (
                    format!("name Secret {name}{}{target}", namespace_suffix(namespace)),
                    format!(
                        "secrets: [{{names: [{name}], namespaces: [{}], {field}}}]`",
                        shown(namespace)
                    ),
                )
            }
            Self::SecretMetadata { namespace, cluster } => (
                format!(
                    "get the metadata of Secret{}{}",
                    namespace_suffix(namespace),
                    cluster_suffix(cluster, own)
                ),
                format!(
                    "kubernetes: [{{group: \"\", kinds: [Secret], verbs: [get], namespaces: [{}]{}}}]`",
                    shown_on(cluster, namespace),
                    clusters_field(cluster, own)
                ),
            ),
            Self::Events => ("emit events".into(), "events: true`".into()),
        }
    }
}

fn namespace_suffix(namespace: &str) -> String {
    if namespace.is_empty() {
        String::new()
    } else {
        format!(" in namespace {namespace}")
    }
}

fn cluster_suffix(cluster: &str, own: OwnPlace<'_>) -> String {
    match cluster {
        "" if own.cluster.is_empty() => String::new(),
        "" => " on the host's own cluster".to_owned(),
        cluster => format!(" on cluster {cluster}"),
    }
}

fn clusters_field(cluster: &str, own: OwnPlace<'_>) -> String {
    match cluster {
        cluster if cluster == own.cluster => String::new(),
        "" => format!(", clusters: [{IN_CLUSTER}]"),
        cluster => format!(", clusters: [{cluster}]"),
    }
}

/// The group of the host's own kinds.
pub const HOST_GROUP: &str = "ostler.dev";

/// A group and kinds match a kind. Those of the host, with which powers are given, are matched by their names only.
fn matches_kind(group: &str, kinds: &[String], gvk: &Gvk) -> bool {
    if *gvk.group == *HOST_GROUP {
        return group == HOST_GROUP && kinds.iter().any(|k| *k == *gvk.kind);
    }
    (group == &*gvk.group || group == "*") && matches_any(kinds, &gvk.kind)
}

/// An entry names a subresource of a kind, as `Kind/subresource`. No pattern does.
fn matches_subresource(group: &str, kinds: &[String], gvk: &Gvk, subresource: &str) -> bool {
    let is_group = *group == *gvk.group || group == "*" && *gvk.group != *HOST_GROUP;
    let is_named = |kind: &String| kind.split_once('/') == Some((&*gvk.kind, subresource));
    is_group && kinds.iter().any(is_named)
}

/// Some pattern matches a namespace. `own` is the namespace of the reconciled object.
fn matches_namespace(patterns: &[String], namespace: &str, own: &str) -> bool {
    let is_same = !namespace.is_empty() && namespace == own;
    matches_any(patterns, namespace) || is_same && patterns.iter().any(|p| p == SAME_NAMESPACE)
}

/// The clusters of an entry include this one. Without any it is the home cluster. No pattern matches the host's own.
fn matches_cluster(patterns: &[String], cluster: &str, own: OwnPlace<'_>) -> bool {
    if patterns.is_empty() {
        return cluster == own.cluster;
    }
    let Some((namespace, name)) = cluster.split_once('/') else {
        return patterns.iter().any(|pattern| pattern == IN_CLUSTER);
    };
    let pairs = patterns.iter().filter_map(|pattern| pattern.split_once('/'));
    let mut pairs = pairs.map(|(namespace, name)| ([namespace.to_owned()], [name.to_owned()]));
    pairs.any(|(namespaces, names)| {
        // A `Cluster` is an object of the host's own cluster.
        matches_namespace(&namespaces, namespace, own.namespace_on("")) && matches_any(&names, name)
    })
}

/// Some pattern matches an exchange. No pattern with `*` matches the default exchange, through which a message reaches
/// any queue.
fn matches_exchange(patterns: &[String], exchange: &str) -> bool {
    match exchange {
        "" => patterns.iter().any(String::is_empty),
        exchange => matches_any(patterns, exchange),
    }
}

/// Some pattern matches a word: the word itself, `*`, or a prefix followed by `*`.
fn matches_any(patterns: &[String], word: &str) -> bool {
    patterns
        .iter()
        .any(|p| p == word || p.strip_suffix('*').is_some_and(|start| word.starts_with(start)))
}

#[cfg(test)]
mod tests;
