//! `cargo xtask demo`: the whole of Ostler at work, with nothing installed and no cluster.

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

use self::{facts::Object, stage::Stage, swap::Rebuilder, table::Table};
use crate::{cargo, components, process, progress};

/// The pack the demo shows.
const PACK: &str = "concourse";
/// The plugin that is swapped, and whose source the reader is invited to edit.
const SWAPPED: &str = "concourse-team";

/// How the demo runs.
#[derive(Args)]
pub struct Options {
    /// End when all is Ready and a plugin was swapped, or with an error at the time limit.
    #[arg(long)]
    once: bool,
    /// Print the facts at the end, for programs.
    #[arg(short, long, value_enum, requires = "once")]
    output: Option<Output>,
    /// Seconds that `--once` waits for all to be Ready, builds not counted.
    #[arg(long, default_value_t = 120)]
    timeout: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// One JSON object.
    Json,
}

/// Runs the demo.
pub fn run(options: &Options) -> Result<ExitCode> {
    let built = components::build(|guest| guest.pack == PACK)?;
    let binaries = cargo::binaries(&["ostler", "ostler-apiserver", "concourse-simulator"])?;
    let mut stage = Stage::set(&binaries, &built)?;
    if options.once {
        return once(&mut stage, options);
    }
    live(&mut stage)
}

fn all_ready(objects: &[Object]) -> bool {
    !objects.is_empty() && objects.iter().all(|object| object.ready)
}

/// Until all is Ready, and a swap; the exit code says whether it came to that.
fn once(stage: &mut Stage, options: &Options) -> Result<ExitCode> {
    let limit = Duration::from_secs(options.timeout);
    let began = Instant::now();
    let mut table = Table::new();
    let mut objects = loop {
        let objects = stage.objects()?;
        table.show(&objects, &stage.plugins()?, "");
        if all_ready(&objects) || began.elapsed() > limit {
            break objects;
        }
        stage.check()?;
        if process::interrupted_within(Duration::from_millis(100)) {
            bail!("interrupted");
        }
    };
    let ready = all_ready(&objects);
    let mut swapped = None;
    if ready {
        swapped = Some(swap::once(
            stage,
            SWAPPED,
            limit.saturating_sub(began.elapsed()).max(Duration::from_secs(10)),
        )?);
        objects = stage.objects()?;
        table.show(&objects, &stage.plugins()?, "");
    }
    drop(table);
    for object in objects.iter().filter(|object| !object.ready) {
        let (kind, namespace, name) = (&object.kind, &object.namespace, &object.name);
        progress::say(&format!(
            "{kind} {namespace}/{name} is not Ready: {}",
            facts::why(object)
        ));
    }
    if matches!(options.output, Some(Output::Json)) {
        progress::print(&facts::report(&objects, swapped, stage.host_rss()).to_string());
    }
    Ok(if ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Until Ctrl-C.
fn live(stage: &mut Stage) -> Result<ExitCode> {
    let _rebuilder = Rebuilder::start(stage.plugin_folder())?;
    let mut table = Table::new();
    let mut invited = false;
    loop {
        let objects = stage.objects()?;
        if !invited && all_ready(&objects) {
            invited = true;
            progress::say(&invitation(stage)?);
        }
        table.show(&objects, &stage.plugins()?, "Ctrl-C ends it all.");
        if process::interrupted_within(Duration::from_millis(200)) {
            return Ok(ExitCode::SUCCESS);
        }
        stage.check()?;
    }
}

fn invitation(stage: &Stage) -> Result<String> {
    let folder = stage.folder().display();
    let guest = components::guests()?
        .into_iter()
        .find(|guest| guest.name == SWAPPED);
    let source = guest
        .map(|guest| guest.folder.join("src/lib.rs").display().to_string())
        .unwrap_or_default();
    Ok(format!(
        "
Look around:    export KUBECONFIG={folder}/kubeconfig
                kubectl get concourse --all-namespaces
Swap a plugin:  edit {source} and save; the table shows the new build serve
Logs:           {folder}/*.log
"
    ))
}
