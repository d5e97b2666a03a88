//! The clean-up of a deployment, in order: application, Ingress, DNS record, certificate with its Secret. Each step looks at what
//! is there, so that it can be repeated.

use devops_api::{
    ApplicationLifetime, CleanupStep, DeploymentRecordSpec, IngressResourceSpec, TtlStatus, describe_deletion,
};
use ostler_sdk::{DeleteOptions, Preconditions, Selection, prelude::*, serde_json::Value};

use crate::{run::DeploymentRun, sync::Application, verify::is_owned};

/// Takes the next steps. Returns what is waited for; none if nothing is left.
pub fn clean_up(run: &mut DeploymentRun) -> Result<Option<String>, Failure> {
    if is_application_left(run)? {
        set_step(run, CleanupStep::Applications);
        let name = &run.record.spec.sync.application;
        return Ok(Some(format!(
            "Waiting for Argo CD to delete the application {name}."
        )));
    }
    let (namespace, name) = (run.record.namespace(), run.record.name());
    let reference = IngressResourceSpec::reference(namespace, name);
    let Some(ingress) = run.ctx.get_json(&reference).reason("DeleteFailed")? else {
        return Ok(None);
    };
    if !is_owned(run, &ingress) {
        return Ok(None);
    }
    set_step(run, find_step(&ingress));
    let metadata = &ingress["metadata"];
    if metadata["deletionTimestamp"].is_null() {
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: metadata["uid"].as_str().map(Into::into),
                resource_version: None,
            },
            ..DeleteOptions::default()
        };
        match run.ctx.delete_with(&reference, &options) {
            Ok(()) | Err(Error::Conflict(_)) => {}
            Err(error) => return Err(error).reason("DeleteFailed"),
        }
    }
    Ok(Some(describe_deletion("IngressResource", name, &ingress)))
}

/// Returns whether the application has to go and is still there. The ArgoSetting deletes it, when no deployment needs it.
fn is_application_left(run: &DeploymentRun) -> Result<bool, Failure> {
    let Some(setting) = run.argo_setting()? else {
        return Ok(false);
    };
    let sync = &run.record.spec.sync;
    let defined = setting
        .spec
        .applications
        .iter()
        .find(|a| a.name == sync.application);
    let is_temporary = defined.is_some_and(|a| a.lifetime == ApplicationLifetime::Deployment);
    if !is_temporary || Application::find(run)?.is_none() {
        return Ok(false);
    }
    let users = devops_api::application_users(&sync.setting_ref.name, &sync.application);
    // Its own status may not be in the cache yet.
    let fields = format!("{users},metadata.name!={}", run.record.name());
    let selection = Selection {
        namespace: Some(run.record.namespace()),
        fields: Some(&fields),
        ..Selection::default()
    };
    let is_needed = run.ctx.exists(&DeploymentRecordSpec::gvk(), &selection);
    Ok(!is_needed.reason("ListFailed")?)
}

/// The step that the deletion of an IngressResource has reached, by the reason of its condition.
fn find_step(ingress: &Value) -> CleanupStep {
    let mut conditions = ingress["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    match ready.and_then(|condition| condition["reason"].as_str()) {
        Some("DnsRemains") => CleanupStep::Dns,
        Some("CertificateRemains") => CleanupStep::Certificates,
        _ => CleanupStep::Ingress,
    }
}

fn set_step(run: &mut DeploymentRun, step: CleanupStep) {
    let ttl = run.status.ttl.get_or_insert_with(TtlStatus::default);
    ttl.step = Some(step);
}
