//! ContainerRegistry.

use ostler_test_harness::{
    Lab,
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, Registry},
    scenarios,
};
use serde_json::{Value, json};

use super::{kind, object, secret, start};

scenarios!(login_at_a_real_registry_is_checked_and_rotation_is_followed);

const COMPONENTS: [&str; 1] = ["devops/devops-registry"];

fn registry_object(lab: &Lab, registry: &Registry) -> Value {
    let spec = json!({ "url": format!("http://{}", registry.address()), "repository": "team/app",
        "username": REGISTRY_USER, "passwordRef": { "name": "registry", "key": "value" } });
    object(lab, "ContainerRegistry", "images", spec)
}

async fn login_at_a_real_registry_is_checked_and_rotation_is_followed(mut lab: Lab) {
    let registry = Registry::start_private();
    start(&mut lab, &COMPONENTS).await;
    lab.apply(registry_object(&lab, &registry)).await;
    lab.apply(secret(&lab, "registry", "a-wrong-password-0001")).await;
    lab.wait_condition(
        &kind("ContainerRegistry"),
        "images",
        "Ready",
        "False",
        "AuthenticationFailed",
    )
    .await;
    lab.apply(secret(&lab, "registry", REGISTRY_PASSWORD)).await;
    lab.wait_ready(&kind("ContainerRegistry"), "images").await;
    // It is created by the first push.
    let reason = "RepositoryNotFound";
    lab.wait_condition(
        &kind("ContainerRegistry"),
        "images",
        "RepositoryReadable",
        "False",
        reason,
    )
    .await;
    lab.delete(&kind("ContainerRegistry"), "images").await;
    lab.wait_gone(&kind("ContainerRegistry"), "images").await;
}
