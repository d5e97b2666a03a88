//! What follows from what a worker is to do and the state it is in.

use concourse_api::Lifecycle;

/// Stands for the state of a worker Concourse does not have.
pub const MISSING: &str = "missing";

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is as wanted.
    Done,
    /// It is on its way there.
    Wait,
    /// It is to work, and has been told by somebody to leave.
    OutOfService,
    /// It is not there.
    NotFound,
    /// Finish what it has, and stay.
    Land,
    /// Finish what it has, and go.
    Retire,
    /// Be forgotten.
    Prune,
}

/// The step for a worker in a state. Nothing is asked for twice, and a running worker is never pruned, which Concourse
/// refuses: it retires. What a stalled one has to finish will never be finished.
pub fn step(wanted: Lifecycle, state: &str) -> Step {
    match (wanted, state) {
        (Lifecycle::Running, "running") | (Lifecycle::Draining, "landed") | (Lifecycle::Removed, MISSING) => {
            Step::Done
        }
        (_, MISSING) => Step::NotFound,
        (Lifecycle::Running, "landing" | "landed" | "retiring") => Step::OutOfService,
        (Lifecycle::Draining, "running") => Step::Land,
        (Lifecycle::Removed, "running") => Step::Retire,
        (Lifecycle::Removed, "landed" | "stalled") => Step::Prune,
        _ => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_step() {
        use Step::{Done, Land, NotFound, OutOfService, Prune, Retire, Wait};
        let states = [
            "running",
            "stalled",
            "landing",
            "landed",
            "retiring",
            MISSING,
            "new to us",
        ];
        let steps = |wanted| states.map(|state| step(wanted, state));
        assert_eq!(
            steps(Lifecycle::Running),
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
            steps(Lifecycle::Draining),
            [Land, Wait, Wait, Done, Wait, NotFound, Wait]
        );
        assert_eq!(
            steps(Lifecycle::Removed),
            [Retire, Prune, Wait, Prune, Wait, Done, Wait]
        );
    }
}
