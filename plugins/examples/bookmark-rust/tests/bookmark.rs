//! Tests of the example against the SDK's in-memory host.

use bookmark_rust::{BookmarkSpec, Bookmarks};
use ostler_sdk::{Resolution, crd, mock::MockHost, serde_json::json};

#[test]
fn invalid_path_is_terminal_without_a_request() {
    let host = MockHost::new();
    let object = json!({
        "metadata": { "name": "a", "namespace": "b" },
        "spec": { "title": "A", "upstream": "pages", "path": "no" },
    });
    let failure = host.reconcile(&Bookmarks, &object).expect_err("is refused");
    assert_eq!(failure.resolution, Resolution::Terminal);
    assert_eq!(failure.message, "spec.path: no does not start with /");
    assert!(host.writes().is_empty());
    host.cleanup(&Bookmarks, &object)
        .expect("there is nothing to undo");
}

/// `UPDATE_CRDS=1 cargo test -p bookmark-rust` writes the file.
#[test]
fn checked_in_crd_matches_generated_one() {
    let (name, text) = crd::file::<BookmarkSpec>();
    let path = format!("{}/../../../crds/examples/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_CRDS").is_some() {
        std::fs::write(&path, &text).expect("can be written");
    }
    let checked_in = std::fs::read_to_string(&path).expect("is checked in");
    assert_eq!(checked_in, text, "run it again with UPDATE_CRDS=1");
}
