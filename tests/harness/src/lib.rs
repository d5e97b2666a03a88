//! Test harness of the scenarios: an API server (embedded or real), a Concourse (simulated or real), a host with real
//! components, and functions that wait for conditions.

pub mod allocations;
pub mod argocd;
pub mod browser;
pub mod cgroup;
mod component;
pub mod concourse;
pub mod counts;
pub mod deploy;
pub mod gateway;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod instructions;
mod lab;
mod logs;
mod memory_map;
pub mod powerdns;
pub mod probe;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod rabbitmq;
pub mod registry;
pub mod replicas;
pub mod rights;
mod scenario;
mod second;
mod server;
pub mod signing;
pub mod terminal;
mod wait;

pub use component::{
    HeldCompiler, compiled_dir, component_path, greeting_kind, read_component, replace_text, with_note,
    workspace_root,
};
pub use concourse_simulator as simulator;
pub use lab::{Lab, PACK_GRANTS, find_condition};
pub use logs::captured_logs;
pub use ostler;
pub use ostler_test_macros::scenario;
pub use scenario::{run_alone, run_bounded, run_campaign};
pub use second::SecondCluster;
pub use server::Concourse;
pub use wait::{WAIT_TIMEOUT, wait_for};

/// Password of the simulator's only user. Tests scan objects, logs and recordings for it.
pub const ADMIN_PASSWORD: &str = "correct-horse-battery-staple";
