//! Entries of `kubernetes`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Access, GrantVerb, HOST_GROUP, Permissions,
    entry::{OwnPlace, PermissionEntry},
    patterns::{
        format_namespaces, matches_any, matches_namespace, require_items, require_values, same_namespace,
    },
};
use crate::kube::key::{Gvk, IN_CLUSTER};

/// Operations on the objects of some kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesGrant {
    /// API group of the kinds. Empty is the core group, `*` matches any group except `ostler.dev`.
    #[serde(default)]
    pub group: String,
    /// Kinds. `*` matches any kind, `Foo*` a prefix; kinds of `ostler.dev` are matched only by their names, and no entry
    /// allows to write Plugins. `Pod/resize` is a subresource, which no pattern matches; its verb is `patch`, that of
    /// `Pod/log` is `get`.
    pub kinds: Vec<String>,
    /// Allowed operations.
    pub verbs: Vec<GrantVerb>,
    /// Namespaces of the objects. `Same` matches the namespace of the reconciled object, `*` any namespace and
    /// cluster-scoped objects, `foo*` a prefix. Defaults to `Same`.
    #[serde(default = "same_namespace")]
    pub namespaces: Vec<String>,
    /// Clusters of the objects, by namespace and name of their `Cluster` objects, such as `Same/east` or `fleet/*`. `Same`
    /// and patterns are as in `namespaces`. `in-cluster` is the host's own cluster, which no pattern matches. When unset, the
    /// entry is about the home cluster of the plugin, which is the host's own by default, and otherwise only about these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
}

impl KubernetesGrant {
    /// Allows a verb in a namespace of a cluster, whatever the kind.
    fn covers_place(&self, verb: GrantVerb, namespace: &str, cluster: &str, own: OwnPlace<'_>) -> bool {
        self.verbs.contains(&verb)
            && matches_cluster(&self.clusters, cluster, own)
            && matches_namespace(&self.namespaces, namespace, own.namespace_on(cluster))
    }

    /// Names Secrets, and not by a pattern, which is not meant to cover them.
    fn names_secrets(&self) -> bool {
        self.kinds.iter().any(|kind| kind == "Secret")
    }

    /// Checks that a subresource has the one verb that it can have.
    fn check_subresource(&self) -> Result<(), String> {
        let subresource = self.kinds.iter().find(|kind| kind.contains('/'));
        let is_wrong = |kind: &&String| find_subresource_verb(kind).is_none_or(|verb| self.verbs != [verb]);
        match subresource.filter(is_wrong) {
            Some(kind) => Err(format!(
                "kinds has {kind:?}: a kind and its subresource are needed, such as `Pod/resize`, with `patch` as the only \
                 verb, or `Pod/log` with `get`; `status` is refused"
            )),
            None => Ok(()),
        }
    }

    /// Checks that each cluster is a namespace and a name.
    fn check_clusters(&self) -> Result<(), String> {
        let is_pair = |c: &&String| {
            let (namespace, name) = c.split_once('/').unwrap_or_default();
            !namespace.is_empty() && !name.is_empty() && !name.contains('/')
        };
        let is_wrong = |c: &&String| *c != IN_CLUSTER && !is_pair(c);
        match self.clusters.iter().find(is_wrong) {
            Some(cluster) => Err(format!(
                "clusters has {cluster:?}: namespace and name of a Cluster are needed, such as `Same/east`, or \
                 `{IN_CLUSTER}` for the host's own"
            )),
            None => Ok(()),
        }
    }

    /// A granted entry covers the kind Secret only by its name, or with `readSecrets`.
    fn covers_secrets(&self, kind: &str, read_secrets: bool) -> bool {
        kind != "Secret" || read_secrets || self.names_secrets()
    }
}

impl fmt::Display for KubernetesGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs: Vec<String> = self.verbs.iter().map(ToString::to_string).collect();
        let kinds = format_kinds(&self.group, &self.kinds);
        write!(
            f,
            "{} {kinds}{}",
            verbs.join(","),
            format_namespaces(&self.namespaces)
        )?;
        match &*self.clusters {
            [] => Ok(()),
            clusters => write!(f, " on clusters {}", clusters.join(",")),
        }
    }
}

impl PermissionEntry for KubernetesGrant {
    fn field(&self) -> &'static str {
        "kubernetes"
    }

    fn check_fields(&self) -> Result<(), String> {
        require_values(&[("kinds", &self.kinds)])?;
        require_items("verbs", &self.verbs)?;
        require_values(&[("namespaces", &self.namespaces)])?;
        self.check_subresource()?;
        self.check_clusters()
    }

    fn allows(&self, access: &Access<'_>, own: OwnPlace<'_>, permissions: &Permissions) -> bool {
        let reads_secrets = permissions.read_secrets;
        match *access {
            Access::Kubernetes {
                verb,
                gvk,
                namespace,
                cluster,
            } => {
                let is_possible = !access.is_plugin_write() && (reads_secrets || !access.is_secret_access());
                is_possible
                    && matches_kind(&self.group, &self.kinds, gvk)
                    && self.covers_place(verb, namespace, cluster, own)
                    && (reads_secrets || !gvk.is_secret() || self.names_secrets())
            }
            Access::Subresource {
                verb,
                gvk,
                subresource,
                namespace,
                cluster,
            } => {
                matches_subresource(&self.group, &self.kinds, gvk, subresource)
                    && self.covers_place(verb, namespace, cluster, own)
            }
            Access::SecretMetadata { namespace, cluster } => {
                matches!(&*self.group, "" | "*")
                    && (self.names_secrets() || reads_secrets && matches_any(&self.kinds, "Secret"))
                    && self.covers_place(GrantVerb::Get, namespace, cluster, own)
            }
            _ => false,
        }
    }

    fn find_missing(&self, granted: &Permissions) -> Option<String> {
        let covered = |kind: &String, verb: &GrantVerb, namespace: &String| {
            granted.kubernetes.iter().any(|g| {
                covers_kind((&g.group, &g.kinds), (&self.group, kind))
                    && g.covers_secrets(kind, granted.read_secrets)
                    && covers_clusters(&g.clusters, &self.clusters)
                    && g.verbs.contains(verb)
                    && matches_any(&g.namespaces, namespace)
            })
        };
        let is_missing = |verb: &&GrantVerb| {
            let mut kinds = self.kinds.iter();
            kinds.any(|kind| self.namespaces.iter().any(|n| !covered(kind, verb, n)))
        };
        let verbs: Vec<_> = self.verbs.iter().filter(is_missing).copied().collect();
        (!verbs.is_empty()).then(|| {
            Self {
                verbs,
                ..self.clone()
            }
            .to_string()
        })
    }
}

/// The verb that an entry of `kinds` may have which is a kind and the name of a subresource; none for the status, which belongs
/// to the controller of the object, and for another text.
fn find_subresource_verb(kind: &str) -> Option<GrantVerb> {
    let (kind, subresource) = kind.split_once('/')?;
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match subresource {
        _ if !is_word(kind) || !is_word(subresource) => None,
        "status" => None,
        "log" => Some(GrantVerb::Get),
        _ => Some(GrantVerb::Patch),
    }
}

/// A group and kinds match a kind. Those of the host, with which powers are given, are matched by their names only.
pub(super) fn matches_kind(group: &str, kinds: &[String], gvk: &Gvk) -> bool {
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

/// The clusters of an entry include this one. Without any it is the home cluster. No pattern matches the host's own.
pub(super) fn matches_cluster(patterns: &[String], cluster: &str, own: OwnPlace<'_>) -> bool {
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

/// A kind asked for is covered. Kinds of the host, with which powers are given, are covered by their names only.
pub(super) fn covers_kind((granted_group, granted): (&str, &[String]), (group, kind): (&str, &str)) -> bool {
    if group == HOST_GROUP {
        return granted_group == HOST_GROUP && granted.iter().any(|g| g == kind);
    }
    (granted_group == "*" || granted_group == group) && matches_any(granted, kind)
}

/// Every cluster asked for is covered; an entry without clusters is about the home cluster.
fn covers_clusters(granted: &[String], asked: &[String]) -> bool {
    let covers_pair = |asked: &str, granted: &str| match (asked.split_once('/'), granted.split_once('/')) {
        (Some((namespace, name)), Some((granted_namespace, granted_name))) => {
            matches_any(&[granted_namespace.to_owned()], namespace)
                && matches_any(&[granted_name.to_owned()], name)
        }
        // The host's own cluster.
        _ => asked == granted,
    };
    asked.is_empty() == granted.is_empty() && asked.iter().all(|a| granted.iter().any(|g| covers_pair(a, g)))
}

/// The kinds of an entry with their group.
pub(super) fn format_kinds(group: &str, kinds: &[String]) -> String {
    let group = if group.is_empty() {
        String::new()
    } else {
        format!(".{group}")
    };
    let kinds: Vec<String> = kinds.iter().map(|k| format!("{k}{group}")).collect();
    kinds.join(",")
}
