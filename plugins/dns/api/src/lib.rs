//! The API types of the DNS pack (`dns.ostler.dev/v1alpha1`), and what its reconcilers share.
//!
//! A `DnsRecord` is what users write. Its reconciler resolves it and applies a record set of the kind that belongs to
//! the class of its `DnsProvider`; the driver of that class reconciles the record set by [`driver`].

mod common;
#[cfg(not(target_arch = "wasm32"))]
mod crds;
pub mod driver;
mod mark;
mod name;
mod provider;
mod record;
mod record_set;
mod response;
mod value;

pub use common::{RecordReclaimPolicy, suspended_outcome};
#[cfg(not(target_arch = "wasm32"))]
pub use crds::crds;
pub use mark::Mark;
pub use name::{canonical_zone, check_name, encode_name, relative_name, resolve_name};
pub use ostler_sdk::{Reference, SecretKey};
pub use provider::{
    Class, DnsProvider, DnsProviderSpec, DnsProviderStatus, ProviderLimits, ProviderTls, Resolver,
    resolver_name,
};
pub use record::{DnsRecord, DnsRecordSpec, DnsRecordStatus};
pub use record_set::{
    CloudflareRecordSet, CloudflareRecordSetSpec, GoDaddyRecordSet, GoDaddyRecordSetSpec, PowerDnsRecordSet,
    PowerDnsRecordSetSpec, RecordSetSpec, RecordSetStatus,
};
pub use response::{ProviderOperation, first_line, is_missing, is_token_malformed};
pub use value::{RecordType, canonical_value, canonical_values, decode_text, encode_text};
