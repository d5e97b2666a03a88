//! Revocation of a key or a digest while the build that it concerns serves.

use ostler::testing::grants::Grants;
use ostler_test_harness::{HeldCompiler, scenario};
use sha2::{Digest, Sha256};

use super::*;

/// The public key of another seed than [`PRIVATE_KEY`].
const OTHER_KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAgTl3Dqh9F19Wo1Rmw0x+zMuNipG07jeiXfYPW4/Js5Q=\n-----END PUBLIC KEY-----\n";

/// Pushes the greeting component, signed by [`PRIVATE_KEY`].
async fn push_signed(registry: &RegistryProcess) -> PushedComponent {
    let pushed = push_component(registry, "greeting", read_component("examples/greeting")).await;
    let key = SigningKey::from_pem(PRIVATE_KEY).expect("a key");
    ComponentStore::new(None, PullLimits::default())
        .sign_digest(
            &pushed.reference,
            &pushed.digest,
            &RegistryAuth::anonymous(),
            &key,
        )
        .await
        .expect("signed");
    pushed
}

#[scenario]
pub(super) async fn serving_build_is_stopped_when_its_key_or_digest_is_revoked(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    let registry = RegistryProcess::start_public();
    let pushed = push_signed(&registry).await;
    let spec = |key: &str| {
        json!({"source": {"oci": {"reference": pushed.reference.to_string()}}, "verify": {"keys": [key]},
            "grants": {"reconciles": [{"group": "*", "kinds": ["*"]}],
                "kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply"]}], "events": true}})
    };
    lab.install(&["hostile/hostile"]);
    let grants_file = lab.path().join("components.yaml");
    let plugins = json!({"hostile": {"reconciles": [{"group": "*", "kinds": ["*"]}]}});
    std::fs::write(&grants_file, json!({"plugins": plugins}).to_string()).expect("written");
    lab.settings.grants_file = Some(grants_file.clone());
    lab.settings.cache = Some(CompileCache {
        directory: lab.path().join("cache"),
        compiler: None,
    });
    apply_plugin(&lab, "greeting", spec(PUBLIC_KEY)).await;
    lab.start_host().await;
    wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;
    apply_greeting(&lab, "hello").await;
    lab.wait_ready(&greeting_kind(), "hello").await;

    // The key is removed: what serves is stopped, and not only kept from being loaded again.
    apply_plugin(&lab, "greeting", spec(OTHER_KEY)).await;
    let object = wait_plugin_condition(&lab, "greeting", "Ready", "False", "InvalidSignature").await;
    assert!(message(&object, "Loaded").contains("is stopped"), "{object:#}");
    assert!(
        message(&object, "Loaded").contains(&pushed.digest.to_string()),
        "{object:#}"
    );
    assert!(report(&lab, "greeting").stopped);
    apply_greeting(&lab, "late").await;
    // An object of another plugin, applied later, becomes Ready, so the other had time to be reconciled.
    apply_hostile(&lab, "neighbour", "behave", "x").await;
    lab.wait_ready(&hostile(), "neighbour").await;
    let late = lab.get(&greeting_kind(), "late").await.expect("it exists");
    assert!(late["status"].is_null(), "{late:#}");
    apply_plugin(&lab, "greeting", spec(PUBLIC_KEY)).await;
    lab.wait_ready(&greeting_kind(), "late").await;
    wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;

    // The host's own keys must have signed it, too, whatever the object says.
    let write_policy = |policy: Value| {
        let text = json!({"plugins": plugins, "components": policy}).to_string();
        let partial = grants_file.with_extension("partial");
        std::fs::write(&partial, text).expect("written");
        std::fs::rename(&partial, &grants_file).expect("renamed");
    };
    write_policy(json!({"trustedKeys": [OTHER_KEY]}));
    wait_plugin_condition(&lab, "greeting", "Ready", "False", "InvalidSignature").await;
    write_policy(json!({"trustedKeys": [OTHER_KEY, PUBLIC_KEY]}));
    wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;

    // A digest is revoked: of the artifact, and of the component.
    for digest in [pushed.digest.to_string(), report(&lab, "greeting").digest] {
        write_policy(json!({"revokedDigests": [digest]}));
        let object = wait_plugin_condition(&lab, "greeting", "Ready", "False", "Revoked").await;
        let digest = digest.trim_start_matches("sha256:");
        assert!(message(&object, "Loaded").contains(digest), "{object:#}");
        write_policy(json!({}));
        wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;
    }
    lab.delete_plugin("greeting").await;
}

async fn write_keys(lab: &Lab, key: &str) {
    lab.apply(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "keys", "namespace": lab.namespace}, "data": {"cosign.pub": key}}))
        .await;
}

#[scenario]
pub(super) async fn serving_build_is_stopped_when_a_config_map_loses_its_key(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    let registry = RegistryProcess::start_public();
    let pushed = push_signed(&registry).await;
    lab.settings.cache = Some(CompileCache {
        directory: lab.path().join("cache"),
        compiler: None,
    });
    let source =
        json!({"configMapKeyRef": {"namespace": lab.namespace, "name": "keys", "key": "cosign.pub"}});
    let spec = json!({"source": {"oci": {"reference": pushed.reference.to_string()}}, "verify": {"keysFrom": [source]},
        "grants": {"reconciles": [{"group": "*", "kinds": ["*"]}]}});
    write_keys(&lab, PUBLIC_KEY).await;
    apply_plugin(&lab, "greeting", spec).await;
    lab.start_host().await;
    wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;
    // The Plugin itself does not change.
    for _ in 0..2 {
        write_keys(&lab, OTHER_KEY).await;
        wait_plugin_condition(&lab, "greeting", "Ready", "False", "InvalidSignature").await;
        assert!(report(&lab, "greeting").stopped);
        write_keys(&lab, PUBLIC_KEY).await;
        wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;
    }
    // A key that can't be read stops nothing, and is shown.
    write_keys(&lab, "no key").await;
    wait_plugin_condition(&lab, "greeting", "Unverified", "True", "InvalidKey").await;
    assert!(!report(&lab, "greeting").stopped);
    lab.delete_plugin("greeting").await;
}

/// Writes a grants file that revokes these digests.
fn write_grants(lab: &Lab, revoked: &[String]) -> Grants {
    let all = json!([{"group": "*", "kinds": ["*"]}]);
    let grants = json!({"plugins": {"greeting": {"reconciles": all,
            "kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply"]}], "events": true}},
        "components": {"revokedDigests": revoked}});
    std::fs::write(lab.path().join("grants.yaml"), grants.to_string()).expect("written");
    Grants::parse(&grants.to_string(), "grants.yaml").expect("grants")
}

#[scenario]
pub(super) async fn file_revoked_while_it_compiles_never_serves(mut lab: Lab) {
    let compiler = HeldCompiler::install(&mut lab);
    compiler.hold();
    lab.settings.grants = write_grants(&lab, &[]);
    lab.settings.grants_file = Some(lab.path().join("grants.yaml"));
    lab.start_host().await;
    lab.install(&["examples/greeting"]);
    lab.wait_until("the compiler runs", async || compiler.is_compiling())
        .await;
    let digest = format!("{:x}", Sha256::digest(read_component("examples/greeting")));
    let is_refused = || lab.host().registry().grants_error().is_some();
    std::fs::write(lab.path().join("grants.yaml"), "no: grants").expect("written");
    lab.wait_until("the grants are refused", async || is_refused())
        .await;
    write_grants(&lab, &[digest]);
    lab.wait_until("the grants have been read", async || !is_refused())
        .await;
    compiler.release();
    lab.wait_until("the file is refused", async || {
        let reports = lab.host().registry().reports();
        reports.iter().any(|report| report.reason == "Revoked")
    })
    .await;
    assert_eq!(lab.host().registry().serving().len(), 0);
    // The revocation is lifted.
    write_grants(&lab, &[]);
    lab.wait_until("the file serves", async || {
        lab.host().registry().is_serving("greeting")
    })
    .await;
}

#[scenario]
pub(super) async fn revocation_applies_without_the_plugin_directory(mut lab: Lab) {
    lab.settings.grants = write_grants(&lab, &[]);
    lab.settings.grants_file = Some(lab.path().join("grants.yaml"));
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    apply_greeting(&lab, "hello").await;
    lab.wait_ready(&greeting_kind(), "hello").await;
    std::fs::rename(&lab.settings.plugins, lab.path().join("elsewhere")).expect("renamed");
    write_grants(&lab, &[report(&lab, "greeting").digest]);
    lab.wait_until("the build is stopped", async || report(&lab, "greeting").stopped)
        .await;
    std::fs::rename(lab.path().join("elsewhere"), &lab.settings.plugins).expect("renamed");
    write_grants(&lab, &[]);
    lab.wait_until("the build serves again", async || {
        !report(&lab, "greeting").stopped
    })
    .await;
    apply_greeting(&lab, "again").await;
    lab.wait_ready(&greeting_kind(), "again").await;
}
