//! The command line.

mod addresses;
#[cfg(all(test, feature = "dev"))]
mod api_reference;
mod apply;
mod ask;
mod compile;
mod completion;
mod connection;
mod console;
#[cfg(feature = "dev")]
mod dev;
mod explain;
mod get;
mod install;
mod kubeconfig;
mod logs;
mod object_api;
mod plan;
mod plugin;
mod pod_logs;
mod proxy;
mod reconcile;
mod record;
mod registry;
mod replay;
mod run;
mod runtime;
mod session;
mod shutdown;
mod status;
mod suspend;
mod table;
mod top;
mod trace;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::json;
use tracing::info;

pub use self::kubeconfig::create_client;
use self::{
    addresses::{AdminAddresses, ServedAddresses},
    shutdown::ShutdownSignals,
};
use crate::{
    admin::Admin,
    client::{api::ApiClient, connection::connect},
    contract::limits::{Bytes, Time},
    host::{Host, HostSettings},
    leader::lease,
    observe::telemetry::{self, LogFormat},
    policy::grants::Grants,
    recording,
    sandbox::engine::CompileCache,
};

/// Run Kubernetes reconcilers as sandboxed WebAssembly components.
#[derive(Parser)]
#[command(name = "ostler", version, about)]
#[cfg_attr(
    not(feature = "dev"),
    command(
        after_help = "This build has no development commands: `ostler dev` and `ostler plugin new`, `build`, `crds`, \
                          `test` and `dev` are in a build with the Cargo feature `dev`."
    )
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a host: reconcile objects of a cluster with the installed plugins.
    Run(Box<run::RunCommand>),
    /// Run a host with an embedded API server, for development without a cluster.
    #[cfg(feature = "dev")]
    Dev(dev::DevCommand),
    /// Install the host in a cluster, or upgrade it.
    Install(Box<install::HostInstall>),
    /// Check what an installation needs, before and after it.
    Check(install::Check),
    /// Uninstall the host and its plugins from a cluster.
    Uninstall(install::HostUninstall),
    /// Show the status of a running host: what is not Ready, and why.
    Status(status::StatusCommand),
    /// Show the objects that a host reconciles, with their states.
    Get(get::GetCommand),
    /// Explain the state of an object: why it is not Ready, what it waits for, and when it is reconciled next.
    Explain(explain::ExplainCommand),
    /// Show the recent log lines of an object or a plugin.
    Logs(logs::LogsCommand),
    /// Reconcile objects now, as a change of them would.
    Reconcile(reconcile::ReconcileCommand),
    /// Suspend the reconciliation of an object, or of all objects of a plugin.
    Suspend(suspend::SuspendCommand),
    /// Resume the reconciliation of an object, or of all objects of a plugin.
    Resume(suspend::SuspendCommand),
    /// Show what plugins use: reconciles, CPU time, memory and host calls.
    Top(top::TopCommand),
    /// Serve a page for a browser that shows a running host: what is not Ready and why, plugins, recordings.
    Console(console::Console),
    /// Show what reconciling would change, as a diff. Nothing is written.
    Plan(plan::PlanCommand),
    /// Stream the host calls of an object's reconciles.
    Trace(trace::TraceCommand),
    /// Record the reconciles of an object, or list the stored recordings.
    Record(record::RecordCommand),
    /// Replay a recording with the recorded build or another one. No cluster is needed.
    Replay(replay::ReplayCommand),
    /// Create, test, publish and inspect plugins.
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
    /// Print the completion script of a shell.
    Completion(completion::Completion),
    /// Print the CustomResourceDefinitions of the ostler.dev kinds as YAML.
    Crds,
    /// Compile a component into the cache. The host runs this command in a child process.
    #[command(hide = true)]
    Compile(compile::CompileCommand),
}

impl Command {
    /// Log format of the commands that run a host; the others print to standard output.
    fn log_format(&self) -> Option<LogFormat> {
        match self {
            Self::Run(run) => Some(run.common.log_format),
            #[cfg(feature = "dev")]
            Self::Dev(dev) => Some(dev.common.log_format),
            Self::Plugin(plugin) => plugin.log_format(),
            _ => None,
        }
    }

    /// The exit code of an error.
    fn failure_code(&self) -> ExitCode {
        match self {
            // As with `kubectl diff`, 1 stands for a plan with changes, or a replay with differences.
            Self::Plan(_) | Self::Replay(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

#[derive(Args)]
struct Common {
    /// Directory of components and their configurations. Changed files are reloaded.
    #[arg(long, default_value = "plugins", value_name = "DIRECTORY")]
    plugin_dir: PathBuf,
    /// Label selector (`team=ci`) of the Plugin objects to load, for clusters with several hosts.
    #[arg(long, value_name = "SELECTOR", value_parser = crate::kube::selector::LabelSelector::parse)]
    plugin_selector: Option<crate::kube::selector::LabelSelector>,
    /// Use plain HTTP for this registry (`HOST:PORT`). May be repeated. Registries on the loopback interface always use
    /// plain HTTP.
    #[arg(long = "plain-http-registry", value_name = "HOST:PORT")]
    plain_http: Vec<String>,
    /// File with the permissions of each plugin. Without it, plugins from the plugin directory are refused.
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Refuse plugins whose grants name no service account: they would act with the permissions of the host.
    #[arg(long)]
    require_service_account: bool,
    /// Allow upstreams on this private network (10.96.0.0/12) or address (127.0.0.1), in addition to those that the
    /// grants allow. May be repeated.
    #[arg(long = "allow-network", value_name = "CIDR", value_parser = crate::policy::network::parse_network)]
    networks: Vec<ipnet::IpNet>,
    /// Namespace to watch. May be repeated. Defaults to all namespaces.
    #[arg(long = "watch-namespace", value_name = "NAMESPACE")]
    namespaces: Vec<String>,
    /// Maximum number of concurrent reconciles of one plugin. The memory budget bounds those of all plugins.
    #[arg(long, default_value_t = 16)]
    workers: u32,
    /// Memory that all running calls may hold together, such as 256Mi. Defaults to half of the memory limit of the
    /// container, or of the machine's memory.
    #[arg(long, value_name = "BYTES")]
    memory_budget: Option<Bytes>,
    /// Time after which a blocked deletion sets the condition DeletionBlocked.
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    deletion_deadline: Duration,
    /// Time that running reconciles have to end after SIGTERM or SIGINT. A second signal ends the process at once.
    #[arg(long, default_value = "25s", value_parser = parse_duration)]
    grace_period: Duration,
    /// Directory for compiled components. Only this user may have write access to it. With it, components are compiled
    /// in a child process.
    #[arg(long, value_name = "DIRECTORY")]
    cache_dir: Option<PathBuf>,
    /// Time without a call after which the compiled code of a plugin is unloaded. The next call loads it from the cache directory,
    /// without which it stays. `0s` never unloads it.
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    unload_after: Duration,
    /// Reconciles to store as recordings.
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    record: recording::Retention,
    /// Maximum number of stored recordings.
    #[arg(long, default_value_t = 200)]
    max_recordings: usize,
    /// Maximum size of all stored recordings in bytes. One recording may have an eighth of it.
    #[arg(long, default_value_t = 32 << 20)]
    max_recording_bytes: usize,
    #[command(flatten)]
    addresses: AdminAddresses,
    /// File to write when the host has started: JSON with the URLs of the admin server and the process ID.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Format of log lines.
    #[arg(long, value_enum, default_value = "pretty")]
    log_format: LogFormat,
}

/// Parses a duration with units, such as `500ms`, `15s` or `10m`, or a number of seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string()),
        Err(_) => text.parse::<Time>().map(Into::into),
    }
}

/// Parses the arguments and runs the command until a signal or an error ends it.
pub fn main() -> ExitCode {
    // A closed pipe (`| head`) ends the process without a panic message.
    let complain = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            std::process::exit(0);
        }
        complain(panic);
    }));
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match completion::complete_command_line() {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(e) => {
            eprintln!("ostler: {}", format_error(&e));
            return ExitCode::FAILURE;
        }
    }
    let cli = parse_arguments();
    let failure = cli.command.failure_code();
    let runtime = match runtime::start_runtime() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("ostler: no runtime: {e}");
            return failure;
        }
    };
    let telemetry = cli
        .command
        .log_format()
        .map(|format| telemetry::start_telemetry(format, runtime.handle()))
        .transpose();
    let ended = telemetry.and_then(|telemetry| {
        let ended = runtime.block_on(run_command(cli.command));
        // Before the runtime ends, since it exports the last traces.
        drop(telemetry);
        ended
    });
    // Running compilations are abandoned.
    runtime.shutdown_background();
    match ended {
        Ok(code) => code,
        Err(e) => {
            eprintln!("ostler: {}", format_error(&e));
            failure
        }
    }
}

/// Formats an error with its causes. One of the API server is its message: its other fields are for programs.
fn format_error(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let separator = if text.is_empty() { "" } else { ": " };
        if let Some(kube::Error::Api(status)) = cause.downcast_ref() {
            return text + separator + &status.message;
        }
        text += &format!("{separator}{cause}");
    }
    text
}

/// Returns true if the command was called as `kubectl ostler`: it is about the cluster of the kubeconfig then.
fn is_kubectl_plugin() -> bool {
    program_name().is_some_and(|name| name == "kubectl-ostler" || name == completion::KUBECTL_COMPLETER)
}

/// The name by which this process was called, without its folder and extension.
fn program_name() -> Option<OsString> {
    let program = std::env::args_os().next().map(PathBuf::from)?;
    Some(program.file_stem()?.to_owned())
}

/// Parses the arguments. In usage and errors the command has the name by which it was called.
fn parse_arguments() -> Cli {
    let mut command = Cli::command();
    if is_kubectl_plugin() {
        command = command.bin_name("kubectl ostler");
    }
    Cli::from_arg_matches_mut(&mut command.get_matches()).unwrap_or_else(|e| e.exit())
}

async fn run_command(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Plan(plan) => return plan.run().await,
        Command::Replay(replay) => return replay.run().await,
        Command::Run(run) => run.run().await?,
        #[cfg(feature = "dev")]
        Command::Dev(dev) => dev.run().await?,
        Command::Status(status) => status.run().await?,
        Command::Explain(explain) => explain.run().await?,
        Command::Install(install) => install.run().await?,
        Command::Check(check) => check.run().await?,
        Command::Uninstall(uninstall) => uninstall.run().await?,
        Command::Get(get) => get.run().await?,
        Command::Reconcile(reconcile) => reconcile.run().await?,
        Command::Suspend(suspend) => suspend.run(true).await?,
        Command::Resume(resume) => resume.run(false).await?,
        Command::Top(top) => top.run().await?,
        Command::Console(console) => console.run().await?,
        Command::Logs(logs) => logs.run().await?,
        Command::Trace(trace) => trace.run().await?,
        Command::Record(record) => record.run().await?,
        Command::Compile(compile) => compile.run()?,
        Command::Plugin(plugin) => plugin.run().await?,
        Command::Completion(completion) => completion.run()?,
        Command::Crds => {
            print!(
                "{}---\n{}---\n{}",
                crate::upstream::crd_yaml(),
                crate::cluster::spec::crd_yaml(),
                crate::plugin::spec::crd_yaml()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The grants of a file; without a file there are none.
fn read_grants(file: Option<&Path>) -> anyhow::Result<Grants> {
    let Some(path) = file else {
        return Ok(Grants::default());
    };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading the grants {}", path.display()))?;
    Grants::parse(&text, &path.display().to_string()).map_err(|e| anyhow::anyhow!("{e}"))
}

/// Runs a host until a signal or an error ends it.
async fn serve_host(
    config: kube::Config,
    common: Common,
    election: Option<lease::ElectionSettings>,
) -> anyhow::Result<()> {
    let grants = read_grants(common.grants.as_deref())?;
    let lease_namespace = election.as_ref().map(|election| election.namespace.clone());
    let own_namespace = lease_namespace.unwrap_or_else(|| config.default_namespace.clone());
    let settings = HostSettings {
        own_namespace: Some(own_namespace),
        plugins: common.plugin_dir,
        plugin_selector: common.plugin_selector,
        plain_http: common.plain_http,
        grants,
        grants_file: common.grants,
        require_service_account: common.require_service_account,
        network: common.networks,
        namespaces: common.namespaces,
        workers: common.workers.max(1),
        memory_budget: common.memory_budget.map(Into::into),
        deletion_deadline: common.deletion_deadline,
        unload_after: common.unload_after,
        cache: common.cache_dir.map(|directory| CompileCache {
            directory,
            compiler: std::env::current_exe().ok(),
        }),
        api_server: config
            .cluster_url
            .authority()
            .map(ToString::to_string)
            .unwrap_or_default(),
        election,
        record: recording::RecordingSettings {
            retention: common.record,
            max_count: common.max_recordings,
            max_bytes: common.max_recording_bytes,
        },
        ..HostSettings::default()
    };
    let pod_namespace = config.default_namespace.clone();
    let endpoint = settings
        .election
        .as_ref()
        .map(|election| election.endpoint.clone());
    let client = connect(config)?;
    let api_server = settings.api_server.clone();
    let mut signals = ShutdownSignals::install()?;
    let mut host = Host::start(client.clone(), settings)?;
    // Before the plugins are compiled, which may take minutes: the kubelet restarts a container that is not alive.
    let users = ApiClient::new(client).with_metrics(host.services().metrics.rest_client(), &api_server);
    let admin = Admin::new(&host, common.workers.max(1), users);
    let endpoint = endpoint.unwrap_or_default();
    let addresses = common.addresses.serve(&admin, &pod_namespace, &endpoint).await?;
    let signal = tokio::select! {
        failed = run_until_failure(&mut host, &addresses, common.ready_file.as_deref()) => return failed,
        signal = signals.recv() => signal,
    };
    info!(signal, "shutting down");
    tokio::select! {
        () = host.drain(common.grace_period) => Ok(()),
        signal = signals.recv() => anyhow::bail!("second {signal}: running reconciles were abandoned"),
    }
}

/// Writes the ready file once the plugins are loaded, and returns when a part of the host fails.
async fn run_until_failure(
    host: &mut Host,
    addresses: &ServedAddresses,
    ready_file: Option<&Path>,
) -> anyhow::Result<()> {
    host.wait_loaded().await?;
    info!(admin = addresses.admin, "started");
    if let Some(path) = ready_file {
        let mut facts = json!(addresses);
        facts["pid"] = std::process::id().into();
        let partial = path.with_extension("partial");
        std::fs::write(&partial, facts.to_string())
            .and_then(|()| std::fs::rename(&partial, path))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Err(host.wait_failed().await)
}
