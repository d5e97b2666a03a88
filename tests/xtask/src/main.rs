//! The project's commands.
//!
//! This crate does not depend on the host, so that it builds within seconds and can report the progress of the builds
//! that take longer.

mod argocd;
mod bench;
mod cargo;
mod chromium;
mod cluster_tools;
mod component_cache;
mod components;
mod conform;
mod control_plane;
mod debian;
mod definitions;
mod demo;
mod deny;
mod dependencies;
mod docs;
mod go;
mod image;
mod krew;
mod namespaces;
mod node;
mod paths;
mod pgo;
mod powerdns;
mod process;
mod prometheus;
mod publish;
mod rabbitmq;
mod registry;
mod suite;
mod tool;

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
    /// Run Ostler with the plugins of a pack on an embedded API server, and watch objects become Ready.
    Demo(demo::DemoOptions),
    /// Build what the tests need and run them.
    Test(suite::TestOptions),
    /// Benchmark Ostler and other operators with the same work on a real control plane.
    Bench(bench::BenchOptions),
    /// Build the plugins into WebAssembly components in target/components.
    Components {
        /// Packs to build (default: all).
        packs: Vec<String>,
    },
    /// Compare the embedded API server with the real one by generated sequences of requests.
    Conform(conform::ConformOptions),
    /// Build the real control plane, unless it is built already, and run it until Ctrl-C.
    ControlPlane {
        /// Build without running.
        #[arg(long)]
        build: bool,
    },
    /// Run a real cluster of one node until Ctrl-C: control plane, kubelet, containerd and a bridge network. Needs root.
    Node(node::NodeOptions),
    /// Build an image of the host from scratch, as an OCI archive.
    Image(image::ImageOptions),
    /// Write host/pgo: what the host executes in benches, by which the compiler optimizes its image.
    Pgo,
    /// Build the archive of `kubectl ostler` and its manifest for krew, in target/krew.
    Krew(krew::KrewOptions),
    /// Build the packages of the SDKs and print what each registry would get.
    Publish(publish::PublishOptions),
    /// Write crds/*.yaml from the Rust types.
    Crds {
        /// Write nothing, and fail if a file is out of date.
        #[arg(long)]
        check: bool,
    },
    /// Check licenses, bans, sources and advisories of the dependencies with cargo-deny.
    Deny,
    /// Build docs/ as a site in target/book.
    Docs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = process::install_signal_handler().and_then(|()| run(cli.command));
    // A build may still run in the background.
    process::terminate_children();
    match result {
        Ok(code) => code,
        Err(e) => {
            progress::clear_bars();
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(options) => return demo::run_demo(&options),
        Command::Test(options) => return suite::run_suite(&options),
        Command::Bench(options) => return bench::run_bench(&options),
        Command::Conform(options) => return conform::run_conform(&options),
        Command::Components { packs } => {
            for component in
                components::build_components(|guest| packs.is_empty() || packs.contains(&guest.pack))?
            {
                println!("{component}");
            }
        }
        Command::ControlPlane { build: true } => println!("{}", control_plane::build_binary()?.display()),
        Command::ControlPlane { build: false } => {
            let mut running = control_plane::ControlPlane::start(&control_plane::build_binary()?)?;
            println!("export KUBECONFIG={}", running.kubeconfig().display());
            let second = running.start_second_cluster()?;
            println!(
                "export {}={}",
                suite::SECOND_KUBECONFIG_VARIABLE,
                second.display()
            );
            running.wait_for_interrupt().context("the control plane")?;
        }
        Command::Node(options) => node::run_node(&options)?,
        Command::Image(options) => image::build_image(&options)?,
        Command::Pgo => pgo::make_profile()?,
        Command::Krew(options) => krew::build_archive(&options)?,
        Command::Publish(options) => publish::publish_packages(&options)?,
        Command::Crds { check } => cargo::write_crds(check)?,
        Command::Deny => deny::check_dependencies()?,
        Command::Docs => docs::build_book()?,
    }
    Ok(ExitCode::SUCCESS)
}
