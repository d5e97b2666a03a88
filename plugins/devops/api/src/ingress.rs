//! `IngressResource`: the public address of a Service.

use std::collections::BTreeMap;

use ostler_sdk::{api, resource};

use crate::LocalReference;

/// The public address of a Service: a DNS record, a certificate and an Ingress.
#[resource(
    group = "devops.ostler.dev",
    version = "v1alpha1",
    kind = "IngressResource",
    namespaced,
    status = IngressResourceStatus,
    shortname = "ingres",
    category = "devops",
    doc = "The public address of a Service: DNS record, certificate and Ingress.",
    printcolumn(name = "Host", type = "string", json_path = ".spec.host"),
    printcolumn(name = "URL", type = "string", json_path = ".status.url"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(
    rule = "self.host == oldSelf.host",
    message = "host is immutable: another host is another IngressResource"
)]
#[validation(
    rule = "!has(self.dns) || self.host == self.dns.zone || self.host.endsWith('.' + self.dns.zone)",
    message = "host must be in dns.zone"
)]
pub struct IngressResourceSpec {
    /// Name of the host, such as app.example.com.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$")
    )]
    pub host: String,
    /// The DNS record; without it, the host is expected to resolve already.
    pub dns: Option<IngressDns>,
    /// The certificate; without it, the URL has the scheme http.
    pub certificate: Option<IngressCertificate>,
    /// The Service.
    pub backend: IngressBackend,
    /// Class of the Ingress; defaults to the cluster's default class.
    #[schemars(length(min = 1, max = 253))]
    pub ingress_class_name: Option<String>,
    /// Annotations of the Ingress.
    pub annotations: BTreeMap<String, String>,
}

/// A DNS record of the host.
#[api]
pub struct IngressDns {
    /// Zone of the record.
    #[schemars(length(min = 1, max = 253))]
    pub zone: String,
    /// The DnsProvider.
    pub provider_ref: LocalReference,
    /// Target of the record.
    pub target: DnsTarget,
    /// Time to live of the record in seconds; defaults to that of the provider.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub ttl: Option<i64>,
}

/// Target of a DNS record.
#[api]
#[validation(
    rule = "[has(self.addresses), has(self.hostname), has(self.serviceRef)].filter(x, x).size() == 1",
    message = "exactly one of addresses, hostname or serviceRef must be set"
)]
pub struct DnsTarget {
    /// IPv4 and IPv6 addresses, each kind in a record of its own.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<String>,
    /// Name of another host (CNAME).
    #[schemars(length(min = 1, max = 253))]
    pub hostname: Option<String>,
    /// The Service of the ingress controller, whose load balancer's addresses are used, or else its host name.
    pub service_ref: Option<ServiceReference>,
}

/// A Service.
#[api]
pub struct ServiceReference {
    /// Name of the Service.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Namespace of the Service; defaults to the object's own.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// A certificate of cert-manager.
#[api]
pub struct IngressCertificate {
    /// Issuer that signs it.
    pub issuer_ref: CertificateIssuer,
    /// Name of the Secret with the certificate, which is created and deleted with this object; defaults to the object's name
    /// with `-tls`.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: Option<String>,
}

/// An issuer of cert-manager.
#[api]
pub struct CertificateIssuer {
    /// Name of the issuer.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Kind of the issuer.
    #[serde(default)]
    pub kind: IssuerKind,
}

/// Kind of an issuer.
#[api]
#[derive(Copy, Default, Eq)]
pub enum IssuerKind {
    /// One of the cluster.
    #[default]
    ClusterIssuer,
    /// One of the namespace.
    Issuer,
}

/// The Service that an Ingress directs to.
#[api]
pub struct IngressBackend {
    /// Name of the Service.
    #[schemars(length(min = 1, max = 63))]
    pub service: String,
    /// Port of the Service.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Path of the requests.
    #[serde(default = "root_path")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/"))]
    pub path: String,
    /// Comparison of the path.
    #[serde(default)]
    pub path_type: PathType,
}

fn root_path() -> String {
    "/".into()
}

/// Comparison of a path.
#[api]
#[derive(Copy, Default, Eq)]
pub enum PathType {
    /// The path and all below it.
    #[default]
    Prefix,
    /// This path only.
    Exact,
    /// As the class of the Ingress has it.
    ImplementationSpecific,
}

/// Observed state of the address.
#[api]
#[derive(Default)]
pub struct IngressResourceStatus {
    /// URL of the Service once it can be reached.
    pub url: Option<String>,
    /// Secret of the certificate that is deleted with this object. It is recorded before it is created.
    pub certificate_secret: Option<String>,
}
