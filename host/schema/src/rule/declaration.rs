//! Declarations of values for CEL rules: the type that a schema gives a value, and how large the value may be.
//!
//! Sizes are those by which a kube-apiserver estimates costs: `maxItems`, `maxProperties` and `maxLength` where they are
//! declared, and what fits into the largest request where they are not.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Bytes of the largest request.
pub(super) const MAX_REQUEST_BYTES: u64 = 3 * 1024 * 1024;
/// Bytes of a text, list or map without content.
const MIN_CONTAINER_BYTES: u64 = 2;
/// Bytes of the longest duration or time.
const MAX_TIME_BYTES: u64 = 32;
/// Bytes of a date with its quotation marks.
const DATE_BYTES: u64 = 12;
/// Bytes of the shortest time with its quotation marks.
const MIN_TIME_BYTES: u64 = 21;
/// Bytes of the shortest duration with its quotation marks.
const MIN_DURATION_BYTES: u64 = 3;
/// Bytes of the longest character.
const MAX_CHARACTER_BYTES: u64 = 4;
/// Names that CEL reserves, and which are escaped.
const RESERVED_NAMES: [&str; 18] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
];

/// A value as a schema declares it.
#[derive(Debug, PartialEq)]
pub(super) struct DeclaredValue {
    pub(super) shape: DeclaredShape,
    /// Characters of the longest text, items of the longest list or entries of the largest map; 0 for other values.
    pub(super) max_elements: u64,
    /// Bytes of the shortest JSON.
    min_bytes: u64,
}

/// The type of a declared value.
#[derive(Debug, PartialEq)]
pub(super) enum DeclaredShape {
    /// An integer or a text.
    Dynamic,
    Bool,
    Int,
    Double,
    Text,
    Bytes,
    Timestamp,
    Duration,
    List(Box<DeclaredValue>),
    Map(Box<DeclaredValue>),
    Object(DeclaredFields),
}

/// Fields of an object by the name that a rule uses.
pub(super) type DeclaredFields = BTreeMap<String, DeclaredValue>;

impl DeclaredValue {
    /// Returns the declaration of a schema; `None` if its values have no type, and cannot be named. `is_object` says that the
    /// values are objects of the API, of which some fields are always known.
    pub(super) fn from_schema(declared: &Value, is_object: bool) -> Option<Self> {
        let value = |shape, max_elements, min_bytes| {
            Some(Self {
                shape,
                max_elements,
                min_bytes,
            })
        };
        let limit = |keyword: &str| {
            declared[keyword]
                .as_i64()
                .map(|limit| u64::try_from(limit).unwrap_or(0))
        };
        let content_bytes = MAX_REQUEST_BYTES - MIN_CONTAINER_BYTES;
        let max_text = limit("maxLength").map(|length| length.saturating_mul(MAX_CHARACTER_BYTES));
        if declared["x-kubernetes-int-or-string"] == true {
            return value(DeclaredShape::Dynamic, max_text.unwrap_or(content_bytes), 1);
        }
        match declared["type"].as_str()? {
            "array" => {
                let item = Self::from_child(&declared["items"])?;
                let most = limit("maxItems").unwrap_or(content_bytes / (item.min_bytes + 1));
                value(DeclaredShape::List(Box::new(item)), most, MIN_CONTAINER_BYTES)
            }
            "object" if declared["additionalProperties"].is_object() => {
                let entry = Self::from_child(&declared["additionalProperties"])?;
                // An empty key with its quotation marks, the colon and the comma.
                let most = limit("maxProperties").unwrap_or(content_bytes / (entry.min_bytes + 6));
                value(DeclaredShape::Map(Box::new(entry)), most, MIN_CONTAINER_BYTES)
            }
            "object" => {
                let (fields, min_bytes) = declare_fields(declared, is_object);
                value(DeclaredShape::Object(fields), 0, min_bytes)
            }
            "string" => match declared["format"].as_str() {
                Some("byte") => {
                    let most = limit("maxLength").unwrap_or(content_bytes);
                    value(DeclaredShape::Bytes, most, MIN_CONTAINER_BYTES)
                }
                Some("duration") => value(DeclaredShape::Duration, MAX_TIME_BYTES, MIN_DURATION_BYTES),
                Some("date") => value(DeclaredShape::Timestamp, DATE_BYTES, DATE_BYTES),
                Some("date-time") => value(DeclaredShape::Timestamp, MAX_TIME_BYTES, MIN_TIME_BYTES),
                _ => {
                    let choices = declared["enum"].as_array().filter(|choices| !choices.is_empty());
                    let longest = choices.map(|choices| {
                        let lengths = choices.iter().filter_map(|choice| choice.as_str().map(str::len));
                        lengths.max().unwrap_or(0) as u64
                    });
                    let most = max_text.or(longest).unwrap_or(content_bytes);
                    value(DeclaredShape::Text, most, MIN_CONTAINER_BYTES)
                }
            },
            "boolean" => value(DeclaredShape::Bool, 0, 4),
            "number" => value(DeclaredShape::Double, 0, 1),
            "integer" => value(DeclaredShape::Int, 0, 1),
            _ => None,
        }
    }

    fn from_child(declared: &Value) -> Option<Self> {
        Self::from_schema(declared, declared["x-kubernetes-embedded-resource"] == true)
    }

    /// Returns how many such values fit into a request.
    pub(super) fn count_per_request(&self) -> u64 {
        MAX_REQUEST_BYTES / (self.min_bytes + 1)
    }
}

/// Returns the fields of an object, and the bytes of its shortest JSON.
fn declare_fields(declared: &Value, is_object: bool) -> (DeclaredFields, u64) {
    let mut fields = DeclaredFields::new();
    let mut min_bytes = MIN_CONTAINER_BYTES;
    let required: Vec<&str> = declared["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, schema) in declared["properties"].as_object().into_iter().flatten() {
        let Some(field) = DeclaredValue::from_child(schema) else {
            continue;
        };
        if required.contains(&name.as_str()) && schema["default"].is_null() {
            // The quotation marks of the name, the colon and the comma.
            min_bytes += name.len() as u64 + field.min_bytes + 4;
        }
        if let Some(name) = escape_name(name) {
            fields.insert(name, field);
        }
    }
    if is_object {
        add_object_fields(declared, &mut fields);
    }
    (fields, min_bytes)
}

/// Declares the fields that every object of the API has.
fn add_object_fields(declared: &Value, fields: &mut DeclaredFields) {
    let properties = &declared["properties"];
    let metadata = &properties["metadata"];
    let are_declared = properties["apiVersion"]["type"] == "string"
        && properties["kind"]["type"] == "string"
        && metadata["type"] == "object"
        && metadata["properties"]["name"]["type"] == "string"
        && metadata["properties"]["generateName"]["type"] == "string";
    if are_declared {
        return;
    }
    let text = json!({"type": "string"});
    let metadata = json!({"type": "object", "properties": {"name": text, "generateName": text}});
    for (name, schema) in [("apiVersion", &text), ("kind", &text), ("metadata", &metadata)] {
        if let Some(field) = DeclaredValue::from_schema(schema, false) {
            fields.insert(name.to_owned(), field);
        }
    }
}

/// Returns the name of a field in rules; `None` if rules cannot name it.
fn escape_name(name: &str) -> Option<String> {
    if RESERVED_NAMES.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(is_valid) {
        return None;
    }
    let name = name.replace("__", "__underscores__");
    Some(
        name.replace('.', "__dot__")
            .replace('-', "__dash__")
            .replace('/', "__slash__"),
    )
}
