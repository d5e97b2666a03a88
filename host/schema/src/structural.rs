//! Validation of a schema itself: the rules that make it structural.

use serde_json::Value;

use crate::{FieldError, Schema};

/// Violations of the rules for structural schemas, at paths below `path`.
///
/// Covers the mistakes that authors make: a missing type, list keys or `items`, patterns and (with the feature `cel`)
/// CEL rules that do not compile.
pub fn check_structural(declared: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    collect_errors(declared, path, &mut errors);
    errors
}

fn collect_errors(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if let Err(error) = Schema::parse(declared) {
        return errors.push(FieldError::invalid(path, declared, error));
    }
    check_type(declared, path, errors);
    check_list(declared, path, errors);
    check_pattern(declared, path, errors);
    #[cfg(feature = "cel")]
    check_rules(declared, path, errors);
    for (name, property) in declared["properties"].as_object().into_iter().flatten() {
        // The schema of an object's own metadata is the API server's, not the author's.
        if path.ends_with("openAPIV3Schema") && name == "metadata" {
            continue;
        }
        collect_errors(property, &format!("{path}.properties[{name}]"), errors);
    }
    for keyword in ["items", "additionalProperties"] {
        if declared[keyword].is_object() {
            collect_errors(&declared[keyword], &format!("{path}.{keyword}"), errors);
        }
    }
    if declared["type"] == "array" && !declared["items"].is_object() {
        errors.push(FieldError::required(
            &format!("{path}.items"),
            "must be specified",
        ));
    }
}

fn check_type(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let may_omit_type = declared["x-kubernetes-int-or-string"] == true
        || declared["x-kubernetes-preserve-unknown-fields"] == true;
    if declared["type"].as_str().is_none_or(str::is_empty) && !may_omit_type {
        errors.push(FieldError::required(
            &format!("{path}.type"),
            "must not be empty for specified object fields",
        ));
    }
}

fn check_list(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let has_no_keys = declared["x-kubernetes-list-map-keys"]
        .as_array()
        .is_none_or(Vec::is_empty);
    if declared["x-kubernetes-list-type"] == "map" && has_no_keys {
        errors.push(FieldError::required(
            &format!("{path}.x-kubernetes-list-map-keys"),
            "must not be empty if x-kubernetes-list-type is map",
        ));
    }
}

fn check_pattern(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(pattern) = declared["pattern"].as_str()
        && let Err(error) = regex::Regex::new(pattern)
    {
        errors.push(FieldError::invalid(
            &format!("{path}.pattern"),
            &declared["pattern"],
            format!("must be a valid regular expression, but isn't: {error}"),
        ));
    }
}

#[cfg(feature = "cel")]
fn check_rules(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let rules = declared["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten();
    for (index, rule) in rules.enumerate() {
        let compiled = rule["rule"].as_str().map(kube_cel::cel::Program::compile);
        if let Some(Err(error)) = compiled {
            errors.push(FieldError::invalid(
                &format!("{path}.x-kubernetes-validations[{index}].rule"),
                &rule["rule"],
                format!("compilation failed: {error}"),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failing_fields(declared: &Value) -> Vec<String> {
        let errors = check_structural(declared, "schema");
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn schema_without_type_keys_or_items_is_refused() {
        let declared = json!({"type": "object", "properties": {
            "a": {},
            "b": {"type": "array"},
            "c": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"},
            "d": {"type": "string", "pattern": "("},
            "e": {"x-kubernetes-preserve-unknown-fields": true},
        }});
        assert_eq!(
            failing_fields(&declared),
            [
                "schema.properties[a].type",
                "schema.properties[b].items",
                "schema.properties[c].x-kubernetes-list-map-keys",
                "schema.properties[d].pattern",
            ]
        );
    }

    #[cfg(feature = "cel")]
    #[test]
    fn rule_that_does_not_compile_is_refused() {
        let declared = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.a >"}]});
        assert_eq!(
            failing_fields(&declared),
            ["schema.x-kubernetes-validations[0].rule"]
        );
    }
}
