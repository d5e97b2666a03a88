//! Linux namespaces of a node: processes, mounts and network of its own.
//!
//! The kernel ends everything in them with their first process: containers and their shims, mounts, bridge, packet filter rules. So
//! there is one way to clean up, after success, failure and a kill alike.

use std::{
    collections::BTreeSet,
    fmt, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use ostler_builder::toolchain::run_logged;

use crate::process::Child;

/// Timeout until the first process runs.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Script of the first process. As such it has no default handlers of signals, and has to reap processes without a parent.
const INIT_SCRIPT: &str = "trap 'exit 0' TERM; sleep infinity & wait";
/// Script that runs its arguments as a command whenever they have ended, unless they end within ten seconds.
const RESTART_SCRIPT: &str =
    "while :; do began=$(date +%s); \"$@\"; [ $(($(date +%s) - began)) -lt 10 ] && exit 1; done";
/// Folders that programs of a node write to regardless of their settings.
const PRIVATE_FOLDERS: &str = "/run /var/log";

/// Namespaces, and a link from their network to that of this process. Everything in them ends when dropped.
pub struct Namespaces {
    init: Child,
    handle: NamespacesHandle,
    subnet: Subnet,
}

/// Reason why no node can run on this machine.
#[derive(Debug)]
pub struct NodeUnsupported(String);

impl fmt::Display for NodeUnsupported {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NodeUnsupported {}

/// Way to start processes in namespaces.
#[derive(Clone)]
pub struct NamespacesHandle {
    init: u32,
    /// Root of packages that are not installed.
    packages: PathBuf,
}

impl NamespacesHandle {
    /// Returns the name of the namespace of the processes, as the links in `/proc/PID/ns` have it.
    pub fn process_namespace(&self) -> Result<PathBuf> {
        let link = format!("/proc/{}/ns/pid", self.init);
        fs::read_link(&link).context(link)
    }

    /// Returns a command that runs in the namespaces, in the root directory.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args([
                "--target",
                &self.init.to_string(),
                "--pid",
                "--mount",
                "--net",
                "--",
            ])
            .arg(program)
            .env("PATH", search_path(&self.packages))
            .env("LD_LIBRARY_PATH", library_path(&self.packages));
        command
    }

    /// Returns a command as [`Self::command`] does, which starts the program again whenever it ends, as systemd does: tests kill the
    /// kubelet, and no test of a host is to fail for a crash of the node. One that ends within ten seconds stays so.
    pub fn restarting_command(&self, program: &Path) -> Command {
        let mut command = self.command(Path::new("/bin/sh"));
        command.args(["-c", RESTART_SCRIPT, "restart"]).arg(program);
        command
    }
}

/// Fails with [`NodeUnsupported`] where the kernel would refuse namespaces because of the user.
pub fn check_root() -> Result<()> {
    if !rustix::process::getuid().is_root() {
        let reason = "a node needs root, since it creates namespaces, mounts and network interfaces";
        bail!(NodeUnsupported(reason.into()));
    }
    Ok(())
}

impl Namespaces {
    /// Creates namespaces, and connects them: this process reaches all addresses of the subnet, and is itself at
    /// [`Subnet::gateway`]. To be called in a thread that lives as long as the process: the kernel ends the namespaces with it,
    /// also after a SIGKILL. Fails with [`NodeUnsupported`] where the kernel refuses it.
    pub fn create(folder: &Path, packages: &Path) -> Result<Self> {
        check_root()?;
        let subnet = Subnet::choose()?;
        let mut command = Command::new("setpriv");
        command
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--fork",
                "--kill-child",
                "--pid",
                "--mount",
            ])
            .args(["--net", "--mount-proc", "sh", "-c", INIT_SCRIPT]);
        let mut init = Child::spawn_logged("unshare", command, &folder.join("namespaces.log"))?;
        let pid = init.pid();
        let first = init
            .wait_until("first process", START_TIMEOUT, || find_first_process(pid))
            .map_err(unsupported)?;
        let namespaces = Self {
            init,
            handle: NamespacesHandle {
                init: first,
                packages: packages.to_owned(),
            },
            subnet,
        };
        namespaces.connect().map_err(unsupported)?;
        Ok(namespaces)
    }

    /// Connects the networks by a pair of interfaces, and mounts the private folders.
    fn connect(&self) -> Result<()> {
        let (link, node, gateway) = (self.link(), self.subnet.node(), self.subnet.gateway());
        let outside = format!(
            "set -e
            ip link add {link} type veth peer name eth0 netns {init}
            ip address add {gateway}/30 dev {link}
            ip link set {link} up
            ip route add {subnet} via {node}",
            init = self.handle.init,
            subnet = self.subnet,
        );
        let inside = format!(
            "set -e
            ip link set lo up
            ip address add {node}/30 dev eth0
            ip link set eth0 up
            ip route add default via {gateway}
            echo 1 > /proc/sys/net/ipv4/ip_forward
            for folder in {PRIVATE_FOLDERS}; do mount -t tmpfs tmpfs $folder; done
            mkdir /run/netns"
        );
        let mut script = Command::new("sh");
        script
            .args(["-c", &outside])
            .env("PATH", search_path(&self.handle.packages))
            .env("LD_LIBRARY_PATH", library_path(&self.handle.packages));
        run_logged("the link to the node", script)?;
        let mut script = self.handle.command(Path::new("sh"));
        script.args(["-c", &inside]);
        run_logged("the network and mounts of the node", script)
    }

    /// Returns the path that the interface to them has while they exist.
    pub fn interface(&self) -> PathBuf {
        Path::new("/sys/class/net").join(self.link())
    }

    /// Name of the interface in the network of this process.
    fn link(&self) -> String {
        format!("ostler-{}", self.subnet.0)
    }

    /// Returns the way to start processes in them.
    pub fn handle(&self) -> &NamespacesHandle {
        &self.handle
    }

    /// Returns their addresses.
    pub fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// Fails when they have ended.
    pub fn check_running(&mut self) -> Result<()> {
        self.init.check_running()
    }
}

/// Turns an error of the kernel's tools into the reason why no node can run. Containers without privileges may not use them.
fn unsupported(error: anyhow::Error) -> anyhow::Error {
    let reason = "a node needs namespaces, mounts and network interfaces, which this machine refuses";
    NodeUnsupported(format!("{reason}: {error:#}")).into()
}

/// Finds the only child of `unshare`, once it runs the script: then its namespaces are complete.
fn find_first_process(unshare: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
    let child = children.split_whitespace().next()?.parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
    (name.trim() == "sh").then_some(child)
}

/// Returns the value of `PATH` with the programs of packages that are not installed.
fn search_path(packages: &Path) -> String {
    let mut folders: Vec<_> = ["usr/bin", "usr/sbin", "bin", "sbin"]
        .iter()
        .map(|folder| packages.join(folder).display().to_string())
        .collect();
    folders.extend(std::env::var("PATH"));
    // Missing in the `PATH` of some users.
    folders.extend(["/usr/sbin".into(), "/sbin".into()]);
    folders.join(":")
}

/// Returns the value of `LD_LIBRARY_PATH` with the libraries of packages that are not installed.
fn library_path(packages: &Path) -> String {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = ["usr/lib", "lib"].map(|folder| packages.join(folder).join(&triple).display().to_string());
    folders.join(":")
}

/// Addresses of a node: `10.OCTET.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet(u8);

impl Subnet {
    /// Chooses a subnet that no route of this machine leads to.
    fn choose() -> Result<Self> {
        let used = used_octets(&fs::read_to_string("/proc/net/route").context("reading /proc/net/route")?);
        // Not always the same: another node may start at this moment.
        let first = std::process::id() as u8;
        let mut octets = (0..=u8::MAX).map(|n| n.wrapping_add(first));
        let octet = octets.find(|octet| !used.contains(octet));
        Ok(Self(octet.context(
            "all of 10.0.0.0/8 is routed, and a node needs a part of it",
        )?))
    }

    fn address(self, third: u8, fourth: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.0, third, fourth)
    }

    /// Returns the address of this machine.
    pub fn gateway(self) -> Ipv4Addr {
        self.address(0, 1)
    }

    /// Returns the address of the node.
    pub fn node(self) -> Ipv4Addr {
        self.address(0, 2)
    }

    /// Returns the range of the pods.
    pub fn pods(self) -> String {
        format!("{}/24", self.address(1, 0))
    }

    /// Returns the range of the services.
    pub fn services(self) -> String {
        format!("{}/24", self.address(2, 0))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/16", self.address(0, 0))
    }
}

/// Returns the second octets of addresses in 10.0.0.0/8 that have a route, other than the default route. The lines are those of
/// `/proc/net/route`, with addresses and masks as little-endian hexadecimal numbers.
fn used_octets(routes: &str) -> BTreeSet<u8> {
    let mut used = BTreeSet::new();
    for line in routes.lines().skip(1) {
        let mut fields = line.split_whitespace();
        let mut read = |skipped| u32::from_str_radix(fields.nth(skipped)?, 16).ok();
        let (Some(destination), Some(mask)) = (read(1), read(5)) else {
            continue;
        };
        let (destination, mask) = (destination.swap_bytes(), mask.swap_bytes());
        if mask != 0 {
            let common = mask & 0xffff_0000;
            used.extend((0..=u8::MAX).filter(|octet| {
                let subnet = u32::from(Ipv4Addr::new(10, *octet, 0, 0));
                subnet & common == destination & common
            }));
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routed_subnets_are_not_used() {
        let header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let line = |destination: [u8; 4], mask: [u8; 4]| {
            let hex = |address| format!("{:08X}", u32::from_le_bytes(address));
            format!(
                "eth0\t{}\t0102000A\t0003\t0\t0\t0\t{}\t0\t0\t0\n",
                hex(destination),
                hex(mask)
            )
        };
        let used = |lines: &[String]| used_octets(&format!("{header}{}", lines.concat()));
        assert_eq!(used(&[line([0; 4], [0; 4])]), BTreeSet::new());
        assert_eq!(used(&[line([192, 168, 0, 0], [255, 255, 0, 0])]), BTreeSet::new());
        assert_eq!(
            used(&[line([10, 7, 3, 0], [255, 255, 255, 0])]),
            BTreeSet::from([7])
        );
        assert_eq!(
            used(&[line([10, 8, 0, 0], [255, 254, 0, 0])]),
            BTreeSet::from([8, 9])
        );
        assert_eq!(used(&[line([10, 0, 0, 0], [255, 0, 0, 0])]).len(), 256);
    }

    #[test]
    fn addresses_are_in_the_subnet() {
        let subnet = Subnet(7);
        assert_eq!(subnet.to_string(), "10.7.0.0/16");
        assert_eq!(subnet.gateway().to_string(), "10.7.0.1");
        assert_eq!(subnet.node().to_string(), "10.7.0.2");
        assert_eq!(subnet.pods(), "10.7.1.0/24");
        assert_eq!(subnet.services(), "10.7.2.0/24");
    }
}
