//! The sync by an Argo CD that is reached by its API. A request for a sync has no precondition, but it is refused while an
//! operation runs, and the state shows the operation until another one begins. So an attempt whose answer was lost is found by
//! its ID, and is sent again only when nothing has begun since, and it cannot be carried out any more.

use devops_api::{ArgoSetting, DeploymentPhase, SyncStatus, argo_upstream};
use devops_argo_client::{
    ApplicationKey, ArgoServer, OperationProgress as Operation, Sync, SyncStart, find_progress,
    operation_start,
};
use ostler_sdk::{prelude::*, serde_json::Value};

use crate::{
    run::{DeploymentRun, PhaseProgress},
    settle::has_settled,
    sync::{INFO_NAME, WAITING_FOR_HEALTH, follow_history},
};

/// An application on a server.
pub struct ServerApplication<'a> {
    argo: ArgoServer<'a>,
    project: String,
    name: String,
}

impl<'a> ServerApplication<'a> {
    /// The application of a deployment; none if the setting does not have it.
    pub fn of(run: &DeploymentRun<'a>, setting: &ArgoSetting) -> Option<Self> {
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
    pub fn advance(&self, run: &mut DeploymentRun, live: &Value) -> Result<PhaseProgress, Failure> {
        let mut sync = run.status.sync.clone().unwrap_or_default();
        let Some(id) = sync.operation_id.clone() else {
            return self.start(run, live);
        };
        let progress = find_progress(live, (INFO_NAME, &id), sync.previous_start_time.as_deref());
        if progress == Operation::Unseen && !sync.started {
            return self.restart(run, live);
        }
        sync.searched_at = None;
        match progress {
            Operation::Running => {
                // Until Argo CD has taken it, the state is that of the operation before it.
                let start_time =
                    operation_start(live).filter(|time| Some(*time) != sync.previous_start_time.as_deref());
                run.status.sync = Some(SyncStatus {
                    started: true,
                    start_time: start_time.map(Into::into),
                    ..sync
                });
                let message = live["status"]["operationState"]["message"].as_str();
                let message = ["Argo CD syncs. ", message.unwrap_or_default()].concat();
                Ok(PhaseProgress::wait("SyncRunning", message.trim_end()))
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
                run.enter(DeploymentPhase::Verifying, WAITING_FOR_HEALTH);
                Ok(PhaseProgress::Next)
            }
            // The history names the account, which other syncs have, too: only one that was seen to run is recognized.
            Operation::Unseen | Operation::Replaced => {
                let is_own = |entry: &Value| {
                    sync.start_time.is_some()
                        && entry["deployStartedAt"].as_str() == sync.start_time.as_deref()
                };
                follow_history(run, live, is_own)
            }
        }
    }

    /// Sends an attempt again that was recorded, when the lost request cannot be carried out any more.
    fn restart(&self, run: &mut DeploymentRun, live: &Value) -> Result<PhaseProgress, Failure> {
        if is_settled(run)? {
            return self.start(run, live);
        }
        let message = "It is not known yet whether the sync was started.";
        Ok(PhaseProgress::wait("SyncUnknown", message))
    }

    /// Records the attempt, and starts the operation when the slot is free.
    fn start(&self, run: &mut DeploymentRun, live: &Value) -> Result<PhaseProgress, Failure> {
        let phase = live["status"]["operationState"]["phase"].as_str();
        if live["operation"].is_object() || matches!(phase, Some("Running" | "Terminating")) {
            let message = "Waiting for Argo CD to end another operation of the application.";
            return Ok(PhaseProgress::wait("OperationInProgress", message));
        }
        let id = &run.record.metadata.uid;
        run.status.sync = Some(SyncStatus {
            operation_id: Some(id.clone()),
            application_uid: live["metadata"]["uid"].as_str().map(Into::into),
            previous_start_time: operation_start(live).map(Into::into),
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
                return Ok(PhaseProgress::wait("SyncRunning", message));
            }
            SyncStart::Refused(message) => {
                return run.fail(&["Argo CD refuses the sync: ", &message].concat());
            }
            SyncStart::Waiting(message) => ("OperationInProgress", message),
            SyncStart::Missing => ("ApplicationMissing", "The application was deleted.".into()),
        };
        // Nothing was written.
        run.status.sync = None;
        Ok(PhaseProgress::wait(reason, message))
    }

    /// Terminates the operation of a deployment that has ended before it.
    pub fn withdraw(&self, run: &mut DeploymentRun, live: &Value, sync: &SyncStatus) -> Result<(), Failure> {
        let id = sync.operation_id.as_deref().unwrap_or_default();
        match find_progress(live, (INFO_NAME, id), sync.previous_start_time.as_deref()) {
            Operation::Running => self.argo.terminate_operation(self.key()).map(|_| ()),
            Operation::Unseen if !sync.started && !is_settled(run)? => {
                let message = "It is not known yet whether the sync was started.";
                Err(Failure::wait("SyncUnknown", message))
            }
            Operation::Unseen | Operation::Ended { .. } | Operation::Replaced => Ok(()),
        }
    }
}

/// Returns whether a request for a sync without an answer will not be carried out any more.
fn is_settled(run: &mut DeploymentRun) -> Result<bool, Failure> {
    let sync = run.status.sync.get_or_insert_default();
    has_settled(run.ctx, run.began_at, &mut sync.searched_at)
}
