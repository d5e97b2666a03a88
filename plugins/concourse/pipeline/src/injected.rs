//! `spec.k8sConfigs`: a resource type and resources that provide ConfigMaps and Secrets to the pipeline.

use concourse_api::{ContainerImage, K8sConfig, Pipeline};
use ostler_sdk::{
    prelude::*,
    serde_json::{Map, Value},
};

use crate::{config::FREE_FORM_KEYS, desired::invalid_config};

const RESOURCE_TYPE: &str = "k8s-config";
const DEFAULT_IMAGE: &str = "ghcr.io/jakobmoellerdev/concourse-k8s-config-resource";
const DEFAULT_TAG: &str = "latest";

/// Adds the resource type and the resources in front of the config's own. Those whose names the config uses itself
/// are left out.
///
/// # Errors
/// A section of the config is not a list.
pub fn inject(
    pipeline: &Pipeline,
    default_image: Option<&ContainerImage>,
    config: &mut Map<String, Value>,
) -> Result<(), Failure> {
    let injected = &pipeline.spec.k8s_configs;
    if injected.is_empty() {
        return Ok(());
    }
    let image = pipeline.spec.k8s_config_image.as_ref().or(default_image);
    prepend(config, "resource_types", vec![build_resource_type(image)])?;
    let resources = injected.iter().map(|entry| build_resource(pipeline, entry));
    let resources = resources.collect();
    if let Some(jobs) = config.get_mut("jobs") {
        for entry in injected.iter().filter(|entry| entry.trigger) {
            add_triggers(jobs, &entry.name);
        }
    }
    prepend(config, "resources", resources)
}

fn build_resource_type(image: Option<&ContainerImage>) -> Value {
    let repository = image.map_or(DEFAULT_IMAGE, |image| &image.repository);
    let tag = image
        .and_then(|image| image.tag.as_deref())
        .filter(|tag| !tag.is_empty());
    json!({
        "name": RESOURCE_TYPE,
        "type": "registry-image",
        "source": { "repository": repository, "tag": tag.unwrap_or(DEFAULT_TAG) },
    })
}

fn build_resource(pipeline: &Pipeline, entry: &K8sConfig) -> Value {
    let (kind, reference) = match (&entry.config_map_ref, &entry.secret_ref) {
        (Some(reference), _) => ("ConfigMap", Some(reference)),
        (None, reference) => ("Secret", reference.as_ref()),
    };
    let object = reference.map(|reference| reference.resolve(pipeline.namespace()));
    json!({
        "name": *entry.name,
        "type": RESOURCE_TYPE,
        "source": {
            "kind": kind,
            "name": object.map(|object| object.name),
            "namespace": object.map(|object| object.namespace),
        },
    })
}

/// Inserts items at the front of a list, except those whose name the list has already.
fn prepend(config: &mut Map<String, Value>, section: &str, mut items: Vec<Value>) -> Result<(), Failure> {
    let list = config.entry(section).or_insert(Value::Null);
    if list.is_null() {
        *list = Value::Array(Vec::new());
    }
    let Value::Array(own) = list else {
        let message = format!("The config is not a pipeline: {section} must be a list.");
        return Err(invalid_config(message));
    };
    items.retain(|item| own.iter().all(|own| own["name"] != item["name"]));
    items.append(own);
    *own = items;
    Ok(())
}

/// Adds `trigger: true` to the steps that get a resource, unless they set `trigger` themselves.
fn add_triggers(part: &mut Value, resource: &str) {
    match part {
        Value::Array(items) => items.iter_mut().for_each(|item| add_triggers(item, resource)),
        Value::Object(step) => {
            if let Some(get) = step.get("get")
                && step.get("resource").unwrap_or(get) == resource
                && !step.contains_key("trigger")
            {
                step.insert("trigger".to_owned(), true.into());
            }
            for (key, value) in step {
                // The config of a task has no steps of the pipeline.
                if key != "config" && !FREE_FORM_KEYS.contains(&key.as_str()) {
                    add_triggers(value, resource);
                }
            }
        }
        _ => {}
    }
}
