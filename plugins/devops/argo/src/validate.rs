//! Validation of a setting: every application stays within what its project may use.

use devops_api::{ArgoApplication, ArgoDestination, ArgoProject, ArgoSetting, ArgoSettingSpec};
use ostler_sdk::{api, prelude::*};

use crate::desired::find_destination;

/// Configuration of the plugin.
#[api]
struct Config {
    /// Namespaces that projects may deploy to: names, or `prefix*`. Without it, the namespace of the ArgoSetting, and those
    /// whose names begin with it and a hyphen.
    destinations: Vec<String>,
}

/// Checks a setting as a whole.
pub fn check_setting(ctx: &Context, setting: &ArgoSetting) -> Result<(), Failure> {
    let mut patterns = ctx.config::<Config>()?.destinations;
    if patterns.is_empty() {
        let own = setting.namespace();
        patterns = vec![own.to_owned(), format!("{own}-*")];
    }
    let mut faults = find_faults(&setting.spec);
    for project in &setting.spec.projects {
        for destination in &project.destinations {
            let namespace = &*destination.namespace;
            if !patterns.iter().any(|pattern| matches_pattern(pattern, namespace)) {
                faults.push(format!(
                    "project {} may not deploy to the namespace {namespace}: the plugin's configuration `destinations` \
                     allows {}",
                    project.name,
                    patterns.join(", ")
                ));
            }
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(Failure::terminal(
        "InvalidSpec",
        format!("{}.", faults.join("; ")),
    ))
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// Lists what is wrong with a spec in itself.
fn find_faults(spec: &ArgoSettingSpec) -> Vec<String> {
    let mut faults = Vec::new();
    let find_project = |name: &str| spec.projects.iter().find(|project| project.name == name);
    for project in &spec.projects {
        faults.extend(find_project_faults(project));
    }
    for (i, repository) in spec.repositories.iter().enumerate() {
        let name = &repository.name;
        if find_project(&repository.project).is_none() {
            faults.push(format!(
                "repository {name} names the project {}, which is not in spec.projects",
                repository.project
            ));
        }
        if repository.url.contains(['*', '!']) {
            faults.push(format!("repository {name} has a pattern in its url"));
        }
        let mut before = spec.repositories[..i].iter();
        if before.any(|other| other.url == repository.url && other.project == repository.project) {
            faults.push(format!(
                "repository {name} has the url and the project of another one"
            ));
        }
    }
    for application in &spec.applications {
        match find_project(&application.project) {
            Some(project) => faults.extend(find_application_faults(spec, project, application)),
            None => faults.push(format!(
                "application {} names the project {}, which is not in spec.projects",
                application.name, application.project
            )),
        }
    }
    faults
}

fn find_project_faults(project: &ArgoProject) -> Vec<String> {
    let is_pattern = |d: &&ArgoDestination| d.server.contains(['*', '!']) || d.namespace.contains(['*', '!']);
    let mut faults = Vec::new();
    if project.destinations.iter().any(|d| is_pattern(&d)) {
        faults.push(format!(
            "project {} has a pattern among its destinations",
            project.name
        ));
    }
    for kind in &project.cluster_resources {
        if !kind.contains('/') || kind.contains('*') {
            faults.push(format!(
                "project {} has the clusterResource {kind}, which is not GROUP/KIND",
                project.name
            ));
        }
    }
    faults
}

fn find_application_faults(
    spec: &ArgoSettingSpec,
    project: &ArgoProject,
    application: &ArgoApplication,
) -> Vec<String> {
    let name = &application.name;
    let mut faults = Vec::new();
    let url = &application.source.repo_url;
    if !spec
        .repositories
        .iter()
        .any(|r| r.url == *url && r.project == project.name)
    {
        faults.push(format!(
            "application {name} uses {url}, which is no repository of its project {}",
            project.name
        ));
    }
    match find_destination(spec, application) {
        None => faults.push(format!(
            "application {name} needs a destination: its project {} has several",
            project.name
        )),
        Some(destination) if !project.destinations.contains(destination) => faults.push(format!(
            "application {name} deploys to {} of {}, which is no destination of its project {}",
            destination.namespace, destination.server, project.name
        )),
        Some(_) => {}
    }
    faults
}
