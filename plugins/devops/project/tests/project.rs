//! Tests of the DevOpsProject reconciler against the in-memory host of the SDK.

use devops_project::Projects;
use ostler_sdk::mock::MockHost;
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Condition, ConditionStatus, Failure, Gvk, Next, Outcome, Resolution, gvk};

const KINDS: [&str; 4] = [
    "ContainerRegistry",
    "GitCredentials",
    "ArgoSetting",
    "JenkinsSetting",
];

fn kind(kind: &str) -> Gvk {
    gvk("devops.ostler.dev", "v1alpha1", kind)
}

fn environment(name: &str) -> Value {
    json!({ "name": name, "destination": { "namespace": name }, "path": "deploy", "pipeline": "build" })
}

fn project() -> Value {
    json!({
        "metadata": { "name": "shop", "namespace": "teams", "uid": "u-1" },
        "spec": {
            "git": { "url": "https://git.example.com/shop.git", "passwordRef": { "name": "git", "key": "token" } },
            "registry": { "url": "https://registry.example.com", "repository": "shop/app",
                "imagePullSecrets": [{ "name": "pull", "namespace": "alpha" }] },
            "argo": {},
            "jenkins": { "url": "https://jenkins.example.com", "username": "ops",
                "tokenRef": { "name": "jenkins", "key": "token" } },
            "environments": [environment("alpha"), environment("production")],
        },
    })
}

/// Gives a setting what only the host gives it: the owner, and the condition Ready.
fn set_ready(host: &MockHost, kind_name: &str, status: &str, reason: &str) {
    let reference = kind(kind_name).named("teams", "shop");
    let mut object = host.object(&reference).expect(kind_name);
    object["metadata"]["uid"] = kind_name.into();
    object["status"] = json!({ "headCommit": "abc",
        "conditions": [{ "type": "Ready", "status": status, "reason": reason, "message": "A message." }] });
    host.put(object);
}

fn spec(host: &MockHost, kind_name: &str) -> Value {
    host.object(&kind(kind_name).named("teams", "shop"))
        .expect(kind_name)["spec"]
        .clone()
}

fn conditions(all: &[Condition]) -> Vec<(String, ConditionStatus, String)> {
    all.iter()
        .map(|c| (c.type_.clone(), c.status, c.reason.clone()))
        .collect()
}

fn fail(host: &MockHost, object: &Value, reason: &str) -> Failure {
    let failure = host.reconcile(&Projects, object).expect_err("is not Ready");
    assert_eq!(failure.reason, reason, "{}", failure.message);
    failure
}

/// A project whose settings are all Ready.
fn ready_host() -> (MockHost, Outcome) {
    let host = MockHost::new();
    fail(&host, &project(), "RegistryNotReady");
    set_ready(&host, "ContainerRegistry", "True", "Ready");
    set_ready(&host, "GitCredentials", "True", "Ready");
    fail(&host, &project(), "ArgoNotReady");
    set_ready(&host, "ArgoSetting", "True", "Ready");
    set_ready(&host, "JenkinsSetting", "True", "Ready");
    let outcome = host.reconcile(&Projects, &project()).expect("is ready");
    (host, outcome)
}

#[test]
fn settings_follow_each_other_and_the_project_follows_them() {
    let host = MockHost::new();
    let failure = fail(&host, &project(), "RegistryNotReady");
    assert_eq!(failure.resolution, Resolution::Wait);
    let pending = |kind: &str| (kind.to_owned(), ConditionStatus::Unknown, "Pending".to_owned());
    let expected = ["RegistryReady", "RepositoryReady", "ArgoReady", "JenkinsReady"].map(pending);
    assert_eq!(conditions(&failure.conditions), expected);
    assert_eq!(
        host.writes(),
        [
            "apply ContainerRegistry shop owned",
            "apply GitCredentials shop owned"
        ]
    );

    set_ready(&host, "ContainerRegistry", "True", "Ready");
    set_ready(&host, "GitCredentials", "False", "AuthenticationFailed");
    host.forget();
    let failure = fail(&host, &project(), "RepositoryNotReady");
    assert_eq!(failure.message, "A message.");
    let repository = &conditions(&failure.conditions)[1];
    assert_eq!(
        (repository.1, &*repository.2),
        (ConditionStatus::False, "AuthenticationFailed")
    );
    assert_eq!(
        host.writes(),
        [""; 0],
        "Argo CD and Jenkins are not touched before"
    );

    set_ready(&host, "GitCredentials", "True", "Ready");
    fail(&host, &project(), "ArgoNotReady");
    assert_eq!(
        host.writes(),
        ["apply ArgoSetting shop owned", "apply JenkinsSetting shop owned"]
    );
}

#[test]
fn project_is_ready_with_all_of_its_settings() {
    let (_, outcome) = ready_host();
    assert_eq!(outcome.next, Next::AwaitChange);
    let ready = [
        "Ready",
        "RegistryReady",
        "RepositoryReady",
        "ArgoReady",
        "JenkinsReady",
    ];
    let ready = ready.map(|kind| (kind.to_owned(), ConditionStatus::True, "Ready".to_owned()));
    assert_eq!(conditions(&outcome.conditions), ready);
    let status: Value = from_slice(outcome.status.as_deref().expect("a status")).expect("JSON");
    assert_eq!(status, json!({ "commit": "abc" }));
}

#[test]
fn settings_have_what_the_project_says_and_no_more() {
    let (host, _) = ready_host();
    let registry = spec(&host, "ContainerRegistry");
    assert_eq!(registry["repository"], "shop/app");
    assert_eq!(
        registry["imagePullSecrets"],
        json!([{ "name": "pull", "namespace": "alpha" }])
    );
    let argo = spec(&host, "ArgoSetting");
    let names: Vec<&Value> = argo["applications"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|a| &a["name"])
        .collect();
    assert_eq!(names, ["shop-alpha", "shop-production"]);
    // Repository and destinations are bound to the one project.
    assert_eq!(argo["repositories"][0]["project"], "shop");
    let destinations = argo["projects"][0]["destinations"].as_array().expect("a list");
    let namespaces: Vec<&Value> = destinations.iter().map(|d| &d["namespace"]).collect();
    assert_eq!(
        (namespaces, argo["projects"].as_array().map(Vec::len)),
        (vec![&json!("alpha"), &json!("production")], Some(1))
    );
    let jenkins = spec(&host, "JenkinsSetting");
    assert_eq!(jenkins["environments"], json!(["alpha", "production"]));
    assert_eq!(
        jenkins["git"],
        json!({ "credentialsRef": { "name": "shop" }, "revision": "main", "path": "devops.yaml" })
    );
}

#[test]
fn edits_flow_down_and_a_removed_jenkins_is_deleted() {
    let (host, _) = ready_host();
    let mut object = project();
    object["spec"]["environments"] = json!([environment("alpha")]);
    object["spec"]["git"]["revision"] = "release".into();
    host.forget();
    host.reconcile(&Projects, &object).expect("is ready");
    assert_eq!(
        spec(&host, "ArgoSetting")["applications"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert_eq!(spec(&host, "JenkinsSetting")["git"]["revision"], "release");
    assert_eq!(host.writes().len(), 2, "{:?}", host.writes());

    object["spec"].as_object_mut().expect("a spec").remove("jenkins");
    object["spec"]["environments"][0]
        .as_object_mut()
        .expect("an environment")
        .remove("pipeline");
    let outcome = host.reconcile(&Projects, &object).expect("is ready");
    assert!(
        host.object(&kind("JenkinsSetting").named("teams", "shop"))
            .is_none()
    );
    assert!(
        outcome
            .conditions
            .iter()
            .all(|condition| condition.type_ != "JenkinsReady")
    );
}

#[test]
fn settings_of_other_users_are_left_alone() {
    for foreign in KINDS {
        let (host, _) = ready_host();
        let object = json!({ "apiVersion": "devops.ostler.dev/v1alpha1", "kind": foreign,
            "metadata": { "name": "shop", "namespace": "teams", "uid": "x" }, "spec": { "own": true } });
        host.put(object.clone());
        let failure = fail(&host, &project(), "SettingExists");
        assert!(failure.message.contains(foreign), "{}", failure.message);
        assert_eq!(host.object(&kind(foreign).named("teams", "shop")), Some(object));
    }
    let (host, _) = ready_host();
    let mut object = project();
    object["spec"].as_object_mut().expect("a spec").remove("jenkins");
    object["spec"]["environments"] = json!([]);
    let foreign = json!({ "apiVersion": "devops.ostler.dev/v1alpha1", "kind": "JenkinsSetting",
        "metadata": { "name": "shop", "namespace": "teams", "uid": "x" } });
    host.put(foreign);
    host.reconcile(&Projects, &object).expect("is ready");
    assert!(
        host.object(&kind("JenkinsSetting").named("teams", "shop"))
            .is_some()
    );
}

#[test]
fn suspended_project_suspends_its_settings() {
    let (host, _) = ready_host();
    let mut object = project();
    object["spec"]["suspend"] = true.into();
    let outcome = host.reconcile(&Projects, &object).expect("is suspended");
    assert_eq!(conditions(&outcome.conditions)[0].2, "Suspended");
    for kind in KINDS {
        assert_eq!(spec(&host, kind)["suspend"], true, "{kind}");
    }
}

#[test]
fn invalid_projects_apply_nothing() {
    let mut without_jenkins = project();
    without_jenkins["spec"]
        .as_object_mut()
        .expect("a spec")
        .remove("jenkins");
    let mut long = project();
    long["metadata"]["name"] = "a-name-of-twenty-three-c".into();
    let mut dotted = project();
    dotted["metadata"]["name"] = "shop.example".into();
    for object in [without_jenkins, long, dotted] {
        let host = MockHost::new();
        assert_eq!(
            fail(&host, &object, "InvalidSpec").resolution,
            Resolution::Terminal
        );
        assert!(host.writes().is_empty());
    }
}
