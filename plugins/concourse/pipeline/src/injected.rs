//! `spec.k8sConfigs`: a resource type and resources that bring ConfigMaps and Secrets into the pipeline.

use concourse_api::{InstanceSpec, target};
use ostler_sdk::{
    Resource,
    prelude::*,
    serde_json::{Map, Value},
};

use crate::{Pipeline, config::FREE_FORM, text};

const TYPE: &str = "k8s-config";
const IMAGE: &str = "ghcr.io/jakobmoellerdev/concourse-k8s-config-resource";

/// Puts them before what the config has; what it names itself is left alone.
pub fn wire(
    ctx: &Context,
    pipeline: &Pipeline,
    team: &Value,
    config: &mut Map<String, Value>,
) -> Result<(), Failure> {
    let spec = &pipeline.spec.json;
    let Some(wanted) = spec["k8sConfigs"].as_array().filter(|all| !all.is_empty()) else {
        return Ok(());
    };
    let mut image = spec["k8sConfigImage"].clone();
    if image.is_null() {
        let (namespace, instance) = target(team, "instanceRef");
        let instance = ctx.get_json(&InstanceSpec::reference(namespace, instance))?;
        image = instance.map_or(Value::Null, |i| i["spec"]["defaults"]["k8sConfigImage"].clone());
    }
    let or = |value: &Value, default: &str| match text(value) {
        "" => default.to_owned(),
        text => text.to_owned(),
    };
    let source = json!({ "repository": or(&image["repository"], IMAGE), "tag": or(&image["tag"], "latest") });
    let kind = json!({ "name": TYPE, "type": "registry-image", "source": source });
    prepend(config, "resource_types", vec![kind])?;
    let mut resources = Vec::new();
    for entry in wanted {
        let (kind, reference) = match &entry["configMapRef"] {
            Value::Null => ("Secret", &entry["secretRef"]),
            reference => ("ConfigMap", reference),
        };
        let namespace = or(&reference["namespace"], pipeline.namespace());
        resources.push(json!({
            "name": entry["name"], "type": TYPE,
            "source": { "kind": kind, "name": reference["name"], "namespace": namespace },
        }));
        if entry["trigger"] == true
            && let Some(jobs) = config.get_mut("jobs")
        {
            trigger(jobs, text(&entry["name"]));
        }
    }
    prepend(config, "resources", resources)
}

/// Puts items before those of a list, but for those of a name that is there.
fn prepend(config: &mut Map<String, Value>, field: &str, mut items: Vec<Value>) -> Result<(), Failure> {
    let list = config.entry(field).or_insert(Value::Null);
    if list.is_null() {
        *list = Value::Array(Vec::new());
    }
    let Value::Array(own) = list else {
        let message = ["The config is not a pipeline: ", field, " must be a list."].concat();
        return Err(Failure::terminal("ConfigLoadFailed", message));
    };
    items.retain(|item| own.iter().all(|own| own["name"] != item["name"]));
    items.append(own);
    *own = items;
    Ok(())
}

/// Makes the steps that get a resource trigger their job, unless they say whether they do.
fn trigger(part: &mut Value, resource: &str) {
    match part {
        Value::Array(items) => items.iter_mut().for_each(|item| trigger(item, resource)),
        Value::Object(step) => {
            if let Some(get) = step.get("get")
                && step.get("resource").unwrap_or(get) == resource
                && !step.contains_key("trigger")
            {
                step.insert("trigger".to_owned(), true.into());
            }
            for (key, value) in step {
                // A task's own config has steps of its own sort.
                if key != "config" && !FREE_FORM.contains(&key.as_str()) {
                    trigger(value, resource);
                }
            }
        }
        _ => {}
    }
}
