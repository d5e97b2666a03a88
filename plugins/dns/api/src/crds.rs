use ostler_sdk::crd::file;

use crate::{
    CloudflareRecordSetSpec, DnsProviderSpec, DnsRecordSpec, GoDaddyRecordSetSpec, PowerDnsRecordSetSpec,
};

/// File name and text of every CRD of the pack.
#[must_use]
pub fn crds() -> Vec<(String, String)> {
    vec![
        file::<DnsProviderSpec>(),
        file::<DnsRecordSpec>(),
        file::<PowerDnsRecordSetSpec>(),
        file::<CloudflareRecordSetSpec>(),
        file::<GoDaddyRecordSetSpec>(),
    ]
}
