//! The sync by Argo CD, started exactly once. The field `operation` is a command with one slot: it is written by a patch that
//! depends on the version of the application that was seen, together with an annotation that lists the last operations, so
//! that an operation whose answer was lost, and even one that another has replaced, is recognized.

use devops_api::{DeploymentPhase, DeploymentState, SyncStatus};
use devops_argo_client::{build_termination, find_deployed, operation_start, unchanged};
use ostler_sdk::{ObjectRef, prelude::*, serde_json::Value};

use crate::{
    run::{DeploymentRun, PhaseProgress},
    server_sync::ServerApplication,
};

/// Annotation of an application with the IDs of the last operations.
const OPERATIONS_ANNOTATION: &str = "devops.ostler.dev/operations";
/// Number of operations that the annotation lists.
const MAX_LISTED_OPERATIONS: usize = 10;
/// Name of the ID among the information of an operation.
pub const INFO_NAME: &str = "ostler-deployment";
const SYNC_FAILED: &str = "SyncRequestFailed";
/// What a deployment waits for after the sync.
pub const WAITING_FOR_HEALTH: &str = "Waiting for the application to be healthy.";

/// The application of a deployment.
pub struct Application<'a> {
    /// The custom resource, or what the server has of it.
    pub object: Value,
    reference: ObjectRef,
    /// The server, if it is not a custom resource of this cluster.
    server: Option<ServerApplication<'a>>,
}

impl<'a> Application<'a> {
    /// Finds the application; none if it or the ArgoSetting does not exist.
    pub fn find(run: &DeploymentRun<'a>) -> Result<Option<Self>, Failure> {
        let Some(setting) = run.argo_setting()? else {
            return Ok(None);
        };
        let kind = gvk("argoproj.io", "v1alpha1", "Application");
        let reference = kind.named(&setting.spec.argo_namespace, &run.record.spec.sync.application);
        let server = setting.spec.server.as_ref();
        let server = server.and_then(|_| ServerApplication::of(run, &setting));
        let object = match (&server, setting.spec.server.is_some()) {
            (Some(server), _) => server.read()?,
            (None, true) => None,
            (None, false) => run.ctx.get_json(&reference).reason(SYNC_FAILED)?,
        };
        // An application of another user may have the name.
        let is_owned =
            |object: &Value| object["metadata"]["labels"][devops_api::OWNER_LABEL] == *setting.metadata.uid;
        let object = object.filter(is_owned);
        Ok(object.map(|object| Self {
            object,
            reference,
            server,
        }))
    }

    /// Text at a path below `status.operationState`.
    fn operation_text(&self, field: &str) -> Option<&str> {
        self.object["status"]["operationState"][field].as_str()
    }

    /// Returns whether an operation, in the field or in the state, is the one with this ID.
    fn is_operation(operation: &Value, id: &str) -> bool {
        let mut info = operation["info"].as_array().into_iter().flatten();
        info.any(|entry| entry["name"] == INFO_NAME && entry["value"] == id)
    }

    /// Returns whether the state that Argo CD shows is that of the operation with this ID.
    fn shows(&self, id: &str) -> bool {
        Self::is_operation(&self.object["status"]["operationState"]["operation"], id)
    }

    /// Returns whether an operation runs, or waits to be taken. The final phase is written with the removal of the field, so that
    /// a state without it that is not final is one that Argo CD neither continues nor ends.
    fn has_operation(&self) -> bool {
        self.object["operation"].is_object()
    }

    fn listed_operations(&self) -> Vec<&str> {
        let listed = self.object["metadata"]["annotations"][OPERATIONS_ANNOTATION].as_str();
        listed
            .unwrap_or_default()
            .split(',')
            .filter(|id| !id.is_empty())
            .collect()
    }

    /// Returns whether the operation with this ID has been written.
    fn was_started(&self, id: &str) -> bool {
        self.shows(id)
            || Self::is_operation(&self.object["operation"], id)
            || self.listed_operations().contains(&id)
    }

    /// Ends the operation with this ID, if it is in the slot.
    fn terminate(&self, run: &DeploymentRun, id: &str) -> Result<(), Failure> {
        let is_own = match self.operation_text("phase") {
            Some("Running" | "Terminating") => self.shows(id),
            _ => Self::is_operation(&self.object["operation"], id),
        };
        let Some(patch) = build_termination(&self.object).filter(|_| is_own) else {
            return Ok(());
        };
        match run.ctx.patch(&self.reference, &patch, &unchanged(&self.object)) {
            Ok(_) | Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error).reason("TerminateFailed"),
        }
    }

    fn text(&self, field: &str) -> String {
        self.object["metadata"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

/// Advances the sync.
pub fn advance(run: &mut DeploymentRun) -> Result<PhaseProgress, Failure> {
    let Some(application) = Application::find(run)? else {
        let message = format!(
            "Waiting for the application {}.",
            run.record.spec.sync.application
        );
        return Ok(PhaseProgress::wait("ApplicationMissing", message));
    };
    if !application.object["metadata"]["deletionTimestamp"].is_null() {
        let message = format!(
            "The application {} is being deleted.",
            run.record.spec.sync.application
        );
        return Ok(PhaseProgress::wait("ApplicationMissing", message));
    }
    if let Some(server) = &application.server {
        return server.advance(run, &application.object);
    }
    let sync = run.status.sync.clone().unwrap_or_default();
    let Some(id) = &sync.operation_id else {
        return start(run, &application);
    };
    if !sync.started && !application.was_started(id) {
        return restart(run, &application, &sync);
    }
    follow(run, &application, &sync, id)
}

/// Starts the operation when the slot is free.
fn start(run: &mut DeploymentRun, application: &Application) -> Result<PhaseProgress, Failure> {
    if application.has_operation() {
        let message = "Waiting for Argo CD to end another operation of the application.";
        return Ok(PhaseProgress::wait("OperationInProgress", message));
    }
    run.status.sync = Some(SyncStatus {
        operation_id: Some(run.record.metadata.uid.clone()),
        application_uid: Some(application.text("uid")),
        resource_version: Some(application.text("resourceVersion")),
        ..SyncStatus::default()
    });
    run.checkpoint()?;
    send(run, application)
}

/// Continues after an attempt that was recorded and has not been written. On the same version it may still be: it is sent
/// again, and the version lets one of both through. On another version it never can be.
fn restart(
    run: &mut DeploymentRun,
    application: &Application,
    sync: &SyncStatus,
) -> Result<PhaseProgress, Failure> {
    let is_same = sync.application_uid.as_deref() == Some(&*application.text("uid"))
        && sync.resource_version.as_deref() == Some(&*application.text("resourceVersion"));
    if is_same && !application.has_operation() {
        return send(run, application);
    }
    start(run, application)
}

/// Writes the operation. Argo CD merges what it does not name from the last one, unless the state of that is removed in the
/// same write.
fn send(run: &mut DeploymentRun, application: &Application) -> Result<PhaseProgress, Failure> {
    let id = &run.record.metadata.uid;
    let spec = &run.record.spec.sync;
    let mut listed = application.listed_operations();
    listed.push(id);
    let first = listed.len().saturating_sub(MAX_LISTED_OPERATIONS);
    let mut sync = json!({ "prune": !spec.keep_removed });
    if let Some(revision) = &spec.revision {
        sync["revision"] = (**revision).into();
    }
    // Argo CD's controller reads those of the operation only; its API server and its automation copy them as well.
    let options = &application.object["spec"]["syncPolicy"]["syncOptions"];
    if options.is_array() {
        sync["syncOptions"] = options.clone();
    }
    let patch = json!({
        "metadata": { "annotations": { OPERATIONS_ANNOTATION: listed[first..].join(",") } },
        "operation": {
            "initiatedBy": { "username": initiator(id) },
            "info": [{ "name": INFO_NAME, "value": id }],
            "sync": sync,
        },
        "status": { "operationState": null },
    });
    let preconditions = unchanged(&application.object);
    match run.ctx.patch(&application.reference, &patch, &preconditions) {
        Ok(_) => {
            run.ctx.event("SyncStarted", "Started the sync.");
            if let Some(sync) = &mut run.status.sync {
                sync.started = true;
            }
            Ok(PhaseProgress::wait(
                "SyncRunning",
                "Argo CD is about to take the operation.",
            ))
        }
        // Argo CD has written its state meanwhile. The next reconcile, which that causes, takes its version.
        Err(Error::Conflict(_)) => Ok(PhaseProgress::wait(
            "SyncRunning",
            "The application has changed: once more.",
        )),
        Err(error) => Err(error).reason(SYNC_FAILED),
    }
}

/// The initiator of an operation, by which it is recognized in the history of the application.
fn initiator(id: &str) -> String {
    ["ostler-deployment:", id].concat()
}

/// Follows the operation to its end.
fn follow(
    run: &mut DeploymentRun,
    application: &Application,
    sync: &SyncStatus,
    id: &str,
) -> Result<PhaseProgress, Failure> {
    let sync = SyncStatus {
        started: true,
        ..sync.clone()
    };
    if !application.shows(id) {
        // The state may be an old one of the cache right after the write, which still has the version of the attempt.
        let is_stale = sync.resource_version.as_deref() == Some(&*application.text("resourceVersion"));
        run.status.sync = Some(sync);
        if is_stale || Application::is_operation(&application.object["operation"], id) {
            let message = "Argo CD is about to take the operation.";
            return Ok(PhaseProgress::wait("SyncRunning", message));
        }
        let initiator = initiator(id);
        return follow_history(run, &application.object, |entry| {
            entry["initiatedBy"]["username"] == initiator
        });
    }
    let text = |field: &str| application.operation_text(field).unwrap_or_default();
    let (phase, message) = (text("phase"), text("message"));
    let result = &application.object["status"]["operationState"]["syncResult"];
    let revision = result["revision"].as_str().filter(|text| !text.is_empty());
    run.status.sync = Some(SyncStatus {
        phase: Some(phase.to_owned()),
        revision: revision.map(Into::into),
        start_time: operation_start(&application.object).map(Into::into),
        finish_time: application.operation_text("finishedAt").map(Into::into),
        ..sync
    });
    // Phase and message of the last operation stay until the field `operation` is taken and removed.
    let is_final = matches!(phase, "Succeeded" | "Failed" | "Error") && !application.has_operation();
    if !is_final {
        return Ok(PhaseProgress::wait(
            "SyncRunning",
            format!("Argo CD syncs. {message}").trim_end(),
        ));
    }
    if phase == "Succeeded" {
        run.enter(DeploymentPhase::Verifying, WAITING_FOR_HEALTH);
        return Ok(PhaseProgress::Next);
    }
    run.fail(&format!("The sync ended with {phase}: {message}"))
}

/// Ends the sync by the history of the application, since another operation has taken the slot. It may have succeeded before.
pub fn follow_history(
    run: &mut DeploymentRun,
    application: &Value,
    is_own: impl Fn(&Value) -> bool,
) -> Result<PhaseProgress, Failure> {
    let Some(entry) = find_deployed(application, is_own) else {
        let message = "Another operation has replaced the sync.";
        run.end(DeploymentState::Terminated, message);
        return Ok(PhaseProgress::Next);
    };
    let text = |field: &str| entry[field].as_str().map(str::to_owned);
    run.status.sync = Some(SyncStatus {
        phase: Some("Succeeded".into()),
        revision: text("revision"),
        finish_time: text("deployedAt"),
        ..run.status.sync.clone().unwrap_or_default()
    });
    run.enter(DeploymentPhase::Verifying, WAITING_FOR_HEALTH);
    Ok(PhaseProgress::Next)
}

/// Ends the operation of a deployment that has ended before it: one that Argo CD has not taken yet is removed, since it would be
/// carried out later.
pub fn withdraw(run: &mut DeploymentRun) -> Result<(), Failure> {
    let Some(sync) = run.status.sync.clone() else {
        return Ok(());
    };
    // While a retry is awaited, Argo CD shows a time of the end, too.
    let is_ended = sync.withdrawn || (sync.finish_time.is_some() && sync.phase.as_deref() != Some("Running"));
    let (Some(id), false) = (&sync.operation_id, is_ended) else {
        return Ok(());
    };
    if let Some(application) = Application::find(run)? {
        match &application.server {
            Some(server) => server.withdraw(run, &application.object, &sync)?,
            None => application.terminate(run, id)?,
        }
    }
    if let Some(sync) = &mut run.status.sync {
        sync.withdrawn = true;
    }
    Ok(())
}
