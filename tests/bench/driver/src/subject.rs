//! The measured operators: how each is started and queried.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use histogram::{Bucket, SparseHistogram32};
use serde_json::Value;
use tokio::process::Command;

use crate::{process::SubjectProcess, scenes::SceneStage};

/// Name of the plugin in its components.
pub const PLUGIN_NAME: &str = "bench-plugin";
/// File of the plugin.
const PLUGIN_FILE: &str = "bench-plugin.wasm";
/// File in an operator's folder with the address of its admin endpoint.
const READY_FILE: &str = "ready.json";
/// Timeout of an operator's start. A host that has to compile a hundred components in Python first takes minutes.
const START_TIMEOUT: Duration = Duration::from_secs(1800);

/// A measured subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchSubject {
    /// Ostler with a plugin in Rust.
    Ostler,
    /// The same with the plugin in Go.
    OstlerGo,
    /// The same with the plugin in JavaScript.
    OstlerJs,
    /// The same with the plugin in Python.
    OstlerPython,
    /// An operator with controller-runtime.
    ControllerRuntime,
    /// As controller-runtime, with managedFields stripped from its cache.
    ControllerRuntimeStrip,
    /// An operator with kube-rs.
    KubeRs,
    /// An operator with Kopf.
    Kopf,
    /// Only the writes, by a bare client: create, and patch of the status.
    Raw,
    /// As raw, with server-side apply instead of create.
    RawApply,
    /// concourse-operator, whose requests are computed.
    Original,
}

/// Paths of the operators.
#[derive(Args, Clone)]
pub struct OperatorPrograms {
    /// Ostler's binary.
    #[arg(long)]
    ostler: Option<PathBuf>,
    /// The plugin's component.
    #[arg(long)]
    component: Option<PathBuf>,
    /// The component of the same plugin in Go.
    #[arg(long)]
    component_go: Option<PathBuf>,
    /// The component of the same plugin in JavaScript.
    #[arg(long)]
    component_js: Option<PathBuf>,
    /// The component of the same plugin in Python.
    #[arg(long)]
    component_python: Option<PathBuf>,
    /// Grants of the plugin.
    #[arg(long)]
    grants: Option<PathBuf>,
    /// Program that measures the memory of Ostler's store.
    #[arg(long)]
    pub store: Option<PathBuf>,
    /// The controller-runtime operator.
    #[arg(long)]
    controller_runtime: Option<PathBuf>,
    /// The kube-rs operator.
    #[arg(long)]
    kube_rs: Option<PathBuf>,
    /// Kopf's own command.
    #[arg(long)]
    kopf: Option<PathBuf>,
    /// The Kopf operator.
    #[arg(long)]
    kopf_operator: Option<PathBuf>,
    /// Folder with the components of the Concourse pack.
    #[arg(long)]
    pack: Option<PathBuf>,
    /// Grants of the pack.
    #[arg(long)]
    pack_grants: Option<PathBuf>,
    /// Folder with the pack's CRDs.
    #[arg(long)]
    pub crds: Option<PathBuf>,
    /// The Concourse simulator.
    #[arg(long)]
    pub simulator: Option<PathBuf>,
}

impl OperatorPrograms {
    /// Returns the path of the plugin's component in the language of the subject.
    pub fn require_component(&self, subject: BenchSubject) -> Result<&Path> {
        match subject {
            BenchSubject::OstlerGo => require_path(&self.component_go, "component-go"),
            BenchSubject::OstlerJs => require_path(&self.component_js, "component-js"),
            BenchSubject::OstlerPython => require_path(&self.component_python, "component-python"),
            _ => require_path(&self.component, "component"),
        }
    }
}

impl BenchSubject {
    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ostler => "ostler",
            Self::OstlerGo => "ostler-go",
            Self::OstlerJs => "ostler-js",
            Self::OstlerPython => "ostler-python",
            Self::ControllerRuntime => "controller-runtime",
            Self::ControllerRuntimeStrip => "controller-runtime-strip",
            Self::KubeRs => "kube-rs",
            Self::Kopf => "kopf",
            Self::Raw => "raw",
            Self::RawApply => "raw-apply",
            Self::Original => "original",
        }
    }

    /// Returns whether it is Ostler with a plugin, in whichever language.
    pub fn is_ostler(self) -> bool {
        matches!(
            self,
            Self::Ostler | Self::OstlerGo | Self::OstlerJs | Self::OstlerPython
        )
    }

    /// Returns whether it is only a client, not an operator.
    pub fn is_raw(self) -> bool {
        matches!(self, Self::Raw | Self::RawApply)
    }
}

/// A running subject.
pub struct RunningSubject {
    /// Its process.
    pub process: SubjectProcess,
    subject: BenchSubject,
    folder: PathBuf,
    admin: Option<String>,
    http: reqwest::Client,
    /// Durations of Ostler's reconciles before the last reset.
    before: Option<SparseHistogram32>,
    resyncs: u32,
}

/// Durations of reconciles.
pub struct Percentiles {
    /// Median in microseconds.
    pub p50_us: u64,
    /// 99th percentile in microseconds.
    pub p99_us: u64,
}

fn require_path<'a>(path: &'a Option<PathBuf>, what: &str) -> Result<&'a Path> {
    path.as_deref().with_context(|| format!("--{what} is not given"))
}

/// Builds the command of Ostler with these components.
fn ostler_command(
    stage: &SceneStage,
    folder: &Path,
    components: &[PathBuf],
    grants: &Path,
) -> Result<Command> {
    let plugins = folder.join("plugins");
    fs::create_dir_all(&plugins)?;
    for component in components {
        // A file is named after its plugin, which has one name in all languages.
        let name = component.file_name().context("a component is a file")?;
        let name = match name.to_string_lossy().starts_with(PLUGIN_NAME) {
            true => OsStr::new(PLUGIN_FILE),
            false => name,
        };
        fs::copy(component, plugins.join(name))
            .with_context(|| format!("copying {}", component.display()))?;
        let _ = fs::remove_file(plugins.join(name).with_extension("yaml"));
    }
    let mut command = Command::new(require_path(&stage.programs.ostler, "ostler")?);
    command.args(["run", "--admin-bind-address", "127.0.0.1:0", "--workers"]);
    command.arg(stage.workers.to_string());
    command.arg("--plugin-dir").arg(plugins);
    command.arg("--grants").arg(grants);
    command.arg("--cache-dir").arg(stage.compiled_folder());
    command.arg("--ready-file").arg(folder.join(READY_FILE));
    command.env("NO_COLOR", "1");
    Ok(command)
}

impl RunningSubject {
    /// Starts a subject. With `replica` it takes part in a leader election.
    pub async fn start(stage: &SceneStage, subject: BenchSubject, replica: Option<&str>) -> Result<Self> {
        let name = format!("{}{}", subject.name(), replica.unwrap_or(""));
        Self::start_as(stage, subject, name, replica).await
    }

    /// Starts one of several operators of a subject that do not know of each other.
    pub async fn start_beside(stage: &SceneStage, subject: BenchSubject, number: usize) -> Result<Self> {
        Self::start_as(stage, subject, format!("{}-{number}", subject.name()), None).await
    }

    async fn start_as(
        stage: &SceneStage,
        subject: BenchSubject,
        name: String,
        replica: Option<&str>,
    ) -> Result<Self> {
        let folder = stage.folder.join(&name);
        fs::create_dir_all(&folder)?;
        let ready = folder.join(READY_FILE);
        // Left by the previous subject.
        let _ = fs::remove_file(&ready);
        let programs = &stage.programs;
        let workers = stage.workers.to_string();
        let mut command = match subject {
            BenchSubject::Ostler
            | BenchSubject::OstlerGo
            | BenchSubject::OstlerJs
            | BenchSubject::OstlerPython => {
                let component = programs.require_component(subject)?.to_owned();
                ostler_command(
                    stage,
                    &folder,
                    &[component],
                    require_path(&programs.grants, "grants")?,
                )?
            }
            BenchSubject::ControllerRuntime | BenchSubject::ControllerRuntimeStrip => {
                let mut command =
                    Command::new(require_path(&programs.controller_runtime, "controller-runtime")?);
                command.args(["--workers", &workers, "--ready-file"]).arg(&ready);
                if subject == BenchSubject::ControllerRuntimeStrip {
                    command.arg("--strip-managed-fields");
                }
                command
            }
            BenchSubject::KubeRs => {
                let mut command = Command::new(require_path(&programs.kube_rs, "kube-rs")?);
                command.args(["--workers", &workers, "--ready-file"]).arg(&ready);
                command
            }
            BenchSubject::Kopf => {
                let mut command = Command::new(require_path(&programs.kopf, "kopf")?);
                command
                    .args(["run", "--quiet", "--standalone", "--all-namespaces"])
                    .arg(require_path(&programs.kopf_operator, "kopf-operator")?);
                command
            }
            BenchSubject::Raw | BenchSubject::RawApply | BenchSubject::Original => {
                bail!("{name} is no operator that runs")
            }
        };
        if let Some(replica) = replica {
            command.args([
                "--leader-elect",
                "--lease-name",
                "bench-operator",
                "--lease-namespace",
                "bench",
            ]);
            if subject.is_ostler() {
                command.args(["--identity", &name]);
            }
            // Distinguishes replicas in logs.
            command.env("BENCH_REPLICA", replica);
        }
        Self::launch(stage, subject, &name, folder, command).await
    }

    /// Starts Ostler with these plugins, in a folder of its own. Their code is unloaded when nothing has called them for this time.
    pub async fn start_plugins(
        stage: &SceneStage,
        subject: BenchSubject,
        folder: &Path,
        (components, grants): (&[PathBuf], &Path),
        unload_after: Duration,
    ) -> Result<Self> {
        let _ = fs::remove_file(folder.join(READY_FILE));
        let mut command = ostler_command(stage, folder, components, grants)?;
        command.args(["--unload-after", &format!("{}s", unload_after.as_secs())]);
        Self::launch(stage, subject, subject.name(), folder.to_owned(), command).await
    }

    /// Starts Ostler with the Concourse pack.
    pub async fn start_pack(stage: &SceneStage) -> Result<Self> {
        let (subject, programs) = (BenchSubject::Ostler, &stage.programs);
        let folder = stage.folder.join(subject.name());
        // Left by the previous subject.
        let _ = fs::remove_file(folder.join(READY_FILE));
        let mut components = Vec::new();
        let pack = require_path(&programs.pack, "pack")?;
        for entry in fs::read_dir(pack).with_context(|| format!("reading {}", pack.display()))? {
            components.push(entry?.path());
        }
        components.retain(|path| path.extension().is_some_and(|e| e == "wasm"));
        let grants = require_path(&programs.pack_grants, "pack-grants")?;
        let mut command = ostler_command(stage, &folder, &components, grants)?;
        // The Concourse simulator listens on loopback.
        command.args(["--allow-network", "127.0.0.1"]);
        Self::launch(stage, subject, subject.name(), folder, command).await
    }

    async fn launch(
        stage: &SceneStage,
        subject: BenchSubject,
        name: &str,
        folder: PathBuf,
        mut command: Command,
    ) -> Result<Self> {
        command.env("KUBECONFIG", &stage.kubeconfig);
        let process = SubjectProcess::spawn(name, command, &folder.join("log"))?;
        let ready = folder.join(READY_FILE);
        let mut running = Self {
            process,
            subject,
            folder,
            admin: None,
            http: reqwest::Client::new(),
            before: None,
            resyncs: 0,
        };
        if subject != BenchSubject::Kopf {
            running.admin = Some(running.wait_address(&ready).await?);
        }
        Ok(running)
    }

    async fn wait_address(&mut self, ready: &Path) -> Result<String> {
        let wait = async {
            loop {
                if let Ok(text) = fs::read(ready) {
                    let facts: Value = serde_json::from_slice(&text)?;
                    return facts["admin"]
                        .as_str()
                        .map(str::to_owned)
                        .context("no address in the ready file");
                }
                self.process.check_running()?;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(START_TIMEOUT, wait)
            .await
            .with_context(|| format!("no {}", ready.display()))?
            .with_context(|| format!("see {}", self.folder.join("log").display()))
    }

    fn build_admin_url(&self, path: &str) -> Result<String> {
        let admin = self.admin.as_deref();
        Ok(format!(
            "{}{path}",
            admin.context("the subject has no admin endpoint")?
        ))
    }

    async fn get_json(&self, path: &str) -> Result<Value> {
        let answer = self.http.get(self.build_admin_url(path)?).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Waits until the host has unloaded the code of all its plugins.
    pub async fn wait_unloaded(&self, limit: Duration) -> Result<()> {
        let url = self.build_admin_url("/metrics")?;
        let wait = async {
            loop {
                let text = self.http.get(&url).send().await?.text().await?;
                let mut loaded = text
                    .lines()
                    .filter(|line| line.starts_with("ostler_plugin_code_loaded{"));
                if loaded.all(|line| line.ends_with(" 0")) {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(limit, wait)
            .await
            .context("plugins that nothing calls stay loaded")?
    }

    async fn post_command(&self, path: &str) -> Result<()> {
        self.http
            .post(self.build_admin_url(path)?)
            .send()
            .await?
            .error_for_status()?;
        Ok(())
    }

    /// Counts the reconciles since the last [`RunningSubject::reset_stats`].
    pub async fn count_reconciles(&self) -> Result<u64> {
        if !self.subject.is_ostler() {
            return self.get_json("/count").await?.as_u64().context("a count");
        }
        let durations = self.get_durations().await?;
        Ok(durations.count().iter().copied().map(u64::from).sum())
    }

    /// Returns the durations of Ostler's reconciles since the last [`RunningSubject::reset_stats`], in microseconds.
    async fn get_durations(&self) -> Result<SparseHistogram32> {
        let all: SparseHistogram32 = serde_json::from_value(self.get_json("/reconciles").await?)?;
        Ok(match &self.before {
            Some(before) => all.checked_sub(before)?,
            None => all,
        })
    }

    /// Resets the count and the durations of reconciles.
    pub async fn reset_stats(&mut self) -> Result<()> {
        if !self.subject.is_ostler() {
            return self.post_command("/reset").await;
        }
        self.before = None;
        self.before = Some(self.get_durations().await?);
        Ok(())
    }

    /// Returns the durations of the reconciles since the last [`RunningSubject::reset_stats`].
    pub async fn reconcile_percentiles(&self) -> Result<Percentiles> {
        let us = |v: &Value| v.as_u64().context("microseconds");
        if !self.subject.is_ostler() {
            let stats = self.get_json("/stats").await?;
            return Ok(Percentiles {
                p50_us: us(&stats["p50_us"])?,
                p99_us: us(&stats["p99_us"])?,
            });
        }
        let durations = self.get_durations().await?;
        let quantiles = durations.quantiles(&[0.5, 0.99])?.context("no reconciles")?;
        let mut ends = quantiles.entries().values().map(Bucket::end);
        let (p50_us, p99_us) = ends.next().zip(ends.next()).context("two quantiles")?;
        Ok(Percentiles { p50_us, p99_us })
    }

    /// Returns the number of objects and bytes in Ostler's store, by its own count.
    pub async fn store_size(&self) -> Result<Option<(u64, u64)>> {
        if !self.subject.is_ostler() {
            return Ok(None);
        }
        let facts = self.get_json("/store").await?;
        Ok(facts["objects"].as_u64().zip(facts["bytes"].as_u64()))
    }

    /// Makes the subject reconcile every object again.
    pub async fn reconcile_all(&mut self) -> Result<()> {
        if !self.subject.is_ostler() {
            return self.post_command("/resync").await;
        }
        // A change of a plugin's configuration reconciles all its objects.
        self.resyncs += 1;
        let (config, partial) = (
            self.folder.join("plugins/bench-plugin.yaml"),
            self.folder.join("config.partial"),
        );
        fs::write(&partial, format!("round: {}\n", self.resyncs))?;
        Ok(fs::rename(partial, config)?)
    }
}
