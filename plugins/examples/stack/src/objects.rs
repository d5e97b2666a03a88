//! The objects of a Stack.

use std::collections::BTreeMap;

use ostler_sdk::{prelude::*, serde_json::Value};

use crate::{Stack, config::StackInputs};

/// Name of the ConfigMap with the defaults.
pub const DEFAULTS_NAME: &str = "stack-defaults";
/// Port of an application that does not name one.
const DEFAULT_PORT: u16 = 8080;

fn build_object(stack: &Stack, api_version: &str, kind: &str) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": { "name": stack.name(), "namespace": stack.namespace() },
    })
}

/// Builds the ConfigMap with the defaults.
pub fn build_defaults(namespace: &str) -> Value {
    let replicas = StackInputs::default().replicas.to_string();
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": DEFAULTS_NAME, "namespace": namespace },
        "data": { "replicas": replicas },
    })
}

/// Builds the ConfigMap with the settings.
pub fn build_settings(stack: &Stack) -> Value {
    let mut map = build_object(stack, "v1", "ConfigMap");
    map["data"] = json!(stack.spec.settings);
    map
}

/// Builds the Deployment.
pub fn build_deployment(stack: &Stack, inputs: &StackInputs) -> Value {
    let spec = &stack.spec;
    // In the template of the Pods they restart the Pods with changed values.
    let mut digests = json!({ "examples.ostler.dev/settings": hash_settings(&spec.settings) });
    let mut container = json!({
        "name": "app",
        "image": spec.image,
        "ports": [{ "containerPort": port(stack) }],
        "envFrom": [{ "configMapRef": { "name": stack.name() } }],
    });
    if let Some(secret) = &spec.secret {
        digests["examples.ostler.dev/secret"] = json!(inputs.secret_digest);
        container["env"] = json!([{ "name": secret.key, "valueFrom": { "secretKeyRef": secret } }]);
    }
    let mut deployment = build_object(stack, "apps/v1", "Deployment");
    deployment["spec"] = json!({
        "replicas": spec.replicas.unwrap_or(inputs.replicas),
        "selector": { "matchLabels": build_labels(stack) },
        "template": {
            "metadata": { "labels": build_labels(stack), "annotations": digests },
            "spec": { "containers": [container] },
        },
    });
    deployment
}

/// Builds the Service.
pub fn build_service(stack: &Stack) -> Value {
    let mut service = build_object(stack, "v1", "Service");
    service["spec"] = json!({
        "selector": build_labels(stack),
        "ports": [{ "port": 80, "targetPort": port(stack) }],
    });
    service
}

/// Builds the entry of the registry, which has the Stacks of all namespaces in one.
pub fn build_entry(stack: &Stack, namespace: &str) -> Value {
    let spec = &stack.spec;
    let name = format!("{}-{}", stack.namespace(), stack.name());
    let host = format!("{}.{}", stack.name(), stack.namespace());
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": namespace },
        "data": { "image": spec.image, "host": spec.host.as_ref().unwrap_or(&host) },
    })
}

/// Builds the Ingress. Without a host name, it is only the one to delete.
pub fn build_ingress(stack: &Stack) -> Value {
    let backend = json!({ "service": { "name": stack.name(), "port": { "number": 80 } } });
    let mut ingress = build_object(stack, "networking.k8s.io/v1", "Ingress");
    ingress["spec"] = json!({ "rules": [{
        "host": stack.spec.host,
        "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend }] },
    }] });
    ingress
}

fn build_labels(stack: &Stack) -> Value {
    json!({ "app": stack.name() })
}

fn port(stack: &Stack) -> u16 {
    stack.spec.port.unwrap_or(DEFAULT_PORT)
}

/// FNV-1a hash of the settings.
fn hash_settings(settings: &BTreeMap<String, String>) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (key, value) in settings {
        for byte in key.bytes().chain([0]).chain(value.bytes()).chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash.to_string()
}
