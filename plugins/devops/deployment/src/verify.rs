//! Verification: the application is Synced and Healthy, and its address works.

use devops_api::{DeploymentState, IngressResourceSpec, SyncStatus};
use ostler_sdk::{ApplyOptions, ConditionStatus, from_rfc3339, prelude::*, serde_json::Value};

use crate::{
    run::{DeploymentRun, PhaseProgress},
    sync::Application,
};

/// Advances the verification.
pub fn advance(run: &mut DeploymentRun) -> Result<PhaseProgress, Failure> {
    let Some(application) = Application::find(run)? else {
        let message = format!(
            "The application {} was deleted.",
            run.record.spec.sync.application
        );
        return run.fail(&message);
    };
    let sync = run.status.sync.clone().unwrap_or_default();
    let is_running = run.state() == DeploymentState::Running;
    if let Some(revision) = find_replacement(&application.object["status"], &sync).filter(|_| is_running) {
        let message =
            format!("Another operation has deployed revision {revision} before this one was verified.");
        run.end(DeploymentState::Terminated, &message);
        return Ok(PhaseProgress::Next);
    }
    let finished = sync.finish_time.as_deref();
    if let Some(message) = find_obstacle(&application.object["status"], finished) {
        return Ok(PhaseProgress::wait("ApplicationNotHealthy", message));
    }
    if run.record.spec.ingress.is_some() {
        match apply_ingress(run)? {
            PhaseProgress::Next => {}
            waiting => return Ok(waiting),
        }
    }
    if run.state() == DeploymentState::Running {
        let message = match &run.status.url {
            Some(url) => format!("The deployment is live at {url}."),
            None => "The deployment is live.".into(),
        };
        run.end(DeploymentState::Success, &message);
    }
    Ok(PhaseProgress::Next)
}

/// The revision that has been deployed since the sync, if it is another one. What would be verified is that one.
fn find_replacement<'a>(status: &'a Value, sync: &SyncStatus) -> Option<&'a str> {
    let last = status["history"].as_array()?.last()?;
    let revision = last["revision"]
        .as_str()
        .filter(|revision| !revision.is_empty())?;
    let is_other = sync.revision.as_deref().is_some_and(|own| own != revision);
    let time = |text: Option<&str>| text.and_then(from_rfc3339).unwrap_or_default();
    let is_later = time(last["deployedAt"].as_str()) >= time(sync.finish_time.as_deref());
    (is_other && is_later).then_some(revision)
}

/// Obstacle that keeps an application from being as it was synced. Health alone says little: an application that cannot be compared
/// is Healthy, and until it has been compared after the sync, the state is the old one.
fn find_obstacle(status: &Value, finished: Option<&str>) -> Option<String> {
    let time = |text: Option<&str>| text.and_then(from_rfc3339).unwrap_or_default();
    if time(status["reconciledAt"].as_str()) < time(finished) {
        return Some("Argo CD has not compared the application since the sync.".into());
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut errors = conditions.filter(|c| c["type"].as_str().is_some_and(|t| t.ends_with("Error")));
    if let Some(error) = errors.next() {
        return Some(format!(
            "Argo CD: {}",
            error["message"].as_str().unwrap_or_default()
        ));
    }
    let sync = status["sync"]["status"].as_str().unwrap_or("Unknown");
    let health = status["health"]["status"].as_str().unwrap_or("Unknown");
    if sync == "Synced" && health == "Healthy" {
        return None;
    }
    Some(format!("The application is {sync} and {health}."))
}

/// Applies the IngressResource, and waits for it.
fn apply_ingress(run: &mut DeploymentRun) -> Result<PhaseProgress, Failure> {
    let (namespace, name) = (run.record.namespace(), run.record.name());
    let reference = IngressResourceSpec::reference(namespace, name);
    let live = run.ctx.get_json(&reference).reason("IngressNotReady")?;
    if live.as_ref().is_some_and(|live| !is_owned(run, live)) {
        let message = format!("IngressResource {name} exists already and is not of this record.");
        return run.fail(&message);
    }
    let template = run.record.spec.ingress.as_ref().map(|ingress| &ingress.template);
    let ingress = json!({
        "apiVersion": IngressResourceSpec::gvk().api_version(),
        "kind": IngressResourceSpec::KIND,
        "metadata": { "name": name, "namespace": namespace },
        "spec": template,
    });
    let options = ApplyOptions {
        owned: true,
        // One that appears meanwhile is not overruled.
        force: live.is_some(),
        ..ApplyOptions::default()
    };
    run.ctx.apply_with(&ingress, &options).reason("IngressNotReady")?;
    match run
        .ctx
        .require_condition(&reference, "Ready", ConditionStatus::True)
    {
        Ok(ready) => {
            run.status.url = ready["status"]["url"].as_str().map(Into::into);
            Ok(PhaseProgress::Next)
        }
        Err(Error::NotReady(not_ready)) => {
            let message = Error::NotReady(not_ready).text();
            Ok(PhaseProgress::wait("IngressNotReady", message))
        }
        Err(error) => Err(error).reason("IngressNotReady"),
    }
}

/// Returns whether the record owns an object.
pub fn is_owned(run: &DeploymentRun, object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|owners| {
        owners
            .iter()
            .any(|owner| owner["uid"] == *run.record.metadata.uid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(reconciled: &str, sync: &str, health: &str, error: Option<&str>) -> Value {
        let conditions: Vec<Value> = error
            .iter()
            .map(|m| json!({"type": "ComparisonError", "message": m}))
            .collect();
        json!({"reconciledAt": reconciled, "sync": {"status": sync}, "health": {"status": health},
            "conditions": conditions})
    }

    #[test]
    fn application_is_as_synced_only_with_all_five_parts() {
        let (before, after) = ("2026-11-22T08:05:44Z", "2026-11-22T08:05:45Z");
        let is_clear = |status: Value| find_obstacle(&status, Some(after)).is_none();
        assert!(is_clear(status(after, "Synced", "Healthy", None)));
        assert!(!is_clear(status(before, "Synced", "Healthy", None)));
        assert!(!is_clear(status(after, "OutOfSync", "Healthy", None)));
        assert!(!is_clear(status(after, "Synced", "Progressing", None)));
        assert!(!is_clear(status(
            after,
            "Synced",
            "Healthy",
            Some("no such path")
        )));
        assert!(!is_clear(json!({})));
    }
}
