//! Comparison of the checked-in CRDs with the Rust types, and checks of their content.

use std::{fs, path::Path};

use ostler_sdk::serde_json::Value;

#[test]
fn checked_in_crds_match_generated_ones() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crds");
    for (name, text) in dns_api::crds() {
        let path = directory.join(&name);
        if std::env::var_os("UPDATE_CRDS").is_some() {
            fs::write(&path, &text).expect("written");
        }
        let checked_in = fs::read_to_string(&path).expect("is checked in");
        assert_eq!(
            checked_in, text,
            "{name}: UPDATE_CRDS=1 cargo test -p dns-api --test crds"
        );
    }
}

/// The API server refuses schemas with these keywords as not structural.
#[test]
fn schemas_avoid_unstructural_keywords() {
    for (name, text) in dns_api::crds() {
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
        }
    }
    for (name, text) in dns_api::crds() {
        let crd: Value = serde_saphyr::from_str(&text).expect("YAML");
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert!(schema["properties"]["spec"]["properties"].is_object(), "{name}");
        let mut missing = Vec::new();
        collect_missing(schema, "", &mut missing);
        assert_eq!(missing, Vec::<String>::new(), "{name}");
    }
}
