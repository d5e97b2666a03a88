//! The limit of pods at a time, `maxPods`: of those whose process has not ended.

use ostler_sdk::{prelude::*, rfc3339};
use steps_api::StepStatus;

use crate::settings::StepSettings;

/// Pool of the permits to have a pod.
const POOL: &str = "pods";

/// Requests the permit of a Step to create its pod. Returns the condition of a Step that waits for one. The time of the permit is
/// in the status: `startTimeout` does not count the wait.
pub fn acquire_permit(
    ctx: &Context,
    settings: &StepSettings,
    status: &mut StepStatus,
) -> Result<Option<Condition>, Failure> {
    let Some(limit) = settings.max_pods else {
        return Ok(None);
    };
    if !ctx.acquire_permit(POOL, limit, false).reason("PodLimit")? {
        let message =
            format!("Waiting for one of the pods that Steps may have at a time (maxPods: {limit}).");
        return Ok(Some(Condition::new_false("Ready", "PodLimit", message)));
    }
    // One that is refused by a quota waits for the next permit, and its time goes on.
    status
        .permit_time
        .get_or_insert_with(|| rfc3339(ctx.now() / 1000));
    Ok(None)
}

/// Keeps the permit of a Step whose pod exists.
pub fn keep_permit(ctx: &Context, settings: &StepSettings) -> Result<(), Failure> {
    if let Some(limit) = settings.max_pods {
        ctx.acquire_permit(POOL, limit, true).reason("PodLimit")?;
    }
    Ok(())
}

/// Releases the permit of a Step whose pod is refused.
pub fn release_permit(ctx: &Context, settings: &StepSettings) {
    if settings.max_pods.is_some() {
        ctx.release_permit(POOL);
    }
}
