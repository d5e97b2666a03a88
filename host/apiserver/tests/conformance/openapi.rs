//! The schemas of built-in kinds in the embedded server, compared with those that the real server publishes.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::target::{ConformanceTarget, embedded};

/// File with the schemas, compressed by zlib.
const DEFINITIONS: &str = "src/openapi/definitions.json.zlib";
/// File with the columns of tables, compressed by zlib.
const COLUMNS: &str = "src/builtin_table/columns.json.zlib";

pub async fn schemas_of_built_in_kinds_are_those_of_the_real_server(real: &ConformanceTarget) {
    let (server, own) = embedded().await;
    let wanted = list_builtin_kinds(&own).await;
    server.shutdown().await;
    let published = list_published_definitions(real).await;
    let mut definitions = Map::new();
    for (name, definition) in &published {
        let kinds = definition["x-kubernetes-group-version-kind"].as_array();
        let is_wanted = |kind: &Value| {
            wanted.contains(&(
                kind["group"].to_string(),
                kind["version"].to_string(),
                kind["kind"].to_string(),
            ))
        };
        if kinds.into_iter().flatten().any(is_wanted) {
            collect_definitions(name, &published, &mut definitions);
        }
    }
    assert_compressed(
        DEFINITIONS,
        &Value::Object(definitions),
        "schemas_of_built_in_kinds",
    );
}

pub async fn columns_of_built_in_kinds_are_those_of_the_real_server(real: &ConformanceTarget) {
    let (server, own) = embedded().await;
    let mut columns = Map::new();
    for (group, plural, path) in list_builtin_collections(&own).await {
        let name = match &*group {
            "" => plural,
            group => format!("{plural}.{group}"),
        };
        let table = real.get_table(&format!("{path}?limit=1")).await.expect(200);
        columns.insert(name, table["columnDefinitions"].clone());
    }
    server.shutdown().await;
    assert_compressed(COLUMNS, &Value::Object(columns), "columns_of_built_in_kinds");
}

/// Compares a compressed file with what the real server publishes, or writes it.
fn assert_compressed(file: &str, expected: &Value, test: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        let compressed = miniz_oxide::deflate::compress_to_vec_zlib(expected.to_string().as_bytes(), 10);
        std::fs::write(&path, compressed).expect("the file is writable");
    }
    let compressed = std::fs::read(&path).expect("the file is readable");
    let json =
        miniz_oxide::inflate::decompress_to_vec_zlib(&compressed).expect("the file is compressed by zlib");
    let found: Value = serde_json::from_slice(&json).expect("the file is JSON");
    assert!(
        found == *expected,
        "host/apiserver/{file} is not of this server's version: UPDATE_OPENAPI=1 cargo xtask test real {test}"
    );
}

/// Group, plural and path of each built-in resource that a server lists.
async fn list_builtin_collections(target: &ConformanceTarget) -> Vec<(String, String, String)> {
    let mut collections = Vec::new();
    for (group_version, path) in list_group_versions(target).await {
        let group = group_version.split_once('/').map_or("", |(group, _)| group);
        let listed = target.get(&path).await.expect(200);
        let resources = listed["resources"].as_array().into_iter().flatten();
        let can_list = |verbs: &Value| {
            verbs
                .as_array()
                .is_some_and(|verbs| verbs.contains(&"list".into()))
        };
        for resource in resources.filter(|resource| can_list(&resource["verbs"])) {
            let plural = resource["name"].as_str().unwrap_or_default();
            collections.push((group.to_owned(), plural.to_owned(), format!("{path}/{plural}")));
        }
    }
    collections
}

/// The group versions of a server, and their paths.
async fn list_group_versions(target: &ConformanceTarget) -> Vec<(String, String)> {
    let groups = target.get("/apis").await.expect(200);
    let groups = groups["groups"].as_array().into_iter().flatten();
    let versions = groups.flat_map(|group| group["versions"].as_array().into_iter().flatten());
    let named = versions.filter_map(|version| version["groupVersion"].as_str());
    let named = named.map(|name| (name.to_owned(), format!("/apis/{name}")));
    named.chain([("v1".to_owned(), "/api/v1".to_owned())]).collect()
}

/// The kinds that a server has by itself, with the scale of some of them.
async fn list_builtin_kinds(target: &ConformanceTarget) -> Vec<(String, String, String)> {
    let mut kinds = Vec::new();
    for (group_version, path) in list_group_versions(target).await {
        let listed = target.get(&path).await.expect(200);
        let (group, version) = group_version.split_once('/').unwrap_or(("", &group_version));
        for resource in listed["resources"].as_array().into_iter().flatten() {
            let text = |field: &str, inherited: &str| {
                Value::from(resource[field].as_str().unwrap_or(inherited)).to_string()
            };
            kinds.push((text("group", group), text("version", version), text("kind", "")));
        }
    }
    kinds
}

async fn list_published_definitions(target: &ConformanceTarget) -> BTreeMap<String, Value> {
    let mut definitions = BTreeMap::new();
    let index = target.get("/openapi/v3").await.expect(200);
    for document in index["paths"].as_object().into_iter().flatten() {
        let url = document.1["serverRelativeURL"].as_str().unwrap_or_default();
        let is_group = document.0.starts_with("api/") || document.0.matches('/').count() == 2;
        if !is_group || document.0.contains(".example.com") || document.0.contains(".ostler.dev") {
            continue;
        }
        let published = target.get(url).await.expect(200);
        let schemas = published["components"]["schemas"]
            .as_object()
            .into_iter()
            .flatten();
        definitions.extend(schemas.map(|(name, schema)| (name.clone(), schema.clone())));
    }
    definitions
}

fn collect_definitions(name: &str, published: &BTreeMap<String, Value>, collected: &mut Map<String, Value>) {
    let Some(definition) = published.get(name).filter(|_| !collected.contains_key(name)) else {
        return;
    };
    collected.insert(name.to_owned(), definition.clone());
    let mut pending = vec![definition];
    while let Some(value) = pending.pop() {
        if let Some(reference) = value["$ref"].as_str() {
            collect_definitions(
                reference.rsplit('/').next().unwrap_or_default(),
                published,
                collected,
            );
        }
        match value {
            Value::Object(fields) => pending.extend(fields.values()),
            Value::Array(items) => pending.extend(items),
            _ => {}
        }
    }
}
