//! Comparison of the checked-in CRDs with the Rust types, and checks of their content.

use std::path::Path;

use ostler_sdk::{crd, serde_json::Value};

/// `UPDATE_CRDS=1 cargo test -p devops-api --test crds` writes the files.
#[test]
fn checked_in_crds_match_generated_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crds");
    crd::compare_files(&folder, &devops_api::crds());
}

#[test]
fn schemas_are_structural_and_fields_have_descriptions() {
    for (name, text) in devops_api::crds() {
        assert_eq!(crd::find_problems(&text), Vec::<String>::new(), "{name}");
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
