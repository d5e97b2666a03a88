//! The command line.

mod ask;
mod compile;
mod completion;
#[cfg(feature = "dev")]
mod dev;
mod explain;
mod plan;
mod plugin;
mod record;
mod replay;
mod run;
mod status;
mod table;
mod trace;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::{
    admin::Admin,
    host::{Host, Settings},
    leader::lease,
    observe::telemetry::{self, LogFormat},
    policy::grants::Grants,
    recording,
    sandbox::engine::Cache,
};

/// Ostler runs Kubernetes reconcilers that are WebAssembly components.
#[derive(Parser)]
#[command(name = "ostler", version, about)]
#[cfg_attr(
    not(feature = "dev"),
    command(
        after_help = "This build has no development commands: `ostler dev` and `ostler plugin new`, `build`, `test` \
                          and `dev` are in a build with the Cargo feature `dev`."
    )
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Reconcile: run the plugins of a directory against a cluster.
    Run(run::Run),
    /// Develop: the same against an API server of its own, when there is no cluster.
    #[cfg(feature = "dev")]
    Dev(dev::Dev),
    /// Tell how a running host is: what is not Ready, and why.
    Status(status::Status),
    /// Explain an object: why it is not Ready, what it waits for, when it runs next.
    Explain(explain::Explain),
    /// Plan: what reconciling would change, as a diff; nothing is written.
    Plan(plan::Plan),
    /// Follow the reconciles of an object live, host call by host call.
    Trace(trace::Trace),
    /// Record reconciles of an object, or list the recordings that the host has kept.
    Record(record::Record),
    /// Replay a recording, with the build that was recorded or a new one. No cluster is needed.
    Replay(replay::Replay),
    /// Write, test, publish and look at plugins.
    #[command(subcommand)]
    Plugin(plugin::Plugin),
    /// Print what a shell needs to complete commands.
    Completion(completion::Completion),
    /// Print the CRDs of the host's own kinds as YAML.
    Crds,
    /// Compile a component into the cache: what a host has done in a process of its own.
    #[command(hide = true)]
    Compile(compile::Compile),
}

impl Command {
    /// How those that run a host log; the others print.
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
    fn failure(&self) -> ExitCode {
        match self {
            // 1 is for a plan that changes something, as `kubectl diff` has it.
            Self::Plan(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

#[derive(Args)]
struct Common {
    /// Directory of components; what is saved there is swapped in.
    #[arg(long, default_value = "plugins")]
    plugins: PathBuf,
    /// Follow only Plugin objects with these labels (`team=ci`): where several hosts share a cluster.
    #[arg(long, value_parser = crate::kube::selector::Selector::parse)]
    plugin_selector: Option<crate::kube::selector::Selector>,
    /// Registry (`HOST:PORT`) that is spoken to in plain HTTP; may be given more than once. Those on this machine are
    /// anyway.
    #[arg(long = "plain-http-registry")]
    plain_http: Vec<String>,
    /// File that says what each plugin may do; without it none may do anything.
    #[arg(long)]
    grants: Option<PathBuf>,
    /// Network (10.96.0.0/12) or address (127.0.0.1) that upstreams may have, though it is not public, besides what the
    /// grants allow; may be given more than once.
    #[arg(long = "allow-network", value_parser = crate::policy::network::parse_network)]
    networks: Vec<ipnet::IpNet>,
    /// Namespace to be confined to; may be given more than once. All without it.
    #[arg(long = "namespace")]
    namespaces: Vec<String>,
    /// Reconciles at the same time.
    #[arg(long, default_value_t = 16)]
    workers: u32,
    /// Seconds after which a deletion that is stuck says what can be done.
    #[arg(long, default_value_t = 600)]
    deletion_deadline: u64,
    /// Seconds that reconciles have to end after SIGTERM or SIGINT; a second signal ends at once.
    #[arg(long, default_value = "25", value_parser = seconds)]
    grace_period: Duration,
    /// Directory for compiled code, which only this user may be able to write to. With it, components are compiled in
    /// a process of their own.
    #[arg(long)]
    cache: Option<PathBuf>,
    /// Which reconciles are kept as recordings.
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    record: recording::Keep,
    /// Recordings that are kept.
    #[arg(long, default_value_t = 200)]
    record_count: usize,
    /// Bytes of all recordings together; one may have an eighth of them.
    #[arg(long, default_value_t = 32 << 20)]
    record_bytes: usize,
    /// Address of the admin server (health, facts).
    #[arg(long, default_value = "127.0.0.1:8081")]
    admin: SocketAddr,
    /// File to write when started: JSON with the admin server's URL and the process id.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// How log lines look.
    #[arg(long, value_enum, default_value = "pretty")]
    log_format: LogFormat,
}

/// Seconds, with a fraction if need be.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is needed")?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

/// Parses the arguments and runs until a signal, or an error, ends it.
pub fn main() -> ExitCode {
    // Who reads the output may have had enough of it: `| head`.
    let complain = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            std::process::exit(0);
        }
        complain(panic);
    }));
    let cli = Cli::parse();
    let failure = cli.command.failure();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("ostler: no runtime: {e}");
            return failure;
        }
    };
    // Fails only when somebody was faster, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let telemetry = cli
        .command
        .log_format()
        .map(|format| telemetry::start_telemetry(format, runtime.handle()))
        .transpose();
    let ended = telemetry.and_then(|telemetry| {
        let ended = runtime.block_on(run(cli.command));
        // Before the runtime is gone: the last traces go through it.
        drop(telemetry);
        ended
    });
    // What still compiles is not waited for.
    runtime.shutdown_background();
    match ended {
        Ok(code) => code,
        Err(e) => {
            eprintln!("ostler: {e:#}");
            failure
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Plan(plan) => return plan.run().await,
        Command::Replay(replay) => return replay.run().await,
        Command::Run(run) => run.run().await?,
        #[cfg(feature = "dev")]
        Command::Dev(dev) => dev.run().await?,
        Command::Status(status) => status.run().await?,
        Command::Explain(explain) => explain.run().await?,
        Command::Trace(trace) => trace.run().await?,
        Command::Record(record) => record.run().await?,
        Command::Compile(compile) => compile.run()?,
        Command::Plugin(plugin) => plugin.run().await?,
        Command::Completion(completion) => completion.run(),
        Command::Crds => {
            print!(
                "{}---\n{}",
                crate::upstream::crd_yaml(),
                crate::plugin::spec::crd_yaml()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The grants of a file; none without one.
fn grants(file: Option<&Path>) -> anyhow::Result<Grants> {
    let Some(path) = file else {
        return Ok(Grants::default());
    };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading the grants {}", path.display()))?;
    Grants::parse(&text, &path.display().to_string()).map_err(|e| anyhow::anyhow!("{e}"))
}

/// Runs a host until a signal, or an error, ends it.
async fn serve(
    config: kube::Config,
    common: Common,
    election: Option<lease::Settings>,
) -> anyhow::Result<()> {
    let grants = grants(common.grants.as_deref())?;
    let settings = Settings {
        plugins: common.plugins,
        plugin_selector: common.plugin_selector,
        plain_http: common.plain_http,
        grants,
        grants_file: common.grants,
        network: common.networks,
        namespaces: common.namespaces,
        workers: common.workers.max(1),
        deletion_deadline: Duration::from_secs(common.deletion_deadline),
        cache: common.cache.map(|directory| Cache {
            directory,
            compiler: std::env::current_exe().ok(),
        }),
        api_server: config
            .cluster_url
            .authority()
            .map(ToString::to_string)
            .unwrap_or_default(),
        election,
        record: recording::Settings {
            keep: common.record,
            count: common.record_count,
            bytes: common.record_bytes,
        },
        ..Settings::default()
    };
    let client = kube::Client::try_from(config)?;
    // Before anything is started: a signal that comes early must not be lost.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut host = Host::start(client, settings).await?;
    let address = admin(&host, common.workers.max(1))
        .serve(common.admin)
        .await
        .with_context(|| format!("the admin address {}", common.admin))?;
    info!(admin = %format!("http://{address}"), "started");
    if let Some(path) = &common.ready_file {
        let facts = json!({"admin": format!("http://{address}"), "pid": std::process::id()});
        let partial = path.with_extension("partial");
        std::fs::write(&partial, facts.to_string())
            .and_then(|()| std::fs::rename(&partial, path))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    tokio::select! {
        _ = terminate.recv() => info!("terminated: draining"),
        _ = interrupt.recv() => info!("interrupted: draining"),
        e = host.wait_failed() => return Err(e),
    }
    tokio::select! {
        () = host.drain(common.grace_period) => Ok(()),
        _ = terminate.recv() => anyhow::bail!("terminated again: not drained"),
        _ = interrupt.recv() => anyhow::bail!("interrupted again: not drained"),
    }
}

/// The admin server of a host.
fn admin(host: &Host, workers: u32) -> Admin {
    Admin {
        services: host.services().clone(),
        registry: host.registry().clone(),
        stats: host.stats().clone(),
        workers,
    }
}

/// A client of the cluster. Its TLS is rustls with ring, wherever it runs.
pub async fn client(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Client> {
    Ok(kube::Client::try_from(config(kubeconfig).await?)?)
}

/// How the cluster is reached.
async fn config(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Config> {
    // Fails only when somebody was faster, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = match kubeconfig {
        Some(path) => {
            let read =
                Kubeconfig::read_from(&path).with_context(|| format!("the kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?
        }
        None => kube::Config::infer()
            .await
            .context("no cluster: give --kubeconfig, or try `ostler dev`")?,
    };
    // A watch is silent for as long as nothing happens; it ends by its own timeout.
    config.read_timeout = Some(Duration::from_secs(320));
    // The client's own retries would hold a worker for minutes; the queue has a back-off for each object.
    config.default_retry = false;
    Ok(config)
}
