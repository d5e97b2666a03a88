//! Reconciles one by one, for who does not wait for what comes later: a plan.

use super::Controller;
use crate::{
    kube::key::ObjectRef,
    schedule::{
        dependencies::Dependency,
        dispatcher::Cause,
        queue::{Requeue, Work},
    },
};

/// How one reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileStep {
    /// The object is not there any more.
    Gone,
    /// It did what it could.
    Done,
    /// It waits for something.
    Waits,
    /// It failed, and would be tried again.
    Fails,
    /// It failed, and would not be tried again by itself.
    Parked,
}

impl Controller {
    /// Reconciles what was popped, for this once: it comes again when what it read changes, and not by itself. Gives
    /// what it read.
    pub async fn reconcile_once(&self, work: &Work<ObjectRef, Cause>) -> (ReconcileStep, Vec<Dependency>) {
        let dispatcher = &self.services.dispatcher;
        let Some(end) = self.reconcile_object(work).await else {
            dispatcher.forget(&work.key);
            return (ReconcileStep::Gone, Vec::new());
        };
        let step = match end.next {
            Requeue::AwaitChange | Requeue::At(..) => ReconcileStep::Done,
            Requeue::Wait(..) => ReconcileStep::Waits,
            Requeue::Retry(_) => ReconcileStep::Fails,
            Requeue::Terminal => ReconcileStep::Parked,
        };
        dispatcher.done(&work.key, Requeue::AwaitChange, end.reads.clone());
        (step, end.reads.unwrap_or_default())
    }
}
