//! Running a Step again in another pod.

use ostler_sdk::rfc3339;
use steps_api::{PodLostPolicy, PodState, StepSpec, StepStatus};

/// Pods that a Step may have, one after the other.
pub const MAX_ATTEMPTS: i64 = 4;

/// Returns whether a Step whose pod was lost runs again.
pub fn may_rerun(spec: &StepSpec, status: &StepStatus) -> bool {
    spec.on_pod_lost == PodLostPolicy::Rerun && status.attempt < MAX_ATTEMPTS
}

/// The status with which the next attempt begins, at this time in seconds since the Unix epoch: nothing of the last one is left but
/// its number.
pub fn begin_attempt(status: &StepStatus, now: u64) -> StepStatus {
    StepStatus {
        attempt: status.attempt + 1,
        attempt_time: Some(rfc3339(now)),
        pod_state: Some(PodState::Gone),
        ..StepStatus::default()
    }
}
