//! CEL rules of a schema (`x-kubernetes-validations`), compiled once.

use kube_cel::{CompiledSchema, ErrorKind, RootContext, ValidationError, ValidationErrors, Validator};
use serde_json::Value;

use super::rules;
use crate::FieldError;

/// The compiled CEL rules of a schema.
#[derive(Debug)]
pub struct Rules {
    compiled: CompiledSchema,
    /// Expressions of rules with the path at which they report a violation.
    reported_paths: Vec<(String, String)>,
    declared: Value,
}

/// Identity of the validated kind: rules may refer to `apiVersion` and `kind`.
#[derive(Debug, Clone)]
pub struct TypeMeta {
    /// API group, empty for core.
    pub group: String,
    /// `GROUP/VERSION`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
}

impl Rules {
    /// Compiles the rules of a schema; `None` if it has none.
    pub fn compile(declared: &Value) -> Option<Self> {
        // Compilation walks and copies the whole schema, which is wasted on most of them.
        declared
            .to_string()
            .contains("x-kubernetes-validations")
            .then(|| {
                let mut reported_paths = Vec::new();
                collect_reported_paths(declared, &mut reported_paths);
                Self {
                    compiled: kube_cel::compile_schema(declared),
                    reported_paths,
                    declared: declared.clone(),
                }
            })
    }

    /// Evaluates the rules on a value that is valid by the schema. Transition rules compare it with `old`.
    pub fn validate(&self, value: &Value, old: Option<&Value>, meta: TypeMeta) -> Vec<FieldError> {
        let context = RootContext {
            api_version: meta.api_version,
            api_group: meta.group,
            kind: meta.kind,
        };
        let result =
            Validator::new().validate_compiled_with_context(&self.compiled, value, old, Some(&context));
        let errors = result.err().map(ValidationErrors::into_vec).unwrap_or_default();
        let convert = |error: &ValidationError| {
            if error.rule.trim().is_empty() {
                // Refused with the definition, and not for its values.
                return None;
            }
            let at = self.find_value_path(error);
            if value.is_object() && find_value(value, at) == Some(&Value::Null) {
                // The API server evaluates no rule for a null.
                return None;
            }
            // A rule that could not be evaluated is reported at the value itself, not at the path for its violations.
            let is_violation = error.kind == ErrorKind::ValidationFailure;
            let path = if is_violation { &error.field_path } else { at };
            let mut shown = String::new();
            quote_keys(&self.declared, value, path, &mut shown);
            let reported = find_value(value, path).unwrap_or(&Value::Null);
            Some(convert_error(error, &shown, reported))
        };
        errors.iter().filter_map(convert).collect()
    }

    /// Returns the path of the value that a rule was evaluated for.
    fn find_value_path<'a>(&self, error: &'a ValidationError) -> &'a str {
        let of_rule = self.reported_paths.iter().filter(|(rule, _)| *rule == error.rule);
        let mut values = of_rule.filter_map(|(_, path)| error.field_path.strip_suffix(path.as_str()));
        values.next().unwrap_or(&error.field_path).trim_end_matches('.')
    }
}

/// Collects the expressions of the rules below a schema that report their violations at another path.
fn collect_reported_paths(declared: &Value, paths: &mut Vec<(String, String)>) {
    match declared {
        Value::Object(fields) => {
            for rule in rules(declared) {
                if let (Some(expression), Some(path)) = (rule["rule"].as_str(), rule["fieldPath"].as_str()) {
                    paths.push((expression.to_owned(), path.to_owned()));
                }
            }
            fields
                .values()
                .for_each(|field| collect_reported_paths(field, paths));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_reported_paths(item, paths)),
        _ => {}
    }
}

/// Writes a path such as `spec.labels.a` as the API server does, with the keys of maps in brackets: `spec.labels[a]`.
fn quote_keys(declared: &Value, value: &Value, path: &str, shown: &mut String) {
    let keys = value.as_object().into_iter().flat_map(|fields| fields.keys());
    let rest = path.trim_start_matches('.');
    let ends = |key: &&String| {
        let after = rest.strip_prefix(key.as_str());
        after.is_some_and(|after| after.is_empty() || after.starts_with(['.', '[']))
    };
    if let Some(key) = keys.filter(ends).max_by_key(|key| key.len()) {
        let property = &declared["properties"][key];
        let below = if property.is_null() {
            shown.push_str(&format!("[{key}]"));
            &declared["additionalProperties"]
        } else {
            shown.push_str(if shown.is_empty() { "" } else { "." });
            shown.push_str(key);
            property
        };
        return quote_keys(below, &value[key], &rest[key.len()..], shown);
    }
    let index = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match index.and_then(|(index, after)| Some((index.parse::<usize>().ok()?, after))) {
        Some((index, after)) if value.is_array() => {
            shown.push_str(&format!("[{index}]"));
            quote_keys(&declared["items"], &value[index], after, shown);
        }
        // At a field that is missing, which a rule names.
        _ => shown.push_str(if shown.is_empty() { rest } else { path }),
    }
}

fn convert_error(error: &ValidationError, path: &str, value: &Value) -> FieldError {
    // The API server prints the path of the root this way.
    let field = if path.is_empty() { "<nil>" } else { path };
    match error.reason.as_deref() {
        Some("FieldValueForbidden") => FieldError::forbidden(field, &error.message),
        Some("FieldValueRequired") => FieldError::required(field, &error.message),
        Some("FieldValueDuplicate") => FieldError::duplicate(field, value),
        _ => FieldError::new(
            field,
            "FieldValueInvalid",
            format!("Invalid value: {}", error.message),
        ),
    }
}

/// The value at a path such as `spec.list[0].name`.
fn find_value<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    let mut parts = path.split(['.', '[', ']']).filter(|part| !part.is_empty());
    parts.try_fold(root, |value, part| match value {
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        other => other.get(part.trim_matches('"')),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn type_meta() -> TypeMeta {
        TypeMeta {
            group: "g".into(),
            api_version: "g/v1".into(),
            kind: "K".into(),
        }
    }

    #[test]
    fn violated_rule_gives_its_field_and_reason() {
        let declared = json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "x-kubernetes-validations": [
                {"rule": "self.a > 1", "message": "a must be above 1"},
                {"rule": "self.b != 'x'", "message": "no x", "reason": "FieldValueForbidden"},
            ],
        }}});
        let rules = Rules::compile(&declared).expect("the schema has rules");
        let valid = json!({"spec": {"a": 2, "b": "y"}});
        assert_eq!(rules.validate(&valid, None, type_meta()), []);
        let errors = rules.validate(&json!({"spec": {"a": 1, "b": "x"}}), None, type_meta());
        let errors: Vec<(String, &str)> = errors.iter().map(|e| (e.to_string(), e.reason)).collect();
        assert_eq!(
            errors,
            [
                (
                    "spec: Invalid value: a must be above 1".to_owned(),
                    "FieldValueInvalid"
                ),
                ("spec: Forbidden: no x".to_owned(), "FieldValueForbidden"),
            ]
        );
    }

    #[test]
    fn rule_that_cannot_be_evaluated_is_reported_at_its_value() {
        let declared = json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "x-kubernetes-validations": [{"rule": "self.a.startsWith('x')", "fieldPath": ".b", "reason": "FieldValueForbidden"}],
        }}});
        let rules = Rules::compile(&declared).expect("the schema has rules");
        for (spec, field, reason) in [
            (json!({}), "spec", "FieldValueInvalid"),
            (json!({"a": "y"}), "spec.b", "FieldValueForbidden"),
        ] {
            let errors = rules.validate(&json!({"spec": spec}), None, type_meta());
            let errors: Vec<(&str, &str)> = errors.iter().map(|e| (&*e.field, e.reason)).collect();
            assert_eq!(errors, [(field, reason)]);
        }
    }

    #[test]
    fn rule_of_a_map_value_is_reported_at_its_key() {
        let rule = json!([{"rule": "self.a > 1", "message": "low"}, {"rule": "self.a > 1", "fieldPath": ".b", "message": "low"}]);
        let item = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "x-kubernetes-validations": rule});
        let declared = json!({"type": "object", "properties": {"maps": {"type": "array", "items": {"type": "object", "additionalProperties": item}}}});
        let rules = Rules::compile(&declared).expect("the schema has rules");
        let value = json!({"maps": [{"a.example": {"a": 1}}]});
        let errors = rules.validate(&value, None, type_meta());
        let fields: Vec<&str> = errors.iter().map(|e| &*e.field).collect();
        assert_eq!(fields, ["maps[0][a.example]", "maps[0][a.example].b"]);
    }

    #[test]
    fn rule_of_a_null_is_not_evaluated() {
        let declared = json!({"type": "object", "properties": {"a": {
            "type": "object", "nullable": true, "properties": {"b": {"type": "string"}},
            "x-kubernetes-validations": [{"rule": "self.b == 'x'"}],
        }}});
        let rules = Rules::compile(&declared).expect("the schema has rules");
        assert_eq!(rules.validate(&json!({"a": null}), None, type_meta()), []);
        assert_eq!(
            rules.validate(&json!({"a": {"b": "y"}}), None, type_meta()).len(),
            1
        );
    }

    #[test]
    fn schema_without_rules_compiles_to_none() {
        assert!(Rules::compile(&json!({"type": "object"})).is_none());
    }

    #[test]
    fn path_with_index_finds_list_item() {
        let root = json!({"spec": {"list": [{"name": "a"}, {"name": "b"}]}});
        assert_eq!(find_value(&root, "spec.list[1].name"), Some(&json!("b")));
        assert_eq!(find_value(&root, "spec.list[7].name"), None);
    }
}
