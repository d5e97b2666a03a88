//! ArgoSetting and the sync of a DeploymentRecord by the custom resources of Argo CD.

use base64::{Engine, prelude::BASE64_STANDARD};
use ostler::testing::key::Gvk;
use ostler_test_harness::{Lab, scenario};
use serde_json::{Value, json};

use super::{
    argo_cd::{ArgoCd, REVISION},
    kind, object, secret, start,
};

pub const COMPONENTS: [&str; 2] = ["devops/devops-argo", "devops/devops-deployment"];

fn argo(kind: &str) -> Gvk {
    Gvk::new("argoproj.io", "v1alpha1", kind)
}

/// The spec of a deployment without a build.
pub fn deployment() -> Value {
    json!({ "environment": "alpha",
        "sync": { "settingRef": { "name": "shop" }, "application": "web", "revision": REVISION } })
}

/// Argo CD looks for its objects in the namespace of the test.
pub fn setting(lab: &Lab, argo_cd: &ArgoCd, lifetime: &str) -> Value {
    let url = argo_cd.repository_url();
    let spec = json!({
        "argoNamespace": lab.namespace,
        "projects": [{ "name": "shop", "destinations": [{ "namespace": lab.namespace }] }],
        "repositories": [{ "name": "apps", "url": url, "project": "shop" }],
        "applications": [{ "name": "web", "project": "shop", "lifetime": lifetime,
            "source": { "repoURL": url, "path": "web", "revision": REVISION } }],
    });
    object(lab, "ArgoSetting", "shop", spec)
}

#[scenario(argocd)]
async fn setting_is_followed_by_argo_and_deleted_in_order(mut lab: Lab) {
    let argo_cd = ArgoCd::start(&lab).await;
    start(&mut lab, &COMPONENTS).await;
    lab.apply(setting(&lab, &argo_cd, "Permanent")).await;
    let ready = lab.wait_ready(&kind("ArgoSetting"), "shop").await;
    assert_eq!(ready["status"]["syncedApplications"], "0/1");
    let patch = json!({ "spec": { "projects": [{ "name": "shop", "description": "edited",
        "destinations": [{ "namespace": lab.namespace }] }] } });
    lab.patch(&kind("ArgoSetting"), "shop", patch).await;
    lab.wait_until("the edit is followed", async || {
        let project = lab.get(&argo("AppProject"), "shop").await.unwrap_or_default();
        project["spec"]["description"] == "edited"
    })
    .await;

    // A sync whose hook never ends, which would block the deletion.
    argo_cd.hold_sync();
    lab.patch(
        &argo("Application"),
        "web",
        json!({ "operation": { "sync": {} } }),
    )
    .await;
    lab.wait_until("the sync runs", async || {
        let application = lab.get(&argo("Application"), "web").await.unwrap_or_default();
        application["status"]["operationState"]["phase"] == "Running"
    })
    .await;
    lab.delete(&kind("ArgoSetting"), "shop").await;
    lab.wait_gone(&kind("ArgoSetting"), "shop").await;
    assert_eq!(lab.get(&argo("Application"), "web").await, None);
    assert_eq!(lab.get(&argo("AppProject"), "shop").await, None);
}

#[scenario(argocd)]
async fn deployment_syncs_once_and_is_cleaned_up_after_its_time(mut lab: Lab) {
    let argo_cd = ArgoCd::start(&lab).await;
    start(&mut lab, &COMPONENTS).await;
    lab.apply(setting(&lab, &argo_cd, "Deployment")).await;
    let mut spec = deployment();
    spec["ttlSeconds"] = 3.into();
    lab.apply(object(&lab, "DeploymentRecord", "d-1", spec)).await;
    lab.wait_until("the deployment has succeeded", async || {
        let record = lab
            .get(&kind("DeploymentRecord"), "d-1")
            .await
            .unwrap_or_default();
        record["status"]["state"] == "success"
    })
    .await;
    lab.wait_condition(&kind("DeploymentRecord"), "d-1", "Ready", "False", "CleanedUp")
        .await;
    lab.wait_until("the application is gone", async || {
        lab.get(&argo("Application"), "web").await.is_none()
    })
    .await;
    let operations = argo_cd.operations();
    assert_eq!(operations.len(), 1, "{operations:?}");
    assert_eq!(
        operations[0].1["sync"],
        json!({ "prune": true, "revision": REVISION })
    );
}

#[scenario(argocd)]
async fn password_of_a_repository_is_written_and_rotated(mut lab: Lab) {
    // It releases the AppProject in the end.
    let _argo_cd = ArgoCd::start(&lab).await;
    start(&mut lab, &COMPONENTS).await;
    lab.apply(secret(&lab, "git", "a-git-password-0001")).await;
    let url = "https://git.example.com/apps.git";
    let spec = json!({
        "argoNamespace": lab.namespace,
        "projects": [{ "name": "shop", "description": "The shop", "destinations": [{ "namespace": lab.namespace }] }],
        "repositories": [{ "name": "apps", "url": url, "project": "shop", "username": "ada",
            "passwordRef": { "name": "git", "key": "value" } }],
        "applications": [],
    });
    lab.apply(object(&lab, "ArgoSetting", "shop", spec)).await;
    let setting = lab.wait_ready(&kind("ArgoSetting"), "shop").await;
    let name = format!("apps-{}", setting["metadata"]["uid"].as_str().expect("a uid"));
    let read = async |key: &str| {
        let found = lab.get(&Gvk::new("", "v1", "Secret"), &name).await?;
        let value = BASE64_STANDARD.decode(found["data"][key].as_str()?).ok()?;
        String::from_utf8(value).ok()
    };
    for (key, value) in [
        ("type", "git"),
        ("url", url),
        ("project", "shop"),
        ("username", "ada"),
        ("password", "a-git-password-0001"),
    ] {
        assert_eq!(read(key).await.as_deref(), Some(value), "{key}");
    }
    lab.apply(secret(&lab, "git", "a-git-password-0002")).await;
    lab.wait_until("the Secret has the new password", async || {
        read("password").await.as_deref() == Some("a-git-password-0002")
    })
    .await;
    lab.delete(&kind("ArgoSetting"), "shop").await;
    lab.wait_gone(&kind("ArgoSetting"), "shop").await;
    assert_eq!(read("password").await, None);
}
