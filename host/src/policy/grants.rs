//! Permissions of plugins: denied by default, with one check for every effect.
//!
//! An effect is allowed if the plugin's manifest requests it, *and* an administrator grants it, *and* RBAC allows it
//! to the plugin's service account. The first two are decided here, without I/O; the third in [`crate::client::access_review`].

mod check;
mod subscription;
mod topic;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

pub use self::{
    check::{Denied, HOST_GROUP, PluginGrants},
    subscription::{DeadLetterTarget, RetrySettings, Subscription, UpstreamName},
    topic::covers_topic,
};
use crate::{
    contract::limits::{LimitsSpec, Time},
    kube::{
        key::{Gvk, IN_CLUSTER, cluster_name, is_path_segment, own_cluster},
        renamed_fields::explain_unknown_field,
    },
    policy::{
        components::ComponentPolicy,
        network::NetworkGrant,
        origin::{Origin, OriginPattern},
    },
};

/// Operation on the objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read all objects of a kind, or those that a selector matches.
    List,
    /// Create or update an object by server-side apply.
    Apply,
    /// Create an object; fails if it exists.
    Create,
    /// Change an object by a merge patch.
    Patch,
    /// Delete an object.
    Delete,
    /// Hold an object: defer its deletion while it is in use.
    Hold,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Apply => "apply",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::Hold => "hold",
        })
    }
}

/// The entry of `namespaces` that stands for the namespace of the reconciled object, as in the Gateway API. No namespace
/// can have this name.
pub const SAME_NAMESPACE: &str = "Same";

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
        verb: Verb,
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
        verb: Verb,
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

/// Contents of a grants file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Grants {
    /// Addresses that upstreams may have.
    #[serde(default)]
    pub network: NetworkGrant,
    /// Components that may run.
    #[serde(default)]
    pub components: ComponentPolicy,
    /// Permissions and settings of each plugin in the plugin directory, by its name.
    #[serde(default)]
    plugins: BTreeMap<String, Grant>,
    /// Prefix of field names in error messages when the grants are not from a file.
    #[serde(skip)]
    field_prefix: Option<Arc<str>>,
}

/// Permissions: those that a manifest requests, or those of a [`Grant`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Permissions {
    /// Kinds that the plugin reconciles. The host gives their objects to the plugin, and writes their status and finalizers
    /// for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reconciles: Vec<ReconcileGrant>,
    /// Access to Kubernetes objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubernetes: Vec<KubernetesGrant>,
    /// Requests to Upstreams.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upstreams: Vec<UpstreamGrant>,
    /// Messages that the plugin may publish.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<MessageGrant>,
    /// Secrets that the plugin may name for the host to inject into requests. The plugin cannot read their contents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretGrant>,
    /// Allows the plugin to emit Kubernetes Events.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events: bool,
    /// Allows the plugin to read the contents of the Secrets that `kubernetes` covers. If false, entries of `kubernetes`
    /// that name the kind `Secret` cover no more than reading its metadata, and `apply`, `create` and `delete`, whose
    /// responses have no values.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_secrets: bool,
}

/// Permissions and settings of a plugin that an administrator sets, in the grants file or in its `Plugin` object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Grant {
    /// Permissions, whose fields stand beside the settings in the file.
    #[serde(flatten)]
    pub permissions: Permissions,
    /// Interval, jitter and concurrency of the plugin's reconciles.
    #[serde(default)]
    pub reconcile: ReconcileSettings,
    /// Queues whose messages the plugin handles. It needs a message handler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscriptions: Vec<Subscription>,
    /// Resource limits of the plugin. A limit that is unset has the host's default.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// Service account that the plugin acts as. The host impersonates it for the plugin's requests, and RBAC must allow
    /// them and the plugin's reads from the cache. When unset, requests are made with the host's own identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccount>,
    /// Home cluster of the plugin: namespace and name of the `Cluster` whose objects it reconciles, such as
    /// `fleet/onboarding`. References, lists and entries of `kubernetes` without a cluster are about it, and `in-cluster` is
    /// the host's own. When unset, the plugin reconciles objects of the host's own cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = CLUSTER_PATTERN))]
    pub cluster: Option<String>,
}

/// Namespace and name of a `Cluster`.
pub const CLUSTER_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";

/// Reference to a service account.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceAccount {
    /// Namespace of the service account.
    pub namespace: String,
    /// Name of the service account.
    pub name: String,
}

impl ServiceAccount {
    /// Its user name to the API server.
    pub fn user_name(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// Checks that both fields are names, since they become part of an HTTP header.
    fn check_names(&self) -> Result<(), String> {
        let name = |text: &str| {
            let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
            !text.is_empty() && text.len() <= 253 && text.bytes().all(valid)
        };
        for (field, value) in [("namespace", &self.namespace), ("name", &self.name)] {
            if !name(value) {
                return Err(format!(
                    "serviceAccount.{field} {value:?} is no name (a-z, 0-9, -, .)"
                ));
            }
        }
        Ok(())
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Intervals, jitter and concurrency of a plugin's reconciles. A field that is unset has the host's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ReconcileSettings {
    /// Interval between reconciles of an object whose outcome polls without an interval of its own, such as `30s` or `1h`.
    /// Defaults to `5m`.
    #[serde(
        default,
        deserialize_with = "deserialize_interval",
        serialize_with = "serialize_interval",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Time>")]
    pub interval: Option<Duration>,
    /// Interval between reconciles of an object that waits for something else. A change of an object that it has read
    /// reconciles it at once. Defaults to `30s`.
    #[serde(
        default,
        deserialize_with = "deserialize_interval",
        serialize_with = "serialize_interval",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Time>")]
    pub wait_interval: Option<Duration>,
    /// Random addition to the intervals, in percent of them. It spreads the reconciles of objects that were created together.
    /// Defaults to 10.
    #[serde(
        default,
        deserialize_with = "deserialize_percentage",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(max = 100))]
    pub jitter: Option<u8>,
    /// Maximum number of concurrent reconciles of the plugin. The number that the component declares and the host's
    /// `--workers` are limits, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
}

/// Parses an interval such as `30s`, `5m` or `1h30m`.
fn deserialize_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    Option::<Time>::deserialize(deserializer).map(|time| time.map(Into::into))
}

/// Parses a percentage from 0 to 100.
fn deserialize_percentage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let percentage = Option::<i64>::deserialize(deserializer)?;
    let parse = |number: i64| {
        let percentage = u8::try_from(number).ok().filter(|p| *p <= 100);
        percentage
            .ok_or_else(|| serde::de::Error::custom(format!("{number} is not a percentage from 0 to 100")))
    };
    percentage.map(parse).transpose()
}

fn serialize_interval<S: serde::Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(Time).serialize(serializer)
}

fn match_all() -> Vec<String> {
    vec!["*".into()]
}

fn match_all_topics() -> Vec<String> {
    vec!["#".into()]
}

fn same_namespace() -> Vec<String> {
    vec![SAME_NAMESPACE.into()]
}

/// Kinds that a plugin reconciles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReconcileGrant {
    /// API group of the kinds. Empty is the core group, `*` matches any group.
    #[serde(default)]
    pub group: String,
    /// Kinds. `*` matches any kind, `Foo*` a prefix.
    pub kinds: Vec<String>,
    /// Namespaces of the objects, by name, or `*` for all. Objects in other namespaces are ignored. Defaults to `*`.
    #[serde(default = "match_all")]
    pub namespaces: Vec<String>,
}

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
    pub verbs: Vec<Verb>,
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

/// Requests to Upstreams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamGrant {
    /// Names of Upstreams. `*` matches any name, `foo*` a prefix. Defaults to `*`.
    #[serde(default = "match_all")]
    pub names: Vec<String>,
    /// Namespaces of Upstreams. `Same` matches the namespace of the reconciled object, `*` any namespace, `foo*` a prefix.
    /// Defaults to `Same`.
    #[serde(default = "same_namespace")]
    pub namespaces: Vec<String>,
    /// HTTP methods. Defaults to `*`.
    #[serde(default = "match_all")]
    pub methods: Vec<String>,
    /// Paths without the query. `/api/*` matches a prefix. Defaults to `*`.
    #[serde(default = "match_all")]
    pub paths: Vec<String>,
}

/// Messages that a plugin may publish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct MessageGrant {
    /// Names of Upstreams. `*` matches any name, `foo*` a prefix. Defaults to `*`.
    #[serde(default = "match_all")]
    pub names: Vec<String>,
    /// Namespaces of Upstreams. `Same` matches the namespace of the reconciled object, `*` any namespace, `foo*` a prefix.
    /// Defaults to `Same`.
    #[serde(default = "same_namespace")]
    pub namespaces: Vec<String>,
    /// Exchanges. `*` matches any exchange with a name, `foo*` a prefix. The default exchange, through which every queue can
    /// be reached, is matched by the empty string only.
    pub exchanges: Vec<String>,
    /// Routing keys, with the patterns of topic exchanges: `*` matches one word between dots, `#` any number of words.
    /// Defaults to `#`.
    #[serde(default = "match_all_topics")]
    pub routing_keys: Vec<String>,
}

/// Secrets that a plugin may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SecretGrant {
    /// Names of Secrets. `*` matches any name, `foo*` a prefix. Defaults to `*`.
    #[serde(default = "match_all")]
    pub names: Vec<String>,
    /// Namespaces of Secrets. `Same` matches the namespace of the reconciled object, `*` any namespace, `foo*` a prefix.
    /// Defaults to `Same`.
    #[serde(default = "same_namespace")]
    pub namespaces: Vec<String>,
    /// Origins that the host may send the Secrets to: `https://ci.example.com`, `https://*.example.com`,
    /// `http://127.0.0.1:*`. `*` matches every origin with TLS. A connection without verification of the server counts as
    /// `http`. An entry of a grant needs `origins`, `targetNamespaces` or both; an entry of a manifest with neither asks for
    /// any origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origins: Option<Vec<OriginPattern>>,
    /// Namespaces in which the host may write the values into objects of the kind `Secret`, for which the plugin also needs
    /// `kubernetes`. The readers of these objects can read the values. `Same` matches the namespace of the reconciled
    /// object, `*` any namespace, `foo*` a prefix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_namespaces: Vec<String>,
}

impl SecretGrant {
    /// The values may be sent to any origin. A manifest may leave the origins to the administrator.
    pub fn allows_any_origin(&self) -> bool {
        self.origins.is_none() && self.target_namespaces.is_empty()
    }
}

impl Permissions {
    /// The permissions as grants for development: Secrets without origins may be sent to any.
    #[cfg(feature = "dev")]
    pub fn with_any_origin(mut self) -> Self {
        for secret in self.secrets.iter_mut().filter(|s| s.allows_any_origin()) {
            let any = || ["*", "http://*:*", "amqp://*:*"].map(|text| text.parse().expect("a pattern"));
            secret.origins = Some(any().into());
        }
        self
    }

    /// Checks that no entry is empty, which would allow nothing and is therefore a mistake. The error names the field.
    pub fn check_fields(&self) -> Result<(), String> {
        // Destructured, so that the compiler asks for the check of a new field.
        let Self {
            reconciles,
            kubernetes,
            upstreams,
            messages,
            secrets,
            events: _,
            read_secrets: _,
        } = self;
        let empty = |list: &[String]| list.is_empty() || list.iter().any(String::is_empty);
        for (i, grant) in reconciles.iter().enumerate() {
            for (field, list) in [("kinds", &grant.kinds), ("namespaces", &grant.namespaces)] {
                if empty(list) {
                    return Err(format!("reconciles[{i}].{field} is empty: it allows nothing"));
                }
            }
            // Each namespace is a watch.
            let is_name = |n: &String| n == "*" || !(n.contains('*') || n == SAME_NAMESPACE);
            if let Some(pattern) = grant.namespaces.iter().find(|n| !is_name(n)) {
                return Err(format!(
                    "reconciles[{i}].namespaces has {pattern:?}: names of namespaces are needed, or `*`"
                ));
            }
        }
        for (i, grant) in kubernetes.iter().enumerate() {
            for (field, nothing) in [
                ("kinds", empty(&grant.kinds)),
                ("verbs", grant.verbs.is_empty()),
                ("namespaces", empty(&grant.namespaces)),
            ] {
                if nothing {
                    return Err(format!("kubernetes[{i}].{field} is empty: it allows nothing"));
                }
            }
            let is_subresource = |kind: &&String| kind.contains('/');
            if let Some(kind) = grant.kinds.iter().find(is_subresource)
                && find_subresource_verb(kind).is_none_or(|verb| grant.verbs != [verb])
            {
                return Err(format!(
                    "kubernetes[{i}].kinds has {kind:?}: a kind and its subresource are needed, such as `Pod/resize`, with \
                     `patch` as the only verb, or `Pod/log` with `get`; `status` is refused"
                ));
            }
            let is_pair = |c: &&String| {
                let (namespace, name) = c.split_once('/').unwrap_or_default();
                !namespace.is_empty() && !name.is_empty() && !name.contains('/')
            };
            if let Some(cluster) = grant.clusters.iter().find(|c| *c != IN_CLUSTER && !is_pair(c)) {
                return Err(format!(
                    "kubernetes[{i}].clusters has {cluster:?}: namespace and name of a Cluster are needed, such as \
                     `Same/east`, or `{IN_CLUSTER}` for the host's own"
                ));
            }
        }
        for (i, grant) in upstreams.iter().enumerate() {
            for (field, list) in [
                ("names", &grant.names),
                ("namespaces", &grant.namespaces),
                ("methods", &grant.methods),
                ("paths", &grant.paths),
            ] {
                if empty(list) {
                    return Err(format!("upstreams[{i}].{field} is empty: it allows nothing"));
                }
            }
        }
        for (i, grant) in messages.iter().enumerate() {
            for (field, nothing) in [
                ("names", empty(&grant.names)),
                ("namespaces", empty(&grant.namespaces)),
                ("exchanges", grant.exchanges.is_empty()),
                ("routingKeys", grant.routing_keys.is_empty()),
            ] {
                if nothing {
                    return Err(format!("messages[{i}].{field} is empty: it allows nothing"));
                }
            }
        }
        for (i, grant) in secrets.iter().enumerate() {
            for (field, list) in [("names", &grant.names), ("namespaces", &grant.namespaces)] {
                if empty(list) {
                    return Err(format!("secrets[{i}].{field} is empty: it allows nothing"));
                }
            }
            if grant.origins.as_ref().is_some_and(Vec::is_empty) {
                return Err(format!("secrets[{i}].origins is empty: it allows nothing"));
            }
            if grant.target_namespaces.iter().any(String::is_empty) {
                return Err(format!(
                    "secrets[{i}].targetNamespaces has an empty name: it allows nothing"
                ));
            }
        }
        Ok(())
    }
}

/// The verb that an entry of `kinds` may have which is a kind and the name of a subresource; none for the status, which belongs
/// to the controller of the object, and for another text.
fn find_subresource_verb(kind: &str) -> Option<Verb> {
    let (kind, subresource) = kind.split_once('/')?;
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match subresource {
        _ if !is_word(kind) || !is_word(subresource) => None,
        "status" => None,
        "log" => Some(Verb::Get),
        _ => Some(Verb::Patch),
    }
}

/// Parses the home cluster of a plugin: its name in keys. The error names the field.
fn parse_home_cluster(cluster: &str) -> Result<Arc<str>, String> {
    let is_name = |text: &str| {
        let is_valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        !text.is_empty() && text.bytes().all(is_valid) && is_path_segment(text)
    };
    match cluster.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => Ok(cluster_name(namespace, name)),
        _ => Err(format!(
            "cluster {cluster:?}: namespace and name of a Cluster are needed, such as `fleet/onboarding`"
        )),
    }
}

impl Grant {
    /// The home cluster of the plugin, as keys name it: empty for the host's own.
    fn home_cluster(&self) -> Arc<str> {
        let parsed = self.cluster.as_deref().map(parse_home_cluster);
        // Fields are checked before.
        parsed.and_then(Result::ok).unwrap_or_else(own_cluster)
    }

    /// Checks the values of the permissions and settings. The error names the field.
    pub fn check_fields(&self) -> Result<(), String> {
        self.permissions.check_fields()?;
        if let Some(i) = self
            .permissions
            .secrets
            .iter()
            .position(SecretGrant::allows_any_origin)
        {
            return Err(format!(
                "secrets[{i}].origins is missing: list the origins that the Secrets may be sent to, such as \
                 https://ci.example.com, or in targetNamespaces the namespaces of the Secrets that they may be written into"
            ));
        }
        for (i, subscription) in self.subscriptions.iter().enumerate() {
            subscription
                .check()
                .map_err(|e| format!("subscriptions[{i}].{e}"))?;
            let is_same = |other: &Subscription| {
                other.upstream == subscription.upstream && other.queue == subscription.queue
            };
            if self.subscriptions[..i].iter().any(is_same) {
                return Err(format!(
                    "subscriptions[{i}] is for the queue of another one: {subscription}"
                ));
            }
        }
        self.limits.check()?;
        if let Some(cluster) = &self.cluster {
            parse_home_cluster(cluster)?;
        }
        self.service_account
            .as_ref()
            .map_or(Ok(()), ServiceAccount::check_names)
    }
}

impl Grants {
    /// Reads a grants file (YAML). The error names the file, the place and the field.
    pub fn parse(text: &str, file: &str) -> Result<Self, String> {
        let grants: Self =
            serde_saphyr::from_str(text).map_err(|e| format!("{file}: {}", explain_unknown_field(e)))?;
        for (plugin, grant) in &grants.plugins {
            grant
                .check_fields()
                .map_err(|e| format!("{file}: plugins.{plugin}.{e}"))?;
        }
        Ok(grants)
    }

    /// The grants of one plugin, from the spec of its `Plugin` object. Errors name the fields of that object.
    pub fn from_object(plugin: &str, grant: Grant) -> Self {
        Self {
            plugins: BTreeMap::from([(plugin.to_owned(), grant)]),
            field_prefix: Some("spec.grants.".into()),
            ..Self::default()
        }
    }

    /// The name of the `Plugin` object that these are the grants of; none for those of a file.
    pub fn object_name(&self) -> Option<&str> {
        let (name, _) = self.plugins.first_key_value()?;
        self.field_prefix.is_some().then_some(name)
    }

    /// Returns true if the file has an entry for the plugin.
    pub fn contains_plugin(&self, plugin: &str) -> bool {
        self.plugins.contains_key(plugin)
    }

    /// The permissions of a plugin; none without an entry in the file. The plugin counts as asking for all of them until
    /// [`PluginGrants::with_asks`] sets those of its manifest.
    pub fn grants_for(&self, plugin: &str) -> PluginGrants {
        let grant = self.plugins.get(plugin).cloned().unwrap_or_default();
        let place = self
            .field_prefix
            .as_deref()
            .map_or_else(|| format!("plugins.{plugin}."), str::to_owned);
        PluginGrants::new(plugin, &place, None, grant)
    }
}
