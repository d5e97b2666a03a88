//! Tests of the example against the SDK's in-memory host.

use std::path::Path;

use ostler_sdk::{
    ConditionStatus, Failure, Gvk, ObjectRef, Outcome, Resolution, crd, gvk,
    mock::MockHost,
    serde_json::{Value, json},
};
use stack::{Hooks, StackSpec, Stacks, TEAM_KEY, VERSION_ANNOTATION};

fn stack(spec: Value) -> Value {
    let mut stack = json!({
        "apiVersion": "examples.ostler.dev/v1alpha1",
        "kind": "Stack",
        "metadata": { "name": "shop", "namespace": "n", "uid": "u-1" },
        "spec": { "image": "shop:1" },
    });
    for (field, value) in spec.as_object().expect("an object") {
        stack["spec"][field] = value.clone();
    }
    stack
}

fn deployment() -> ObjectRef {
    gvk("apps", "v1", "Deployment").named("n", "shop")
}

fn stacks(name: &str) -> ObjectRef {
    gvk("examples.ostler.dev", "v1alpha1", "Stack").named("n", name)
}

/// Sets a condition of an object to True, as its controller does.
fn set_true(host: &MockHost, reference: &ObjectRef, condition: &str) {
    let mut object = host.object(reference).expect("it exists");
    object["status"]["conditions"] = json!([{ "type": condition, "status": "True" }]);
    host.put(object);
}

fn reason<'a>(result: &'a Result<Outcome, Failure>, step: &str) -> &'a str {
    let conditions = match result {
        Ok(outcome) => &outcome.conditions,
        Err(failure) => &failure.conditions,
    };
    let condition = conditions.iter().find(|c| c.type_ == step);
    condition.map_or("", |condition| &condition.reason)
}

#[test]
fn stack_is_made_in_order_and_deleted_in_the_reverse_order() {
    let host = MockHost::new();
    let stack = stack(json!({ "host": "shop.example.com", "replicas": 2, "settings": { "A": "1" } }));
    let result = host.reconcile(&Stacks, &stack);
    let made = [
        "apply ConfigMap shop owned",
        "apply Service shop owned",
        "apply Deployment shop owned",
    ];
    let sorted = |mut writes: Vec<String>| {
        writes[1..].sort();
        writes
    };
    assert_eq!(sorted(host.writes()), [made[0], made[2], made[1]]);
    assert_eq!(reason(&result, "DeploymentAvailable"), "Provisioning");
    assert_eq!(reason(&result, "IngressApplied"), "Pending");
    let failure = result.expect_err("is not available");
    assert_eq!(failure.resolution, Resolution::Wait);
    assert_eq!(
        failure.message,
        "DeploymentAvailable: Deployment shop is not Available yet."
    );

    set_true(&host, &deployment(), "Available");
    let outcome = host.reconcile(&Stacks, &stack).expect("is available");
    let provisioned = outcome
        .conditions
        .iter()
        .filter(|c| c.status == ConditionStatus::True);
    assert_eq!(provisioned.count(), 5, "{:?}", outcome.conditions);
    assert_eq!(host.writes()[3..], ["apply Ingress shop owned"]);
    host.forget();
    host.reconcile(&Stacks, &stack).expect("again");
    assert!(host.writes().is_empty(), "nothing changed");

    host.cleanup(&Stacks, &stack).expect("is removed");
    let deleted = host.writes();
    assert_eq!(
        deleted,
        [
            "delete Ingress shop",
            "delete Service shop",
            "delete Deployment shop",
            "delete ConfigMap shop"
        ]
    );
}

#[test]
fn ingress_is_removed_when_the_host_is_unset() {
    let host = MockHost::new();
    host.reconcile(&Stacks, &stack(json!({}))).expect_err("waits");
    set_true(&host, &deployment(), "Available");
    host.reconcile(&Stacks, &stack(json!({ "host": "a.example.com" })))
        .expect("is ready");
    host.forget();
    let result = host.reconcile(&Stacks, &stack(json!({})));
    assert_eq!(host.writes(), ["delete Ingress shop"]);
    assert_eq!(reason(&result, "IngressApplied"), "Deprovisioned");
    result.expect("is ready without it");
}

#[test]
fn foreign_service_is_terminal_beside_a_deployment_that_waits() {
    let host = MockHost::new();
    host.put(
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "shop", "namespace": "n" } }),
    );
    let result = host.reconcile(&Stacks, &stack(json!({})));
    assert_eq!(reason(&result, "DeploymentAvailable"), "Provisioning");
    assert_eq!(reason(&result, "ServiceApplied"), "NotOwned");
    let failure = result.expect_err("fails");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "NotOwned")
    );
}

#[test]
fn used_stacks_are_held_before_all_are_ready() {
    let host = MockHost::new();
    let stack = stack(json!({ "dependsOn": ["a", "b"] }));
    for name in ["a", "b"] {
        host.put(
            json!({ "apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Stack",
            "metadata": { "name": name, "namespace": "n" } }),
        );
    }
    set_true(&host, &stacks("a"), "Ready");
    let result = host.reconcile(&Stacks, &stack);
    assert_eq!(reason(&result, "StacksReady"), "DependencyNotReady");
    assert_eq!(
        host.held(),
        ["Stack n/a", "Stack n/b"],
        "both, though one is not Ready"
    );
    assert!(host.writes().is_empty());
    set_true(&host, &stacks("b"), "Ready");
    host.reconcile(&Stacks, &stack)
        .expect_err("waits for the Deployment");
    assert_eq!(host.held(), ["Stack n/a", "Stack n/b"]);
}

#[test]
fn secret_is_waited_for_and_its_change_restarts_the_pods() {
    let host = MockHost::new();
    let stack = stack(json!({ "secret": { "name": "password", "key": "PASSWORD" } }));
    let result = host.reconcile(&Stacks, &stack);
    assert_eq!(reason(&result, "SecretPresent"), "NotFound");
    assert_eq!(reason(&result, "DeploymentAvailable"), "Pending");
    host.secret("password", "PASSWORD", "digest-1");
    let template = || {
        host.reconcile(&Stacks, &stack).expect_err("waits");
        host.object(&deployment()).expect("applied")["spec"]["template"].clone()
    };
    let first = template();
    let variable = json!({ "name": "PASSWORD",
        "valueFrom": { "secretKeyRef": { "name": "password", "key": "PASSWORD" } } });
    assert_eq!(first["spec"]["containers"][0]["env"], json!([variable]));
    host.secret("password", "PASSWORD", "digest-2");
    assert_ne!(
        template()["metadata"]["annotations"],
        first["metadata"]["annotations"]
    );
}

#[test]
fn holders_are_shown_in_the_status() {
    let host = MockHost::new();
    host.add_holder(&stacks("shop"), stacks("web"));
    let failure = host.reconcile(&Stacks, &stack(json!({}))).expect_err("waits");
    assert_eq!(
        failure.status.as_deref(),
        Some(&br#"{"usedBy":["Stack/web"]}"#[..])
    );
}

/// The original stops with `ErrYield` and comes back after a fixed time.
#[test]
fn yield_is_a_wait() {
    let host = MockHost::new();
    let failure = host.reconcile(&Stacks, &stack(json!({}))).expect_err("waits");
    assert_eq!(failure.resolution, Resolution::Wait);
}

#[test]
fn foreground_deletion_is_waited_for_before_anything_is_deleted() {
    let host = MockHost::new();
    host.reconcile(&Stacks, &stack(json!({}))).expect_err("waits");
    host.forget();
    let mut deleted = stack(json!({}));
    deleted["metadata"]["finalizers"] = json!(["examples.ostler.dev/stack", "foregroundDeletion"]);
    let failure = host.cleanup(&Stacks, &deleted).expect_err("waits");
    assert_eq!(failure.reason, "ForegroundDeletion");
    assert!(host.writes().is_empty());
    deleted["metadata"]["finalizers"] = json!(["examples.ostler.dev/stack"]);
    host.cleanup(&Stacks, &deleted).expect("is removed");
    assert_eq!(host.writes().len(), 3);
}

#[test]
fn chart_is_deployed_by_the_configured_tool_and_uninstalled_when_it_is_unset() {
    let chart =
        json!({ "chart": { "repository": "https://charts.example.com", "name": "redis", "version": "1" } });
    let argo = gvk("argoproj.io", "v1alpha1", "Application");
    let flux = gvk("helm.toolkit.fluxcd.io", "v2", "HelmRelease");
    let table: [(&str, Gvk, Value); 2] = [
        (
            "ArgoCD",
            argo,
            json!({ "sync": { "status": "Synced" }, "health": { "status": "Healthy" } }),
        ),
        (
            "Flux",
            flux,
            json!({ "conditions": [{ "type": "Ready", "status": "True" }] }),
        ),
    ];
    for (driver, kind, ready) in table {
        let host = MockHost::new();
        host.set_config(json!({ "charts": { "driver": driver, "namespace": "tools" } }));
        let result = host.reconcile(&Stacks, &stack(chart.clone()));
        assert_eq!(reason(&result, "ChartDeployed"), "Provisioning", "{driver}");
        assert_eq!(reason(&result, "SettingsApplied"), "Provisioned", "{driver}");
        assert_eq!(reason(&result, "DeploymentAvailable"), "Pending", "{driver}");
        let release = kind.named("tools", "n-shop");
        let mut live = host.object(&release).expect("applied");
        live["status"] = ready;
        host.put(live);
        let result = host.reconcile(&Stacks, &stack(chart.clone()));
        assert_eq!(reason(&result, "ChartDeployed"), "Provisioned", "{driver}");

        let result = host.reconcile(&Stacks, &stack(json!({})));
        if driver == "ArgoCD" {
            assert_eq!(
                reason(&result, "ChartDeployed"),
                "Deprovisioning",
                "its finalizer is there"
            );
            host.remove(&release);
        }
        let result = host.reconcile(&Stacks, &stack(json!({})));
        assert_eq!(reason(&result, "ChartDeployed"), "Deprovisioned", "{driver}");
        assert_eq!(host.object(&release), None);
    }
}

#[test]
fn chart_without_a_configured_tool_is_terminal_and_does_not_block_the_deletion() {
    let host = MockHost::new();
    let chart =
        json!({ "chart": { "repository": "https://charts.example.com", "name": "redis", "version": "1" } });
    let failure = host
        .reconcile(&Stacks, &stack(chart.clone()))
        .expect_err("is refused");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "ChartsNotConfigured")
    );
    let mut deleted = stack(chart);
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    host.cleanup(&Stacks, &deleted).expect("is removed");
}

#[test]
fn stack_is_registered_on_the_cluster_of_the_registry_while_it_is_set() {
    let host = MockHost::new();
    host.set_config(json!({ "registry": { "cluster": "fleet/registry", "namespace": "stacks" } }));
    let registered = stack(json!({ "registered": true }));
    let result = host.reconcile(&Stacks, &registered);
    assert_eq!(
        reason(&result, "Registered"),
        "Pending",
        "it is not available yet"
    );
    set_true(&host, &deployment(), "Available");
    let result = host.reconcile(&Stacks, &registered);
    assert_eq!(reason(&result, "Registered"), "Provisioned");
    let entry = gvk("", "v1", "ConfigMap").named("stacks", "n-shop");
    let entry = entry.on_cluster("fleet/registry");
    let found = host.object(&entry).expect("registered");
    assert_eq!(found["data"], json!({ "image": "shop:1", "host": "shop.n" }));
    let result = host.reconcile(&Stacks, &stack(json!({})));
    assert_eq!(reason(&result, "Registered"), "Deprovisioned");
    assert_eq!(host.object(&entry), None);
}

#[test]
fn registration_without_a_configured_registry_is_terminal_and_does_not_block_the_deletion() {
    let host = MockHost::new();
    let mut stack = stack(json!({ "registered": true }));
    let failure = host.reconcile(&Stacks, &stack).expect_err("is refused");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "RegistryNotConfigured")
    );
    stack["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    host.cleanup(&Stacks, &stack).expect("is removed");
}

#[test]
fn initialize_creates_defaults_and_keeps_edits() {
    let host = MockHost::new();
    host.initialize(&Hooks).expect("has nothing to do");
    assert!(host.writes().is_empty());
    host.set_config(json!({ "defaultsNamespace": "system" }));
    host.initialize(&Hooks).expect("creates them");
    let reference = gvk("", "v1", "ConfigMap").named("system", "stack-defaults");
    let mut defaults = host.object(&reference).expect("created");
    assert_eq!(defaults["data"], json!({ "replicas": "1" }));
    defaults["data"]["replicas"] = "3".into();
    host.put(defaults);
    host.initialize(&Hooks).expect("again");
    host.reconcile(&Stacks, &stack(json!({}))).expect_err("waits");
    assert_eq!(
        host.object(&deployment()).expect("applied")["spec"]["replicas"],
        3
    );
}

/// Of the original: "DO NOT MODIFY THE SPEC EVER … Only things like metadata can be touched".
#[test]
fn upgrade_changes_metadata_only() {
    let host = MockHost::new();
    let mut old = stack(json!({ "host": "shop.example.com" }));
    old["metadata"]["labels"] = json!({ TEAM_KEY: "sales", "other": "1" });
    let upgraded = host.upgrade(&Hooks, &old).expect("succeeds").expect("is changed");
    assert_eq!(upgraded["spec"], old["spec"]);
    assert_eq!(upgraded["metadata"]["labels"], json!({ "other": "1" }));
    assert_eq!(
        upgraded["metadata"]["annotations"],
        json!({ TEAM_KEY: "sales", VERSION_ANNOTATION: "1" })
    );
    assert_eq!(host.upgrade(&Hooks, &upgraded), Ok(None), "once");
}

/// `UPDATE_CRDS=1 cargo test -p stack` writes the file.
#[test]
fn checked_in_crd_matches_generated_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crds/examples");
    crd::compare_files(&folder, &[crd::file::<StackSpec>()]);
}
