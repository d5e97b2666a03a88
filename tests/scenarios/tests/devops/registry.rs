//! ContainerRegistry.

use base64::{Engine, prelude::BASE64_STANDARD};
use devops_simulators::tokens::{TOKEN_PASSWORD, TOKEN_USER, TokenServer};
use ostler::testing::key::Gvk;
use ostler_test_harness::{
    Lab, find_condition,
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, RegistryProcess},
    scenario,
};
use serde_json::{Value, json};

use super::{kind, object, secret, start};

const COMPONENTS: [&str; 1] = ["devops/devops-registry"];

fn registry_object(lab: &Lab, registry: &RegistryProcess) -> Value {
    let spec = json!({ "url": format!("http://{}", registry.address()), "repository": "team/app",
        "username": REGISTRY_USER, "passwordRef": { "name": "registry", "key": "value" } });
    object(lab, "ContainerRegistry", "images", spec)
}

#[scenario]
async fn login_at_a_real_registry_is_checked_and_rotation_is_followed(mut lab: Lab) {
    let registry = RegistryProcess::start_private();
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

#[scenario]
async fn password_goes_to_a_token_server_of_the_same_origin_only(mut lab: Lab) {
    let tokens = TokenServer::start().await;
    let registry = RegistryProcess::start_with_token_server(&tokens.realm());
    start(&mut lab, &COMPONENTS).await;
    lab.apply(secret(&lab, "registry", TOKEN_PASSWORD)).await;
    let mut images = registry_object(&lab, &registry);
    images["spec"]["username"] = TOKEN_USER.into();
    lab.apply(images.clone()).await;
    let images_kind = kind("ContainerRegistry");
    let failed = lab
        .wait_condition(&images_kind, "images", "Ready", "False", "AuthenticationFailed")
        .await;
    let message = find_condition(&failed, "Ready")["message"].to_string();
    assert!(message.contains("to which no password is sent"), "{message}");
    assert!(tokens.requests().is_empty());

    // Behind a proxy both have one origin.
    tokens.forward_to(registry.address());
    images["spec"]["url"] = tokens.url().into();
    lab.apply(images).await;
    lab.wait_ready(&images_kind, "images").await;
    let requests = tokens.requests();
    let target = "client_id=ostler&service=tests&scope=repository%3Ateam%2Fapp%3Apull";
    assert!(
        !requests.is_empty() && requests.iter().all(|request| request.target.ends_with(target)),
        "{requests:?}"
    );

    tokens.set_password("rotated-password-0012");
    let before = tokens.requests().len();
    lab.apply(secret(&lab, "registry", "rotated-password-0012")).await;
    lab.wait_until("a token is requested with the new password", async || {
        let requests = tokens.requests().split_off(before);
        requests.iter().any(|request| request.status == Some(200))
    })
    .await;
    lab.wait_ready(&images_kind, "images").await;
}

#[scenario]
async fn pull_secret_is_written_and_follows_the_password(mut lab: Lab) {
    let tokens = TokenServer::start().await;
    let registry = RegistryProcess::start_with_token_server(&tokens.realm());
    tokens.forward_to(registry.address());
    start(&mut lab, &COMPONENTS).await;
    lab.apply(secret(&lab, "registry", TOKEN_PASSWORD)).await;
    let mut images = registry_object(&lab, &registry);
    images["spec"]["url"] = tokens.url().into();
    images["spec"]["username"] = TOKEN_USER.into();
    images["spec"]["imagePullSecrets"] = json!([{ "name": "pull" }]);
    lab.apply(images).await;
    lab.wait_ready(&kind("ContainerRegistry"), "images").await;
    assert_eq!(
        pull_secret_login(&lab).await,
        Some(expected_login(TOKEN_PASSWORD))
    );

    tokens.set_password("rotated-password-0012");
    lab.apply(secret(&lab, "registry", "rotated-password-0012")).await;
    lab.wait_until("the Secret has the new password", async || {
        pull_secret_login(&lab).await == Some(expected_login("rotated-password-0012"))
    })
    .await;
    lab.delete(&kind("ContainerRegistry"), "images").await;
    lab.wait_gone(&kind("ContainerRegistry"), "images").await;
    assert_eq!(pull_secret_login(&lab).await, None);
}

fn expected_login(password: &str) -> Value {
    let pair = BASE64_STANDARD.encode(format!("{TOKEN_USER}:{password}"));
    json!({ "username": TOKEN_USER, "password": password, "auth": pair })
}

/// The login in the Secret `pull`, as a container runtime reads it.
async fn pull_secret_login(lab: &Lab) -> Option<Value> {
    let found = lab.get(&Gvk::new("", "v1", "Secret"), "pull").await?;
    let config = found["data"][".dockerconfigjson"].as_str().expect("a value");
    let config = BASE64_STANDARD.decode(config).expect("base64");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let mut logins = config["auths"].as_object().expect("logins").values();
    logins.next().cloned()
}
