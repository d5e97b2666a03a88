//! The real control plane: kube-apiserver, etcd and the controllers that tests need, built once from the Go module in
//! tests/control-plane.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpListener,
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{
    paths,
    process::{Child, check_interrupt, read_tail},
    progress::Step,
};

/// Timeout until the API server is ready.
const START_TIMEOUT: &str = "120s";

/// Builds the control plane, unless there is a binary of the same sources. Returns the binary.
pub fn build_binary() -> Result<PathBuf> {
    let source = paths::workspace_root().join("tests/control-plane");
    let mut key = Sha256::new();
    for file in ["go.mod", "go.sum", "main.go"] {
        key.update(
            fs::read(source.join(file)).with_context(|| format!("reading {file} of {}", source.display()))?,
        );
    }
    let key = format!("{:x}", key.finalize());
    let folder = paths::create_target_subdir("control-plane")?.join(&key[..16]);
    let binary = folder.join("control-plane");
    if binary.is_file() {
        return Ok(binary);
    }
    fs::create_dir_all(&folder)?;
    let lock = File::create(folder.join("lock"))?;
    let step = Step::new("Building the real control plane (8 minutes the first time)");
    lock.lock()?;
    if !binary.is_file() {
        let version = parse_kubernetes_version(&fs::read_to_string(source.join("go.mod"))?)?;
        let partial = folder.join("partial");
        run_go_build(&source, &version, &partial, &folder.join("build.log"))?;
        fs::rename(&partial, &binary)?;
    }
    step.finish("");
    Ok(binary)
}

fn run_go_build(source: &Path, version: &str, output: &Path, log: &Path) -> Result<()> {
    // It runs beside the Rust build, which it must not slow down.
    let mut command = Command::new("nice");
    command
        .args([
            "-n",
            "10",
            "go",
            "build",
            "-trimpath",
            "-ldflags",
            &linker_flags(version)?,
            "-o",
        ])
        .arg(output)
        .arg(".")
        .current_dir(source)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly");
    let mut child = Child::spawn_logged("go build", command, log)?;
    let status = child.wait()?;
    check_interrupt()?;
    match status.code() {
        Some(0) => Ok(()),
        Some(127) => bail!(
            "the real control plane needs Go (https://go.dev/dl): {}",
            read_tail(log)
        ),
        _ => bail!(
            "go build: {status}; the end of {}:\n{}",
            log.display(),
            read_tail(log)
        ),
    }
}

/// Finds the release of Kubernetes that a go.mod requires, such as `v1.36.3`.
fn parse_kubernetes_version(go_mod: &str) -> Result<String> {
    let required = go_mod
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "));
    Ok(required
        .context("go.mod requires no k8s.io/kubernetes")?
        .trim()
        .to_owned())
}

/// Returns the linker flags that set the version of Kubernetes. A binary built from Go modules has none, and a server
/// without a version refuses to start.
fn linker_flags(version: &str) -> Result<String> {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = numbers.next().zip(numbers.next()).context("vMAJOR.MINOR.PATCH")?;
    let mut flags = String::from("-s -w");
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [
            ("gitVersion", version),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
            ("buildDate", "1970-01-01T00:00:00Z"),
        ] {
            flags.push_str(&format!(" -X {package}.{name}={value}"));
        }
    }
    Ok(flags)
}

/// A running control plane, terminated and its data removed when dropped.
pub struct ControlPlane {
    // Fields are dropped in this order: clients before servers, the data last.
    controllers: Child,
    apiserver: Child,
    etcd: Child,
    folder: TempDir,
}

impl ControlPlane {
    /// Starts a control plane on free ports and waits until it is ready.
    pub fn start(binary: &Path) -> Result<Self> {
        let step = Step::new("Starting the real control plane");
        let folder = tempfile::Builder::new().prefix("control-plane-").tempdir()?;
        let dir = folder.path();
        let at = |name: &str| dir.join(name).display().to_string();
        let part = |name: &str, arguments: &[String]| {
            let mut command = Command::new(binary);
            // The usual name of the program in `ps`.
            command.arg0(name).arg(name).args(arguments).current_dir(dir);
            Child::spawn_logged(name, command, &dir.join(format!("{name}.log")))
        };

        let [client, peer, api, metrics] = free_ports()?;
        let (client, peer) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        step.set_status("etcd");
        let etcd = part(
            "etcd",
            &[
                format!("--data-dir={}", at("etcd")),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
                // This data is not read after a crash.
                "--unsafe-no-fsync".into(),
                "--log-level=warn".into(),
            ],
        )?;

        let (key, public) = (at("service-account.key"), at("service-account.pub"));
        run_subcommand(binary, &["keygen", &key, &public])?;
        let token = random_token()?;
        write_secret_file(
            &dir.join("tokens.csv"),
            &format!("{token},admin,admin,\"system:masters\"\n"),
        )?;
        step.set_status("kube-apiserver");
        let mut apiserver = part(
            "kube-apiserver",
            &[
                format!("--etcd-servers={client}"),
                format!("--secure-port={api}"),
                "--bind-address=127.0.0.1".into(),
                format!("--cert-dir={}", at("certificates")),
                "--service-account-issuer=https://kubernetes.default.svc".into(),
                format!("--service-account-key-file={public}"),
                format!("--service-account-signing-key-file={key}"),
                format!("--token-auth-file={}", at("tokens.csv")),
                "--authorization-mode=RBAC".into(),
                "--service-cluster-ip-range=10.0.0.0/24".into(),
                "--disable-admission-plugins=ServiceAccount".into(),
                "--enable-priority-and-fairness=false".into(),
            ],
        )?;
        // It writes a self-signed certificate before it listens.
        let certificate = dir.join("certificates/apiserver.crt");
        apiserver.wait_until("certificate", Duration::from_secs(60), || {
            certificate.is_file().then_some(())
        })?;
        let kubeconfig = dir.join("kubeconfig");
        let server = format!("https://127.0.0.1:{api}");
        write_secret_file(&kubeconfig, &format_kubeconfig(&server, &certificate, &token))?;
        let ready = run_subcommand(
            binary,
            &["ready", &kubeconfig.display().to_string(), START_TIMEOUT],
        );
        if let Err(e) = ready {
            apiserver.check_running()?;
            return Err(e).context(read_tail(&dir.join("kube-apiserver.log")));
        }

        step.set_status("kube-controller-manager");
        let controllers = part(
            "kube-controller-manager",
            &[
                format!("--kubeconfig={}", kubeconfig.display()),
                "--controllers=garbage-collector-controller,namespace-controller".into(),
                "--leader-elect=false".into(),
                format!("--secure-port={metrics}"),
                "--bind-address=127.0.0.1".into(),
                format!("--cert-dir={}", at("certificates-of-controllers")),
            ],
        )?;
        step.finish(format!("at {server}"));
        Ok(Self {
            controllers,
            apiserver,
            etcd,
            folder,
        })
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Waits for Ctrl-C. Fails when a part exits before.
    pub fn wait_for_interrupt(&mut self) -> Result<()> {
        while !crate::process::wait_for_interrupt(Duration::from_secs(1)) {
            for part in [&mut self.etcd, &mut self.apiserver, &mut self.controllers] {
                part.check_running()?;
            }
        }
        Ok(())
    }
}

/// Runs one of the binary's short-lived subcommands.
fn run_subcommand(binary: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(binary);
    command
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = Child::spawn(arguments[0], command)?;
    let mut stderr_text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut stderr_text)?;
    }
    let status = child.wait()?;
    check_interrupt()?;
    if !status.success() {
        bail!("{}", stderr_text.trim());
    }
    Ok(())
}

/// Returns different ports that were free a moment ago.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

fn write_secret_file(path: &Path, text: &str) -> Result<()> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("writing {}", path.display()))
}

/// Formats a kubeconfig as JSON, which is valid YAML.
fn format_kubeconfig(server: &str, certificate: &Path, token: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": {"server": server, "certificate-authority": certificate}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
        "current-context": "real",
    });
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_from_go_mod() {
        let go_mod = "require (\n\tk8s.io/component-base v0.36.3\n\tk8s.io/kubernetes v1.36.3\n)\n";
        assert_eq!(parse_kubernetes_version(go_mod).unwrap(), "v1.36.3");
        assert!(parse_kubernetes_version("module x\n").is_err());
        let flags = linker_flags("v1.36.3").unwrap();
        assert!(
            flags.contains("-X k8s.io/component-base/version.gitVersion=v1.36.3"),
            "{flags}"
        );
        assert!(
            flags.contains("-X k8s.io/client-go/pkg/version.gitMinor=36"),
            "{flags}"
        );
    }

    #[test]
    fn free_ports_are_distinct() {
        let mut ports = free_ports::<8>().unwrap().to_vec();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }
}
