//! CustomResourceDefinitions: completion, validation, and the kinds they define.

use ostler_schema::{Rules, Schema};
use serde_json::{Value, json};

use crate::kind::{Column, ServedKind, ServedVersion};
use crate::object::{GroupResource, current_time};
use crate::scale::ScalePaths;

/// Finalizer that keeps a definition until its objects are deleted.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Returns the text at a JSON pointer, or an empty one.
pub fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Completes the names and the conversion strategy, which authors may omit.
pub fn fill_names(object: &mut Value) {
    let kind = text_at(object, "/spec/names/kind").to_owned();
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let conversion = spec
        .entry("conversion")
        .or_insert_with(|| json!({"strategy": "None"}));
    if let Some(service) = conversion.pointer_mut("/webhook/clientConfig/service")
        && service.is_object()
        && service["port"].is_null()
    {
        service["port"] = 443.into();
    }
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        names
            .entry("singular")
            .or_insert_with(|| kind.to_lowercase().into());
        names
            .entry("listKind")
            .or_insert_with(|| format!("{kind}List").into());
    }
}

/// Sets the condition of a definition in deletion, whose objects are being deleted.
pub fn set_terminating(object: &mut Value) {
    let Some(conditions) = object["status"]["conditions"].as_array_mut() else {
        return;
    };
    if !conditions
        .iter()
        .any(|condition| condition["type"] == "Terminating")
    {
        conditions.push(json!({
            "type": "Terminating", "status": "True", "reason": "InstanceDeletionInProgress",
            "message": "CustomResource deletion is in progress", "lastTransitionTime": current_time(),
        }));
    }
}

/// Returns true if the kind of a definition is served.
pub fn is_established(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

/// Sets the status of a definition that is written: what it was, and the version in which objects are stored from now on.
pub fn set_status(object: &mut Value, old: Option<&Value>) {
    let initial =
        || json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null});
    let mut status = old.map_or_else(initial, |old| old["status"].clone());
    let versions = object["spec"]["versions"].as_array().into_iter().flatten();
    let stored = versions.into_iter().find(|version| version["storage"] == true);
    if let Some(name) = stored.map(|version| version["name"].clone()) {
        let known = status["storedVersions"].as_array().cloned().unwrap_or_default();
        if !known.contains(&name) {
            status["storedVersions"] = [known, vec![name]].concat().into();
        }
    }
    object["status"] = status;
}

/// Accepts the names of a definition, and says that its kind is served.
pub fn set_established(object: &mut Value) {
    let names = object["spec"]["names"].clone();
    object["status"]["acceptedNames"] = names;
    let conditions = &mut object["status"]["conditions"];
    if conditions.is_null() {
        *conditions = json!([]);
    }
    for (kind, reason, message) in [
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        (
            "Established",
            "InitialNamesAccepted",
            "the initial names have been accepted",
        ),
    ] {
        let Some(conditions) = conditions.as_array_mut() else {
            return;
        };
        if !conditions.iter().any(|condition| condition["type"] == kind) {
            conditions.push(json!({
                "type": kind, "status": "True", "reason": reason, "message": message,
                "lastTransitionTime": current_time(),
            }));
        }
    }
}

/// The kind that a definition defines; `None` for an incomplete one.
pub fn parse_kind(object: &Value) -> Option<ServedKind> {
    let spec = &object["spec"];
    let names = &spec["names"];
    let strings = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| item.as_str().map(str::to_owned))
            .collect()
    };
    let mut versions: Vec<ServedVersion> = spec["versions"]
        .as_array()?
        .iter()
        .filter_map(parse_version)
        .collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version_priority(&version.name)));
    let stored = spec["versions"]
        .as_array()?
        .iter()
        .find(|version| version["storage"] == true)?;
    Some(ServedKind {
        resource: GroupResource::new(spec["group"].as_str()?, names["plural"].as_str()?),
        kind: names["kind"].as_str()?.into(),
        list_kind: names["listKind"].as_str()?.into(),
        singular: names["singular"].as_str()?.into(),
        short_names: strings(&names["shortNames"]),
        categories: strings(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        custom: true,
        terminating: object["metadata"]["deletionTimestamp"].is_string(),
        generation: object["metadata"]["generation"].as_i64().unwrap_or_default(),
        conditional_update: true,
        generations: true,
        storage_version: stored["name"].as_str()?.into(),
        versions,
    })
}

fn parse_version(version: &Value) -> Option<ServedVersion> {
    let openapi = version["schema"]["openAPIV3Schema"].clone();
    let columns = version["additionalPrinterColumns"].as_array().map(|columns| {
        let column_text = |column: &Value, field: &str| column[field].as_str().unwrap_or_default().to_owned();
        columns
            .iter()
            .map(|column| Column {
                name: column_text(column, "name"),
                kind: column_text(column, "type"),
                format: column_text(column, "format"),
                description: match column["description"].as_str() {
                    Some(text) if !text.is_empty() => text.to_owned(),
                    _ => format!(
                        "Custom resource definition column (in JSONPath format): {}",
                        column_text(column, "jsonPath")
                    ),
                },
                priority: column["priority"].as_i64().unwrap_or_default(),
                path: column_text(column, "jsonPath"),
            })
            .collect()
    });
    let selectable = version["selectableFields"].as_array().into_iter().flatten();
    Some(ServedVersion {
        name: version["name"].as_str()?.into(),
        served: version["served"] != false,
        schema: Schema::parse_root(&openapi).ok()?.into(),
        rules: Rules::compile(&openapi),
        openapi,
        status: version["subresources"]["status"].is_object(),
        scale: ScalePaths::parse(&version["subresources"]["scale"]),
        columns,
        selectable: selectable
            .filter_map(|field| Some(field["jsonPath"].as_str()?.trim_start_matches('.').to_owned()))
            .collect(),
    })
}

/// Sort key for Kubernetes' order of versions: v2, v1, v1beta2, v1beta1, v1alpha1, then the rest by name.
fn version_priority(name: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let rest = |stage, major: &str, minor: &str| {
        let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
        Some((stage, major, minor, std::cmp::Reverse(String::new())))
    };
    let parsed = name.strip_prefix('v').and_then(|number| {
        if let Some((major, minor)) = number.split_once("beta") {
            rest(2, major, minor)
        } else if let Some((major, minor)) = number.split_once("alpha") {
            rest(1, major, minor)
        } else {
            rest(3, number, "0")
        }
    });
    parsed.unwrap_or_else(|| (0, 0, 0, std::cmp::Reverse(name.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_in_kubernetes_order() {
        let mut names = ["v1alpha1", "foo", "v2", "v1beta1", "v1", "v10", "v1beta2"];
        names.sort_by_key(|name| std::cmp::Reverse(version_priority(name)));
        assert_eq!(
            names,
            ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "foo"]
        );
    }
}
