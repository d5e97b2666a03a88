//! The sync by an Argo CD that is reached by its API. A request for a sync has no precondition, but it is refused while an
//! operation runs, and the state shows the operation until another one begins. So an attempt whose answer was lost is found by
//! its ID, and is sent again only when nothing has begun since, and it cannot be carried out any more.

use devops_api::{ArgoSetting, DeploymentPhase, DeploymentState, SyncStatus, argo_upstream};
use devops_argo_client::{
    ApplicationKey, ArgoServer, Progress as Operation, Sync, SyncStart, find_progress, operation_start,
};
use ostler_sdk::{from_rfc3339, prelude::*, rfc3339, serde_json::Value};

use crate::{
    build::read_settle_time,
    run::{Progress, Run},
    sync::INFO_NAME,
};

/// An application on a server.
pub struct ServerApplication<'a> {
    argo: ArgoServer<'a>,
    project: String,
    name: String,
}

impl<'a> ServerApplication<'a> {
    /// The application of a deployment; none if the setting does not have it.
    pub fn of(run: &Run<'a>, setting: &ArgoSetting) -> Option<Self> {
        let name = &run.record.spec.sync.application;
        let application = setting.spec.applications.iter().find(|a| a.name == *name)?;
        Some(Self {
            argo: ArgoServer::new(run.ctx.upstream(&argo_upstream(setting.name()))),
            project: application.project.clone(),
            name: name.clone(),
        })
    }

    fn key(&self) -> ApplicationKey<'_> {
        ApplicationKey {
            project: &self.project,
            name: &self.name,
        }
    }

    /// Reads it; none if it does not exist.
    pub fn read(&self) -> Result<Option<Value>, Failure> {
        self.argo.read_application(self.key())
    }

    /// Advances the sync.
    pub fn advance(&self, run: &mut Run, live: &Value) -> Result<Progress, Failure> {
        let sync = run.status.sync.clone().unwrap_or_default();
        let Some(id) = &sync.operation_id else {
            return self.start(run, live);
        };
        match find_progress(live, (INFO_NAME, id), sync.previous_start_time.as_deref()) {
            Operation::Unseen if !sync.started => self.restart(run, live, &sync),
            Operation::Running => {
                run.status.sync = Some(SyncStatus {
                    started: true,
                    ..sync
                });
                let message = live["status"]["operationState"]["message"].as_str();
                let message = ["Argo CD syncs. ", message.unwrap_or_default()].concat();
                Ok(Progress::wait("SyncRunning", message.trim_end()))
            }
            Operation::Ended {
                phase,
                message,
                revision,
                finished_at,
            } => {
                run.status.sync = Some(SyncStatus {
                    started: true,
                    phase: Some(phase.to_owned()),
                    revision: revision.filter(|text| !text.is_empty()).map(Into::into),
                    finish_time: Some(finished_at.to_owned()),
                    ..sync
                });
                if phase != "Succeeded" {
                    return run.fail(&format!("The sync ended with {phase}: {message}"));
                }
                let waiting = "Waiting for the application to be healthy.";
                run.enter(DeploymentPhase::Verifying, waiting);
                Ok(Progress::Next)
            }
            Operation::Unseen | Operation::Replaced => {
                let message = "Another operation has replaced the sync.";
                run.end(DeploymentState::Terminated, message);
                Ok(Progress::Next)
            }
        }
    }

    /// Sends an attempt again that was recorded, when the lost request cannot be carried out any more.
    fn restart(&self, run: &mut Run, live: &Value, sync: &SyncStatus) -> Result<Progress, Failure> {
        let sent_at = sync.request_time.as_deref().and_then(from_rfc3339);
        let settled_at = (sent_at.unwrap_or_default() + 1) * 1000 + read_settle_time(run.ctx)?;
        if run.ctx.now() < settled_at {
            let message = "It is not known yet whether the sync was started.";
            return Ok(Progress::wait("SyncUnknown", message));
        }
        self.start(run, live)
    }

    /// Records the attempt, and starts the operation when the slot is free.
    fn start(&self, run: &mut Run, live: &Value) -> Result<Progress, Failure> {
        let phase = live["status"]["operationState"]["phase"].as_str();
        if live["operation"].is_object() || matches!(phase, Some("Running" | "Terminating")) {
            let message = "Waiting for another operation of the application to end.";
            return Ok(Progress::wait("OperationInProgress", message));
        }
        let id = &run.record.metadata.uid;
        run.status.sync = Some(SyncStatus {
            operation_id: Some(id.clone()),
            application_uid: live["metadata"]["uid"].as_str().map(Into::into),
            previous_start_time: operation_start(live).map(Into::into),
            request_time: Some(rfc3339(run.ctx.now() / 1000)),
            ..SyncStatus::default()
        });
        run.checkpoint()?;
        let spec = &run.record.spec.sync;
        let request = Sync {
            info: (INFO_NAME, id),
            revision: spec.revision.as_deref(),
            prune: !spec.keep_removed,
        };
        // Without an answer the attempt stays recorded, and the operation is searched for.
        let (reason, message) = match self.argo.start_sync(self.key(), &request)? {
            SyncStart::Started => {
                run.ctx.event("SyncStarted", "Started the sync.");
                if let Some(sync) = &mut run.status.sync {
                    sync.started = true;
                }
                let message = "Argo CD is about to take the operation.";
                return Ok(Progress::wait("SyncRunning", message));
            }
            SyncStart::Refused(message) => {
                return run.fail(&["Argo CD refuses the sync: ", &message].concat());
            }
            SyncStart::Waiting(message) => ("OperationInProgress", message),
            SyncStart::Missing => ("ApplicationMissing", "The application was deleted.".into()),
        };
        // Nothing was written.
        run.status.sync = None;
        Ok(Progress::wait(reason, message))
    }

    /// Terminates the operation of a deployment that ends before it.
    pub fn terminate(&self, live: &Value, sync: &SyncStatus) -> Result<(), Failure> {
        let Some(id) = &sync.operation_id else {
            return Ok(());
        };
        let found = find_progress(live, (INFO_NAME, id), sync.previous_start_time.as_deref());
        if found == Operation::Running {
            self.argo.terminate_operation(self.key())?;
        }
        Ok(())
    }
}
