//! CustomResourceDefinitions: completion, validation, and the kinds they define.

use ostler_schema::{FieldError, Rules, Schema, check_structural};
use serde_json::{Value, json};

use crate::kind::{Column, ServedKind, ServedVersion};
use crate::object::GroupResource;

/// Finalizer that keeps a definition until its objects are deleted.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Completes the names and the conversion strategy, which authors may omit.
pub fn fill_names(object: &mut Value) {
    let kind = text_at(object, "/spec/names/kind").to_owned();
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    spec.entry("conversion")
        .or_insert_with(|| json!({"strategy": "None"}));
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        names
            .entry("singular")
            .or_insert_with(|| kind.to_lowercase().into());
        names
            .entry("listKind")
            .or_insert_with(|| format!("{kind}List").into());
    }
}

/// Validates a definition.
pub fn validate_definition(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, pointer) in [
        ("spec.group", "/spec/group"),
        ("spec.scope", "/spec/scope"),
        ("spec.names.plural", "/spec/names/plural"),
        ("spec.names.kind", "/spec/names/kind"),
    ] {
        if text_at(object, pointer).is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
    let expected = format!(
        "{}.{}",
        text_at(object, "/spec/names/plural"),
        text_at(object, "/spec/group")
    );
    if text_at(object, "/metadata/name") != expected {
        errors.push(FieldError::invalid(
            "metadata.name",
            &object["metadata"]["name"],
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    let scope = &object["spec"]["scope"];
    if scope.is_string() && !matches!(scope.as_str(), Some("Cluster" | "Namespaced")) {
        errors.push(FieldError::unsupported(
            "spec.scope",
            scope,
            &["Cluster".into(), "Namespaced".into()],
        ));
    }
    let versions = object["spec"]["versions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if versions
        .iter()
        .filter(|version| version["storage"] == true)
        .count()
        != 1
    {
        errors.push(FieldError::invalid(
            "spec.versions",
            &object["spec"]["versions"],
            "must have exactly one version marked as storage version",
        ));
    }
    for (index, version) in versions.iter().enumerate() {
        let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
        let schema = &version["schema"]["openAPIV3Schema"];
        if !schema.is_object() {
            errors.push(FieldError::required(&field, "schemas are required"));
        } else if schema["type"] != "object" {
            errors.push(FieldError::invalid(
                &format!("{field}.type"),
                &schema["type"],
                "must be object at the root",
            ));
        } else {
            errors.extend(check_structural(schema, &field));
        }
    }
    errors
}

/// Sets the status of a served definition: accepted names, `Established`, stored versions.
pub fn set_established(object: &mut Value, now: &str) {
    let stored: Vec<Value> = object["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    let names = object["spec"]["names"].clone();
    let known = object["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let condition = |kind: &str, reason: &str, message: &str| {
        let since = known
            .iter()
            .find(|condition| condition["type"] == kind)
            .map(|condition| condition["lastTransitionTime"].clone());
        json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since.unwrap_or_else(|| now.into())})
    };
    let mut versions = object["status"]["storedVersions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    versions.extend(
        stored
            .into_iter()
            .filter(|version| !versions.contains(version))
            .collect::<Vec<_>>(),
    );
    let mut conditions = vec![
        condition("NamesAccepted", "NoConflicts", "no conflicts found"),
        condition(
            "Established",
            "InitialNamesAccepted",
            "the initial names have been accepted",
        ),
    ];
    conditions.extend(
        known
            .iter()
            .filter(|condition| condition["type"] == "Terminating")
            .cloned(),
    );
    object["status"] = json!({"acceptedNames": names, "conditions": conditions, "storedVersions": versions});
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
                description: column_text(column, "description"),
                priority: column["priority"].as_i64().unwrap_or_default(),
                path: column_text(column, "jsonPath"),
            })
            .collect()
    });
    let selectable = version["selectableFields"].as_array().into_iter().flatten();
    Some(ServedVersion {
        name: version["name"].as_str()?.into(),
        served: version["served"] != false,
        schema: Schema::parse_root(&openapi).ok()?,
        rules: Rules::compile(&openapi),
        openapi,
        status: version["subresources"]["status"].is_object(),
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

    #[test]
    fn invalid_schema_is_refused_with_field_paths() {
        let mut object = json!({"metadata": {"name": "things.g.io"}, "spec": {
            "group": "g.io", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {"a": {}, "l": {"type": "array"}}, "x-kubernetes-validations": [{"rule": "self.a >"}]},
            }}}}],
        }});
        fill_names(&mut object);
        let fields: Vec<String> = validate_definition(&object)
            .into_iter()
            .map(|error| error.field)
            .collect();
        let prefix = "spec.versions[0].schema.openAPIV3Schema.properties[spec]";
        assert_eq!(
            fields,
            [
                format!("{prefix}.x-kubernetes-validations[0].rule"),
                format!("{prefix}.properties[a].type"),
                format!("{prefix}.properties[l].items"),
            ]
        );
        assert_eq!(object["spec"]["names"]["listKind"], "ThingList");
    }
}
