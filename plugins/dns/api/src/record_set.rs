//! Record sets: what a DnsRecord asks of the driver of its provider's class. A kind is reconciled by one plugin, so each
//! class has its own.

use std::ops::Deref;

use ostler_sdk::{api, resource};

use crate::{Mark, RecordReclaimPolicy, RecordType, Reference};

/// A DnsRecord in the form that drivers read: names in full, values in canonical form.
#[api]
pub struct RecordSetSpec {
    /// The DnsProvider that serves the zone.
    pub provider_ref: Reference,
    /// Zone of the name, without a dot at its end.
    pub zone: String,
    /// The name in full, without a dot at its end.
    pub fqdn: String,
    /// Type of the records.
    pub r#type: RecordType,
    /// Values in canonical form.
    pub values: Vec<String>,
    /// Time to live in seconds; the default of the class if it is not set.
    pub ttl: Option<u32>,
    /// Serves the name through the provider's proxy.
    pub proxied: Option<bool>,
    /// Decides whether the records are deleted with this object.
    #[serde(default)]
    pub reclaim_policy: RecordReclaimPolicy,
    /// Suspends reconciliation.
    #[serde(default)]
    pub suspend: bool,
}

/// Observed state of a record set.
#[api]
#[derive(Default)]
pub struct RecordSetStatus {
    /// The TXT record that marks the records as managed by this object. It is recorded before the first write; without it,
    /// the deletion of this object sends no request.
    pub mark: Option<Mark>,
    /// Time to live at the provider, in seconds.
    pub ttl: Option<u32>,
    /// Time at which the records were last written.
    #[schemars(extend("format" = "date-time"))]
    pub last_applied: Option<String>,
    /// Cause for which the records are left alone; empty if they are managed.
    pub conflict: Option<String>,
}

macro_rules! record_set {
    ($spec:ident, $kind:literal, $doc:literal) => {
        #[doc = $doc]
        #[resource(
            group = "dns.ostler.dev",
            version = "v1alpha1",
            kind = $kind,
            namespaced,
            status = RecordSetStatus,
            category = "dns",
            doc = $doc,
            printcolumn(name = "FQDN", type = "string", json_path = ".spec.fqdn"),
            printcolumn(name = "Type", type = "string", json_path = ".spec.type"),
            printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
            printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
            printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
        )]
        #[serde(transparent)]
        pub struct $spec(pub RecordSetSpec);

        impl Deref for $spec {
            type Target = RecordSetSpec;

            fn deref(&self) -> &RecordSetSpec {
                &self.0
            }
        }
    };
}

record_set!(
    PowerDnsRecordSetSpec,
    "PowerDnsRecordSet",
    "The records of a DnsRecord at a provider of the class PowerDNS. Written by the DnsRecord; do not edit."
);
record_set!(
    CloudflareRecordSetSpec,
    "CloudflareRecordSet",
    "The records of a DnsRecord at a provider of the class Cloudflare. Written by the DnsRecord; do not edit."
);
record_set!(
    GoDaddyRecordSetSpec,
    "GoDaddyRecordSet",
    "The records of a DnsRecord at a provider of the class GoDaddy. Written by the DnsRecord; do not edit."
);
