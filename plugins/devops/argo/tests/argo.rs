//! ArgoSettings against the SDK's mock.

use devops_argo::ArgoSettings;
use ostler_sdk::{
    Encoding, Failure, ObjectRef, Outcome, Resolution, gvk,
    mock::MockHost,
    serde_json::{Value, from_slice, json},
};

const UID: &str = "0d1f";

fn setting() -> Value {
    json!({
        "apiVersion": "devops.ostler.dev/v1alpha1", "kind": "ArgoSetting",
        "metadata": {"name": "shop", "namespace": "team", "uid": UID, "generation": 1},
        "spec": {
            "projects": [{"name": "shop", "description": "The shop", "destinations": [{"namespace": "team"}]}],
            "repositories": [{"name": "apps", "url": "https://git.example.com/apps.git", "project": "shop"}],
            "applications": [{
                "name": "web", "project": "shop",
                "source": {"repoURL": "https://git.example.com/apps.git", "path": "web", "revision": "main"},
            }],
        },
    })
}

fn argo(kind: &str, name: &str) -> ObjectRef {
    gvk("argoproj.io", "v1alpha1", kind).named("argocd", name)
}

fn object(host: &MockHost, kind: &str, name: &str) -> Value {
    host.object(&argo(kind, name)).expect("is applied")
}

/// Writes what Argo CD does when it has compared the application.
fn compare(host: &MockHost, name: &str, sync: &str) {
    let mut live = object(host, "Application", name);
    live["metadata"]["uid"] = format!("uid-{name}").into();
    live["metadata"]["resourceVersion"] = "10".into();
    live["status"] = json!({"sync": {"status": sync}, "health": {"status": "Healthy"}});
    host.put(live);
}

fn condition<'a>(outcome: &'a Outcome, kind: &str) -> (&'a str, &'a str) {
    let found = outcome.conditions.iter().find(|c| c.type_ == kind).expect(kind);
    (&found.reason, &found.message)
}

fn failure(host: &MockHost, setting: &Value) -> Failure {
    host.reconcile(&ArgoSettings, setting).expect_err("fails")
}

#[test]
fn setting_becomes_a_project_and_an_application_without_an_operation() {
    let host = MockHost::new();
    let outcome = host.reconcile(&ArgoSettings, &setting()).expect("an outcome");
    assert_eq!(host.writes(), ["apply AppProject shop", "apply Application web"]);
    let project = object(&host, "AppProject", "shop");
    assert_eq!(
        project["spec"]["sourceRepos"],
        json!(["https://git.example.com/apps.git"])
    );
    let local = json!([{"server": "https://kubernetes.default.svc", "namespace": "team"}]);
    assert_eq!(project["spec"]["destinations"], local);
    let application = object(&host, "Application", "web");
    assert_eq!(application["spec"]["destination"], local[0]);
    assert_eq!(
        application["metadata"]["labels"]["devops.ostler.dev/argo-setting"],
        UID
    );
    assert_eq!(
        application["metadata"]["finalizers"][0],
        "resources-finalizer.argocd.argoproj.io"
    );
    assert!(application.get("operation").is_none());
    // Argo CD has not seen it yet, or looks in another namespace.
    assert_eq!(condition(&outcome, "Ready").0, "Comparing");

    compare(&host, "web", "OutOfSync");
    host.forget();
    let outcome = host.reconcile(&ArgoSettings, &setting()).expect("an outcome");
    assert_eq!(condition(&outcome, "Ready").0, "Ready");
    assert!(host.writes().is_empty());
    let status: Value = from_slice(&outcome.status.expect("a status")).expect("JSON");
    assert_eq!(status["syncedApplications"], "0/1");
}

#[test]
fn project_sees_its_own_repositories_only() {
    let host = MockHost::new();
    let mut setting = setting();
    let spec = &mut setting["spec"];
    let push = |list: &mut Value, item| list.as_array_mut().expect("a list").push(item);
    let other = json!({"name": "other", "destinations": [{"namespace": "team-b"}]});
    push(&mut spec["projects"], other);
    push(
        &mut spec["repositories"],
        json!({"name": "b", "url": "https://git.example.com/b.git", "project": "other"}),
    );
    host.reconcile(&ArgoSettings, &setting).expect("an outcome");
    let sources = |name| object(&host, "AppProject", name)["spec"]["sourceRepos"].clone();
    assert_eq!(sources("shop"), json!(["https://git.example.com/apps.git"]));
    assert_eq!(sources("other"), json!(["https://git.example.com/b.git"]));
}

#[test]
fn setting_outside_its_bounds_is_invalid_without_a_write() {
    let cases: [(&str, Value, &str); 12] = [
        (
            "/applications/0/project",
            json!("x"),
            "application web names the project x",
        ),
        (
            "/applications/0/source/repoURL",
            json!("https://x"),
            "uses https://x, which is no repository of its project",
        ),
        (
            "/applications/0/destination",
            json!({"namespace": "team-x"}),
            "which is no destination of its project shop",
        ),
        (
            "/repositories/0/project",
            json!("x"),
            "repository apps names the project x",
        ),
        ("/repositories/0/url", json!("https://*"), "pattern in its url"),
        (
            "/projects/0/destinations/0/namespace",
            json!("*"),
            "pattern among its destinations",
        ),
        (
            "/projects/0/destinations/0/namespace",
            json!("kube-system"),
            "may not deploy to the namespace kube-system",
        ),
        (
            "/projects/0/destinations",
            json!([{"namespace": "team"}, {"namespace": "team-b"}]),
            "needs a destination",
        ),
        (
            "/projects/0/clusterResources",
            json!(["*/*"]),
            "which is not GROUP/KIND",
        ),
        (
            "/projects/0/clusterResources",
            json!(["rbac.authorization.k8s.io/ClusterRoleBinding"]),
            "may not deploy the clusterResource rbac.authorization.k8s.io/ClusterRoleBinding: the plugin's configuration \
             `clusterResources` allows none",
        ),
        (
            "/projects/0/destinations/0/server",
            json!("https://production.example.com"),
            "may not deploy to the server https://production.example.com: the plugin's configuration `servers` allows \
             https://kubernetes.default.svc",
        ),
        (
            "/projects/0/destinations/0/namespace",
            json!("other-team"),
            "may not deploy to the namespace other-team: the plugin's configuration `destinations` allows team, team-*",
        ),
    ];
    for (pointer, value, expected) in cases {
        let host = MockHost::new();
        let mut setting = setting();
        let (parent, field) = pointer.rsplit_once('/').expect("a path");
        setting.pointer_mut(&format!("/spec{parent}")).expect("is there")[field] = value;
        let failure = failure(&host, &setting);
        assert_eq!(
            (failure.resolution, &*failure.reason),
            (Resolution::Terminal, "InvalidSpec")
        );
        assert!(failure.message.contains(expected), "{}", failure.message);
        assert!(host.writes().is_empty());
    }
}

#[test]
fn configuration_of_the_plugin_bounds_what_a_setting_may_use() {
    let host = MockHost::new();
    host.set_config(json!({
        "destinations": ["kube-*", "team"],
        "servers": ["https://*.example.com", "https://production.example.com"],
        "clusterResources": ["/Namespace", "example.com/*"],
        "repositories": ["https://git.example.com/*"],
    }));
    let mut setting = setting();
    let url = "https://git.example.com/team/apps.git";
    setting["spec"]["repositories"][0]["url"] = url.into();
    setting["spec"]["applications"][0]["source"]["repoURL"] = url.into();
    let project = &mut setting["spec"]["projects"][0];
    project["destinations"][0] =
        json!({"namespace": "kube-system", "server": "https://production.example.com"});
    project["clusterResources"] = json!(["/Namespace", "example.com/Widget"]);
    host.reconcile(&ArgoSettings, &setting)
        .expect("the configuration allows it");
    setting["spec"]["repositories"][0]["url"] = "https://elsewhere.example.com/apps.git".into();
    let failure = failure(&host, &setting);
    let expected = "repository apps may not have the url https://elsewhere.example.com/apps.git";
    assert!(failure.message.contains(expected), "{}", failure.message);
}

#[test]
fn object_of_another_user_is_neither_changed_nor_deleted() {
    for (kind, name) in [("AppProject", "shop"), ("Application", "web")] {
        let host = MockHost::new();
        host.put(json!({"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "spec": {"of": "another user"},
            "metadata": {"name": name, "namespace": "argocd", "labels": {"app.kubernetes.io/managed-by": "ostler-devops",
                "devops.ostler.dev/argo-setting": "another"},
                "annotations": {"devops.ostler.dev/argo-setting-name": "b/shop"}}}));
        let failure = failure(&host, &setting());
        assert_eq!(failure.reason, "NotClaimed");
        assert!(
            failure.message.contains("belongs to the ArgoSetting b/shop"),
            "{}",
            failure.message
        );
        assert_eq!(object(&host, kind, name)["spec"], json!({"of": "another user"}));
        // Each call deletes what it can, and waits for it.
        let mut calls = (0..5).map(|_| host.cleanup(&ArgoSettings, &setting()));
        assert!(calls.any(|result| result.is_ok()));
        assert_eq!(object(&host, kind, name)["spec"], json!({"of": "another user"}));
    }
}

fn private_setting() -> Value {
    let mut setting = setting();
    setting["spec"]["repositories"][0]["passwordRef"] = json!({"name": "git", "key": "token"});
    setting
}

#[test]
fn password_of_a_repository_is_inserted_by_the_host() {
    let host = MockHost::new();
    host.secret("git", "token", "digest-1");
    host.reconcile(&ArgoSettings, &private_setting())
        .expect("an outcome");
    assert_eq!(host.checkpoints(), [json!({"repositorySecrets": ["apps-0d1f"]})]);
    let reference = gvk("", "v1", "Secret").named("argocd", "apps-0d1f");
    let secret = host.object(&reference).expect("is applied");
    let labels = &secret["metadata"]["labels"];
    assert_eq!(labels["argocd.argoproj.io/secret-type"], "repository");
    // The base64 of `ostler-argo-repository-password`, and of `shop`.
    assert_eq!(
        secret["data"]["password"],
        "b3N0bGVyLWFyZ28tcmVwb3NpdG9yeS1wYXNzd29yZA=="
    );
    assert_eq!(secret["data"]["project"], "c2hvcA==");
    let substitutions = host.substitutions();
    let [(name, substitution)] = &*substitutions else {
        panic!("{substitutions:?}");
    };
    assert_eq!((&**name, substitution.encoding), ("apps-0d1f", Encoding::Plain));
    assert_eq!(substitution.placeholder, "ostler-argo-repository-password");
}

#[test]
fn rotated_password_refreshes_the_applications_that_use_it_once() {
    let host = MockHost::new();
    host.secret("git", "token", "digest-1");
    host.reconcile(&ArgoSettings, &private_setting())
        .expect("an outcome");
    host.forget();
    host.reconcile(&ArgoSettings, &private_setting())
        .expect("an outcome");
    assert_eq!(host.writes(), Vec::<String>::new());
    host.secret("git", "token", "digest-2");
    host.reconcile(&ArgoSettings, &private_setting())
        .expect("an outcome");
    assert_eq!(host.writes(), ["apply Secret apps-0d1f", "patch Application web"]);
    let refresh = "argocd.argoproj.io/refresh";
    assert_eq!(
        object(&host, "Application", "web")["metadata"]["annotations"][refresh],
        "normal"
    );
}

#[test]
fn missing_password_is_waited_for() {
    let host = MockHost::new();
    let failure = failure(&host, &private_setting());
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "SecretMissing")
    );
}

#[test]
fn refused_secret_is_not_claimed() {
    let host = MockHost::new();
    host.secret("git", "token", "digest-1").deny("kubernetes.apply");
    // The project is applied first, so the denial comes with it: as it is after a first reconcile.
    let mut setting = private_setting();
    setting["spec"]["projects"] = json!([{"name": "shop", "destinations": [{"namespace": "team"}]}]);
    let failure = failure(&host, &setting);
    assert!(matches!(failure.resolution, Resolution::Denied(_)));
    let claims = failure
        .status
        .map(|status| from_slice::<Value>(&status).expect("JSON")["repositorySecrets"].clone());
    assert!(claims.is_none_or(|claims| claims.is_null()));
}

#[test]
fn temporary_application_exists_while_a_deployment_needs_it() {
    let host = MockHost::new();
    let mut setting = setting();
    setting["spec"]["applications"][0]["lifetime"] = "Deployment".into();
    host.reconcile(&ArgoSettings, &setting).expect("an outcome");
    assert_eq!(host.object(&argo("Application", "web")), None);
    let record = |phase: &str| {
        json!({"apiVersion": "devops.ostler.dev/v1alpha1", "kind": "DeploymentRecord",
            "metadata": {"name": "d", "namespace": "team"},
            "spec": {"sync": {"settingRef": {"name": "shop"}, "application": "web"}},
            "status": {"ttl": {"phase": phase}}})
    };
    host.put(record("Monitoring"));
    let outcome = host.reconcile(&ArgoSettings, &setting).expect("an outcome");
    assert!(host.object(&argo("Application", "web")).is_some());
    assert_eq!(
        condition(&outcome, "Ready").0,
        "Ready",
        "a deployment waits for its application, its project does not"
    );
    host.put(record("Cleanup"));
    keep_deleted(&host, "Application", "web");
    let outcome = host.reconcile(&ArgoSettings, &setting).expect("an outcome");
    assert_eq!(condition(&outcome, "Ready").0, "Ready");
    let mut live = object(&host, "Application", "web");
    live["metadata"]["deletionTimestamp"] = Value::Null;
    host.put(live);
    host.reconcile(&ArgoSettings, &setting).expect("an outcome");
    assert_eq!(host.object(&argo("Application", "web")), None);
}

#[test]
fn deployments_that_need_no_application_are_neither_listed_nor_keep_it() {
    let host = MockHost::new();
    let mut setting = setting();
    setting["spec"]["applications"][0]["lifetime"] = "Deployment".into();
    let put = |name: &str, pointer: &str, value: Value| {
        let mut record = json!({"apiVersion": "devops.ostler.dev/v1alpha1", "kind": "DeploymentRecord",
            "metadata": {"name": name, "namespace": "team", "deletionTimestamp": null},
            "spec": {"sync": {"settingRef": {"name": "shop"}, "application": "web"}},
            "status": {"ttl": {"phase": "Monitoring"}}});
        *record.pointer_mut(pointer).expect("is there") = value;
        host.put(record);
    };
    put("a", "/status/ttl/phase", json!("Completed"));
    put("b", "/status/ttl/phase", json!("Cleanup"));
    put("c", "/metadata/deletionTimestamp", json!("2026-11-22T08:06:04Z"));
    put("d", "/metadata/namespace", json!("another"));
    put("e", "/spec/sync/settingRef/name", json!("another"));
    put("f", "/spec/sync/application", json!("another"));
    host.reconcile(&ArgoSettings, &setting).expect("an outcome");
    assert_eq!(host.object(&argo("Application", "web")), None);
    assert_eq!(host.listed_objects(), 0);
    // However many need it, one is read.
    for i in 0..100 {
        put(&format!("live-{i}"), "/status", json!({}));
    }
    host.reconcile(&ArgoSettings, &setting).expect("an outcome");
    assert!(host.object(&argo("Application", "web")).is_some());
    assert_eq!(host.listed_objects(), 2, "the record and the project");
}

/// Argo CD's finalizer keeps an object until its controller has done its part; the mock removes it at once.
fn keep_deleted(host: &MockHost, kind: &str, name: &str) {
    let mut live = object(host, kind, name);
    live["metadata"]["deletionTimestamp"] = "2026-11-22T08:06:04Z".into();
    host.put(live);
}

#[test]
fn removed_application_goes_before_its_project() {
    let host = MockHost::new();
    host.reconcile(&ArgoSettings, &setting()).expect("an outcome");
    compare(&host, "web", "Synced");
    keep_deleted(&host, "Application", "web");
    let mut edited = setting();
    edited["spec"]["applications"] = json!([]);
    edited["spec"]["repositories"] = json!([]);
    edited["spec"]["projects"] = json!([{"name": "new", "destinations": [{"namespace": "team"}]}]);
    host.forget();
    let outcome = host.reconcile(&ArgoSettings, &edited).expect("an outcome");
    assert_eq!(host.writes(), ["apply AppProject new"]);
    assert_eq!(
        condition(&outcome, "Ready"),
        ("DeletionPending", "Argo CD is deleting web, shop.")
    );
    host.remove(&argo("Application", "web"));
    host.forget();
    host.reconcile(&ArgoSettings, &edited).expect("an outcome");
    assert_eq!(host.writes(), ["delete AppProject shop"]);
}

#[test]
fn cleanup_terminates_the_operation_and_deletes_in_order() {
    let host = MockHost::new();
    host.secret("git", "token", "digest-1");
    let mut setting = private_setting();
    host.reconcile(&ArgoSettings, &setting).expect("an outcome");
    setting["status"] = json!({"repositorySecrets": ["apps-0d1f"]});
    compare(&host, "web", "Synced");
    let mut live = object(&host, "Application", "web");
    live["operation"] = json!({"sync": {}});
    live["status"]["operationState"] = json!({"phase": "Running"});
    host.put(live.clone());
    host.forget();
    let wait = host.cleanup(&ArgoSettings, &setting).expect_err("waits");
    assert_eq!(
        (wait.resolution, &*wait.reason),
        (Resolution::Wait, "DeletionPending")
    );
    assert_eq!(host.writes(), ["patch Application web", "delete Application web"]);

    // The finalizer keeps it while the operation ends.
    live["metadata"]["deletionTimestamp"] = "2026-11-22T08:06:04Z".into();
    live["status"]["operationState"]["phase"] = "Terminating".into();
    host.put(live);
    host.forget();
    host.cleanup(&ArgoSettings, &setting).expect_err("waits");
    assert!(
        host.writes().is_empty(),
        "neither the Secret nor the project goes before it"
    );

    host.remove(&argo("Application", "web"));
    host.cleanup(&ArgoSettings, &setting)
        .expect_err("waits for the project");
    assert_eq!(
        host.writes(),
        ["delete Secret apps-0d1f", "delete AppProject shop"]
    );
    host.cleanup(&ArgoSettings, &setting).expect("an outcome");
}

#[test]
fn project_in_deletion_is_touched_once_when_no_application_uses_it() {
    let host = MockHost::new();
    host.reconcile(&ArgoSettings, &setting()).expect("an outcome");
    keep_deleted(&host, "AppProject", "shop");
    host.remove(&argo("Application", "web"));
    host.put(
        json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
        "metadata": {"name": "foreign", "namespace": "argocd"}, "spec": {"project": "shop"}}),
    );
    host.forget();
    host.cleanup(&ArgoSettings, &setting()).expect_err("waits");
    assert!(host.writes().is_empty(), "an application of another user uses it");
    host.remove(&argo("Application", "foreign"));
    for _ in 0..3 {
        host.cleanup(&ArgoSettings, &setting()).expect_err("waits");
    }
    assert_eq!(host.writes(), ["patch AppProject shop"]);
}

#[test]
fn error_of_an_application_is_shown() {
    let host = MockHost::new();
    host.reconcile(&ArgoSettings, &setting()).expect("an outcome");
    compare(&host, "web", "Unknown");
    let mut live = object(&host, "Application", "web");
    live["status"]["conditions"] =
        json!([{"type": "ComparisonError", "message": "web: app path does not exist"}]);
    host.put(live);
    let outcome = host.reconcile(&ArgoSettings, &setting()).expect("an outcome");
    let expected = ("ApplicationError", "web: web: app path does not exist");
    assert_eq!(condition(&outcome, "Ready"), expected);
}

#[test]
fn suspended_setting_writes_nothing() {
    let host = MockHost::new();
    let mut setting = setting();
    setting["spec"]["suspend"] = true.into();
    let outcome = host.reconcile(&ArgoSettings, &setting).expect("an outcome");
    assert_eq!(condition(&outcome, "Ready").0, "Suspended");
    assert!(host.writes().is_empty());
}
