//! The shape of a structural schema.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
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
    pub properties: BTreeMap<String, SchemaNode>,
    /// Fields beside the declared ones.
    pub additional_properties: AdditionalProperties,
    /// Schema of list items.
    pub items: Option<SchemaNode>,
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
    pub min_length: Option<i64>,
    /// Maximum number of characters.
    pub max_length: Option<i64>,
    /// Minimum number of items.
    pub min_items: Option<i64>,
    /// Maximum number of items.
    pub max_items: Option<i64>,
    /// Requires items to differ.
    pub unique_items: bool,
    /// Minimum number of fields.
    pub min_properties: Option<i64>,
    /// Maximum number of fields.
    pub max_properties: Option<i64>,
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
    /// Strategies of a strategic merge patch: `merge`, `replace` or `retainKeys`, separated by commas.
    #[serde(rename = "x-kubernetes-patch-strategy")]
    pub patch_strategy: Option<String>,
    /// Key field of a list that a strategic merge patch merges.
    #[serde(rename = "x-kubernetes-patch-merge-key")]
    pub patch_merge_key: Option<String>,
    /// Reference to a definition of the same document.
    #[serde(rename = "$ref")]
    pub reference: Option<String>,
    /// Fields of an object that the API server writes even if nobody has set them.
    #[serde(skip)]
    pub constant_fields: Vec<String>,
}

/// A schema below another one: its own, or a definition that it shares with others and that may contain itself.
#[derive(Clone)]
pub enum SchemaNode {
    /// A schema of its own.
    Own(Box<Schema>),
    /// A shared definition, parsed when it is needed.
    Shared {
        /// The definition.
        definition: &'static LazySchema,
        /// Value of the field if it is missing, which is not a part of the definition.
        default: Option<Value>,
        /// True if a strategic merge patch replaces the field.
        is_replaced: bool,
    },
}

impl SchemaNode {
    /// Value of the field if it is missing.
    pub fn default_value(&self) -> Option<&Value> {
        match self {
            Self::Own(schema) => schema.default.as_ref(),
            Self::Shared { default, .. } => default.as_ref(),
        }
    }

    /// Sets the value of the field if it is missing.
    pub fn set_default(&mut self, value: Value) {
        match self {
            Self::Own(schema) => schema.default = Some(value),
            Self::Shared { default, .. } => *default = Some(value),
        }
    }
}

/// A definition that is parsed when it is needed.
pub struct LazySchema(LazyLock<Schema, Box<dyn FnOnce() -> Schema + Send>>);

impl LazySchema {
    /// A definition that `parse` returns.
    pub fn new(parse: impl FnOnce() -> Schema + Send + 'static) -> Self {
        Self(LazyLock::new(Box::new(parse)))
    }
}

impl Deref for SchemaNode {
    type Target = Schema;

    fn deref(&self) -> &Schema {
        match self {
            Self::Own(schema) => schema,
            Self::Shared { definition, .. } => &definition.0,
        }
    }
}

impl fmt::Debug for SchemaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(schema) => schema.fmt(f),
            // It may contain itself.
            Self::Shared { .. } => f.write_str("Shared(…)"),
        }
    }
}

impl From<Schema> for SchemaNode {
    fn from(schema: Schema) -> Self {
        Self::Own(Box::new(schema))
    }
}

impl<'de> Deserialize<'de> for SchemaNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Schema::deserialize(deserializer).map(Self::from)
    }
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

/// Fields of an object beside the declared ones.
#[derive(Debug, Clone, Default)]
pub enum AdditionalProperties {
    /// Nothing is said of them.
    #[default]
    Undeclared,
    /// `false`: they are violations where they are not pruned.
    Forbidden,
    /// The values of a map; `true` is an empty schema.
    Values(SchemaNode),
}

impl AdditionalProperties {
    /// The schema of the values of a map.
    pub fn values(&self) -> Option<&SchemaNode> {
        match self {
            Self::Values(node) => Some(node),
            Self::Undeclared | Self::Forbidden => None,
        }
    }

    fn values_mut(&mut self) -> Option<&mut SchemaNode> {
        match self {
            Self::Values(node) => Some(node),
            Self::Undeclared | Self::Forbidden => None,
        }
    }
}

impl<'de> Deserialize<'de> for AdditionalProperties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Value::deserialize(deserializer)? {
            Value::Bool(true) => Self::Values(Schema::default().into()),
            Value::Bool(false) => Self::Forbidden,
            schema @ Value::Object(_) => {
                Self::Values(serde_json::from_value(schema).map_err(serde::de::Error::custom)?)
            }
            _ => Self::Undeclared,
        })
    }
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
    let uid = json!({"type": "string", "default": ""});
    let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    Schema::parse(&json!({"type": "object", "properties": {
        "name": text, "generateName": text, "namespace": text, "selfLink": text, "uid": text, "resourceVersion": text,
        "generation": {"type": "integer"}, "creationTimestamp": {"type": "string", "format": "date-time", "nullable": true},
        "deletionTimestamp": {"type": "string", "format": "date-time", "nullable": true}, "deletionGracePeriodSeconds": {"type": "integer"},
        "labels": map, "annotations": map,
        "finalizers": {
            "type": "array", "items": text, "x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge",
        },
        "ownerReferences": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
            "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "uid",
            "items": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {
                "apiVersion": text, "kind": text, "name": text, "uid": uid,
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

    /// Replaces apiVersion, kind and metadata by the API server's own.
    pub fn add_type_and_object_meta(&mut self) {
        for field in ["apiVersion", "kind"] {
            self.properties.insert(
                field.into(),
                SchemaNode::from(Self {
                    kind: Some("string".into()),
                    ..Self::default()
                }),
            );
        }
        self.properties
            .insert("metadata".into(), OBJECT_META.clone().into());
    }

    /// The schema of a field, with the default of that field; `None` for an unknown field.
    pub(crate) fn node(&self, name: &str) -> Option<&SchemaNode> {
        let node = self.properties.get(name);
        node.or(self.additional_properties.values())
    }

    /// The schema of a field; `None` for an unknown field.
    pub fn field(&self, name: &str) -> Option<&Self> {
        if self.embedded_resource && name == "metadata" {
            return Some(&OBJECT_META);
        }
        self.node(name).map(Deref::deref)
    }

    /// Returns true if a strategic merge patch replaces a field that is an object, in place of merging it.
    pub fn replaces_field(&self, name: &str) -> bool {
        self.node(name).is_some_and(|node| match node {
            SchemaNode::Own(schema) => schema.patch_strategy.as_deref() == Some("replace"),
            SchemaNode::Shared { is_replaced, .. } => *is_replaced,
        })
    }

    /// The value of an object in which nobody has set a field.
    pub fn unset_value(&self) -> Value {
        let fields = self.constant_fields.iter().filter_map(|name| {
            let node = self.properties.get(name)?;
            let value = match node.default_value() {
                Some(Value::Object(_)) => node.unset_value(),
                Some(other) => other.clone(),
                None => Value::Null,
            };
            Some((name.clone(), value))
        });
        Value::Object(fields.collect())
    }

    /// Replaces the references to definitions of the same document below the schema. `find` returns the definition of a name;
    /// one that it does not know accepts everything.
    pub fn resolve_references(&mut self, find: &dyn Fn(&str) -> Option<&'static LazySchema>) {
        let nodes = self
            .properties
            .values_mut()
            .chain(self.additional_properties.values_mut())
            .chain(&mut self.items);
        for node in nodes {
            let SchemaNode::Own(schema) = node else {
                continue;
            };
            let Some(name) = schema.referenced_name().map(str::to_owned) else {
                schema.resolve_references(find);
                continue;
            };
            *node = match find(&name) {
                Some(definition) => SchemaNode::Shared {
                    definition,
                    default: schema.default.take(),
                    is_replaced: schema.patch_strategy.as_deref() == Some("replace"),
                },
                None => Self {
                    preserve_unknown_fields: true,
                    ..Self::default()
                }
                .into(),
            };
        }
    }

    /// The name of the definition that stands for the schema: OpenAPI 3 describes a reference beside an `allOf` of it.
    pub fn referenced_name(&self) -> Option<&str> {
        let reference = self.reference.as_deref().or(match self.all_of.as_slice() {
            [only] => only.reference.as_deref(),
            _ => None,
        });
        reference?.rsplit('/').next()
    }

    /// Returns true if `name` is a declared field rather than a key of a map.
    pub fn declares(&self, name: &str) -> bool {
        let of_embedded = self.embedded_resource && matches!(name, "apiVersion" | "kind" | "metadata");
        of_embedded || self.properties.contains_key(name)
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
                let default = || item_schema?.properties.get(key)?.default_value();
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
