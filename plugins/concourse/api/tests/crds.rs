//! The checked-in CRDs are what the types say.

use std::{fs, path::Path};

#[test]
fn crds_are_current() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crds");
    for (name, text) in concourse_api::crds() {
        let checked_in = fs::read_to_string(directory.join(&name)).expect("is checked in");
        assert_eq!(
            checked_in, text,
            "{name}: cargo run -p concourse-api --features crds --bin crds -- crds"
        );
    }
}

/// What structural schemas must not have, anywhere.
#[test]
fn schemas_are_structural() {
    for (name, text) in concourse_api::crds() {
        for wrong in ["$ref", "anyOf", "oneOf", "\"null\"", "uint", "- null", "$schema"] {
            assert!(!text.contains(wrong), "{name} has {wrong}");
        }
    }
}
