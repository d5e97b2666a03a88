//! A simulator of Argo CD's application controller. Its rules are those that a real one was seen to follow
//! (`recording.json`), as far as a client of the custom resources sees them: one slot for an operation, its merge into the last
//! one, hooks and waves that wait, retries, termination, automation, and deletion behind the operation. Its API server
//! (`rest.json`) stores what the rules are played on in memory.

mod comparison;
mod controller;
mod operation;
mod rest;
mod rules;
mod world;

pub use comparison::resync;
pub use controller::ArgoController;
pub use rest::{ArgoRequest, Reply, Rest};
pub use rules::{ControllerStep, next_step, releases_project};
pub use world::{ApplicationWorld, Hook, RepositorySource};
