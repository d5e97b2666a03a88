//! A real Argo CD on loopback: its application controller, its repo server, a Redis in memory, and its API server where a test asks
//! for it. `cargo xtask test argocd` builds them from Argo CD's Go module; without them the scenarios have the simulator.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use ostler::testing::key::Gvk;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::{Lab, rabbitmq::process::BoundProcess, wait_for};

/// Number of lines of each log that a failed test prints.
const LOG_LINES: usize = 100;
/// Account of Argo CD that the tests of its API use.
const ACCOUNT: &str = "ostler";
/// Index of the application controller among the processes.
const CONTROLLER: usize = 2;

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
        let [redis, repo, repo_metrics, metrics] = free_addresses();
        let mut server = ArgoCdServer {
            processes: Vec::new(),
            folder: tempfile::tempdir().expect("a temporary directory"),
            redis,
            repo,
        };
        let folder = server.folder.path().to_owned();
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

    /// Starts the API server of a running Argo CD, with an account that has the rights of a policy, in the lines of
    /// `policy.csv` for the role `role:ostler`.
    pub async fn start_api(&self, lab: &Lab, server: &mut ArgoCdServer, policy: &str) -> ArgoCdApi {
        let policy = format!("{policy}\ng, {ACCOUNT}, role:ostler\n");
        for (name, data) in [
            ("argocd-cm", json!({ (format!("accounts.{ACCOUNT}")): "apiKey" })),
            ("argocd-rbac-cm", json!({ "policy.csv": policy })),
        ] {
            let patch = json!({ "data": data });
            lab.patch(&Gvk::new("", "v1", "ConfigMap"), name, patch).await;
        }
        let [api, metrics] = free_addresses();
        let arguments = [
            "--namespace",
            &lab.namespace,
            "--insecure",
            "--address=127.0.0.1",
            &format!("--port={}", api.port()),
            "--metrics-address=127.0.0.1",
            &format!("--metrics-port={}", metrics.port()),
            "--repo-server",
            &server.repo.to_string(),
            "--repo-server-plaintext",
            "--redis",
            &server.redis.to_string(),
        ];
        let folder = server.folder.path().to_owned();
        let process = self.spawn(lab, &folder, "argocd-server", &arguments);
        server.processes.push(process);
        server.wait_listening(api).await;
        let origin = format!("http://{api}");
        let admin_token = sign_in(lab, &origin).await;
        let path = format!("{origin}/api/v1/account/{ACCOUNT}/token");
        let token = request_token(&path, Some(&admin_token), &json!({})).await;
        ArgoCdApi {
            origin,
            token,
            admin_token,
        }
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

/// Signs in as the administrator, whose password the API server writes when it starts. Returns a token.
async fn sign_in(lab: &Lab, origin: &str) -> String {
    let secret = Gvk::new("", "v1", "Secret");
    let find_password = async || {
        let found = lab.get(&secret, "argocd-initial-admin-secret").await?;
        let password = BASE64_STANDARD.decode(found["data"]["password"].as_str()?).ok()?;
        String::from_utf8(password).ok()
    };
    let password = wait_for(find_password, || "a password of the administrator".to_owned()).await;
    let body = json!({ "username": "admin", "password": password });
    request_token(&format!("{origin}/api/v1/session"), None, &body).await
}

/// Requests a token until the server gives one: it listens before it has read its accounts.
async fn request_token(url: &str, authorization: Option<&str>, body: &Value) -> String {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let attempt = async || {
        let mut request = http.post(url).header("content-type", "application/json");
        if let Some(token) = authorization {
            request = request.bearer_auth(token);
        }
        let answer = request.body(body.to_string()).send().await.ok()?;
        let answer: Value = serde_json::from_slice(&answer.bytes().await.ok()?).ok()?;
        answer["token"].as_str().map(str::to_owned)
    };
    wait_for(attempt, || format!("a token of {url}")).await
}

/// The API of a running Argo CD.
pub struct ArgoCdApi {
    /// Its `http://HOST:PORT`.
    pub origin: String,
    /// Token of the account with the rights of the policy.
    pub token: String,
    /// Token of the administrator.
    pub admin_token: String,
}

/// A running Argo CD. It ends with the test process.
pub struct ArgoCdServer {
    /// Dropped first, as they write to the folder.
    processes: Vec<BoundProcess>,
    folder: TempDir,
    redis: SocketAddr,
    repo: SocketAddr,
}

impl ArgoCdServer {
    /// Stops the application controller, which then takes no operation, or lets it go on.
    pub fn pause_controller(&self, paused: bool) {
        let signal = if paused { Signal::STOP } else { Signal::CONT };
        self.processes[CONTROLLER].send_signal(signal);
    }

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
