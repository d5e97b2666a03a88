//! DevOpsProject.

use argocd_simulator::Controller;
use devops_simulators::{
    git::{GIT_PASSWORD, GIT_USER},
    jenkins::{JENKINS_TOKEN, JENKINS_USER},
};
use ostler::testing::key::Gvk;
use ostler_test_harness::{
    Lab, find_condition,
    rabbitmq::RabbitMq,
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, Registry},
    scenarios,
};
use serde_json::{Value, json};

use super::{
    argo,
    events::{publish, start_with_broker, wait_heartbeat},
    jenkins::Servers,
    kind, object, secret, start,
};

scenarios!(
    project_validates_before_its_other_settings_are_applied_and_edits_flow_down,
    events_set_up_a_project_and_deploy_it_until_nothing_is_left,
);

const COMPONENTS: [&str; 4] = [
    "devops/devops-git",
    "devops/devops-jenkins",
    "devops/devops-project",
    "devops/devops-registry",
];
const PACK: [&str; 7] = [
    "devops/devops-argo",
    "devops/devops-deployment",
    "devops/devops-events",
    "devops/devops-git",
    "devops/devops-jenkins",
    "devops/devops-project",
    "devops/devops-registry",
];

fn project(lab: &Lab, servers: &Servers, registry: &Registry) -> Value {
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

async fn project_validates_before_its_other_settings_are_applied_and_edits_flow_down(mut lab: Lab) {
    let (servers, registry) = (Servers::start().await, Registry::start_private());
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

/// The project without a password of the repository, which the host cannot write into Argo CD's Secret yet.
fn open_project(lab: &Lab, servers: &Servers, registry: &Registry) -> Value {
    let mut spec = project(lab, servers, registry)["spec"].take();
    spec["git"] = json!({ "url": servers.git.repository_url("app") });
    spec["argo"] = json!({ "namespace": lab.namespace });
    spec["environments"] = json!([{ "name": "alpha", "destination": { "namespace": lab.namespace }, "path": "deploy",
        "pipeline": "build", "temporary": true }]);
    spec
}

async fn events_set_up_a_project_and_deploy_it_until_nothing_is_left(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let (servers, registry) = (Servers::start_public().await, Registry::start_private());
    argo::apply_crds(&lab).await;
    let controller = Controller::start(lab.client.clone(), &lab.namespace);
    let client = start_with_broker(&mut lab, &rabbitmq, &PACK).await;
    lab.apply(secret(&lab, "jenkins", JENKINS_TOKEN)).await;
    lab.apply(secret(&lab, "registry", REGISTRY_PASSWORD)).await;
    let event = json!({ "id": "p-1", "project": "shop", "spec": open_project(&lab, &servers, &registry) });
    publish(&client, "DevOpsInitialize", &event).await;
    let ready = lab.wait_ready(&kind("DevOpsProject"), "shop").await;
    for condition in ["RegistryReady", "RepositoryReady", "ArgoReady", "JenkinsReady"] {
        assert_eq!(find_condition(&ready, condition)["status"], "True", "{condition}");
    }
    let application = Gvk::new("argoproj.io", "v1alpha1", "Application");
    assert_eq!(
        lab.get(&application, "shop-alpha").await,
        None,
        "no deployment needs it"
    );

    let event = json!({ "id": "d-1", "project": "shop", "environment": "alpha", "pipeline": "build", "ttl_seconds": 5 });
    publish(&client, "DevOpsReconcile", &event).await;
    servers.jenkins.run_builds("SUCCESS");
    lab.wait_until("the build is triggered", async || {
        !servers.jenkins.builds("shop/alpha/build").is_empty()
    })
    .await;
    let live = wait_heartbeat(&client, "d-1", "success").await;
    assert_eq!(live["phase_message"], "The deployment is live.");
    let record = kind("DeploymentRecord");
    lab.wait_condition(&record, "d-1", "Ready", "False", "CleanedUp")
        .await;
    lab.wait_until("the application is gone", async || {
        lab.get(&application, "shop-alpha").await.is_none()
    })
    .await;
    assert_eq!(servers.jenkins.builds("shop/alpha/build").len(), 1);
    assert_eq!(controller.operations().len(), 1, "{:?}", controller.operations());

    lab.delete(&record, "d-1").await;
    lab.wait_gone(&record, "d-1").await;
    lab.delete(&kind("DevOpsProject"), "shop").await;
    for child in [
        "ArgoSetting",
        "ContainerRegistry",
        "GitCredentials",
        "JenkinsSetting",
    ] {
        lab.wait_gone(&kind(child), "shop").await;
    }
    assert!(servers.jenkins.items().is_empty());
    let project = Gvk::new("argoproj.io", "v1alpha1", "AppProject");
    assert_eq!(lab.get(&project, "shop").await, None);
}
