use ostler_sdk::{Condition, Outcome, api};

/// Decides what happens to the records at the provider when an object is deleted.
#[api]
#[derive(Copy, Default)]
pub enum RecordReclaimPolicy {
    /// The record and its mark are deleted, too.
    #[default]
    Delete,
    /// The record and its mark stay.
    Orphan,
}

/// The outcome for a suspended object, which is reached without any request.
#[must_use]
pub fn suspended_outcome() -> Outcome {
    let message = "Not reconciled while spec.suspend is true.";
    Outcome::await_change().with(Condition::new_false("Ready", "Suspended", message))
}
