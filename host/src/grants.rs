//! What each plugin may do: deny by default, one check for every effect.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de::Error};

use crate::{key::Gvk, upstream::NetworkGrant};

/// What a plugin may do to objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
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

/// What is missing, in words of the grants file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugin {plugin} may not {what}: grant it with `plugins.{plugin}.{grant}")]
pub struct Denied {
    plugin: Arc<str>,
    what: String,
    grant: String,
}

/// A grants file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grants {
    /// Addresses that upstreams may have besides public ones.
    #[serde(default)]
    pub network: NetworkGrant,
    #[serde(default)]
    plugins: BTreeMap<String, PluginGrantSpec>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PluginGrantSpec {
    /// Kubernetes objects.
    #[serde(default)]
    kubernetes: Vec<KubernetesGrant>,
    /// Upstreams.
    #[serde(default)]
    upstreams: Vec<UpstreamGrant>,
    /// Secrets the host may use at the plugin's word. Not shown to it.
    #[serde(default)]
    secrets: Vec<SecretGrant>,
    /// Whether it may emit Events.
    #[serde(default)]
    events: bool,
    /// Secrets may be read by the plugin itself, as `kubernetes` grants say. Without this no grant covers Secrets.
    #[serde(default)]
    secrets_are_readable: bool,
    /// How its reconciles are paced.
    #[serde(default)]
    pace: Pace,
}

/// How a plugin's reconciles are paced; the host's own settings where nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Pace {
    /// Interval of outcomes that poll without saying how often: `30s`, `5m`, `1h`.
    #[serde(default, deserialize_with = "interval")]
    pub poll: Option<Duration>,
    /// Up to so many per cent more, so that objects that were made together don't poll together for ever.
    pub jitter: Option<u8>,
    /// Reconciles at the same time at most, when that is less than the plugin itself wants.
    pub concurrency: Option<u32>,
}

/// `30s`, `5m`, `1h30m`.
fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed: Option<Duration> = text.parse().ok().and_then(|d: SignedDuration| d.try_into().ok());
    match parsed.filter(|d| !d.is_zero()) {
        Some(interval) => Ok(Some(interval)),
        None => Err(D::Error::custom(format!(
            "`{text}` is no interval: it is like 30s, 5m or 1h30m"
        ))),
    }
}

fn everywhere() -> Vec<String> {
    vec!["*".into()]
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct KubernetesGrant {
    #[serde(default)]
    group: String,
    kinds: Vec<String>,
    verbs: Vec<Verb>,
    #[serde(default = "everywhere")]
    namespaces: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpstreamGrant {
    #[serde(default = "everywhere")]
    names: Vec<String>,
    #[serde(default = "everywhere")]
    namespaces: Vec<String>,
    #[serde(default = "everywhere")]
    methods: Vec<String>,
    #[serde(default = "everywhere")]
    paths: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretGrant {
    #[serde(default = "everywhere")]
    names: Vec<String>,
    #[serde(default = "everywhere")]
    namespaces: Vec<String>,
}

/// What one plugin may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginGrants {
    plugin: Arc<str>,
    spec: PluginGrantSpec,
}

impl Grants {
    /// Reads a grants file (YAML). The error names the file, the place and the field.
    pub fn parse(text: &str, file: &str) -> Result<Self, String> {
        serde_saphyr::from_str(text).map_err(|e| format!("{file}: {e}"))
    }

    /// What a plugin may do; nothing when the file doesn't name it.
    pub fn of(&self, plugin: &str) -> PluginGrants {
        PluginGrants {
            plugin: plugin.into(),
            spec: self.plugins.get(plugin).cloned().unwrap_or_default(),
        }
    }
}

impl PluginGrants {
    /// How its reconciles are paced, where the file says so.
    pub fn pace(&self) -> Pace {
        self.spec.pace
    }

    /// Whether Secrets may be read by the component itself: what it says may then be one.
    pub fn reads_secrets(&self) -> bool {
        self.spec.secrets_are_readable
    }

    /// Groups and kinds it may hold. A pattern names none.
    pub fn holdable(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named(&[Verb::Hold])
    }

    /// Groups and kinds it may make. A pattern names none.
    pub fn writable(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named(&[Verb::Apply, Verb::Create])
    }

    fn named<'a>(&'a self, verbs: &'a [Verb]) -> impl Iterator<Item = (&'a str, &'a str)> {
        let granting = self.spec.kubernetes.iter();
        let granting = granting.filter(|g| g.verbs.iter().any(|v| verbs.contains(v)));
        let kinds = granting.flat_map(|g| g.kinds.iter().map(|kind| (&*g.group, &**kind)));
        kinds.filter(|(group, kind)| !group.contains('*') && !kind.contains('*'))
    }

    /// The one check. `Err` says what is missing.
    pub fn check(&self, access: &Access<'_>) -> Result<(), Denied> {
        let spec = &self.spec;
        let (granted, what, grant) = match *access {
            Access::Kubernetes { verb, gvk, namespace } => {
                let secret = gvk.group.is_empty() && *gvk.kind == *"Secret";
                let covers = |g: &KubernetesGrant| {
                    (g.group == *gvk.group || g.group == "*")
                        && any(&g.kinds, &gvk.kind)
                        && g.verbs.contains(&verb)
                        && (any(&g.namespaces, namespace))
                };
                let granted = spec.kubernetes.iter().any(covers) && (!secret || spec.secrets_are_readable);
                let group = &gvk.group;
                let readable = if secret {
                    " and `secretsAreReadable: true`"
                } else {
                    ""
                };
                let shown = if namespace.is_empty() { "*" } else { namespace };
                let grant = format!(
                    "kubernetes: [{{group: \"{group}\", kinds: [{}], verbs: [{verb}], namespaces: [\"{shown}\"]}}]`{readable}",
                    gvk.kind
                );
                (granted, format!("{verb} {}{}", gvk.kind, place(namespace)), grant)
            }
            Access::Upstream {
                namespace,
                name,
                method,
                path,
            } => {
                let path = path.split('?').next().unwrap_or_default();
                let covers = |g: &UpstreamGrant| {
                    any(&g.names, name)
                        && any(&g.namespaces, namespace)
                        && any(&g.methods, method)
                        && any(&g.paths, path)
                };
                let what = format!("{method} {path} at upstream {name}{}", place(namespace));
                (
                    spec.upstreams.iter().any(covers),
                    what,
                    format!(
                        "upstreams: [{{names: [{name}], namespaces: [{namespace}], methods: [{method}]}}]`"
                    ),
                )
            }
            Access::Secret { namespace, name } => {
                let covers = |g: &SecretGrant| any(&g.names, name) && any(&g.namespaces, namespace);
                let what = format!("name Secret {name}{}", place(namespace));
                (
                    spec.secrets.iter().any(covers),
                    what,
                    format!("secrets: [{{names: [{name}], namespaces: [{namespace}]}}]`"),
                )
            }
            Access::Events => (spec.events, "emit events".into(), "events: true`".into()),
        };
        if granted {
            return Ok(());
        }
        Err(Denied {
            plugin: self.plugin.clone(),
            what,
            grant,
        })
    }
}

fn place(namespace: &str) -> String {
    if namespace.is_empty() {
        String::new()
    } else {
        format!(" in namespace {namespace}")
    }
}

/// Whether some pattern covers a word: itself, `*`, or a start with `*` at the end.
fn any(patterns: &[String], word: &str) -> bool {
    patterns
        .iter()
        .any(|p| p == word || p.strip_suffix('*').is_some_and(|start| word.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
plugins:
  team:
    kubernetes:
    - {group: concourse-ci.org, kinds: [Instance], verbs: [get], namespaces: [a]}
    - {group: '', kinds: [Secret], verbs: [get]}
    upstreams:
    - {names: [ci], methods: [GET], paths: [/api/v1/*]}
";

    fn kubernetes<'a>(verb: Verb, gvk: &'a Gvk, namespace: &'a str) -> Access<'a> {
        Access::Kubernetes { verb, gvk, namespace }
    }

    #[test]
    fn denied_unless_granted_and_says_what_to_grant() {
        let grants = Grants::parse(FILE, "g.yaml").expect("parses");
        let team = grants.of("team");
        let instance = Gvk::new("concourse-ci.org", "v1alpha1", "Instance");
        assert_eq!(team.check(&kubernetes(Verb::Get, &instance, "a")), Ok(()));
        for access in [
            kubernetes(Verb::Get, &instance, "b"),
            kubernetes(Verb::Get, &instance, ""),
            kubernetes(Verb::Delete, &instance, "a"),
            kubernetes(Verb::Get, &Gvk::new("", "v1", "Secret"), "a"),
            Access::Events,
            Access::Secret {
                namespace: "a",
                name: "x",
            },
            Access::Upstream {
                namespace: "a",
                name: "ci",
                method: "PUT",
                path: "/api/v1/x",
            },
            Access::Upstream {
                namespace: "a",
                name: "ci",
                method: "GET",
                path: "/sky",
            },
        ] {
            let text = team.check(&access).expect_err("denied").to_string();
            assert!(
                text.contains("plugin team may not") && text.contains("plugins.team."),
                "{text}"
            );
            assert!(grants.of("other").check(&access).is_err());
        }
        let query = Access::Upstream {
            namespace: "a",
            name: "ci",
            method: "GET",
            path: "/api/v1/x?y=/z",
        };
        assert_eq!(team.check(&query), Ok(()));
    }

    #[test]
    fn pace() {
        let text = "plugins: {team: {pace: {poll: 1h30m, jitter: 5}}}";
        let pace = Grants::parse(text, "g.yaml").expect("parses").of("team").pace();
        assert_eq!(
            (pace.poll, pace.jitter),
            (Some(Duration::from_secs(5400)), Some(5))
        );
        for wrong in ["soon", "0s", "-5m"] {
            let text = format!("plugins: {{team: {{pace: {{poll: {wrong}}}}}}}");
            let error = Grants::parse(&text, "g.yaml").unwrap_err();
            assert!(error.contains("interval") && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn networks() {
        let grants = Grants::parse("network: {allow: [10.96.0.0/12, '::1']}", "g.yaml").expect("parses");
        assert!(grants.network.permits("10.96.0.1".parse().expect("an address")));
        let error = Grants::parse("network: {allow: [localhost]}", "g.yaml").unwrap_err();
        assert!(
            error.contains("g.yaml") && error.contains("`localhost` is no network"),
            "{error}"
        );
    }

    #[test]
    fn a_typing_error_is_named() {
        let error = Grants::parse("plugins: {team: {kubernets: []}}", "g.yaml").unwrap_err();
        assert!(error.contains("g.yaml") && error.contains("kubernets"), "{error}");
    }
}
