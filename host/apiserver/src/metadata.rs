//! Validation of `metadata`, which is the same for every kind.

use ostler_schema::FieldError;
use serde_json::Value;

use crate::kind::ServedKind;

/// Annotation of a workload with the behavior of its pods: one of [`BEHAVIORS`].
pub const SIMULATE_ANNOTATION: &str = "apiserver.ostler.dev/simulate";
/// Values of the annotation. Pods that fail never become ready, and the workload says so where its kind has a condition for it. Pods that hang
/// are started and never become ready, and Jobs with them never end.
pub const BEHAVIORS: [&str; 2] = ["Fail", "Hang"];

const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED_NAME_RULE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Validates an object's metadata.
pub fn validate_metadata(kind: &ServedKind, object: &Value) -> Vec<FieldError> {
    let metadata = &object["metadata"];
    let mut errors = Vec::new();
    match metadata["name"].as_str().unwrap_or_default() {
        "" => errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        )),
        name => validate_name(kind, name, &metadata["name"], &mut errors),
    }
    for (field, what) in [("labels", true), ("annotations", false)] {
        let path = format!("metadata.{field}");
        if !metadata[field].is_null() && !metadata[field].is_object() {
            errors.push(FieldError::wrong_type(&path, "other", "object"));
        }
        for (key, value) in metadata[field].as_object().into_iter().flatten() {
            if !is_qualified_name(key) {
                errors.push(FieldError::invalid(
                    &path,
                    &key.as_str().into(),
                    QUALIFIED_NAME_RULE,
                ));
            }
            match value.as_str() {
                None => errors.push(FieldError::wrong_type(
                    &format!("{path}.{key}"),
                    "other",
                    "string",
                )),
                Some(text) if what && text.len() > 63 => {
                    errors.push(FieldError::invalid(&path, value, "must be no more than 63 bytes"))
                }
                Some(text) if what && !text.is_empty() && !is_label_value(text) => {
                    errors.push(FieldError::invalid(&path, value, LABEL_VALUE_RULE))
                }
                Some(_) => {}
            }
        }
    }
    let simulated = &metadata["annotations"][SIMULATE_ANNOTATION];
    if !simulated.is_null() && !BEHAVIORS.iter().any(|behavior| simulated == behavior) {
        let path = format!("metadata.annotations[{SIMULATE_ANNOTATION}]");
        let supported = format!(
            "supported values: {}",
            BEHAVIORS.map(|b| format!("{b:?}")).join(", ")
        );
        errors.push(FieldError::invalid(&path, simulated, supported));
    }
    for (index, owner) in metadata["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                errors.push(FieldError::invalid(
                    &format!("metadata.ownerReferences[{index}].{field}"),
                    &"".into(),
                    "must not be empty",
                ));
            }
        }
    }
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten() {
        match finalizer.as_str() {
            Some(name) if is_qualified_name(name) => {}
            _ => errors.push(FieldError::invalid(
                "metadata.finalizers",
                finalizer,
                QUALIFIED_NAME_RULE,
            )),
        }
    }
    errors
}

fn validate_name(kind: &ServedKind, name: &str, value: &Value, errors: &mut Vec<FieldError>) {
    let path = "metadata.name";
    if kind.resource.group == "rbac.authorization.k8s.io" {
        if name.contains(['/', '%']) || matches!(name, "." | "..") {
            errors.push(FieldError::invalid(path, value, "may not contain '/'"));
        }
        return;
    }
    let label = kind.kind == "Namespace" && !kind.custom;
    let (most, good, words) = if label {
        (63, is_dns_label(name), LABEL_RULE)
    } else {
        (253, name.split('.').all(is_dns_label), SUBDOMAIN_RULE)
    };
    if name.len() > most {
        errors.push(FieldError::invalid(
            path,
            value,
            format!("must be no more than {most} bytes"),
        ));
    }
    if !good {
        errors.push(FieldError::invalid(path, value, words));
    }
}

fn is_dns_label(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_label_value(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    name.len() <= 63
        && is_label_value(name)
        && prefix.is_none_or(|prefix| prefix.split('.').all(is_dns_label))
}
