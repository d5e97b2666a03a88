//! Schemas of built-in kinds, as the real server publishes them, in `openapi/definitions.json.zlib`.
//!
//! A test on the real server compares the file with what it publishes, and writes it with `UPDATE_OPENAPI=1`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ostler_schema::{AdditionalProperties, LazySchema, MICRO_TIME, Schema, SchemaNode};
use serde_json::{Map, Value, json};

use crate::protobuf;
use crate::published::read_compressed;

/// The definitions, as JSON that zlib has compressed.
const COMPRESSED_DEFINITIONS: &[u8] = include_bytes!("openapi/definitions.json.zlib");

/// A definition of the document.
struct Definition {
    declared: Value,
    schema: LazySchema,
}

static DEFINITIONS: LazyLock<BTreeMap<String, Definition>> = LazyLock::new(|| {
    let declared: BTreeMap<String, Value> = read_compressed(COMPRESSED_DEFINITIONS);
    let with_schema = |(name, declared): (String, Value)| {
        let found = name.clone();
        let schema = LazySchema::new(move || parse_definition(&found));
        (name, Definition { declared, schema })
    };
    declared.into_iter().map(with_schema).collect()
});

/// Defaults that the real server has and does not publish, by definition and field.
static UNPUBLISHED_DEFAULTS: LazyLock<BTreeMap<String, BTreeMap<String, Value>>> =
    LazyLock::new(|| serde_saphyr::from_str(include_str!("openapi/defaults.yaml")).unwrap_or_default());

/// Parses a definition, whose references stay ones.
fn parse_definition(name: &str) -> Schema {
    // A schema, or something else that the document cannot express.
    let alternative = name
        .strip_suffix("OrBool")
        .or_else(|| name.strip_suffix("OrArray"));
    let declared = DEFINITIONS
        .get(alternative.unwrap_or(name))
        .map(|definition| &definition.declared);
    let mut schema = declared
        .and_then(|declared| Schema::parse(declared).ok())
        .unwrap_or_default();
    if alternative.is_some() {
        schema.kind = None;
    }
    if name.ends_with(".MicroTime") {
        schema.format = Some(MICRO_TIME.into());
    }
    let is_empty = schema.properties.is_empty() && schema.additional_properties.values().is_none();
    let is_open = match schema.kind.as_deref() {
        // Any JSON, or that of a field whose type the document cannot express.
        None => schema.one_of.is_empty() && is_empty,
        Some(kind) => kind == "object" && is_empty,
    };
    schema.preserve_unknown_fields |= is_open;
    for node in schema.properties.values_mut() {
        if let SchemaNode::Own(map) = node {
            set_zero_value(map);
        }
    }
    schema.resolve_references(&|name| DEFINITIONS.get(name).map(|definition| &definition.schema));
    schema.constant_fields = list_constant_fields(&schema, name);
    for (field, value) in UNPUBLISHED_DEFAULTS.get(name).into_iter().flatten() {
        if let Some(node) = schema.properties.get_mut(field) {
            node.set_default(value.clone());
        }
    }
    schema
}

/// Definition of quantities.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

/// Makes the nulls of a map the zero of its values, as which Go decodes them. Of strings and structures that is published.
fn set_zero_value(map: &mut Schema) {
    let AdditionalProperties::Values(SchemaNode::Own(values)) = &mut map.additional_properties else {
        return;
    };
    let zero = match (values.kind.as_deref(), values.referenced_name()) {
        (Some("string"), _) => "",
        (_, Some(QUANTITY)) => "0",
        _ => return,
    };
    values.default.get_or_insert_with(|| zero.into());
}

/// Lists the fields of a definition that Go writes in any case: lists and maps as nulls, others with a zero value, which is
/// published as their default.
fn list_constant_fields(schema: &Schema, name: &str) -> Vec<String> {
    let is_zero = |value: &Value| *value == json!({}) || *value == "" || *value == 0 || *value == false;
    let fields = protobuf::list_constant_fields(name).filter(|(field, is_container)| {
        let default = schema.properties.get(*field).and_then(SchemaNode::default_value);
        *is_container || default.is_some_and(is_zero)
    });
    let mut fields: Vec<String> = fields.map(|(field, _)| field.to_owned()).collect();
    // Structures are written without being pointers, too, and without being required.
    let structures = schema.properties.iter().filter(|(field, node)| {
        !fields.contains(field) && node.default_value().is_some_and(|default| *default == json!({}))
    });
    let structures: Vec<String> = structures.map(|(field, _)| field.clone()).collect();
    fields.extend(structures);
    fields
}

/// Returns the name of a kind's definition.
pub fn find_kind_definition(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    let is_kind = |declared: &Value| {
        let names = declared["x-kubernetes-group-version-kind"].as_array();
        names
            .into_iter()
            .flatten()
            .any(|named| named["group"] == group && named["version"] == version && named["kind"] == kind)
    };
    let mut definitions = DEFINITIONS.iter();
    let (name, _) = definitions.find(|(_, definition)| is_kind(&definition.declared))?;
    Some(name)
}

/// Returns the schema of a built-in kind, which is parsed when it is needed. A kind without a definition accepts everything.
///
/// It is never freed: built-in kinds are for all servers of a process.
pub fn build_kind_schema(group: &'static str, version: &'static str, kind: &'static str) -> SchemaNode {
    let definition = LazySchema::new(move || {
        let name = find_kind_definition(group, version, kind);
        let mut schema = name.map_or_else(Schema::permissive, parse_definition);
        schema.add_type_and_object_meta();
        schema
    });
    SchemaNode::Shared {
        is_replaced: false,
        definition: Box::leak(Box::new(definition)),
        default: None,
    }
}

/// Adds a definition and all that it refers to, as declared.
pub fn collect_definitions(name: &str, collected: &mut Map<String, Value>) {
    let Some(definition) = DEFINITIONS.get(name) else {
        return;
    };
    if collected.contains_key(name) {
        return;
    }
    collected.insert(name.to_owned(), definition.declared.clone());
    collect_references(&definition.declared, collected);
}

fn collect_references(declared: &Value, collected: &mut Map<String, Value>) {
    match declared {
        Value::Object(fields) => {
            for (keyword, value) in fields {
                match value.as_str().filter(|_| keyword == "$ref") {
                    Some(reference) => {
                        let name = reference.rsplit('/').next().unwrap_or_default();
                        collect_definitions(name, collected);
                    }
                    None => collect_references(value, collected),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, collected)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_of_a_built_in_kind_has_its_fields_types_and_keys() {
        let schema = build_kind_schema("apps", "v1", "Deployment");
        let mut deployment = json!({"spec": {"replicas": 1, "typo": 1, "template": {"spec": {"containers": [{"name": "a", "imagge": "b"}]}}}});
        assert_eq!(
            schema.prune(&mut deployment),
            ["spec.template.spec.containers[0].imagge", "spec.typo"]
        );
        let wrong = json!({"spec": {"template": {"spec": {"hostNetwork": "yes"}}}});
        assert!(
            schema
                .find_type_mismatch(&wrong)
                .unwrap()
                .starts_with("spec.template.spec.hostNetwork")
        );
        let pod = schema
            .field("spec")
            .unwrap()
            .field("template")
            .unwrap()
            .field("spec")
            .unwrap();
        assert_eq!(pod.field("containers").unwrap().list_map_keys, ["name"]);
    }

    #[test]
    fn every_unpublished_default_belongs_to_a_field() {
        assert!(!UNPUBLISHED_DEFAULTS.is_empty());
        for (name, fields) in UNPUBLISHED_DEFAULTS.iter() {
            for field in fields.keys() {
                assert!(parse_definition(name).declares(field), "{name} {field}");
            }
        }
    }

    #[test]
    fn definition_that_contains_itself_is_parsed_to_any_depth() {
        let schema = build_kind_schema("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let declared = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": {"a": {"properties": {"b": {"maxLength": "x"}}}}}}}]}});
        let found = schema.find_type_mismatch(&declared).unwrap();
        assert!(found.contains("properties.a.properties.b.maxLength"), "{found}");
    }
}
