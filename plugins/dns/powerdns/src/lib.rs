//! Reconciles `dns.ostler.dev/v1alpha1` PowerDnsRecordSet by the HTTP API of the PowerDNS Authoritative Server.
//!
//! PowerDNS has record sets, and changes several of them in one transaction: mark and records come and go together. It
//! has no rate limit and reads one name at a time, so there is no shared listing.

use dns_api::{
    PowerDnsRecordSet, PowerDnsRecordSetSpec, ProviderOperation, RecordType,
    driver::{self, Changes, DesiredRecords, Driver, Found, Observed, TtlRules, add_value},
    encode_text,
};
use ostler_sdk::{Upstream, prelude::*, serde_json::Value};

const ZONES_PATH: &str = "/api/v1/servers/localhost/zones";

const READ_RECORDS: ProviderOperation = ProviderOperation::new("read the records at PowerDNS", "ReadFailed");
const WRITE_RECORDS: ProviderOperation =
    ProviderOperation::new("write the records at PowerDNS", "WriteFailed");
const DELETE_RECORDS: ProviderOperation =
    ProviderOperation::new("delete the records at PowerDNS", "DeleteFailed");

/// Reconciles PowerDnsRecordSets.
pub struct PowerDnsRecordSets;

impl Reconciler for PowerDnsRecordSets {
    type Spec = PowerDnsRecordSetSpec;
    const FINALIZER: Option<&'static str> = Some(driver::FINALIZER);

    fn reconcile(&self, ctx: &Context, set: &PowerDnsRecordSet) -> Result<Outcome, Failure> {
        driver::reconcile(self, ctx, set)
    }

    fn cleanup(&self, ctx: &Context, set: &PowerDnsRecordSet) -> Result<Outcome, Failure> {
        driver::cleanup(self, ctx, set)
    }
}

impl Driver for PowerDnsRecordSets {
    type Spec = PowerDnsRecordSetSpec;
    const TTL: TtlRules = TtlRules {
        default: 300,
        min: 1,
        max: 604_800,
        automatic: None,
    };
    const HAS_LISTING: bool = false;

    fn check(&self, desired: &DesiredRecords) -> Result<(), String> {
        if desired.proxied {
            return Err(
                "spec.proxied is set, but PowerDNS has no proxy: remove it, or use a provider of the class Cloudflare"
                    .into(),
            );
        }
        if desired.kind == RecordType::CNAME && desired.fqdn == desired.zone {
            return Err("a zone's own name cannot be a CNAME: use A and AAAA".into());
        }
        Ok(())
    }

    fn observe(
        &self,
        api: &Upstream,
        desired: &DesiredRecords,
        _may_share: bool,
    ) -> Result<Observed, Failure> {
        let read = |name: &str| {
            // Without it errors are plain text, like those of anything else at the URL.
            let request = api.get(format!("{}?rrset_name={name}.", zone_path(&desired.zone)));
            request.header("Accept", "application/json")
        };
        let [records, mark] = api.send_all([read(&desired.fqdn), read(&desired.mark.fqdn)]);
        let records = READ_RECORDS.check(records)?.value()?;
        let mark = READ_RECORDS.check(mark)?.value()?;
        Ok(Observed {
            records: find_records(&records, &desired.fqdn, desired.kind),
            mark: find_records(&mark, &desired.mark.fqdn, RecordType::TXT),
        })
    }

    fn write(
        &self,
        api: &Upstream,
        desired: &DesiredRecords,
        _observed: &Observed,
        changes: Changes,
    ) -> Result<(), Failure> {
        let mut sets = Vec::new();
        if changes.mark {
            let texts = [&desired.mark.text];
            sets.push(build_replace(
                &desired.mark.fqdn,
                RecordType::TXT,
                desired.ttl,
                texts,
            ));
        }
        if changes.records {
            sets.push(build_replace(
                &desired.fqdn,
                desired.kind,
                desired.ttl,
                &desired.values,
            ));
        }
        patch(api, desired, &sets, WRITE_RECORDS)
    }

    fn delete(&self, api: &Upstream, desired: &DesiredRecords, _observed: &Observed) -> Result<(), Failure> {
        let sets = [
            build_delete(&desired.fqdn, desired.kind),
            build_delete(&desired.mark.fqdn, RecordType::TXT),
        ];
        patch(api, desired, &sets, DELETE_RECORDS)
    }
}

fn zone_path(zone: &str) -> String {
    format!("{ZONES_PATH}/{zone}.")
}

fn patch(
    api: &Upstream,
    desired: &DesiredRecords,
    sets: &[Value],
    operation: ProviderOperation,
) -> Result<(), Failure> {
    let request = api
        .patch(zone_path(&desired.zone))
        .header("Accept", "application/json");
    operation.check(request.json(&json!({ "rrsets": sets })).send())?;
    Ok(())
}

fn build_replace<'a>(
    fqdn: &str,
    kind: RecordType,
    ttl: u32,
    values: impl IntoIterator<Item = &'a String>,
) -> Value {
    let records = values
        .into_iter()
        .map(|value| json!({ "content": format_content(kind, value), "disabled": false }));
    json!({
        "name": format!("{fqdn}."), "type": kind.as_str(), "ttl": ttl, "changetype": "REPLACE",
        "records": records.collect::<Vec<_>>(),
    })
}

fn build_delete(fqdn: &str, kind: RecordType) -> Value {
    json!({ "name": format!("{fqdn}."), "type": kind.as_str(), "changetype": "DELETE" })
}

/// A canonical value as PowerDNS takes it: with quotes, or a dot at the end of a name.
fn format_content(kind: RecordType, value: &str) -> String {
    match kind {
        RecordType::A | RecordType::AAAA => value.to_owned(),
        RecordType::TXT => encode_text(value),
        RecordType::CNAME | RecordType::MX | RecordType::SRV if value.ends_with('.') => value.to_owned(),
        RecordType::CNAME | RecordType::MX | RecordType::SRV => format!("{value}."),
    }
}

/// The records of a name and type in the response to a read. Servers before 4.5 ignore the filter and return the whole
/// zone.
fn find_records(zone: &Value, fqdn: &str, kind: RecordType) -> Option<Found> {
    let sets = zone["rrsets"].as_array().into_iter().flatten();
    let mut sets = sets.filter(|set| {
        let name = set["name"].as_str().unwrap_or_default();
        set["type"] == kind.as_str() && name.trim_end_matches('.').eq_ignore_ascii_case(fqdn)
    });
    let set = sets.next()?;
    let ttl = set["ttl"].as_u64().and_then(|ttl| u32::try_from(ttl).ok());
    let mut found = None;
    for record in set["records"].as_array().into_iter().flatten() {
        let content = record["content"].as_str().unwrap_or_default();
        add_value(&mut found, kind, content, ttl.unwrap_or_default());
        if record["disabled"] == true
            && let Some(found) = &mut found
        {
            found.is_irregular = true;
        }
    }
    found
}

ostler_sdk::plugin!(PowerDnsRecordSets);
