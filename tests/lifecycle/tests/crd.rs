//! Compares the checked-in CRD of the leadership scenarios with the Rust types.

use lifecycle::{BeatSpec, ClusterBeatSpec};
use ostler_sdk::crd;

/// `UPDATE_CRDS=1 cargo test -p lifecycle` writes the file.
#[test]
fn checked_in_crd_is_current() {
    let text = [crd::file::<BeatSpec>().1, crd::file::<ClusterBeatSpec>().1].join("---\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/crd.yaml");
    if std::env::var_os("UPDATE_CRDS").is_some() {
        std::fs::write(path, &text).expect("can be written");
    }
    let checked_in = std::fs::read_to_string(path).expect("is checked in");
    assert_eq!(checked_in, text, "run it again with UPDATE_CRDS=1");
}
