//! Reconciles `dns.ostler.dev/v1alpha1` GoDaddyRecordSet by GoDaddy's Domains API v1.
//!
//! GoDaddy replaces the records of one name and type at a time, so the mark is written first and deleted last. Its
//! request that adds records is not used: repeated, it would add them twice.

use dns_api::{
    GoDaddyRecordSet, GoDaddyRecordSetSpec, ProviderOperation, RecordType,
    driver::{self, Changes, DesiredRecords, Driver, Found, Observed, SHARED_LISTING, TtlRules, add_value},
    encode_text, is_missing, relative_name,
};
use ostler_sdk::{Upstream, prelude::*, serde_json::Value};

const READ_RECORDS: ProviderOperation = ProviderOperation::new("read the records at GoDaddy", "ReadFailed");
const WRITE_MARK: ProviderOperation = ProviderOperation::new("write the mark at GoDaddy", "WriteFailed");
const WRITE_RECORDS: ProviderOperation =
    ProviderOperation::new("write the records at GoDaddy", "WriteFailed");
const DELETE_RECORDS: ProviderOperation =
    ProviderOperation::new("delete the records at GoDaddy", "DeleteFailed");

/// Reconciles GoDaddyRecordSets.
pub struct GoDaddyRecordSets;

impl Reconciler for GoDaddyRecordSets {
    type Spec = GoDaddyRecordSetSpec;
    const FINALIZER: Option<&'static str> = Some(driver::FINALIZER);

    fn reconcile(&self, ctx: &Context, set: &GoDaddyRecordSet) -> Result<Outcome, Failure> {
        driver::reconcile(self, ctx, set)
    }

    fn cleanup(&self, ctx: &Context, set: &GoDaddyRecordSet) -> Result<Outcome, Failure> {
        driver::cleanup(self, ctx, set)
    }
}

impl Driver for GoDaddyRecordSets {
    type Spec = GoDaddyRecordSetSpec;
    const TTL: TtlRules = TtlRules {
        default: 600,
        min: 600,
        max: 604_800,
        automatic: None,
    };
    const HAS_LISTING: bool = true;

    fn check(&self, desired: &DesiredRecords) -> Result<(), String> {
        if desired.proxied {
            return Err(
                "spec.proxied is set, but GoDaddy has no proxy: remove it, or use a provider of the class Cloudflare"
                    .into(),
            );
        }
        if desired.kind == RecordType::CNAME && desired.fqdn == desired.zone {
            return Err("a zone's own name cannot be a CNAME: use A and AAAA".into());
        }
        if desired.kind == RecordType::SRV && split_service(&record_name(desired)).is_none() {
            return Err("the name of an SRV record has to start with _service._protocol".into());
        }
        Ok(())
    }

    fn observe(
        &self,
        api: &Upstream,
        desired: &DesiredRecords,
        may_share: bool,
    ) -> Result<Observed, Failure> {
        let (records, mark) = if may_share {
            let path = format!("/v1/domains/{}/records", desired.zone);
            let request = api.get(path).header("Cache-Control", SHARED_LISTING);
            let listing = READ_RECORDS.check(request.send())?.value()?;
            (listing.clone(), listing)
        } else {
            let read = |path: String| api.get(path);
            let answers = api.send_all([read(records_path(desired)), read(mark_path(desired))]);
            let [records, mark] = answers;
            (
                READ_RECORDS.check(records)?.value()?,
                READ_RECORDS.check(mark)?.value()?,
            )
        };
        Ok(Observed {
            records: find_records(&records, desired.kind, &record_name(desired)),
            mark: find_records(&mark, RecordType::TXT, &mark_name(desired)),
        })
    }

    fn write(
        &self,
        api: &Upstream,
        desired: &DesiredRecords,
        _observed: &Observed,
        changes: Changes,
    ) -> Result<(), Failure> {
        if changes.mark {
            let mark = [json!({ "data": desired.mark.text, "ttl": desired.ttl })];
            WRITE_MARK.check(api.put(mark_path(desired)).json(&mark).send())?;
        }
        if changes.records {
            let mut records = read_other_services(api, desired)?;
            records.extend(desired.values.iter().map(|value| build_record(desired, value)));
            WRITE_RECORDS.check(api.put(records_path(desired)).json(&records).send())?;
        }
        Ok(())
    }

    fn delete(&self, api: &Upstream, desired: &DesiredRecords, observed: &Observed) -> Result<(), Failure> {
        if observed.records.is_some() {
            let others = read_other_services(api, desired)?;
            if others.is_empty() {
                delete(api, records_path(desired))?;
            } else {
                DELETE_RECORDS.check(api.put(records_path(desired)).json(&others).send())?;
            }
        }
        delete(api, mark_path(desired))
    }
}

fn delete(api: &Upstream, path: String) -> Result<(), Failure> {
    let response = DELETE_RECORDS.receive(api.delete(path).send())?;
    if response.is_success() || is_missing(&response) {
        Ok(())
    } else {
        Err(DELETE_RECORDS.failure(&response))
    }
}

/// A name relative to its zone; `@` for the zone itself.
fn relative_or_apex(fqdn: &str, zone: &str) -> String {
    match relative_name(fqdn, zone) {
        Some("") | None => "@".to_owned(),
        Some(name) => name.to_owned(),
    }
}

fn record_name(desired: &DesiredRecords) -> String {
    relative_or_apex(&desired.fqdn, &desired.zone)
}

fn mark_name(desired: &DesiredRecords) -> String {
    relative_or_apex(&desired.mark.fqdn, &desired.zone)
}

/// Service and protocol of an SRV record, which GoDaddy has in fields of their own, and the rest of its name.
fn split_service(name: &str) -> Option<(&str, &str, &str)> {
    let (service, rest) = name.split_once('.')?;
    let (protocol, host) = rest.split_once('.').unwrap_or((rest, "@"));
    (service.starts_with('_') && protocol.starts_with('_')).then_some((service, protocol, host))
}

fn path_of(zone: &str, kind: RecordType, name: &str) -> String {
    format!("/v1/domains/{zone}/records/{}/{name}", kind.as_str())
}

fn records_path(desired: &DesiredRecords) -> String {
    let name = record_name(desired);
    let host = match (desired.kind, split_service(&name)) {
        (RecordType::SRV, Some((_, _, host))) => host,
        _ => &name,
    };
    path_of(&desired.zone, desired.kind, host)
}

fn mark_path(desired: &DesiredRecords) -> String {
    path_of(&desired.zone, RecordType::TXT, &mark_name(desired))
}

/// Returns whether a record of the response has this name and type.
fn is_record(record: &Value, kind: RecordType, name: &str) -> bool {
    if record["type"]
        .as_str()
        .is_some_and(|found| found != kind.as_str())
    {
        return false;
    }
    let is_name = |name: &str| {
        let found = record["name"].as_str().unwrap_or_default();
        found.eq_ignore_ascii_case(name)
    };
    match (kind, split_service(name)) {
        (RecordType::SRV, Some((service, protocol, host))) => {
            record["service"] == service && record["protocol"] == protocol && is_name(host)
        }
        _ => is_name(name),
    }
}

fn find_records(records: &Value, kind: RecordType, name: &str) -> Option<Found> {
    let mut found = None;
    let records = records.as_array().into_iter().flatten();
    for record in records.filter(|record| is_record(record, kind, name)) {
        let data = record["data"].as_str().unwrap_or_default();
        let value = match kind {
            RecordType::MX => format!("{} {data}", record["priority"]),
            RecordType::SRV => format!(
                "{} {} {} {data}",
                record["priority"], record["weight"], record["port"]
            ),
            // GoDaddy has the text itself, which may begin with a quote.
            RecordType::TXT => encode_text(data),
            RecordType::A | RecordType::AAAA | RecordType::CNAME => data.to_owned(),
        };
        let ttl = record["ttl"].as_u64().and_then(|ttl| u32::try_from(ttl).ok());
        add_value(&mut found, kind, &value, ttl.unwrap_or_default());
    }
    found
}

/// The SRV records of other services at the same host: a write replaces all of them together.
fn read_other_services(api: &Upstream, desired: &DesiredRecords) -> Result<Vec<Value>, Failure> {
    if desired.kind != RecordType::SRV {
        return Ok(Vec::new());
    }
    let name = record_name(desired);
    let records = READ_RECORDS
        .check(api.get(records_path(desired)).send())?
        .value()?;
    let records = records.as_array().into_iter().flatten();
    let others = records.filter(|record| !is_record(record, desired.kind, &name));
    Ok(others.cloned().collect())
}

fn build_record(desired: &DesiredRecords, value: &str) -> Value {
    let mut words = value.split(' ');
    let mut number = || words.next().and_then(|word| word.parse::<u16>().ok());
    match desired.kind {
        RecordType::MX => {
            let priority = number();
            json!({ "data": words.next(), "priority": priority, "ttl": desired.ttl })
        }
        RecordType::SRV => {
            let (priority, weight, port) = (number(), number(), number());
            let name = record_name(desired);
            let (service, protocol, host) = split_service(&name).unwrap_or_default();
            json!({
                "data": words.next(), "priority": priority, "weight": weight, "port": port,
                "service": service, "protocol": protocol, "name": host, "ttl": desired.ttl,
            })
        }
        RecordType::A | RecordType::AAAA | RecordType::CNAME | RecordType::TXT => {
            json!({ "data": value, "ttl": desired.ttl })
        }
    }
}

ostler_sdk::plugin!(GoDaddyRecordSets);
