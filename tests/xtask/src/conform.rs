//! The comparison of the embedded API server with the real one, by generated sequences of requests.

use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use clap::Args;

use crate::{
    cargo::{self, Lints},
    control_plane::{self, ControlPlane},
    process::{Child, check_interrupt},
    suite::KUBECONFIG_VARIABLE,
};

/// Integration test of the API server with the comparison.
const TEST_TARGET: &str = "conformance";
/// Name of the comparison in it.
const TEST_NAME: &str = "generated::sequences_are_answered_alike::real_default";
/// Number of seeds from which a random one is chosen.
const SEEDS: u64 = 1_000_000_000;

/// Options of the comparison.
#[derive(Args)]
pub struct ConformOptions {
    /// Number of sequences.
    #[arg(long, default_value_t = 10_000)]
    sequences: u64,
    /// Seed of the first sequence; each further one has the next. By default a random one, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Family of sequences: definitions, custom, builtin, lists, lifecycle or rights (default: all). Can be given more than once.
    #[arg(long = "family")]
    families: Vec<String>,
}

/// Runs the sequences on both servers, and prints the differences that are not meant.
pub fn run_conform(options: &ConformOptions) -> Result<ExitCode> {
    let (_, executables) = cargo::build_tests(&[TEST_TARGET], Lints::Rustc)?;
    let executable = executables
        .iter()
        .find(|executable| executable.name == TEST_TARGET)
        .context("the test is not built")?;
    let random = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0, |now| now.as_micros() as u64 % SEEDS)
    };
    let mut command = executable.command();
    command
        .args(["--exact", TEST_NAME, "--include-ignored", "--nocapture"])
        .env("OSTLER_CONFORM_SEQUENCES", options.sequences.to_string())
        .env(
            "OSTLER_CONFORM_SEED",
            options.seed.unwrap_or_else(random).to_string(),
        )
        .env("OSTLER_CONFORM_FAMILIES", options.families.join(","));
    // One that runs already, by `cargo xtask control-plane`, or its own.
    let mut started = None;
    if std::env::var_os(KUBECONFIG_VARIABLE).is_none() {
        let running = started.insert(ControlPlane::start(&control_plane::build_binary()?)?);
        command.env(KUBECONFIG_VARIABLE, running.kubeconfig());
    }
    let status = Child::spawn(TEST_TARGET, command)?.wait()?;
    check_interrupt()?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
