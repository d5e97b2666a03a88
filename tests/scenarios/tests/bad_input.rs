//! Invalid input is refused with the name of the invalid field or file, and other objects are not affected.

use ostler::testing::plugin::LoadState;
use ostler_test_harness::{Lab, concourse::kind, greeting_kind, scenario};
use serde_json::json;
use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
use wit_parser::{ManglingAndAbi, Resolve};

#[scenario(real = "CRDs: changes and validation")]
async fn malformed_objects_are_rejected_by_field(lab: Lab) {
    let with = |mut object: serde_json::Value, pointer: &str, value: serde_json::Value| {
        match value {
            serde_json::Value::Null => drop(object["spec"].as_object_mut().expect("a spec").remove(pointer)),
            value => object["spec"][pointer] = value,
        }
        object
    };
    for (object, field) in [
        (
            with(lab.instance_object(), "url", json!("ftp://nowhere")),
            "spec.url",
        ),
        (with(lab.instance_object(), "url", json!(null)), "spec.url"),
        (with(lab.instance_object(), "auth", json!({})), "spec.auth"),
        (
            with(lab.team_object(), "roles", json!([{"role": "emperor"}])),
            "spec.roles[0].role",
        ),
        (
            with(lab.team_object(), "teamName", json!("-no-")),
            "spec.teamName",
        ),
        (
            with(
                lab.pipeline_object(),
                "config",
                json!({"inline": "a", "configMapRef": {"name": "b", "key": "c"}}),
            ),
            "spec.config",
        ),
        (
            with(lab.pipeline_object(), "teamRef", json!(null)),
            "spec.teamRef",
        ),
        (with(lab.pipeline_object(), "paused", json!("yes")), "spec.paused"),
    ] {
        let refused = lab.try_apply(object).await.expect_err(field).to_string();
        assert!(
            refused.contains(field.trim_start_matches("spec")),
            "{field}: {refused}"
        );
    }
    lab.apply(lab.team_object()).await;
    let moved = with(lab.team_object(), "instanceRef", json!({"name": "other"}));
    let refused = lab.try_apply(moved).await.expect_err("immutable").to_string();
    assert!(refused.contains("instanceRef is immutable"), "{refused}");
}

/// A component of a WIT world other than that of plugins.
fn of_another_world() -> Vec<u8> {
    let mut resolve = Resolve::default();
    let wit = "package other:thing@1.0.0; world thing { export run: func() -> u32; }";
    let package = resolve.push_source("thing.wit", wit).expect("parses");
    let world = resolve.packages[package].worlds["thing"];
    let mut module = dummy_module(&resolve, world, ManglingAndAbi::Standard32);
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("embedded");
    ComponentEncoder::default()
        .module(&module)
        .expect("a module")
        .encode()
        .expect("a component")
}

#[scenario]
async fn unusable_components_are_refused_with_the_cause(mut lab: Lab) {
    lab.install(&["examples/greeting"]);
    lab.install_bytes("other", &of_another_world());
    lab.install_bytes("module", b"\0asm\x01\0\0\0");
    let wasm = ostler_test_harness::read_component("examples/greeting");
    lab.install_bytes("truncated", &wasm[..wasm.len() - 100]);
    lab.install_bytes("twice", &wasm);
    lab.start_host().await;
    let reports = lab.host().registry().reports();
    for (file, words) in [
        ("other.wasm", "a plugin exports ostler:plugin/reconciler@0.1.0"),
        ("module.wasm", "a core module, not a component"),
        ("truncated.wasm", "broken or cut off"),
        ("twice.wasm", "twice.wasm declares the name greeting"),
    ] {
        let report = reports.iter().find(|r| r.file == file).expect(file);
        assert_eq!(report.state, LoadState::Failed);
        assert!(report.message.contains(words), "{file}: {}", report.message);
    }
    lab.apply(
        json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": "hello", "namespace": lab.namespace}, "spec": {"name": "world"}}),
    )
    .await;
    lab.wait_ready(&greeting_kind(), "hello").await;
}

#[scenario]
async fn invalid_configuration_is_reported_until_fixed(mut lab: Lab) {
    std::fs::write(lab.settings.plugins.join("greeting.yaml"), "a: [1, 2").expect("written");
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let report = lab.host().registry().reports()[0].clone();
    assert_eq!(report.state, LoadState::Failed);
    assert!(report.message.contains("configuration"), "{}", report.message);
    std::fs::write(lab.settings.plugins.join("greeting.yaml"), "a: [1, 2]").expect("written");
    lab.wait_until("the fixed configuration is loaded", async || {
        lab.host().registry().reports()[0].state == LoadState::Serving
    })
    .await;
    let error = ostler::testing::grants::Grants::parse("plugins: {x: {events: perhaps}}", "grants.yaml")
        .expect_err("refused");
    assert!(
        error.contains("grants.yaml") && error.contains("events"),
        "{error}"
    );
    // An invalid pipeline config is reported by the Pipeline itself.
    let pipeline = kind("Pipeline");
    assert_eq!(&*pipeline.kind, "Pipeline");
}
