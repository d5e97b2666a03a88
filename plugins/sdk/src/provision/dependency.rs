//! Objects of others that must be there first, and Kubernetes' foreground deletion.

use super::Provision;
use crate::{ConditionStatus, Context, Error, Failure, ObjectMeta, ObjectRef};

/// Finalizer with which Kubernetes deletes the dependents of an object before the object itself.
const FOREGROUND_FINALIZER: &str = "foregroundDeletion";

/// An object of another owner that must exist, and may have to be ready and to be held. It is not changed, and not deleted.
pub struct Dependency<'a> {
    reference: ObjectRef,
    condition: Option<&'a str>,
    is_held: bool,
}

impl<'a> Dependency<'a> {
    /// Requires an object to exist.
    #[must_use]
    pub fn new(reference: ObjectRef) -> Self {
        Self {
            reference,
            condition: None,
            is_held: false,
        }
    }

    /// Requires a condition of the object to be True for its current generation, such as `Ready`.
    #[must_use]
    pub fn ready_when(mut self, condition: &'a str) -> Self {
        self.condition = Some(condition);
        self
    }

    /// Holds the object, so that it is not deleted while the reconciled object uses it. A reconcile that succeeds without
    /// this step, or in which [`when`](super::when) turns it off, releases it.
    #[must_use]
    pub fn held(mut self) -> Self {
        self.is_held = true;
        self
    }
}

impl Provision for Dependency<'_> {
    fn provision(&self, ctx: &Context) -> Result<(), Failure> {
        // Before the check, so that it cannot be deleted between the two.
        if self.is_held {
            ctx.hold(&self.reference)?;
        }
        match self.condition {
            Some(condition) => {
                ctx.require_condition(&self.reference, condition, ConditionStatus::True)?;
            }
            // A hold fails for an object that does not exist.
            None if !self.is_held && ctx.get_metadata(&self.reference)?.is_none() => {
                let name = [&*self.reference.gvk.kind, " ", &self.reference.name].concat();
                return Err(Error::NotFound(name).into());
            }
            None => {}
        }
        Ok(())
    }

    fn deprovision(&self, _: &Context) -> Result<(), Failure> {
        Ok(())
    }
}

/// Waits while Kubernetes deletes the dependents of an object, as `kubectl delete --cascade=foreground` asks for. A cleanup
/// that starts with it does not delete them at the same time.
///
/// # Errors
/// A failure that waits.
pub fn wait_for_foreground_deletion(metadata: &ObjectMeta) -> Result<(), Failure> {
    if metadata
        .finalizers
        .iter()
        .any(|name| name == FOREGROUND_FINALIZER)
    {
        let message = "Kubernetes deletes the dependents of the object first.";
        return Err(Failure::wait("ForegroundDeletion", message));
    }
    Ok(())
}
