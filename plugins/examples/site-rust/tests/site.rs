//! Tests of the example against the SDK's in-memory host.

use ostler_sdk::{crd, mock::MockHost, serde_json::json};
use site_rust::{SiteSpec, Sites};

#[test]
fn service_is_removed_when_the_site_is_public_no_longer() {
    let host = MockHost::new();
    let mut site = json!({
        "metadata": { "name": "a", "namespace": "n", "uid": "u" },
        "spec": { "text": "Hello", "public": true },
    });
    host.reconcile(&Sites, &site).expect("succeeds");
    assert_eq!(
        host.writes(),
        ["apply ConfigMap a owned", "apply Service a owned"]
    );
    host.forget();
    site["spec"]["public"] = false.into();
    host.reconcile(&Sites, &site).expect("succeeds");
    assert_eq!(host.writes(), ["delete Service a"]);
}

/// `UPDATE_CRDS=1 cargo test -p site-rust` writes the file.
#[test]
fn checked_in_crd_matches_generated_one() {
    let (name, text) = crd::file::<SiteSpec>();
    let path = format!("{}/../../../crds/examples/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_CRDS").is_some() {
        std::fs::write(&path, &text).expect("can be written");
    }
    let checked_in = std::fs::read_to_string(&path).expect("is checked in");
    assert_eq!(checked_in, text, "run it again with UPDATE_CRDS=1");
}
