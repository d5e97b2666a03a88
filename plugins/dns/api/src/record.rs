use ostler_sdk::{api, resource};

use crate::{RecordReclaimPolicy, RecordType, Reference};

/// The records of one name and type.
#[resource(
    group = "dns.ostler.dev",
    version = "v1alpha1",
    kind = "DnsRecord",
    namespaced,
    status = DnsRecordStatus,
    shortname = "dnsr",
    category = "dns",
    doc = "The DNS records of one name and type.",
    printcolumn(name = "FQDN", type = "string", json_path = ".status.fqdn"),
    printcolumn(name = "Type", type = "string", json_path = ".spec.type"),
    printcolumn(name = "Values", type = "string", json_path = ".spec.values"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Propagated", type = "string", json_path = ".status.conditions[?(@.type==\"Propagated\")].status"),
    printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", priority = 1),
    printcolumn(name = "TTL", type = "integer", json_path = ".status.ttl", priority = 1),
    printcolumn(name = "Provider", type = "string", json_path = ".spec.providerRef.name", priority = 1),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(
    rule = "self.providerRef == oldSelf.providerRef && self.zone == oldSelf.zone && self.name == oldSelf.name && self.type == oldSelf.type",
    message = "providerRef, zone, name and type are immutable: delete the object and create another one"
)]
#[validation(
    rule = "self.type != 'CNAME' || self.values.size() == 1",
    message = "a CNAME has one value"
)]
pub struct DnsRecordSpec {
    /// The DnsProvider that serves the zone.
    pub provider_ref: Reference,
    /// Zone of the name, for example example.com.
    #[schemars(length(min = 1, max = 254))]
    pub zone: String,
    /// Name, relative to the zone or in full; @ for the zone itself, `*` as first label for a wildcard.
    #[schemars(length(min = 1, max = 254))]
    pub name: String,
    /// Type of the records.
    pub r#type: RecordType,
    /// Values. MX: `10 mail.example.com`; SRV: `0 5 5060 sip.example.com` (priority, weight, port, target); TXT: the text
    /// itself, however long.
    #[schemars(length(min = 1, max = 100), inner(length(max = 4096)), extend("x-kubernetes-list-type" = "set"))]
    pub values: Vec<String>,
    /// Time to live in seconds; the default of the provider's class if it is not set.
    #[schemars(range(min = 1, max = 604_800))]
    pub ttl: Option<u32>,
    /// Serves the name through Cloudflare's proxy. For the class Cloudflare only.
    pub proxied: Option<bool>,
    /// Decides whether the records are deleted with this object.
    #[serde(default)]
    pub reclaim_policy: RecordReclaimPolicy,
    /// Suspends reconciliation of this record; nothing is changed at the provider meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

/// Observed state of the records.
#[api]
#[derive(Default)]
pub struct DnsRecordStatus {
    /// The name in full, without a dot at its end.
    pub fqdn: Option<String>,
    /// Time to live at the provider, in seconds.
    pub ttl: Option<u32>,
    /// Name of the TXT record that marks the records as managed by this object.
    pub mark: Option<String>,
    /// Time at which the records were last written.
    #[schemars(extend("format" = "date-time"))]
    pub last_applied: Option<String>,
}
