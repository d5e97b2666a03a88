//! The custom resources that a setting describes.

use devops_api::{
    ArgoApplication, ArgoDestination, ArgoProject, ArgoSetting, ArgoSettingSpec, OWNER_ANNOTATION,
    OWNER_LABEL,
};
use ostler_sdk::{prelude::*, serde_json::Value};

use crate::MANAGED_BY;

/// Finalizer with which Argo CD deletes what an application has deployed, and keeps a project while it is used.
const RESOURCES_FINALIZER: &str = "resources-finalizer.argocd.argoproj.io";

/// The setting that objects belong to.
pub struct Owner<'a> {
    uid: &'a str,
    name: String,
    namespace: &'a str,
}

impl<'a> Owner<'a> {
    /// The owner of what this setting writes.
    pub fn of(setting: &'a ArgoSetting) -> Self {
        Self {
            uid: &setting.metadata.uid,
            name: format!("{}/{}", setting.namespace(), setting.name()),
            namespace: &setting.spec.argo_namespace,
        }
    }

    /// Builds the metadata of an object, with the labels that claim it.
    pub fn build_metadata(&self, name: &str) -> Value {
        json!({
            "name": name,
            "namespace": self.namespace,
            "labels": { MANAGED_BY.0: MANAGED_BY.1, OWNER_LABEL: self.uid },
            "annotations": { OWNER_ANNOTATION: self.name },
        })
    }
}

/// Builds an `AppProject`. Its source repositories are those that name the project.
pub fn build_project(owner: &Owner, spec: &ArgoSettingSpec, project: &ArgoProject) -> Value {
    let mut metadata = owner.build_metadata(&project.name);
    metadata["finalizers"] = json!([RESOURCES_FINALIZER]);
    let own = spec.repositories.iter().filter(|r| r.project == project.name);
    let urls: Vec<&String> = own.map(|repository| &repository.url).collect();
    let resources: Vec<Value> = project
        .cluster_resources
        .iter()
        .map(|kind| split_kind(kind))
        .collect();
    json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AppProject",
        "metadata": metadata,
        "spec": {
            "description": project.description.as_deref().unwrap_or_default(),
            "sourceRepos": urls,
            "destinations": project.destinations,
            "clusterResourceWhitelist": resources,
        },
    })
}

fn split_kind(kind: &str) -> Value {
    let (group, kind) = kind.split_once('/').unwrap_or(("", kind));
    json!({ "group": group, "kind": kind })
}

/// Builds an `Application`, without `operation`: that field is a command, and an apply of it would run it again.
pub fn build_application(owner: &Owner, spec: &ArgoSettingSpec, application: &ArgoApplication) -> Value {
    let mut metadata = owner.build_metadata(&application.name);
    metadata["finalizers"] = json!([RESOURCES_FINALIZER]);
    let source = &application.source;
    let mut manifests = json!({
        "repoURL": source.repo_url,
        "path": source.path,
        "targetRevision": source.revision,
    });
    if let Some(helm) = &source.helm {
        manifests["helm"] = json!(helm);
    }
    let mut object = json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": metadata,
        "spec": {
            "project": application.project,
            "source": manifests,
            "destination": find_destination(spec, application),
        },
    });
    let mut policy = json!({});
    if let Some(automated) = &application.automated {
        policy["automated"] = json!(automated);
    }
    if application.create_namespace {
        policy["syncOptions"] = json!(["CreateNamespace=true"]);
    }
    if policy != json!({}) {
        object["spec"]["syncPolicy"] = policy;
    }
    object
}

/// The destination of an application: its own, or the only one of its project.
pub fn find_destination<'a>(
    spec: &'a ArgoSettingSpec,
    application: &'a ArgoApplication,
) -> Option<&'a ArgoDestination> {
    application.destination.as_ref().or_else(|| {
        let project = spec.projects.iter().find(|p| p.name == application.project)?;
        match project.destinations.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    })
}
