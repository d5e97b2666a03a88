//! Rules of the items of keyed lists that name the old item: it is the one of the same key, at whatever index.

use serde_json::Value;

use super::{Rules, TypeMeta, evaluation::place_below, rules};
use crate::field_path::field_path;
use crate::validation::find_old_item;
use crate::{FieldError, ListType, Schema};

/// The way from a value to one below it.
#[derive(Debug, Clone)]
pub(super) enum PathStep {
    Field(String),
    /// Each value of a map.
    Values,
}

/// A keyed list whose items have rules that name the old item.
#[derive(Debug)]
pub(super) struct KeyedItems {
    /// From the value that holds the list.
    steps: Vec<PathStep>,
    list: Schema,
    rules: Rules,
}

impl KeyedItems {
    /// Compiles the rules of the items of a list; `None` if the list has no keys, or none of its rules names the old item.
    pub(super) fn compile(declared: &Value, steps: &[PathStep]) -> Option<Self> {
        let list = Schema::parse(declared).ok()?;
        let items = &declared["items"];
        if list.list_type() != ListType::Map || !names_old_value(items) {
            return None;
        }
        Some(Self {
            steps: steps.to_vec(),
            list,
            rules: Rules::compile(items)?,
        })
    }

    /// Evaluates the rules on all items below a value, each with the old one of its key.
    pub(super) fn validate(&self, value: &Value, old: Option<&Value>, meta: &TypeMeta) -> Vec<FieldError> {
        let mut lists = Vec::new();
        collect_lists(&self.steps, "", value, old, &mut lists);
        let mut errors = Vec::new();
        for ListAtPath { path, items, old } in lists {
            for (index, item) in items.iter().enumerate() {
                let old_item = find_old_item(&self.list, old, item);
                let place = format!("{path}[{index}]");
                let found = self.rules.validate(item, old_item, meta.clone());
                errors.extend(found.into_iter().map(|error| place_below(&place, error)));
            }
        }
        errors
    }
}

/// A list in a value, and the old value at its path.
struct ListAtPath<'a> {
    path: String,
    items: &'a [Value],
    old: Option<&'a Value>,
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

/// Returns true if a rule of the schema, or of one below it, names the old value.
fn names_old_value(declared: &Value) -> bool {
    let mut of_schema = rules(declared);
    of_schema.any(|rule| rule["rule"].as_str().is_some_and(|rule| rule.contains("oldSelf")))
        || schemas_below(declared).any(names_old_value)
}

fn schemas_below(declared: &Value) -> impl Iterator<Item = &Value> {
    let properties = declared["properties"].as_object().into_iter().flatten();
    let others = ["items", "additionalProperties"].map(|keyword| &declared[keyword]);
    properties
        .map(|(_, schema)| schema)
        .chain(others)
        .filter(|schema| schema.is_object())
}
