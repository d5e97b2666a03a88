//! A simulator of Argo CD's application controller. Its rules are those that a real one was seen to follow
//! (`recording.json`), as far as a client of the custom resources sees them: one slot for an operation, its merge into the last
//! one, hooks that wait, termination, and deletion behind the operation.

mod controller;
mod rules;

pub use controller::Controller;
pub use rules::{Hook, Source, Step, World, next_step};
