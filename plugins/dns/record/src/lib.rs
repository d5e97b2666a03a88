//! Reconciles `dns.ostler.dev/v1alpha1` DnsRecord: resolves it, applies the record set that the driver of its provider's
//! class reconciles, and asks a resolver whether the records are visible.

mod message;
mod propagation;

use dns_api::{
    Class, CloudflareRecordSetSpec, DnsProvider, DnsProviderSpec, DnsRecord, DnsRecordSpec, DnsRecordStatus,
    GoDaddyRecordSetSpec, PowerDnsRecordSetSpec, RecordType, canonical_values, canonical_zone, encode_text,
    resolve_name, suspended_outcome,
};
use ostler_sdk::{DeleteOptions, Gvk, ObjectRef, Preconditions, prelude::*, serde_json::Value};

/// Reconciles DnsRecords.
pub struct DnsRecords;

impl Reconciler for DnsRecords {
    type Spec = DnsRecordSpec;
    const FINALIZER: Option<&'static str> = Some("dns.ostler.dev/record");

    fn reconcile(&self, ctx: &Context, record: &DnsRecord) -> Result<Outcome, Failure> {
        // Also of a suspended record: its record set has to stop as well.
        let provider = dereference(ctx, record)?;
        let fqdn = validate(record, &provider)?;
        let set_ref = record_set_ref(record, provider.spec.class);
        ctx.apply_owned(&build_record_set(record, &set_ref, &fqdn)?)?;
        if record.spec.suspend {
            return Ok(suspended_outcome());
        }
        let set = ctx.get_json(&set_ref)?.unwrap_or_default();
        let text = |path: &str| set.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let status = DnsRecordStatus {
            fqdn: Some(fqdn),
            ttl: set["status"]["ttl"]
                .as_u64()
                .and_then(|ttl| u32::try_from(ttl).ok()),
            mark: text("/status/mark/fqdn"),
            last_applied: text("/status/lastApplied"),
        };
        require_applied(&set).map_err(|failure| failure.status(&status))?;
        propagation::check(ctx, record, &provider, &status)
    }

    fn cleanup(&self, ctx: &Context, record: &DnsRecord) -> Result<Outcome, Failure> {
        let provider = &record.spec.provider_ref;
        let provider = ctx.get_json(&DnsProviderSpec::reference(
            provider.namespace_or(record.namespace()),
            &provider.name,
        ))?;
        // A provider that is gone does not tell the class any more.
        let class = provider.and_then(|provider| parse_class(&provider["spec"]["class"]));
        let classes = [Class::PowerDNS, Class::Cloudflare, Class::GoDaddy];
        for class in classes
            .into_iter()
            .filter(|c| class.is_none_or(|class| class == *c))
        {
            delete_record_set(ctx, record, class)?;
        }
        Ok(Outcome::await_change())
    }
}

fn parse_class(class: &Value) -> Option<Class> {
    match class.as_str()? {
        "PowerDNS" => Some(Class::PowerDNS),
        "Cloudflare" => Some(Class::Cloudflare),
        "GoDaddy" => Some(Class::GoDaddy),
        _ => None,
    }
}

/// Dereferences the DnsProvider, which has to be Ready.
fn dereference(ctx: &Context, record: &DnsRecord) -> Result<DnsProvider, Failure> {
    let reference = &record.spec.provider_ref;
    let namespace = reference.namespace_or(record.namespace());
    ctx.require_ready::<DnsProviderSpec>(namespace, &reference.name)
        .reason("ProviderNotReady")
}

/// Validates the record. Returns its name in full.
fn validate(record: &DnsRecord, provider: &DnsProvider) -> Result<String, Failure> {
    let spec = &record.spec;
    let own = (provider.namespace(), provider.name());
    let zone = canonical_zone(&spec.zone);
    provider.spec.admit(own, record.namespace(), &zone)?;
    resolve_name(&spec.name, &spec.zone).map_err(invalid_spec)
}

fn invalid_spec(problem: String) -> Failure {
    Failure::terminal("InvalidSpec", format!("Invalid: {problem}."))
}

fn record_set_kind(class: Class) -> Gvk {
    match class {
        Class::PowerDNS => PowerDnsRecordSetSpec::gvk(),
        Class::Cloudflare => CloudflareRecordSetSpec::gvk(),
        Class::GoDaddy => GoDaddyRecordSetSpec::gvk(),
    }
}

fn record_set_ref(record: &DnsRecord, class: Class) -> ObjectRef {
    record_set_kind(class).named(record.namespace(), record.name())
}

fn build_record_set(record: &DnsRecord, set: &ObjectRef, fqdn: &str) -> Result<Value, Failure> {
    let spec = &record.spec;
    let values = canonical_values(spec.r#type, &spec.values);
    let mut values = values.map_err(|problem| invalid_spec(format!("spec.values: {problem}")))?;
    if spec.r#type == RecordType::TXT {
        // A record set decodes its values, too: a text that begins with a quote would be another one.
        values = values.iter().map(|text| encode_text(text)).collect();
    }
    let mut desired = json!({
        "providerRef": {
            "name": spec.provider_ref.name,
            "namespace": spec.provider_ref.namespace_or(record.namespace()),
        },
        "zone": canonical_zone(&spec.zone),
        "fqdn": fqdn,
        "type": spec.r#type,
        "values": values,
        "reclaimPolicy": spec.reclaim_policy,
        "suspend": spec.suspend,
    });
    if let Some(ttl) = spec.ttl {
        desired["ttl"] = ttl.into();
    }
    if let Some(proxied) = spec.proxied {
        desired["proxied"] = proxied.into();
    }
    Ok(json!({
        "apiVersion": set.gvk.api_version(),
        "kind": set.gvk.kind,
        "metadata": { "name": set.name, "namespace": set.namespace },
        "spec": desired,
    }))
}

/// A condition of a record set for its current generation.
fn find_condition<'a>(set: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = set["status"]["conditions"].as_array()?;
    let generation = &set["metadata"]["generation"];
    conditions
        .iter()
        .find(|c| c["type"] == kind && c["observedGeneration"] == *generation)
}

/// Checks that the driver has applied the record set. Its failure becomes that of the record.
fn require_applied(set: &Value) -> Result<(), Failure> {
    let Some(ready) = find_condition(set, "Ready") else {
        let message = "Waiting for the driver of the provider's class. Is its plugin installed?";
        return Err(Failure::wait("Applying", message));
    };
    if ready["status"] == "True" {
        return Ok(());
    }
    let text = |field: &str| ready[field].as_str().unwrap_or_default();
    let (reason, message) = (text("reason"), text("message"));
    let is_stalled = find_condition(set, "Stalled").is_some_and(|c| c["status"] == "True");
    Err(if is_stalled {
        Failure::terminal(reason, message)
    } else {
        Failure::wait(reason, message)
    })
}

/// Deletes the record set, whose own cleanup deletes the records.
fn delete_record_set(ctx: &Context, record: &DnsRecord, class: Class) -> Result<(), Failure> {
    let reference = record_set_ref(record, class);
    let Some(set) = ctx.get_json(&reference)? else {
        return Ok(());
    };
    let metadata = &set["metadata"];
    let owners = metadata["ownerReferences"].as_array();
    let is_own = owners.is_some_and(|owners| owners.iter().any(|o| o["uid"] == record.metadata.uid.as_str()));
    if !is_own {
        return Ok(());
    }
    if metadata["deletionTimestamp"].is_null() {
        let options = DeleteOptions {
            preconditions: Preconditions::uid(metadata["uid"].as_str().unwrap_or_default()),
            ..DeleteOptions::default()
        };
        ctx.delete_with(&reference, &options)?;
    }
    let ready = set["status"]["conditions"].as_array();
    let ready = ready.and_then(|all| {
        all.iter()
            .find(|c| c["type"] == "Ready" && c["status"] == "False")
    });
    let cause = ready
        .and_then(|ready| ready["message"].as_str())
        .unwrap_or_default();
    let message = format!(
        "Waiting for {} {} to delete the records. {cause}",
        reference.gvk.kind, reference.name
    );
    Err(Failure::wait("RecordSetRemains", message.trim_end()))
}

ostler_sdk::plugin!(DnsRecords);
