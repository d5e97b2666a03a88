//! The example of provisioning in four languages: order up and down, conditions, holds, objects of another owner.

use kube::api::{Patch, PatchParams};
use ostler::testing::{dispatcher::Cause, grants::Grants, key::Gvk};
use ostler_test_harness::{Lab, find_condition, probe::config_map, workspace_root};
use serde_json::{Value, json};

/// Finalizer with which a test keeps an object.
const KEPT: &str = "tests.ostler.dev/kept";

fn sites() -> Gvk {
    Gvk::new("examples.ostler.dev", "v1alpha1", "Site")
}

fn services() -> Gvk {
    Gvk::new("", "v1", "Service")
}

async fn apply_site(lab: &Lab, name: &str, spec: Value) {
    lab.apply(
        json!({ "apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Site",
        "metadata": { "name": name, "namespace": lab.namespace }, "spec": spec }),
    )
    .await;
}

/// Steps with the status and reason of their conditions.
async fn list_steps(lab: &Lab, name: &str) -> [[String; 3]; 3] {
    let site = lab.get(&sites(), name).await.unwrap_or_default();
    ["SiteReady", "TextApplied", "ServiceApplied"].map(|step| {
        let condition = find_condition(&site, step);
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        [step.to_owned(), text("status"), text("reason")]
    })
}

async fn wait_steps(lab: &Lab, name: &str, expected: [[&str; 3]; 3]) {
    lab.wait_until(&format!("the steps of {name} are {expected:?}"), async || {
        list_steps(lab, name).await == expected
    })
    .await;
}

async fn release(lab: &Lab, kind: &Gvk, name: &str) {
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

/// Starts a host with a plugin and what its manifest requests.
async fn start(plugin: &str, lab: &mut Lab) {
    let path = workspace_root()
        .join("plugins/examples")
        .join(plugin)
        .join("plugin.yaml");
    let manifest = std::fs::read_to_string(path).expect("the manifest");
    let manifest: Value = serde_saphyr::from_str(&manifest).expect("YAML");
    let grants = json!({ "plugins": { plugin: manifest["permissions"] } });
    lab.settings.grants = Grants::parse(&grants.to_string(), "grants").expect("they parse");
    lab.install(&[&format!("examples/{plugin}")]);
    lab.start_host().await;
}

/// Checks what is observable of the example.
pub async fn check_site(plugin: &str, mut lab: Lab) {
    start(plugin, &mut lab).await;
    check_provisioning(&lab).await;
    check_foreign_object(&lab).await;
    check_deprovisioning(&lab).await;
    let stats = lab.host().stats().all_objects();
    let errors = stats.iter().flat_map(|facts| &facts.errors);
    let traps: Vec<_> = errors.filter(|e| e.reason.starts_with("Plugin")).collect();
    assert!(traps.is_empty(), "{traps:?}");
}

/// A site that waits for another, is provisioned in order, and is public and no longer public.
async fn check_provisioning(lab: &Lab) {
    apply_site(
        lab,
        "web",
        json!({ "text": "Grüße", "public": true, "after": "base" }),
    )
    .await;
    let waiting = [
        ["SiteReady", "False", "NotFound"],
        ["TextApplied", "Unknown", "Pending"],
        ["ServiceApplied", "Unknown", "Pending"],
    ];
    wait_steps(lab, "web", waiting).await;
    assert_eq!(lab.get(&config_map(), "web").await, None);

    apply_site(lab, "base", json!({ "text": "Base" })).await;
    let private = [
        ["SiteReady", "False", "Deprovisioned"],
        ["TextApplied", "True", "Provisioned"],
        ["ServiceApplied", "False", "Deprovisioned"],
    ];
    wait_steps(lab, "base", private).await;
    let public = ["SiteReady", "TextApplied", "ServiceApplied"].map(|step| [step, "True", "Provisioned"]);
    wait_steps(lab, "web", public).await;
    let web = lab.wait_ready(&sites(), "web").await;
    let text = lab.get(&config_map(), "web").await.expect("applied");
    assert_eq!(text["data"]["text"], "Grüße");
    for object in [text, lab.get(&services(), "web").await.expect("applied")] {
        let owner = &object["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], web["metadata"]["uid"], "{object}");
    }
    let base = lab.get(&sites(), "base").await.expect("it exists");
    let hold = format!(
        "held-by.ostler.dev/{}",
        web["metadata"]["uid"].as_str().expect("a uid")
    );
    let finalizers = base["metadata"]["finalizers"].as_array().expect("finalizers");
    assert!(finalizers.contains(&json!(hold)), "{base}");

    // A second reconcile writes nothing.
    lab.wait_idle().await;
    let writes = lab.api_writes();
    let again = json!({ "metadata": { "annotations": { "ostler.dev/reconcile-now": "1" } } });
    lab.patch(&sites(), "web", again).await;
    lab.wait_until("it was reconciled", async || {
        lab.wake_causes(&sites(), "web").contains(&Cause::Manual)
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(lab.api_writes(), writes);

    lab.patch(&sites(), "web", json!({ "spec": { "public": false } }))
        .await;
    wait_steps(lab, "web", [public[0], public[1], private[2]]).await;
    assert_eq!(lab.get(&services(), "web").await, None);
    lab.patch(&sites(), "web", json!({ "spec": { "public": true } }))
        .await;
    wait_steps(lab, "web", public).await;
}

/// A ConfigMap that does not belong to the site of its name is neither changed nor deleted.
async fn check_foreign_object(lab: &Lab) {
    let foreign = lab
        .apply(json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "taken", "namespace": lab.namespace }, "data": { "text": "foreign" } }))
        .await;
    apply_site(lab, "taken", json!({ "text": "Taken" })).await;
    let stalled = lab
        .wait_condition(&sites(), "taken", "Stalled", "True", "NotOwned")
        .await;
    assert_eq!(
        find_condition(&stalled, "Ready")["message"],
        "TextApplied: ConfigMap taken belongs to another owner. Delete it, or give this one another name."
    );
    lab.delete(&sites(), "taken").await;
    lab.wait_gone(&sites(), "taken").await;
    let left = lab.get(&config_map(), "taken").await.expect("it is left alone");
    assert_eq!(
        left["metadata"]["resourceVersion"],
        foreign["metadata"]["resourceVersion"]
    );
}

/// The Service is gone before the ConfigMap is deleted, and the hold ends with its holder.
async fn check_deprovisioning(lab: &Lab) {
    lab.patch(
        &services(),
        "web",
        json!({ "metadata": { "finalizers": [KEPT] } }),
    )
    .await;
    lab.wait_idle().await;
    lab.delete(&sites(), "web").await;
    let waiting = [
        ["SiteReady", "Unknown", "Pending"],
        ["TextApplied", "Unknown", "Pending"],
        ["ServiceApplied", "False", "Deprovisioning"],
    ];
    wait_steps(lab, "web", waiting).await;
    lab.wait_idle().await;
    let text = lab.get(&config_map(), "web").await.expect("it is kept");
    assert_eq!(text["metadata"]["deletionTimestamp"], Value::Null);
    release(lab, &services(), "web").await;
    lab.wait_gone(&sites(), "web").await;
    assert_eq!(lab.get(&config_map(), "web").await, None);
    assert_eq!(lab.get(&services(), "web").await, None);
    lab.delete(&sites(), "base").await;
    lab.wait_gone(&sites(), "base").await;
}
