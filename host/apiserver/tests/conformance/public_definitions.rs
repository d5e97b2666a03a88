//! Definitions that others publish, with minimal objects of their kinds: both servers answer alike.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::generated::{SeenIdentities, describe_difference, normalize_answer};
use crate::target::{ConformanceTarget, ObservedResponse, embedded};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Reads the definitions in the folders of `OSTLER_TEST_DEFINITIONS`, by name.
fn read_definitions() -> BTreeMap<String, Value> {
    let folders = std::env::var_os("OSTLER_TEST_DEFINITIONS")
        .expect("OSTLER_TEST_DEFINITIONS must list folders of definitions: cargo xtask test real");
    let files = std::env::split_paths(&folders).flat_map(|folder| {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries.map(|entry| entry.expect("the folder is readable").path())
    });
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    let mut definitions = BTreeMap::new();
    for mut definition in files.flat_map(|file| read_documents(&file)) {
        if definition["kind"] != "CustomResourceDefinition" {
            continue;
        }
        if let Some(metadata) = definition["metadata"].as_object_mut() {
            // Some are templates of a chart.
            metadata.remove("labels");
        }
        let name = definition["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        definitions.insert(name, definition);
    }
    definitions
}

fn read_documents(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).expect("the file is readable");
    let documents = text.split("\n---").filter(|part| part.contains("kind:"));
    documents
        .map(|part| {
            serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        })
        .collect()
}

fn compare(left: &ObservedResponse, right: &ObservedResponse) -> Option<String> {
    let normalize = |answer| normalize_answer(answer, &mut SeenIdentities::default());
    describe_difference(&normalize(left), &normalize(right))
}

/// The paths of a definition's served versions that need no conversion by a webhook, with their versions.
fn stored_paths(definition: &Value) -> Vec<(String, String)> {
    let spec = &definition["spec"];
    let (group, plural) = (&spec["group"], &spec["names"]["plural"]);
    let place = if spec["scope"] == "Namespaced" {
        "namespaces/default/"
    } else {
        ""
    };
    let converts = spec["conversion"]["strategy"] == "Webhook";
    let versions = spec["versions"].as_array().into_iter().flatten();
    let usable =
        versions.filter(|version| version["served"] == true && (version["storage"] == true || !converts));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    usable
        .map(|version| {
            let api_version = format!("{}/{}", text(group), text(&version["name"]));
            (
                format!("/apis/{api_version}/{place}{}", text(plural)),
                api_version,
            )
        })
        .collect()
}

/// Deletes the definitions that a server has, and waits until they are gone.
async fn delete_definitions(server: &ConformanceTarget, definitions: &BTreeMap<String, Value>) {
    let paths = || definitions.keys().map(|name| format!("{DEFINITIONS}/{name}"));
    for path in paths() {
        server.delete(&path, &Value::Null).await;
    }
    for path in paths() {
        server.until(&path, |answer| answer.code == 404).await;
    }
}

/// Both servers accept the definitions with the same defaults, and refuse the same objects with the same causes.
pub async fn public_definitions_are_answered_alike(real: &ConformanceTarget) {
    let (server, local) = embedded().await;
    let definitions = read_definitions();
    assert!(definitions.len() > 40, "{}", definitions.len());
    // Other tests on the same cluster have some of them with less in their schemas.
    delete_definitions(real, &definitions).await;
    let mut differences = Vec::new();
    for (name, definition) in &definitions {
        let (left, right) = tokio::join!(
            local.post(DEFINITIONS, definition),
            real.post(DEFINITIONS, definition)
        );
        differences.extend(compare(&left, &right).map(|what| format!("{name}: {what}")));
    }
    let contents = [
        json!({}),
        json!({"spec": {}}),
        json!({"spec": {"unknown": 1, "replicas": "a"}}),
        json!({"spec": []}),
    ];
    for definition in definitions.values() {
        for (path, api_version) in stored_paths(definition) {
            real.until(&path, |answer| answer.code == 200).await;
            for content in &contents {
                let mut object = content.clone();
                object["apiVersion"] = api_version.as_str().into();
                object["kind"] = definition["spec"]["names"]["kind"].clone();
                object["metadata"] = json!({"name": "a"});
                let query = format!("{path}?dryRun=All");
                let (left, right) = tokio::join!(local.post(&query, &object), real.post(&query, &object));
                differences.extend(compare(&left, &right).map(|what| format!("{path} {content}: {what}")));
            }
        }
    }
    delete_definitions(real, &definitions).await;
    server.shutdown().await;
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
