//! The conversion of a schema into what kube-cel evaluates as a whole. Defaults are left out, which kube-cel would fill in, although
//! objects have them already, and so are the rules of keyed items, for which it takes the old item of the same index.

use serde_json::Value;

use super::{RULES, rules};
use crate::field_path::field_path;
use crate::keywords::subschemas;

/// A converted schema, and the lists whose items are evaluated apart.
#[derive(Default)]
pub(super) struct ConvertedSchema {
    pub(super) schema: Value,
    pub(super) keyed_lists: Vec<KeyedList>,
}

/// A keyed list whose items have rules that name the old item.
#[derive(Debug)]
pub(super) struct KeyedList {
    /// From the value that holds the list.
    steps: Vec<PathStep>,
    /// The schema of the list.
    pub(super) declared: Value,
}

/// A step from a value to one below it.
#[derive(Debug, Clone)]
enum PathStep {
    Field(String),
    /// Each value of a map.
    Values,
}

/// A list in a value, and the old value at its path.
pub(super) struct ListAtPath<'a> {
    pub(super) path: String,
    pub(super) items: &'a [Value],
    pub(super) old: Option<&'a Value>,
}

/// Converts a schema.
pub(super) fn convert_schema(declared: &Value) -> ConvertedSchema {
    let mut keyed_lists = Vec::new();
    let schema = convert_below(declared, &mut Vec::new(), &mut keyed_lists);
    ConvertedSchema { schema, keyed_lists }
}

fn convert_below(declared: &Value, steps: &mut Vec<PathStep>, keyed_lists: &mut Vec<KeyedList>) -> Value {
    convert_keywords(declared, &["default"], &mut |keyword, below| {
        let step = match keyword {
            SchemaKeyword::Property(name) => PathStep::Field(name.to_owned()),
            SchemaKeyword::Values => PathStep::Values,
            SchemaKeyword::Items if declared["x-kubernetes-list-type"] == "map" && names_old_value(below) => {
                keyed_lists.push(KeyedList {
                    steps: steps.clone(),
                    declared: declared.clone(),
                });
                return without_keywords(below, &["default", RULES]);
            }
            // No value in another list has an old one.
            SchemaKeyword::Items => return without_keywords(below, &["default"]),
        };
        steps.push(step);
        let converted = convert_below(below, steps, keyed_lists);
        steps.pop();
        converted
    })
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

/// Returns true if a rule of the schema, or of one below it, names the old value.
fn names_old_value(declared: &Value) -> bool {
    let mut of_schema = rules(declared);
    of_schema.any(|rule| rule["rule"].as_str().is_some_and(|rule| rule.contains("oldSelf")))
        || subschemas(declared).any(|(_, below)| names_old_value(below))
}

impl KeyedList {
    /// Returns all lists of the schema in a value.
    pub(super) fn find_in<'a>(&self, value: &'a Value, old: Option<&'a Value>) -> Vec<ListAtPath<'a>> {
        let mut lists = Vec::new();
        collect_lists(&self.steps, "", value, old, &mut lists);
        lists
    }
}

fn collect_lists<'a>(
    steps: &[PathStep],
    path: &str,
    value: &'a Value,
    old: Option<&'a Value>,
    lists: &mut Vec<ListAtPath<'a>>,
) {
    let Some((step, rest)) = steps.split_first() else {
        if let Some(items) = value.as_array() {
            let path = path.to_owned();
            lists.push(ListAtPath { path, items, old });
        }
        return;
    };
    let old_below = |name: &str| old.and_then(|old| old.get(name));
    match step {
        PathStep::Field(name) => {
            if let Some(below) = value.get(name) {
                collect_lists(rest, &field_path(path, name), below, old_below(name), lists);
            }
        }
        PathStep::Values => {
            for (key, below) in value.as_object().into_iter().flatten() {
                collect_lists(rest, &format!("{path}[{key}]"), below, old_below(key), lists);
            }
        }
    }
}
