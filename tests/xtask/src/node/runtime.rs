//! containerd with runc and a bridge network.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use ostler_builder::toolchain::run_logged;
use serde_json::json;

use super::{PAUSE_IMAGE, find_file};
use crate::{
    namespaces::{Namespaces, NamespacesHandle},
    process::Child,
};

/// Timeout until containerd answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Namespace of the kubelet's containers in containerd, and the parent of their control groups.
pub const CONTAINERD_NAMESPACE: &str = "k8s.io";
/// Folder of the settings of registries in the folder of the node.
const REGISTRIES_FOLDER: &str = "registries";
/// Environment variables of proxies, which programs in Go follow.
const PROXY_VARIABLES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
/// Folder of the state in the folder of the node.
const STATE_FOLDER: &str = "containerd-state";

/// Returns the folder that has an entry for each container, with its name.
pub fn container_folder(folder: &Path) -> PathBuf {
    let tasks = folder.join(STATE_FOLDER).join("io.containerd.runtime.v2.task");
    tasks.join(CONTAINERD_NAMESPACE)
}

/// A running containerd.
pub struct Containerd {
    process: Child,
    socket: PathBuf,
    client: PathBuf,
    handle: NamespacesHandle,
}

impl Containerd {
    /// Starts containerd with its data and its socket in a folder, and waits until it answers. It uses plain HTTP for the registry.
    pub fn start(
        folder: &Path,
        packages: &Path,
        namespaces: &Namespaces,
        registry: SocketAddr,
    ) -> Result<Self> {
        let (socket, networks) = (folder.join("containerd.sock"), folder.join("cni"));
        fs::create_dir(&networks)?;
        let network = json!({
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [{
                "type": "bridge",
                "bridge": "pods",
                "isGateway": true,
                // A pod reaches itself by its service.
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": namespaces.subnet().pods()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        });
        fs::write(networks.join("pods.conflist"), network.to_string())?;
        let config = folder.join("containerd.toml");
        fs::write(
            &config,
            format_config(folder, &socket, &find_file(packages, "usr/lib/cni")?),
        )?;
        let hosts = folder.join(REGISTRIES_FOLDER).join(registry.to_string());
        fs::create_dir_all(&hosts)?;
        // One without a host is ignored.
        let settings = format!("[host.\"http://{registry}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
        fs::write(hosts.join("hosts.toml"), settings)?;
        let handle = namespaces.handle().clone();
        let mut command = handle.restarting_command(&find_file(packages, "usr/bin/containerd")?);
        remove_proxies(&mut command);
        command.arg("--config").arg(&config);
        let mut process = Child::spawn_logged("containerd", command, &folder.join("containerd.log"))?;
        process.wait_until("socket", START_TIMEOUT, || {
            std::os::unix::net::UnixStream::connect(&socket).ok()
        })?;
        let client = find_file(packages, "usr/bin/ctr")?;
        Ok(Self {
            process,
            socket,
            client,
            handle,
        })
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Imports the images of an archive for the kubelet.
    pub fn import_image(&self, archive: &Path) -> Result<()> {
        // The working directory of the command is another one.
        let archive = fs::canonicalize(archive).with_context(|| archive.display().to_string())?;
        let mut command = self.image_command("import");
        command.arg(&archive);
        run_logged("ctr images import", command)
    }

    /// Pushes the image of an archive to the registry that is in its name, and keeps nothing of it.
    pub fn push_image(&self, name: &str, archive: &Path) -> Result<()> {
        self.import_image(archive)?;
        let mut command = self.image_command("push");
        command.args(["--plain-http", name]);
        run_logged("ctr images push", command)?;
        let mut command = self.image_command("remove");
        command.args(["--sync", name]);
        run_logged("ctr images remove", command)
    }

    fn image_command(&self, verb: &str) -> Command {
        let mut command = self.handle.command(&self.client);
        remove_proxies(&mut command);
        command.arg("--address").arg(&self.socket).args([
            "--namespace",
            CONTAINERD_NAMESPACE,
            "images",
            verb,
        ]);
        command
    }

    /// Fails when it has exited.
    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }
}

/// Lets a command use no proxy: the registry is on this machine.
fn remove_proxies(command: &mut Command) {
    for variable in PROXY_VARIABLES {
        command.env_remove(variable);
    }
}

/// Formats the configuration, version 2. The score of a container for the killer of processes without memory is not lowered: it may
/// not be where this process is itself in a container.
fn format_config(folder: &Path, socket: &Path, plugins: &Path) -> String {
    let quoted = |path: &Path| json!(path).to_string();
    format!(
        r#"version = 2
root = {root}
state = {state}

[grpc]
address = {socket}

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".registry]
config_path = {registries}

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {plugins}
conf_dir = {networks}

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"#,
        root = quoted(&folder.join("containerd")),
        state = quoted(&folder.join(STATE_FOLDER)),
        socket = quoted(socket),
        registries = quoted(&folder.join(REGISTRIES_FOLDER)),
        plugins = quoted(plugins),
        networks = quoted(&folder.join("cni")),
    )
}
