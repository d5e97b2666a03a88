//! Reconciles `devops.ostler.dev/v1alpha1` JenkinsSetting: folders, pipelines and credentials in Jenkins, from a file in
//! a git repository.
//!
//! Everything that is created carries a mark in its description. What does not have it belongs to another user, and is
//! neither changed nor deleted.

mod config;
mod credentials;
mod definition;
mod groovy;
mod mark;
mod remote;
mod source;
mod xml;

use devops_api::{
    JenkinsPipelineState, JenkinsSetting, JenkinsSettingSpec, JenkinsSettingStatus, check_secure_url,
    jenkins_upstream, secret_selector, suspended_outcome, upstream_manifest, with_authenticated,
};
use devops_jenkins_client::JenkinsServer;
use ostler_sdk::{prelude::*, serde_json::Value};

/// Interval of the poll of Jenkins and of the git repository.
const POLL_INTERVAL_MS: u64 = 300_000;

/// Reconciles JenkinsSettings.
pub struct SettingsReconciler;

impl Reconciler for SettingsReconciler {
    type Spec = JenkinsSettingSpec;
    const FINALIZER: Option<&'static str> = Some("devops.ostler.dev/jenkins-setting");

    fn reconcile(&self, ctx: &Context, setting: &JenkinsSetting) -> Result<Outcome, Failure> {
        if setting.spec.suspend {
            return Ok(suspended_outcome());
        }
        ctx.apply_owned(&build_upstream(setting)?)?;
        let source = source::read(ctx, setting)?;
        let desired = config::build(setting, &source)?;
        let status = apply(ctx, setting, &desired).map_err(with_authenticated)?;
        Ok(update_status(setting, &source, status))
    }

    fn cleanup(&self, ctx: &Context, setting: &JenkinsSetting) -> Result<Outcome, Failure> {
        let Some(server) = &setting.status.claimed_server else {
            return Ok(Outcome::await_change());
        };
        if server != server_url(setting) {
            let note = format!("The project's folder stays in {server}: spec.url has another server.");
            ctx.warn("Orphaned", &note);
            return Ok(Outcome::await_change());
        }
        remote::delete_project(ctx, &find_server(ctx, setting), setting)?;
        Ok(Outcome::await_change())
    }
}

/// The server that the setting's Upstream leads to.
fn find_server<'a>(ctx: &'a Context<'a>, setting: &JenkinsSetting) -> JenkinsServer<'a> {
    JenkinsServer::new(ctx.upstream(&jenkins_upstream(setting.name())))
}

fn server_url(setting: &JenkinsSetting) -> &str {
    setting.spec.url.trim_end_matches('/')
}

/// Validates the spec and builds the Upstream. Requests with an API token need no crumb.
fn build_upstream(setting: &JenkinsSetting) -> Result<Value, Failure> {
    let spec = &setting.spec;
    check_secure_url(&spec.url, "spec.url")?;
    for (at, environment) in spec.environments.iter().enumerate() {
        let is_same = |other: &String| other.eq_ignore_ascii_case(environment);
        let problem = match spec.environments[..at].iter().any(is_same) {
            // Jenkins may run on a file system that ignores case.
            true => "differs from another one in case only",
            false if config::is_item_name(environment) => continue,
            false => "cannot be the name of a folder in Jenkins",
        };
        let message = format!("spec.environments: {environment} {problem}.");
        return Err(Failure::terminal("InvalidSpec", message));
    }
    let auth = json!({ "basic": {
        "username": spec.username,
        "passwordSecretRef": secret_selector(&spec.token_ref),
    }});
    let name = jenkins_upstream(setting.name());
    let ca = spec.ca_ref.as_ref();
    Ok(upstream_manifest(
        setting.namespace(),
        &name,
        &spec.url,
        &auth,
        ca,
    ))
}

/// Makes Jenkins as it is desired. The server is recorded before the first write.
fn apply(
    ctx: &Context,
    setting: &JenkinsSetting,
    desired: &config::DesiredSettings,
) -> Result<JenkinsSettingStatus, Failure> {
    let jenkins = find_server(ctx, setting);
    let server = server_url(setting);
    let found = remote::read_project(&jenkins, setting)?;
    remote::check_ownership(setting, found.as_ref(), desired)?;
    if setting.status.claimed_server.as_deref() != Some(server) {
        if let Some(former) = &setting.status.claimed_server {
            let note = format!("The project's folder stays in {former}: spec.url has another server.");
            ctx.warn("Orphaned", &note);
        }
        ctx.checkpoint(&json!({ "claimedServer": server }))?;
    }
    let pipelines = remote::apply_items(ctx, &jenkins, setting, found.as_ref(), desired)?;
    let credentials = credentials::apply(ctx, &jenkins, setting)?;
    remote::delete_obsolete(ctx, &jenkins, setting, found.as_ref(), desired)?;
    Ok(JenkinsSettingStatus {
        claimed_server: Some(server.to_owned()),
        commit: None,
        pipelines,
        credentials,
    })
}

fn update_status(
    setting: &JenkinsSetting,
    source: &source::DefinitionSource,
    status: JenkinsSettingStatus,
) -> Outcome {
    let count = status.pipelines.len();
    let project = &setting.spec.project;
    let message = format!("{count} pipelines of {project} match commit {}.", source.commit);
    let authenticated = "Jenkins accepts the API token.";
    let definition = format!("{} of {} is valid.", setting.spec.git.path, source.commit);
    Outcome::poll(POLL_INTERVAL_MS)
        .with(Condition::new_true("Ready", "Ready", message))
        .with(Condition::new_true(
            "Authenticated",
            "Authenticated",
            authenticated,
        ))
        .with(Condition::new_true("DefinitionValid", "Valid", definition))
        .status(&JenkinsSettingStatus {
            commit: Some(source.commit.clone()),
            ..status
        })
}

/// The state of a pipeline after it was written.
fn pipeline_state(environment: &str, name: &str, config_hash: &str) -> JenkinsPipelineState {
    JenkinsPipelineState {
        environment: environment.to_owned(),
        name: name.to_owned(),
        config_hash: config_hash.to_owned(),
    }
}

ostler_sdk::plugin!(SettingsReconciler);
