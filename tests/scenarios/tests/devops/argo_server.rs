//! ArgoSetting and the sync of a DeploymentRecord by the API of an Argo CD: that of the simulator or, in the tier `argocd`, the real
//! one.

use std::sync::{Arc, Mutex};

use devops_simulators::{FaultAction, git::GIT_PASSWORD};
use ostler_test_harness::{Lab, captured_logs, scenario};
use serde_json::{Value, json};

use super::{
    argo::{COMPONENTS, deployment},
    argo_cd::{ArgoCdRest, REVISION},
    gate::{EffectStep, Gate},
    kind, object, secret, start,
};

const APPLICATION: &str = "/api/v1/applications/web?project=shop";
const PROJECT: &str = "/api/v1/projects/shop";

async fn apply_setting(lab: &Lab, argo: &ArgoCdRest, lifetime: &str) {
    let spec = json!({
        "server": { "url": argo.api.url(), "tokenRef": { "name": "argo", "key": "value" } },
        "projects": [{ "name": "shop", "destinations": [{ "namespace": lab.namespace }] }],
        "repositories": [argo.repository()],
        "applications": [{ "name": "web", "project": "shop", "lifetime": lifetime,
            "source": { "repoURL": argo.repository_url(), "path": "web", "revision": REVISION } }],
    });
    for object in [
        secret(lab, "argo", argo.api.token()),
        secret(lab, "git", GIT_PASSWORD),
        object(lab, "ArgoSetting", "shop", spec),
    ] {
        lab.apply(object).await;
    }
}

/// With the simulator the cluster has none of Argo CD's custom resources.
async fn start_with_settle(lab: &mut Lab) {
    let config = lab.settings.plugins.join("devops-deployment.yaml");
    std::fs::write(config, "settle: 1s\n").expect("written");
    start(lab, &COMPONENTS).await;
}

/// Waits until a condition holds, and has both objects reconciled meanwhile.
async fn wait_polling<F: Future<Output = bool>>(lab: &Lab, description: &str, holds: impl FnMut() -> F) {
    let objects = [("ArgoSetting", "shop"), ("DeploymentRecord", "d-1")];
    let objects = objects.map(|(kind_name, name)| lab.key(&kind(kind_name), name));
    lab.wait_polling(&objects, description, holds).await;
}

async fn state(lab: &Lab) -> Value {
    let record = lab.get(&kind("DeploymentRecord"), "d-1").await;
    record.unwrap_or_default()["status"]["state"].clone()
}

async fn is_there(argo: &ArgoCdRest, path: &str) -> bool {
    argo.api.send("GET", path, &Value::Null).await.0 == 200
}

#[scenario(argocd)]
async fn setting_with_a_server_is_followed_and_deleted_in_order(mut lab: Lab) {
    let argo = ArgoCdRest::start(&lab).await;
    start_with_settle(&mut lab).await;
    apply_setting(&lab, &argo, "Permanent").await;
    wait_polling(&lab, "the setting is Ready", async || {
        let setting = lab.get(&kind("ArgoSetting"), "shop").await.unwrap_or_default();
        ostler_test_harness::find_condition(&setting, "Ready")["status"] == "True"
    })
    .await;
    let project = json!({ "name": "shop", "description": "edited",
        "destinations": [{ "namespace": lab.namespace }] });
    let repositories = [argo.repository(), argo.other_repository()];
    let patch = json!({ "spec": { "projects": [project], "repositories": repositories } });
    lab.patch(&kind("ArgoSetting"), "shop", patch).await;
    lab.wait_until("the edit is followed", async || {
        let project = argo.api.send("GET", PROJECT, &Value::Null).await.1;
        project["spec"]["description"] == "edited"
            && project["spec"]["sourceRepos"]
                .as_array()
                .is_some_and(|urls| urls.len() == 2)
    })
    .await;

    // A sync whose hook never ends, which would block the deletion.
    argo.hold_syncs();
    let sync = json!({ "project": "shop" });
    let (status, answer) = argo
        .api
        .send("POST", "/api/v1/applications/web/sync", &sync)
        .await;
    assert_eq!(status, 200, "{answer}");
    lab.wait_until("the sync runs", async || {
        let live = argo.api.send("GET", APPLICATION, &Value::Null).await.1;
        live["status"]["operationState"]["phase"] == "Running"
    })
    .await;
    lab.delete(&kind("ArgoSetting"), "shop").await;
    wait_polling(&lab, "the setting is gone", async || {
        lab.get(&kind("ArgoSetting"), "shop").await.is_none()
    })
    .await;
    assert!(!is_there(&argo, APPLICATION).await && !is_there(&argo, PROJECT).await);
    let deletions = argo.api.requests().into_iter().filter(|r| r.method == "DELETE");
    let deletions: Vec<String> = deletions.map(|request| request.target).collect();
    let first = |text: &str| deletions.iter().position(|target| target.contains(text));
    assert!(first("/operation") < first("applications/web?"), "{deletions:?}");
    assert!(
        first("applications/web?") < first("repositories"),
        "{deletions:?}"
    );
    assert!(first("repositories") < first("projects"), "{deletions:?}");
}

async fn deploy(lab: &Lab, argo: &ArgoCdRest) {
    wait_polling(lab, "the deployment has succeeded", async || {
        state(lab).await == "success"
    })
    .await;
    wait_polling(lab, "the application is gone", async || {
        !is_there(argo, APPLICATION).await
    })
    .await;
    lab.wait_condition(&kind("DeploymentRecord"), "d-1", "Ready", "False", "CleanedUp")
        .await;
    let operations = argo.operations();
    assert_eq!(operations.len(), 1, "{operations:?}");
    assert_eq!(operations[0].1["sync"]["prune"], true);
}

async fn apply_record(lab: &Lab) {
    let mut spec = deployment();
    spec["ttlSeconds"] = 3.into();
    lab.apply(object(lab, "DeploymentRecord", "d-1", spec)).await;
}

#[scenario(argocd)]
async fn deployment_by_the_api_syncs_once_although_answers_are_lost(mut lab: Lab) {
    let argo = ArgoCdRest::start(&lab).await;
    let faults = argo.api.faults();
    // Neither the request nor the answer, then an error of a proxy, then the answer.
    faults.fail_next(1, "POST", "/sync$", FaultAction::Drop);
    faults.fail_next(1, "POST", "/sync$", FaultAction::Proxy(502, "<html>".into()));
    faults.fail_next(1, "POST", "/sync$", FaultAction::DropAnswer);
    faults.fail_next(1, "POST", "/projects$", FaultAction::DropAnswer);
    faults.fail_next(1, "POST", "/applications$", FaultAction::DropAnswer);
    faults.fail_next(1, "DELETE", "/applications/web$", FaultAction::DropAnswer);
    start_with_settle(&mut lab).await;
    apply_setting(&lab, &argo, "Deployment").await;
    apply_record(&lab).await;
    deploy(&lab, &argo).await;
}

#[scenario(argocd)]
async fn deployment_by_the_api_syncs_once_although_the_host_stops(mut lab: Lab) {
    let (argo, gate) = (ArgoCdRest::start(&lab).await, Arc::new(Gate::default()));
    argo.api.observe(gate.clone());
    start_with_settle(&mut lab).await;
    // Behind the gate, which closes between the effect of the request and its answer.
    lab.host = None;
    gate.arm(vec![EffectStep {
        effect: "POST /api/v1/applications/web/sync".into(),
        repetition: 0,
    }]);
    lab.start_host_with(gate.client(lab.host_client())).await;
    apply_setting(&lab, &argo, "Deployment").await;
    apply_record(&lab).await;
    wait_polling(&lab, "the sync is requested", async || gate.is_closed()).await;
    lab.host = None;
    lab.wait_until("Argo CD takes the operation", async || {
        argo.operations().len() == 1
    })
    .await;
    gate.open();
    lab.start_host_with(gate.client(lab.host_client())).await;
    deploy(&lab, &argo).await;
}

#[scenario(argocd)]
async fn secrets_of_a_server_stay_out_of_memory_logs_and_objects(mut lab: Lab) {
    let argo = ArgoCdRest::start(&lab).await;
    let secrets = [argo.api.token().to_owned(), GIT_PASSWORD.to_owned()];
    let sought = secrets.clone();
    let seen = Arc::new(Mutex::new((0_u32, Vec::new())));
    let looking = seen.clone();
    lab.settings.inspect = Some(ostler::testing::engine::Inspector::new(move |memory: &[u8]| {
        let mut seen = looking.lock().expect("lock");
        seen.0 += 1;
        let found = sought
            .iter()
            .filter(|secret| memchr::memmem::find(memory, secret.as_bytes()).is_some());
        seen.1.extend(found.cloned());
    }));
    start_with_settle(&mut lab).await;
    apply_setting(&lab, &argo, "Permanent").await;
    wait_polling(&lab, "the application is written", async || {
        is_there(&argo, APPLICATION).await
    })
    .await;
    lab.wait_idle().await;
    let is_password = |request: &devops_simulators::Exchange| request.body.contains(GIT_PASSWORD);
    assert!(argo.api.requests().iter().any(is_password), "it is inserted");
    let (calls, found) = seen.lock().expect("lock").clone();
    assert!(
        calls > 1 && found.is_empty(),
        "{found:?} in the memory of {calls} calls"
    );
    let setting = lab.get(&kind("ArgoSetting"), "shop").await.expect("an object");
    let texts = [captured_logs(), setting.to_string()];
    for secret in &secrets {
        assert!(texts.iter().all(|text| !text.contains(secret)), "{secret}");
    }
}
