//! Reconciles `devops.ostler.dev/v1alpha1` ArgoSetting: projects, repositories and applications of an Argo CD, as its custom
//! resources or, on a server that is not in this cluster, by its API.

mod application;
mod claim;
mod desired;
mod project;
mod repository;
mod server;
mod validate;

use devops_api::{
    ApplicationLifetime, ArgoApplication, ArgoSetting, ArgoSettingSpec, ArgoSettingStatus, suspended_outcome,
};
use ostler_sdk::{Gvk, Selection, prelude::*};

use crate::{claim::Claimed, desired::Owner};

/// Label by which all objects of the pack in Argo CD's namespace share one watch.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "ostler-devops");

/// Reconciles ArgoSettings.
pub struct ArgoSettings;

impl Reconciler for ArgoSettings {
    type Spec = ArgoSettingSpec;
    const FINALIZER: Option<&'static str> = Some("devops.ostler.dev/argo-setting");

    fn reconcile(&self, ctx: &Context, setting: &ArgoSetting) -> Result<Outcome, Failure> {
        if setting.spec.suspend {
            return Ok(suspended_outcome());
        }
        validate::check_setting(ctx, setting)?;
        if let Some(connection) = &setting.spec.server {
            return server::reconcile(ctx, setting, connection);
        }
        let claimed = Claimed::list(ctx, setting)?;
        let owner = Owner::of(setting);
        for project in &setting.spec.projects {
            let desired = desired::build_project(&owner, &setting.spec, project);
            claim::apply(ctx, &desired, &claimed)?;
        }
        let changed = repository::apply_secrets(ctx, setting)?;
        let mut wanted = Vec::new();
        for application in &setting.spec.applications {
            if is_wanted(ctx, setting, application)? {
                wanted.push(application);
            }
        }
        let mut states = Vec::new();
        for application in &wanted {
            let desired = desired::build_application(&owner, &setting.spec, application);
            let live = claim::apply(ctx, &desired, &claimed)?;
            if changed.contains(&(&application.project, &application.source.repo_url)) {
                application::refresh(ctx, &live)?;
            }
            states.push(application::observe(&live));
        }
        let names: Vec<_> = wanted.iter().map(|application| &application.name).collect();
        let remaining = prune(ctx, setting, &claimed, &names)?;
        Ok(update_status(setting, states, &remaining))
    }

    fn cleanup(&self, ctx: &Context, setting: &ArgoSetting) -> Result<Outcome, Failure> {
        if setting.spec.server.is_some() {
            return server::clean_up(ctx, setting);
        }
        let claimed = Claimed::list(ctx, setting)?;
        let mut remaining = Vec::new();
        for application in &claimed.applications {
            application::delete(ctx, application)?;
            remaining.push(claim::name_of(application));
        }
        // Without its project or its credentials an application could not be deleted.
        wait_for("applications", &remaining)?;
        for secret in &setting.status.repository_secrets {
            repository::delete_secret(ctx, &setting.spec.argo_namespace, secret)?;
        }
        for project in &claimed.projects {
            project::delete(ctx, project)?;
            remaining.push(claim::name_of(project));
        }
        wait_for("projects", &remaining)?;
        Ok(Outcome::await_change())
    }
}

fn wait_for(kind: &str, remaining: &[String]) -> Result<(), Failure> {
    if remaining.is_empty() {
        return Ok(());
    }
    let message = format!(
        "Waiting for Argo CD to delete the {kind} {}.",
        remaining.join(", ")
    );
    Err(Failure::wait("DeletionPending", message))
}

/// Returns whether an application has to exist: one with the lifetime of a deployment while a DeploymentRecord needs it. Only
/// the first such record is read, and the change of a record that has been cleaned up wakes no setting.
fn is_wanted(ctx: &Context, setting: &ArgoSetting, application: &ArgoApplication) -> Result<bool, Failure> {
    if application.lifetime == ApplicationLifetime::Permanent {
        return Ok(true);
    }
    let fields = devops_api::application_users(setting.name(), &application.name);
    let selection = Selection {
        namespace: Some(setting.namespace()),
        fields: Some(&fields),
        ..Selection::default()
    };
    let kind = devops_api::DeploymentRecordSpec::gvk();
    ctx.exists(&kind, &selection).reason("ListFailed")
}

/// Deletes what the spec no longer has: applications first, then what they need. Returns what is still being deleted.
fn prune(
    ctx: &Context,
    setting: &ArgoSetting,
    claimed: &Claimed,
    applications: &[&String],
) -> Result<Vec<String>, Failure> {
    let mut remaining = Vec::new();
    let mut used_projects = Vec::new();
    for application in &claimed.applications {
        let name = claim::name_of(application);
        if applications.contains(&&name) {
            continue;
        }
        application::delete(ctx, application)?;
        used_projects.push(application["spec"]["project"].clone());
        remaining.push(name);
    }
    for project in &claimed.projects {
        let name = claim::name_of(project);
        let is_desired = setting.spec.projects.iter().any(|p| p.name == name);
        let is_used = used_projects.iter().any(|used| *used == *name);
        if is_desired {
            continue;
        }
        if !is_used {
            project::delete(ctx, project)?;
        }
        remaining.push(name);
    }
    if used_projects.is_empty() {
        let desired = repository::secret_names(setting);
        let stale = setting
            .status
            .repository_secrets
            .iter()
            .filter(|name| !desired.contains(name));
        for secret in stale {
            repository::delete_secret(ctx, &setting.spec.argo_namespace, secret)?;
        }
    }
    Ok(remaining)
}

fn update_status(
    setting: &ArgoSetting,
    states: Vec<devops_api::ApplicationState>,
    remaining: &[String],
) -> Outcome {
    let synced = states
        .iter()
        .filter(|s| s.sync.as_deref() == Some("Synced"))
        .count();
    let errors: Vec<String> = states
        .iter()
        .filter_map(|s| Some(format!("{}: {}", s.name, s.error.as_ref()?)))
        .collect();
    // Temporary applications come and go with deployments, which wait for them; the setting stays Ready meanwhile.
    let is_temporary = |name: &str| {
        let mut applications = setting.spec.applications.iter();
        applications.any(|a| a.name == name && a.lifetime == ApplicationLifetime::Deployment)
    };
    let unseen: Vec<&str> = states
        .iter()
        .filter(|s| s.sync.is_none() && !is_temporary(&s.name))
        .map(|s| &*s.name)
        .collect();
    let removed: Vec<&str> = remaining
        .iter()
        .map(|name| &**name)
        .filter(|name| !is_temporary(name))
        .collect();
    let ready = if !errors.is_empty() {
        Condition::new_false("Ready", "ApplicationError", errors.join("; "))
    } else if !unseen.is_empty() {
        let message = format!(
            "Argo CD has not compared {} yet.{}",
            unseen.join(", "),
            match setting.spec.server {
                None => " If it stays so, spec.argoNamespace is not the namespace of Argo CD.",
                Some(_) => "",
            }
        );
        Condition::new_false("Ready", "Comparing", message)
    } else if removed.is_empty() {
        Condition::new_true("Ready", "Ready", "Argo CD has what the spec describes.")
    } else {
        let message = format!("Argo CD is deleting {}.", removed.join(", "));
        Condition::new_false("Ready", "DeletionPending", message)
    };
    let mut secrets = match setting.spec.server {
        None => repository::secret_names(setting),
        Some(_) => Vec::new(),
    };
    let (mut server_projects, mut server_repositories) = server::record_claims(setting);
    if remaining.is_empty() && setting.spec.server.is_some() {
        server_projects.retain(|name| setting.spec.projects.iter().any(|p| p.name == *name));
        let is_desired = |claim: &devops_api::ServerRepository| {
            let mut all = setting.spec.repositories.iter();
            all.any(|r| r.project == claim.project && r.url == claim.url)
        };
        server_repositories.retain(is_desired);
    }
    // A Secret that an application in deletion still needs stays recorded until it is deleted.
    if !remaining.is_empty() {
        let kept = setting
            .status
            .repository_secrets
            .iter()
            .filter(|name| !secrets.contains(name));
        let kept: Vec<String> = kept.cloned().collect();
        secrets.extend(kept);
    }
    let status = ArgoSettingStatus {
        repository_secrets: secrets,
        server_projects,
        server_repositories,
        synced_applications: Some(format!("{synced}/{}", states.len())),
        applications: states,
    };
    Outcome::await_change().with(ready).status(&status)
}

fn project_kind() -> Gvk {
    gvk("argoproj.io", "v1alpha1", "AppProject")
}

fn application_kind() -> Gvk {
    gvk("argoproj.io", "v1alpha1", "Application")
}

ostler_sdk::plugin!(ArgoSettings);
