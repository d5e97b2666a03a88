//! Structural schemas: their shape, pruning and defaulting. Checking is in [`crate::validation`].

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

/// A structural schema, as a CustomResourceDefinition declares it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Schema {
    /// `object`, `array`, `string`, `integer`, `number` or `boolean`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Known fields of an object.
    pub properties: BTreeMap<String, Schema>,
    /// Schema of the values of a map; `true` is an empty schema.
    #[serde(deserialize_with = "schema_or_bool")]
    pub additional_properties: Option<Box<Schema>>,
    /// Schema of list items.
    pub items: Option<Box<Schema>>,
    /// Value of a missing field.
    pub default: Option<Value>,
    /// Allowed values.
    #[serde(rename = "enum")]
    pub allowed: Option<Vec<Value>>,
    /// Regular expression for strings.
    pub pattern: Option<Pattern>,
    /// Named format for strings.
    pub format: Option<String>,
    /// Lower bound.
    pub minimum: Option<f64>,
    /// Upper bound.
    pub maximum: Option<f64>,
    /// Whether the lower bound is excluded.
    pub exclusive_minimum: bool,
    /// Whether the upper bound is excluded.
    pub exclusive_maximum: bool,
    /// Divisor.
    pub multiple_of: Option<f64>,
    /// Shortest string.
    pub min_length: Option<usize>,
    /// Longest string.
    pub max_length: Option<usize>,
    /// Fewest items.
    pub min_items: Option<usize>,
    /// Most items.
    pub max_items: Option<usize>,
    /// Whether items must differ.
    pub unique_items: bool,
    /// Fewest fields.
    pub min_properties: Option<usize>,
    /// Most fields.
    pub max_properties: Option<usize>,
    /// Fields that must be there.
    pub required: Vec<String>,
    /// Whether null is a value.
    pub nullable: bool,
    /// Every one must hold.
    pub all_of: Vec<Schema>,
    /// At least one must hold.
    pub any_of: Vec<Schema>,
    /// Exactly one must hold.
    pub one_of: Vec<Schema>,
    /// Must not hold.
    pub not: Option<Box<Schema>>,
    /// Words about the field.
    pub description: Option<String>,
    /// Keep unknown fields.
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    pub preserve: bool,
    /// A whole object with apiVersion, kind and metadata.
    #[serde(rename = "x-kubernetes-embedded-resource")]
    pub embedded: bool,
    /// An integer or a string.
    #[serde(rename = "x-kubernetes-int-or-string")]
    pub int_or_string: bool,
    /// `atomic`, `set` or `map`.
    #[serde(rename = "x-kubernetes-list-type")]
    pub list_type: Option<String>,
    /// Keys of a `map` list.
    #[serde(rename = "x-kubernetes-list-map-keys")]
    pub list_keys: Vec<String>,
    /// `atomic` or `granular`.
    #[serde(rename = "x-kubernetes-map-type")]
    pub map_type: Option<String>,
}

/// A regular expression, compiled once; one that doesn't compile matches nothing.
#[derive(Debug, Clone)]
pub struct Pattern {
    /// As written.
    pub source: String,
    /// Compiled.
    pub regex: Option<Regex>,
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let source = String::deserialize(deserializer)?;
        Ok(Self {
            regex: Regex::new(&source).ok(),
            source,
        })
    }
}

fn schema_or_bool<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<Schema>>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Bool(true) => Some(Box::default()),
        Value::Object(schema) => Some(Box::new(
            serde_json::from_value(Value::Object(schema)).map_err(serde::de::Error::custom)?,
        )),
        _ => None,
    })
}

/// How a list merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListType {
    /// As a whole.
    Atomic,
    /// By value.
    Set,
    /// By the values of some fields.
    Map,
}

/// Metadata's own schema: what server-side apply needs to know of it.
static OBJECT_META: LazyLock<Schema> = LazyLock::new(|| {
    let text = json!({"type": "string"});
    let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    Schema::parse(&json!({"type": "object", "properties": {
        "name": text, "generateName": text, "namespace": text, "selfLink": text, "uid": text, "resourceVersion": text,
        "generation": {"type": "integer"}, "creationTimestamp": {"type": "string", "nullable": true},
        "deletionTimestamp": {"type": "string", "nullable": true}, "deletionGracePeriodSeconds": {"type": "integer"},
        "labels": map, "annotations": map,
        "finalizers": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
        "ownerReferences": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
            "items": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {
                "apiVersion": text, "kind": text, "name": text, "uid": text,
                "controller": {"type": "boolean"}, "blockOwnerDeletion": {"type": "boolean"},
            }},
        },
        "managedFields": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    }}))
    .unwrap_or_default()
});

impl Schema {
    /// Reads a schema.
    pub fn parse(value: &Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(value.clone())
    }

    /// Reads the schema of a whole object: apiVersion, kind and metadata are the system's, not the author's.
    pub fn parse_root(value: &Value) -> Result<Self, serde_json::Error> {
        let mut schema = Self::parse(value)?;
        schema.embed();
        Ok(schema)
    }

    /// A schema that allows everything.
    pub fn anything() -> Self {
        let mut schema = Self {
            kind: Some("object".into()),
            preserve: true,
            ..Self::default()
        };
        schema.embed();
        schema
    }

    fn embed(&mut self) {
        for field in ["apiVersion", "kind"] {
            self.properties.insert(
                field.into(),
                Self {
                    kind: Some("string".into()),
                    ..Self::default()
                },
            );
        }
        self.properties.insert("metadata".into(), OBJECT_META.clone());
    }

    /// The schema of a field; `None` for one not known.
    pub fn field(&self, name: &str) -> Option<&Self> {
        if self.embedded && name == "metadata" {
            return Some(&OBJECT_META);
        }
        self.properties
            .get(name)
            .or(self.additional_properties.as_deref())
    }

    /// Whether `name` is a declared field rather than a key of a map.
    pub fn declares(&self, name: &str) -> bool {
        self.properties.contains_key(name)
    }

    /// How the list merges.
    pub fn list(&self) -> ListType {
        match self.list_type.as_deref() {
            Some("set") => ListType::Set,
            Some("map") if !self.list_keys.is_empty() => ListType::Map,
            _ => ListType::Atomic,
        }
    }

    /// Whether an object merges as a whole.
    pub fn atomic_map(&self) -> bool {
        self.map_type.as_deref() == Some("atomic")
    }

    /// Drops what the schema doesn't know, and says what it was.
    pub fn prune(&self, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
        match value {
            Value::Object(fields) => self.prune_fields(fields, path, unknown),
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for (index, item) in items.iter_mut().enumerate() {
                        schema.prune(item, &format!("{path}[{index}]"), unknown);
                    }
                }
            }
            _ => {}
        }
    }

    fn prune_fields(&self, fields: &mut Map<String, Value>, path: &str, unknown: &mut Vec<String>) {
        let at = |field: &str| {
            if path.is_empty() {
                field.to_owned()
            } else {
                format!("{path}.{field}")
            }
        };
        fields.retain(|name, value| {
            if self.embedded && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                return true;
            }
            match self.field(name) {
                Some(schema) => schema.prune(value, &at(name), unknown),
                None if self.preserve => {}
                None => {
                    unknown.push(at(name));
                    return false;
                }
            }
            true
        });
    }

    /// Fills in what is missing and has a default. A null where null isn't a value counts as missing.
    pub fn fill(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, schema) in &self.properties {
                    let Some(default) = &schema.default else {
                        continue;
                    };
                    let missing = match fields.get(name) {
                        None => true,
                        Some(Value::Null) => !schema.nullable,
                        Some(_) => false,
                    };
                    if missing {
                        fields.insert(name.clone(), default.clone());
                    }
                }
                for (name, value) in fields.iter_mut() {
                    if let Some(schema) = self.field(name) {
                        schema.fill(value);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter_mut().for_each(|item| schema.fill(item));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        Schema::parse_root(&json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "properties": {
                "url": {"type": "string"},
                "replicas": {"type": "integer", "default": 2},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "env": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "kind": {"type": "string", "default": "plain"}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}},
            },
        }}}))
        .unwrap()
    }

    #[test]
    fn unknown_fields_go_and_are_named() {
        let mut value = json!({
            "apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "extra": 1,
            "spec": {"url": "u", "typo": 1, "free": {"any": {"thing": 1}}, "env": [{"name": "a", "b": 1}], "map": {"k": {"a": "", "c": 1}}},
        });
        let mut unknown = Vec::new();
        schema().prune(&mut value, "", &mut unknown);
        assert_eq!(unknown, ["extra", "spec.env[0].b", "spec.map.k.c", "spec.typo"]);
        assert_eq!(value["spec"]["free"]["any"]["thing"], 1);
        assert_eq!(value["spec"].get("typo"), None);
    }

    #[test]
    fn defaults_reach_into_lists_but_do_not_create_parents() {
        let mut value = json!({"spec": {"env": [{"name": "a"}], "replicas": null}});
        schema().fill(&mut value);
        assert_eq!(
            value,
            json!({"spec": {"env": [{"name": "a", "kind": "plain"}], "replicas": 2}})
        );
        let mut empty = json!({});
        schema().fill(&mut empty);
        assert_eq!(empty, json!({}));
    }
}
