//! Checks of the generated CRDs.

use std::path::Path;

use ostler_sdk::{crd, serde_json::Value};

/// `UPDATE_CRDS=1 cargo test -p steps-api --test crds` writes the files.
#[test]
fn checked_in_crds_match_generated_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crds");
    crd::compare_files(&folder, &steps_api::crds());
}

#[test]
fn schemas_are_structural_and_fields_have_descriptions() {
    for (name, text) in steps_api::crds() {
        assert_eq!(crd::find_problems(&text), Vec::<String>::new(), "{name}");
    }
}

/// The host writes the conditions of a failure also before the first status of the plugin.
#[test]
fn status_may_consist_of_conditions_alone() {
    for (name, text) in steps_api::crds() {
        let crd: Value = serde_saphyr::from_str(&text).expect("YAML");
        let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        assert!(status["properties"]["phase"].is_object(), "{name}");
        assert_eq!(status["required"], Value::Null, "{name}");
    }
}

/// Scripts rely on these names and columns.
#[test]
fn kinds_have_short_names_category_and_columns() {
    let expected = [(
        "Step",
        "cistep",
        "Phase Reason Exit Pod Node Image Log Started Ended Age",
    )];
    let texts = |list: &Value, field: Option<&str>| {
        let all = list.as_array().into_iter().flatten();
        let all = all.filter_map(|item| field.map_or(item, |field| &item[field]).as_str());
        all.collect::<Vec<_>>().join(" ")
    };
    let crds = steps_api::crds();
    assert_eq!(crds.len(), expected.len());
    for ((kind, names, columns), (_, text)) in expected.into_iter().zip(&crds) {
        let crd: Value = serde_saphyr::from_str(text).expect("YAML");
        assert_eq!(crd["spec"]["names"]["kind"], kind);
        assert_eq!(texts(&crd["spec"]["names"]["shortNames"], None), names);
        assert_eq!(texts(&crd["spec"]["names"]["categories"], None), "steps");
        let shown = &crd["spec"]["versions"][0]["additionalPrinterColumns"];
        assert_eq!(texts(shown, Some("name")), columns);
    }
}

/// Lists of objects are merged by name, and what a step is made of cannot change after its creation.
#[test]
fn lists_have_keys_and_the_spec_is_immutable() {
    let (_, text) = &steps_api::crds()[0];
    let crd: Value = serde_saphyr::from_str(text).expect("YAML");
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    for list in [
        &spec["properties"]["inputs"],
        &spec["properties"]["outputs"],
        &spec["properties"]["process"]["properties"]["env"],
    ] {
        assert_eq!(list["x-kubernetes-list-type"], "map");
        assert_eq!(list["x-kubernetes-list-map-keys"][0], "name");
        // Without it the API server refuses the rules for their cost.
        assert!(list["maxItems"].is_u64(), "{list}");
    }
    let rules = spec["x-kubernetes-validations"].as_array().expect("rules");
    for field in ["image", "process", "inputs", "outputs"] {
        let is_rule = |rule: &&Value| {
            rule["rule"]
                .as_str()
                .is_some_and(|r| r.contains(&format!("oldSelf.{field}")))
        };
        assert!(rules.iter().any(|rule| is_rule(&rule)), "{field}");
    }
    assert_eq!(
        spec["required"],
        ostler_sdk::serde_json::json!(["image", "process"])
    );
}
