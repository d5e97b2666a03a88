//! The processes of the demo: API server, the servers around the plugins, and host.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use ureq::Agent;

use super::{
    Pack, Variation, concourse, devops,
    facts::{ObjectFacts, ObjectKey, PluginStats, merge_stats},
    kubernetes::{DemoClient, get_json, http_agent, read_manifests},
    steps,
    table::Surroundings,
};
use crate::{
    components::Component, control_plane, node::RunningNode, paths, process::Child, progress::BuildStep,
};

/// Timeout for the start of a process, and until the server serves a new CRD. RabbitMQ takes the longest.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Name of the kubeconfig in the folder.
const KUBECONFIG: &str = "kubeconfig";

/// The running processes and their shared folder.
pub struct DemoStage {
    // Fields are dropped in this order: the host ends first.
    /// None while it restarts.
    host: Option<Child>,
    scene: Scene,
    apiserver: ApiServer,
    folder: PathBuf,
    program: PathBuf,
    cluster: DemoClient,
    admin: String,
    agent: Agent,
    /// Of a pack without a script.
    nothing: Surroundings,
    // Released last. The lock allows one demo at a time in this folder.
    _lock: File,
}

/// The API server, without which nothing else works.
enum ApiServer {
    /// The embedded one.
    Embedded(Child),
    /// That of a node, which the proxy serves without credentials.
    OfNode { proxy: Child, node: Box<RunningNode> },
}

impl ApiServer {
    /// Starts the embedded API server, which writes the kubeconfig. Returns its URL.
    fn start(command: Command, folder: &Path) -> Result<(Self, String)> {
        let mut command = command;
        command.arg("--kubeconfig").arg(folder.join(KUBECONFIG));
        let (apiserver, url) = start_server("ostler-apiserver", command, folder)?;
        Ok((Self::Embedded(apiserver), url))
    }

    /// Serves the API server of a node without credentials, and copies its kubeconfig. Returns the URL.
    fn of_node(node: RunningNode, folder: &Path) -> Result<(Self, String)> {
        let kubeconfig = folder.join(KUBECONFIG);
        paths::replace_file(&kubeconfig, &fs::read(node.kubeconfig()?)?)?;
        let mut command = Command::new(control_plane::build_binary()?);
        command.arg("serve-proxy").arg(&kubeconfig);
        let (proxy, url) = start_server("proxy", command, folder)?;
        let node = Box::new(node);
        Ok((Self::OfNode { proxy, node }, url))
    }

    fn check_running(&mut self) -> Result<()> {
        match self {
            Self::Embedded(apiserver) => apiserver.check_running(),
            Self::OfNode { proxy, node } => {
                proxy.check_running()?;
                node.check_running()
            }
        }
    }
}

/// Folders of the demo.
pub struct Site<'a> {
    /// The folder with the kubeconfig and the logs.
    pub folder: &'a Path,
    /// The plugin directory of the host.
    pub plugins: &'a Path,
}

/// The part of the demo that differs between packs.
pub struct Scene {
    /// Process of the servers that the plugins manage, if there is one.
    pub servers: Option<Child>,
    /// Objects that plugins must make Ready.
    pub expected: Vec<ObjectKey>,
    /// File with the grants of the plugins.
    pub grants: PathBuf,
    /// Events that are published in the course of the demo.
    pub script: Option<devops::Script>,
}

impl DemoStage {
    /// Starts everything and applies the examples, on a node where one is given.
    pub fn start(
        pack: Pack,
        variation: &Variation,
        binaries: &BTreeMap<String, PathBuf>,
        environment: &[(&str, PathBuf)],
        built: &[Component],
        node: Option<RunningNode>,
    ) -> Result<Self> {
        let step = BuildStep::new("Starting API server, servers and host");
        let folder = paths::create_target_subdir(variation.folder)?;
        let lock = File::create(folder.join("lock"))?;
        if lock.try_lock().is_err() {
            bail!("another demo is running in {}: stop it first", folder.display());
        }
        let plugins = folder.join("plugins");
        // Left behind by an earlier demo. It usually does not exist.
        let _ = fs::remove_dir_all(&plugins);
        fs::create_dir_all(&plugins)?;
        install_components(&plugins, built)?;
        let [ostler, apiserver, servers] = pack.programs();
        let program = |name: &str| {
            binaries
                .get(name)
                .map(Command::new)
                .with_context(|| format!("no binary {name}"))
        };

        step.set_status("API server");
        let has_node = node.is_some();
        let (apiserver, url) = match node {
            Some(node) => ApiServer::of_node(node, &folder)?,
            None => ApiServer::start(program(apiserver)?, &folder)?,
        };
        let cluster = DemoClient::new(&url);
        apply_crds(&cluster)?;
        let site = Site {
            folder: &folder,
            plugins: &plugins,
        };
        let mut command = program(servers)?;
        command.envs(environment.iter().map(|(name, path)| (name, path)));
        let scene = match pack {
            Pack::Concourse => concourse::start(&site, &cluster, command, &step)?,
            Pack::Devops => devops::start(&site, variation, &cluster, command, &step)?,
            Pack::Steps => steps::start(&site, &cluster, (!has_node).then_some(command), &step)?,
        };

        step.set_status("host");
        let program = binaries.get(ostler).context("no binary ostler")?.to_owned();
        let (host, admin) = start_host(&program, &folder, &scene.grants)?;
        step.finish(format!("in {}", folder.display()));
        Ok(Self {
            host: Some(host),
            scene,
            apiserver,
            folder,
            program,
            cluster,
            admin,
            agent: http_agent(),
            nothing: Surroundings::default(),
            _lock: lock,
        })
    }

    /// Ends the host in order, and starts it again.
    pub fn restart_host(&mut self) -> Result<()> {
        self.restart_host_after(|_| Ok(()))
    }

    /// Ends the host in order, does something without it, and starts it again.
    pub fn restart_host_after(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.host = None;
        work(self)?;
        let (host, admin) = start_host(&self.program, &self.folder, &self.scene.grants)?;
        (self.host, self.admin) = (Some(host), admin);
        Ok(())
    }

    /// Returns the client of the API server.
    pub fn cluster(&self) -> &DemoClient {
        &self.cluster
    }

    /// Fetches the metrics of the host.
    pub fn metrics(&self) -> Result<String> {
        let mut response = self.agent.get(format!("{}/metrics", self.admin)).call()?;
        Ok(response.body_mut().read_to_string()?)
    }

    /// Returns the CPU seconds of the host so far.
    pub fn host_cpu_seconds(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.host.as_ref()?.pid())).ok()?;
        // The second field may contain spaces and ends with a parenthesis.
        let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<u64>().ok();
        // The kernel reports hundredths of a second on all machines that Rust's tier 1 has.
        Some((ticks()? + ticks()?) as f64 / 100.0)
    }

    /// Continues the script of the pack.
    pub fn advance(&mut self, objects: &[ObjectFacts]) -> Result<()> {
        match &mut self.scene.script {
            Some(script) => script.advance(objects),
            None => Ok(()),
        }
    }

    /// Returns the script of the pack.
    ///
    /// # Panics
    /// The pack has none.
    pub fn script(&self) -> &devops::Script {
        self.scene.script.as_ref().expect("a pack with a script")
    }

    /// Returns the script of the pack, to read on.
    ///
    /// # Panics
    /// The pack has none.
    pub fn script_mut(&mut self) -> &mut devops::Script {
        self.scene.script.as_mut().expect("a pack with a script")
    }

    /// Returns whether the script of the pack has ended.
    pub fn is_complete(&self) -> bool {
        self.scene.script.as_ref().is_none_or(devops::Script::is_complete)
    }

    /// Returns what the table shows of the servers.
    pub fn surroundings(&self) -> &Surroundings {
        let script = self.scene.script.as_ref();
        script.map_or(&self.nothing, devops::Script::surroundings)
    }

    /// Adds what the script has measured to the report of `-o json`.
    pub fn extend_report(&self, report: &mut Value) {
        if let Some(script) = &self.scene.script {
            script.extend_report(report);
        }
    }

    /// Fetches statistics of the applied objects and of all others that the host reconciles.
    pub fn objects(&self) -> Result<Vec<ObjectFacts>> {
        let seen = serde_json::from_value(get_json(&self.agent, &format!("{}/objects", self.admin))?)?;
        Ok(merge_stats(&self.scene.expected, seen))
    }

    /// Fetches statistics of the plugins.
    pub fn plugins(&self) -> Result<Vec<PluginStats>> {
        Ok(serde_json::from_value(get_json(
            &self.agent,
            &format!("{}/plugins", self.admin),
        )?)?)
    }

    /// Fails when one of the processes has exited.
    pub fn check_processes(&mut self) -> Result<()> {
        self.apiserver.check_running()?;
        self.host
            .iter_mut()
            .chain(&mut self.scene.servers)
            .try_for_each(Child::check_running)
    }

    /// Returns the folder with kubeconfig, plugins and logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the binary of the host.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the URL of the host's admin server.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// Returns the plugin directory of the host.
    pub fn plugin_folder(&self) -> PathBuf {
        self.folder.join("plugins")
    }

    /// Returns the resident memory of the host in bytes.
    pub fn host_rss(&self) -> Option<u64> {
        parse_rss(&fs::read_to_string(format!("/proc/{}/status", self.host.as_ref()?.pid())).ok()?)
    }
}

/// Starts the host and returns the address of its admin endpoint.
fn start_host(program: &Path, folder: &Path, grants: &Path) -> Result<(Child, String)> {
    let ready = folder.join("ready.json");
    // Left behind by an earlier host. It usually does not exist.
    let _ = fs::remove_file(&ready);
    let mut command = Command::new(program);
    // No colors, because the log is a file.
    command.env("NO_COLOR", "1").arg("run");
    command.arg("--kubeconfig").arg(folder.join(KUBECONFIG));
    command.arg("--plugin-dir").arg(folder.join("plugins"));
    command.arg("--grants").arg(grants);
    // The servers listen on loopback.
    command.args(["--allow-network", "127.0.0.1"]);
    command
        .arg("--cache-dir")
        .arg(paths::create_target_subdir("compiled")?);
    command.args(["--admin-bind-address", "127.0.0.1:0", "--ready-file"]);
    command.arg(&ready);
    let mut host = Child::spawn_logged("ostler", command, &folder.join("ostler.log"))?;
    let facts = host.wait_until("admin address", START_TIMEOUT, || {
        serde_json::from_slice::<Value>(&fs::read(&ready).ok()?).ok()
    })?;
    let admin = facts["admin"]
        .as_str()
        .context("the ready file has no admin address")?;
    Ok((host, admin.to_owned()))
}

/// Copies components into the plugin directory.
pub fn install_components(plugins: &Path, built: &[Component]) -> Result<()> {
    for component in built {
        let bytes =
            fs::read(&component.path).with_context(|| format!("reading {}", component.path.display()))?;
        paths::replace_file(&plugins.join(format!("{}.wasm", component.name)), &bytes)?;
    }
    Ok(())
}

/// Starts a server, and reads the first line of its stdout: its URL, or a description.
pub fn start_server(name: &str, mut command: Command, folder: &Path) -> Result<(Child, String)> {
    let output = folder.join(format!("{name}.out"));
    let log = folder.join(format!("{name}.log"));
    command.stdout(File::create(&output)?);
    let mut child = Child::spawn_logging_stderr(name, command, &log)?;
    let url = child.wait_until("URL", START_TIMEOUT, || {
        let text = fs::read_to_string(&output).ok()?;
        Some(text.split_once('\n')?.0.trim().to_owned())
    })?;
    Ok((child, url))
}

/// Applies the CRDs of the host and of the packs.
fn apply_crds(cluster: &DemoClient) -> Result<()> {
    let mut crds: Vec<_> = fs::read_dir(paths::workspace_root().join("crds"))?
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    // The folder with those of the examples.
    crds.retain(|path| path.is_file());
    crds.sort();
    for path in crds {
        apply_all(cluster, &read_manifests(&path, &BTreeMap::new())?)?;
    }
    Ok(())
}

/// Applies objects, each as soon as the API server serves its kind: a moment after its CRD was applied.
pub fn apply_all(cluster: &DemoClient, objects: &[Value]) -> Result<()> {
    for object in objects {
        let began = Instant::now();
        while !cluster.apply(object)? {
            if began.elapsed() > START_TIMEOUT {
                bail!(
                    "the API server does not serve {} {}",
                    object["apiVersion"],
                    object["kind"]
                );
            }
            if crate::process::wait_for_interrupt(Duration::from_millis(20)) {
                bail!("interrupted");
            }
        }
    }
    Ok(())
}

/// Parses the resident memory of /proc/PID/status, in bytes.
fn parse_rss(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kb| kb * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rss_is_in_bytes() {
        assert_eq!(
            parse_rss("Name:\tostler\nVmRSS:\t   20480 kB\nThreads:\t4\n"),
            Some(20480 * 1024)
        );
        assert_eq!(parse_rss("Name:\tzombie\n"), None);
        assert!(
            parse_rss(&fs::read_to_string("/proc/self/status").unwrap()).is_some_and(|bytes| bytes > 100_000)
        );
    }
}
