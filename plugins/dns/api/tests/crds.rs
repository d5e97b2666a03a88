//! Comparison of the checked-in CRDs with the Rust types, and checks of their content.

use std::path::Path;

use ostler_sdk::crd;

/// `UPDATE_CRDS=1 cargo test -p dns-api --test crds` writes the files.
#[test]
fn checked_in_crds_match_generated_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crds");
    crd::compare_files(&folder, &dns_api::crds());
}

#[test]
fn schemas_are_structural_and_fields_have_descriptions() {
    for (name, text) in dns_api::crds() {
        assert_eq!(crd::find_problems(&text), Vec::<String>::new(), "{name}");
    }
}
