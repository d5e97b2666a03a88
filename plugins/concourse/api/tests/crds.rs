//! Comparison of the checked-in CRDs with the Rust types, and checks of their content.

use std::path::Path;

use ostler_sdk::{crd, serde_json::Value};

/// `UPDATE_CRDS=1 cargo test -p concourse-api --test crds` writes the files.
#[test]
fn checked_in_crds_match_generated_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crds");
    crd::compare_files(&folder, &concourse_api::crds());
}

#[test]
fn schemas_are_structural_and_fields_have_descriptions() {
    for (name, text) in concourse_api::crds() {
        assert_eq!(crd::find_problems(&text), Vec::<String>::new(), "{name}");
    }
}

/// Users and their scripts rely on these names and columns.
#[test]
fn short_names_and_columns_match_original_operator() {
    let expected = [
        (
            "Instance",
            "cci concinst",
            "URL Version Workers Stalled Ready WebURL Cluster Suspended Age",
        ),
        ("Team", "cct", "Instance Team Ready ID WebURL Suspended Age"),
        (
            "Pipeline",
            "ccp",
            "Team Pipeline Paused Ready Exposed Archived Synced WebURL Suspended Age",
        ),
        (
            "Job",
            "ccj",
            "Pipeline Job Paused Last Next Ready WebURL Suspended Age",
        ),
        (
            "Build",
            "ccb",
            "Job BuildID Status Complete Ready Duration WebURL Build CreatedBy Suspended Age",
        ),
        (
            "Resource",
            "ccr",
            "Pipeline Resource Pinned Ready Check LastChecked WebURL Suspended Age",
        ),
        (
            "Worker",
            "ccw",
            "Instance Worker Phase Platform Version Tasks Stalled Ready Lifecycle Team Containers Suspended Age",
        ),
    ];
    let texts = |list: &Value, field: Option<&str>| {
        let all = list.as_array().into_iter().flatten();
        let all = all.filter_map(|item| field.map_or(item, |field| &item[field]).as_str());
        all.collect::<Vec<_>>().join(" ")
    };
    let crds: Vec<Value> = concourse_api::crds()
        .iter()
        .map(|(_, text)| serde_saphyr::from_str(text).expect("YAML"))
        .collect();
    for (kind, names, columns) in expected {
        let crd = crds
            .iter()
            .find(|c| c["spec"]["names"]["kind"] == kind)
            .expect(kind);
        assert_eq!(texts(&crd["spec"]["names"]["shortNames"], None), names);
        assert_eq!(texts(&crd["spec"]["names"]["categories"], None), "concourse");
        let shown = &crd["spec"]["versions"][0]["additionalPrinterColumns"];
        assert_eq!(texts(shown, Some("name")), columns);
    }
}
