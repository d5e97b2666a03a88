//! Reconciles `dns.ostler.dev/v1alpha1` DnsProvider: keeps the `Upstream` through which its records are managed, that of
//! its resolver, and probes the credentials.

mod upstream;

use dns_api::{
    Class, DnsProvider, DnsProviderSpec, DnsProviderStatus, DnsRecordSpec, ProviderOperation, driver,
    first_line, is_token_malformed, resolver_name, suspended_outcome,
};
use ostler_sdk::{Response, Selection, prelude::*, serde_json::Value};

/// Number of characters of the digest of the credentials in the status.
const DIGEST_CHARS: usize = 16;

const AUTHENTICATION_FAILED: &str = "AuthenticationFailed";
const PROBE_FAILED: &str = "ProbeFailed";
const PROBE: ProviderOperation = ProviderOperation::new("probe the provider", PROBE_FAILED);

/// Reconciles DnsProviders.
pub struct DnsProviders;

impl Reconciler for DnsProviders {
    type Spec = DnsProviderSpec;
    const FINALIZER: Option<&'static str> = Some("dns.ostler.dev/provider");

    fn reconcile(&self, ctx: &Context, provider: &DnsProvider) -> Result<Outcome, Failure> {
        if provider.spec.suspend {
            return Ok(suspended_outcome());
        }
        let url = upstream::api_url(&provider.spec)?;
        ctx.apply_owned(&upstream::build(provider, &url))?;
        let resolver_url = apply_resolver(ctx, provider)?;
        // Before the probe, so that a changed Secret is a reason to repeat a failed one.
        let credentials_digest = digest_credentials(ctx, provider)?;
        let body = probe(ctx, provider)?;
        let status = DnsProviderStatus {
            url: Some(url),
            version: body["version"].as_str().map(first_line),
            resolver_url,
            credentials_digest,
        };
        Ok(Outcome::poll(driver::poll_interval(&provider.spec))
            .with(Condition::new_true(
                "Ready",
                "Ready",
                "The provider accepts the credentials.",
            ))
            .status(&status))
    }

    fn cleanup(&self, ctx: &Context, provider: &DnsProvider) -> Result<Outcome, Failure> {
        // The Upstream is deleted with the DnsProvider, and the cleanup of records needs it.
        let records = list_records(ctx, provider)?;
        if records.is_empty() {
            return Ok(Outcome::await_change());
        }
        let message = format!("Waiting for DnsRecords that use it: {}.", records.join(", "));
        Err(Failure::wait("RecordsRemain", message))
    }
}

/// Applies the Upstream of the resolver, or deletes it when there is none any more. Returns its URL.
fn apply_resolver(ctx: &Context, provider: &DnsProvider) -> Result<Option<String>, Failure> {
    match &provider.spec.resolver {
        Some(resolver) => {
            ctx.apply_owned(&upstream::build_resolver(provider, resolver))?;
            Ok(Some(resolver.url.clone()))
        }
        None if provider.status.resolver_url.is_some() => {
            let name = resolver_name(provider.name());
            ctx.delete(&driver::upstream_ref(provider.namespace(), &name))?;
            Ok(None)
        }
        None => Ok(None),
    }
}

/// Sends a request that only valid credentials can answer.
fn probe(ctx: &Context, provider: &DnsProvider) -> Result<Value, Failure> {
    let api = ctx.upstream(provider.name());
    let path = match provider.spec.class {
        Class::PowerDNS => "/api/v1/servers/localhost",
        Class::Cloudflare => "/user/tokens/verify",
        Class::GoDaddy => "/v1/domains?statuses=ACTIVE&limit=1",
    };
    let response = match api.get(path).send() {
        // The Secret of the credentials does not exist (yet).
        Err(error @ Error::NotFound(_)) => return Err(error).reason(AUTHENTICATION_FAILED),
        answer => PROBE.receive(answer)?,
    };
    match response.status() {
        200 => Ok(response.value().reason(PROBE_FAILED)?),
        401 | 403 => Err(credentials_refused(provider, &response)),
        400 if is_token_malformed(&response) => Err(credentials_refused(provider, &response)),
        _ => Err(PROBE.failure(&response).reason(PROBE_FAILED)),
    }
}

fn credentials_refused(provider: &DnsProvider, response: &Response) -> Failure {
    let hint = match (provider.spec.class, response.status()) {
        (Class::GoDaddy, 403) => {
            " GoDaddy offers its DNS API only to accounts with 10 domains or more, or with a Discount Domain Club plan."
        }
        (Class::GoDaddy, _) => " The Secret must hold KEY:SECRET.",
        (Class::Cloudflare, _) => " The token needs Zone:Read and DNS:Edit.",
        (Class::PowerDNS, _) => " The Secret must hold the value of the setting api-key.",
    };
    let failure = PROBE.failure(response);
    let message = failure.message + "." + hint;
    Failure::retry(AUTHENTICATION_FAILED, message)
}

/// A digest of the credentials, which makes a change of the Secret a reason to reconcile.
fn digest_credentials(ctx: &Context, provider: &DnsProvider) -> Result<Option<String>, Failure> {
    let key = &provider.spec.credentials_ref;
    let digest = ctx.secret_digest(&key.name, &key.key)?;
    Ok(digest.map(|digest| digest.chars().take(DIGEST_CHARS).collect()))
}

/// Namespaces and names of the DnsRecords that use the provider. As JSON, because a deletion must not fail when one of
/// them is invalid.
fn list_records(ctx: &Context, provider: &DnsProvider) -> Result<Vec<String>, Error> {
    let fields = format!("spec.providerRef.name={}", provider.name());
    let selection = Selection {
        fields: Some(&fields),
        ..Selection::default()
    };
    let records = ctx.list_json(
        &DnsRecordSpec::gvk(),
        &selection,
        &["metadata", "spec.providerRef"],
    )?;
    let of_provider = records.iter().filter_map(|record| {
        let own = record["metadata"]["namespace"].as_str()?;
        let namespace = record["spec"]["providerRef"]["namespace"].as_str();
        let namespace = namespace.filter(|n| !n.is_empty()).unwrap_or(own);
        let name = record["metadata"]["name"].as_str()?;
        (namespace == provider.namespace()).then(|| format!("{own}/{name}"))
    });
    Ok(of_provider.collect())
}

ostler_sdk::plugin!(DnsProviders);
