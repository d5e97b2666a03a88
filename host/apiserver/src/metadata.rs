//! Checks of `metadata` that hold for every kind.

use ostler_schema::FieldError;
use serde_json::Value;

use crate::kind::Kind;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Everything wrong with an object's metadata.
pub fn check(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let metadata = &object["metadata"];
    let mut causes = Vec::new();
    match metadata["name"].as_str().unwrap_or_default() {
        "" => causes.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        )),
        name => name_of(kind, name, &metadata["name"], &mut causes),
    }
    for (field, what) in [("labels", true), ("annotations", false)] {
        let path = format!("metadata.{field}");
        if !metadata[field].is_null() && !metadata[field].is_object() {
            causes.push(FieldError::wrong_type(&path, "other", "object"));
        }
        for (key, value) in metadata[field].as_object().into_iter().flatten() {
            if !is_qualified(key) {
                causes.push(FieldError::invalid(&path, &key.as_str().into(), QUALIFIED));
            }
            match value.as_str() {
                None => causes.push(FieldError::wrong_type(
                    &format!("{path}.{key}"),
                    "other",
                    "string",
                )),
                Some(text) if what && text.len() > 63 => {
                    causes.push(FieldError::invalid(&path, value, "must be no more than 63 bytes"))
                }
                Some(text) if what && !text.is_empty() && !is_name(text) => {
                    causes.push(FieldError::invalid(&path, value, LABEL_VALUE))
                }
                Some(_) => {}
            }
        }
    }
    for (index, owner) in metadata["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                causes.push(FieldError::invalid(
                    &format!("metadata.ownerReferences[{index}].{field}"),
                    &"".into(),
                    "must not be empty",
                ));
            }
        }
    }
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten() {
        match finalizer.as_str() {
            Some(name) if is_qualified(name) => {}
            _ => causes.push(FieldError::invalid("metadata.finalizers", finalizer, QUALIFIED)),
        }
    }
    causes
}

fn name_of(kind: &Kind, name: &str, value: &Value, causes: &mut Vec<FieldError>) {
    let path = "metadata.name";
    if kind.resource.group == "rbac.authorization.k8s.io" {
        if name.contains(['/', '%']) || matches!(name, "." | "..") {
            causes.push(FieldError::invalid(path, value, "may not contain '/'"));
        }
        return;
    }
    let label = kind.kind == "Namespace" && !kind.custom;
    let (most, good, words) = if label {
        (63, is_dns_label(name), LABEL)
    } else {
        (253, name.split('.').all(is_dns_label), SUBDOMAIN)
    };
    if name.len() > most {
        causes.push(FieldError::invalid(
            path,
            value,
            format!("must be no more than {most} bytes"),
        ));
    }
    if !good {
        causes.push(FieldError::invalid(path, value, words));
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

fn is_name(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn is_qualified(text: &str) -> bool {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    name.len() <= 63 && is_name(name) && prefix.is_none_or(|prefix| prefix.split('.').all(is_dns_label))
}
