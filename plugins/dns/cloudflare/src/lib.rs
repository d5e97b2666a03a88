//! Reconciles `dns.ostler.dev/v1alpha1` CloudflareRecordSet by Cloudflare's API v4.
//!
//! Cloudflare has no record sets but one object per value, with an ID. Its batch request changes several in one
//! transaction: mark and records come and go together.

use dns_api::{
    CloudflareRecordSet, CloudflareRecordSetSpec, ProviderOperation, RecordType, canonical_value,
    driver::{self, Changes, DesiredRecords, Driver, Found, Observed, SHARED_LISTING, TtlRules, add_value},
    encode_name, encode_text,
};
use ostler_sdk::{Response, Upstream, prelude::*, serde_json::Value};

/// Time to live that Cloudflare chooses itself.
const AUTOMATIC_TTL: u32 = 1;
/// `Cache-Control` of the search for a zone's ID.
const SHARED_ZONE: &str = "max-age=300";
/// Wait for a zone that the token does not show.
const ZONE_WAIT_MS: u64 = 300_000;
/// Pages of a listing; a larger zone is read by name.
const MAX_PAGES: u64 = 10;
const PAGE_RECORDS: usize = 1000;

const FIND_ZONE: ProviderOperation = ProviderOperation::new("find the zone at Cloudflare", "ReadFailed");
const READ_RECORDS: ProviderOperation =
    ProviderOperation::new("read the records at Cloudflare", "ReadFailed");
const WRITE_RECORDS: ProviderOperation =
    ProviderOperation::new("write the records at Cloudflare", "WriteFailed");
const DELETE_RECORDS: ProviderOperation =
    ProviderOperation::new("delete the records at Cloudflare", "DeleteFailed");

/// Reconciles CloudflareRecordSets.
pub struct CloudflareRecordSets;

impl Reconciler for CloudflareRecordSets {
    type Spec = CloudflareRecordSetSpec;
    const FINALIZER: Option<&'static str> = Some(driver::FINALIZER);

    fn reconcile(&self, ctx: &Context, set: &CloudflareRecordSet) -> Result<Outcome, Failure> {
        driver::reconcile(self, ctx, set)
    }

    fn cleanup(&self, ctx: &Context, set: &CloudflareRecordSet) -> Result<Outcome, Failure> {
        driver::cleanup(self, ctx, set)
    }
}

impl Driver for CloudflareRecordSets {
    type Spec = CloudflareRecordSetSpec;
    const TTL: TtlRules = TtlRules {
        default: AUTOMATIC_TTL,
        min: 60,
        max: 86_400,
        automatic: Some(AUTOMATIC_TTL),
    };
    const HAS_LISTING: bool = true;

    fn check(&self, desired: &DesiredRecords) -> Result<(), String> {
        if !desired.proxied {
            return Ok(());
        }
        if !matches!(desired.kind, RecordType::A | RecordType::AAAA | RecordType::CNAME) {
            return Err(format!(
                "spec.proxied is set, but Cloudflare proxies only A, AAAA and CNAME, not {}: remove it",
                desired.kind.as_str()
            ));
        }
        if desired.ttl != AUTOMATIC_TTL {
            return Err(
                "spec.ttl is set, but the TTL of a proxied name is automatic: remove spec.ttl or spec.proxied"
                    .into(),
            );
        }
        Ok(())
    }

    fn observe(
        &self,
        api: &Upstream,
        desired: &DesiredRecords,
        may_share: bool,
    ) -> Result<Observed, Failure> {
        let zone = find_zone(api, &desired.zone)?;
        let listed = if may_share { list_zone(api, &zone)? } else { None };
        let objects = match listed {
            Some(objects) => objects,
            None => read_names(api, &zone, desired)?,
        };
        Ok(Observed {
            records: find_records(&objects, &desired.fqdn, desired.kind),
            mark: find_records(&objects, &desired.mark.fqdn, RecordType::TXT),
        })
    }

    fn write(
        &self,
        api: &Upstream,
        desired: &DesiredRecords,
        observed: &Observed,
        changes: Changes,
    ) -> Result<(), Failure> {
        let (mut deletes, mut patches, mut posts) = (Vec::new(), Vec::new(), Vec::new());
        if changes.mark {
            let text = encode_text(&desired.mark.text);
            posts.push(json!({
                "type": "TXT", "name": desired.mark.fqdn, "content": text, "ttl": AUTOMATIC_TTL,
            }));
        }
        if changes.records {
            let found = observed.records.clone().unwrap_or_default();
            for (id, value) in &found.ids {
                if desired.values.contains(value) {
                    patches.push(json!({
                        "id": id, "ttl": desired.ttl, "proxied": desired.proxied,
                    }));
                } else {
                    deletes.push(json!({ "id": id }));
                }
            }
            let missing = desired.values.difference(&found.values);
            posts.extend(missing.map(|value| build_record(desired, value)));
        }
        let batch = json!({ "deletes": deletes, "patches": patches, "posts": posts });
        send_batch(api, desired, &batch, WRITE_RECORDS)
    }

    fn delete(&self, api: &Upstream, desired: &DesiredRecords, observed: &Observed) -> Result<(), Failure> {
        let found = [&observed.records, &observed.mark].into_iter().flatten();
        let ids = found.flat_map(|found| &found.ids);
        let deletes: Vec<Value> = ids.map(|(id, _)| json!({ "id": id })).collect();
        send_batch(api, desired, &json!({ "deletes": deletes }), DELETE_RECORDS)
    }
}

fn records_path(zone_id: &str) -> String {
    format!("/zones/{zone_id}/dns_records")
}

/// The body of a response in Cloudflare's envelope.
fn read_body(operation: ProviderOperation, answer: Result<Response, Error>) -> Result<Value, Failure> {
    let response = operation.check(answer)?;
    let body = response.value()?;
    if body["success"] == true {
        return Ok(body);
    }
    Err(operation.failure(&response))
}

/// The ID of a zone.
fn find_zone(api: &Upstream, zone: &str) -> Result<String, Failure> {
    let request = api
        .get(format!("/zones?name={zone}"))
        .header("Cache-Control", SHARED_ZONE);
    let body = read_body(FIND_ZONE, request.send())?;
    let zones = body["result"].as_array();
    // It is asked for by its encoded name, and shown as people write it.
    let is_zone = |found: &&Value| {
        found["name"]
            .as_str()
            .is_some_and(|name| encode_name(name) == zone)
    };
    let found = zones.and_then(|zones| zones.iter().find(is_zone));
    if let Some(id) = found.and_then(|found| found["id"].as_str()) {
        return Ok(id.to_owned());
    }
    let message =
        format!("The token shows no zone {zone}: it needs Zone:Read for it, or the zone is not there.");
    Err(Failure::throttled(ZONE_WAIT_MS, "ZoneNotVisible", message))
}

/// The records of a zone, from a listing that all record sets share; none if it has too many pages.
fn list_zone(api: &Upstream, zone_id: &str) -> Result<Option<Vec<Value>>, Failure> {
    let mut objects = Vec::new();
    for page in 1..=MAX_PAGES {
        let path = format!("{}?per_page={PAGE_RECORDS}&page={page}", records_path(zone_id));
        let request = api.get(path).header("Cache-Control", SHARED_LISTING);
        let mut body = read_body(READ_RECORDS, request.send())?;
        if let Value::Array(result) = body["result"].take() {
            objects.extend(result);
        }
        let pages = body["result_info"]["total_pages"].as_u64().unwrap_or(1);
        if pages > MAX_PAGES {
            return Ok(None);
        }
        if page >= pages {
            break;
        }
    }
    Ok(Some(objects))
}

/// The records at the names of the record and its mark.
fn read_names(api: &Upstream, zone_id: &str, desired: &DesiredRecords) -> Result<Vec<Value>, Failure> {
    let read = |name: &str| {
        api.get(format!(
            "{}?name.exact={name}&per_page=100",
            records_path(zone_id)
        ))
    };
    let answers = api.send_all([read(&desired.fqdn), read(&desired.mark.fqdn)]);
    let mut objects = Vec::new();
    for answer in answers {
        let mut body = read_body(READ_RECORDS, answer)?;
        if let Value::Array(result) = body["result"].take() {
            objects.extend(result);
        }
    }
    Ok(objects)
}

fn find_records(objects: &[Value], fqdn: &str, kind: RecordType) -> Option<Found> {
    let mut found = None;
    for object in objects {
        let name = object["name"].as_str().unwrap_or_default();
        if object["type"] != kind.as_str() || encode_name(name) != fqdn {
            continue;
        }
        let value = parse_value(object, kind);
        let ttl = object["ttl"].as_u64().and_then(|ttl| u32::try_from(ttl).ok());
        add_value(&mut found, kind, &value, ttl.unwrap_or_default());
        let canonical = canonical_value(kind, &value).unwrap_or(value);
        if let Some(found) = &mut found {
            let proxied = object["proxied"] == true;
            found.is_irregular |= !found.ids.is_empty() && found.proxied != proxied;
            found.proxied |= proxied;
            let id = object["id"].as_str().unwrap_or_default();
            found.ids.push((id.to_owned(), canonical));
        }
    }
    found
}

fn parse_value(object: &Value, kind: RecordType) -> String {
    let content = object["content"].as_str().unwrap_or_default();
    let data = &object["data"];
    match kind {
        RecordType::MX => format!("{} {}", object["priority"], encode_name(content)),
        RecordType::SRV => format!(
            "{} {} {} {}",
            data["priority"],
            data["weight"],
            data["port"],
            encode_name(data["target"].as_str().unwrap_or_default())
        ),
        RecordType::CNAME => encode_name(content),
        RecordType::A | RecordType::AAAA | RecordType::TXT => content.to_owned(),
    }
}

/// A record as Cloudflare takes it: MX and SRV in fields, TXT in quotes.
fn build_record(desired: &DesiredRecords, value: &str) -> Value {
    let mut record = json!({
        "type": desired.kind.as_str(), "name": desired.fqdn, "ttl": desired.ttl,
    });
    let mut words = value.split(' ');
    let mut number = || words.next().and_then(|word| word.parse::<u16>().ok());
    match desired.kind {
        RecordType::TXT => record["content"] = encode_text(value).into(),
        RecordType::MX => {
            record["priority"] = number().into();
            record["content"] = words.next().into();
        }
        RecordType::SRV => {
            let (priority, weight, port) = (number(), number(), number());
            record["data"] = json!({
                "priority": priority, "weight": weight, "port": port, "target": words.next(),
            });
        }
        RecordType::A | RecordType::AAAA | RecordType::CNAME => {
            record["content"] = value.into();
            record["proxied"] = desired.proxied.into();
        }
    }
    record
}

fn send_batch(
    api: &Upstream,
    desired: &DesiredRecords,
    batch: &Value,
    operation: ProviderOperation,
) -> Result<(), Failure> {
    let zone = find_zone(api, &desired.zone)?;
    let path = format!("{}/batch", records_path(&zone));
    read_body(operation, api.post(path).json(batch).send())?;
    Ok(())
}

ostler_sdk::plugin!(CloudflareRecordSets);
