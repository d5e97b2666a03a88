//! What the scenario tests share: an API server (embedded or real), a Concourse
//! simulator, a host with real components, and waiting for conditions.

use std::time::Duration;

mod component;
pub mod concourse;
mod lab;
mod logs;
pub mod probe;
pub mod process;
pub mod proxy;
pub mod registry;
mod scenario;
mod server;

pub use component::{component_bytes, rebuilt, workspace};
pub use concourse_simulator as simulator;
pub use lab::{GRANTS, Lab, condition};
pub use logs::logs;
pub use ostler;
pub use scenario::bounded;
pub use server::Concourse;

/// The password of the simulator's only user; scanned for where it must not be.
pub const PASSWORD: &str = "correct-horse-battery-staple";

/// What every wait in a test has at most. Generous: a slow machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(120);
