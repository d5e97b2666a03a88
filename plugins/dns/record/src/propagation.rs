//! The condition `Propagated`: a resolver answers with the records.
//!
//! A component reaches HTTP servers only, so the resolver is asked by DNS over HTTPS (RFC 8484). By GET, since a query
//! changes nothing.

use std::collections::BTreeSet;

use dns_api::{
    DnsProvider, DnsRecord, DnsRecordStatus, RecordType, Resolver, canonical_values, driver, resolver_name,
};
use ostler_sdk::{Response, from_rfc3339, prelude::*};

use crate::message::{self, QueryAnswer};

const CONDITION_TYPE: &str = "Propagated";
/// Intervals of the queries while the records are not visible: as long as they have been written, within these limits.
const MIN_INTERVAL_MS: u64 = 2_000;
const MAX_INTERVAL_MS: u64 = 300_000;

/// The outcome for records that the provider has.
pub fn check(
    ctx: &Context,
    record: &DnsRecord,
    provider: &DnsProvider,
    status: &DnsRecordStatus,
) -> Result<Outcome, Failure> {
    let ready = Condition::new_true("Ready", "Ready", "The provider has the records.");
    let Some(resolver) = &provider.spec.resolver else {
        let message = "The DnsProvider has no spec.resolver to ask.";
        let unknown = Condition::new_unknown(CONDITION_TYPE, "NoResolver", message);
        return Ok(Outcome::await_change().with(ready).with(unknown).status(status));
    };
    let condition = match query(ctx, record, provider, resolver, status) {
        Ok(answer) => judge(record, &answer),
        Err(problem) => Condition::new_unknown(CONDITION_TYPE, "ResolverFailed", problem),
    };
    let is_visible = condition.status == ostler_sdk::ConditionStatus::True;
    let interval = if is_visible {
        driver::poll_interval(&provider.spec)
    } else {
        retry_interval(ctx, status)
    };
    Ok(Outcome::poll(interval).with(ready).with(condition).status(status))
}

fn retry_interval(ctx: &Context, status: &DnsRecordStatus) -> u64 {
    let written = status.last_applied.as_deref().and_then(from_rfc3339);
    let age = written.map_or(0, |at| ctx.now().saturating_sub(at * 1000));
    age.clamp(MIN_INTERVAL_MS, MAX_INTERVAL_MS)
}

fn query(
    ctx: &Context,
    record: &DnsRecord,
    provider: &DnsProvider,
    resolver: &Resolver,
    status: &DnsRecordStatus,
) -> Result<QueryAnswer, String> {
    let name = status.fqdn.as_deref().unwrap_or_default();
    let query = message::encode_query(name, record.spec.r#type);
    let path = format!(
        "{}?dns={}",
        resolver.query_path(),
        message::encode_base64url(&query)
    );
    let upstream = ctx.upstream_in(provider.namespace(), &resolver_name(provider.name()));
    let request = upstream.get(path).header("Accept", "application/dns-message");
    let response: Response = request.send().map_err(|error| error.text())?;
    if response.status() != 200 {
        return Err(format!("The resolver responded with HTTP {}.", response.status()));
    }
    let answer = message::decode_answer(response.bytes(), record.spec.r#type);
    answer.ok_or_else(|| "The resolver did not respond with a DNS message.".to_owned())
}

fn judge(record: &DnsRecord, answer: &QueryAnswer) -> Condition {
    let visible: BTreeSet<String> = answer.values.iter().cloned().collect();
    let spec = &record.spec;
    let wanted = canonical_values(spec.r#type, &spec.values).unwrap_or_default();
    // A proxied name has the addresses of the proxy.
    let is_proxied = spec.proxied == Some(true) && matches!(spec.r#type, RecordType::A | RecordType::AAAA);
    if visible == wanted || (is_proxied && !visible.is_empty()) {
        return Condition::new_true(
            CONDITION_TYPE,
            "Propagated",
            "The resolver answers with the records.",
        );
    }
    let message = match (answer.code, visible.is_empty()) {
        (0, true) => "The resolver knows no such records yet.".to_owned(),
        (0, false) => {
            let seen: Vec<String> = visible.into_iter().collect();
            let seen: String = seen.join(", ").chars().take(300).collect();
            format!("The resolver answers with {seen}: caches keep former records until their TTL is over.")
        }
        (3, _) => "The resolver knows no such name yet.".to_owned(),
        (code, _) => {
            let message = format!("The resolver answers with the error code {code}.");
            return Condition::new_unknown(CONDITION_TYPE, "ResolverFailed", message);
        }
    };
    Condition::new_false(CONDITION_TYPE, "NotVisible", message)
}
