//! A real Argo CD on loopback: its application controller, its repo server, and a Redis in memory. `cargo xtask test argocd`
//! builds them from Argo CD's Go module; without them the scenarios have the simulator.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::{Lab, rabbitmq::process::BoundProcess, wait_for};

/// Interval of attempts to connect to a server that starts.
/// Number of lines of each log that a failed test prints.
const LOG_LINES: usize = 100;

/// The programs of a real Argo CD, with its CRDs and its configuration.
pub struct ArgoCdPrograms(PathBuf);

impl ArgoCdPrograms {
    /// Finds them in the folder `OSTLER_TEST_ARGOCD`; none if it is not set.
    pub fn find() -> Option<Self> {
        let folder = std::env::var_os("OSTLER_TEST_ARGOCD")?;
        Some(Self(folder.into()))
    }

    /// Reads a CRD, such as `application`.
    pub fn read_crd(&self, name: &str) -> String {
        read(&self.0.join(format!("crds/{name}-crd.yaml")))
    }

    /// Starts an Argo CD for the namespace of a test.
    pub async fn start(&self, lab: &Lab) -> ArgoCdServer {
        for entry in std::fs::read_dir(self.0.join("config")).expect("the configuration") {
            let text = read(&entry.expect("an entry").path());
            let mut object: Value = serde_saphyr::from_str(&text).expect("YAML");
            object["metadata"]["namespace"] = (*lab.namespace).into();
            lab.apply(object).await;
        }
        let mut server = ArgoCdServer {
            processes: Vec::new(),
            folder: tempfile::tempdir().expect("a temporary directory"),
        };
        let folder = server.folder.path().to_owned();
        let [redis, repo, repo_metrics, metrics] = free_addresses();
        let (redis_address, repo_address) = (redis.to_string(), repo.to_string());
        let start = |name: &str, arguments: &[&str]| self.spawn(lab, &folder, name, arguments);
        server.processes.push(start("argocd-redis", &[&redis_address]));
        server.wait_listening(redis).await;
        let arguments = [
            "--address=127.0.0.1",
            &format!("--port={}", repo.port()),
            "--metrics-address=127.0.0.1",
            &format!("--metrics-port={}", repo_metrics.port()),
            "--disable-tls",
            "--redis",
            &redis_address,
        ];
        server.processes.push(start("argocd-repo-server", &arguments));
        server.wait_listening(repo).await;
        let arguments = [
            "--namespace",
            &lab.namespace,
            &format!("--metrics-port={}", metrics.port()),
            "--repo-server",
            &repo_address,
            "--repo-server-plaintext",
            "--redis",
            &redis_address,
        ];
        server
            .processes
            .push(start("argocd-application-controller", &arguments));
        server.wait_listening(metrics).await;
        server
    }

    fn spawn(&self, lab: &Lab, folder: &Path, name: &str, arguments: &[&str]) -> BoundProcess {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // The repo server runs git, and argocd-git-ask-pass.
        let path = std::env::join_paths([self.0.clone()].into_iter().chain(std::env::split_paths(&path)));
        let mut command = Command::new(self.0.join(name));
        command
            .args(arguments)
            .current_dir(folder)
            .env("PATH", path.expect("a search path"))
            .env("HOME", folder)
            .env("TMPDIR", folder)
            .env("KUBECONFIG", &lab.kubeconfig)
            // The cluster `https://kubernetes.default.svc` is that of the kubeconfig.
            .env("ARGOCD_FAKE_IN_CLUSTER", "true")
            .env("ARGOCD_GPG_ENABLED", "false")
            .env("ARGOCD_ASK_PASS_SOCK", folder.join("ask-pass.sock"))
            .env("GIT_CONFIG_NOSYSTEM", "1");
        BoundProcess::spawn(command, &folder.join(format!("{name}.log")))
    }
}

/// A running Argo CD without an API server. It ends with the test process.
pub struct ArgoCdServer {
    /// Dropped first, as they write to the folder.
    processes: Vec<BoundProcess>,
    folder: TempDir,
}

impl ArgoCdServer {
    /// Waits until the process that was started last listens.
    async fn wait_listening(&mut self, address: SocketAddr) {
        let process = self.processes.last_mut().expect("a process");
        let attempt = || {
            assert!(
                process.is_running(),
                "Argo CD does not start: run the test by `cargo xtask test argocd`"
            );
            async move { TcpStream::connect(address).await.ok() }
        };
        wait_for(attempt, || format!("a listener at {address}")).await;
    }
}

impl Drop for ArgoCdServer {
    fn drop(&mut self) {
        self.processes.clear();
        if !std::thread::panicking() {
            return;
        }
        for entry in std::fs::read_dir(self.folder.path())
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let log = std::fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
                println!("--- {}\n{}", path.display(), last.join("\n"));
            }
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Different addresses of loopback whose ports are free.
fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    let held: [TcpListener; N] =
        std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    held.map(|listener| listener.local_addr().expect("it is bound"))
}
