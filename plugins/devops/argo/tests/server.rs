//! ArgoSettings of an Argo CD that is reached by its API, against the simulator.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use argocd_simulator::{ArgoRequest, Rest};
use devops_argo::ArgoSettings;
use ostler_sdk::{
    Error, Failure, Next, Outcome,
    mock::{MockHost, response},
    serde_json::{Value, from_slice, json},
};

const OWNER: &str = "devops.ostler.dev/argo-setting";
const URL: &str = "https://git.example.com/apps.git";
const REPOSITORY: &str = "/api/v1/repositories/https%3A%2F%2Fgit.example.com%2Fapps.git?appProject=shop";

/// A host, and the server that it reaches.
struct World {
    host: MockHost,
    server: Rc<RefCell<Rest>>,
    setting: Value,
    checkpoints_seen: usize,
}

impl World {
    fn new() -> Self {
        let server = Rc::new(RefCell::new(Rest::new("2026-11-22T08:30:00Z")));
        let host = MockHost::new();
        let served = server.clone();
        host.serve(move |request| {
            let body = request
                .body
                .as_deref()
                .map(|body| from_slice(body).expect("JSON"));
            let content_type = request.headers.iter().find(|h| h.name == "Content-Type");
            let reply = served.borrow_mut().answer(ArgoRequest {
                method: request.method.as_str(),
                path: &request.path_and_query,
                content_type: content_type.map(|header| &*header.value),
                body: &body.unwrap_or_default(),
            });
            Ok(response(reply.status, &[], reply.body))
        });
        host.secret("git", "token", "digest-1");
        let setting = json!({
            "apiVersion": "devops.ostler.dev/v1alpha1", "kind": "ArgoSetting",
            "metadata": {"name": "shop", "namespace": "team", "uid": "0d1f", "generation": 1},
            "spec": {
                "server": {"url": "https://argocd.example.com", "tokenRef": {"name": "argo", "key": "token"}},
                "projects": [{"name": "shop", "destinations": [{"namespace": "team"}]}],
                "repositories": [{"name": "apps", "url": URL, "project": "shop",
                    "passwordRef": {"name": "git", "key": "token"}}],
                "applications": [{"name": "web", "project": "shop",
                    "source": {"repoURL": URL, "path": "web", "revision": "main"},
                    "automated": {"prune": true}}],
            },
        });
        Self {
            host,
            server,
            setting,
            checkpoints_seen: 0,
        }
    }

    /// Persists checkpoints and status as the host does.
    fn persist(&mut self, status: Option<&Vec<u8>>) {
        let checkpoints = self.host.checkpoints();
        for fields in &checkpoints[self.checkpoints_seen..] {
            for (name, value) in fields.as_object().expect("fields") {
                self.setting["status"][name] = value.clone();
            }
        }
        self.checkpoints_seen = checkpoints.len();
        if let Some(status) = status {
            self.setting["status"] = from_slice(status).expect("JSON");
        }
    }

    fn reconcile(&mut self) -> Result<Outcome, Failure> {
        let result = self.host.reconcile(&ArgoSettings, &self.setting);
        let status = match &result {
            Ok(outcome) => outcome.status.clone(),
            Err(failure) => failure.status.clone(),
        };
        self.persist(status.as_ref());
        self.settle();
        result
    }

    fn clean_up(&mut self) -> Result<Outcome, Failure> {
        let result = self.host.cleanup(&ArgoSettings, &self.setting);
        self.settle();
        result
    }

    fn settle(&self) {
        while self.server.borrow_mut().advance() {}
    }

    fn read(&self, path: &str) -> Value {
        self.send("GET", path, &Value::Null)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let reply = self.server.borrow_mut().answer(ArgoRequest {
            method,
            path,
            content_type: Some("application/json"),
            body,
        });
        reply.body
    }

    /// Requests that change something, since the last call.
    fn writes(&self) -> Vec<String> {
        let mut requests = self.host.requests();
        requests.retain(|request| !request.starts_with("GET"));
        self.host.forget();
        requests
    }
}

fn ready(outcome: &Outcome) -> (&str, &str) {
    let found = outcome
        .conditions
        .iter()
        .find(|c| c.type_ == "Ready")
        .expect("Ready");
    (&found.reason, &found.message)
}

#[test]
fn setting_is_written_once_and_followed_by_polls() {
    let mut world = World::new();
    let outcome = world.reconcile().expect("an outcome");
    assert_eq!(
        world.writes(),
        [
            "POST /api/v1/projects",
            "POST /api/v1/repositories?upsert=true",
            "POST /api/v1/applications?validate=false",
        ]
    );
    // The repository is new, so the application is refreshed, which answers once it is compared.
    assert_eq!(ready(&outcome).0, "Ready", "{}", ready(&outcome).1);
    let project = world.read("/api/v1/projects/shop");
    assert_eq!(project["metadata"]["labels"][OWNER], "0d1f");
    assert_eq!(project["spec"]["sourceRepos"], json!([URL]));
    assert_eq!(world.read(REPOSITORY)["name"], "apps-0d1f");
    assert_eq!(world.setting["status"]["serverProjects"], json!(["shop"]));

    let outcome = world.reconcile().expect("an outcome");
    assert_eq!(ready(&outcome).0, "Ready", "{}", ready(&outcome).1);
    assert_eq!(outcome.next, Next::Poll(Some(60_000)));
    assert_eq!(world.writes(), [""; 0], "nothing has changed");
    assert_eq!(world.setting["status"]["applications"][0]["health"], "Healthy");

    world.setting["spec"]["applications"][0]["source"]["path"] = "other".into();
    world.setting["spec"]["projects"][0]["description"] = "edited".into();
    world.reconcile().expect("an outcome");
    assert_eq!(
        world.writes(),
        [
            "PUT /api/v1/projects/shop",
            "PUT /api/v1/applications/web?validate=false&project=shop",
        ]
    );
    let live = world.read("/api/v1/applications/web?project=shop");
    assert_eq!(live["spec"]["source"]["path"], "other");
}

#[test]
fn token_and_passwords_are_inserted_by_the_host() {
    let mut world = World::new();
    world.reconcile().expect("an outcome");
    let upstream = ostler_sdk::gvk("ostler.dev", "v1alpha1", "Upstream").named("team", "argo-shop");
    let upstream = world.host.object(&upstream).expect("is applied");
    assert_eq!(
        upstream["spec"]["auth"],
        json!({"bearer": {"tokenSecretRef": {"name": "argo", "key": "token"}}})
    );
    let inserted: Vec<_> = world
        .host
        .sent()
        .iter()
        .flat_map(|request| request.substitutions.clone())
        .collect();
    assert_eq!(inserted.len(), 1, "{inserted:?}");
    world.writes();
    world.host.secret("git", "token", "digest-2");
    world.reconcile().expect("an outcome");
    assert_eq!(world.writes(), ["POST /api/v1/repositories?upsert=true"]);
}

#[test]
fn changed_fields_of_a_repository_are_written() {
    let mut world = World::new();
    for (field, value) in [("username", json!("bot")), ("insecure", json!(true))] {
        world.reconcile().expect("an outcome");
        world.writes();
        world.setting["spec"]["repositories"][0][field] = value;
        world.reconcile().expect("an outcome");
        assert_eq!(
            world.writes(),
            ["POST /api/v1/repositories?upsert=true"],
            "{field}"
        );
        world.reconcile().expect("an outcome");
        assert_eq!(world.writes(), [""; 0], "{field}: once");
    }
}

#[test]
fn application_is_moved_to_another_project() {
    let mut world = World::new();
    let spec = &mut world.setting["spec"];
    let project = json!({"name": "other", "destinations": [{"namespace": "team"}]});
    let repository = json!({"name": "other-apps", "url": URL, "project": "other"});
    spec["projects"].as_array_mut().expect("projects").push(project);
    spec["repositories"]
        .as_array_mut()
        .expect("repositories")
        .push(repository);
    world.reconcile().expect("an outcome");
    world.writes();
    world.setting["spec"]["applications"][0]["project"] = "other".into();
    world.reconcile().expect("an outcome");
    assert_eq!(
        world.writes(),
        ["PUT /api/v1/applications/web?validate=false&project=shop"]
    );
    let live = world.read("/api/v1/applications/web?project=other");
    assert_eq!(live["spec"]["project"], "other");
    world.reconcile().expect("an outcome");
    assert_eq!(world.writes(), [""; 0], "once");
}

#[test]
fn what_others_have_is_neither_changed_nor_deleted() {
    let project = json!({"project": {"metadata": {"name": "shop"}, "spec": {"sourceRepos": ["*"],
        "destinations": [{"server": "*", "namespace": "*"}]}}});
    let application = json!({"metadata": {"name": "web"}, "spec": {"project": "default",
        "source": {"repoURL": URL, "path": "web"}, "destination": {"server": "x", "namespace": "team"}}});
    let repository = json!({"repo": URL, "project": "shop", "name": "theirs"});
    for (path, body) in [
        ("/api/v1/projects", project),
        ("/api/v1/repositories", repository),
        ("/api/v1/applications?validate=false", application),
    ] {
        let mut world = World::new();
        world.send("POST", path, &body);
        let failure = world.reconcile().expect_err("fails");
        // An application of another project is hidden until the create is refused.
        assert_eq!(failure.reason, "NotClaimed", "{path}: {}", failure.message);
        world.clean_up().ok();
        world.clean_up().expect("nothing is left");
        match path {
            "/api/v1/projects" => assert_eq!(world.read("/api/v1/projects/shop")["metadata"]["name"], "shop"),
            "/api/v1/repositories" => assert_eq!(world.read(REPOSITORY)["name"], "theirs"),
            _ => {
                let live = world.read("/api/v1/applications/web?project=default");
                assert!(live["metadata"]["deletionTimestamp"].is_null());
            }
        }
    }
}

#[test]
fn deletion_terminates_the_operation_and_takes_the_project_last() {
    let mut world = World::new();
    world.reconcile().expect("an outcome");
    world.server.borrow_mut().world("web").hook = Some(argocd_simulator::Hook::Running);
    world.send(
        "POST",
        "/api/v1/applications/web/sync",
        &json!({"project": "shop"}),
    );
    world.settle();
    world.writes();
    let mut remaining = 0;
    while let Err(failure) = world.clean_up() {
        assert_eq!(failure.reason, "DeletionPending");
        remaining += 1;
        assert!(remaining < 10, "{}", failure.message);
    }
    assert!(remaining > 0, "the application was waited for");
    assert_eq!(
        world.writes(),
        [
            "DELETE /api/v1/applications/web/operation?project=shop",
            "DELETE /api/v1/applications/web?project=shop",
            &["DELETE ", REPOSITORY].concat(),
            "DELETE /api/v1/projects/shop",
        ]
    );
    assert_eq!(world.read("/api/v1/projects/shop")["code"], 5);
}

/// The API has no preconditions, so that an application is read again right before its deletion.
#[test]
fn application_that_another_user_made_after_the_list_is_not_deleted() {
    let mut world = World::new();
    world.reconcile().expect("an outcome");
    let path = "/api/v1/applications/web?project=shop";
    let foreign = json!({"metadata": {"name": "web"}, "spec": world.read(path)["spec"]});
    let served = world.server.clone();
    let is_replaced = Cell::new(false);
    world.host.serve(move |request| {
        let mut server = served.borrow_mut();
        let mut answer = |method: &str, path: &str, body: &Value| {
            let reply = server.answer(ArgoRequest {
                method,
                path,
                content_type: Some("application/json"),
                body,
            });
            while server.advance() {}
            reply
        };
        let body = request
            .body
            .as_deref()
            .map(|body| from_slice(body).expect("JSON"));
        let reply = answer(
            request.method.as_str(),
            &request.path_and_query,
            &body.unwrap_or_default(),
        );
        if request.path_and_query.contains("?selector=") && !is_replaced.replace(true) {
            answer("DELETE", path, &Value::Null);
            assert_eq!(
                answer("POST", "/api/v1/applications?validate=false", &foreign).status,
                200
            );
        }
        Ok(response(reply.status, &[], reply.body))
    });
    world.writes();
    world.clean_up().expect_err("the list had the application");
    let writes = world.writes();
    assert!(
        !writes
            .iter()
            .any(|write| write.starts_with("DELETE /api/v1/applications")),
        "{writes:?}"
    );
    assert!(world.read(path)["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(world.read(path)["metadata"]["name"], "web");
}

#[test]
fn removed_application_goes_before_its_project_and_repository() {
    let mut world = World::new();
    world.reconcile().expect("an outcome");
    let other = json!([{"name": "other", "destinations": [{"namespace": "team"}]}]);
    world.setting["spec"]["projects"] = other;
    world.setting["spec"]["applications"] = json!([]);
    world.setting["spec"]["repositories"] = json!([]);
    world.writes();
    let outcome = world.reconcile().expect("an outcome");
    assert_eq!(ready(&outcome).0, "DeletionPending");
    world.reconcile().expect("an outcome");
    let deletions: Vec<String> = world
        .writes()
        .into_iter()
        .filter(|w| w.starts_with("DELETE"))
        .collect();
    assert_eq!(
        deletions,
        [
            "DELETE /api/v1/applications/web?project=shop",
            &["DELETE ", REPOSITORY].concat(),
            "DELETE /api/v1/projects/shop",
        ]
    );
    let status = &world.setting["status"];
    assert_eq!(status["serverProjects"], json!(["other"]));
    assert_eq!(
        status["serverRepositories"],
        Value::Null,
        "an empty list is left out"
    );
}

#[test]
fn unreachable_server_is_an_error_and_nothing_is_taken_for_gone() {
    let mut world = World::new();
    world.reconcile().expect("an outcome");
    world
        .host
        .serve(|_| Err(Error::Unavailable("the connection was refused".into())));
    assert_eq!(world.reconcile().expect_err("fails").reason, "ArgoFailed");
    assert_eq!(world.clean_up().expect_err("fails").reason, "ArgoFailed");
}
