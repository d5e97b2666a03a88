//! Effects that need a permission, and the entries that would allow them.

use std::fmt;

use super::{GrantVerb, HOST_GROUP, SAME_NAMESPACE, entry::OwnPlace};
use crate::{
    kube::key::{Gvk, IN_CLUSTER},
    policy::origin::Origin,
};

/// Effect that a plugin requests.
#[derive(Clone, Copy, Debug)]
pub enum Access<'a> {
    /// Reconciling the objects of a kind.
    Reconcile {
        /// The kind.
        gvk: &'a Gvk,
    },
    /// A Kubernetes call; an empty namespace is all namespaces, or none for cluster-scoped kinds.
    Kubernetes {
        /// Operation.
        verb: GrantVerb,
        /// Kind of the object or list.
        gvk: &'a Gvk,
        /// Namespace of the object or list.
        namespace: &'a str,
        /// Namespace and name of the `Cluster`; empty for the host's own cluster.
        cluster: &'a str,
    },
    /// A call about a subresource of an object.
    Subresource {
        /// Operation.
        verb: GrantVerb,
        /// Kind of the object.
        gvk: &'a Gvk,
        /// Name of the subresource.
        subresource: &'a str,
        /// Namespace of the object; empty for a cluster-scoped one.
        namespace: &'a str,
        /// Namespace and name of the `Cluster`; empty for the host's own cluster.
        cluster: &'a str,
    },
    /// An HTTP request.
    Upstream {
        /// Namespace of the Upstream.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
        /// HTTP method.
        method: &'a str,
        /// Path and query.
        path: &'a str,
    },
    /// Publishing a message.
    Publish {
        /// Namespace of the Upstream.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
        /// The exchange; empty for the default exchange.
        exchange: &'a str,
        /// The routing key.
        routing_key: &'a str,
    },
    /// Naming a Secret for the host to use; the plugin does not see it.
    Secret {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
        /// The destination that the host writes its value to; none if it is not written.
        destination: Option<SecretDestination<'a>>,
    },
    /// Reading the metadata of one object of the kind Secret.
    SecretMetadata {
        /// Namespace of the object.
        namespace: &'a str,
        /// Namespace and name of the `Cluster`; empty for the host's own cluster.
        cluster: &'a str,
    },
    /// Emitting Kubernetes Events.
    Events,
}

/// The destination of the value of a Secret.
#[derive(Clone, Copy, Debug)]
pub enum SecretDestination<'a> {
    /// A request to this origin.
    Origin(&'a Origin),
    /// An object of the kind Secret in this namespace.
    Object {
        /// Namespace of the object.
        namespace: &'a str,
    },
}

/// The entry of a manifest or a grant that would allow an access, as YAML in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntrySuggestion {
    entry: String,
    needs_read_secrets: bool,
}

impl EntrySuggestion {
    fn new(entry: String) -> Self {
        Self {
            entry,
            needs_read_secrets: false,
        }
    }

    /// The entry below a field that ends with a dot, such as `spec.grants.`.
    pub fn display_in(&self, field: &str) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            write!(f, "`{field}{}`", self.entry)?;
            match self.needs_read_secrets {
                true => f.write_str(" and `readSecrets: true`"),
                false => Ok(()),
            }
        })
    }
}

impl Access<'_> {
    /// An access that shows values of Secrets. The response to a deletion has none, and those to `apply` and `create` have
    /// none without `readSecrets`.
    pub(super) fn is_secret_access(&self) -> bool {
        let shows_values = |verb| !matches!(verb, GrantVerb::Apply | GrantVerb::Create | GrantVerb::Delete);
        matches!(self, Self::Kubernetes { gvk, verb, .. } if gvk.is_secret() && shows_values(*verb))
    }

    /// Whoever may write a Plugin may give itself any grant.
    pub(super) fn is_plugin_write(&self) -> bool {
        matches!(self, Self::Kubernetes { verb, gvk, .. }
            if *gvk.group == *HOST_GROUP && *gvk.kind == *"Plugin" && !matches!(verb, GrantVerb::Get | GrantVerb::List))
    }

    /// The access as what a plugin may not do.
    pub(super) fn describe(&self, own: OwnPlace<'_>) -> String {
        match *self {
            Self::Reconcile { gvk } => format!("reconcile {}", gvk.kind),
            Self::Kubernetes {
                verb,
                gvk,
                namespace,
                cluster,
            } => {
                format!("{verb} {}{}", gvk.kind, place_suffix(namespace, cluster, own))
            }
            Self::Subresource {
                verb,
                gvk,
                subresource,
                namespace,
                cluster,
            } => {
                format!(
                    "{verb} {}/{subresource}{}",
                    gvk.kind,
                    place_suffix(namespace, cluster, own)
                )
            }
            Self::Upstream {
                namespace,
                name,
                method,
                path,
            } => {
                let path = path.split('?').next().unwrap_or_default();
                format!(
                    "{method} {path} at upstream {name}{}",
                    namespace_suffix(namespace)
                )
            }
            Self::Publish {
                namespace,
                name,
                exchange,
                routing_key,
            } => {
                let exchange = match exchange {
                    "" => "the default exchange".to_owned(),
                    exchange => format!("exchange {exchange}"),
                };
                let upstream = format!("upstream {name}{}", namespace_suffix(namespace));
                format!("publish to {exchange} with routing key {routing_key:?} at {upstream}")
            }
            Self::Secret {
                namespace,
                name,
                destination,
            } => {
                let target = match destination {
                    None => String::new(),
                    Some(SecretDestination::Origin(origin)) => format!(" for {origin}"),
                    Some(SecretDestination::Object { namespace }) => {
                        format!(" for Secrets{}", namespace_suffix(namespace))
                    }
                };
                format!("name Secret {name}{}{target}", namespace_suffix(namespace))
            }
            Self::SecretMetadata { namespace, cluster } => {
                format!(
                    "get the metadata of Secret{}",
                    place_suffix(namespace, cluster, own)
                )
            }
            Self::Events => "emit events".into(),
        }
    }

    /// The entry that would allow it; none where no entry does.
    pub(super) fn suggest_entry(&self, own: OwnPlace<'_>) -> Option<EntrySuggestion> {
        let namespace_here = |namespace: &str| format_namespace(namespace, "", own);
        let entry = match *self {
            Self::Kubernetes { .. } if self.is_plugin_write() => return None,
            Self::Kubernetes {
                verb,
                gvk,
                namespace,
                cluster,
            } => EntrySuggestion {
                entry: format_kubernetes(&gvk.group, &gvk.kind, verb, (namespace, cluster), own),
                needs_read_secrets: self.is_secret_access(),
            },
            Self::Subresource {
                verb,
                gvk,
                subresource,
                namespace,
                cluster,
            } => {
                let kind = format!("{}/{subresource}", gvk.kind);
                EntrySuggestion::new(format_kubernetes(
                    &gvk.group,
                    &kind,
                    verb,
                    (namespace, cluster),
                    own,
                ))
            }
            Self::SecretMetadata { namespace, cluster } => EntrySuggestion::new(format_kubernetes(
                "",
                "Secret",
                GrantVerb::Get,
                (namespace, cluster),
                own,
            )),
            Self::Reconcile { gvk } => EntrySuggestion::new(format!(
                "reconciles: [{{group: \"{}\", kinds: [{}]}}]",
                gvk.group, gvk.kind
            )),
            Self::Upstream {
                namespace,
                name,
                method,
                ..
            } => EntrySuggestion::new(format!(
                "upstreams: [{{names: [{name}], namespaces: [{}], methods: [{method}]}}]",
                namespace_here(namespace)
            )),
            Self::Publish {
                namespace,
                name,
                exchange,
                routing_key,
            } => EntrySuggestion::new(format!(
                "messages: [{{names: [{name}], namespaces: [{}], exchanges: [{exchange:?}], routingKeys: [{routing_key:?}]}}]",
                namespace_here(namespace)
            )),
            Self::Secret {
                namespace,
                name,
                destination,
            } => {
                let field = match destination {
                    None => "origins: […]".to_owned(),
                    Some(SecretDestination::Origin(origin)) => format!("origins: [{:?}]", origin.to_string()),
                    Some(SecretDestination::Object { namespace }) => {
                        format!("targetNamespaces: [{}]", namespace_here(namespace))
                    }
                };
                EntrySuggestion::new(format!(
                    "secrets: [{{names: [{name}], namespaces: [{}], {field}}}]",
                    namespace_here(namespace)
                ))
            }
            Self::Events => EntrySuggestion::new("events: true".into()),
        };
        Some(entry)
    }
}

fn format_kubernetes(
    group: &str,
    kind: &str,
    verb: GrantVerb,
    (namespace, cluster): (&str, &str),
    own: OwnPlace<'_>,
) -> String {
    format!(
        "kubernetes: [{{group: \"{group}\", kinds: [{kind}], verbs: [{verb}], namespaces: [{}]{}}}]",
        format_namespace(namespace, cluster, own),
        clusters_field(cluster, own)
    )
}

/// A namespace on a cluster as an item of `namespaces`.
fn format_namespace(namespace: &str, cluster: &str, own: OwnPlace<'_>) -> String {
    match namespace {
        "" => "\"*\"".to_owned(),
        namespace if namespace == own.namespace_on(cluster) => SAME_NAMESPACE.into(),
        namespace => format!("{namespace:?}"),
    }
}

fn place_suffix(namespace: &str, cluster: &str, own: OwnPlace<'_>) -> String {
    let cluster = match cluster {
        "" if own.cluster.is_empty() => String::new(),
        "" => " on the host's own cluster".to_owned(),
        cluster => format!(" on cluster {cluster}"),
    };
    namespace_suffix(namespace) + &cluster
}

fn namespace_suffix(namespace: &str) -> String {
    if namespace.is_empty() {
        String::new()
    } else {
        format!(" in namespace {namespace}")
    }
}

fn clusters_field(cluster: &str, own: OwnPlace<'_>) -> String {
    match cluster {
        cluster if cluster == own.cluster => String::new(),
        "" => format!(", clusters: [{IN_CLUSTER}]"),
        cluster => format!(", clusters: [{cluster}]"),
    }
}
