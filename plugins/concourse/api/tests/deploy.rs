//! Checks that the shipped manifests allow what the pack does.

use std::{fs, path::Path};

use ostler_sdk::serde_json::Value;

fn read_manifest(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy");
    fs::read_to_string(directory.join(name)).expect("is checked in")
}

fn contains_item(list: &Value, expected: &str) -> bool {
    let mut all = list.as_array().into_iter().flatten();
    all.any(|item| item == expected)
}

/// RBAC lets the host watch every kind and write its status, and delete what a plugin is granted to delete.
#[test]
fn rbac_manifest_covers_every_kind_and_grant() {
    let manifest = read_manifest("ostler.yaml");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&manifest).expect("YAML");
    let role = documents
        .iter()
        .find(|d| d["metadata"]["name"] == "ostler-in-a-namespace" && d["kind"] == "ClusterRole")
        .expect("the role");
    let allows = |resource: &str, verb: &str| {
        let mut rules = role["rules"].as_array().into_iter().flatten();
        rules.any(|rule| {
            contains_item(&rule["apiGroups"], "concourse-ci.org")
                && contains_item(&rule["resources"], resource)
                && contains_item(&rule["verbs"], verb)
        })
    };
    let grants: Value = serde_saphyr::from_str(&read_manifest("grants.yaml")).expect("YAML");
    for (name, text) in concourse_api::crds() {
        let crd: Value = serde_saphyr::from_str(&text).expect("YAML");
        let names = &crd["spec"]["names"];
        let (plural, kind) = (
            names["plural"].as_str().expect(&name),
            names["kind"].as_str().expect(&name),
        );
        for verb in ["get", "list", "watch", "patch"] {
            assert!(allows(plural, verb), "{verb} {plural}");
        }
        let status = format!("{plural}/status");
        assert!(allows(&status, "patch"), "patch {status}");
        let plugin = format!("concourse-{}", kind.to_lowercase());
        assert!(grants["plugins"][&plugin].is_object(), "grants of {plugin}");
        for (plugin, grant) in grants["plugins"].as_object().into_iter().flatten() {
            let mut granted = grant["kubernetes"].as_array().into_iter().flatten();
            let deletes = granted.any(|g| {
                g["group"] == "concourse-ci.org"
                    && contains_item(&g["kinds"], kind)
                    && contains_item(&g["verbs"], "delete")
            });
            assert!(
                !deletes || allows(plural, "delete"),
                "{plugin} may delete {plural}"
            );
        }
    }
}
