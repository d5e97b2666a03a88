//! `ostler plugin dev`: builds and serves a plugin whenever a file is saved.

use std::{
    ffi::OsStr,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use ostler_builder::BuildOptions;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{
    build::build,
    crds, format_kilobytes,
    project::{Document, Project},
    simulated_upstream::UPSTREAMS_DIR,
    stage::{PluginStage, wait_until},
};
use crate::{
    cli::{
        addresses::DEFAULT_ADMIN_ADDRESS,
        ask::OutputFormat,
        session::DevSession,
        shutdown::ShutdownSignals,
        table::{Shade, join_reason, shade_text},
    },
    kube::{
        key::{Gvk, ObjectRef},
        well_known::environment,
    },
};

/// Options of the builds of saved sources.
const QUICK_BUILD: BuildOptions = BuildOptions {
    out: None,
    install: false,
    quick: true,
};
/// Debounce interval: a save causes several events.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(50);
/// Time for a new build to reconcile all objects.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for running reconciles to end.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Folders that tools write to, never the author.
const NOT_SOURCES: [&str; 6] = ["target", "dist", "node_modules", "__pycache__", "test", "tests"];
/// Files that builds write.
const LOCK_FILES: [&str; 3] = ["Cargo.lock", "package-lock.json", "go.sum"];
const SOURCE_EXTENSIONS: [&str; 13] = [
    "rs", "toml", "js", "mjs", "ts", "py", "go", "mod", "json", "yaml", "yml", "wit", "txt",
];

/// Arguments of `ostler plugin dev`.
#[derive(Args)]
#[command(after_help = "Exit codes:\n  0  ended by SIGINT or SIGTERM\n  1  error\n  2  invalid arguments")]
pub struct PluginDevCommand {
    /// Directory of the plugin project.
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Kubeconfig of a cluster to develop against. The plugin's CRDs and samples are applied to it. Defaults to an embedded
    /// API server.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Configuration of the plugin.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address that the admin server binds to, for `ostler status` and `ostler explain`. Defaults to 127.0.0.1:8081, or to a free
    /// port if another process has that.
    #[arg(long, env = environment::OSTLER_ADMIN, value_name = "ADDRESS", value_parser = parse_address)]
    admin_bind_address: Option<SocketAddr>,
    /// Output format: a table, or one line of JSON per event.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let address = text.trim_start_matches("http://").trim_end_matches('/');
    address
        .parse()
        .map_err(|_| format!("{text:?} is no address such as 127.0.0.1:8081"))
}

/// The role of a saved file in the project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Saved {
    source: bool,
    crds: bool,
    samples: bool,
    upstreams: bool,
}

impl Saved {
    /// The role of a path below the project folder.
    fn classify(path: &Path) -> Self {
        let nothing = Self::default();
        let names: Vec<_> = path.iter().filter_map(OsStr::to_str).collect();
        let skipped = |name: &&str| name.starts_with('.') || NOT_SOURCES.contains(name);
        let Some(file) = names.last().filter(|_| !names.iter().any(skipped)) else {
            return nothing;
        };
        let extension = Path::new(file)
            .extension()
            .and_then(OsStr::to_str)
            .unwrap_or_default();
        match names[0] {
            _ if LOCK_FILES.contains(file) || !SOURCE_EXTENSIONS.contains(&extension) => nothing,
            "crds" => Self {
                crds: true,
                ..nothing
            },
            "samples" => Self {
                samples: true,
                ..nothing
            },
            UPSTREAMS_DIR => Self {
                upstreams: true,
                ..nothing
            },
            _ => Self {
                source: true,
                ..nothing
            },
        }
    }

    fn merge(self, other: Self) -> Self {
        Self {
            source: self.source || other.source,
            crds: self.crds || other.crds,
            samples: self.samples || other.samples,
            upstreams: self.upstreams || other.upstreams,
        }
    }

    fn has_changes(self) -> bool {
        self.source || self.crds || self.samples || self.upstreams
    }
}

/// Watches the files of a folder.
struct Files {
    folder: PathBuf,
    watcher: RecommendedWatcher,
    events: UnboundedReceiver<notify::Event>,
}

impl Files {
    fn watch_folder(folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.canonicalize()?;
        let (sender, events) = unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let written = AccessKind::Close(AccessMode::Write);
            // Access events are ignored: builds read all files.
            let read = |kind| matches!(kind, EventKind::Access(how) if how != written);
            if let Ok(event) = event
                && !read(event.kind)
            {
                let _ = sender.send(event);
            }
        })?;
        let mut files = Self {
            folder,
            watcher,
            events,
        };
        files.watcher.watch(&files.folder, RecursiveMode::NonRecursive)?;
        for entry in std::fs::read_dir(&files.folder)? {
            files.take_in(&entry?.path());
        }
        Ok(files)
    }

    /// Watches source folders recursively. Build folders are left out: they contain thousands of files.
    fn take_in(&mut self, path: &Path) {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or(".");
        if path.is_dir() && !name.starts_with('.') && !NOT_SOURCES.contains(&name) {
            // The folder may have been deleted since.
            let _ = self.watcher.watch(path, RecursiveMode::Recursive);
        }
    }

    fn classify_event(&mut self, event: &notify::Event) -> Saved {
        let mut saved = Saved::default();
        for path in &event.paths {
            let Ok(under) = path.strip_prefix(&self.folder) else {
                continue;
            };
            if under.components().count() == 1 && matches!(event.kind, EventKind::Create(_)) {
                self.take_in(path);
            }
            saved = saved.merge(Saved::classify(under));
        }
        saved
    }

    /// Waits for a save, and until no further event comes for a moment.
    async fn next_save(&mut self) -> Saved {
        let mut saved = Saved::default();
        loop {
            let event = if saved.has_changes() {
                match tokio::time::timeout(DEBOUNCE_INTERVAL, self.events.recv()).await {
                    Ok(event) => event,
                    Err(_) => return saved,
                }
            } else {
                self.events.recv().await
            };
            match event {
                Some(event) => saved = saved.merge(self.classify_event(&event)),
                None => std::future::pending().await,
            }
        }
    }
}

/// An event: a row of the table.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    at: String,
    what: &'static str,
    build_ms: Option<f64>,
    swap_ms: Option<f64>,
    bytes: Option<usize>,
    reconciles: u64,
    errors: u64,
    message: String,
}

const TABLE_HEADER: &str = "TIME      WHAT           BUILD      SWAP       SIZE  RECONCILES  ERRORS";
/// The events after which another build serves than the newest one, or another host reconciles the same objects: red on a terminal.
const RED_EVENTS: [&str; 5] = ["wrong", "refused", "failed", "contested", ROLLED_BACK];
/// The event of a build that is rolled back after it has begun to serve.
const ROLLED_BACK: &str = "rolled back";

impl Row {
    fn new(what: &'static str, message: impl Into<String>) -> Self {
        Self {
            at: crate::kube::time::now_rfc3339(),
            what,
            message: message.into(),
            ..Self::default()
        }
    }

    fn format_row(&self) -> String {
        let clock = self
            .at
            .split('T')
            .nth(1)
            .and_then(|t| t.get(..8))
            .unwrap_or(&self.at);
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let line = format!(
            "{clock}  {:<11} {:>8} {:>9} {:>10}  {:>10}  {:>6}  {}",
            self.what,
            or_none(self.build_ms.map(|ms| format!("{:.1} s", ms / 1000.0))),
            or_none(self.swap_ms.map(|ms| format!("{ms:.0} ms"))),
            or_none(self.bytes.map(format_kilobytes)),
            self.reconciles,
            self.errors,
            self.message,
        );
        line.trim_end().to_owned()
    }
}

impl PluginDevCommand {
    /// Runs until a signal or an error ends it.
    pub async fn run(self) -> anyhow::Result<()> {
        let project = Project::read_folder(&self.folder)?;
        let mut signals = ShutdownSignals::install()?;
        // Before the first build, so that a save during it is not missed.
        let mut files = Files::watch_folder(&self.folder)?;
        let mut stage = PluginStage::prepare(self.kubeconfig.clone()).await?;
        stage.install_crds(&project.crds).await?;
        stage.start_host().await?;
        stage.serve_upstreams(&project).await?;
        let address = self.serve_admin(&stage).await?;
        self.write_session(&stage, address)?;
        let kinds: Vec<Gvk> = project.crds.iter().flat_map(Document::defined_kinds).collect();
        for (plugin, kind) in stage.find_installed(&kinds).await {
            let message = format!(
                "the Plugin {plugin} of this cluster reconciles {}, too: suspend it meanwhile (`kubectl ostler suspend plugin/{plugin}`)",
                kind.kind
            );
            self.print_row(&Row::new("contested", message));
        }
        let working = async {
            let mut saved = Saved {
                source: true,
                samples: true,
                ..Saved::default()
            };
            let mut rolled_back = 0;
            let mut is_crd_outdated = false;
            loop {
                // After the build serves, which does not need it. A save in between cancels it, and it begins again.
                is_crd_outdated |= self.handle_save(&mut stage, saved).await?;
                let mut generating = pin!(self.update_crds());
                let mut saving = pin!(files.next_save());
                saved = loop {
                    tokio::select! {
                        saved = &mut saving => break saved,
                        row = &mut generating, if is_crd_outdated => {
                            is_crd_outdated = false;
                            if let Some(row) = row {
                                self.print_row(&row);
                            }
                        }
                        report = stage.wait_rolled_back(rolled_back) => {
                            let report = report?;
                            rolled_back = report.rolled_back;
                            self.print_row(&Row::new(ROLLED_BACK, report.message));
                        }
                    }
                };
            }
        };
        let ended: anyhow::Result<()> = tokio::select! {
            _ = signals.recv() => Ok(()),
            failed = working => failed,
        };
        let _ = std::fs::remove_file(DevSession::file(&self.folder));
        stage.shut_down(GRACE_PERIOD).await;
        ended
    }

    /// Serves the admin server, and returns its address.
    async fn serve_admin(&self, stage: &PluginStage) -> anyhow::Result<SocketAddr> {
        if let Some(address) = self.admin_bind_address {
            let served = stage.admin()?.serve_local(address).await;
            return served.with_context(|| {
                format!("the admin address {address}: --admin-bind-address 127.0.0.1:0 takes a free port")
            });
        }
        match stage.admin()?.serve_local(DEFAULT_ADMIN_ADDRESS).await {
            Ok(address) => Ok(address),
            // Another project's session, most often.
            Err(_) => {
                stage
                    .admin()?
                    .serve_local(SocketAddr::new(DEFAULT_ADMIN_ADDRESS.ip(), 0))
                    .await
            }
        }
    }

    /// Writes the file by which other commands find this process, and prints the addresses.
    fn write_session(&self, stage: &PluginStage, address: SocketAddr) -> anyhow::Result<()> {
        let kubeconfig = match stage.kubeconfig() {
            Some(text) => {
                let path = self.folder.join(".ostler/kubeconfig");
                ostler_builder::replace_file(&path, text.as_bytes())?;
                path
            }
            None => self.kubeconfig.clone().unwrap_or_default(),
        };
        // The commands that are printed are typed in other folders, too.
        let kubeconfig = std::path::absolute(kubeconfig)?;
        let session = DevSession {
            admin: format!("http://{address}"),
            kubeconfig: kubeconfig.clone(),
            plugins: stage.plugin_dir(),
            grants: stage.grants_file(),
            pid: i32::try_from(std::process::id())?,
        };
        let facts = json!(session);
        ostler_builder::replace_file(&DevSession::file(&self.folder), facts.to_string().as_bytes())?;
        match self.output {
            OutputFormat::Json => println!("{facts}"),
            OutputFormat::Table => println!(
                "kubectl:  export KUBECONFIG={}\nostler:   export OSTLER_ADMIN=http://{address}\nCtrl-C ends it.\n\n{TABLE_HEADER}",
                kubeconfig.display()
            ),
        }
        Ok(())
    }

    /// Writes the CRDs that the types define, and describes the changes. The files are installed like saved ones.
    async fn update_crds(&self) -> Option<Row> {
        let updated = async {
            let changed = crds::update(&self.folder).await?;
            anyhow::Ok(crds::summarize_changes(&changed))
        };
        match updated.await {
            Ok(changes) if changes.is_empty() => None,
            Ok(changes) => Some(Row::new("generated", format!("crds: {changes}"))),
            Err(e) => {
                eprintln!("{e:#}");
                Some(Row::new(
                    "wrong",
                    "crds/ may be older than the types: `ostler plugin crds` writes it",
                ))
            }
        }
    }

    /// Handles saved files, and returns true if the source was built. Only unrecoverable failures are errors; the others
    /// are printed as events.
    async fn handle_save(&self, stage: &mut PluginStage, saved: Saved) -> anyhow::Result<bool> {
        let project = match Project::read_folder(&self.folder) {
            Ok(project) => project,
            Err(e) => {
                self.print_row(&Row::new("wrong", format!("{e:#}")));
                return Ok(false);
            }
        };
        if saved.crds {
            match stage.install_crds(&project.crds).await {
                Ok(()) => {
                    self.print_row(&Row::new("defined", "crds/"));
                    // A field that the API server did not know was pruned or refused.
                    self.try_samples(stage, &project, false).await?;
                }
                Err(e) => self.print_row(&Row::new("refused", format!("{e:#}"))),
            }
        }
        if saved.samples {
            self.try_samples(stage, &project, !saved.source).await?;
        }
        if saved.upstreams {
            let before = count_reconciles(stage)?;
            stage.serve_upstreams(&project).await?;
            stage.reconcile_all()?;
            let mut row = Row::new("applied", "upstreams/");
            wait_settled(stage, before, &mut row).await?;
            self.print_row(&row);
        }
        if !saved.source {
            return Ok(false);
        }
        let row = self.rebuild(stage, &project).await?;
        self.print_row(&row);
        Ok(row.bytes.is_some())
    }

    async fn try_samples(&self, stage: &PluginStage, project: &Project, waits: bool) -> anyhow::Result<()> {
        let before = count_reconciles(stage)?;
        for sample in &project.samples {
            if let Err(e) = stage.apply(sample).await {
                self.print_row(&Row::new("refused", format!("{e:#}")));
            }
        }
        if waits {
            let mut row = Row::new("applied", "samples/");
            wait_settled(stage, before, &mut row).await?;
            self.print_row(&row);
        }
        Ok(())
    }

    async fn rebuild(&self, stage: &PluginStage, project: &Project) -> anyhow::Result<Row> {
        let began = Instant::now();
        let built = match build(&self.folder, QUICK_BUILD).await {
            Ok(built) => built,
            Err(e) => {
                eprintln!("{e:#}");
                let mut row = Row::new("failed", failure_hint(stage));
                row.build_ms = Some(elapsed_milliseconds(began));
                return Ok(row);
            }
        };
        let build_ms = Some(elapsed_milliseconds(began));
        for warning in &built.warnings {
            eprintln!("{warning}");
        }
        let wasm = std::fs::read(&built.path).with_context(|| format!("reading {}", built.path.display()))?;
        let before = count_reconciles(stage)?;
        let offered = stage.offer_build(project, &built.name, self.config.as_deref(), &wasm);
        let mut row = match offered.await {
            Ok(report) => {
                // The name in the component takes precedence.
                if report.name != built.name {
                    stage.write_grants(project, &report.name)?;
                }
                let kinds = stage.serving_kinds()?;
                let mut row = Row::new("serves", "");
                row.swap_ms = report.swapped_ms;
                wait_settled(stage, before, &mut row).await?;
                if let Err(e) = project.check_kinds_defined(&kinds) {
                    row.message = format!("{e:#}");
                }
                row
            }
            Err(e) => Row::new("refused", format!("{e:#}; {}", failure_hint(stage))),
        };
        row.build_ms = build_ms;
        row.bytes = Some(built.bytes);
        Ok(row)
    }

    fn print_row(&self, row: &Row) {
        match self.output {
            OutputFormat::Json => println!("{}", json!(row)),
            OutputFormat::Table if RED_EVENTS.contains(&row.what) => {
                println!("{}", shade_text(&row.format_row(), Shade::Bad));
            }
            OutputFormat::Table => println!("{}", row.format_row()),
        }
    }
}

/// The hint after a build that does not serve.
fn failure_hint(stage: &PluginStage) -> &'static str {
    match stage.serving_plugin() {
        Ok(_) => "the previous build keeps serving",
        Err(_) => "fix it and save",
    }
}

fn elapsed_milliseconds(since: Instant) -> f64 {
    since.elapsed().as_micros() as f64 / 1000.0
}

/// Reconciles and failures so far.
fn count_reconciles(stage: &PluginStage) -> anyhow::Result<(u64, u64)> {
    let facts = stage.host()?.stats().all_objects();
    Ok(facts
        .iter()
        .fold((0, 0), |(r, f), facts| (r + facts.reconciles, f + facts.failures)))
}

/// Waits until the serving build has reconciled every object, and reports the number of reconciles.
async fn wait_settled(stage: &PluginStage, before: (u64, u64), row: &mut Row) -> anyhow::Result<()> {
    let Ok(plugin) = stage.serving_plugin() else {
        return Ok(());
    };
    let host = stage.host()?;
    let through = async || {
        // It was rolled back: the objects are reconciled by another build.
        if stage
            .serving_plugin()
            .is_ok_and(|now| now.digest != plugin.digest)
        {
            return true;
        }
        for kind in &plugin.kinds {
            let Ok(objects) = stage.list(&kind.gvk).await else {
                return false;
            };
            let been = |object: &Value| {
                let text = |field| object["metadata"][field].as_str().unwrap_or_default();
                let key = ObjectRef::new(kind.gvk.clone(), text("namespace"), text("name"));
                let facts = host.stats().object(&key);
                facts.is_some_and(|f| f.plugin_digest == plugin.digest)
                    && object["status"]["observedGeneration"] == object["metadata"]["generation"]
            };
            if !objects.iter().all(been) {
                return false;
            }
        }
        host.services().dispatcher.is_idle()
    };
    if !wait_until(SETTLE_TIMEOUT, through).await {
        row.message = "still at work".into();
    }
    let now = count_reconciles(stage)?;
    (row.reconciles, row.errors) = (now.0 - before.0.min(now.0), now.1 - before.1.min(now.1));
    let stats = stage.host()?.stats();
    let not_ready = stats.list_not_ready(1);
    if let Some(object) = not_ready.first() {
        row.message = format!(
            "{}/{} is not Ready: {}",
            object.kind.split('.').next().unwrap_or_default(),
            object.name,
            join_reason(&object.reason, &object.message)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_file_is_classified_by_its_path() {
        let of = |path: &str| {
            let Saved {
                source,
                crds,
                samples,
                upstreams,
            } = Saved::classify(Path::new(path));
            assert_eq!(upstreams, path.starts_with("upstreams/"), "{path}");
            (source, crds, samples)
        };
        for source in [
            "src/lib.rs",
            "Cargo.toml",
            "plugin.yaml",
            "main.go",
            "app.py",
            "a/b/c.js",
        ] {
            assert_eq!(of(source), (true, false, false), "{source}");
        }
        assert_eq!(of("crds/x.yaml"), (false, true, false));
        assert_eq!(of("samples/x.yaml"), (false, false, true));
        for nothing in [
            "upstreams/pages.yaml",
            "target/wasm/x.rs",
            "node_modules/a/index.js",
            ".git/config.toml",
            "src/.lib.rs.swp",
            "src/lib.rs~",
            "Cargo.lock",
            "tests/reconcile.rs",
            "README.md",
            "",
        ] {
            assert_eq!(of(nothing), (false, false, false), "{nothing}");
        }
    }

    #[tokio::test]
    async fn saves_in_new_folders_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::watch_folder(folder.path()).unwrap();
        let later = folder.path().join("src");
        std::fs::create_dir(&later).unwrap();
        std::fs::write(folder.path().join("Cargo.toml"), "x").unwrap();
        assert!(files.next_save().await.source);
        std::fs::write(later.join("lib.rs"), "x").unwrap();
        std::fs::write(folder.path().join("Cargo.lock"), "x").unwrap();
        assert_eq!(
            files.next_save().await,
            Saved {
                source: true,
                ..Saved::default()
            }
        );
    }

    #[tokio::test]
    async fn hint_without_a_serving_build_names_only_the_fix() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut stage = PluginStage::prepare(None).await.unwrap();
        stage.start_host().await.unwrap();
        assert_eq!(failure_hint(&stage), "fix it and save");
        stage.shut_down(GRACE_PERIOD).await;
    }

    #[test]
    fn row_is_aligned_with_its_header() {
        let row = Row {
            at: "2026-11-21T08:00:01Z".into(),
            what: "serves",
            build_ms: Some(1234.0),
            swap_ms: Some(56.4),
            bytes: Some(65_000),
            reconciles: 3,
            errors: 1,
            message: "so".into(),
        };
        let text = row.format_row();
        for (column, value) in [
            ("BUILD", "1.2 s"),
            ("SWAP", "56 ms"),
            ("SIZE", "65.0 KB"),
            ("ERRORS", "1"),
        ] {
            let end = |line: &str, word: &str| line.find(word).map(|at| at + word.len());
            let under = TABLE_HEADER.find(column).map(|at| at + column.len());
            let found = text
                .match_indices(value)
                .any(|(at, _)| Some(at + value.len()) == under);
            assert!(
                found,
                "{column} ends at {under:?}, {value} at {:?}:\n{TABLE_HEADER}\n{text}",
                end(&text, value)
            );
        }
        assert!(
            text.starts_with("08:00:01  serves") && text.ends_with("so"),
            "{text}"
        );
        assert_eq!(
            Row::new("wrong", "").format_row().trim_end(),
            Row::new("wrong", "").format_row()
        );
    }
}
