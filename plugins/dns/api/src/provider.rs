use ostler_sdk::{Failure, api, resource};

use crate::{SecretKey, canonical_zone};

/// Access to the zones of a DNS provider.
#[resource(
    group = "dns.ostler.dev",
    version = "v1alpha1",
    kind = "DnsProvider",
    namespaced,
    status = DnsProviderStatus,
    shortname = "dnsp",
    category = "dns",
    doc = "An account at a DNS provider, or a DNS server with an API.",
    printcolumn(name = "Class", type = "string", json_path = ".spec.class"),
    printcolumn(name = "URL", type = "string", json_path = ".status.url"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", priority = 1),
    printcolumn(name = "Owner", type = "string", json_path = ".spec.ownerID", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(rule = "self.class == oldSelf.class", message = "class is immutable")]
#[validation(rule = "self.ownerID == oldSelf.ownerID", message = "ownerID is immutable")]
#[validation(
    rule = "self.class != 'PowerDNS' || has(self.url)",
    message = "url is required for the class PowerDNS"
)]
#[validation(
    rule = "!has(self.pollInterval) || duration(self.pollInterval) > duration('0s')",
    message = "pollInterval must be a duration such as 5m"
)]
pub struct DnsProviderSpec {
    /// The driver that manages the records.
    pub class: Class,
    /// Base URL of the API. PowerDNS: that of the webserver, for example https://dns.example.com:8081. The others default
    /// to their public API.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://[^/?#@]+(/[^?#]*)?$"), extend("format" = "uri"))]
    pub url: Option<String>,
    /// The credentials. PowerDNS: the API key; Cloudflare: an API token with Zone:Read and DNS:Edit; GoDaddy: `KEY:SECRET`.
    pub credentials_ref: SecretKey,
    /// TLS settings of the connection.
    pub tls: Option<ProviderTls>,
    /// Identifies this installation in the marks of its records. It must be unique among all that write to the same zones.
    #[serde(rename = "ownerID")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"))]
    pub owner_id: String,
    /// Zones, or patterns `*.example.com` of zones, in which records are managed; all zones of the account if it is empty.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub zones: Vec<String>,
    /// Namespaces, besides its own, whose DnsRecords may use this provider; "*" for all.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allowed_namespaces: Vec<String>,
    /// Limits on the rate of requests; default to what the provider allows.
    pub limits: Option<ProviderLimits>,
    /// A DNS resolver with DNS over HTTPS (RFC 8484), which is asked whether a record is visible. Without it the condition
    /// Propagated of records is Unknown.
    pub resolver: Option<Resolver>,
    /// Interval at which each record is compared with the provider. One below 30s or above 1h counts as that limit.
    #[serde(default = "default_poll_interval")]
    #[schemars(extend("type" = "string"))]
    pub poll_interval: String,
    /// Suspends reconciliation of this provider; its records wait meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

fn default_poll_interval() -> String {
    "5m".into()
}

/// The driver of a provider.
#[api]
#[derive(Copy, Eq)]
pub enum Class {
    /// PowerDNS Authoritative Server, by its HTTP API.
    PowerDNS,
    /// Cloudflare, by its API v4.
    Cloudflare,
    /// GoDaddy, by its Domains API v1.
    GoDaddy,
}

/// TLS settings.
#[api]
pub struct ProviderTls {
    /// The certificate authority to trust, as PEM.
    pub ca_ref: Option<SecretKey>,
}

/// Limits on the rate of requests.
#[api]
pub struct ProviderLimits {
    /// Maximum number of requests per second.
    #[schemars(range(min = 1, max = 10000))]
    pub requests_per_second: u32,
    /// Maximum number of requests in a burst; defaults to requestsPerSecond.
    #[schemars(range(min = 1, max = 10000))]
    pub burst: Option<u32>,
}

/// A DNS resolver.
#[api]
pub struct Resolver {
    /// Base URL of the resolver, for example https://dns.example.com.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://[^/?#@]+(/[^?#]*)?$"), extend("format" = "uri"))]
    pub url: String,
    /// Path of the queries; defaults to /dns-query.
    #[schemars(regex(pattern = r"^/[A-Za-z0-9/_.-]*$"))]
    pub path: Option<String>,
}

impl Resolver {
    /// The path of the queries.
    #[must_use]
    pub fn query_path(&self) -> &str {
        self.path.as_deref().unwrap_or("/dns-query")
    }
}

/// Observed state of the provider.
#[api]
#[derive(Default)]
pub struct DnsProviderStatus {
    /// URL of the API.
    pub url: Option<String>,
    /// Version that the server reports.
    pub version: Option<String>,
    /// URL of the resolver.
    #[serde(rename = "resolverURL", default, skip_serializing_if = "Option::is_none")]
    pub resolver_url: Option<String>,
    /// Keyed digest of the credentials. It changes with them, which wakes the records of the provider.
    pub credentials_digest: Option<String>,
}

/// The name of the Upstream of a provider's resolver.
#[must_use]
pub fn resolver_name(provider: &str) -> String {
    format!("{provider}-resolver")
}

impl DnsProviderSpec {
    /// Checks that objects of a namespace may manage records in a zone.
    ///
    /// # Errors
    /// `NamespaceNotAllowed` or `ZoneNotAllowed`, which are terminal.
    pub fn admit(&self, provider: (&str, &str), namespace: &str, zone: &str) -> Result<(), Failure> {
        let (own_namespace, name) = provider;
        let allowed = &self.allowed_namespaces;
        if own_namespace != namespace && !allowed.iter().any(|a| a == "*" || a == namespace) {
            let message = format!(
                "DnsProvider {own_namespace}/{name} does not list the namespace {namespace} in spec.allowedNamespaces."
            );
            return Err(Failure::terminal("NamespaceNotAllowed", message));
        }
        let is_covered = |pattern: &String| match pattern.strip_prefix("*.") {
            Some(parent) => {
                let parent = canonical_zone(parent);
                zone.strip_suffix(&*parent)
                    .is_some_and(|labels| labels.ends_with('.'))
            }
            None => canonical_zone(pattern) == zone,
        };
        if !self.zones.is_empty() && !self.zones.iter().any(is_covered) {
            let message =
                format!("DnsProvider {own_namespace}/{name} does not list the zone {zone} in spec.zones.");
            return Err(Failure::terminal("ZoneNotAllowed", message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ostler_sdk::{from_value, serde_json::json};

    use super::*;

    #[test]
    fn provider_admits_listed_namespaces_and_zones_only() {
        let spec: DnsProviderSpec = from_value(&json!({
            "class": "PowerDNS", "credentialsRef": {"name": "a", "key": "b"}, "ownerID": "o",
            "zones": ["Example.org.", "*.example.com"], "allowedNamespaces": ["apps"],
        }))
        .expect("a spec");
        let reason = |namespace, zone| {
            let admitted = spec.admit(("infra", "dns"), namespace, zone);
            admitted.err().map(|failure| failure.reason)
        };
        for (namespace, zone) in [
            ("infra", "example.org"),
            ("apps", "a.example.com"),
            ("apps", "a.b.example.com"),
        ] {
            assert_eq!(reason(namespace, zone), None, "{zone}");
        }
        assert_eq!(
            reason("other", "example.org").as_deref(),
            Some("NamespaceNotAllowed")
        );
        for zone in ["example.com", "notexample.com", "a.example.org"] {
            assert_eq!(reason("apps", zone).as_deref(), Some("ZoneNotAllowed"), "{zone}");
        }
    }
}
