//! The `Upstream` objects of a DnsProvider.

use dns_api::{Class, DnsProvider, DnsProviderSpec, ProviderLimits, Resolver, driver, resolver_name};
use ostler_sdk::{prelude::*, serde_json::Value};

const CLOUDFLARE_URL: &str = "https://api.cloudflare.com/client/v4";
const GODADDY_URL: &str = "https://api.godaddy.com";
const REQUEST_TIMEOUT_SECONDS: u32 = 30;
const RESOLVER_TIMEOUT_SECONDS: u32 = 10;

/// The URL of the API.
pub fn api_url(spec: &DnsProviderSpec) -> Result<String, Failure> {
    let url = match (&spec.url, spec.class) {
        (Some(url), _) => url,
        (None, Class::Cloudflare) => CLOUDFLARE_URL,
        (None, Class::GoDaddy) => GODADDY_URL,
        (None, Class::PowerDNS) => {
            let message = "spec.url must be set for the class PowerDNS.";
            return Err(Failure::terminal("InvalidSpec", message));
        }
    };
    Ok(url.trim_end_matches('/').to_owned())
}

/// Builds the Upstream of the API.
pub fn build(provider: &DnsProvider, url: &str) -> Value {
    let spec = &provider.spec;
    let secret = json!({ "name": spec.credentials_ref.name, "key": spec.credentials_ref.key });
    let auth = match spec.class {
        Class::PowerDNS => json!({ "header": { "name": "X-API-Key", "valueSecretRef": secret } }),
        Class::Cloudflare => json!({ "bearer": { "tokenSecretRef": secret } }),
        Class::GoDaddy => json!({
            "header": { "name": "Authorization", "prefix": "sso-key ", "valueSecretRef": secret },
        }),
    };
    let mut upstream = json!({
        "url": url,
        "auth": auth,
        "allowedNamespaces": spec.allowed_namespaces,
        "timeoutSeconds": REQUEST_TIMEOUT_SECONDS,
    });
    if let Some((per_second, burst)) = choose_limits(spec.class, spec.limits.as_ref()) {
        upstream["limits"] = json!({ "requestsPerSecond": per_second, "burst": burst });
    }
    if let Some(key) = spec.tls.as_ref().and_then(|tls| tls.ca_ref.as_ref()) {
        upstream["tls"] = json!({ "caSecretRef": { "name": key.name, "key": key.key } });
    }
    build_object(provider, provider.name(), &upstream)
}

/// Requests per second and burst: GoDaddy allows 60 a minute, Cloudflare 1200 in 5 minutes, PowerDNS any.
fn choose_limits(class: Class, limits: Option<&ProviderLimits>) -> Option<(u32, u32)> {
    match (limits, class) {
        (Some(limits), _) => {
            let per_second = limits.requests_per_second;
            Some((per_second, limits.burst.unwrap_or(per_second)))
        }
        (None, Class::GoDaddy) => Some((1, 5)),
        (None, Class::Cloudflare) => Some((4, 100)),
        (None, Class::PowerDNS) => None,
    }
}

/// Builds the Upstream of the resolver.
pub fn build_resolver(provider: &DnsProvider, resolver: &Resolver) -> Value {
    let upstream = json!({
        "url": resolver.url.trim_end_matches('/'),
        "allowedNamespaces": provider.spec.allowed_namespaces,
        "timeoutSeconds": RESOLVER_TIMEOUT_SECONDS,
    });
    build_object(provider, &resolver_name(provider.name()), &upstream)
}

fn build_object(provider: &DnsProvider, name: &str, spec: &Value) -> Value {
    let reference = driver::upstream_ref(provider.namespace(), name);
    json!({
        "apiVersion": reference.gvk.api_version(),
        "kind": reference.gvk.kind,
        "metadata": { "name": reference.name, "namespace": reference.namespace },
        "spec": spec,
    })
}
