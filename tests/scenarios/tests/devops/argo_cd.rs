//! The Argo CD of a test: the simulator of its controller, or of its API, or in the tier `argocd` the real one.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use argocd_simulator::{ApplicationWorld, ArgoController, Hook};
use devops_simulators::{
    argo::Argo,
    git::{GIT_USER, GitServer},
};
use futures::StreamExt;
use kube::{
    Api,
    api::{DynamicObject, ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use ostler::testing::key::Gvk;
use ostler_test_harness::{
    Lab,
    argocd::{ArgoCdPrograms, ArgoCdServer},
    workspace_root,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::pack::application;

/// Repository of the manifests.
const REPOSITORY: &str = "apps";
/// Repository that a project gets later.
const OTHER_REPOSITORY: &str = "more";
/// Branch of the manifests.
pub const REVISION: &str = "v1";
/// What the applications deploy. Argo CD has no health for it, so that it is healthy when it is there.
pub const MANIFEST: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {greeting: hello}\n";
/// A hook that no kubelet ever runs, so that a sync waits for it.
const HOOK: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: hold-sync\n  annotations: \
                    {argocd.argoproj.io/hook: PreSync}\nspec:\n  restartPolicy: Never\n  \
                    containers: [{name: wait, image: registry.example.com/wait}]\n";
/// Pause before a watch that has failed is begun again.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Page with the rights that the account of an ArgoSetting needs.
const RIGHTS_PAGE: &str = "docs/devops/argo.md";

/// An Argo CD, and a repository with the manifests of the application `web`.
pub struct ArgoCd {
    engine: Engine,
    git: GitServer,
}

/// The same by its API. The simulated one has no custom resources in the cluster.
pub struct ArgoCdRest {
    pub api: Argo,
    /// The real one.
    controller: Option<RealController>,
    git: GitServer,
}

enum Engine {
    Simulator(ArgoController),
    Real(RealController),
}

/// Applies the CRDs, and waits until the kinds are served.
pub async fn apply_crds(lab: &Lab) {
    let programs = ArgoCdPrograms::find();
    for name in ["application", "appproject"] {
        let crd = match &programs {
            Some(programs) => programs.read_crd(name),
            None => {
                let path = workspace_root().join(format!("tests/argocd/crds/{name}s.yaml"));
                std::fs::read_to_string(path).expect("a CRD")
            }
        };
        lab.apply_yaml(&crd).await;
    }
    lab.wait_until("the kinds of Argo CD are served", async || {
        let api = lab.api(&application(), &lab.namespace);
        api.list(&ListParams::default()).await.is_ok()
    })
    .await;
}

impl ArgoCd {
    /// Starts it for the namespace of the test, with its CRDs.
    pub async fn start(lab: &Lab) -> Self {
        apply_crds(lab).await;
        let git = GitServer::start_public().await;
        create_repository(&git, REPOSITORY);
        let engine = match ArgoCdPrograms::find() {
            Some(programs) => Engine::Real(RealController::start(lab, &programs).await),
            None => Engine::Simulator(ArgoController::start(lab.client.clone(), &lab.namespace)),
        };
        Self { engine, git }
    }

    /// Returns the URL of the repository.
    pub fn repository_url(&self) -> String {
        self.git.repository_url(REPOSITORY)
    }

    /// Returns the operations that were taken so far, each with the name of its Application.
    pub fn operations(&self) -> Vec<(String, Value)> {
        match &self.engine {
            Engine::Simulator(controller) => controller.operations(),
            Engine::Real(controller) => controller.operations(),
        }
    }

    /// Sets what an application deploys.
    ///
    /// # Panics
    /// With the real controller, which has no such world.
    pub fn set_world(&self, application: &str, world: ApplicationWorld) {
        match &self.engine {
            Engine::Simulator(controller) => controller.set_world(application, world),
            Engine::Real(_) => panic!("the world of {application} is set in the simulator only"),
        }
    }

    /// Returns whether it is the real one, which deploys what is in the repository.
    pub fn is_real(&self) -> bool {
        matches!(self.engine, Engine::Real(_))
    }

    /// Has it take no operation of an application, or take them again.
    pub fn pause(&self, application: &str, paused: bool) {
        match &self.engine {
            Engine::Simulator(controller) => {
                let world = ApplicationWorld {
                    is_watched: !paused,
                    ..ApplicationWorld::default()
                };
                controller.set_world(application, world);
            }
            Engine::Real(controller) => controller.server.pause_controller(paused),
        }
    }

    /// Has the next sync of the application `web` run until [`ArgoCd::release_sync`].
    pub fn hold_sync(&self) {
        match &self.engine {
            Engine::Simulator(controller) => controller.set_world("web", held_world()),
            Engine::Real(_) => commit_hook(&self.git),
        }
    }

    /// Ends the hook of a sync that runs.
    pub async fn release_sync(&self, lab: &Lab) {
        match &self.engine {
            Engine::Simulator(controller) => controller.set_world("web", ApplicationWorld::default()),
            Engine::Real(_) => {
                // As a kubelet does.
                let pods = lab.api(&Gvk::new("", "v1", "Pod"), &lab.namespace);
                lab.wait_until("the hook runs", async || {
                    pods.get_opt("hold-sync").await.is_ok_and(|pod| pod.is_some())
                })
                .await;
                let ended = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
                pods.patch_status("hold-sync", &PatchParams::default(), &ended)
                    .await
                    .expect("the hook runs");
            }
        }
    }
}

fn create_repository(git: &GitServer, name: &str) {
    git.create_repository(name);
    git.commit(name, REVISION, &[("web/config.yaml", MANIFEST)]);
}

/// Adds the hook to what the application `web` deploys.
fn commit_hook(git: &GitServer) {
    git.commit(REPOSITORY, REVISION, &[("web/hook.yaml", HOOK)]);
}

/// What the application `web` deploys with the hook, in the simulators.
fn held_world() -> ApplicationWorld {
    ApplicationWorld {
        hook: Some(Hook::Running),
        ..ApplicationWorld::default()
    }
}

impl ArgoCdRest {
    /// Starts it. The account of the real one has the documented rights in the project `shop`.
    pub async fn start(lab: &Lab) -> Self {
        let git = GitServer::start_private().await;
        create_repository(&git, REPOSITORY);
        create_repository(&git, OTHER_REPOSITORY);
        let Some(programs) = ArgoCdPrograms::find() else {
            return Self {
                api: Argo::start().await,
                controller: None,
                git,
            };
        };
        apply_crds(lab).await;
        let mut controller = RealController::start(lab, &programs).await;
        let policy = read_documented_policy(&[
            ("PROJECT", "shop"),
            ("URL", &git.repository_url(OTHER_REPOSITORY)),
            ("SERVER", "https://kubernetes.default.svc"),
        ]);
        let started = programs.start_api(lab, &mut controller.server, &policy).await;
        Self {
            api: Argo::front(&started.origin, started.token, started.admin_token).await,
            controller: Some(controller),
            git,
        }
    }

    /// Returns the repository in a spec, with its user and a password in the Secret `git`.
    pub fn repository(&self) -> Value {
        self.describe_repository(REPOSITORY)
    }

    /// Returns another repository in a spec.
    pub fn other_repository(&self) -> Value {
        self.describe_repository(OTHER_REPOSITORY)
    }

    fn describe_repository(&self, name: &str) -> Value {
        json!({ "name": name, "url": self.git.repository_url(name), "project": "shop", "username": GIT_USER,
            "passwordRef": { "name": "git", "key": "value" } })
    }

    /// Returns the URL of the repository, whose password is `GIT_PASSWORD`.
    pub fn repository_url(&self) -> String {
        self.git.repository_url(REPOSITORY)
    }

    /// Has the syncs of the application `web` run and not end.
    pub fn hold_syncs(&self) {
        match &self.controller {
            Some(_) => commit_hook(&self.git),
            None => self.api.set_world("web", held_world()),
        }
    }

    /// Returns the operations that were taken so far, each with the name of its application.
    pub fn operations(&self) -> Vec<(String, Value)> {
        match &self.controller {
            Some(controller) => controller.operations(),
            None => self.api.operations(),
        }
    }
}

/// Reads the policy of the account from the documentation, with values of its variables.
fn read_documented_policy(values: &[(&str, &str)]) -> String {
    let page = std::fs::read_to_string(workspace_root().join(RIGHTS_PAGE)).expect("the page");
    let lines = page.lines().map(str::trim_start);
    let policy: Vec<&str> = lines
        .filter(|line| line.starts_with("p, role:ostler, "))
        .collect();
    assert!(!policy.is_empty(), "{RIGHTS_PAGE} has no policy");
    let policy = policy.join("\n");
    values
        .iter()
        .fold(policy, |policy, (name, value)| policy.replace(name, value))
}

/// The operations that were seen.
#[derive(Default)]
struct Seen {
    /// UID of the application, start, and information of each.
    keys: BTreeSet<String>,
    operations: Vec<(String, Value)>,
}

impl Seen {
    /// Adds the operation that an Application shows. Its state is that of one operation until another begins.
    fn add(&mut self, application: &DynamicObject) {
        let state = &application.data["status"]["operationState"];
        if state["startedAt"].is_null() {
            return;
        }
        let (uid, operation) = (&application.metadata.uid, &state["operation"]);
        let key = json!([uid, state["startedAt"], operation["info"]]).to_string();
        if self.keys.insert(key) {
            let name = application.metadata.name.clone().unwrap_or_default();
            self.operations.push((name, operation.clone()));
        }
    }
}

/// The real controller, and a watch of its Applications.
struct RealController {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
    server: ArgoCdServer,
}

impl Drop for RealController {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RealController {
    async fn start(lab: &Lab, programs: &ArgoCdPrograms) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let applications = lab.api(&application(), &lab.namespace);
        Self {
            task: tokio::spawn(watch_operations(applications, seen.clone())),
            seen,
            server: programs.start(lab).await,
        }
    }

    fn operations(&self) -> Vec<(String, Value)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.operations.clone()
    }
}

/// Watches the Applications: a list could miss an operation that is followed by another one, or by the deletion.
async fn watch_operations(applications: Api<DynamicObject>, seen: Arc<Mutex<Seen>>) {
    let mut version = "0".to_owned();
    loop {
        let Ok(stream) = applications.watch(&WatchParams::default(), &version).await else {
            tokio::time::sleep(WATCH_PAUSE).await;
            continue;
        };
        let mut stream = pin!(stream);
        while let Some(Ok(event)) = stream.next().await {
            match event {
                WatchEvent::Added(found) | WatchEvent::Modified(found) | WatchEvent::Deleted(found) => {
                    seen.lock().unwrap_or_else(PoisonError::into_inner).add(&found);
                    version = found.metadata.resource_version.unwrap_or(version);
                }
                WatchEvent::Bookmark(_) => {}
                // The version has expired.
                WatchEvent::Error(_) => version = "0".to_owned(),
            }
        }
    }
}
