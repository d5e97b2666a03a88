//! The real control plane, built once from the Go module in tests/control-plane: kube-apiserver, etcd, kube-controller-manager and the
//! parts of a node in one binary.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    go::GoProgram,
    namespaces::NamespacesHandle,
    paths,
    process::{Child, check_interrupt, read_tail},
    progress::BuildStep,
};

/// Timeout until the API server is ready.
const START_TIMEOUT: &str = "120s";

/// Builds the control plane and the parts of a node, unless there is a binary of the same sources. Returns the binary.
pub fn build_binary() -> Result<PathBuf> {
    let mut program = GoProgram {
        name: "control-plane",
        title: "Building the real control plane (8 minutes the first time)",
        linker_flags: "",
        package: ".",
    };
    let flags = release_flags()?;
    program.linker_flags = &flags;
    program.build(|_| Ok(()))
}

/// Returns the linker flags of programs of the release of Kubernetes that the control plane is of.
pub fn release_flags() -> Result<String> {
    let go_mod = paths::workspace_root().join("tests/control-plane/go.mod");
    linker_flags(&parse_kubernetes_version(&fs::read_to_string(go_mod)?)?)
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

/// Place and flags of the servers.
pub struct ControlPlaneSettings {
    /// Folder in which the data has one of its own.
    pub parent: PathBuf,
    /// Address that the API servers listen on.
    pub address: Ipv4Addr,
    /// Namespaces that the servers run in; without them, those of this process.
    pub namespaces: Option<NamespacesHandle>,
    /// Users beside the administrator.
    pub users: Vec<TokenUser>,
    /// Flags of kube-apiserver.
    pub apiserver_flags: Vec<String>,
    /// Flags of kube-controller-manager.
    pub controller_flags: Vec<String>,
}

impl ControlPlaneSettings {
    /// The control plane of tests without a node: an API server on loopback, and the controllers that scenarios wait for. Service
    /// accounts have no tokens of their own, since no pod runs.
    fn without_node() -> Self {
        let flags = |flags: &[&str]| flags.iter().map(|&flag| flag.to_owned()).collect();
        Self {
            parent: std::env::temp_dir(),
            address: Ipv4Addr::LOCALHOST,
            namespaces: None,
            users: Vec::new(),
            apiserver_flags: flags(&[
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--disable-admission-plugins=ServiceAccount",
            ]),
            controller_flags: flags(&[
                "--controllers=garbage-collector-controller,namespace-controller,clusterrole-aggregation-controller",
            ]),
        }
    }
}

/// A user with a static token.
pub struct TokenUser {
    /// Name of the user, and of its kubeconfig.
    pub name: String,
    /// Group of the user.
    pub group: String,
    token: String,
}

impl TokenUser {
    /// A user with a random token.
    pub fn new(name: &str, group: &str) -> Result<Self> {
        Ok(Self {
            name: name.into(),
            group: group.into(),
            token: random_token()?,
        })
    }

    /// Returns its line in the token file of kube-apiserver.
    fn csv_line(&self) -> String {
        let Self { name, group, token } = self;
        format!("{token},{name},{name},\"{group}\"\n")
    }
}

/// A running control plane, terminated and its data removed when dropped.
pub struct ControlPlane {
    // Fields are dropped in this order: clients before servers, the data last.
    second: Option<Cluster>,
    first: Cluster,
    parts: SharedParts,
    etcd: Child,
    folder: TempDir,
}

/// The processes of one cluster.
struct Cluster {
    // In the order in which they are dropped.
    controllers: Child,
    apiserver: Child,
}

/// What the clusters of a control plane have in common.
struct SharedParts {
    binary: PathBuf,
    dir: PathBuf,
    etcd_url: String,
    admin: TokenUser,
    settings: ControlPlaneSettings,
}

impl SharedParts {
    /// Starts a program of the binary, which logs to `LOG.log`.
    fn spawn_program(&self, program: &str, log: &str, arguments: &[String]) -> Result<Child> {
        let mut command = match &self.settings.namespaces {
            Some(namespaces) => namespaces.command(&self.binary),
            None => {
                let mut command = Command::new(&self.binary);
                // The usual name of the program in `ps`.
                command.arg0(program).current_dir(&self.dir);
                command
            }
        };
        command.arg(program).args(arguments);
        Child::spawn_logged(program, command, &self.log(log))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Starts a cluster with its data below a prefix of etcd, and writes a kubeconfig of its administrator.
    fn start_cluster(&self, etcd_prefix: &str, kubeconfig: &str, step: &BuildStep) -> Result<Cluster> {
        step.set_status("kube-apiserver");
        let apiserver = self.start_api_server(etcd_prefix, kubeconfig)?;
        step.set_status("kube-controller-manager");
        Ok(Cluster {
            controllers: self.start_controllers(kubeconfig)?,
            apiserver,
        })
    }

    fn start_controllers(&self, kubeconfig: &str) -> Result<Child> {
        const PROGRAM: &str = "kube-controller-manager";
        let [port] = free_ports()?;
        let log = format!("{PROGRAM}-of-{kubeconfig}");
        let mut arguments = vec![
            format!("--kubeconfig={}", self.path(kubeconfig)),
            "--leader-elect=false".into(),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".into(),
            format!("--cert-dir={}", self.path(&format!("certificates-of-{log}"))),
            format!(
                "--service-account-private-key-file={}",
                self.path("service-account.key")
            ),
            format!("--root-ca-file={}", self.certificate(kubeconfig).display()),
        ];
        arguments.extend_from_slice(&self.settings.controller_flags);
        self.spawn_program(PROGRAM, &log, &arguments)
    }

    /// Returns the path of the self-signed certificate of the API server of a kubeconfig.
    fn certificate(&self, kubeconfig: &str) -> PathBuf {
        let folder = format!("certificates-of-{kubeconfig}");
        self.dir.join(folder).join("apiserver.crt")
    }

    /// Starts an API server, waits until it is ready, and writes the kubeconfig.
    fn start_api_server(&self, etcd_prefix: &str, kubeconfig: &str) -> Result<Child> {
        const PROGRAM: &str = "kube-apiserver";
        let [port] = free_ports()?;
        let certificate = self.certificate(kubeconfig);
        let log = format!("{PROGRAM}-of-{kubeconfig}");
        let mut arguments = vec![
            format!("--etcd-servers={}", self.etcd_url),
            format!("--etcd-prefix={etcd_prefix}"),
            format!("--secure-port={port}"),
            format!("--bind-address={}", self.settings.address),
            format!(
                "--cert-dir={}",
                self.path(&format!("certificates-of-{kubeconfig}"))
            ),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-key-file={}", self.path("service-account.pub")),
            format!(
                "--service-account-signing-key-file={}",
                self.path("service-account.key")
            ),
            format!("--token-auth-file={}", self.path("tokens.csv")),
        ];
        arguments.extend_from_slice(&self.settings.apiserver_flags);
        let mut child = self.spawn_program(PROGRAM, &log, &arguments)?;
        // It writes a self-signed certificate before it listens.
        child.wait_until("certificate", Duration::from_secs(60), || {
            certificate.is_file().then_some(())
        })?;
        let server = format!("https://{}:{port}", self.settings.address);
        write_secret_file(
            &self.dir.join(kubeconfig),
            &format_kubeconfig(&server, &certificate, &self.admin),
        )?;
        for user in &self.settings.users {
            let file = self.dir.join(format!("{}.kubeconfig", user.name));
            write_secret_file(&file, &format_kubeconfig(&server, &certificate, user))?;
        }
        let ready = run_subcommand(&self.binary, &["ready", &self.path(kubeconfig), START_TIMEOUT]);
        if let Err(e) = ready {
            child.check_running()?;
            return Err(e).context(read_tail(&self.log(&log)));
        }
        Ok(child)
    }
}

/// File names of the administrators' kubeconfigs.
const KUBECONFIG: &str = "kubeconfig";
const SECOND_KUBECONFIG: &str = "second.kubeconfig";

impl ControlPlane {
    /// Starts a control plane without nodes on free ports of the loopback interface, and waits until it is ready.
    pub fn start(binary: &Path) -> Result<Self> {
        Self::start_with(binary, ControlPlaneSettings::without_node())
    }

    /// Starts a control plane on free ports and waits until it is ready.
    pub fn start_with(binary: &Path, settings: ControlPlaneSettings) -> Result<Self> {
        let step = BuildStep::new("Starting the real control plane");
        let folder = tempfile::Builder::new()
            .prefix("control-plane-")
            .tempdir_in(&settings.parent)?;
        let [client, peer] = free_ports()?;
        let (client, peer) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let parts = SharedParts {
            binary: binary.to_owned(),
            dir: folder.path().to_owned(),
            etcd_url: client.clone(),
            admin: TokenUser::new("admin", "system:masters")?,
            settings,
        };
        step.set_status("etcd");
        let etcd = parts.spawn_program(
            "etcd",
            "etcd",
            &[
                format!("--data-dir={}", parts.path("etcd")),
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

        let (key, public) = (
            parts.path("service-account.key"),
            parts.path("service-account.pub"),
        );
        run_subcommand(binary, &["keygen", &key, &public])?;
        let users = std::iter::once(&parts.admin).chain(&parts.settings.users);
        let tokens: String = users.map(TokenUser::csv_line).collect();
        write_secret_file(&folder.path().join("tokens.csv"), &tokens)?;
        let first = parts.start_cluster("/registry", KUBECONFIG, &step)?;
        step.finish("");
        Ok(Self {
            second: None,
            first,
            parts,
            etcd,
            folder,
        })
    }

    /// Starts a second cluster, which shares nothing with the first but the process of etcd. Returns the path of its
    /// administrator's kubeconfig.
    pub fn start_second_cluster(&mut self) -> Result<PathBuf> {
        let step = BuildStep::new("Starting the second real cluster");
        self.second = Some(self.parts.start_cluster("/second", SECOND_KUBECONFIG, &step)?);
        step.finish("");
        Ok(self.folder.path().join(SECOND_KUBECONFIG))
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join(KUBECONFIG)
    }

    /// Returns the path of the kubeconfig of a user of the settings.
    pub fn kubeconfig_of(&self, user: &str) -> PathBuf {
        self.folder.path().join(format!("{user}.kubeconfig"))
    }

    /// Fails when a part has exited.
    pub fn check_running(&mut self) -> Result<()> {
        self.etcd.check_running()?;
        for cluster in std::iter::once(&mut self.first).chain(&mut self.second) {
            cluster.apiserver.check_running()?;
            cluster.controllers.check_running()?;
        }
        Ok(())
    }

    /// Waits for Ctrl-C. Fails when a part exits before.
    pub fn wait_for_interrupt(&mut self) -> Result<()> {
        while !crate::process::wait_for_interrupt(Duration::from_secs(1)) {
            self.check_running()?;
        }
        Ok(())
    }
}

/// Runs one of the binary's short-lived subcommands.
pub fn run_subcommand(binary: &Path, arguments: &[&str]) -> Result<()> {
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

/// Returns 16 random bytes as hexadecimal digits.
pub fn random_token() -> Result<String> {
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
fn format_kubeconfig(server: &str, certificate: &Path, user: &TokenUser) -> String {
    let TokenUser { name, token, .. } = user;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": {"server": server, "certificate-authority": certificate}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": name}}],
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
    fn users_have_lines_and_kubeconfigs_of_their_own_tokens() {
        let users = ["a", "system:node:b"].map(|name| TokenUser::new(name, "system:nodes").unwrap());
        assert_ne!(users[0].token, users[1].token);
        for user in &users {
            let (name, token) = (&user.name, &user.token);
            assert_eq!(
                user.csv_line(),
                format!("{token},{name},{name},\"system:nodes\"\n")
            );
            let config = format_kubeconfig("https://10.1.0.2:6443", Path::new("/ca.crt"), user);
            let config: serde_json::Value = serde_json::from_str(&config).unwrap();
            assert_eq!(config["users"][0]["user"]["token"], **token);
            assert_eq!(config["contexts"][0]["context"]["user"], **name);
        }
    }

    #[test]
    fn free_ports_are_distinct() {
        let mut ports = free_ports::<8>().unwrap().to_vec();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }
}
