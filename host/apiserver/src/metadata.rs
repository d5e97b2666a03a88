//! Validation of `metadata`, which is the same for every kind.

use ostler_schema::FieldError;
use serde_json::Value;

use crate::kind::ServedKind;
use crate::names::{
    LABEL_RULE, LABEL_VALUE_RULE, PATH_SEGMENT_RULE, QUALIFIED_NAME_RULE, SUBDOMAIN_RULE, is_dns_label,
    is_dns_subdomain, is_label_value, is_path_segment, is_qualified_name,
};
use crate::rbac::RBAC_GROUP;

/// Annotation of a workload with the behavior of its pods: one of [`BEHAVIORS`].
pub const SIMULATE_ANNOTATION: &str = "apiserver.ostler.dev/simulate";
/// Values of the annotation. Pods that fail never become ready, and the workload says so where its kind has a condition for it. Pods that hang
/// are started and never become ready, and Jobs with them never end.
pub const BEHAVIORS: [&str; 2] = ["Fail", "Hang"];
/// Maximum bytes of all annotations, with their keys.
const MAX_ANNOTATIONS_SIZE: i64 = 256 * 1024;
/// Maximum bytes of the value of a label.
const MAX_LABEL_VALUE: usize = 63;

/// Brings metadata into the form in which the API server writes what it has decoded: without nulls and empty values, but with an
/// empty text for a label or annotation that is null.
pub fn unify_metadata(metadata: &mut Value) {
    let Some(fields) = metadata.as_object_mut() else {
        return;
    };
    for texts in ["labels", "annotations"] {
        let texts = fields.get_mut(texts).and_then(Value::as_object_mut);
        for text in texts.into_iter().flat_map(|texts| texts.values_mut()) {
            if text.is_null() {
                *text = "".into();
            }
        }
    }
    fields.retain(|name, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(members) => !members.is_empty(),
        // An empty list of field managers is a request of its own.
        Value::Array(items) => !items.is_empty() || name == "managedFields",
        _ => true,
    });
}

/// Validates an object's metadata.
pub fn validate_metadata(kind: &ServedKind, object: &Value) -> Vec<FieldError> {
    let metadata = &object["metadata"];
    let mut errors = Vec::new();
    for (field, is_prefix) in [("generateName", true), ("name", false)] {
        let name = metadata[field].as_str().unwrap_or_default();
        let path = format!("metadata.{field}");
        if !name.is_empty() {
            validate_name(kind, name, is_prefix, &path, &mut errors);
        } else if !is_prefix {
            errors.push(FieldError::required(&path, "name or generateName is required"));
        }
    }
    errors.extend(validate_common(metadata, "metadata"));
    errors
}

/// Validates the metadata of an object that is a field of another one.
pub fn validate_embedded_metadata(metadata: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = metadata["name"].as_str().unwrap_or_default();
    if !is_path_segment(name) {
        errors.push(FieldError::invalid(
            &format!("{path}.name"),
            &name.into(),
            PATH_SEGMENT_RULE,
        ));
    }
    errors.extend(validate_common(metadata, path));
    errors
}

fn validate_common(metadata: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_labels(&metadata["labels"], &format!("{path}.labels"), &mut errors);
    let annotations = &metadata["annotations"];
    validate_annotations(annotations, &format!("{path}.annotations"), &mut errors);
    let owners = &metadata["ownerReferences"];
    validate_owners(owners, &format!("{path}.ownerReferences"), &mut errors);
    let finalizers = &metadata["finalizers"];
    validate_finalizers(finalizers, &format!("{path}.finalizers"), &mut errors);
    errors
}

/// Validates labels, of which an error names `path`.
pub fn validate_labels(labels: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        if !is_qualified_name(key) {
            errors.push(FieldError::invalid(
                path,
                &key.as_str().into(),
                QUALIFIED_NAME_RULE,
            ));
        }
        let text = value.as_str().unwrap_or_default();
        if text.len() > MAX_LABEL_VALUE {
            errors.push(FieldError::invalid(path, value, "must be no more than 63 bytes"));
        } else if !text.is_empty() && !is_label_value(text) {
            errors.push(FieldError::invalid(path, value, LABEL_VALUE_RULE));
        }
    }
}

/// Validates a label selector at a path; one that is missing is valid.
pub fn validate_label_selector(selector: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_labels(
        &selector["matchLabels"],
        &format!("{path}.matchLabels"),
        &mut errors,
    );
    let requirements = selector["matchExpressions"].as_array().into_iter().flatten();
    for (index, requirement) in requirements.enumerate() {
        errors.extend(check_requirement(
            requirement,
            &format!("{path}.matchExpressions[{index}]"),
            &[],
        ));
    }
    errors
}

/// Checks a requirement of a selector. `comparisons` are its operators that take one value, which labels do not have.
pub fn check_requirement(requirement: &Value, at: &str, comparisons: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let values = requirement["values"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let field = format!("{at}.values");
    match requirement["operator"].as_str().unwrap_or_default() {
        "In" | "NotIn" if values.is_empty() => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(&field, why));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(&field, why));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        operator if comparisons.contains(&operator) => {
            if values.len() != 1 {
                let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(FieldError::required(&field, why));
            }
        }
        operator => {
            let field = format!("{at}.operator");
            errors.push(FieldError::invalid(
                &field,
                &operator.into(),
                "not a valid selector operator",
            ));
        }
    }
    if !requirement["key"].as_str().is_some_and(is_qualified_name) {
        errors.push(FieldError::invalid(
            &format!("{at}.key"),
            &requirement["key"],
            QUALIFIED_NAME_RULE,
        ));
    }
    for (index, value) in values.iter().enumerate() {
        if !value
            .as_str()
            .is_some_and(|text| text.is_empty() || is_label_value(text))
        {
            errors.push(FieldError::invalid(
                &format!("{field}[{index}]"),
                value,
                LABEL_VALUE_RULE,
            ));
        }
    }
    errors
}

fn validate_annotations(annotations: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        if !is_qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid(
                path,
                &key.as_str().into(),
                QUALIFIED_NAME_RULE,
            ));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size as i64 > MAX_ANNOTATIONS_SIZE {
        errors.push(FieldError::too_long(path, MAX_ANNOTATIONS_SIZE));
    }
    let simulated = &annotations[SIMULATE_ANNOTATION];
    if !simulated.is_null() && !BEHAVIORS.iter().any(|behavior| simulated == behavior) {
        let path = format!("{path}[{SIMULATE_ANNOTATION}]");
        let supported = format!(
            "supported values: {}",
            BEHAVIORS.map(|b| format!("{b:?}")).join(", ")
        );
        errors.push(FieldError::invalid(&path, simulated, supported));
    }
}

/// The API server names the field of an owner without its index.
fn validate_owners(owners: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut controllers = 0;
    for owner in owners.as_array().into_iter().flatten() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                errors.push(FieldError::invalid(
                    &format!("{path}.{field}"),
                    &"".into(),
                    "must not be empty",
                ));
            }
        }
        if owner["apiVersion"] == "v1" && owner["kind"] == "Event" {
            let rule = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, owner, rule));
        }
        if owner["controller"] == true {
            controllers += 1;
        }
    }
    if controllers > 1 {
        let rule = "Only one reference can have Controller set to true";
        errors.push(FieldError::invalid(path, owners, rule));
    }
}

fn validate_finalizers(finalizers: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut names = Vec::new();
    for finalizer in finalizers.as_array().into_iter().flatten() {
        let name = finalizer.as_str().unwrap_or_default();
        if !is_qualified_name(name) {
            errors.push(FieldError::invalid(path, finalizer, QUALIFIED_NAME_RULE));
        }
        names.push(name);
    }
    if names.contains(&"orphan") && names.contains(&"foregroundDeletion") {
        let rule = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, finalizers, rule));
    }
}

/// Forbids finalizers that an object in deletion does not have yet.
pub fn forbid_new_finalizers(object: &Value, old: &Value) -> Option<FieldError> {
    let list = |object: &Value| {
        object["metadata"]["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let known = list(old);
    let fresh: Vec<String> = list(object)
        .iter()
        .filter(|one| !known.contains(one))
        .map(ToString::to_string)
        .collect();
    let why = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        fresh.join(", ")
    );
    (!fresh.is_empty()).then(|| FieldError::forbidden("metadata.finalizers", why))
}

/// Rules for the names of a kind's objects.
enum NameRule {
    PathSegment,
    Label,
    Subdomain,
}

fn name_rule(kind: &ServedKind) -> NameRule {
    if kind.custom {
        return NameRule::Subdomain;
    }
    match (kind.resource.group.as_str(), kind.kind.as_str()) {
        (RBAC_GROUP, _) | ("policy", _) => NameRule::PathSegment,
        ("", "Namespace" | "Service") => NameRule::Label,
        _ => NameRule::Subdomain,
    }
}

fn validate_name(kind: &ServedKind, name: &str, is_prefix: bool, path: &str, errors: &mut Vec<FieldError>) {
    let value = &Value::from(name);
    // What is appended to a prefix ends as a name must.
    let masked = match name.strip_suffix('-') {
        Some(start) if is_prefix && !start.is_empty() => format!("{start}a"),
        _ => name.to_owned(),
    };
    let (most, is_valid, rule) = match name_rule(kind) {
        NameRule::PathSegment => (usize::MAX, is_path_segment(name), "may not contain '/'"),
        NameRule::Label => (63, is_dns_label(&masked), LABEL_RULE),
        NameRule::Subdomain => (253, is_dns_subdomain(&masked), SUBDOMAIN_RULE),
    };
    if name.len() > most {
        let rule = format!("must be no more than {most} bytes");
        errors.push(FieldError::invalid(path, value, rule));
    }
    if !is_valid {
        errors.push(FieldError::invalid(path, value, rule));
    }
}
