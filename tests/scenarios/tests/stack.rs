//! Provisioning by steps, with the example `stack`: order up and down, conditions, restarts, references, pause, hooks.

use std::time::Duration;

use argocd_simulator::ArgoController;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use ostler::testing::{dispatcher::Cause, grants::Grants, key::Gvk};
use ostler_test_harness::{Lab, find_condition, probe::config_map, scenario, workspace_root};
use serde_json::{Value, json};

const MANIFEST: &str = include_str!("../../../plugins/examples/stack/plugin.yaml");
const SAMPLE: &str = include_str!("../../../deploy/examples/stack.yaml");

/// Finalizer with which a test keeps an object.
const KEPT: &str = "tests.ostler.dev/kept";

fn stacks() -> Gvk {
    Gvk::new("examples.ostler.dev", "v1alpha1", "Stack")
}

fn deployments() -> Gvk {
    Gvk::new("apps", "v1", "Deployment")
}

fn services() -> Gvk {
    Gvk::new("", "v1", "Service")
}

fn ingresses() -> Gvk {
    Gvk::new("networking.k8s.io", "v1", "Ingress")
}

fn stack(lab: &Lab, name: &str, spec: Value) -> Value {
    let mut stack = json!({ "apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Stack",
        "metadata": { "name": name, "namespace": lab.namespace }, "spec": { "image": "shop:1" } });
    for (field, value) in spec.as_object().expect("an object") {
        stack["spec"][field] = value.clone();
    }
    stack
}

/// Installs the component with what its manifest requests, and this configuration.
fn prepare(lab: &mut Lab, config: &Value) {
    prepare_as(lab, config, json!({}));
}

/// Does the same with these settings of the reconciles.
fn prepare_as(lab: &mut Lab, config: &Value, reconcile: Value) {
    let manifest: Value = serde_saphyr::from_str(MANIFEST).expect("YAML");
    let mut grants = json!({ "plugins": { "stack": manifest["permissions"] } });
    grants["plugins"]["stack"]["reconcile"] = reconcile;
    lab.settings.grants = Grants::parse(&grants.to_string(), "grants").expect("they parse");
    std::fs::write(lab.settings.plugins.join("stack.yaml"), config.to_string()).expect("written");
    lab.install(&["examples/stack"]);
}

async fn start(lab: &mut Lab) {
    prepare(lab, &json!({}));
    lab.start_host().await;
}

/// Reports a Deployment as available, as its controller does when its Pods are.
async fn make_available(lab: &Lab, name: &str) {
    lab.wait_until("the Deployment is applied", async || {
        lab.get(&deployments(), name).await.is_some()
    })
    .await;
    let deployment = lab.get(&deployments(), name).await.expect("applied");
    let status = json!({ "status": {
        "observedGeneration": deployment["metadata"]["generation"],
        "conditions": [{ "type": "Available", "status": "True", "reason": "MinimumReplicasAvailable",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z" }],
    } });
    lab.api(&deployments(), &lab.namespace)
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .expect("patched");
}

/// Applies a Stack, and waits until it is Ready.
async fn make_ready(lab: &Lab, name: &str, spec: Value) {
    lab.apply(stack(lab, name, spec)).await;
    make_available(lab, name).await;
    lab.wait_ready(&stacks(), name).await;
}

async fn step(lab: &Lab, name: &str, step: &str) -> (String, String) {
    let stack = lab.get(&stacks(), name).await.unwrap_or_default();
    let condition = find_condition(&stack, step);
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

async fn wait_step(lab: &Lab, name: &str, of: &str, status: &str, reason: &str) {
    lab.wait_condition(&stacks(), name, of, status, reason).await;
}

async fn is_deleting(lab: &Lab, kind: &Gvk, name: &str) -> bool {
    let object = lab.get(kind, name).await.unwrap_or_default();
    !object["metadata"]["deletionTimestamp"].is_null()
}

async fn keep(lab: &Lab, kind: &Gvk, name: &str) {
    lab.patch(kind, name, json!({ "metadata": { "finalizers": [KEPT] } }))
        .await;
}

async fn let_go(lab: &Lab, kind: &Gvk, name: &str) {
    assert!(lab.get(kind, name).await.is_some(), "it is kept");
    let api = lab.api(kind, &lab.namespace);
    // The garbage collector removes a finalizer of its own meanwhile, which must not be added again.
    lab.wait_until("the finalizer is removed", async || {
        let Some(object) = lab.get(kind, name).await else {
            return true;
        };
        let metadata = &object["metadata"];
        let mut finalizers = metadata["finalizers"].as_array().cloned().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != KEPT);
        let patch = json!({ "metadata": { "resourceVersion": metadata["resourceVersion"], "finalizers": finalizers } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        api.patch(name, &params, &patch).await.is_ok()
    })
    .await;
}

/// Holders of an object, by the uids in its finalizers.
async fn holders(lab: &Lab, kind: &Gvk, name: &str) -> Vec<String> {
    let object = lab.get(kind, name).await.unwrap_or_default();
    let finalizers = object["metadata"]["finalizers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let uid = |finalizer: &Value| {
        Some(
            finalizer
                .as_str()?
                .strip_prefix("held-by.ostler.dev/")?
                .to_owned(),
        )
    };
    finalizers.iter().filter_map(uid).collect()
}

async fn uid(lab: &Lab, kind: &Gvk, name: &str) -> String {
    let object = lab.get(kind, name).await.expect("it exists");
    object["metadata"]["uid"].as_str().expect("a uid").to_owned()
}

#[scenario(real = "finalizers and garbage collection")]
async fn stack_is_made_in_order_and_deleted_in_the_reverse_order(mut lab: Lab) {
    start(&mut lab).await;
    let local = SAMPLE.replace(
        "metadata: {",
        &format!("metadata: {{namespace: {}, ", lab.namespace),
    );
    lab.apply_yaml(&local).await;
    wait_step(&lab, "shop", "DeploymentAvailable", "False", "Provisioning").await;
    assert_eq!(
        step(&lab, "shop", "SettingsApplied").await,
        ("True".into(), "Provisioned".into())
    );
    assert_eq!(
        step(&lab, "shop", "SecretPresent").await,
        ("True".into(), "Provisioned".into())
    );
    assert_eq!(
        step(&lab, "shop", "ServiceApplied").await,
        ("True".into(), "Provisioned".into())
    );
    assert_eq!(
        step(&lab, "shop", "IngressApplied").await,
        ("Unknown".into(), "Pending".into())
    );
    assert_eq!(lab.get(&ingresses(), "shop").await, None);
    make_available(&lab, "shop").await;
    let ready = lab.wait_ready(&stacks(), "shop").await;
    assert_eq!(ready["status"]["phase"], "Ready");
    for condition in ready["status"]["conditions"].as_array().expect("conditions") {
        assert_eq!(
            condition["observedGeneration"], ready["metadata"]["generation"],
            "{condition}"
        );
    }
    // A second reconcile writes nothing.
    lab.wait_idle().await;
    let writes = lab.api_writes();
    let again = json!({ "metadata": { "annotations": { "ostler.dev/reconcile-now": "1" } } });
    lab.patch(&stacks(), "shop", again).await;
    lab.wait_until("it was reconciled", async || {
        lab.wake_causes(&stacks(), "shop").contains(&Cause::Manual)
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(lab.api_writes(), writes);

    let down = [ingresses(), services(), deployments(), config_map()];
    for kind in &down {
        keep(&lab, kind, "shop").await;
    }
    lab.wait_idle().await;
    lab.delete(&stacks(), "shop").await;
    // The Service and the Deployment are one concurrent step.
    for (now, later) in [
        (&down[..1], &down[1..]),
        (&down[1..3], &down[3..]),
        (&down[3..], &[]),
    ] {
        for kind in now {
            lab.wait_until(&format!("the {} is deleted", kind.kind), async || {
                is_deleting(&lab, kind, "shop").await
            })
            .await;
        }
        lab.wait_idle().await;
        for kind in later {
            assert!(
                !is_deleting(&lab, kind, "shop").await,
                "{} is deleted early",
                kind.kind
            );
        }
        for kind in now {
            let_go(&lab, kind, "shop").await;
        }
    }
    lab.wait_gone(&stacks(), "shop").await;
    for kind in &down {
        assert_eq!(lab.get(kind, "shop").await, None);
    }
}

#[scenario]
async fn step_that_is_switched_off_is_removed(mut lab: Lab) {
    start(&mut lab).await;
    make_ready(&lab, "shop", json!({ "host": "shop.example.com" })).await;
    assert!(lab.get(&ingresses(), "shop").await.is_some());
    lab.patch(&stacks(), "shop", json!({ "spec": { "host": null } }))
        .await;
    wait_step(&lab, "shop", "IngressApplied", "False", "Deprovisioned").await;
    lab.wait_ready(&stacks(), "shop").await;
    assert_eq!(lab.get(&ingresses(), "shop").await, None);
    // On again, while the former Ingress is still going: it is made anew after that.
    lab.patch(&stacks(), "shop", json!({ "spec": { "host": "a.example.com" } }))
        .await;
    wait_step(&lab, "shop", "IngressApplied", "True", "Provisioned").await;
    let former = uid(&lab, &ingresses(), "shop").await;
    keep(&lab, &ingresses(), "shop").await;
    lab.patch(&stacks(), "shop", json!({ "spec": { "host": null } }))
        .await;
    wait_step(&lab, "shop", "IngressApplied", "False", "Deprovisioning").await;
    lab.patch(&stacks(), "shop", json!({ "spec": { "host": "b.example.com" } }))
        .await;
    wait_step(&lab, "shop", "IngressApplied", "False", "Deprovisioning").await;
    let_go(&lab, &ingresses(), "shop").await;
    wait_step(&lab, "shop", "IngressApplied", "True", "Provisioned").await;
    let ingress = lab.get(&ingresses(), "shop").await.expect("made anew");
    assert_ne!(ingress["metadata"]["uid"], former);
    assert_eq!(ingress["spec"]["rules"][0]["host"], "b.example.com");
}

#[scenario]
async fn terminal_error_is_shown_beside_a_wait(mut lab: Lab) {
    start(&mut lab).await;
    lab.apply(json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "shop", "namespace": lab.namespace },
        "spec": { "ports": [{ "port": 81 }] } }))
        .await;
    lab.apply(stack(&lab, "shop", json!({}))).await;
    let stalled = lab
        .wait_condition(&stacks(), "shop", "Stalled", "True", "NotOwned")
        .await;
    let message = find_condition(&stalled, "Ready")["message"].to_string();
    assert!(
        message.contains("ServiceApplied: Service shop belongs to another owner"),
        "{message}"
    );
    assert_eq!(
        step(&lab, "shop", "DeploymentAvailable").await,
        ("False".into(), "Provisioning".into())
    );
    // What waits goes on beside the error, and the error is looked at again when its cause is gone.
    make_available(&lab, "shop").await;
    wait_step(&lab, "shop", "DeploymentAvailable", "True", "Provisioned").await;
    assert_eq!(
        step(&lab, "shop", "ServiceApplied").await,
        ("False".into(), "NotOwned".into())
    );
    let service = lab.get(&services(), "shop").await.expect("it is left alone");
    assert_eq!(service["spec"]["ports"][0]["port"], 81);
    lab.delete(&services(), "shop").await;
    lab.wait_ready(&stacks(), "shop").await;
}

#[scenario]
async fn restart_in_the_middle_continues_in_both_directions(mut lab: Lab) {
    start(&mut lab).await;
    lab.apply(stack(&lab, "shop", json!({ "host": "shop.example.com" })))
        .await;
    wait_step(&lab, "shop", "DeploymentAvailable", "False", "Provisioning").await;
    lab.wait_idle().await;
    lab.host = None;
    make_available(&lab, "shop").await;
    let before = [
        lab.get(&config_map(), "shop").await,
        lab.get(&deployments(), "shop").await,
    ];
    lab.start_host().await;
    lab.wait_ready(&stacks(), "shop").await;
    assert!(lab.get(&ingresses(), "shop").await.is_some());
    let after = [
        lab.get(&config_map(), "shop").await,
        lab.get(&deployments(), "shop").await,
    ];
    assert_eq!(before, after, "what was there is not written again");

    for kind in [ingresses(), deployments()] {
        keep(&lab, &kind, "shop").await;
    }
    lab.delete(&stacks(), "shop").await;
    wait_step(&lab, "shop", "IngressApplied", "False", "Deprovisioning").await;
    lab.host = None;
    let_go(&lab, &ingresses(), "shop").await;
    lab.wait_gone(&ingresses(), "shop").await;
    assert!(!is_deleting(&lab, &deployments(), "shop").await);
    lab.start_host().await;
    wait_step(&lab, "shop", "DeploymentAvailable", "False", "Deprovisioning").await;
    lab.host = None;
    let_go(&lab, &deployments(), "shop").await;
    lab.start_host().await;
    lab.wait_gone(&stacks(), "shop").await;
    for kind in [ingresses(), services(), deployments(), config_map()] {
        assert_eq!(lab.get(&kind, "shop").await, None, "{kind}");
    }
}

#[scenario]
async fn pause_stops_provisioning_and_not_the_deletion(mut lab: Lab) {
    start(&mut lab).await;
    make_ready(&lab, "shop", json!({})).await;
    let image = async || {
        let deployment = lab.get(&deployments(), "shop").await.expect("applied");
        deployment["spec"]["template"]["spec"]["containers"][0]["image"].clone()
    };
    let pause = |value: Value| json!({ "metadata": { "annotations": { "ostler.dev/paused": value } } });
    lab.patch(&stacks(), "shop", pause(json!("true"))).await;
    lab.wait_until("it is paused", async || {
        step(&lab, "shop", "Paused").await.0 == "True"
    })
    .await;
    lab.patch(&stacks(), "shop", json!({ "spec": { "image": "shop:2" } }))
        .await;
    lab.wait_until("the host has seen the change", async || {
        let stack = lab.get(&stacks(), "shop").await.expect("it exists");
        find_condition(&stack, "Paused")["observedGeneration"] == stack["metadata"]["generation"]
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(image().await, "shop:1");
    lab.patch(&stacks(), "shop", pause(Value::Null)).await;
    lab.wait_until("the change is followed", async || image().await == "shop:2")
        .await;
    lab.patch(&stacks(), "shop", pause(json!("true"))).await;
    lab.wait_until("it is paused", async || {
        step(&lab, "shop", "Paused").await.0 == "True"
    })
    .await;
    lab.delete(&stacks(), "shop").await;
    lab.wait_gone(&stacks(), "shop").await;
    assert_eq!(lab.get(&deployments(), "shop").await, None);
}

#[scenario(real = "finalizers and garbage collection")]
async fn references_are_finalizers_on_the_referenced_object(mut lab: Lab) {
    start(&mut lab).await;
    lab.apply(stack(&lab, "web", json!({ "dependsOn": ["db"] })))
        .await;
    wait_step(&lab, "web", "StacksReady", "False", "NotFound").await;
    assert_eq!(
        lab.get(&config_map(), "web").await,
        None,
        "the next step is not reached"
    );
    lab.apply(stack(&lab, "db", json!({}))).await;
    wait_step(&lab, "web", "StacksReady", "False", "DependencyNotReady").await;
    make_available(&lab, "db").await;
    make_available(&lab, "web").await;
    for name in ["db", "web"] {
        lab.wait_ready(&stacks(), name).await;
    }
    assert_eq!(
        holders(&lab, &stacks(), "db").await,
        [uid(&lab, &stacks(), "web").await]
    );
    lab.wait_until("the holder is in the status", async || {
        let db = lab.get(&stacks(), "db").await.expect("it exists");
        db["status"]["usedBy"] == json!(["Stack/web"])
    })
    .await;

    // Deleted first, it goes last, and is whole until then.
    lab.delete(&stacks(), "db").await;
    lab.wait_condition(&stacks(), "db", "DeletionBlocked", "True", "Held")
        .await;
    keep(&lab, &deployments(), "web").await;
    lab.delete(&stacks(), "web").await;
    wait_step(&lab, "web", "DeploymentAvailable", "False", "Deprovisioning").await;
    lab.wait_idle().await;
    assert!(!is_deleting(&lab, &deployments(), "db").await);
    let_go(&lab, &deployments(), "web").await;
    for name in ["web", "db"] {
        lab.wait_gone(&stacks(), name).await;
    }
    assert_eq!(lab.get(&deployments(), "db").await, None);
}

#[scenario]
async fn reference_is_added_and_removed_by_uid(mut lab: Lab) {
    start(&mut lab).await;
    make_ready(&lab, "db", json!({})).await;
    make_ready(&lab, "web", json!({ "dependsOn": ["db"] })).await;
    let first = uid(&lab, &stacks(), "web").await;
    assert_eq!(holders(&lab, &stacks(), "db").await, std::slice::from_ref(&first));
    lab.delete(&stacks(), "web").await;
    lab.wait_gone(&stacks(), "web").await;
    // An object of the same name is another holder.
    make_ready(&lab, "web", json!({ "dependsOn": ["db"] })).await;
    let second = uid(&lab, &stacks(), "web").await;
    assert_ne!(first, second);
    lab.wait_until("only the new one holds", async || {
        holders(&lab, &stacks(), "db").await == [second.clone()]
    })
    .await;
    lab.patch(&stacks(), "web", json!({ "spec": { "dependsOn": [] } }))
        .await;
    lab.wait_until("nothing holds it", async || {
        holders(&lab, &stacks(), "db").await.is_empty()
    })
    .await;
    lab.delete(&stacks(), "db").await;
    lab.wait_gone(&stacks(), "db").await;
    assert!(lab.get(&stacks(), "web").await.is_some());
}

#[scenario]
async fn upgrade_touches_metadata_only(mut lab: Lab) {
    prepare(&mut lab, &json!({}));
    let mut old = stack(&lab, "shop", json!({ "host": "shop.example.com" }));
    old["metadata"]["labels"] = json!({ "examples.ostler.dev/team": "sales", "other": "1" });
    let stored = lab.apply(old).await;
    lab.start_host().await;
    wait_step(&lab, "shop", "DeploymentAvailable", "False", "Provisioning").await;
    let upgraded = lab.get(&stacks(), "shop").await.expect("it exists");
    let metadata = &upgraded["metadata"];
    assert_eq!(metadata["annotations"]["examples.ostler.dev/team"], "sales");
    assert_eq!(metadata["annotations"]["examples.ostler.dev/stack-version"], "1");
    assert_eq!(metadata["labels"], json!({ "other": "1" }));
    assert_eq!(metadata["generation"], 1);
    assert_eq!(upgraded["spec"], stored["spec"]);
}

#[scenario]
async fn initialize_creates_defaults_that_stacks_follow(mut lab: Lab) {
    let config = json!({ "defaultsNamespace": lab.namespace });
    prepare(&mut lab, &config);
    lab.start_host().await;
    make_ready(&lab, "shop", json!({})).await;
    assert_eq!(replicas(&lab).await, 1);
    let edit = json!({ "data": { "replicas": "3" } });
    lab.patch(&config_map(), "stack-defaults", edit).await;
    lab.wait_until("the Stack follows", async || replicas(&lab).await == 3)
        .await;
    // Another term of the leader does not overwrite the edit.
    lab.wait_idle().await;
    lab.host = None;
    lab.start_host().await;
    lab.wait_until("it is reconciled again", async || {
        !lab.wake_causes(&stacks(), "shop").is_empty()
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(replicas(&lab).await, 3);
}

async fn replicas(lab: &Lab) -> Value {
    let deployment = lab.get(&deployments(), "shop").await.expect("applied");
    deployment["spec"]["replicas"].clone()
}

#[scenario]
async fn yield_comes_back_at_the_interval_of_the_plugin(mut lab: Lab) {
    prepare_as(&mut lab, &json!({}), json!({ "waitInterval": "100ms" }));
    // That of the host would not pass in this test.
    lab.settings.wait_interval = Duration::from_hours(1);
    lab.start_host().await;
    lab.apply(stack(&lab, "shop", json!({}))).await;
    lab.wait_until("it has come back twice", async || {
        let causes = lab.wake_causes(&stacks(), "shop");
        causes.iter().filter(|cause| **cause == Cause::Retry).count() >= 2
    })
    .await;
    let stack = lab.get(&stacks(), "shop").await.expect("it exists");
    assert_eq!(find_condition(&stack, "Reconciling")["reason"], "Provisioning");
    // A change comes first.
    make_available(&lab, "shop").await;
    lab.wait_ready(&stacks(), "shop").await;
}

/// Deletes a Stack as `kubectl delete --cascade=foreground` does.
async fn delete_in_foreground(lab: &Lab, name: &str) {
    let options = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    let stacks = lab.api(&stacks(), &lab.namespace);
    stacks.delete(name, &options).await.expect("accepted");
}

/// Waits until the garbage collector carries out foreground deletions of Stacks. It learns of a new kind within 30 s, and
/// may never finish one that was deleted at that moment.
async fn wait_for_garbage_collector(lab: &Lab) {
    let kind = stacks();
    for attempt in 0..10 {
        let name = format!("first-{attempt}");
        let owner = lab.apply(stack(lab, &name, json!({}))).await;
        lab.apply(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": lab.namespace,
            "ownerReferences": [{ "apiVersion": owner["apiVersion"], "kind": "Stack", "name": name,
                "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true }] } }))
            .await;
        delete_in_foreground(lab, &name).await;
        let gone = lab.wait_gone(&kind, &name);
        if tokio::time::timeout(Duration::from_secs(10), gone).await.is_ok() {
            return;
        }
        lab.patch(&kind, &name, json!({ "metadata": { "finalizers": null } }))
            .await;
    }
    panic!("the garbage collector carries out no foreground deletion");
}

#[scenario(real = "finalizers and garbage collection")]
async fn foreground_deletion_is_waited_for(mut lab: Lab) {
    prepare_as(&mut lab, &json!({}), json!({ "waitInterval": "100ms" }));
    wait_for_garbage_collector(&lab).await;
    lab.start_host().await;
    make_ready(&lab, "shop", json!({ "host": "shop.example.com" })).await;
    lab.wait_idle().await;
    keep(&lab, &ingresses(), "shop").await;
    delete_in_foreground(&lab, "shop").await;
    lab.wait_condition(&stacks(), "shop", "Ready", "False", "ForegroundDeletion")
        .await;
    for kind in [services(), deployments(), config_map()] {
        lab.wait_gone(&kind, "shop").await;
    }
    let_go(&lab, &ingresses(), "shop").await;
    lab.wait_gone(&stacks(), "shop").await;
}

#[scenario]
async fn chart_is_deployed_and_uninstalled_by_argo_cd(mut lab: Lab) {
    for name in ["applications", "appprojects"] {
        let path = workspace_root().join(format!("tests/argocd/crds/{name}.yaml"));
        lab.apply_yaml(&std::fs::read_to_string(path).expect("a CRD"))
            .await;
    }
    let argo = |kind: &str| Gvk::new("argoproj.io", "v1alpha1", kind);
    let applications = argo("Application");
    lab.wait_until("the kinds of Argo CD are served", async || {
        let api = lab.api(&applications, &lab.namespace);
        api.list(&ListParams::default()).await.is_ok()
    })
    .await;
    lab.apply(
        json!({ "apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject",
        "metadata": { "name": "default", "namespace": lab.namespace }, "spec": {} }),
    )
    .await;
    let _controller = ArgoController::start(lab.client.clone(), &lab.namespace);
    let charts = json!({ "driver": "ArgoCD", "namespace": lab.namespace });
    prepare(&mut lab, &json!({ "charts": charts }));
    lab.start_host().await;
    let chart = json!({ "repository": "https://charts.example.com", "name": "redis", "version": "1.2.3" });
    lab.apply(stack(&lab, "shop", json!({ "chart": chart }))).await;
    wait_step(&lab, "shop", "ChartDeployed", "False", "Provisioning").await;
    assert_eq!(
        step(&lab, "shop", "DeploymentAvailable").await,
        ("Unknown".into(), "Pending".into())
    );
    // The simulator does not sync by itself.
    let name = format!("{}-shop", lab.namespace);
    lab.patch(&applications, &name, json!({ "operation": { "sync": {} } }))
        .await;
    wait_step(&lab, "shop", "ChartDeployed", "True", "Provisioned").await;
    make_available(&lab, "shop").await;
    lab.wait_ready(&stacks(), "shop").await;
    // Switched off: Argo CD deletes what it has deployed, and then lets go of the Application.
    lab.patch(&stacks(), "shop", json!({ "spec": { "chart": null } }))
        .await;
    wait_step(&lab, "shop", "ChartDeployed", "False", "Deprovisioned").await;
    assert_eq!(lab.get(&applications, &name).await, None);
    lab.wait_ready(&stacks(), "shop").await;
}
