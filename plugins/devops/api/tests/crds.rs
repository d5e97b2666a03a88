//! Comparison of the checked-in CRDs with the Rust types, and checks of their content.

use std::{fs, path::Path};

use ostler_sdk::serde_json::Value;

#[test]
fn checked_in_crds_match_generated_ones() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crds");
    for (name, text) in devops_api::crds() {
        let checked_in = fs::read_to_string(directory.join(&name)).expect("is checked in");
        assert_eq!(
            checked_in, text,
            "{name}: cargo run -p devops-api --features crds --bin crds -- crds"
        );
    }
}

/// The API server refuses schemas with these keywords as not structural.
#[test]
fn schemas_avoid_unstructural_keywords() {
    for (name, text) in devops_api::crds() {
        for wrong in ["$ref", "anyOf", "oneOf", "\"null\"", "uint", "- null", "$schema"] {
            assert!(!text.contains(wrong), "{name} has {wrong}");
        }
    }
}

/// `kubectl explain` shows the descriptions.
#[test]
fn fields_have_descriptions() {
    fn collect_missing(schema: &Value, path: &str, missing: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            // The API server describes metadata; spec and status belong to the kind.
            let own = !["apiVersion", "kind", "metadata"].contains(&name.as_str());
            if own && field["description"].as_str().is_none_or(|text| text.len() < 5) {
                missing.push(path.clone());
            }
            collect_missing(field, &path, missing);
            collect_missing(&field["items"], &format!("{path}[]"), missing);
            collect_missing(&field["additionalProperties"], &format!("{path}.*"), missing);
        }
    }
    for (name, text) in devops_api::crds() {
        let crd: Value = serde_saphyr::from_str(&text).expect("YAML");
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert!(schema["properties"]["spec"]["properties"].is_object(), "{name}");
        let mut missing = Vec::new();
        collect_missing(schema, "", &mut missing);
        assert_eq!(missing, Vec::<String>::new(), "{name}");
    }
}

/// Scripts rely on these names and columns.
#[test]
fn kinds_have_short_names_category_and_columns() {
    let expected = [
        (
            "DevOpsProject",
            "devproj",
            "Repository Ready Reason Suspended Age",
        ),
        ("ArgoSetting", "argoset", "Argo Ready Reason Synced Suspended Age"),
        ("JenkinsSetting", "jenset", "URL Project Ready Reason Commit Age"),
        (
            "ContainerRegistry",
            "cregistry",
            "URL Repository Ready Reason Age",
        ),
        ("GitCredentials", "gitcred", "URL Ready Reason Commit Age"),
        (
            "DeploymentRecord",
            "deprec",
            "Environment Phase State URL Expires Build Ready Age",
        ),
        ("IngressResource", "ingres", "Host URL Ready Reason Age"),
    ];
    let texts = |list: &Value, field: Option<&str>| {
        let all = list.as_array().into_iter().flatten();
        let all = all.filter_map(|item| field.map_or(item, |field| &item[field]).as_str());
        all.collect::<Vec<_>>().join(" ")
    };
    let crds = devops_api::crds();
    assert_eq!(crds.len(), expected.len());
    for ((kind, names, columns), (_, text)) in expected.into_iter().zip(&crds) {
        let crd: Value = serde_saphyr::from_str(text).expect("YAML");
        assert_eq!(crd["spec"]["names"]["kind"], kind);
        assert_eq!(texts(&crd["spec"]["names"]["shortNames"], None), names);
        assert_eq!(texts(&crd["spec"]["names"]["categories"], None), "devops");
        let shown = &crd["spec"]["versions"][0]["additionalPrinterColumns"];
        assert_eq!(texts(shown, Some("name")), columns);
    }
}
