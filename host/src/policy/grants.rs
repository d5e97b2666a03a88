//! Permissions of plugins: denied by default, with one check for every effect.
//!
//! An effect is allowed if the plugin's manifest requests it, *and* an administrator grants it, *and* RBAC allows it
//! to the plugin's service account. The first two are decided here, without I/O; the third in [`crate::client::access_review`].

mod access;
mod check;
mod entry;
mod flags;
mod kubernetes;
mod message;
mod patterns;
mod reconcile;
mod secret;
mod subscription;
mod topic;
mod upstream;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use self::flags::{EventsGrant, ReadSecretsGrant};
pub use self::{
    access::{Access, SecretDestination},
    check::{Denied, PluginGrants},
    entry::PermissionEntry,
    kubernetes::KubernetesGrant,
    message::MessageGrant,
    patterns::has_wildcard,
    reconcile::ReconcileGrant,
    secret::SecretGrant,
    subscription::{DeadLetterTarget, RetrySettings, Subscription, UpstreamName},
    upstream::UpstreamGrant,
};
use crate::{
    contract::limits::{LimitsSpec, Time},
    kube::key::{cluster_name, is_path_segment, own_cluster},
    policy::{components::ComponentPolicy, network::NetworkGrant},
};

/// Operation on the objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GrantVerb {
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

impl fmt::Display for GrantVerb {
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

/// The group of the host's own kinds.
pub const HOST_GROUP: &str = "ostler.dev";

/// The entry of `namespaces` that stands for the namespace of the reconciled object, as in the Gateway API. No namespace
/// can have this name.
pub const SAME_NAMESPACE: &str = "Same";

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

    /// All entries: the items of the lists in their order, then the flags that are set. An entry that is used is known by its
    /// index among them.
    pub fn entries(&self) -> impl Iterator<Item = &dyn PermissionEntry> {
        // Destructured, so that the compiler asks for the entries of a new field.
        let Self {
            reconciles,
            kubernetes,
            upstreams,
            messages,
            secrets,
            events,
            read_secrets,
        } = self;
        entry::erase(reconciles)
            .chain(entry::erase(kubernetes))
            .chain(entry::erase(upstreams))
            .chain(entry::erase(messages))
            .chain(entry::erase(secrets))
            .chain(events.then_some(&EventsGrant as &dyn PermissionEntry))
            .chain(read_secrets.then_some(&ReadSecretsGrant as &dyn PermissionEntry))
    }

    /// Checks that no entry is empty, which would allow nothing and is therefore a mistake. The error names the field.
    pub fn check_fields(&self) -> Result<(), String> {
        let mut indexes = HashMap::new();
        self.entries().try_for_each(|entry| {
            let next = indexes.entry(entry.field()).or_insert(0);
            let index = std::mem::replace(next, *next + 1);
            entry
                .check_fields()
                .map_err(|why| format!("{}[{index}].{why}", entry.field()))
        })
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
        let grants: Self = serde_saphyr::from_str(text).map_err(|e| format!("{file}: {}", e))?;
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
