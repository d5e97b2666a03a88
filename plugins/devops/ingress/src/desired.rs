//! The objects that an IngressResource describes.

use devops_api::{IngressDns, IngressResource};
use ostler_sdk::{prelude::*, serde_json::Value};

use crate::part::IngressPart;

/// Name of the Secret with the certificate.
pub fn secret_name(ingress: &IngressResource) -> String {
    let certificate = ingress.spec.certificate.as_ref();
    let named = certificate.and_then(|certificate| certificate.secret_name.clone());
    named.unwrap_or_else(|| format!("{}-tls", ingress.name()))
}

fn build_object(ingress: &IngressResource, part: &IngressPart, spec: Value) -> Value {
    let reference = part.reference(ingress);
    json!({
        "apiVersion": reference.gvk.api_version(),
        "kind": part.kind(),
        "metadata": { "name": part.name(ingress), "namespace": ingress.namespace() },
        "spec": spec,
    })
}

/// Records of the host, by what they are a part of.
pub struct Records {
    /// Type and values of the record of IPv4 addresses or of a host name.
    pub main: Option<(&'static str, Vec<String>)>,
    /// Values of the record of IPv6 addresses.
    pub v6: Vec<String>,
}

impl Records {
    /// The records for addresses, or else for the first host name.
    pub fn new(addresses: Vec<String>, hostnames: Vec<String>) -> Self {
        let (v6, v4): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| address.contains(':'));
        let hostname = hostnames.into_iter().next().filter(|_| v6.is_empty());
        let main = match v4.is_empty() {
            false => Some(("A", v4)),
            true => hostname.map(|hostname| ("CNAME", vec![hostname])),
        };
        Self { main, v6 }
    }
}

/// Builds a DNS record.
pub fn build_record(
    ingress: &IngressResource,
    dns: &IngressDns,
    part: &IngressPart,
    (kind, values): (&str, &[String]),
) -> Value {
    let mut spec = json!({
        "providerRef": dns.provider_ref,
        "zone": dns.zone,
        "name": ingress.spec.host,
        "type": kind,
        "values": values,
    });
    if let Some(ttl) = dns.ttl {
        spec["ttl"] = ttl.into();
    }
    build_object(ingress, part, spec)
}

/// Builds the Secret of the certificate, which cert-manager fills: without a key it is one that has to be issued.
pub fn build_secret(ingress: &IngressResource, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": name, "namespace": ingress.namespace() },
        "type": "kubernetes.io/tls",
        "data": { "tls.crt": "", "tls.key": "" },
    })
}

/// Builds the certificate.
pub fn build_certificate(ingress: &IngressResource, secret: &str) -> Value {
    let issuer = ingress
        .spec
        .certificate
        .as_ref()
        .map(|certificate| &certificate.issuer_ref);
    let mut issuer = json!(issuer);
    issuer["group"] = "cert-manager.io".into();
    let spec = json!({
        "secretName": secret,
        "dnsNames": [ingress.spec.host],
        "issuerRef": issuer,
    });
    build_object(ingress, &IngressPart::Certificate, spec)
}

/// Builds the Ingress.
pub fn build_ingress(ingress: &IngressResource) -> Value {
    let spec = &ingress.spec;
    let backend = &spec.backend;
    let path = json!({
        "path": backend.path,
        "pathType": backend.path_type,
        "backend": { "service": { "name": backend.service, "port": { "number": backend.port } } },
    });
    let mut rules = json!({ "rules": [{ "host": spec.host, "http": { "paths": [path] } }] });
    if let Some(class) = &spec.ingress_class_name {
        rules["ingressClassName"] = (**class).into();
    }
    if spec.certificate.is_some() {
        rules["tls"] = json!([{ "hosts": [spec.host], "secretName": secret_name(ingress) }]);
    }
    let mut object = build_object(ingress, &IngressPart::Ingress, rules);
    if !spec.annotations.is_empty() {
        object["metadata"]["annotations"] = json!(spec.annotations);
    }
    object
}
