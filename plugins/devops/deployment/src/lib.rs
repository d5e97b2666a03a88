//! Reconciles `devops.ostler.dev/v1alpha1` DeploymentRecord: build, sync, address, time to live.
//!
//! A deployment advances by its status. Before each effect that must happen once, a checkpoint records what identifies it: the
//! parameter `DEPLOYMENT_ID` of the build, the ID of the operation of Argo CD. After a crash it is looked for before anything is
//! sent again.

mod build;
mod cleanup;
mod heartbeat;
mod run;
mod server_sync;
mod sync;
mod verify;

use devops_api::{
    DeploymentPhase, DeploymentRecord, DeploymentRecordSpec, DeploymentState, TtlPhase, TtlStatus,
};
use ostler_sdk::{Resolution, from_rfc3339, prelude::*, rfc3339};

use crate::run::{CHECKPOINT_FAILED, Progress, Run};

/// Interval of looks at what sends no events, and of attempts after a failure.
const LOOK_INTERVAL_MS: u64 = 10_000;

/// Reconciles DeploymentRecords.
pub struct DeploymentRecords;

impl Reconciler for DeploymentRecords {
    type Spec = DeploymentRecordSpec;
    const FINALIZER: Option<&'static str> = Some("devops.ostler.dev/deployment-record");

    fn reconcile(&self, ctx: &Context, record: &DeploymentRecord) -> Result<Outcome, Failure> {
        let mut run = Run::new(ctx, record);
        if run.state() == DeploymentState::Running {
            return advance(&mut run);
        }
        heartbeat::confirm_final(&mut run)?;
        count_time(&mut run)
    }

    fn cleanup(&self, ctx: &Context, record: &DeploymentRecord) -> Result<Outcome, Failure> {
        let mut run = Run::new(ctx, record);
        if run.status.phase.is_some() && run.state() == DeploymentState::Running {
            build::cancel(&run)?;
            sync::terminate(&run)?;
            run.end(
                DeploymentState::Terminated,
                "The record was deleted before the end of the deployment.",
            );
        }
        if run.status.phase.is_some() {
            heartbeat::confirm_final(&mut run)?;
        }
        match cleanup::clean_up(&mut run).map_err(|failure| failure.status(&run.status))? {
            None => Ok(Outcome::await_change().status(&run.status)),
            Some(message) => Err(Failure::wait("CleanupPending", message).status(&run.status)),
        }
    }
}

/// Advances a running deployment as far as it gets, and sends the heartbeat that is due.
fn advance(run: &mut Run) -> Result<Outcome, Failure> {
    let waiting = loop {
        let progress = match run.status.phase {
            None => {
                run.enter(DeploymentPhase::Initializing, "Waiting for the settings.");
                Ok(Progress::Next)
            }
            Some(DeploymentPhase::Initializing) => run.initialize(),
            Some(DeploymentPhase::Building) => build::advance(run),
            Some(DeploymentPhase::Deploying) => sync::advance(run),
            Some(DeploymentPhase::Verifying) => verify::advance(run),
        };
        match progress {
            Ok(Progress::Next) if run.state() == DeploymentState::Running => {}
            Ok(Progress::Next) => {
                // The end is written first: what follows may take several attempts.
                return Ok(Outcome::after(1).with(run.ready_condition()).status(&run.status));
            }
            Ok(Progress::Wait { reason, message }) => {
                run.status.phase_message = Some(message.clone());
                break Condition::new_false("Ready", reason, message);
            }
            Err(failure) if is_final(&failure) => return Err(failure),
            // A failure that may pass delays neither heartbeats nor the time limits of the phases.
            Err(failure) => {
                run.status.phase_message = Some(failure.message.clone());
                break Condition::new_false("Ready", &failure.reason, failure.message);
            }
        }
    };
    if let Some(message) = run.exceeded_limit() {
        build::cancel(run)?;
        sync::terminate(run)?;
        run.end(DeploymentState::Failed, &message);
        return Ok(Outcome::after(1).with(run.ready_condition()).status(&run.status));
    }
    let next_heartbeat = heartbeat::send_due(run);
    let next = next_heartbeat.min(LOOK_INTERVAL_MS);
    Ok(Outcome::after(next).with(waiting).status(&run.status))
}

/// Returns whether a failure is passed to the host: what only a user can mend, and a status that someone has written
/// meanwhile, which must not be overwritten.
fn is_final(failure: &Failure) -> bool {
    failure.reason == CHECKPOINT_FAILED
        || matches!(failure.resolution, Resolution::Terminal | Resolution::Denied(_))
}

/// Counts the time to live of a deployment that has ended, and cleans up when it has.
fn count_time(run: &mut Run) -> Result<Outcome, Failure> {
    let start = run
        .status
        .completion_time
        .clone()
        .unwrap_or_else(|| rfc3339(run.ctx.now() / 1000));
    let lifetime = u64::try_from(run.record.spec.ttl_seconds).unwrap_or_default();
    let mut ttl = run.status.ttl.clone().unwrap_or_default();
    let expires_at = from_rfc3339(&start)
        .filter(|_| lifetime > 0)
        .map(|start| start + lifetime);
    if ttl.phase == TtlPhase::Monitoring {
        ttl = TtlStatus {
            start_time: Some(start),
            expiration_time: expires_at.map(rfc3339),
            ..ttl
        };
    }
    let is_expired = expires_at.is_some_and(|at| at * 1000 <= run.ctx.now());
    match ttl.phase {
        TtlPhase::Monitoring if is_expired => {
            ttl.phase = TtlPhase::Cleanup;
            run.status.ttl = Some(ttl);
            run.ctx.event("CleanupStarted", "The time to live has ended.");
            // ArgoSetting sees by this status that the application is not needed any more.
            Ok(Outcome::after(1).with(run.ready_condition()).status(&run.status))
        }
        TtlPhase::Monitoring => {
            run.status.ttl = Some(ttl);
            let next = expires_at.map_or_else(Outcome::await_change, |at| Outcome::at(at * 1000));
            Ok(next.with(run.ready_condition()).status(&run.status))
        }
        TtlPhase::Cleanup => {
            run.status.ttl = Some(ttl);
            match cleanup::clean_up(run).map_err(|failure| failure.status(&run.status))? {
                Some(message) => Err(Failure::wait("CleanupPending", message).status(&run.status)),
                None => {
                    run.finish_ttl();
                    Ok(Outcome::await_change()
                        .with(run.ready_condition())
                        .status(&run.status))
                }
            }
        }
        TtlPhase::Completed => Ok(Outcome::await_change().with(run.ready_condition())),
    }
}

ostler_sdk::plugin!(DeploymentRecords);
