//! The demo's world: API server, Concourse, host, each a process of its own.

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
    facts::{Key, Object, Plugin, merge},
    kubernetes::{Cluster, agent, get, manifests},
};
use crate::{components::Component, paths, process::Child, progress::Step};

/// What is applied, of deploy/examples.
const EXAMPLES: [&str; 3] = [
    "concourse.yaml",
    "concourse-operations.yaml",
    "concourse-build.yaml",
];
const USER: &str = "test";
const PASSWORD: &str = "demo-password";
/// How long a process may take to come up, and the server to take in a CRD.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything that runs.
pub struct Stage {
    // In this order they end: the host first.
    host: Child,
    apiserver: Child,
    simulator: Child,
    folder: PathBuf,
    admin: String,
    agent: Agent,
    wanted: Vec<Key>,
    // Released last: one demo at a time in a folder.
    _lock: File,
}

impl Stage {
    /// Starts everything and applies the example.
    pub fn set(binaries: &BTreeMap<String, PathBuf>, built: &[Component]) -> Result<Self> {
        let step = Step::new("Setting the stage");
        let folder = paths::target("demo")?;
        let lock = File::create(folder.join("lock"))?;
        if lock.try_lock().is_err() {
            bail!("another demo runs in {}", folder.display());
        }
        let plugins = folder.join("plugins");
        for left in [&plugins, &folder.join("ready.json")] {
            // What an earlier demo left; usually nothing.
            let _ = fs::remove_dir_all(left).or_else(|_| fs::remove_file(left));
        }
        fs::create_dir_all(&plugins)?;
        install(&plugins, built)?;
        let program = |name: &str| {
            binaries
                .get(name)
                .map(Command::new)
                .with_context(|| format!("no binary {name}"))
        };

        step.at("API server");
        let kubeconfig = folder.join("kubeconfig");
        let mut command = program("ostler-apiserver")?;
        command.arg("--kubeconfig").arg(&kubeconfig);
        let (apiserver, url) = serve("ostler-apiserver", command, &folder)?;
        step.at("Concourse simulator");
        let mut command = program("concourse-simulator")?;
        command.args(["--user", &format!("{USER}:{PASSWORD}")]);
        let (simulator, concourse) = serve("concourse-simulator", command, &folder)?;
        // The one the example names.
        let worker = r#"{"name": "worker-1", "state": "running"}"#;
        agent()
            .post(format!("{concourse}/_sim/worker"))
            .content_type("application/json")
            .send(worker)
            .context("a worker for the simulator")?;

        step.at("applying");
        let wanted = apply(&Cluster::new(&url), &concourse)?;

        step.at("host");
        let ready = folder.join("ready.json");
        let mut command = program("ostler")?;
        // Its log is a file.
        command.env("NO_COLOR", "1");
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--plugin-dir")
            .arg(&plugins);
        command
            .arg("--grants")
            .arg(paths::root().join("deploy/grants.yaml"));
        // The simulator runs here.
        command.args(["--allow-network", "127.0.0.1"]);
        command.arg("--cache-dir").arg(paths::target("compiled")?);
        command
            .args(["--admin-bind-address", "127.0.0.1:0", "--ready-file"])
            .arg(&ready);
        let mut host = Child::spawn_logged("ostler", command, &folder.join("ostler.log"))?;
        let facts = host.until("admin address", PATIENCE, || {
            serde_json::from_slice::<Value>(&fs::read(&ready).ok()?).ok()
        })?;
        let admin = facts["admin"]
            .as_str()
            .context("the ready file has no admin address")?
            .to_owned();
        step.done(format!("in {}", folder.display()));
        Ok(Self {
            host,
            apiserver,
            simulator,
            folder,
            admin,
            agent: agent(),
            wanted,
            _lock: lock,
        })
    }

    /// The objects that were applied and whatever else the host reconciles.
    pub fn objects(&self) -> Result<Vec<Object>> {
        let seen = serde_json::from_value(get(&self.agent, &format!("{}/objects", self.admin))?)?;
        Ok(merge(&self.wanted, seen))
    }

    /// The plugins.
    pub fn plugins(&self) -> Result<Vec<Plugin>> {
        Ok(serde_json::from_value(get(
            &self.agent,
            &format!("{}/plugins", self.admin),
        )?)?)
    }

    /// An error when something has ended.
    pub fn check(&mut self) -> Result<()> {
        [&mut self.host, &mut self.apiserver, &mut self.simulator]
            .into_iter()
            .try_for_each(Child::still_runs)
    }

    /// The folder with kubeconfig, plugins and logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The directory the host takes its plugins from.
    pub fn plugin_folder(&self) -> PathBuf {
        self.folder.join("plugins")
    }

    /// How much memory the host has now.
    pub fn host_rss(&self) -> Option<u64> {
        rss(&fs::read_to_string(format!("/proc/{}/status", self.host.pid())).ok()?)
    }
}

/// Puts components where the host looks for them.
pub fn install(plugins: &Path, built: &[Component]) -> Result<()> {
    for component in built {
        let bytes =
            fs::read(&component.path).with_context(|| format!("reading {}", component.path.display()))?;
        paths::replace(&plugins.join(format!("{}.wasm", component.name)), &bytes)?;
    }
    Ok(())
}

/// Starts a server that says its URL in its first line on stdout.
fn serve(name: &str, mut command: Command, folder: &Path) -> Result<(Child, String)> {
    let said = folder.join(format!("{name}.url"));
    let log = folder.join(format!("{name}.log"));
    command.stdout(File::create(&said)?);
    let mut child = Child::spawn_logging_stderr(name, command, &log)?;
    let url = child.until("URL", PATIENCE, || {
        let text = fs::read_to_string(&said).ok()?;
        Some(text.split_once('\n')?.0.trim().to_owned())
    })?;
    Ok((child, url))
}

/// Applies the CRDs and the examples; gives what a plugin must make Ready.
fn apply(cluster: &Cluster, concourse: &str) -> Result<Vec<Key>> {
    let mut crds: Vec<_> = fs::read_dir(paths::root().join("crds"))?
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    crds.sort();
    for path in crds {
        for crd in manifests(&path, &BTreeMap::new())? {
            if !cluster.apply(&crd)? {
                bail!("the API server has no CRDs");
            }
        }
    }
    let variables = BTreeMap::from([
        ("CONCOURSE_URL", concourse),
        ("CONCOURSE_USER", USER),
        ("CONCOURSE_PASSWORD", PASSWORD),
    ]);
    let mut wanted = Vec::new();
    let mut objects = Vec::new();
    // In no order: what comes too early waits for what it needs.
    for example in EXAMPLES {
        objects.extend(manifests(
            &paths::root().join("deploy/examples").join(example),
            &variables,
        )?);
    }
    for object in objects {
        let began = std::time::Instant::now();
        // A new kind is served a moment after its CRD was applied.
        while !cluster.apply(&object)? {
            if began.elapsed() > PATIENCE {
                bail!(
                    "the API server does not serve {} {}",
                    object["apiVersion"],
                    object["kind"]
                );
            }
            if crate::process::interrupted_within(Duration::from_millis(20)) {
                bail!("interrupted");
            }
        }
        if object["apiVersion"].as_str().is_some_and(|v| v.contains('.')) {
            wanted.push(Key::of(&object));
        }
    }
    Ok(wanted)
}

/// Bytes resident, of a /proc/PID/status.
fn rss(status: &str) -> Option<u64> {
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
            rss("Name:\tostler\nVmRSS:\t   20480 kB\nThreads:\t4\n"),
            Some(20480 * 1024)
        );
        assert_eq!(rss("Name:\tzombie\n"), None);
        assert!(rss(&fs::read_to_string("/proc/self/status").unwrap()).is_some_and(|bytes| bytes > 100_000));
    }
}
