//! The schemas of built-in kinds in the embedded server, compared with those that the real server publishes.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::target::{ConformanceTarget, embedded};

/// File with the schemas, compressed by zlib.
const DEFINITIONS: &str = "src/openapi/definitions.json.zlib";

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
    let expected = Value::Object(definitions);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DEFINITIONS);
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        let compressed = miniz_oxide::deflate::compress_to_vec_zlib(expected.to_string().as_bytes(), 10);
        std::fs::write(&path, compressed).expect("the file is writable");
    }
    let compressed = std::fs::read(&path).expect("the file is readable");
    let json =
        miniz_oxide::inflate::decompress_to_vec_zlib(&compressed).expect("the file is compressed by zlib");
    let found: Value = serde_json::from_slice(&json).expect("the file is JSON");
    assert!(
        found == expected,
        "host/apiserver/{DEFINITIONS} is not of this server's version: UPDATE_OPENAPI=1 cargo xtask test real schemas_of_built_in_kinds"
    );
}

/// The kinds that a server has by itself, with the scale of some of them.
async fn list_builtin_kinds(target: &ConformanceTarget) -> Vec<(String, String, String)> {
    let mut kinds = Vec::new();
    let groups = target.get("/apis").await.expect(200);
    let named = groups["groups"].as_array().into_iter().flatten();
    let paths = named.flat_map(|group| group["versions"].as_array().into_iter().flatten());
    let mut paths: Vec<String> = paths
        .filter_map(|version| Some(format!("/apis/{}", version["groupVersion"].as_str()?)))
        .collect();
    paths.push("/api/v1".into());
    for path in paths {
        let listed = target.get(&path).await.expect(200);
        let group_version = listed["groupVersion"].as_str().unwrap_or_default();
        let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
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
