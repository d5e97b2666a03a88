//! Transitions of a worker between its states.

use concourse_api::WorkerLifecycle;

/// Stands for the state of a worker that Concourse does not have.
pub const MISSING_PHASE: &str = "missing";

/// A request that moves a worker to another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerTransition {
    /// Finish the work and stay registered.
    Land,
    /// Finish the work and leave.
    Retire,
    /// Forget the worker, which runs no more.
    Prune,
}

impl WorkerTransition {
    /// The verb in the path of the REST API.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Land => "land",
            Self::Retire => "retire",
            Self::Prune => "prune",
        }
    }
}

/// The next step towards the desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifecycleStep {
    /// The worker has the desired state.
    Done,
    /// The worker is on its way there.
    Wait,
    /// The worker should run, but is leaving; no request reverts that.
    OutOfService,
    /// Concourse has no such worker.
    NotFound,
    /// Concourse has to be asked for a transition.
    Send(WorkerTransition),
}

/// The step for a worker in a state. No transition is requested twice. A running worker retires, because Concourse
/// refuses to prune it; a stalled one is pruned, because it will never finish its work.
pub fn next_step(desired: WorkerLifecycle, state: &str) -> LifecycleStep {
    match (desired, state) {
        (WorkerLifecycle::Running, "running")
        | (WorkerLifecycle::Draining, "landed")
        | (WorkerLifecycle::Removed, MISSING_PHASE) => LifecycleStep::Done,
        (_, MISSING_PHASE) => LifecycleStep::NotFound,
        (WorkerLifecycle::Running, "landing" | "landed" | "retiring") => LifecycleStep::OutOfService,
        (WorkerLifecycle::Draining, "running") => LifecycleStep::Send(WorkerTransition::Land),
        (WorkerLifecycle::Removed, "running") => LifecycleStep::Send(WorkerTransition::Retire),
        (WorkerLifecycle::Removed, "landed" | "stalled") => LifecycleStep::Send(WorkerTransition::Prune),
        _ => LifecycleStep::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_step_covers_every_lifecycle_and_state() {
        use LifecycleStep::{Done, NotFound, OutOfService, Send, Wait};
        use WorkerTransition::{Land, Prune, Retire};
        let states = [
            "running",
            "stalled",
            "landing",
            "landed",
            "retiring",
            MISSING_PHASE,
            "new to us",
        ];
        let steps = |desired| states.map(|state| next_step(desired, state));
        assert_eq!(
            steps(WorkerLifecycle::Running),
            [
                Done,
                Wait,
                OutOfService,
                OutOfService,
                OutOfService,
                NotFound,
                Wait
            ]
        );
        assert_eq!(
            steps(WorkerLifecycle::Draining),
            [Send(Land), Wait, Wait, Done, Wait, NotFound, Wait]
        );
        assert_eq!(
            steps(WorkerLifecycle::Removed),
            [Send(Retire), Send(Prune), Wait, Send(Prune), Wait, Done, Wait]
        );
    }
}
