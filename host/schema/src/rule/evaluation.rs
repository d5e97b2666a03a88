//! CEL rules of a schema (`x-kubernetes-validations`), compiled once.

use kube_cel::{CompiledSchema, ErrorKind, RootContext, ValidationError, ValidationErrors, Validator};
use serde_json::Value;

use super::keyed_items::{KeyedItems, PathStep};
use super::rules;
use super::value::{reorder_items, without_null_fields};
use crate::field_path::join_path;
use crate::{FieldError, Schema};

/// Path of the root, as the API server prints it.
const ROOT: &str = "<nil>";

/// The compiled CEL rules of a schema.
#[derive(Debug)]
pub struct Rules {
    compiled: CompiledSchema,
    /// Rules that are not in `compiled`.
    keyed_items: Vec<KeyedItems>,
    /// Expressions of rules with the path at which they report a violation.
    reported_paths: Vec<(String, String)>,
    declared: Value,
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
        let mut evaluated = EvaluatedSchema::default();
        let compiled = kube_cel::compile_schema(&evaluated.convert(declared));
        Some(Self {
            compiled,
            keyed_items: evaluated.keyed_items,
            reported_paths,
            declared: declared.clone(),
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
        let (place, evaluated) = locate(&self.declared, value, at);
        if evaluated == Some(&Value::Null) {
            // The API server evaluates no rule for a null.
            return None;
        }
        // A rule that could not be evaluated is reported at the value itself, not at the path for its violations.
        let (shown, reported) = match error.kind {
            ErrorKind::ValidationFailure => locate(&self.declared, value, &error.field_path),
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

/// Keyword of the rules of a schema.
const RULES: &str = "x-kubernetes-validations";

/// The conversion of a schema into what kube-cel evaluates as a whole: without defaults, which kube-cel would fill in, although
/// objects have them already, and without the rules of keyed items, for which it takes the old item of the same index.
#[derive(Default)]
struct EvaluatedSchema {
    steps: Vec<PathStep>,
    keyed_items: Vec<KeyedItems>,
}

impl EvaluatedSchema {
    fn convert(&mut self, declared: &Value) -> Value {
        convert_keywords(declared, &["default"], &mut |keyword, below| match keyword {
            SchemaKeyword::Property(name) => self.convert_below(PathStep::Field(name.to_owned()), below),
            SchemaKeyword::Values => self.convert_below(PathStep::Values, below),
            SchemaKeyword::Items => match KeyedItems::compile(declared, &self.steps) {
                Some(items) => {
                    self.keyed_items.push(items);
                    without_keywords(below, &["default", RULES])
                }
                None => without_keywords(below, &["default"]),
            },
        })
    }

    fn convert_below(&mut self, step: PathStep, declared: &Value) -> Value {
        self.steps.push(step);
        let converted = self.convert(declared);
        self.steps.pop();
        converted
    }
}

/// A keyword that holds another schema.
enum SchemaKeyword<'a> {
    Property(&'a str),
    Values,
    Items,
}

/// Returns a schema without some of its keywords, and with those below it converted.
fn convert_keywords(
    declared: &Value,
    dropped: &[&str],
    convert: &mut dyn FnMut(SchemaKeyword<'_>, &Value) -> Value,
) -> Value {
    let Value::Object(keywords) = declared else {
        return declared.clone();
    };
    let kept = keywords
        .iter()
        .filter(|(keyword, _)| !dropped.contains(&keyword.as_str()));
    let convert_keyword = |(keyword, value): (&String, &Value)| {
        let value = match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => properties
                .iter()
                .map(|(name, below)| (name.clone(), convert(SchemaKeyword::Property(name), below)))
                .collect(),
            ("additionalProperties", below) => convert(SchemaKeyword::Values, below),
            ("items", below) => convert(SchemaKeyword::Items, below),
            _ => value.clone(),
        };
        (keyword.clone(), value)
    };
    kept.map(convert_keyword).collect()
}

/// Returns a schema without some keywords in it and in those below it.
fn without_keywords(declared: &Value, dropped: &[&str]) -> Value {
    convert_keywords(declared, dropped, &mut |_, below| {
        without_keywords(below, dropped)
    })
}

/// Moves an error of a value to the path of the value in another one.
pub(super) fn place_below(path: &str, error: FieldError) -> FieldError {
    let field = match error.field.as_str() {
        ROOT => path.to_owned(),
        field => join_path(path, field),
    };
    FieldError { field, ..error }
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
fn locate<'a>(mut declared: &Value, mut value: &'a Value, path: &str) -> (String, Option<&'a Value>) {
    let (mut shown, mut rest) = (String::new(), path);
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
            let property = declared["properties"].get(key);
            match property {
                None => shown.push_str(&format!("[{key}]")),
                Some(_) if shown.is_empty() => shown.push_str(key),
                Some(_) => shown.push_str(&format!(".{key}")),
            }
            declared = property.unwrap_or(&declared["additionalProperties"]);
            (value, rest) = (&value[key], &name[key.len()..]);
        } else if let Some((item, after)) = item {
            shown.push_str(&name[..name.len() - after.len()]);
            declared = &declared["items"];
            (value, rest) = (item, after);
        } else {
            // A field that is missing, which a rule names.
            shown.push_str(if shown.is_empty() { name } else { rest });
            return (shown, None);
        }
    }
}

fn describe_violation(error: &ValidationError, path: &str, value: &Value) -> FieldError {
    let field = if path.is_empty() { ROOT } else { path };
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
        for (path, shown, value) in [
            ("spec.list[1].name", "spec.list[1].name", Some(json!("b"))),
            ("spec.list[7].name", "spec.list[7].name", None),
            ("spec.map.a.b.c", "spec.map[a.b].c", Some(json!(1))),
            ("spec.other", "spec.other", None),
        ] {
            assert_eq!(locate(&declared, &root, path), (shown.to_owned(), value.as_ref()));
        }
    }
}
