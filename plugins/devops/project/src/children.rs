//! The settings of a project.

use devops_api::{
    ApplicationLifetime, ApplicationSource, ArgoApplication, ArgoProject, ArgoRepository, ArgoSettingSpec,
    ContainerRegistrySpec, DevOpsProject, GitCredentialsSpec, JenkinsGit, JenkinsSettingSpec, LocalReference,
    application_name,
};

/// Builds the ContainerRegistry.
pub fn registry(project: &DevOpsProject) -> ContainerRegistrySpec {
    let registry = &project.spec.registry;
    ContainerRegistrySpec {
        url: registry.url.clone(),
        repository: registry.repository.clone(),
        username: registry.username.clone(),
        password_ref: registry.password_ref.clone(),
        token_url: registry.token_url.clone(),
        ca_ref: registry.ca_ref.clone(),
        image_pull_secrets: registry.image_pull_secrets.clone(),
        suspend: project.spec.suspend,
    }
}

/// Builds the GitCredentials.
pub fn git(project: &DevOpsProject) -> GitCredentialsSpec {
    let git = &project.spec.git;
    GitCredentialsSpec {
        url: git.url.clone(),
        username: git.username.clone(),
        password_ref: git.password_ref.clone(),
        ca_ref: git.ca_ref.clone(),
        suspend: project.spec.suspend,
    }
}

/// Builds the ArgoSetting: one project with one application per environment, which may deploy nowhere else.
pub fn argo(project: &DevOpsProject) -> ArgoSettingSpec {
    let spec = &project.spec;
    let name = project.name();
    let mut destinations: Vec<_> = spec.environments.iter().map(|e| e.destination.clone()).collect();
    destinations.sort();
    destinations.dedup();
    let applications = spec.environments.iter().map(|environment| ArgoApplication {
        name: application_name(name, &environment.name),
        project: name.to_owned(),
        source: ApplicationSource {
            repo_url: spec.git.url.clone(),
            path: environment.path.clone(),
            revision: environment.revision.clone(),
            helm: None,
        },
        destination: Some(environment.destination.clone()),
        automated: environment.automated,
        create_namespace: false,
        lifetime: match environment.temporary {
            true => ApplicationLifetime::Deployment,
            false => ApplicationLifetime::Permanent,
        },
    });
    ArgoSettingSpec {
        argo_namespace: spec.argo.namespace.clone(),
        server: spec.argo.server.clone(),
        projects: vec![ArgoProject {
            name: name.to_owned(),
            description: None,
            destinations,
            cluster_resources: Vec::new(),
        }],
        repositories: vec![ArgoRepository {
            name: name.to_owned(),
            url: spec.git.url.clone(),
            project: name.to_owned(),
            username: spec.git.username.clone(),
            password_ref: spec.git.password_ref.clone(),
            insecure: false,
        }],
        applications: applications.collect(),
        suspend: spec.suspend,
    }
}

/// Builds the JenkinsSetting, if the project has a Jenkins.
pub fn jenkins(project: &DevOpsProject) -> Option<JenkinsSettingSpec> {
    let spec = &project.spec;
    let jenkins = spec.jenkins.as_ref()?;
    Some(JenkinsSettingSpec {
        url: jenkins.url.clone(),
        username: jenkins.username.clone(),
        token_ref: jenkins.token_ref.clone(),
        ca_ref: jenkins.ca_ref.clone(),
        project: project.name().to_owned(),
        environments: spec
            .environments
            .iter()
            .map(|environment| environment.name.clone())
            .collect(),
        git: JenkinsGit {
            credentials_ref: LocalReference {
                name: project.name().to_owned(),
            },
            revision: spec.git.revision.clone(),
            path: spec.git.config_path.clone(),
        },
        credentials: jenkins.credentials.clone(),
        suspend: spec.suspend,
    })
}
