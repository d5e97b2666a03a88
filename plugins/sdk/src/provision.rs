//! Composition of what an object stands for out of steps that are provisioned in order and deprovisioned in reverse.
//!
//! A step is a name and a part: a Kubernetes object ([`Resource`]), a Helm application ([`HelmApplication`]), an object that
//! must be ready first ([`Dependency`]), or a type of the plugin that implements [`Provision`]. [`serial`], [`concurrent`]
//! and [`when`] compose steps to a [`StepTree`], which a reconciler returns as its outcome, with a condition per step:
//!
//! ```
//! use ostler_sdk::prelude::*;
//! use ostler_sdk::provision::{Resource, concurrent, serial, step, when, StepTree};
//! # use ostler_sdk::{Next, mock::MockHost};
//!
//! #[ostler_sdk::resource(group = "examples.dev", version = "v1", namespaced)]
//! pub struct SiteSpec {
//!     text: String,
//!     public: bool,
//! }
//!
//! fn steps(site: &Site) -> StepTree<'_> {
//!     let metadata = json!({ "name": site.name(), "namespace": site.namespace() });
//!     let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
//!         "data": { "text": site.spec.text } });
//!     let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata,
//!         "spec": { "selector": { "app": site.name() }, "ports": [{ "port": 80 }] } });
//!     serial(vec![
//!         step("TextApplied", Resource::new(&site.metadata, map)),
//!         when(site.spec.public, step("ServiceApplied", Resource::new(&site.metadata, service))),
//!     ])
//! }
//!
//! struct Sites;
//!
//! impl Reconciler for Sites {
//!     type Spec = SiteSpec;
//!     const FINALIZER: Option<&'static str> = Some("examples.dev/site");
//!
//!     fn reconcile(&self, ctx: &Context, site: &Site) -> Result<Outcome, Failure> {
//!         steps(site).provision(ctx)
//!     }
//!
//!     fn cleanup(&self, ctx: &Context, site: &Site) -> Result<Outcome, Failure> {
//!         steps(site).deprovision(ctx)
//!     }
//! }
//!
//! let host = MockHost::new();
//! let site = json!({ "metadata": { "name": "a", "namespace": "n", "uid": "u" },
//!     "spec": { "text": "Hello", "public": true } });
//! let outcome = host.reconcile(&Sites, &site).expect("an outcome");
//! assert_eq!(outcome.conditions[1], Condition::new_true("ServiceApplied", "Provisioned", ""));
//! host.forget();
//! host.cleanup(&Sites, &site).expect("an outcome");
//! assert_eq!(host.writes(), ["delete Service a", "delete ConfigMap a"]);
//! ```

mod dependency;
mod helm;
mod resource;

pub use dependency::{Dependency, wait_for_foreground_deletion};
pub use helm::{HelmApplication, HelmDriver, read_argo_health, read_flux_health};
pub use resource::{OWNER_LABEL, Resource};

use crate::{Condition, ConditionStatus, Context, Failure, Outcome, Resolution, ResultExt};

/// A part of what an object stands for. Both functions are level-triggered: they may be called at any time and any number
/// of times, in any state that an interrupted call has left.
pub trait Provision {
    /// Moves the part towards its desired state. It succeeds when that is reached; [`Failure::wait`] for something that
    /// takes its time is no error.
    ///
    /// # Errors
    /// A [`Failure`] with its reason and resolution.
    fn provision(&self, ctx: &Context) -> Result<(), Failure>;

    /// Removes the part. It succeeds when nothing is left of it, also when there never was anything.
    ///
    /// # Errors
    /// A [`Failure`] with its reason and resolution, [`Failure::wait`] while the removal takes its time.
    fn deprovision(&self, ctx: &Context) -> Result<(), Failure>;
}

/// A composition of steps.
pub struct StepTree<'a>(Node<'a>);

enum Node<'a> {
    Step {
        name: String,
        part: Box<dyn Provision + 'a>,
    },
    Serial(Vec<StepTree<'a>>),
    Concurrent(Vec<StepTree<'a>>),
    Conditional(bool, Box<StepTree<'a>>),
}

/// Names a part. The name is the type of the condition that shows its state, in CamelCase, and occurs once in a tree.
pub fn step<'a>(name: impl Into<String>, part: impl Provision + 'a) -> StepTree<'a> {
    StepTree(Node::Step {
        name: name.into(),
        part: Box::new(part),
    })
}

/// Provisions one after the other, each after the one before it has succeeded, and deprovisions in the reverse order.
#[must_use]
pub fn serial(trees: Vec<StepTree>) -> StepTree {
    StepTree(Node::Serial(trees))
}

/// Provisions and deprovisions all, also after one has failed: none waits for another.
#[must_use]
pub fn concurrent(trees: Vec<StepTree>) -> StepTree {
    StepTree(Node::Concurrent(trees))
}

/// Provisions a tree while the condition holds, and deprovisions it while it does not. So a step that may have been
/// provisioned for an earlier spec stays in the tree.
#[must_use]
pub fn when(condition: bool, tree: StepTree) -> StepTree {
    StepTree(Node::Conditional(condition, Box::new(tree)))
}

/// Gives a part this message while it fails, instead of the text of its errors. Conditions are read by all who may read the
/// object, and that text may describe the inside of another system: it is written to the log
/// ([`ResultExt::public_message`]).
pub fn with_public_message<'a>(message: impl Into<String>, part: impl Provision + 'a) -> impl Provision + 'a {
    PublicMessage {
        message: message.into(),
        part,
    }
}

struct PublicMessage<P> {
    message: String,
    part: P,
}

impl<P: Provision> Provision for PublicMessage<P> {
    fn provision(&self, ctx: &Context) -> Result<(), Failure> {
        self.part.provision(ctx).public_message(ctx, &self.message)
    }

    fn deprovision(&self, ctx: &Context) -> Result<(), Failure> {
        self.part.deprovision(ctx).public_message(ctx, &self.message)
    }
}

/// The direction of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Provision,
    Deprovision,
}

impl StepTree<'_> {
    /// Provisions the steps. The outcome awaits a change, and has a condition per step.
    ///
    /// # Errors
    /// The failures of the steps as one: its resolution and reason are those of the failure that takes precedence
    /// (terminal, denied, throttled, retry, wait), its message has those of all failures with this precedence. It has the
    /// conditions of all steps, and is terminal if two steps have the same name.
    pub fn provision(&self, ctx: &Context) -> Result<Outcome, Failure> {
        self.run(ctx, Direction::Provision)
    }

    /// Deprovisions the steps, in the reverse order. The outcome releases a deleted object.
    ///
    /// # Errors
    /// As [`StepTree::provision`].
    pub fn deprovision(&self, ctx: &Context) -> Result<Outcome, Failure> {
        self.run(ctx, Direction::Deprovision)
    }

    fn run(&self, ctx: &Context, direction: Direction) -> Result<Outcome, Failure> {
        let mut progress = Progress::default();
        self.list_steps(&mut progress)?;
        self.run_steps(ctx, direction, &mut progress);
        progress.finish()
    }

    /// Adds a condition for each step, so that all of them are shown, in this order, whichever are reached.
    fn list_steps(&self, progress: &mut Progress) -> Result<(), Failure> {
        match &self.0 {
            Node::Step { name, .. } => progress.add_step(name),
            Node::Serial(trees) | Node::Concurrent(trees) => {
                trees.iter().try_for_each(|tree| tree.list_steps(progress))
            }
            Node::Conditional(_, tree) => tree.list_steps(progress),
        }
    }

    /// Runs the steps, and returns whether all of them have succeeded.
    fn run_steps(&self, ctx: &Context, direction: Direction, progress: &mut Progress) -> bool {
        let (trees, is_serial) = match &self.0 {
            Node::Step { name, part } => {
                let result = match direction {
                    Direction::Provision => part.provision(ctx),
                    Direction::Deprovision => part.deprovision(ctx),
                };
                return progress.record_result(name, direction, result);
            }
            Node::Conditional(true, tree) => return tree.run_steps(ctx, direction, progress),
            Node::Conditional(false, tree) => {
                return tree.run_steps(ctx, Direction::Deprovision, progress);
            }
            Node::Serial(trees) => (trees, true),
            Node::Concurrent(trees) => (trees, false),
        };
        let mut succeeded = true;
        for index in 0..trees.len() {
            let tree = match direction {
                Direction::Provision => &trees[index],
                Direction::Deprovision => &trees[trees.len() - 1 - index],
            };
            succeeded &= tree.run_steps(ctx, direction, progress);
            if is_serial && !succeeded {
                break;
            }
        }
        succeeded
    }
}

/// The conditions of the steps, and their failures as one.
#[derive(Default)]
struct Progress {
    conditions: Vec<Condition>,
    failure: Option<Failure>,
}

impl Progress {
    fn add_step(&mut self, name: &str) -> Result<(), Failure> {
        let is_reserved = matches!(name, "" | "Ready" | "Reconciling" | "Stalled");
        if is_reserved || self.conditions.iter().any(|known| known.type_ == name) {
            let message = [
                "The step ",
                name,
                " needs a name of its own, other than Ready, Reconciling and Stalled.",
            ];
            return Err(Failure::terminal("InvalidStep", message.concat()));
        }
        let pending = Condition::new_unknown(name, "Pending", "Waits for the steps before it.");
        self.conditions.push(pending);
        Ok(())
    }

    /// Records the result of a step, and returns whether it is a success.
    fn record_result(&mut self, name: &str, direction: Direction, result: Result<(), Failure>) -> bool {
        let (mut status, mut reason, mut message) = (ConditionStatus::False, "Deprovisioned", "");
        match &result {
            Ok(()) if direction == Direction::Provision => {
                (status, reason) = (ConditionStatus::True, "Provisioned");
            }
            Ok(()) => {}
            Err(failure) => (reason, message) = (&failure.reason, &failure.message),
        }
        if let Some(condition) = self.conditions.iter_mut().find(|known| known.type_ == name) {
            *condition = Condition::new(name, status, reason, message);
        }
        result.map_err(|failure| self.add_failure(name, failure)).is_ok()
    }

    fn add_failure(&mut self, name: &str, mut failure: Failure) {
        failure.message = [name, ": ", &failure.message].concat();
        match &mut self.failure {
            None => self.failure = Some(failure),
            Some(merged) => merge_failure(merged, failure),
        }
    }

    fn finish(mut self) -> Result<Outcome, Failure> {
        let Some(mut failure) = self.failure else {
            return Ok(Outcome {
                conditions: self.conditions,
                ..Outcome::await_change()
            });
        };
        self.conditions.append(&mut failure.conditions);
        failure.conditions = self.conditions;
        Err(failure)
    }
}

/// Rank of a resolution: the higher one takes precedence. A terminal failure needs a user, which a retry would hide;
/// throttled takes precedence over a retry, which would come too early.
fn rank_resolution(resolution: &Resolution) -> u8 {
    match resolution {
        Resolution::Wait => 0,
        Resolution::Retry => 1,
        Resolution::Throttled(_) => 2,
        Resolution::Denied(_) => 3,
        Resolution::Terminal => 4,
    }
}

/// Merges the failure of a later step into that of the earlier ones.
pub(crate) fn merge_failure(merged: &mut Failure, mut other: Failure) {
    let (known, new) = (
        rank_resolution(&merged.resolution),
        rank_resolution(&other.resolution),
    );
    if new > known {
        std::mem::swap(merged, &mut other);
    } else if new == known {
        merged.message = [&merged.message, " ", &other.message].concat();
        if let (Resolution::Throttled(longest), Resolution::Throttled(after)) =
            (&mut merged.resolution, &other.resolution)
        {
            *longest = (*longest).max(*after);
        }
    }
    merged.conditions.append(&mut other.conditions);
    merged.status = merged.status.take().or(other.status);
}
