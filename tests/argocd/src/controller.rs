//! The controller on an API server: it plays the rules on all Applications of a namespace, and lets go of AppProjects that no
//! Application uses, when they change or at its resync.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{ApplicationWorld, ControllerStep, next_step, releases_project, resync};

/// Interval between two looks at all objects.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of the looks at AppProjects that have not changed. A real controller takes up to minutes.
const PROJECT_RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// Number of operations that are remembered.
const MAX_OPERATIONS: usize = 1000;

/// Worlds of the Applications by their names, the names of those that changed, and the operations that were taken.
#[derive(Default)]
struct State {
    worlds: BTreeMap<String, ApplicationWorld>,
    changed: BTreeSet<String>,
    operations: Vec<(String, Value)>,
}

/// A running controller. It stops when it is dropped.
pub struct ArgoController {
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for ArgoController {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ArgoController {
    /// Starts the controller for a namespace.
    pub fn start(client: Client, namespace: &str) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let api = |kind: &str| {
            let gvk = GroupVersionKind::gvk("argoproj.io", "v1alpha1", kind);
            Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&gvk))
        };
        let task = tokio::spawn(run(api("Application"), api("AppProject"), state.clone()));
        Self { state, task }
    }

    /// Sets what an Application deploys, and has it compared, as a webhook of the repository does.
    pub fn set_world(&self, application: &str, world: ApplicationWorld) {
        let mut state = self.lock();
        state.changed.insert(application.into());
        state.worlds.insert(application.into(), world);
    }

    /// Returns the operations that were taken so far, each with the name of its Application.
    pub fn operations(&self) -> Vec<(String, Value)> {
        self.lock().operations.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(applications: Api<DynamicObject>, projects: Api<DynamicObject>, state: Arc<Mutex<State>>) {
    let mut seen_projects = BTreeMap::new();
    let mut last_resync = Instant::now();
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        // A failed list is repeated like a real controller's.
        let Ok(all_projects) = projects.list(&ListParams::default()).await else {
            continue;
        };
        // Listed after the projects, so that none is taken for used in the version that was touched when it no longer was.
        let Ok(found) = applications.list(&ListParams::default()).await else {
            continue;
        };
        let names: Vec<String> = all_projects
            .iter()
            .filter_map(|p| p.metadata.name.clone())
            .collect();
        let mut used = Vec::new();
        for application in found {
            let name = application.metadata.name.clone().unwrap_or_default();
            let Ok(mut object) = serde_json::to_value(&application) else {
                continue;
            };
            let project = object["spec"]["project"].as_str().unwrap_or_default().to_owned();
            let (mut world, is_changed) = {
                let state = state.lock().unwrap_or_else(PoisonError::into_inner);
                let world = state.worlds.get(&name).cloned().unwrap_or_default();
                (world, state.changed.contains(&name))
            };
            if is_changed {
                resync(&mut object);
            }
            world.has_project = names.contains(&project);
            used.push(project);
            let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let ControllerStep::Write(next) = next_step(&object, &world, &time) else {
                continue;
            };
            let is_taken = next["operation"].is_object()
                && next["status"]["operationState"]["phase"] == "Running"
                && object["status"]["operationState"]["phase"] != "Running";
            let Ok(next) = serde_json::from_value::<DynamicObject>(next) else {
                continue;
            };
            // The version is part of the object: a conflict is looked at again.
            let written = applications.replace(&name, &PostParams::default(), &next).await;
            if written.is_err() {
                continue;
            }
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if is_changed {
                // The request stays in the Application until it has been compared.
                state.changed.remove(&name);
            }
            if is_taken && state.operations.len() < MAX_OPERATIONS {
                state.operations.push((name, object["operation"].clone()));
            }
        }
        let is_resync = last_resync.elapsed() >= PROJECT_RESYNC_INTERVAL;
        if is_resync {
            last_resync = Instant::now();
        }
        for project in all_projects {
            let name = project.metadata.name.clone().unwrap_or_default();
            let version = project.metadata.resource_version.clone().unwrap_or_default();
            let seen = seen_projects.insert(name.clone(), version);
            let Ok(object) = serde_json::to_value(&project) else {
                continue;
            };
            if releases_project(&object, seen.as_deref(), used.contains(&name), is_resync) {
                let patch = json!({"metadata": {"finalizers": null}});
                // It may be gone already.
                projects
                    .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                    .await
                    .ok();
            }
        }
    }
}
