//! Single reconciles, for a plan.

use super::Controller;
use crate::{
    kube::key::ObjectRef,
    schedule::{
        dependencies::ReadDependency,
        dispatcher::Cause,
        queue::{Requeue, Work},
    },
};

/// Result of a single reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileStep {
    /// The object is gone.
    Gone,
    /// The reconcile has succeeded.
    Done,
    /// The object waits for something.
    Waits,
    /// The reconcile has failed, and would be retried.
    Fails,
    /// The reconcile has failed, and would not be retried.
    Parked,
}

impl Controller {
    /// Reconciles an object that was popped from the queue. It is queued again when a dependency changes, not after a
    /// time. Returns its dependencies.
    pub async fn reconcile_once(
        &self,
        work: &Work<ObjectRef, Cause>,
    ) -> (ReconcileStep, Vec<ReadDependency>) {
        let dispatcher = &self.services.dispatcher;
        let Some(end) = self.reconcile_object(work).await else {
            dispatcher.forget(&work.key);
            return (ReconcileStep::Gone, Vec::new());
        };
        let step = match end.next {
            Requeue::AwaitChange | Requeue::At(..) => ReconcileStep::Done,
            Requeue::Wait(..) => ReconcileStep::Waits,
            Requeue::Retry(..) => ReconcileStep::Fails,
            Requeue::Terminal => ReconcileStep::Parked,
        };
        dispatcher.done(
            &work.key,
            Requeue::AwaitChange,
            end.reads.clone(),
            end.pools.as_ref(),
        );
        (step, end.reads.unwrap_or_default())
    }
}
