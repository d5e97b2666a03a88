//! GitCredentials and JenkinsSetting.

use std::sync::{Arc, Mutex};

use devops_simulators::{
    FaultAction,
    git::{GIT_PASSWORD, GIT_USER, GitServer},
    jenkins::{JENKINS_TOKEN, JENKINS_USER, Jenkins},
};
use ostler::testing::{dispatcher::Cause, queue::Priority};
use ostler_test_harness::{Lab, captured_logs, scenario};
use serde_json::json;

use super::{argo_cd::MANIFEST, kind, object, secret, start};

const COMPONENTS: [&str; 2] = ["devops/devops-git", "devops/devops-jenkins"];
const REGISTRY_PASSWORD: &str = "registry<pass>&word-0042";
const DEFINITION: &str = "pipelines:\n- name: build\n  stages: [{name: Test, steps: [make test]}]\n";

/// A Jenkins, and a git server with the repository `app`.
pub struct Servers {
    pub jenkins: Jenkins,
    pub git: GitServer,
}

impl Servers {
    pub async fn start() -> Self {
        let git = GitServer::start_private().await;
        git.create_repository("app");
        let files = [("devops.yaml", DEFINITION), ("deploy/config.yaml", MANIFEST)];
        git.commit("app", "main", &files);
        Self {
            jenkins: Jenkins::start().await,
            git,
        }
    }

    /// Applies the Secrets, the GitCredentials and the JenkinsSetting.
    async fn apply(&self, lab: &Lab) {
        let key = |name: &str| json!({ "name": name, "key": "value" });
        for object in [
            secret(lab, "git", GIT_PASSWORD),
            secret(lab, "jenkins", JENKINS_TOKEN),
            secret(lab, "registry", REGISTRY_PASSWORD),
            object(
                lab,
                "JenkinsSetting",
                "ci",
                json!({ "url": self.jenkins.url(), "username": JENKINS_USER, "tokenRef": key("jenkins"),
                    "project": "shop", "environments": ["alpha", "production"],
                    "git": { "credentialsRef": { "name": "app" } },
                    "credentials": [{ "id": "registry", "username": "robot", "secretRef": key("registry") }] }),
            ),
            object(
                lab,
                "GitCredentials",
                "app",
                json!({ "url": self.git.repository_url("app"), "username": GIT_USER, "passwordRef": key("git") }),
            ),
        ] {
            lab.apply(object).await;
        }
    }
}

fn poll(lab: &Lab, kind_name: &str, name: &str) {
    let key = lab.key(&kind(kind_name), name);
    lab.host()
        .services()
        .dispatcher
        .enqueue(&key, Priority::High, Cause::Poll);
}

#[scenario]
async fn pipelines_follow_the_repository_and_are_deleted_with_the_setting(mut lab: Lab) {
    let servers = Servers::start().await;
    start(&mut lab, &COMPONENTS).await;
    servers.apply(&lab).await;
    lab.wait_ready(&kind("JenkinsSetting"), "ci").await;
    lab.wait_idle().await;
    let items = [
        "shop",
        "shop/alpha",
        "shop/alpha/build",
        "shop/production",
        "shop/production/build",
    ];
    assert_eq!(servers.jenkins.items(), items);
    assert_eq!(servers.jenkins.credentials("shop"), ["ostler-git", "registry"]);

    // The commit is the same: one look at the references, and no write.
    servers.git.forget();
    servers.jenkins.forget();
    poll(&lab, "JenkinsSetting", "ci");
    lab.wait_until("the references are listed", async || {
        !servers.git.requests().is_empty()
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(servers.git.requests().len(), 1, "{:?}", servers.git.requests());
    assert!(
        servers
            .jenkins
            .requests()
            .iter()
            .all(|request| request.method == "GET")
    );

    let commit = servers.git.commit(
        "app",
        "main",
        &[("devops.yaml", &DEFINITION.replace("build", "nightly"))],
    );
    poll(&lab, "JenkinsSetting", "ci");
    lab.wait_until("the new commit is in the status", async || {
        let setting = lab.get(&kind("JenkinsSetting"), "ci").await.unwrap_or_default();
        setting["status"]["commit"] == *commit
    })
    .await;
    let items = [
        "shop",
        "shop/alpha",
        "shop/alpha/nightly",
        "shop/production",
        "shop/production/nightly",
    ];
    assert_eq!(servers.jenkins.items(), items);

    lab.delete(&kind("JenkinsSetting"), "ci").await;
    lab.wait_gone(&kind("JenkinsSetting"), "ci").await;
    assert!(servers.jenkins.items().is_empty());
}

#[scenario]
async fn rotated_password_of_git_is_followed(mut lab: Lab) {
    let servers = Servers::start().await;
    start(&mut lab, &COMPONENTS).await;
    servers.apply(&lab).await;
    lab.wait_ready(&kind("JenkinsSetting"), "ci").await;
    servers.git.set_password("another-password-0008");
    poll(&lab, "GitCredentials", "app");
    lab.wait_condition(
        &kind("GitCredentials"),
        "app",
        "Ready",
        "False",
        "AuthenticationFailed",
    )
    .await;
    lab.apply(secret(&lab, "git", "another-password-0008")).await;
    lab.wait_ready(&kind("GitCredentials"), "app").await;
    lab.wait_until("Jenkins has the new password", async || {
        let stored = servers
            .jenkins
            .credential("shop", "ostler-git")
            .unwrap_or_default();
        stored.contains("another-password-0008")
    })
    .await;
}

#[scenario]
async fn secrets_of_jenkins_stay_out_of_memory_logs_and_objects(mut lab: Lab) {
    const SECRETS: [&str; 3] = [GIT_PASSWORD, JENKINS_TOKEN, REGISTRY_PASSWORD];
    let seen = Arc::new(Mutex::new((0_u32, Vec::new())));
    let looking = seen.clone();
    lab.settings.inspect = Some(ostler::testing::engine::Inspector::new(move |memory: &[u8]| {
        let mut seen = looking.lock().expect("lock");
        seen.0 += 1;
        let found = SECRETS
            .iter()
            .filter(|secret| memchr::memmem::find(memory, secret.as_bytes()).is_some());
        seen.1.extend(found.copied());
    }));
    let servers = Servers::start().await;
    start(&mut lab, &COMPONENTS).await;
    servers.apply(&lab).await;
    lab.wait_ready(&kind("JenkinsSetting"), "ci").await;
    lab.wait_idle().await;
    let stored = servers
        .jenkins
        .credential("shop", "registry")
        .expect("credentials");
    assert!(stored.contains("registry&lt;pass&gt;&amp;word-0042"), "{stored}");
    let (calls, found) = seen.lock().expect("lock").clone();
    assert!(
        calls > 1 && found.is_empty(),
        "{found:?} in the memory of {calls} calls"
    );
    let mut texts = vec![captured_logs()];
    for (kind_name, name) in [("JenkinsSetting", "ci"), ("GitCredentials", "app")] {
        texts.push(
            lab.get(&kind(kind_name), name)
                .await
                .expect("an object")
                .to_string(),
        );
    }
    for secret in SECRETS {
        assert!(texts.iter().all(|text| !text.contains(secret)), "{secret}");
    }
}

#[scenario]
async fn lost_answers_of_jenkins_leave_one_of_each_item(mut lab: Lab) {
    let servers = Servers::start().await;
    let faults = servers.jenkins.faults();
    faults.fail_next(2, "POST", "createItem$", FaultAction::DropAnswer);
    faults.fail_next(
        1,
        "POST",
        "createItem$",
        FaultAction::Status(500, "<html>".into()),
    );
    faults.fail_next(1, "POST", "createCredentials$", FaultAction::DropAnswer);
    start(&mut lab, &COMPONENTS).await;
    servers.apply(&lab).await;
    lab.wait_ready(&kind("JenkinsSetting"), "ci").await;
    assert_eq!(servers.jenkins.items().len(), 5);
    assert_eq!(servers.jenkins.credentials("shop").len(), 2);
    // A folder of another user is no longer deleted with what is ours.
    servers
        .jenkins
        .set_config("shop/by-hand", "<com.cloudbees.hudson.plugins.folder.Folder/>");
    lab.delete(&kind("JenkinsSetting"), "ci").await;
    lab.wait_gone(&kind("JenkinsSetting"), "ci").await;
    assert_eq!(servers.jenkins.items(), ["shop", "shop/by-hand"]);
}
