//! Validation of CustomResourceDefinitions, by the rules of the API server's `apis/apiextensions/validation`.

use std::collections::HashSet;

use ostler_schema::{FieldError, check_definition, find_declared_field};
use serde_json::Value;

use crate::crd::{is_established, text_at};
use crate::names::{DNS_1035_RULE, SUBDOMAIN_RULE, is_dns_1035_label, is_dns_subdomain};

/// Types of printer columns.
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
/// Formats of printer columns.
const COLUMN_FORMATS: [&str; 8] = [
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];
/// Maximum number of selectable fields of a version.
const MAX_SELECTABLE_FIELDS: usize = 8;

/// Validates a definition, and its change if there was an `old` one.
pub fn validate_definition(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    let expected = format!(
        "{}.{}",
        text_at(object, "/spec/names/plural"),
        text_at(object, "/spec/group")
    );
    let name = text_at(object, "/metadata/name");
    if old.is_none() && !name.is_empty() && name != expected {
        errors.push(FieldError::invalid(
            "metadata.name",
            &object["metadata"]["name"],
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    validate_group(spec, &mut errors);
    validate_scope(&spec["scope"], &mut errors);
    validate_versions(spec, &mut errors);
    for name in ["plural", "singular", "kind", "listKind"] {
        if spec["names"][name].as_str().is_none_or(str::is_empty) {
            errors.push(FieldError::required(&format!("spec.names.{name}"), ""));
        }
    }
    validate_names(&spec["names"], &mut errors);
    validate_conversion(&spec["conversion"], &mut errors);
    if spec["preserveUnknownFields"] == true {
        let rule = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            &true.into(),
            rule,
        ));
    }
    let stored = &object["status"]["storedVersions"];
    validate_stored_versions(spec, stored, &mut errors);
    if let Some(old) = old {
        validate_change(spec, old, &mut errors);
    }
    errors
}

fn validate_group(spec: &Value, errors: &mut Vec<FieldError>) {
    let group = spec["group"].as_str().unwrap_or_default();
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if !is_dns_subdomain(group) {
        errors.push(FieldError::invalid("spec.group", &group.into(), SUBDOMAIN_RULE));
    } else if !group.contains('.') {
        let rule = "should be a domain with at least one dot";
        errors.push(FieldError::invalid("spec.group", &group.into(), rule));
    }
}

fn validate_scope(scope: &Value, errors: &mut Vec<FieldError>) {
    match scope.as_str().unwrap_or_default() {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        _ => errors.push(FieldError::unsupported(
            "spec.scope",
            scope,
            &["Cluster".into(), "Namespaced".into()],
        )),
    }
}

/// The path of a part of a version. Where all versions agree on it, the API server validates it once, at the spec.
fn part_path(versions: &[Value], index: usize, part: &str) -> Option<String> {
    let first = &versions[0][part];
    let is_common = versions.iter().all(|version| version[part] == *first);
    let name = match (is_common, part) {
        (true, "schema") => "validation",
        _ => part,
    };
    match (is_common, index) {
        (true, 0) => Some(format!("spec.{name}")),
        (true, _) => None,
        (false, _) => Some(format!("spec.versions[{index}].{name}")),
    }
}

fn validate_versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut names = HashSet::new();
    let mut has_unique_names = true;
    for (index, version) in versions.iter().enumerate() {
        let name = version["name"].as_str().unwrap_or_default();
        has_unique_names &= names.insert(name);
        if !is_dns_1035_label(name) {
            let field = format!("spec.versions[{index}].name");
            errors.push(FieldError::invalid(&field, &name.into(), DNS_1035_RULE));
        }
        if index == 0 && !is_dns_1035_label(name) && !name.is_empty() {
            errors.push(FieldError::invalid("spec.version", &name.into(), DNS_1035_RULE));
        }
        validate_deprecation(version, index, errors);
        validate_version_schema(versions, index, errors);
        validate_version_parts(versions, index, errors);
    }
    if !has_unique_names {
        let rule = "must contain unique version names";
        errors.push(FieldError::invalid("spec.versions", &spec["versions"], rule));
    }
    let stored = versions.iter().filter(|version| version["storage"] == true);
    if stored.count() != 1 {
        errors.push(FieldError::invalid(
            "spec.versions",
            &spec["versions"],
            "must have exactly one version marked as storage version",
        ));
    }
}

fn validate_deprecation(version: &Value, index: usize, errors: &mut Vec<FieldError>) {
    let warning = &version["deprecationWarning"];
    let Some(text) = warning.as_str() else { return };
    let field = format!("spec.versions[{index}].deprecationWarning");
    let mut report = |rule: &str| errors.push(FieldError::invalid(&field, warning, rule));
    if version["deprecated"] != true {
        return report("can only be set for deprecated versions");
    }
    if text.len() > 256 {
        report("must be <= 256 characters long");
    }
    if text.is_empty() {
        report("must not be an empty string");
    }
    if text.chars().any(char::is_control) {
        report("must only contain printable UTF-8 characters");
    }
}

fn validate_version_schema(versions: &[Value], index: usize, errors: &mut Vec<FieldError>) {
    let version = &versions[index];
    let schema = &version["schema"]["openAPIV3Schema"];
    if !schema.is_object() {
        let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
        errors.push(FieldError::required(&field, "schemas are required"));
        return;
    }
    let Some(path) = part_path(versions, index, "schema") else {
        return;
    };
    let status = version["subresources"]["status"].is_object();
    let path = format!("{path}.openAPIV3Schema");
    errors.extend(check_definition(schema, &path, status));
}

fn validate_version_parts(versions: &[Value], index: usize, errors: &mut Vec<FieldError>) {
    let version = &versions[index];
    if let Some(path) = part_path(versions, index, "subresources") {
        validate_scale(&version["subresources"]["scale"], &path, errors);
    }
    if let Some(path) = part_path(versions, index, "additionalPrinterColumns") {
        let columns = version["additionalPrinterColumns"].as_array();
        for (index, column) in columns.into_iter().flatten().enumerate() {
            validate_column(column, &format!("{path}[{index}]"), errors);
        }
    }
    if let Some(path) = part_path(versions, index, "selectableFields") {
        validate_selectable_fields(version, &path, errors);
    }
}

/// Checks that a JSON path starts as one.
fn validate_json_path(path: &Value, field: &str, errors: &mut Vec<FieldError>) -> bool {
    let is_valid = path.as_str().is_some_and(|path| path.starts_with('.'));
    if !is_valid {
        let rule = "must be a simple json path starting with .";
        errors.push(FieldError::invalid(field, path, rule));
    }
    is_valid
}

fn validate_scale(scale: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !scale.is_object() {
        return;
    }
    for (name, roots, is_required) in [
        ("specReplicasPath", &[".spec."][..], true),
        ("statusReplicasPath", &[".status."][..], true),
        ("labelSelectorPath", &[".spec.", ".status."][..], false),
    ] {
        let field = format!("{path}.scale.{name}");
        let given = scale[name].as_str().unwrap_or_default();
        if given.is_empty() {
            if is_required {
                errors.push(FieldError::required(&field, ""));
            }
        } else if validate_json_path(&scale[name], &field, errors)
            && !roots.iter().any(|root| given.starts_with(root))
        {
            let rule = format!("should be a json path under {}", roots.join(" or "));
            errors.push(FieldError::invalid(&field, &scale[name], rule));
        }
    }
}

fn validate_column(column: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let text = |field: &str| column[field].as_str().unwrap_or_default();
    if text("name").is_empty() {
        errors.push(FieldError::required(&format!("{path}.name"), ""));
    }
    let rule = format!("must be one of {}", COLUMN_TYPES.join(","));
    let field = format!("{path}.type");
    match text("type") {
        "" => errors.push(FieldError::required(&field, &rule)),
        kind if !COLUMN_TYPES.contains(&kind) => errors.push(FieldError::invalid(&field, &kind.into(), rule)),
        _ => {}
    }
    if !text("format").is_empty() && !COLUMN_FORMATS.contains(&text("format")) {
        let rule = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(FieldError::invalid(
            &format!("{path}.format"),
            &column["format"],
            rule,
        ));
    }
    let field = format!("{path}.JSONPath");
    if text("jsonPath").is_empty() {
        errors.push(FieldError::required(&field, ""));
    } else {
        validate_json_path(&column["jsonPath"], &field, errors);
    }
}

fn validate_selectable_fields(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let fields = version["selectableFields"].as_array().into_iter().flatten();
    let schema = &version["schema"]["openAPIV3Schema"];
    let mut unique = HashSet::new();
    let fields: Vec<&Value> = fields.collect();
    let fields_are_without_schema = !fields.is_empty() && !schema.is_object();
    for (index, selectable) in fields.into_iter().enumerate().filter(|_| schema.is_object()) {
        let field = format!("{path}[{index}].jsonPath");
        let given = &selectable["jsonPath"];
        let text = given.as_str().unwrap_or_default();
        if text.is_empty() {
            errors.push(FieldError::required(&field, ""));
            continue;
        }
        let found = match find_declared_field(schema, text) {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid(
                    &field,
                    given,
                    format!("is an invalid path: {why}"),
                ));
                continue;
            }
        };
        if text == ".metadata" || text.starts_with(".metadata.") {
            errors.push(FieldError::invalid(
                &field,
                given,
                "must not point to fields in metadata",
            ));
        }
        if !matches!(found["type"].as_str(), Some("string" | "boolean" | "integer")) {
            let rule = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(&field, given, rule));
        }
        if !unique.insert(text) {
            errors.push(FieldError::duplicate(&field, given));
        }
    }
    if fields_are_without_schema {
        let rule = "may only be set when `version.schema.openAPIV3Schema` is not included";
        errors.push(FieldError::invalid(path, &"".into(), rule));
    }
    if unique.len() > MAX_SELECTABLE_FIELDS {
        errors.push(FieldError::too_many(
            path,
            unique.len(),
            MAX_SELECTABLE_FIELDS as i64,
        ));
    }
}

fn validate_names(names: &Value, errors: &mut Vec<FieldError>) {
    for (name, ignores_case) in [
        ("plural", false),
        ("singular", false),
        ("kind", true),
        ("listKind", true),
    ] {
        let text = names[name].as_str().unwrap_or_default();
        let compared = if ignores_case {
            text.to_lowercase()
        } else {
            text.to_owned()
        };
        if !text.is_empty() && !is_dns_1035_label(&compared) {
            let field = format!("spec.names.{name}");
            errors.push(FieldError::invalid(&field, &text.into(), DNS_1035_RULE));
        }
    }
    for list in ["shortNames", "categories"] {
        for (index, item) in names[list].as_array().into_iter().flatten().enumerate() {
            if !item.as_str().is_some_and(is_dns_1035_label) {
                let field = format!("spec.names.{list}[{index}]");
                errors.push(FieldError::invalid(&field, item, DNS_1035_RULE));
            }
        }
    }
    if !names["kind"].is_null() && names["kind"] == names["listKind"] && names["kind"] != "" {
        let rule = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(
            "spec.names.listKind",
            &names["listKind"],
            rule,
        ));
    }
}

fn validate_conversion(conversion: &Value, errors: &mut Vec<FieldError>) {
    if conversion.is_null() {
        return;
    }
    let strategy = conversion["strategy"].as_str().unwrap_or_default();
    match strategy {
        "" => errors.push(FieldError::required("spec.conversion.strategy", "")),
        "None" | "Webhook" => {}
        _ => errors.push(FieldError::unsupported(
            "spec.conversion.strategy",
            &conversion["strategy"],
            &["None".into(), "Webhook".into()],
        )),
    }
    let client = &conversion["webhook"]["clientConfig"];
    let versions = &conversion["webhook"]["conversionReviewVersions"];
    let has_versions = versions.as_array().is_some_and(|versions| !versions.is_empty());
    let client_field = "spec.conversion.webhookClientConfig";
    let versions_field = "spec.conversion.conversionReviewVersions";
    if strategy != "Webhook" {
        let rule = "should not be set when strategy is not set to Webhook";
        if client.is_object() {
            errors.push(FieldError::forbidden(client_field, rule));
        }
        if has_versions {
            errors.push(FieldError::forbidden(versions_field, rule));
        }
        return;
    }
    if !client.is_object() {
        errors.push(FieldError::required(
            client_field,
            "required when strategy is set to Webhook",
        ));
    } else if client["url"].is_null() == client["service"].is_null() {
        errors.push(FieldError::required(
            client_field,
            "exactly one of url or service is required",
        ));
    } else if client["url"].is_string() && !text_at(client, "/url").starts_with("https://") {
        let rule = "'https' is the only allowed URL scheme";
        errors.push(FieldError::invalid(
            &format!("{client_field}.url"),
            &client["url"],
            rule,
        ));
    }
    let known = |version: &Value| matches!(version.as_str(), Some("v1" | "v1beta1"));
    if !has_versions {
        errors.push(FieldError::required(versions_field, ""));
    } else if !versions
        .as_array()
        .is_some_and(|versions| versions.iter().any(known))
    {
        let rule = "must include at least one of v1, v1beta1";
        errors.push(FieldError::invalid(versions_field, versions, rule));
    }
}

/// Checks the fields that decide how objects are stored, which never change.
fn validate_change(spec: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let before = &old["spec"];
    let mut fields = vec!["/group", "/names/plural"];
    if is_established(old) {
        fields.extend(["/scope", "/names/kind"]);
    }
    for pointer in fields {
        let (new, old) = (spec.pointer(pointer), before.pointer(pointer));
        if new != old {
            let field = format!("spec{}", pointer.replace('/', "."));
            let shown = new.cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&field, &shown, "field is immutable"));
        }
    }
}

/// Checks that no version goes in which objects may still be stored.
fn validate_stored_versions(spec: &Value, stored: &Value, errors: &mut Vec<FieldError>) {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let known = stored.as_array().map(Vec::as_slice).unwrap_or_default();
    if known.is_empty() {
        let rule = "must have at least one stored version";
        errors.push(FieldError::invalid("status.storedVersions", stored, rule));
        return;
    }
    let mut unmatched = known.to_vec();
    for version in versions {
        let at = unmatched.iter().position(|name| *name == version["name"]);
        // Each stored version stands for one version of the spec.
        if let Some(at) = at {
            unmatched.remove(at);
        } else if version["storage"] == true {
            let rule = format!("must have the storage version {}", version["name"]);
            errors.push(FieldError::invalid("status.storedVersions", stored, rule));
        }
    }
    for (index, name) in stored.as_array().into_iter().flatten().enumerate() {
        if !versions.iter().any(|version| version["name"] == *name) {
            let name = name.as_str().unwrap_or_default();
            let rule = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            let field = format!("status.storedVersions[{index}]");
            errors.push(FieldError::invalid(&field, &name.into(), rule));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::fill_names;

    fn definition() -> Value {
        let mut object = json!({"metadata": {"name": "things.g.io"}, "spec": {
            "group": "g.io", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {"url": {"type": "string"}}},
            }}}}],
        }});
        fill_names(&mut object);
        object["status"]["storedVersions"] = json!(["v1"]);
        object
    }

    fn failing_fields(object: &Value, old: Option<&Value>) -> Vec<String> {
        let errors = validate_definition(object, old);
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn each_mistake_of_a_definition_is_named_by_its_field() {
        assert_eq!(failing_fields(&definition(), None), [""; 0]);
        for (pointer, value, field) in [
            ("/metadata/name", json!("others.g.io"), "metadata.name"),
            ("/spec/scope", json!("Namespace"), "spec.scope"),
            ("/spec/names/kind", json!("A B"), "spec.names.kind"),
            (
                "/spec/names/shortNames",
                json!(["TH"]),
                "spec.names.shortNames[0]",
            ),
            ("/spec/versions/0/name", json!("1"), "spec.versions[0].name"),
            ("/spec/versions/0/storage", json!("x"), "spec.versions"),
            (
                "/spec/versions/0/subresources",
                json!({"scale": {"specReplicasPath": ".spec.a", "statusReplicasPath": ".spec.b"}}),
                "spec.subresources.scale.statusReplicasPath",
            ),
            (
                "/spec/versions/0/additionalPrinterColumns",
                json!([{"name": "A", "type": "text", "jsonPath": ".a"}]),
                "spec.additionalPrinterColumns[0].type",
            ),
            (
                "/spec/versions/0/selectableFields",
                json!([{"jsonPath": ".spec.absent"}]),
                "spec.selectableFields[0].jsonPath",
            ),
            (
                "/spec/conversion",
                json!({"strategy": "Odd"}),
                "spec.conversion.strategy",
            ),
            (
                "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/url",
                json!({}),
                "spec.validation.openAPIV3Schema.properties[spec].properties[url].type",
            ),
        ] {
            let mut object = definition();
            let (parent, last) = pointer.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[last] = value;
            assert_eq!(
                failing_fields(&object, None).first().map(String::as_str),
                Some(field),
                "{pointer}"
            );
        }
    }

    #[test]
    fn version_with_stored_objects_cannot_be_removed() {
        let mut object = definition();
        object["status"]["storedVersions"] = json!(["v1alpha1", "v1"]);
        assert_eq!(
            failing_fields(&object, Some(&definition())),
            ["status.storedVersions[0]"]
        );
    }
}
