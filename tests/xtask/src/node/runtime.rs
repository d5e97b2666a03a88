//! containerd with runc and a bridge network.

use std::{
    fs,
    path::{Path, PathBuf},
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
    /// Starts containerd with its data and its socket in a folder, and waits until it answers.
    pub fn start(folder: &Path, packages: &Path, namespaces: &Namespaces) -> Result<Self> {
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
        let handle = namespaces.handle().clone();
        let mut command = handle.command(&find_file(packages, "usr/bin/containerd")?);
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
        let mut command = self.handle.command(&self.client);
        command
            .arg("--address")
            .arg(&self.socket)
            .args(["--namespace", CONTAINERD_NAMESPACE, "images", "import"])
            .arg(&archive);
        run_logged("ctr images import", command)
    }

    /// Fails when it has exited.
    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
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

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {plugins}
conf_dir = {networks}

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"#,
        root = quoted(&folder.join("containerd")),
        state = quoted(&folder.join(STATE_FOLDER)),
        socket = quoted(socket),
        plugins = quoted(plugins),
        networks = quoted(&folder.join("cni")),
    )
}
