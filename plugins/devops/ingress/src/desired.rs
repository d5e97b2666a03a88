//! The objects that an IngressResource describes.

use devops_api::{IngressDns, IngressResource};
use ostler_sdk::{prelude::*, serde_json::Value};

/// Name of the Secret with the certificate.
pub fn secret_name(ingress: &IngressResource) -> String {
    let certificate = ingress.spec.certificate.as_ref();
    let named = certificate.and_then(|certificate| certificate.secret_name.clone());
    named.unwrap_or_else(|| format!("{}-tls", ingress.name()))
}

fn build_object(ingress: &IngressResource, api_version: &str, kind: &str, spec: Value) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": { "name": ingress.name(), "namespace": ingress.namespace() },
        "spec": spec,
    })
}

/// Builds the DNS record.
pub fn build_record(ingress: &IngressResource, dns: &IngressDns, kind: &str, values: &[String]) -> Value {
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
    build_object(ingress, "dns.ostler.dev/v1alpha1", "DnsRecord", spec)
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
    build_object(ingress, "cert-manager.io/v1", "Certificate", spec)
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
    let mut object = build_object(ingress, "networking.k8s.io/v1", "Ingress", rules);
    if !spec.annotations.is_empty() {
        object["metadata"]["annotations"] = json!(spec.annotations);
    }
    object
}
