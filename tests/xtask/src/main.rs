//! The project's commands.
//!
//! A small crate on purpose, without the host among its dependencies: it must be
//! there within seconds, and then say what takes longer.

mod bench;
mod cargo;
mod components;
mod control_plane;
mod demo;
#[cfg(test)]
mod dependencies;
mod docs;
mod paths;
mod process;
mod registry;
mod suite;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use ostler_builder::progress;

/// The project's commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// See Ostler at work: a Concourse chain reconciled by components, on an API server of its own.
    Demo(demo::Options),
    /// Build what the tests need and run them: all tiers, or the ones named.
    Test {
        /// Which tests.
        #[arg(value_enum)]
        tiers: Vec<suite::Tier>,
    },
    /// Measure Ostler beside other operators at the same work, on a real control plane.
    Bench(bench::Options),
    /// Build the guests to WebAssembly components in target/components.
    Components {
        /// Only these packs (all without any).
        packs: Vec<String>,
    },
    /// Build the real control plane (once) and run it until Ctrl-C.
    ControlPlane {
        /// Only build it.
        #[arg(long)]
        build: bool,
    },
    /// Write crds/*.yaml from the Rust types.
    Crds {
        /// Write nothing; fail where a file is not current.
        #[arg(long)]
        check: bool,
    },
    /// Build docs/ as a site in target/book.
    Docs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = process::on_interrupt().and_then(|()| run(cli.command));
    // A build in the background, say.
    process::end_all();
    match result {
        Ok(code) => code,
        Err(e) => {
            progress::clear();
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(options) => return demo::run(&options),
        Command::Test { tiers } => return suite::run(&tiers),
        Command::Bench(options) => return bench::run(&options),
        Command::Components { packs } => {
            for component in components::build(|guest| packs.is_empty() || packs.contains(&guest.pack))? {
                println!("{component}");
            }
        }
        Command::ControlPlane { build: true } => println!("{}", control_plane::build()?.display()),
        Command::ControlPlane { build: false } => {
            let mut running = control_plane::ControlPlane::start(&control_plane::build()?)?;
            println!("export KUBECONFIG={}", running.kubeconfig().display());
            running.wait().context("the control plane")?;
        }
        Command::Crds { check } => cargo::crds(check)?,
        Command::Docs => docs::build_book()?,
    }
    Ok(ExitCode::SUCCESS)
}
