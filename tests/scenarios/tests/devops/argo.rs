//! ArgoSetting: the Secrets of repositories. Argo CD itself does not run.

use base64::{Engine, prelude::BASE64_STANDARD};
use ostler::testing::key::Gvk;
use ostler_test_harness::{Lab, scenarios};
use serde_json::json;

use super::{kind, object, secret, start};

scenarios!(password_of_a_repository_is_written_and_rotated);

async fn password_of_a_repository_is_written_and_rotated(mut lab: Lab) {
    for crd in [
        include_str!("../../../argocd/crds/applications.yaml"),
        include_str!("../../../argocd/crds/appprojects.yaml"),
    ] {
        lab.apply_yaml(crd).await;
    }
    start(&mut lab, &["devops/devops-argo"]).await;
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
