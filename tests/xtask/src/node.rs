//! A real Kubernetes node beside a control plane of its own: kubelet, containerd, kube-proxy, kube-scheduler and a bridge network, in
//! namespaces that end with this process.

mod runtime;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use self::runtime::{CONTAINERD_NAMESPACE, Containerd};
use crate::{
    control_plane::{self, ControlPlane, ControlPlaneSettings, TokenUser, run_subcommand},
    debian,
    image::Image,
    namespaces::Namespaces,
    process::{Child, read_tail, wait_for_interrupt},
    progress::BuildStep,
    registry::RunningRegistry,
};

/// Name of the node.
const NODE_NAME: &str = "node";
/// Timeout until the node is Ready.
const READY_TIMEOUT: &str = "120s";
/// Packages of the programs of a node. Those that are installed are not extracted again.
const NODE_PACKAGES: &[&str] = &[
    "containerd",
    "runc",
    "containernetworking-plugins",
    "nftables",
    "iproute2",
    "busybox-static",
];
/// Image of processes, with a shell: that of the examples, from Debian's package. Busybox runs what it is called by.
pub const SHELL_IMAGE: &str = "docker.io/library/busybox:1.37";
/// Names that it is called by.
const SHELL_COMMANDS: &[&str] = &["sh", "cat", "true", "false", "sleep", "head", "id", "wc"];
/// Image of the container that holds the namespaces of a pod.
const PAUSE_IMAGE: &str = "localhost/pause:1";

/// Users of the other programs, which the API server gives their rights by name.
const SCHEDULER_USER: &str = "system:kube-scheduler";
const PROXY_USER: &str = "system:kube-proxy";

/// Options of `cargo xtask node`.
#[derive(clap::Args)]
pub struct NodeOptions {
    /// Archive of an image to import, such as that of `cargo xtask image`. May be repeated.
    #[arg(long = "image", value_name = "FILE")]
    images: Vec<PathBuf>,
}

/// Runs a node until Ctrl-C.
pub fn run_node(options: &NodeOptions) -> Result<()> {
    let began = Instant::now();
    let mut node = RunningNode::start(&control_plane::build_binary()?)?;
    for image in &options.images {
        let step = BuildStep::new(format!("Importing {}", image.display()));
        node.import_image(image)?;
        step.finish("");
    }
    println!("export KUBECONFIG={}", node.kubeconfig()?.display());
    eprintln!(
        "The node was Ready {:.1} s after the start of its kubelet, {:.1} s in all. kubectl works in another terminal with this \
         variable. Images come from archives (--image FILE), or from the registry {}, which also takes plugins, by plain HTTP. Ctrl-C \
         ends the node and all that runs on it.",
        node.ready_after.as_secs_f64(),
        began.elapsed().as_secs_f64(),
        node.registry()?,
    );
    node.wait_for_interrupt().context("the node")
}

/// A running node with its control plane. Everything ends when it is dropped, containers included.
pub struct RunningNode {
    // Fields are dropped in this order. All processes end with the namespaces; the rest removes what is left of them.
    namespaces: Namespaces,
    processes: Vec<Child>,
    containerd: Option<Containerd>,
    registry: Option<RunningRegistry>,
    control_plane: Option<ControlPlane>,
    _cgroups: Cgroups,
    folder: TempDir,
    /// Time from the start of the kubelet until the node was Ready.
    pub ready_after: Duration,
}

impl RunningNode {
    /// Starts a node and its control plane, and waits until it is Ready.
    pub fn start(binary: &Path) -> Result<Self> {
        let packages = find_or_fetch_packages()?;
        let folder = tempfile::Builder::new().prefix("node-").tempdir()?;
        let mut node = Self {
            _cgroups: Cgroups {
                containers: runtime::container_folder(folder.path()),
            },
            namespaces: Namespaces::create(folder.path(), &packages)?,
            processes: Vec::new(),
            containerd: None,
            registry: None,
            control_plane: None,
            folder,
            ready_after: Duration::ZERO,
        };
        let (certificate, key) = (
            node.path("apiserver-client.crt"),
            node.path("apiserver-client.key"),
        );
        run_subcommand(binary, &["kubelet-client", &certificate, &key])?;
        let settings = node.control_plane_settings(&certificate, &key)?;
        let control_plane = ControlPlane::start_with(binary, settings)?;
        let control_plane = node.control_plane.insert(control_plane);
        let [node_user, scheduler_user, proxy_user] =
            [node_user().as_str(), SCHEDULER_USER, PROXY_USER].map(|user| control_plane.kubeconfig_of(user));

        let step = BuildStep::new("Starting the node");
        step.set_status("registry and containerd");
        let registry = RunningRegistry::start(node.namespaces.subnet().gateway(), node.folder.path())?;
        let registry = node.registry.insert(registry).address();
        let containerd = Containerd::start(node.folder.path(), &packages, &node.namespaces, registry)?;
        let socket = containerd.socket().to_owned();
        step.set_status("image of the pause container");
        let archive = node.folder.path().join("pause.tar");
        build_pause_image(&packages, &archive)?;
        node.containerd.insert(containerd).import_image(&archive)?;
        step.set_status("kube-scheduler and kube-proxy");
        let arguments = [
            format!("--kubeconfig={}", scheduler_user.display()),
            "--leader-elect=false".into(),
            format!("--cert-dir={}", node.path("scheduler-certificates")),
        ];
        node.spawn(binary, "kube-scheduler", &arguments)?;
        let config = node.write_config("kube-proxy", &node.proxy_config(&proxy_user))?;
        node.spawn(binary, "kube-proxy", &[config])?;
        step.set_status("kubelet");
        let began = Instant::now();
        fs::write(node.path("resolv.conf"), "")?;
        let config = node.write_config("kubelet", &node.kubelet_config(&socket, &certificate))?;
        let arguments = [
            config,
            format!("--kubeconfig={}", node_user.display()),
            format!("--root-dir={}", node.path("kubelet")),
            format!("--cert-dir={}", node.path("kubelet-certificates")),
            format!("--hostname-override={NODE_NAME}"),
            format!("--node-ip={}", node.namespaces.subnet().node()),
        ];
        node.spawn(binary, "kubelet", &arguments)?;
        let kubeconfig = node.kubeconfig()?.display().to_string();
        let ready = run_subcommand(binary, &["ready", &kubeconfig, READY_TIMEOUT, NODE_NAME]);
        if let Err(error) = ready {
            node.check_running()?;
            return Err(error.context(read_tail(Path::new(&node.path("kubelet.log")))));
        }
        node.ready_after = began.elapsed();
        step.finish("");
        Ok(node)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Starts a program of the binary, which logs to `PROGRAM.log`.
    fn spawn(&mut self, binary: &Path, program: &str, arguments: &[String]) -> Result<()> {
        let mut command = self.namespaces.handle().restarting_command(binary);
        command.arg(program).args(arguments);
        let log = self.folder.path().join(format!("{program}.log"));
        self.processes.push(Child::spawn_logged(program, command, &log)?);
        Ok(())
    }

    /// Writes a configuration as JSON, which is valid YAML. Returns the flag that names it.
    fn write_config(&self, program: &str, config: &serde_json::Value) -> Result<String> {
        let path = self.path(&format!("{program}.yaml"));
        fs::write(&path, config.to_string()).with_context(|| format!("writing {path}"))?;
        Ok(format!("--config={path}"))
    }

    /// Returns the settings of a control plane with nodes: all controllers, authorization and admission as usual.
    fn control_plane_settings(&self, certificate: &str, key: &str) -> Result<ControlPlaneSettings> {
        let subnet = self.namespaces.subnet();
        Ok(ControlPlaneSettings {
            parent: self.folder.path().to_owned(),
            address: subnet.node(),
            namespaces: Some(self.namespaces.handle().clone()),
            users: vec![
                TokenUser::new(&node_user(), "system:nodes")?,
                TokenUser::new(SCHEDULER_USER, "system:authenticated")?,
                TokenUser::new(PROXY_USER, "system:node-proxier")?,
            ],
            apiserver_flags: vec![
                "--authorization-mode=Node,RBAC".into(),
                "--enable-admission-plugins=NodeRestriction".into(),
                "--allow-privileged=true".into(),
                format!("--service-cluster-ip-range={}", subnet.services()),
                "--kubelet-preferred-address-types=InternalIP".into(),
                format!("--kubelet-client-certificate={certificate}"),
                format!("--kubelet-client-key={key}"),
            ],
            controller_flags: vec!["--use-service-account-credentials=true".into()],
        })
    }

    fn proxy_config(&self, kubeconfig: &Path) -> serde_json::Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": kubeconfig},
            "clusterCIDR": self.namespaces.subnet().pods(),
            "hostnameOverride": NODE_NAME,
            // Limits of the whole machine stay as they are.
            "conntrack": {"maxPerCore": 0},
        })
    }

    fn kubelet_config(&self, containerd: &Path, certificate: &str) -> serde_json::Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": certificate},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": format!("unix://{}", containerd.display()),
            "podLogsDir": self.path("pod-logs"),
            "volumePluginDir": self.path("volume-plugins"),
            // There is no DNS server: names of services are not resolved.
            "resolvConf": self.path("resolv.conf"),
            // Machines without systemd, with either version of control groups.
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": false,
            "cgroupsPerQOS": false,
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            // Neither pods nor images are evicted where the disk of this machine is nearly full.
            "localStorageCapacityIsolation": false,
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
        })
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        let control_plane = self.control_plane.as_ref().context("it has no control plane")?;
        Ok(control_plane.kubeconfig())
    }

    /// Imports the images of an archive.
    pub fn import_image(&self, archive: &Path) -> Result<()> {
        let containerd = self.containerd.as_ref().context("it has no containerd")?;
        containerd.import_image(archive)
    }

    /// Returns the address of the registry, which pods and the kubelet reach by plain HTTP.
    pub fn registry(&self) -> Result<SocketAddr> {
        let registry = self.registry.as_ref().context("it has no registry")?;
        Ok(registry.address())
    }

    /// Pushes an image to the registry under a name and tag, and keeps nothing of it on the node. Returns the whole name.
    pub fn push_image(&self, name: &str, image: &Image) -> Result<String> {
        let name = format!("{}/{name}", self.registry()?);
        let step = BuildStep::new(format!("Pushing {name}"));
        let archive = self.folder.path().join("pushed.tar");
        image.write_archive(&name, &archive)?;
        let containerd = self.containerd.as_ref().context("it has no containerd")?;
        containerd.push_image(&name, &archive)?;
        fs::remove_file(archive)?;
        step.finish("");
        Ok(name)
    }

    /// Writes images to archives, and imports them under these names.
    pub fn import_images(&self, images: Vec<(&str, Image)>) -> Result<()> {
        let step = BuildStep::new("Importing the images");
        let folder = tempfile::tempdir()?;
        for (name, image) in images {
            step.set_status(name.to_owned());
            let archive = folder.path().join("image.tar");
            image.write_archive(name, &archive)?;
            self.import_image(&archive).context(name.to_owned())?;
        }
        step.finish("");
        Ok(())
    }

    /// Ends the node, and fails when something of it is left on this machine.
    pub fn end(self) -> Result<()> {
        let traces = Traces {
            interface: self.namespaces.interface(),
            processes: self.namespaces.handle().process_namespace()?,
            folder: self.folder.path().to_owned(),
        };
        drop(self);
        traces.check_gone()
    }

    /// Fails when a part has exited.
    pub fn check_running(&mut self) -> Result<()> {
        self.namespaces.check_running()?;
        self.processes.iter_mut().try_for_each(Child::check_running)?;
        self.containerd
            .iter_mut()
            .try_for_each(Containerd::check_running)?;
        self.registry
            .iter_mut()
            .try_for_each(RunningRegistry::check_running)?;
        self.control_plane
            .iter_mut()
            .try_for_each(ControlPlane::check_running)
    }

    /// Returns the last lines of the logs of the programs that run containers, by program.
    pub fn log_tails(&self) -> Vec<(&'static str, String)> {
        let programs = ["containerd", "kube-scheduler", "kube-proxy", "kubelet"];
        let tail = |program| {
            let log = self.path(&format!("{program}.log"));
            (program, read_tail(Path::new(&log)))
        };
        programs.map(tail).into()
    }

    /// Waits for Ctrl-C. Fails when a part exits before.
    fn wait_for_interrupt(&mut self) -> Result<()> {
        while !wait_for_interrupt(Duration::from_secs(1)) {
            self.check_running()?;
        }
        Ok(())
    }
}

/// What shows on this machine that a node runs. Its mounts are in namespaces, which end with their last process.
struct Traces {
    /// Network interface that leads to it.
    interface: PathBuf,
    /// Namespace of its processes, as the links in `/proc` name it.
    processes: PathBuf,
    folder: PathBuf,
}

impl Traces {
    fn check_gone(&self) -> Result<()> {
        for path in [&self.interface, &self.folder] {
            ensure!(
                !path.exists(),
                "the node has ended, and {} is left",
                path.display()
            );
        }
        for process in list_folder(Path::new("/proc")) {
            // Those that end meanwhile have no link any more.
            let namespace = fs::read_link(process.join("ns/pid")).ok();
            ensure!(
                namespace.as_ref() != Some(&self.processes),
                "the node has ended, and {} runs",
                process.display()
            );
        }
        Ok(())
    }
}

/// Returns the root of the packages that are not installed, and extracts them unless it has been done.
fn find_or_fetch_packages() -> Result<PathBuf> {
    debian::find_or_extract(NODE_PACKAGES, "node-packages")
}

/// Returns a file of a package: extracted, or installed.
fn find_file(packages: &Path, file: &str) -> Result<PathBuf> {
    let candidates = [packages.join(file), Path::new("/").join(file)];
    let found = candidates.into_iter().find(|path| path.exists());
    found.with_context(|| format!("neither installed nor in {}: {file}", packages.display()))
}

/// Builds an image with a shell, in which processes of Steps run.
pub fn shell_image() -> Result<Image> {
    let mut image = Image::new(["/bin/sh"]);
    image.add_file(
        "bin/busybox",
        &find_file(&find_or_fetch_packages()?, "bin/busybox")?,
        0o755,
    )?;
    for command in SHELL_COMMANDS {
        image.add_link(&format!("bin/{command}"), "busybox");
    }
    image.add_directory("tmp", 0o1777);
    Ok(image)
}

fn build_pause_image(packages: &Path, archive: &Path) -> Result<()> {
    let mut image = Image::new(["/bin/sleep", "infinity"]);
    image.add_file("bin/sleep", &find_file(packages, "bin/busybox")?, 0o755)?;
    image.write_archive(PAUSE_IMAGE, archive)?;
    Ok(())
}

/// Returns the user of the kubelet.
fn node_user() -> String {
    format!("system:node:{NODE_NAME}")
}

/// Control groups of the node's containers, removed when dropped. No namespace contains them. containerd removes those of containers
/// that end before the node.
struct Cgroups {
    /// Folder of containerd with the name of each container.
    containers: PathBuf,
}

/// Where the hierarchies of control groups are mounted: one of version 2, or several of version 1.
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";
/// Timeout until the kernel has reaped killed processes, which keep their control group until then.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

impl Drop for Cgroups {
    fn drop(&mut self) {
        let names = list_folder(&self.containers);
        let mount = Path::new(CGROUP_MOUNT);
        for hierarchy in std::iter::once(mount.to_owned()).chain(list_folder(mount)) {
            let parent = hierarchy.join(CONTAINERD_NAMESPACE);
            for name in names.iter().filter_map(|path| path.file_name()) {
                let (group, began) = (parent.join(name), Instant::now());
                while group.is_dir() && fs::remove_dir(&group).is_err() && began.elapsed() < REMOVAL_TIMEOUT {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            // Fails when it has other groups, of another containerd.
            let _ = fs::remove_dir(parent);
        }
    }
}

/// Returns the paths of the entries of a folder; none if it does not exist.
fn list_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
