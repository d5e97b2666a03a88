//! What is shipped lets the pack do what it does.

use std::{fs, path::Path};

use ostler_sdk::serde_json::Value;

fn read(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy");
    fs::read_to_string(directory.join(name)).expect("is checked in")
}

fn has(list: &Value, wanted: &str) -> bool {
    let mut all = list.as_array().into_iter().flatten();
    all.any(|item| item == wanted)
}

/// Every kind can be watched and its status written; what a plugin is granted to delete, RBAC lets the host delete.
#[test]
fn rbac_covers_every_kind_and_grant() {
    let manifest = read("ostler.yaml");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&manifest).expect("YAML");
    let role = documents
        .iter()
        .find(|d| d["metadata"]["name"] == "ostler-in-a-namespace" && d["kind"] == "ClusterRole")
        .expect("the role");
    let allows = |resource: &str, verb: &str| {
        let mut rules = role["rules"].as_array().into_iter().flatten();
        rules.any(|rule| {
            has(&rule["apiGroups"], "concourse-ci.org")
                && has(&rule["resources"], resource)
                && has(&rule["verbs"], verb)
        })
    };
    let grants: Value = serde_saphyr::from_str(&read("grants.yaml")).expect("YAML");
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
        let status = [plural, "/status"].concat();
        assert!(allows(&status, "patch"), "patch {status}");
        let plugin = ["concourse-", &kind.to_lowercase()].concat();
        assert!(grants["plugins"][&plugin].is_object(), "grants of {plugin}");
        for (plugin, grant) in grants["plugins"].as_object().into_iter().flatten() {
            let mut granted = grant["kubernetes"].as_array().into_iter().flatten();
            let deletes = granted.any(|g| {
                g["group"] == "concourse-ci.org" && has(&g["kinds"], kind) && has(&g["verbs"], "delete")
            });
            assert!(
                !deletes || allows(plural, "delete"),
                "{plugin} may delete {plural}"
            );
        }
    }
}
