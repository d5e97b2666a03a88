//! The objects of a FooService on its workload cluster.

use ostler_sdk::{prelude::*, provider::build_stable_name, serde_json::Value};

use crate::FooService;

/// Port of the service.
const SERVICE_PORT: u16 = 8080;

/// Inputs of the objects besides the spec.
#[derive(Default)]
pub struct ServiceInputs<'a> {
    /// Image of the service.
    pub image: &'a str,
    /// Digest of the Secret that restarts the Pods.
    pub secret_digest: Option<String>,
}

/// Name of the namespace on the workload cluster, which other FooServices may share.
pub fn namespace_name(object: &FooService) -> String {
    build_stable_name("foo", &object.metadata)
}

fn build_object(object: &FooService, api_version: &str, kind: &str) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": { "name": object.name(), "namespace": namespace_name(object) },
    })
}

/// Builds the namespace.
pub fn build_namespace(object: &FooService) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace_name(object) } })
}

/// Builds the ConfigMap with the text.
pub fn build_settings(object: &FooService) -> Value {
    let mut map = build_object(object, "v1", "ConfigMap");
    map["data"] = json!({ "text": object.spec.text });
    map
}

/// Builds the Deployment. The Pods see a changed text in the mounted file, and are restarted for a changed Secret.
pub fn build_deployment(object: &FooService, inputs: &ServiceInputs) -> Value {
    let mut deployment = build_object(object, "apps/v1", "Deployment");
    let container = json!({
        "name": "foo",
        "image": inputs.image,
        "ports": [{ "containerPort": SERVICE_PORT }],
        "volumeMounts": [{ "name": "settings", "mountPath": "/etc/foo" }],
    });
    deployment["spec"] = json!({
        "replicas": object.spec.replicas.unwrap_or(1),
        "selector": { "matchLabels": build_labels(object) },
        "template": {
            "metadata": { "labels": build_labels(object) },
            "spec": {
                "containers": [container],
                "volumes": [{ "name": "settings", "configMap": { "name": object.name() } }],
            },
        },
    });
    if let Some(digest) = &inputs.secret_digest {
        deployment["spec"]["template"]["metadata"]["annotations"] =
            json!({ "services.ostler.dev/secret": digest });
    }
    deployment
}

/// Builds the Service.
pub fn build_service(object: &FooService) -> Value {
    let mut service = build_object(object, "v1", "Service");
    service["spec"] = json!({
        "selector": build_labels(object),
        "ports": [{ "port": 80, "targetPort": SERVICE_PORT }],
    });
    service
}

fn build_labels(object: &FooService) -> Value {
    json!({ "app": object.name() })
}
