//! The controller on an API server: it plays the rules on all Applications of a namespace, and lets go of AppProjects that no
//! Application uses.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{Step, World, next_step};

/// Interval between two looks at all objects.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Number of operations that are remembered.
const MAX_OPERATIONS: usize = 1000;

/// Worlds of the Applications by their names, and the operations that were taken.
#[derive(Default)]
struct State {
    worlds: BTreeMap<String, World>,
    operations: Vec<(String, Value)>,
}

/// A running controller. It stops when it is dropped.
pub struct Controller {
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Controller {
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

    /// Sets what an Application deploys.
    pub fn set_world(&self, application: &str, world: World) {
        self.lock().worlds.insert(application.into(), world);
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
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        // A failed list is repeated like a real controller's.
        let Ok(found) = applications.list(&ListParams::default()).await else {
            continue;
        };
        let Ok(all_projects) = projects.list(&ListParams::default()).await else {
            continue;
        };
        let names: Vec<String> = all_projects
            .iter()
            .filter_map(|p| p.metadata.name.clone())
            .collect();
        let mut used = Vec::new();
        for application in found {
            let name = application.metadata.name.clone().unwrap_or_default();
            let Ok(object) = serde_json::to_value(&application) else {
                continue;
            };
            let project = object["spec"]["project"].as_str().unwrap_or_default().to_owned();
            let mut world = {
                let state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.worlds.get(&name).cloned().unwrap_or_default()
            };
            world.has_project = names.contains(&project);
            used.push(project);
            let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let Step::Write(next) = next_step(&object, &world, &time) else {
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
            if written.is_ok() && is_taken {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.operations.len() < MAX_OPERATIONS {
                    state.operations.push((name, object["operation"].clone()));
                }
            }
        }
        for project in all_projects {
            let name = project.metadata.name.unwrap_or_default();
            if project.metadata.deletion_timestamp.is_some() && !used.contains(&name) {
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
