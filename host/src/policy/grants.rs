//! What each plugin may do: deny by default, one check for every effect.
//!
//! A plugin may do what its manifest asks for, *and* an administrator grants it, *and* RBAC allows its service
//! account. The first two are decided here, without I/O; the third in [`crate::client::access_review`].

mod check;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

pub use self::check::{Denied, PluginGrants};
use crate::{
    contract::limits::{LimitsSpec, Time},
    kube::key::Gvk,
    policy::network::NetworkGrant,
};

/// What a plugin may do to objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Read one.
    Get,
    /// Read many.
    List,
    /// Server-side apply.
    Apply,
    /// Create.
    Create,
    /// Delete.
    Delete,
    /// Keep from going while it is used.
    Hold,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Apply => "apply",
            Self::Create => "create",
            Self::Delete => "delete",
            Self::Hold => "hold",
        })
    }
}

/// Something a plugin is about to do.
#[derive(Clone, Copy, Debug)]
pub enum Access<'a> {
    /// A Kubernetes call; an empty namespace is all namespaces, or none for cluster-scoped kinds.
    Kubernetes {
        /// What.
        verb: Verb,
        /// To which kind.
        gvk: &'a Gvk,
        /// Where.
        namespace: &'a str,
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
    /// Naming a Secret for the host to use; the plugin does not see it.
    Secret {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// Emitting Kubernetes Events.
    Events,
}

/// A grants file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grants {
    /// Addresses that upstreams may have besides public ones.
    #[serde(default)]
    pub network: NetworkGrant,
    #[serde(default)]
    plugins: BTreeMap<String, Grant>,
    /// Where it is said, as a prefix of fields, when that is not a file.
    #[serde(skip)]
    field_prefix: Option<Arc<str>>,
}

/// What may be done: what a manifest asks for, or the part of a [`Grant`] that answers it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Permissions {
    /// Kubernetes objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubernetes: Vec<KubernetesGrant>,
    /// Upstreams.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upstreams: Vec<UpstreamGrant>,
    /// Secrets the host may use at the plugin's word. Not shown to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretGrant>,
    /// Whether it may emit Events.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events: bool,
    /// Secrets may be read by the plugin itself, as `kubernetes` says. Without this nothing there covers Secrets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secrets_are_readable: bool,
}

/// What an administrator says of a plugin: in the grants file, or in its `Plugin` object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Grant {
    /// Kubernetes objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubernetes: Vec<KubernetesGrant>,
    /// Upstreams.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upstreams: Vec<UpstreamGrant>,
    /// Secrets the host may use at the plugin's word. Not shown to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretGrant>,
    /// Whether it may emit Events.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events: bool,
    /// Secrets may be read by the plugin itself, as `kubernetes` grants say. Without this no grant covers Secrets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secrets_are_readable: bool,
    /// How its reconciles are paced.
    #[serde(default)]
    pub pace: Pace,
    /// What it may use.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// Who it is to the API server: its requests are made as this service account, and RBAC decides about them and
    /// about what it reads from the cache. Without one they are the host's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccount>,
}

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ServiceAccount {
    /// Its user name to the API server.
    pub fn user_name(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// Whether both are names: they become part of a header.
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

/// How a plugin's reconciles are paced; the host's own settings where nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Pace {
    /// Interval of outcomes that poll without saying how often: `30s`, `5m`, `1h`.
    #[serde(
        default,
        deserialize_with = "deserialize_interval",
        serialize_with = "serialize_interval",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Time>")]
    pub poll: Option<Duration>,
    /// Up to so many per cent more, so that objects that were made together don't poll together for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<u8>,
    /// Reconciles at the same time at most, when that is less than the plugin itself wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
}

/// `30s`, `5m`, `1h30m`.
fn deserialize_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    Option::<Time>::deserialize(deserializer).map(|time| time.map(Into::into))
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

/// Kinds, and what may be done to their objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesGrant {
    /// API group; empty for the core group, `*` for any.
    #[serde(default)]
    pub group: String,
    /// Kinds; `*` and `Foo*` are patterns, here and below.
    pub kinds: Vec<String>,
    /// What may be done.
    pub verbs: Vec<Verb>,
    /// Where; everywhere when nothing is said.
    #[serde(default = "match_all")]
    pub namespaces: Vec<String>,
}

/// Requests to upstreams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamGrant {
    /// Names of Upstreams.
    #[serde(default = "match_all")]
    pub names: Vec<String>,
    /// Their namespaces.
    #[serde(default = "match_all")]
    pub namespaces: Vec<String>,
    /// HTTP methods.
    #[serde(default = "match_all")]
    pub methods: Vec<String>,
    /// Paths, without the query.
    #[serde(default = "match_all")]
    pub paths: Vec<String>,
}

/// Secrets that may be named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretGrant {
    /// Their names.
    #[serde(default = "match_all")]
    pub names: Vec<String>,
    /// Their namespaces.
    #[serde(default = "match_all")]
    pub namespaces: Vec<String>,
}

impl Permissions {
    /// What says nothing: a mistake. Names the field.
    pub fn check_fields(&self) -> Result<(), String> {
        let empty = |list: &[String]| list.is_empty() || list.iter().any(String::is_empty);
        for (i, grant) in self.kubernetes.iter().enumerate() {
            for (field, nothing) in [
                ("kinds", empty(&grant.kinds)),
                ("verbs", grant.verbs.is_empty()),
                ("namespaces", empty(&grant.namespaces)),
            ] {
                if nothing {
                    return Err(format!("kubernetes[{i}].{field} is empty: it allows nothing"));
                }
            }
        }
        for (i, grant) in self.upstreams.iter().enumerate() {
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
        for (i, grant) in self.secrets.iter().enumerate() {
            for (field, list) in [("names", &grant.names), ("namespaces", &grant.namespaces)] {
                if empty(list) {
                    return Err(format!("secrets[{i}].{field} is empty: it allows nothing"));
                }
            }
        }
        Ok(())
    }
}

impl Grant {
    /// What of it answers a manifest.
    pub fn permissions(&self) -> Permissions {
        Permissions {
            kubernetes: self.kubernetes.clone(),
            upstreams: self.upstreams.clone(),
            secrets: self.secrets.clone(),
            events: self.events,
            secrets_are_readable: self.secrets_are_readable,
        }
    }

    /// What can't be meant. Names the field.
    pub fn check_fields(&self) -> Result<(), String> {
        self.permissions().check_fields()?;
        self.limits.check()?;
        self.service_account
            .as_ref()
            .map_or(Ok(()), ServiceAccount::check_names)
    }
}

impl Grants {
    /// Reads a grants file (YAML). The error names the file, the place and the field.
    pub fn parse(text: &str, file: &str) -> Result<Self, String> {
        let grants: Self = serde_saphyr::from_str(text).map_err(|e| format!("{file}: {e}"))?;
        for (plugin, grant) in &grants.plugins {
            grant
                .check_fields()
                .map_err(|e| format!("{file}: plugins.{plugin}.{e}"))?;
        }
        Ok(grants)
    }

    /// What a `Plugin` object says of the plugin of its name.
    pub fn from_object(plugin: &str, grant: Grant) -> Self {
        Self {
            plugins: BTreeMap::from([(plugin.to_owned(), grant)]),
            field_prefix: Some("spec.grants.".into()),
            ..Self::default()
        }
    }

    /// Whether something is said of a plugin.
    pub fn contains_plugin(&self, plugin: &str) -> bool {
        self.plugins.contains_key(plugin)
    }

    /// What a plugin may do; nothing when the file doesn't name it. It counts as asking for all of it: see
    /// [`PluginGrants::asking`].
    pub fn grants_for(&self, plugin: &str) -> PluginGrants {
        let grant = self.plugins.get(plugin).cloned().unwrap_or_default();
        let place = self
            .field_prefix
            .as_deref()
            .map_or_else(|| format!("plugins.{plugin}."), str::to_owned);
        PluginGrants::new(plugin, &place, None, grant)
    }
}
