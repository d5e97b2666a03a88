//! The shape of a structural schema.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// A structural schema, as a CustomResourceDefinition declares it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Schema {
    /// `object`, `array`, `string`, `integer`, `number` or `boolean`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Declared fields of an object.
    pub properties: BTreeMap<String, Schema>,
    /// Schema of the values of a map; `true` is an empty schema.
    #[serde(deserialize_with = "deserialize_schema_or_bool")]
    pub additional_properties: Option<Box<Schema>>,
    /// Schema of list items.
    pub items: Option<Box<Schema>>,
    /// Value of a missing field.
    pub default: Option<Value>,
    /// Allowed values.
    #[serde(rename = "enum")]
    pub enum_values: Option<Vec<Value>>,
    /// Regular expression for strings.
    pub pattern: Option<Pattern>,
    /// Named format for strings.
    pub format: Option<String>,
    /// Lower bound of a number.
    pub minimum: Option<f64>,
    /// Upper bound of a number.
    pub maximum: Option<f64>,
    /// Excludes the lower bound itself.
    pub exclusive_minimum: bool,
    /// Excludes the upper bound itself.
    pub exclusive_maximum: bool,
    /// Divisor of a number.
    pub multiple_of: Option<f64>,
    /// Minimum number of characters.
    pub min_length: Option<usize>,
    /// Maximum number of characters.
    pub max_length: Option<usize>,
    /// Minimum number of items.
    pub min_items: Option<usize>,
    /// Maximum number of items.
    pub max_items: Option<usize>,
    /// Requires items to differ.
    pub unique_items: bool,
    /// Minimum number of fields.
    pub min_properties: Option<usize>,
    /// Maximum number of fields.
    pub max_properties: Option<usize>,
    /// Required fields.
    pub required: Vec<String>,
    /// Accepts null.
    pub nullable: bool,
    /// All of these must be valid.
    pub all_of: Vec<Schema>,
    /// At least one of these must be valid.
    pub any_of: Vec<Schema>,
    /// Exactly one of these must be valid.
    pub one_of: Vec<Schema>,
    /// Must not be valid.
    pub not: Option<Box<Schema>>,
    /// Documentation of the field.
    pub description: Option<String>,
    /// Keeps unknown fields when pruning.
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    pub preserve_unknown_fields: bool,
    /// A whole Kubernetes object with apiVersion, kind and metadata.
    #[serde(rename = "x-kubernetes-embedded-resource")]
    pub embedded_resource: bool,
    /// An integer or a string.
    #[serde(rename = "x-kubernetes-int-or-string")]
    pub int_or_string: bool,
    /// `atomic`, `set` or `map`.
    #[serde(rename = "x-kubernetes-list-type")]
    pub declared_list_type: Option<String>,
    /// Key fields of a list of type `map`.
    #[serde(rename = "x-kubernetes-list-map-keys")]
    pub list_map_keys: Vec<String>,
    /// `atomic` or `granular`.
    #[serde(rename = "x-kubernetes-map-type")]
    pub map_type: Option<String>,
}

/// A regular expression, compiled once. An expression that does not compile matches nothing.
#[derive(Debug, Clone)]
pub struct Pattern {
    /// The expression as declared.
    pub source: String,
    /// The compiled expression.
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

fn deserialize_schema_or_bool<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<Schema>>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Bool(true) => Some(Box::default()),
        Value::Object(schema) => Some(Box::new(
            serde_json::from_value(Value::Object(schema)).map_err(serde::de::Error::custom)?,
        )),
        _ => None,
    })
}

/// The merge strategy of a list in server-side apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole.
    Atomic,
    /// Merged by value.
    Set,
    /// Merged by the values of the key fields.
    Map,
}

/// The schema of `metadata`, as far as server-side apply needs it.
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
    /// Parses a declared schema.
    pub fn parse(value: &Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(value.clone())
    }

    /// Parses the schema of a whole object: apiVersion, kind and metadata are replaced by the API server's own.
    pub fn parse_root(value: &Value) -> Result<Self, serde_json::Error> {
        let mut schema = Self::parse(value)?;
        schema.add_type_and_object_meta();
        Ok(schema)
    }

    /// A schema that accepts every object and keeps all fields.
    pub fn permissive() -> Self {
        let mut schema = Self {
            kind: Some("object".into()),
            preserve_unknown_fields: true,
            ..Self::default()
        };
        schema.add_type_and_object_meta();
        schema
    }

    fn add_type_and_object_meta(&mut self) {
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

    /// The schema of a field; `None` for an unknown field.
    pub fn field(&self, name: &str) -> Option<&Self> {
        if self.embedded_resource && name == "metadata" {
            return Some(&OBJECT_META);
        }
        self.properties
            .get(name)
            .or(self.additional_properties.as_deref())
    }

    /// Returns true if `name` is a declared field rather than a key of a map.
    pub fn declares(&self, name: &str) -> bool {
        self.properties.contains_key(name)
    }

    /// The merge strategy of the list.
    pub fn list_type(&self) -> ListType {
        match self.declared_list_type.as_deref() {
            Some("set") => ListType::Set,
            Some("map") if !self.list_map_keys.is_empty() => ListType::Map,
            _ => ListType::Atomic,
        }
    }

    /// Returns true if server-side apply replaces the object as a whole.
    pub fn is_atomic_map(&self) -> bool {
        self.map_type.as_deref() == Some("atomic")
    }

    /// The `fieldsV1` path element of a list item: `v:VALUE` in a set, `k:{KEY:VALUE,…}` otherwise.
    ///
    /// A missing key field counts with its default, so that an applied and a stored item agree.
    pub fn item_path_element(&self, item: &Value) -> String {
        if self.list_type() == ListType::Set {
            return format!("v:{item}");
        }
        let mut keys = self.list_map_keys.clone();
        keys.sort();
        let item_schema = self.items.as_deref();
        let pairs: Vec<String> = keys
            .iter()
            .filter_map(|key| {
                let default = || item_schema?.properties.get(key)?.default.as_ref();
                let value = item.get(key).or_else(default)?;
                Some(format!("{}:{value}", Value::from(key.as_str())))
            })
            .collect();
        format!("k:{{{}}}", pairs.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_key_counts_with_its_default() {
        let schema = Schema::parse(&json!({
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {"type": "object", "properties": {
                "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"},
            }},
        }))
        .unwrap();
        let element = schema.item_path_element(&json!({"port": 80}));
        assert_eq!(element, r#"k:{"port":80,"protocol":"TCP"}"#);
        assert_eq!(
            element,
            schema.item_path_element(&json!({"protocol": "TCP", "port": 80}))
        );
    }
}
