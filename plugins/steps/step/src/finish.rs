//! The end of a Step, and what follows: its pod stays for a while, with artifacts and log, and is then destroyed.

use ostler_sdk::{
    DeleteOptions, Preconditions, duration, from_rfc3339, prelude::*, rfc3339, serde_json::Value,
};
use steps_api::{PodState, Step, StepArtifact, StepPhase, StepSpec, StepStatus};
use steps_protocol::STREAMER_PORT;

use crate::{
    abandon_time, delete_pod, is_owned,
    log::set_log,
    observe::{Observation, is_streamer_gone},
    read_pod, release, rerun, warn_abandoned,
};

/// Seconds until the requests of an ended process are released again, where the API server did not answer.
const RELEASE_SECONDS: u64 = 10;

/// Records what the shim reported.
pub fn record_end(status: &mut StepStatus, spec: &StepSpec, live: &Value, observed: &Observation) {
    status.artifacts = observed
        .artifacts()
        .iter()
        .map(|artifact| StepArtifact {
            name: artifact.name.clone(),
            url: artifact_url(live, &artifact.name),
            digest: artifact.digest.clone(),
            bytes: i64::try_from(artifact.bytes).unwrap_or(i64::MAX),
        })
        .collect();
    let Some(report) = &observed.report else { return };
    status.exit_code = report.exit_code.map(Into::into);
    status.start_time = report.start_time.map(rfc3339).or(status.start_time.take());
    status.end_time = report.end_time.map(rfc3339);
    set_log(status, &report.log, spec.log_tail_bytes);
}

/// The URL of an artifact; none if the pod has no address any more.
fn artifact_url(live: &Value, name: &str) -> Option<String> {
    if is_streamer_gone(live) || !live["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let ip = live["status"]["podIP"].as_str().filter(|ip| !ip.is_empty())?;
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    Some(format!("http://{host}:{STREAMER_PORT}/v1/artifacts/{name}"))
}

/// Ends a Step. The end is written first: what follows may take several attempts.
pub fn finish(
    ctx: &Context,
    mut status: StepStatus,
    phase: StepPhase,
    reason: &str,
    message: &str,
) -> Result<Outcome, Failure> {
    status.phase = phase;
    status.reason = Some(reason.into());
    status.message = Some(message.into());
    status.finish_time = Some(rfc3339(ctx.now() / 1000));
    if status.pod.is_some() && status.pod_state != Some(PodState::Gone) {
        status.pod_state = Some(PodState::Retained);
    }
    match phase {
        StepPhase::Succeeded => ctx.event(reason, message),
        _ => ctx.warn(reason, message),
    }
    Ok(describe_end(Outcome::after(1), &status))
}

/// Adds the conditions and the status of an ended Step to an outcome. One that failed is Stalled for tools that know kstatus:
/// its pod is destroyed later, which changes nothing of that.
fn describe_end(outcome: Outcome, status: &StepStatus) -> Outcome {
    let reason = status.reason.as_deref().unwrap_or("Succeeded");
    let message = status.message.as_deref().unwrap_or_default();
    let outcome = match status.phase {
        StepPhase::Succeeded => outcome.with(Condition::new_true("Ready", reason, message)),
        _ => outcome
            .with(Condition::new_false("Ready", reason, message))
            .with(Condition::new_true("Stalled", reason, message)),
    };
    outcome.status(status)
}

/// Keeps the pod of an ended Step for as long as the spec says and other Steps need it, and destroys it then.
pub fn retain(ctx: &Context, step: &Step) -> Result<Outcome, Failure> {
    let mut status = step.status.clone();
    let now = ctx.now() / 1000;
    let finished = status
        .finish_time
        .as_deref()
        .and_then(from_rfc3339)
        .unwrap_or(now);
    let expires = step
        .spec
        .ttl_seconds_after_finished
        .map(|ttl| finished + u64::try_from(ttl).unwrap_or_default());
    if expires.is_some_and(|expires| expires <= now) {
        // Its finalizer destroys the pod, and the holds of other Steps delay that.
        // Another Step may have the name by now.
        let options = DeleteOptions {
            preconditions: Preconditions::uid(&step.metadata.uid),
            ..DeleteOptions::default()
        };
        match ctx.delete_with(&step.reference(), &options) {
            Ok(()) | Err(Error::Conflict(_)) => {}
            Err(error) => return Err(error).reason("DeletionFailed"),
        }
        return Ok(describe_end(Outcome::await_change(), &status));
    }
    let released = finished + duration(&step.spec.retain).unwrap_or_default().div_ceil(1000);
    let has_holders = !step.spec.outputs.is_empty() && !ctx.list_holders(&step.reference())?.is_empty();
    let live = read_pod(ctx, step, status.attempt, false)?.filter(|live| is_owned(step, live));
    match &live {
        Some(live) => observe_retained(&mut status, live),
        None => set_gone(&mut status),
    }
    // A pod that never started has neither artifacts nor a log, and may take a place on a node.
    let never_started = status.phase == StepPhase::Errored
        && live
            .as_ref()
            .is_some_and(|live| live["status"]["phase"] == "Pending");
    let runs_again = has_holders && has_lost_artifacts(&status) && rerun::may_rerun(&step.spec, &status);
    let is_released = never_started || runs_again || (released <= now && !has_holders);
    let mut release_again = None;
    if let Some(live) = &live
        && !is_released
        && !release::release_requests(ctx, step, status.attempt, live)?
    {
        release_again = Some(now + RELEASE_SECONDS);
    }
    if let Some(live) = live.filter(|_| is_released) {
        status.pod_state = Some(PodState::Destroying);
        delete_pod(ctx, step, status.attempt, &live)?;
        let left = read_pod(ctx, step, status.attempt, false)?;
        match left {
            None => set_gone(&mut status),
            Some(_) => {
                let artifacts = status.artifacts.iter_mut();
                artifacts.for_each(|artifact| artifact.url = None);
            }
        }
        if let Some(left) = left.filter(|_| runs_again) {
            // Two pods of a Step must not run at a time. The process of this one has ended, so that a node which does not confirm its
            // end keeps no consumer waiting.
            let abandoned_at = abandon_time(&left);
            if abandoned_at.is_none_or(|time| time > now) {
                let next = abandoned_at.map_or_else(Outcome::await_change, |time| Outcome::at(time * 1000));
                return Ok(describe_end(next, &status));
            }
            warn_abandoned(ctx);
        }
    }
    if runs_again {
        let message =
            "The pod with the artifacts is gone while other steps need them: the process runs again.";
        ctx.warn("ArtifactsLost", message);
        let condition = Condition::new_false("Ready", "Rerun", message);
        return Ok(Outcome::after(1)
            .with(condition)
            .status(&rerun::begin_attempt(&status, now)));
    }
    let is_kept = matches!(status.pod_state, Some(PodState::Retained)) && released > now;
    let next = [expires, is_kept.then_some(released), release_again];
    let next = next.into_iter().flatten().min();
    let outcome = next.map_or_else(Outcome::await_change, |next| Outcome::at(next * 1000));
    Ok(describe_end(outcome, &status))
}

/// Updates what the pod of an ended Step shows.
fn observe_retained(status: &mut StepStatus, live: &Value) {
    let is_deleted = !live["metadata"]["deletionTimestamp"].is_null();
    status.pod_state = Some(if is_deleted {
        PodState::Destroying
    } else {
        PodState::Retained
    });
    for artifact in &mut status.artifacts {
        artifact.url = artifact_url(live, &artifact.name);
    }
}

fn set_gone(status: &mut StepStatus) {
    if status.pod.is_some() {
        status.pod_state = Some(PodState::Gone);
    }
    for artifact in &mut status.artifacts {
        artifact.url = None;
    }
}

fn has_lost_artifacts(status: &StepStatus) -> bool {
    status.phase == StepPhase::Succeeded && status.artifacts.iter().any(|artifact| artifact.url.is_none())
}
