//! Heartbeats: the progress of a deployment, as a message. While it runs they may be lost; the last one is sent until the
//! broker has confirmed it.

use devops_api::{
    DEVOPS_RECONCILE_HEARTBEAT, DeploymentState, DevOpsReconcileJobHeartbeat, HeartbeatStatus,
    HeartbeatTarget,
};
use ostler_sdk::{Message, prelude::*};

use crate::run::DeploymentRun;

/// Interval of the heartbeats of a running deployment.
const HEARTBEAT_INTERVAL_MS: u64 = 30_000;
/// Delay after a heartbeat that could not be published.
const RETRY_DELAY_MS: u64 = 5_000;
/// Key of the time and the content of the last heartbeat. It is no status, which would be a write for each.
const LAST_SENT_KEY: &str = "heartbeat";

/// Publishes a heartbeat if one is due: each 30 seconds, and when the phase has changed. Returns when the next one is due, in
/// milliseconds since the Unix epoch.
///
/// It is about the status as it was read. One about a phase that is not written yet would be followed by one about the phase before
/// it, if the host ended in between.
pub fn send_due(run: &DeploymentRun) -> u64 {
    let (Some(target), Some(phase)) = (&run.record.spec.heartbeat, run.record.status.phase) else {
        return u64::MAX;
    };
    let phase = phase.as_str();
    let now = run.ctx.now();
    let last = run
        .ctx
        .cache_get(LAST_SENT_KEY)
        .and_then(|bytes| String::from_utf8(bytes).ok());
    if let Some((sent_at, sent_phase)) = last.as_deref().and_then(|last| last.split_once(' '))
        && sent_phase == phase
    {
        let due = sent_at.parse::<u64>().unwrap_or_default() + HEARTBEAT_INTERVAL_MS;
        if now < due {
            return due;
        }
    }
    let message = build_message(run, target, &now.to_string());
    match run.ctx.publish(&target.upstream_ref.upstream_ref(), &message) {
        Ok(()) => {
            // Without the cache the next reconcile sends one more.
            run.ctx
                .cache_set(LAST_SENT_KEY, format!("{now} {phase}").as_bytes())
                .ok();
            now + HEARTBEAT_INTERVAL_MS
        }
        Err(error) => {
            run.ctx.log(
                ostler_sdk::Level::Warn,
                &format!("No heartbeat: {}", error.text()),
                &[],
            );
            now + RETRY_DELAY_MS
        }
    }
}

/// Publishes the heartbeat with the final state, unless the broker has confirmed it.
pub fn confirm_final(run: &mut DeploymentRun) -> Result<(), Failure> {
    let Some(target) = &run.record.spec.heartbeat else {
        return Ok(());
    };
    let heartbeat = run.status.heartbeat.as_ref();
    if heartbeat.is_some_and(|heartbeat| heartbeat.final_confirmed) {
        return Ok(());
    }
    let message = build_message(run, target, "final");
    let published = run.ctx.publish(&target.upstream_ref.upstream_ref(), &message);
    published.reason("HeartbeatFailed")?;
    run.status.heartbeat = Some(HeartbeatStatus {
        final_confirmed: true,
    });
    Ok(())
}

fn build_message(run: &DeploymentRun, target: &HeartbeatTarget, number: &str) -> Message {
    let body = DevOpsReconcileJobHeartbeat {
        operation: "heartbeat".into(),
        id: run.id().to_owned(),
        status: run.status.state.unwrap_or(DeploymentState::Running),
        phase: run.status.phase.unwrap_or_default().as_str().to_owned(),
        phase_message: run.status.phase_message.clone().unwrap_or_default(),
        url: run.status.url.clone(),
    };
    let id = format!("{}:{number}", run.record.metadata.uid);
    let mut message = Message::with_json(&target.exchange, &target.routing_key, &body).id(&id);
    message.properties.type_ = Some(DEVOPS_RECONCILE_HEARTBEAT.into());
    message.properties.correlation_id = Some(run.id().to_owned());
    message
}
