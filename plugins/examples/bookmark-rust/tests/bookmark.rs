//! The example's logic, against the SDK's host in memory.

use bookmark_rust::{BookmarkSpec, Bookmarks};
use ostler_sdk::{Resolution, crd, mock::Host, serde_json::json};

#[test]
fn a_path_that_is_none_is_parked_before_anything_is_asked() {
    let host = Host::new();
    let object = json!({
        "metadata": { "name": "a", "namespace": "b" },
        "spec": { "title": "A", "upstream": "pages", "path": "no" },
    });
    let failure = host.reconcile(&Bookmarks, &object).expect_err("is refused");
    assert_eq!(failure.resolution, Resolution::Terminal);
    assert_eq!(failure.message, "spec.path: no does not start with /");
    assert!(host.writes().is_empty());
    host.cleanup(&Bookmarks, &object)
        .expect("nothing is to be undone");
}

/// `UPDATE_CRDS=1 cargo test -p bookmark-rust` writes the file.
#[test]
fn the_crd_is_current() {
    let (name, text) = crd::file::<BookmarkSpec>();
    let path = [env!("CARGO_MANIFEST_DIR"), "/../../../crds/", &name].concat();
    if std::env::var_os("UPDATE_CRDS").is_some() {
        std::fs::write(&path, &text).expect("can be written");
    }
    let checked_in = std::fs::read_to_string(&path).expect("is checked in");
    assert_eq!(checked_in, text, "run it again with UPDATE_CRDS=1");
}
