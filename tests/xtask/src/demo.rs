//! `cargo xtask demo`: a host, the Concourse plugins and a simulated Concourse on an embedded API server, without a
//! cluster.

mod facts;
mod kubernetes;
mod stage;
mod swap;
mod table;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use self::{facts::ObjectStats, stage::Stage, swap::Rebuilder, table::Table};
use crate::{cargo, components, process, progress};

/// Pack of the demo.
const DEMO_PACK: &str = "concourse";
/// Plugin that is swapped by `--once`, and whose source the hints name.
const SWAPPED_PLUGIN: &str = "concourse-team";

/// Options of the demo.
#[derive(Args)]
pub struct Options {
    /// Exit when all objects are Ready and a plugin was swapped, or with an error at the timeout.
    #[arg(long)]
    once: bool,
    /// Print a report at the end.
    #[arg(short, long, value_enum, requires = "once")]
    output: Option<Output>,
    /// Seconds that `--once` waits until all objects are Ready, without the time of builds.
    #[arg(long, default_value_t = 120)]
    timeout: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// One JSON object.
    Json,
}

/// Runs the demo.
pub fn run_demo(options: &Options) -> Result<ExitCode> {
    let built = components::build_components(|guest| guest.pack == DEMO_PACK)?;
    let binaries = cargo::build_debug_binaries(&["ostler", "ostler-apiserver", "concourse-simulator"])?;
    let mut stage = Stage::start(&binaries, &built)?;
    if options.once {
        return run_once(&mut stage, options);
    }
    run_until_interrupt(&mut stage)
}

fn all_ready(objects: &[ObjectStats]) -> bool {
    !objects.is_empty() && objects.iter().all(|object| object.ready)
}

/// Waits until all objects are Ready, then swaps a plugin. The exit code says whether both succeeded.
fn run_once(stage: &mut Stage, options: &Options) -> Result<ExitCode> {
    let limit = Duration::from_secs(options.timeout);
    let began = Instant::now();
    let mut table = Table::new();
    let mut objects = loop {
        let objects = stage.objects()?;
        table.update(&objects, &stage.plugins()?, "");
        if all_ready(&objects) || began.elapsed() > limit {
            break objects;
        }
        stage.check_processes()?;
        if process::wait_for_interrupt(Duration::from_millis(100)) {
            bail!("interrupted");
        }
    };
    let ready = all_ready(&objects);
    let mut swapped = None;
    if ready {
        swapped = Some(swap::swap_once(
            stage,
            SWAPPED_PLUGIN,
            limit.saturating_sub(began.elapsed()).max(Duration::from_secs(10)),
        )?);
        objects = stage.objects()?;
        table.update(&objects, &stage.plugins()?, "");
    }
    drop(table);
    for object in objects.iter().filter(|object| !object.ready) {
        let (kind, namespace, name) = (&object.kind, &object.namespace, &object.name);
        progress::print_status(&format!(
            "{kind} {namespace}/{name} is not Ready: {}",
            facts::ready_reason(object)
        ));
    }
    if matches!(options.output, Some(Output::Json)) {
        progress::print_result(&facts::json_report(&objects, swapped, stage.host_rss()).to_string());
    }
    Ok(if ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Shows the table and rebuilds saved plugins until Ctrl-C.
fn run_until_interrupt(stage: &mut Stage) -> Result<ExitCode> {
    let _rebuilder = Rebuilder::start(stage.plugin_folder())?;
    let mut table = Table::new();
    let mut hints_shown = false;
    loop {
        let objects = stage.objects()?;
        if !hints_shown && all_ready(&objects) {
            hints_shown = true;
            progress::print_status(&usage_hints(stage)?);
        }
        table.update(&objects, &stage.plugins()?, "Press Ctrl-C to stop the demo.");
        if process::wait_for_interrupt(Duration::from_millis(200)) {
            return Ok(ExitCode::SUCCESS);
        }
        stage.check_processes()?;
    }
}

fn usage_hints(stage: &Stage) -> Result<String> {
    let folder = stage.folder().display();
    let guest = components::list_guests()?
        .into_iter()
        .find(|guest| guest.name == SWAPPED_PLUGIN);
    let source = guest
        .map(|guest| guest.folder.join("src/lib.rs").display().to_string())
        .unwrap_or_default();
    Ok(format!(
        "
Look around:    export KUBECONFIG={folder}/kubeconfig
                kubectl get concourse --all-namespaces
Swap a plugin:  edit {source} and save; the table shows when the new build serves
Logs:           {folder}/*.log
"
    ))
}
