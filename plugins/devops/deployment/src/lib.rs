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
mod settle;
mod sync;
mod verify;

use devops_api::{
    DeploymentPhase, DeploymentRecord, DeploymentRecordSpec, DeploymentState, TtlPhase, TtlStatus,
};
use ostler_sdk::{Next, from_rfc3339, prelude::*, rfc3339};

use crate::run::{CHECKPOINT_FAILED, DeploymentRun, PhaseProgress};

/// Interval of looks at what sends no events, and of attempts after a failure.
const LOOK_INTERVAL_MS: u64 = 10_000;
/// Interval of attempts at what a deployment that has ended still has to do.
const FINISH_INTERVAL_MS: u64 = 30_000;
/// Seconds after which the deletion of a record waits neither for its last heartbeat nor for the end of its build. A build ends by
/// itself, and a consumer that is gone for so long has to look at the records anyway.
const MAX_FINISH_SECONDS: u64 = 600;
/// Type of the condition of what the deployment has started, and that has to end with it.
const WITHDRAWN: &str = "Withdrawn";
/// Type of the condition of the last heartbeat.
const HEARTBEAT_CONFIRMED: &str = "HeartbeatConfirmed";

/// Reconciles DeploymentRecords.
pub struct DeploymentRecords;

impl Reconciler for DeploymentRecords {
    type Spec = DeploymentRecordSpec;
    const FINALIZER: Option<&'static str> = Some("devops.ostler.dev/deployment-record");

    fn reconcile(&self, ctx: &Context, record: &DeploymentRecord) -> Result<Outcome, Failure> {
        let mut run = DeploymentRun::new(ctx, record);
        match run.state() {
            DeploymentState::Running => advance(&mut run),
            _ => Ok(finish(&mut run)),
        }
    }

    fn cleanup(&self, ctx: &Context, record: &DeploymentRecord) -> Result<Outcome, Failure> {
        let mut run = DeploymentRun::new(ctx, record);
        let is_begun = run.status.phase.is_some();
        if is_begun && run.state() == DeploymentState::Running {
            run.end(
                DeploymentState::Terminated,
                "The record was deleted before the end of the deployment.",
            );
        }
        // None of these waits for another: a server that is down keeps nothing that is elsewhere.
        let build = build::withdraw(&mut run);
        let sync = sync::withdraw(&mut run);
        let heartbeat = match is_begun {
            true => heartbeat::confirm_final(&mut run),
            false => Ok(()),
        };
        let build = give_up(&run, "BuildAbandoned", build);
        let heartbeat = give_up(&run, "HeartbeatAbandoned", heartbeat);
        let left = cleanup::clean_up(&mut run).and_then(|left| match left {
            None => Ok(()),
            Some(message) => Err(Failure::wait("CleanupPending", message)),
        });
        let done = sync.and(left).and(build).and(heartbeat);
        done.map_err(|failure| failure.status(&run.status))?;
        Ok(Outcome::await_change().status(&run.status))
    }
}

/// Ends the attempts at what leaves nothing behind, after a time, with an event. Until then it is tried again even if it was
/// denied.
fn give_up(run: &DeploymentRun, event: &str, result: Result<(), Failure>) -> Result<(), Failure> {
    let Err(failure) = result else { return Ok(()) };
    let deleted_at = run.record.metadata.deletion_timestamp.as_deref();
    let deleted_at = deleted_at.and_then(from_rfc3339).unwrap_or_default();
    if run.ctx.now() / 1000 < deleted_at + MAX_FINISH_SECONDS {
        return Err(Failure::wait(&failure.reason, failure.message));
    }
    run.ctx.warn(event, &failure.message);
    Ok(())
}

/// Advances a running deployment as far as it gets. A heartbeat that is due is sent first, since what follows may wait for a server
/// that hangs.
fn advance(run: &mut DeploymentRun) -> Result<Outcome, Failure> {
    let heartbeat_due = heartbeat::send_due(run);
    let waiting = loop {
        let progress = match run.status.phase {
            None => {
                run.enter(DeploymentPhase::Initializing, "Waiting for the settings.");
                Ok(PhaseProgress::Next)
            }
            Some(DeploymentPhase::Initializing) => run.initialize(),
            Some(DeploymentPhase::Building) => build::advance(run),
            Some(DeploymentPhase::Deploying) => sync::advance(run),
            Some(DeploymentPhase::Verifying) => verify::advance(run),
        };
        match progress {
            Ok(PhaseProgress::Next) if run.state() == DeploymentState::Running => {}
            Ok(PhaseProgress::Next) => return Ok(end(run)),
            Ok(PhaseProgress::Wait { reason, message }) => {
                run.status.phase_message = Some(message.clone());
                break Condition::new_false("Ready", reason, message);
            }
            // Someone has written the status meanwhile, which must not be overwritten.
            Err(failure) if failure.reason == CHECKPOINT_FAILED => return Err(failure),
            // No failure delays heartbeats or the time limits of the phases: not even one that only a user can mend, or else a
            // missing grant would be silence instead of a failed deployment.
            Err(failure) => {
                run.status.phase_message = Some(failure.message.clone());
                break Condition::new_false("Ready", &failure.reason, failure.message);
            }
        }
    };
    if let Some(message) = run.exceeded_limit() {
        run.end(DeploymentState::Failed, &message);
        return Ok(end(run));
    }
    let next = if run.status.phase == run.record.status.phase {
        heartbeat_due
            .saturating_sub(run.ctx.now())
            .clamp(1, LOOK_INTERVAL_MS)
    } else {
        // The heartbeat about it is sent when it is written.
        1
    };
    Ok(Outcome::after(next).with(waiting).status(&run.status))
}

/// The outcome at the end of a deployment, which is written first: what follows may take several attempts.
fn end(run: &DeploymentRun) -> Outcome {
    Outcome::after(1).with(run.ready_condition()).status(&run.status)
}

/// Follows a deployment that has ended: withdraws what it has started, sends the last heartbeat, and counts the time to live. None
/// of these waits for another.
fn finish(run: &mut DeploymentRun) -> Outcome {
    let build = build::withdraw(run);
    let sync = sync::withdraw(run);
    let withdrawn = build.and(sync);
    let heartbeat = heartbeat::confirm_final(run);
    let is_pending = withdrawn.is_err() || heartbeat.is_err();
    let mut outcome = count_time(run);
    if is_pending {
        outcome.next = match outcome.next {
            Next::After(milliseconds) => Next::After(milliseconds.min(FINISH_INTERVAL_MS)),
            _ => Next::After(FINISH_INTERVAL_MS),
        };
    }
    if run.state() != DeploymentState::Success {
        let done = "Neither the build nor the sync of the deployment is left.";
        outcome = outcome.with(describe_attempt(WITHDRAWN, withdrawn, done));
    }
    if run.record.spec.heartbeat.is_some() {
        let done = "The broker has confirmed the last heartbeat.";
        outcome = outcome.with(describe_attempt(HEARTBEAT_CONFIRMED, heartbeat, done));
    }
    outcome.status(&run.status)
}

/// The condition of what is attempted until it succeeds.
fn describe_attempt(kind: &str, result: Result<(), Failure>, done: &str) -> Condition {
    match result {
        Ok(()) => Condition::new_true(kind, kind, done),
        Err(failure) => Condition::new_false(kind, &failure.reason, failure.message),
    }
}

/// Counts the time to live of a deployment that has ended, and cleans up when it has.
fn count_time(run: &mut DeploymentRun) -> Outcome {
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
    let next = match ttl.phase {
        TtlPhase::Monitoring if is_expired => {
            ttl.phase = TtlPhase::Cleanup;
            run.status.ttl = Some(ttl);
            run.ctx.event("CleanupStarted", "The time to live has ended.");
            // ArgoSetting sees by this status that the application is not needed any more.
            Outcome::after(1)
        }
        TtlPhase::Monitoring => {
            run.status.ttl = Some(ttl);
            expires_at.map_or_else(Outcome::await_change, |at| Outcome::at(at * 1000))
        }
        TtlPhase::Cleanup => {
            run.status.ttl = Some(ttl);
            let (reason, message) = match cleanup::clean_up(run) {
                Ok(None) => {
                    run.finish_ttl();
                    return Outcome::await_change().with(run.ready_condition());
                }
                Ok(Some(message)) => ("CleanupPending".to_owned(), message),
                Err(failure) => (failure.reason, failure.message),
            };
            return Outcome::after(FINISH_INTERVAL_MS).with(Condition::new_false("Ready", &reason, message));
        }
        TtlPhase::Completed => Outcome::await_change(),
    };
    next.with(run.ready_condition())
}

ostler_sdk::plugin!(DeploymentRecords);
