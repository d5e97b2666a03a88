//! CEL rules of a schema (`x-kubernetes-validations`), compiled once.

use kube_cel::{CompiledSchema, ErrorKind, RootContext, ValidationError, ValidationErrors, Validator};
use serde_json::Value;

use super::conversion::{KeyedList, ListAtPath, convert_schema};
use super::value::{reorder_items, without_null_fields};
use super::{RULES, rules};
use crate::validation::OldItems;
use crate::{FieldError, ROOT_PATH, Schema};

/// The compiled CEL rules of a schema.
#[derive(Debug)]
pub struct Rules {
    compiled: CompiledSchema,
    /// Rules that are not in `compiled`.
    keyed_items: Vec<KeyedItems>,
    /// Expressions of rules with the path at which they report a violation.
    reported_paths: Vec<(String, String)>,
    schema: Schema,
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
    /// Compiles the rules of a schema; `None` if it has none, or is none.
    pub fn compile(declared: &Value) -> Option<Self> {
        // Compilation walks and copies the whole schema, which is wasted on most of them.
        if !declared.to_string().contains(RULES) {
            return None;
        }
        let schema = Schema::parse(declared).ok()?;
        let mut reported_paths = Vec::new();
        collect_reported_paths(declared, &mut reported_paths);
        let converted = convert_schema(declared);
        let keyed_lists = converted.keyed_lists.into_iter();
        Some(Self {
            compiled: kube_cel::compile_schema(&converted.schema),
            keyed_items: keyed_lists.filter_map(KeyedItems::compile).collect(),
            reported_paths,
            schema,
        })
    }

    /// Evaluates the rules on a value that is valid by the schema. Transition rules compare it with `old`.
    pub fn validate(&self, value: &Value, old: Option<&Value>, meta: TypeMeta) -> Vec<FieldError> {
        let value = without_null_fields(&self.schema, value);
        let old = old.map(|old| without_null_fields(&self.schema, old));
        let below = self.keyed_items.iter();
        let of_items: Vec<_> = below
            .flat_map(|items| items.validate(&value, old.as_ref(), &meta))
            .collect();
        let old = old.map(|old| reorder_items(&self.schema, &old, &value));
        let context = RootContext {
            api_version: meta.api_version,
            api_group: meta.group,
            kind: meta.kind,
        };
        let result = Validator::new().validate_compiled_with_context(
            &self.compiled,
            &value,
            old.as_ref(),
            Some(&context),
        );
        let errors = result.err().map(ValidationErrors::into_vec).unwrap_or_default();
        let converted = errors
            .iter()
            .filter_map(|error| self.convert_error(error, &value));
        converted.chain(of_items).collect()
    }

    fn convert_error(&self, error: &ValidationError, value: &Value) -> Option<FieldError> {
        if error.kind == ErrorKind::CompilationFailure && error.rule.trim().is_empty() {
            // Refused with the definition, and not for its values.
            return None;
        }
        let at = self.find_value_path(error);
        let (place, evaluated) = locate(&self.schema, value, at);
        if evaluated == Some(&Value::Null) {
            // The API server evaluates no rule for a null.
            return None;
        }
        // A rule that could not be evaluated is reported at the value itself, not at the path for its violations.
        let (shown, reported) = match error.kind {
            ErrorKind::ValidationFailure => locate(&self.schema, value, &error.field_path),
            _ => (place, evaluated),
        };
        Some(describe_violation(
            error,
            &shown,
            reported.unwrap_or(&Value::Null),
        ))
    }

    /// Returns the path of the value that a rule was evaluated for.
    fn find_value_path<'a>(&self, error: &'a ValidationError) -> &'a str {
        let of_rule = self.reported_paths.iter().filter(|(rule, _)| *rule == error.rule);
        let mut values = of_rule.filter_map(|(_, path)| error.field_path.strip_suffix(path.as_str()));
        values.next().unwrap_or(&error.field_path).trim_end_matches('.')
    }
}

/// The rules of the items of a keyed list that name the old item: it is the one of the same key, at whatever index.
#[derive(Debug)]
struct KeyedItems {
    list: KeyedList,
    schema: Schema,
    rules: Rules,
}

impl KeyedItems {
    fn compile(list: KeyedList) -> Option<Self> {
        Some(Self {
            schema: Schema::parse(&list.declared).ok()?,
            rules: Rules::compile(&list.declared["items"])?,
            list,
        })
    }

    /// Evaluates the rules on all items below a value.
    fn validate(&self, value: &Value, old: Option<&Value>, meta: &TypeMeta) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for ListAtPath { path, items, old } in self.list.find_in(value, old) {
            let old_items = OldItems::new(&self.schema, old);
            for (index, item) in items.iter().enumerate() {
                let place = format!("{path}[{index}]");
                let found = self.rules.validate(item, old_items.find(item), meta.clone());
                errors.extend(found.into_iter().map(|error| error.below(&place)));
            }
        }
        errors
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

/// Follows a path such as `spec.labels.a` or `spec.list[0].name`. Returns it as the API server writes it, with the keys of maps in brackets
/// (`spec.labels[a]`), and the value there, if there is one.
fn locate<'a>(schema: &Schema, mut value: &'a Value, path: &str) -> (String, Option<&'a Value>) {
    let (mut schema, mut shown, mut rest) = (Some(schema), String::new(), path);
    loop {
        let name = rest.trim_start_matches('.');
        if name.is_empty() {
            return (shown, Some(value));
        }
        // Keys may have dots themselves.
        let is_first = |key: &&String| {
            let after = name.strip_prefix(key.as_str());
            after.is_some_and(|after| after.is_empty() || after.starts_with(['.', '[']))
        };
        let keys = value.as_object().into_iter().flat_map(|fields| fields.keys());
        let key = keys.filter(is_first).max_by_key(|key| key.len());
        let index = name.strip_prefix('[').and_then(|index| index.split_once(']'));
        let item = index.and_then(|(index, after)| Some((value.get(index.parse::<usize>().ok()?)?, after)));
        if let Some(key) = key {
            let property = schema.and_then(|schema| schema.properties.get(key));
            match property {
                None => shown.push_str(&format!("[{key}]")),
                Some(_) if shown.is_empty() => shown.push_str(key),
                Some(_) => shown.push_str(&format!(".{key}")),
            }
            schema = schema.and_then(|schema| schema.field(key));
            (value, rest) = (&value[key], &name[key.len()..]);
        } else if let Some((item, after)) = item {
            shown.push_str(&name[..name.len() - after.len()]);
            schema = schema.and_then(|schema| schema.items.as_deref());
            (value, rest) = (item, after);
        } else {
            // A field that is missing, which a rule names.
            shown.push_str(if shown.is_empty() { name } else { rest });
            return (shown, None);
        }
    }
}

fn describe_violation(error: &ValidationError, path: &str, value: &Value) -> FieldError {
    let field = if path.is_empty() { ROOT_PATH } else { path };
    match error.reason.as_deref() {
        Some("FieldValueForbidden") => FieldError::forbidden(field, &error.message),
        Some("FieldValueRequired") => FieldError::required(field, &error.message),
        Some("FieldValueDuplicate") => FieldError::duplicate(field, value),
        // Of objects and lists the API server shows nothing.
        _ if value.is_null() || value.is_object() || value.is_array() => FieldError::new(
            field,
            "FieldValueInvalid",
            format!("Invalid value: {}", error.message),
        ),
        _ => FieldError::invalid(field, value, &error.message),
    }
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
    fn value_without_a_field_that_has_a_default_is_evaluated_as_it_is() {
        let declared = json!({"type": "object", "properties": {
            // A field of the name of the keyword.
            "default": {"type": "object", "default": {"b": "y"}, "properties": {"b": {"type": "string"}},
                "x-kubernetes-validations": [{"rule": "self.b == 'x'"}]},
        }});
        let rules = Rules::compile(&declared).expect("the schema has rules");
        assert_eq!(rules.validate(&json!({}), None, type_meta()), []);
        let completed = json!({"default": {"b": "y"}});
        assert_eq!(rules.validate(&completed, None, type_meta()).len(), 1);
    }

    #[test]
    fn schema_without_rules_compiles_to_none() {
        assert!(Rules::compile(&json!({"type": "object"})).is_none());
    }

    #[test]
    fn path_leads_to_items_and_keys() {
        let root = json!({"spec": {"list": [{"name": "a"}, {"name": "b"}], "map": {"a.b": {"c": 1}}}});
        let declared = json!({"properties": {"spec": {"properties": {
            "list": {"items": {"properties": {"name": {}}}},
            "map": {"additionalProperties": {"properties": {"c": {}}}},
        }}}});
        let schema = Schema::parse(&declared).unwrap();
        for (path, shown, value) in [
            ("spec.list[1].name", "spec.list[1].name", Some(json!("b"))),
            ("spec.list[7].name", "spec.list[7].name", None),
            ("spec.map.a.b.c", "spec.map[a.b].c", Some(json!(1))),
            ("spec.other", "spec.other", None),
        ] {
            assert_eq!(locate(&schema, &root, path), (shown.to_owned(), value.as_ref()));
        }
    }
}
