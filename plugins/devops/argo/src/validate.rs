//! Validation of a setting: every application stays within what its project may use.

use devops_api::{
    ArgoApplication, ArgoDestination, ArgoProject, ArgoSetting, ArgoSettingSpec, default_server,
};
use ostler_sdk::{api, prelude::*};

use crate::desired::find_destination;

/// Configuration of the plugin: what its administrator lets projects use. Each entry is a name or `prefix*`. Argo CD acts with
/// rights of its own, so that an ArgoSetting may otherwise do what its author may not.
#[api]
struct Config {
    /// Namespaces that projects may deploy to; without it, the namespace of the ArgoSetting, and those whose names begin with it
    /// and a hyphen.
    destinations: Vec<String>,
    /// API servers of the clusters that projects may deploy to; without it, the cluster of Argo CD.
    servers: Vec<String>,
    /// Cluster-scoped kinds, as `group/Kind`, that projects may deploy; without it, none.
    cluster_resources: Vec<String>,
    /// URLs of the repositories that projects may deploy from; without it, any.
    repositories: Vec<String>,
}

/// A bound of what the settings of a namespace may use.
struct Bound {
    /// Field of the plugin's configuration.
    field: &'static str,
    allowed: Vec<String>,
}

impl Bound {
    fn new(field: &'static str, configured: Vec<String>, default: &[&str]) -> Self {
        let allowed = match configured.is_empty() {
            true => default.iter().map(|pattern| (*pattern).to_owned()).collect(),
            false => configured,
        };
        Self { field, allowed }
    }

    /// The fault of a value that is not allowed.
    fn check(&self, value: &str, attempt: &str) -> Option<String> {
        if self.allowed.iter().any(|pattern| matches_pattern(pattern, value)) {
            return None;
        }
        let allowed = match self.allowed.is_empty() {
            true => "none".to_owned(),
            false => self.allowed.join(", "),
        };
        let field = self.field;
        Some(format!(
            "{attempt} {value}: the plugin's configuration `{field}` allows {allowed}"
        ))
    }
}

/// Checks a setting as a whole.
pub fn check_setting(ctx: &Context, setting: &ArgoSetting) -> Result<(), Failure> {
    let mut faults = find_faults(&setting.spec);
    faults.extend(find_excesses(ctx.config::<Config>()?, setting));
    if faults.is_empty() {
        return Ok(());
    }
    Err(Failure::terminal(
        "InvalidSpec",
        format!("{}.", faults.join("; ")),
    ))
}

/// Lists what a setting has that the plugin's administrator does not allow.
fn find_excesses(config: Config, setting: &ArgoSetting) -> Vec<String> {
    let own = setting.namespace();
    let environments = format!("{own}-*");
    let namespaces = Bound::new("destinations", config.destinations, &[own, &environments]);
    let servers = Bound::new("servers", config.servers, &[&default_server()]);
    let kinds = Bound::new("clusterResources", config.cluster_resources, &[]);
    let repositories = Bound::new("repositories", config.repositories, &["*"]);
    let mut faults = Vec::new();
    for project in &setting.spec.projects {
        let name = &project.name;
        for ArgoDestination { server, namespace } in &project.destinations {
            let attempt = format!("project {name} may not deploy to the namespace");
            faults.extend(namespaces.check(namespace, &attempt));
            let attempt = format!("project {name} may not deploy to the server");
            faults.extend(servers.check(server, &attempt));
        }
        for kind in &project.cluster_resources {
            let attempt = format!("project {name} may not deploy the clusterResource");
            faults.extend(kinds.check(kind, &attempt));
        }
    }
    for repository in &setting.spec.repositories {
        let attempt = format!("repository {} may not have the url", repository.name);
        faults.extend(repositories.check(&repository.url, &attempt));
    }
    faults
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
