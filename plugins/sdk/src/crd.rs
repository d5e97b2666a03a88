//! `CustomResourceDefinition`s from Rust types.

use std::{fs, path::Path};

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::KindSpec;

/// Fields of a CRD other than its schema; implemented by [`macro@crate::resource`].
pub trait CrdDefinition: KindSpec {
    /// Plural, lower case.
    const PLURAL: &'static str;
    /// Description of the kind, as shown by `kubectl explain`.
    const DESCRIPTION: &'static str;
    /// Short names.
    const SHORT_NAMES: &'static [&'static str];
    /// Categories.
    const CATEGORIES: &'static [&'static str];
    /// Printer columns.
    fn columns() -> Vec<Value>;
}

/// The CRD of a kind.
#[must_use]
pub fn crd<S>() -> Value
where
    S: CrdDefinition + JsonSchema,
    S::Status: JsonSchema,
{
    // The schema for serialization, which includes fields that a plugin writes and does not read back.
    let mut status = generate_schema::<S::Status>(SchemaSettings::for_serialize);
    let properties = status["properties"]
        .as_object_mut()
        .map(std::mem::take)
        .unwrap_or_default();
    let mut all = host_status();
    all.extend(properties);
    status["type"] = json!("object");
    status["properties"] = Value::Object(all);
    // The host writes the conditions of a failure also before the plugin has returned a status.
    if let Some(status) = status.as_object_mut() {
        status.remove("required");
    }

    let mut names = json!({
        "kind": S::KIND,
        "listKind": format!("{}List", S::KIND),
        "plural": S::PLURAL,
        "singular": S::KIND.to_lowercase(),
    });
    if !S::SHORT_NAMES.is_empty() {
        names["shortNames"] = json!(S::SHORT_NAMES);
    }
    if !S::CATEGORIES.is_empty() {
        names["categories"] = json!(S::CATEGORIES);
    }
    let mut version = json!({
        "name": S::VERSION,
        "served": true,
        "storage": true,
        "subresources": { "status": {} },
        "schema": { "openAPIV3Schema": {
            "description": S::DESCRIPTION,
            "type": "object",
            "required": ["spec"],
            "properties": {
                "apiVersion": {
                    "type": "string",
                    "description": "The version of the schema of this object.",
                },
                "kind": { "type": "string", "description": "The kind of this object." },
                "metadata": { "type": "object" },
                "spec": generate_schema::<S>(SchemaSettings::for_deserialize),
                "status": status,
            },
        }},
    });
    let columns = S::columns();
    if !columns.is_empty() {
        version["additionalPrinterColumns"] = Value::Array(columns);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{}", S::PLURAL, S::GROUP) },
        "spec": {
            "group": S::GROUP,
            "names": names,
            "scope": if S::NAMESPACED { "Namespaced" } else { "Cluster" },
            "versions": [version],
        },
    })
}

/// File name and YAML text of a kind's CRD.
#[must_use]
pub fn file<S>() -> (String, String)
where
    S: CrdDefinition + JsonSchema,
    S::Status: JsonSchema,
{
    let name = format!("{}_{}.yaml", S::GROUP, S::PLURAL);
    let text = serde_saphyr::to_string(&crd::<S>()).expect("JSON can be written as YAML");
    (name, format!("# Generated from the Rust types.\n{text}"))
}

/// Environment variable with the folder that [`write_file`] writes to.
const CRDS_VARIABLE: &str = "OSTLER_CRDS";

/// Writes the CRD of a kind into the folder `$OSTLER_CRDS`, and nothing without that variable. `ostler plugin crds` runs
/// the ignored tests with this call that [`macro@crate::resource`] adds.
///
/// # Panics
/// When the file cannot be written, or is there: two types define the same CRD.
#[doc(hidden)]
pub fn write_file<S>()
where
    S: CrdDefinition + JsonSchema,
    S::Status: JsonSchema,
{
    let Some(folder) = std::env::var_os(CRDS_VARIABLE) else {
        return;
    };
    let (name, text) = file::<S>();
    let path = std::path::Path::new(&folder).join(name);
    let written = std::fs::File::create_new(&path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
    if let Err(e) = written {
        let (kind, version) = (S::KIND, S::VERSION);
        panic!(
            "{kind} {version}: {}: {e}: does another type define this CRD?",
            path.display()
        );
    }
}

/// Fields of every status, written by the host. The generators of the other languages read the same file.
fn host_status() -> Map<String, Value> {
    serde_json::from_str(include_str!("host_status.json")).unwrap_or_default()
}

/// Generates a structural schema, as Kubernetes requires: without references and `null`.
fn generate_schema<T: JsonSchema>(contract: fn(SchemaSettings) -> SchemaSettings) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let settings = contract(settings);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().into();
    make_structural(&mut schema);
    schema
}

fn make_structural(schema: &mut Value) {
    match schema {
        // Without this extension the API server prunes the fields of an unrestricted value.
        Value::Bool(true) => *schema = json!({ "x-kubernetes-preserve-unknown-fields": true }),
        Value::Object(map) => {
            for key in ["$schema", "title", "readOnly"] {
                if map.get(key).is_some_and(|v| v.is_string() || v.is_boolean()) {
                    map.remove(key);
                }
            }
            flatten_option(map);
            constants_to_enum(map);
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|t| t != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    map.insert("type".into(), only);
                }
            }
            if let Some(Value::Array(values)) = map.get_mut("enum") {
                values.retain(|v| !v.is_null());
            }
            if map.get("default").is_some_and(Value::is_null) {
                map.remove("default");
            }
            let unsigned = map
                .get("format")
                .and_then(Value::as_str)
                .is_some_and(|f| f.starts_with("uint"));
            if unsigned {
                map.remove("format");
            }
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = unwrap_lines(text);
            }
            for key in ["items", "additionalProperties"] {
                if let Some(inner) = map.get_mut(key)
                    && !(key == "additionalProperties" && *inner == Value::Bool(false))
                {
                    make_structural(inner);
                }
            }
            if let Some(Value::Object(properties)) = map.get_mut("properties") {
                properties.values_mut().for_each(make_structural);
            }
            if map.get("additionalProperties") == Some(&Value::Bool(false)) {
                map.remove("additionalProperties");
            }
        }
        _ => {}
    }
}

/// `anyOf: [T, null]`, as optional structs come, becomes `T`.
fn flatten_option(map: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = map.get("anyOf") else {
        return;
    };
    let not_null: Vec<_> = choices.iter().filter(|c| c["type"] != "null").collect();
    if let ([Value::Object(only)], true) = (not_null.as_slice(), choices.len() == 2) {
        let inner = only.clone();
        map.remove("anyOf");
        for (key, value) in inner {
            // The description of the field takes precedence over that of its type.
            map.entry(key).or_insert(value);
        }
    }
}

/// Documented enum variants come as `oneOf` constants.
fn constants_to_enum(map: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = map.get("oneOf") else {
        return;
    };
    let mut values = Vec::new();
    for choice in choices {
        match (choice.get("const"), choice.get("enum")) {
            (Some(value), _) => values.push(value.clone()),
            (None, Some(Value::Array(more))) => values.extend(more.iter().cloned()),
            _ => return,
        }
    }
    map.remove("oneOf");
    map.insert("type".into(), json!("string"));
    map.insert("enum".into(), Value::Array(values));
}

/// Joins the lines of a doc comment's paragraphs.
fn unwrap_lines(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|p| p.replace('\n', " "));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
/// Compares generated CRDs, each with its file name, with the files of a folder. With `UPDATE_CRDS=1` it writes them first. For
/// tests.
///
/// # Panics
/// A file differs, or cannot be read or written.
pub fn compare_files(folder: &Path, crds: &[(String, String)]) {
    for (name, text) in crds {
        let path = folder.join(name);
        if std::env::var_os("UPDATE_CRDS").is_some() {
            fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        let checked_in = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let differing = checked_in.lines().zip(text.lines()).find(|(old, new)| old != new);
        assert!(
            checked_in == *text,
            "{name} is not as generated, first at {differing:?}: UPDATE_CRDS=1 writes it"
        );
    }
}

/// The problems of a generated CRD: keywords that the API server refuses as not structural, and fields that `kubectl explain`
/// would show without a description. For tests.
///
/// # Panics
/// The text is not the YAML of a CRD with a spec.
#[must_use]
pub fn find_problems(text: &str) -> Vec<String> {
    let keywords = ["$ref", "anyOf", "oneOf", "\"null\"", "uint", "- null", "$schema"];
    let used = keywords.into_iter().filter(|keyword| text.contains(keyword));
    let mut problems: Vec<_> = used.map(|keyword| format!("has {keyword}")).collect();
    let crd: Value = serde_saphyr::from_str(text).expect("YAML");
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert!(
        schema["properties"]["spec"]["properties"].is_object(),
        "a spec with fields"
    );
    collect_undescribed(schema, "", &mut problems);
    problems
}

fn collect_undescribed(schema: &Value, path: &str, problems: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        // The API server describes metadata; spec and status belong to the kind.
        let own = !["apiVersion", "kind", "metadata"].contains(&name.as_str());
        if own && field["description"].as_str().is_none_or(|text| text.len() < 5) {
            problems.push(format!("{path} has no description"));
        }
        collect_undescribed(field, &path, problems);
        collect_undescribed(&field["items"], &format!("{path}[]"), problems);
        collect_undescribed(&field["additionalProperties"], &format!("{path}.*"), problems);
    }
}
