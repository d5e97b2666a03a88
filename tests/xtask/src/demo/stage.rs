//! The processes of the demo: API server, Concourse simulator and host.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use ureq::Agent;

use super::{
    facts::{ObjectKey, ObjectStats, PluginStats, merge_stats},
    kubernetes::{ApiClient, get_json, http_agent, read_manifests},
};
use crate::{components::Component, paths, process::Child, progress::Step};

/// Files of deploy/examples that the demo applies.
const EXAMPLE_FILES: [&str; 3] = [
    "concourse.yaml",
    "concourse-operations.yaml",
    "concourse-build.yaml",
];
const DEMO_USER: &str = "test";
const DEMO_PASSWORD: &str = "demo-password";
/// Timeout for the start of a process, and until the server serves a new CRD.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The running processes and their shared folder.
pub struct Stage {
    // Fields are dropped in this order: the host ends first.
    host: Child,
    apiserver: Child,
    simulator: Child,
    folder: PathBuf,
    admin: String,
    agent: Agent,
    expected: Vec<ObjectKey>,
    // Released last. The lock allows one demo at a time in this folder.
    _lock: File,
}

impl Stage {
    /// Starts everything and applies the example.
    pub fn start(binaries: &BTreeMap<String, PathBuf>, built: &[Component]) -> Result<Self> {
        let step = Step::new("Starting API server, Concourse simulator and host");
        let folder = paths::create_target_subdir("demo")?;
        let lock = File::create(folder.join("lock"))?;
        if lock.try_lock().is_err() {
            bail!("another demo is running in {}: stop it first", folder.display());
        }
        let plugins = folder.join("plugins");
        for left in [&plugins, &folder.join("ready.json")] {
            // Left behind by an earlier demo. It usually does not exist.
            let _ = fs::remove_dir_all(left).or_else(|_| fs::remove_file(left));
        }
        fs::create_dir_all(&plugins)?;
        install_components(&plugins, built)?;
        let program = |name: &str| {
            binaries
                .get(name)
                .map(Command::new)
                .with_context(|| format!("no binary {name}"))
        };

        step.set_status("API server");
        let kubeconfig = folder.join("kubeconfig");
        let mut command = program("ostler-apiserver")?;
        command.arg("--kubeconfig").arg(&kubeconfig);
        let (apiserver, url) = start_server("ostler-apiserver", command, &folder)?;
        step.set_status("Concourse simulator");
        let mut command = program("concourse-simulator")?;
        command.args(["--user", &format!("{DEMO_USER}:{DEMO_PASSWORD}")]);
        let (simulator, concourse) = start_server("concourse-simulator", command, &folder)?;
        // The example manages a worker of this name.
        let worker = r#"{"name": "worker-1", "state": "running"}"#;
        http_agent()
            .post(format!("{concourse}/_sim/worker"))
            .content_type("application/json")
            .send(worker)
            .context("adding a worker to the simulator")?;

        step.set_status("applying");
        let expected = apply_examples(&ApiClient::new(&url), &concourse)?;

        step.set_status("host");
        let ready = folder.join("ready.json");
        let mut command = program("ostler")?;
        // No colors, because the log is a file.
        command.env("NO_COLOR", "1");
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--plugin-dir")
            .arg(&plugins);
        command
            .arg("--grants")
            .arg(paths::workspace_root().join("tests/grants.yaml"));
        // The Concourse simulator listens on loopback.
        command.args(["--allow-network", "127.0.0.1"]);
        command
            .arg("--cache-dir")
            .arg(paths::create_target_subdir("compiled")?);
        command
            .args(["--admin-bind-address", "127.0.0.1:0", "--ready-file"])
            .arg(&ready);
        let mut host = Child::spawn_logged("ostler", command, &folder.join("ostler.log"))?;
        let facts = host.wait_until("admin address", START_TIMEOUT, || {
            serde_json::from_slice::<Value>(&fs::read(&ready).ok()?).ok()
        })?;
        let admin = facts["admin"]
            .as_str()
            .context("the ready file has no admin address")?
            .to_owned();
        step.finish(format!("in {}", folder.display()));
        Ok(Self {
            host,
            apiserver,
            simulator,
            folder,
            admin,
            agent: http_agent(),
            expected,
            _lock: lock,
        })
    }

    /// Fetches statistics of the applied objects and of all others that the host reconciles.
    pub fn objects(&self) -> Result<Vec<ObjectStats>> {
        let seen = serde_json::from_value(get_json(&self.agent, &format!("{}/objects", self.admin))?)?;
        Ok(merge_stats(&self.expected, seen))
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
        [&mut self.host, &mut self.apiserver, &mut self.simulator]
            .into_iter()
            .try_for_each(Child::check_running)
    }

    /// Returns the folder with kubeconfig, plugins and logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the plugin directory of the host.
    pub fn plugin_folder(&self) -> PathBuf {
        self.folder.join("plugins")
    }

    /// Returns the resident memory of the host in bytes.
    pub fn host_rss(&self) -> Option<u64> {
        parse_rss(&fs::read_to_string(format!("/proc/{}/status", self.host.pid())).ok()?)
    }
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

/// Starts a server and reads its URL from the first line of its stdout.
fn start_server(name: &str, mut command: Command, folder: &Path) -> Result<(Child, String)> {
    let url_file = folder.join(format!("{name}.url"));
    let log = folder.join(format!("{name}.log"));
    command.stdout(File::create(&url_file)?);
    let mut child = Child::spawn_logging_stderr(name, command, &log)?;
    let url = child.wait_until("URL", START_TIMEOUT, || {
        let text = fs::read_to_string(&url_file).ok()?;
        Some(text.split_once('\n')?.0.trim().to_owned())
    })?;
    Ok((child, url))
}

/// Applies the CRDs and the examples. Returns the objects that plugins must make Ready.
fn apply_examples(cluster: &ApiClient, concourse: &str) -> Result<Vec<ObjectKey>> {
    let mut crds: Vec<_> = fs::read_dir(paths::workspace_root().join("crds"))?
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    crds.sort();
    for path in crds {
        for crd in read_manifests(&path, &BTreeMap::new())? {
            if !cluster.apply(&crd)? {
                bail!("the API server does not serve CustomResourceDefinitions");
            }
        }
    }
    let variables = BTreeMap::from([
        ("CONCOURSE_URL", concourse),
        ("CONCOURSE_USER", DEMO_USER),
        ("CONCOURSE_PASSWORD", DEMO_PASSWORD),
    ]);
    let mut expected = Vec::new();
    let mut objects = Vec::new();
    // In any order: an object waits until its dependencies are Ready.
    for example in EXAMPLE_FILES {
        objects.extend(read_manifests(
            &paths::workspace_root().join("deploy/examples").join(example),
            &variables,
        )?);
    }
    for object in objects {
        let began = std::time::Instant::now();
        // A new kind is served a moment after its CRD was applied.
        while !cluster.apply(&object)? {
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
        if object["apiVersion"].as_str().is_some_and(|v| v.contains('.')) {
            expected.push(ObjectKey::from_manifest(&object));
        }
    }
    Ok(expected)
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
