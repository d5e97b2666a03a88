//! `cargo xtask demo`: a host, the plugins of a pack and the servers around them on an embedded API server, without a
//! cluster.

mod concourse;
pub mod devops;
mod facts;
mod kubernetes;
pub mod stage;
mod steps;
mod swap;
mod table;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use self::{facts::ObjectFacts, stage::DemoStage, swap::Rebuilder, table::Table};
use crate::{
    cargo,
    components::{self, Guest},
    process, progress,
};

/// Options of the demo.
#[derive(Args)]
pub struct DemoOptions {
    /// Pack to show.
    #[arg(value_enum, default_value = "concourse")]
    pack: Pack,
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

/// A pack that the demo shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pack {
    /// Concourse CI: an instance, teams, pipelines, jobs and builds, on a simulator of Concourse.
    Concourse,
    /// Events on a real RabbitMQ become a project and a deployment with a record in a real PowerDNS, and heartbeats come
    /// back. Jenkins and Argo CD are simulators.
    Devops,
    /// Steps of CI in the pods of a real node, where this machine can run one; as root, with a control plane that is built first.
    Steps,
}

impl Pack {
    /// Returns whether a guest is a plugin of the demo.
    pub fn has_guest(self, guest: &Guest) -> bool {
        match self {
            Self::Concourse => guest.pack == "concourse",
            Self::Steps => guest.pack == "steps",
            Self::Devops => guest.pack == "devops" || devops::DNS_PLUGINS.contains(&guest.name.as_str()),
        }
    }

    /// Returns the packages of the programs that run.
    pub fn programs(self) -> [&'static str; 3] {
        let servers = match self {
            Self::Concourse => "concourse-simulator",
            Self::Devops => "devops-servers",
            Self::Steps => "kubelet-simulator",
        };
        ["ostler", "ostler-apiserver", servers]
    }

    /// Returns the plugin that is swapped by `--once`, and whose source the hints name.
    fn swapped_plugin(self) -> &'static str {
        match self {
            Self::Concourse => "concourse-team",
            Self::Devops => "devops-registry",
            Self::Steps => "steps-step",
        }
    }
}

/// What differs between the demo and the benches of a pack.
pub struct Variation {
    /// Folder below `target`.
    pub folder: &'static str,
    /// Builds start and never end.
    pub hold_builds: bool,
    /// Number of deployments.
    pub deployments: usize,
    /// Time to live of each.
    pub ttl_seconds: u64,
}

impl Variation {
    fn of_demo(pack: Pack) -> Self {
        Self {
            folder: match pack {
                Pack::Concourse => "demo",
                Pack::Devops => "demo-devops",
                Pack::Steps => "demo-steps",
            },
            hold_builds: false,
            deployments: 1,
            ttl_seconds: 60,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// One JSON object.
    Json,
}

/// Runs the demo.
pub fn run_demo(options: &DemoOptions) -> Result<ExitCode> {
    // First, because it fails within seconds where a package can't be fetched.
    let servers = match options.pack {
        Pack::Concourse | Pack::Steps => Vec::new(),
        Pack::Devops => devops::fetch_servers()?,
    };
    let built = components::build_components(|guest| options.pack.has_guest(guest))?;
    let binaries = cargo::build_debug_binaries(&options.pack.programs())?;
    let node = match options.pack {
        Pack::Concourse | Pack::Devops => None,
        Pack::Steps => steps::start_node()?,
    };
    let mut stage = DemoStage::start(
        options.pack,
        &Variation::of_demo(options.pack),
        &binaries,
        &servers,
        &built,
        node,
    )?;
    if options.once {
        return run_once(&mut stage, options);
    }
    run_until_interrupt(&mut stage, options.pack)
}

fn all_ready(objects: &[ObjectFacts]) -> bool {
    !objects.is_empty() && objects.iter().all(|object| object.ready)
}

/// Waits until all objects are Ready, then swaps a plugin. The exit code says whether both succeeded.
fn run_once(stage: &mut DemoStage, options: &DemoOptions) -> Result<ExitCode> {
    let limit = Duration::from_secs(options.timeout);
    let began = Instant::now();
    let mut table = Table::new();
    let (mut objects, ready) = loop {
        let objects = stage.objects()?;
        stage.advance(&objects)?;
        table.update(&objects, &stage.plugins()?, stage.surroundings(), "");
        let ready = all_ready(&objects) && stage.is_complete();
        if ready || began.elapsed() > limit {
            break (objects, ready);
        }
        stage.check_processes()?;
        if process::wait_for_interrupt(Duration::from_millis(100)) {
            bail!("interrupted");
        }
    };
    let mut swapped = None;
    if ready {
        swapped = Some(swap::swap_once(
            stage,
            options.pack.swapped_plugin(),
            limit.saturating_sub(began.elapsed()).max(Duration::from_secs(10)),
        )?);
        objects = stage.objects()?;
        table.update(&objects, &stage.plugins()?, stage.surroundings(), "");
    }
    drop(table);
    for object in objects.iter().filter(|object| !object.ready) {
        let (kind, namespace, name) = (&object.kind, &object.namespace, &object.name);
        progress::print_status(&format!(
            "{kind} {namespace}/{name} is not Ready: {}",
            facts::ready_reason(object)
        ));
    }
    if !ready && all_ready(&objects) {
        progress::print_status("the deployment has not ended, or its last heartbeat has not come");
    }
    if matches!(options.output, Some(Output::Json)) {
        let mut report = facts::json_report(&objects, swapped, stage.host_rss());
        stage.extend_report(&mut report);
        progress::print_result(&report.to_string());
    }
    Ok(if ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Shows the table and rebuilds saved plugins until Ctrl-C.
fn run_until_interrupt(stage: &mut DemoStage, pack: Pack) -> Result<ExitCode> {
    let _rebuilder = Rebuilder::start(pack, stage.plugin_folder())?;
    let mut table = Table::new();
    let mut hints_shown = false;
    loop {
        let objects = stage.objects()?;
        stage.advance(&objects)?;
        if !hints_shown && all_ready(&objects) && stage.is_complete() {
            hints_shown = true;
            progress::print_status(&usage_hints(stage, pack, &objects)?);
        }
        table.update(
            &objects,
            &stage.plugins()?,
            stage.surroundings(),
            "Press Ctrl-C to stop the demo.",
        );
        if process::wait_for_interrupt(Duration::from_millis(200)) {
            return Ok(ExitCode::SUCCESS);
        }
        stage.check_processes()?;
    }
}

/// Returns what to try while the demo runs, with an object of the plugin that is swapped.
fn usage_hints(stage: &DemoStage, pack: Pack, objects: &[ObjectFacts]) -> Result<String> {
    let folder = stage.folder().display();
    let program = stage.program().display();
    let admin = stage.admin();
    let object = objects
        .iter()
        .find(|object| object.plugin == pack.swapped_plugin());
    let explain = object.map_or_else(String::new, |object| {
        let ObjectFacts {
            kind,
            name,
            namespace,
            ..
        } = object;
        let kind = kind.to_lowercase();
        format!("                {program} explain {kind}/{name} --namespace {namespace}\n")
    });
    let guest = components::list_guests()?
        .into_iter()
        .find(|guest| guest.name == pack.swapped_plugin());
    let source = guest
        .map(|guest| guest.folder.join("src/lib.rs").display().to_string())
        .unwrap_or_default();
    let (category, more) = match pack {
        Pack::Concourse => ("concourse", String::new()),
        Pack::Devops => ("devops", devops::usage_hint(stage.folder())),
        Pack::Steps => ("steps --output wide", String::new()),
    };
    Ok(format!(
        "
Look around:    export KUBECONFIG={folder}/kubeconfig OSTLER_ADMIN={admin}
                kubectl get {category} --all-namespaces
{explain}{more}Swap a plugin:  edit {source} and save; the table shows when the new build serves
Logs:           {folder}/*.log
"
    ))
}
