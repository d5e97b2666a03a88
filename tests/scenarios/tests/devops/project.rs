//! DevOpsProject.

use devops_simulators::{
    git::{GIT_PASSWORD, GIT_USER},
    jenkins::{JENKINS_TOKEN, JENKINS_USER},
};
use ostler_test_harness::{
    Lab, find_condition,
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, RegistryProcess},
    scenario,
};
use serde_json::{Value, json};

use super::{jenkins::Servers, kind, object, secret, start};

const COMPONENTS: [&str; 4] = [
    "devops/devops-git",
    "devops/devops-jenkins",
    "devops/devops-project",
    "devops/devops-registry",
];
fn project(lab: &Lab, servers: &Servers, registry: &RegistryProcess) -> Value {
    let key = |name: &str| json!({ "name": name, "key": "value" });
    let environment = |name: &str| json!({ "name": name, "destination": { "namespace": name }, "path": "deploy", "pipeline": "build" });
    let spec = json!({
        "git": { "url": servers.git.repository_url("app"), "username": GIT_USER, "passwordRef": key("git") },
        "registry": { "url": format!("http://{}", registry.address()), "username": REGISTRY_USER,
            "passwordRef": key("registry") },
        "argo": {},
        "jenkins": { "url": servers.jenkins.url(), "username": JENKINS_USER, "tokenRef": key("jenkins") },
        "environments": [environment("alpha"), environment("production")],
    });
    object(lab, "DevOpsProject", "shop", spec)
}

#[scenario]
async fn project_validates_before_its_other_settings_are_applied_and_edits_flow_down(mut lab: Lab) {
    let (servers, registry) = (Servers::start().await, RegistryProcess::start_private());
    start(&mut lab, &COMPONENTS).await;
    let mut object = project(&lab, &servers, &registry);
    for object in [
        secret(&lab, "jenkins", JENKINS_TOKEN),
        secret(&lab, "registry", "a-wrong-password-0001"),
        secret(&lab, "git", GIT_PASSWORD),
        object.clone(),
    ] {
        lab.apply(object).await;
    }
    let failed = lab
        .wait_condition(
            &kind("DevOpsProject"),
            "shop",
            "RegistryReady",
            "False",
            "AuthenticationFailed",
        )
        .await;
    assert_eq!(find_condition(&failed, "Ready")["reason"], "RegistryNotReady");
    assert!(
        lab.get(&kind("JenkinsSetting"), "shop").await.is_none(),
        "not before the registry is good"
    );
    assert!(lab.get(&kind("ArgoSetting"), "shop").await.is_none());

    lab.apply(secret(&lab, "registry", REGISTRY_PASSWORD)).await;
    lab.wait_condition(&kind("DevOpsProject"), "shop", "JenkinsReady", "True", "Ready")
        .await;
    // Its component does not run here.
    let waiting = lab
        .wait_condition(&kind("DevOpsProject"), "shop", "ArgoReady", "Unknown", "Pending")
        .await;
    assert_eq!(find_condition(&waiting, "Ready")["reason"], "ArgoNotReady");
    let argo = lab.get(&kind("ArgoSetting"), "shop").await.expect("applied");
    assert_eq!(argo["spec"]["applications"][1]["name"], "shop-production");
    assert_eq!(servers.jenkins.items().len(), 5);

    object["spec"]["environments"]
        .as_array_mut()
        .expect("a list")
        .truncate(1);
    lab.apply(object).await;
    lab.wait_until("the environment is deleted in Jenkins", async || {
        servers.jenkins.items() == ["shop", "shop/alpha", "shop/alpha/build"]
    })
    .await;

    lab.delete(&kind("DevOpsProject"), "shop").await;
    lab.wait_gone(&kind("JenkinsSetting"), "shop").await;
    assert!(servers.jenkins.items().is_empty());
}
