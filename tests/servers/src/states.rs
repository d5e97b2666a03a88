//! States of the servers, as lines on stdout when they change.

use std::collections::BTreeMap;

use devops_simulators::jenkins::Jenkins;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::json;

/// The states that were reported.
pub struct States {
    reported: BTreeMap<String, String>,
    applications: Api<DynamicObject>,
}

impl States {
    /// Without states. Argo CD's objects are in this namespace.
    pub fn new(client: Client, argo_namespace: &str) -> Self {
        let gvk = GroupVersionKind::gvk("argoproj.io", "v1alpha1", "Application");
        Self {
            reported: BTreeMap::new(),
            applications: Api::namespaced_with(client, argo_namespace, &ApiResource::from_gvk(&gvk)),
        }
    }

    /// Prints the state of a server if it has changed.
    pub fn report(&mut self, server: &str, state: &str) {
        if self.reported.get(server).map(String::as_str) != Some(state) {
            self.reported.insert(server.into(), state.into());
            println!("{}", json!({ "server": server, "state": state }));
        }
    }

    /// Describes the Applications, and the number of their syncs.
    pub async fn describe_applications(&self, syncs: usize) -> String {
        // The kind is served a moment after its CRD was applied.
        let found = self.applications.list(&ListParams::default()).await;
        let lines: Vec<String> = found
            .into_iter()
            .flatten()
            .map(|application| {
                let (name, status) = (application.metadata.name, &application.data["status"]);
                let text = |pointer| {
                    status
                        .pointer(pointer)
                        .and_then(|v| v.as_str())
                        .unwrap_or("Unknown")
                };
                format!(
                    "{} {} {}",
                    name.unwrap_or_default(),
                    text("/sync/status"),
                    text("/health/status")
                )
            })
            .collect();
        format!("{}; syncs: {syncs}", describe_list(&lines, "no applications"))
    }
}

/// Describes the pipelines and their builds.
pub fn describe_jenkins(jenkins: &Jenkins) -> String {
    let (items, mut builds) = (jenkins.items(), Vec::new());
    for path in &items {
        builds.extend(jenkins.builds(path).into_iter().map(|build| {
            let result = build.result.as_deref().unwrap_or("running");
            format!("{path} #{} {result}", build.number)
        }));
    }
    match (items.last(), builds.last()) {
        (_, Some(_)) => builds.join(", "),
        (Some(last), None) => format!("{last}, no builds"),
        (None, None) => "empty".into(),
    }
}

/// Joins texts; `empty` without any.
pub fn describe_list(texts: &[String], empty: &str) -> String {
    match texts {
        [] => empty.into(),
        texts => texts.join(", "),
    }
}
