//! Checks of the generated CRDs.

use ostler_sdk::serde_json::Value;

/// The API server refuses schemas with these keywords as not structural.
#[test]
fn schemas_avoid_unstructural_keywords() {
    for (name, text) in steps_api::crds() {
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
    for (name, text) in steps_api::crds() {
        let crd: Value = serde_saphyr::from_str(&text).expect("YAML");
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert!(schema["properties"]["spec"]["properties"].is_object(), "{name}");
        let mut missing = Vec::new();
        collect_missing(schema, "", &mut missing);
        assert_eq!(missing, Vec::<String>::new(), "{name}");
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
