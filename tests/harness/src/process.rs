//! Hosts in processes of their own, which a test can stop and kill.

use std::{
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use crate::{Lab, PACK_GRANTS, workspace_root};

/// A host process, killed when dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
    ready: PathBuf,
}

impl Process {
    /// Starts a host. It uses the plugin directory `NAME` and `NAME.kubeconfig` of the lab's directory where they exist,
    /// and the lab's own otherwise.
    pub fn start(lab: &Lab, name: &str, arguments: &[&str]) -> Self {
        let at = |suffix: &str| lab.path().join(format!("{name}{suffix}"));
        let (log, ready, grants) = (at(".log"), at(".ready"), at(".grants.yaml"));
        std::fs::write(&grants, format!("{PACK_GRANTS}{LIFECYCLE_GRANTS}")).expect("grants written");
        let _ = std::fs::remove_file(&ready);
        let (own, elsewhere) = (at(""), at(".kubeconfig"));
        let kubeconfig = if elsewhere.exists() {
            &elsewhere
        } else {
            &lab.kubeconfig
        };
        let plugins = if own.is_dir() { &own } else { &lab.settings.plugins };
        let output = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log");
        let child = Command::new(host_binary())
            .arg("run")
            .args(["--allow-network", "127.0.0.1"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--plugin-dir")
            .arg(plugins)
            .arg("--grants")
            .arg(grants)
            .arg("--cache-dir")
            .arg(workspace_root().join("target/compiled"))
            .arg("--ready-file")
            .arg(&ready)
            .args([
                "--watch-namespace",
                &lab.namespace,
                "--admin-bind-address",
                "127.0.0.1:0",
            ])
            .args(arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(output)
            .spawn()
            .expect("the host starts");
        Self { child, log, ready }
    }

    /// Sends a signal to the process.
    pub fn send_signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits until the host is ready: plugins loaded, admin server bound.
    pub async fn wait_started(&self, lab: &Lab) {
        lab.wait_until("the host has started", async || self.ready.exists())
            .await;
    }

    /// Waits until the log contains a text.
    pub async fn wait_logged(&self, lab: &Lab, text: &str) {
        lab.wait_until(&format!("the host has logged {text:?}"), async || {
            self.log().contains(text)
        })
        .await;
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the process has exited.
    pub async fn wait_exit(&mut self, lab: &Lab) -> ExitStatus {
        let child = &mut self.child;
        lab.wait_until("the host has exited", || {
            std::future::ready(child.try_wait().expect("a child").is_some())
        })
        .await;
        child.wait().expect("it has exited")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("--- {}\n{}", self.log.display(), self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Grants of the plugin `lifecycle`, in addition to [`PACK_GRANTS`].
pub const LIFECYCLE_GRANTS: &str = "  lifecycle:
    reconciles:
    - {group: tests.ostler.dev, kinds: ['*']}
    kubernetes:
    - {kinds: [ConfigMap], verbs: [get, apply], namespaces: ['*']}
    upstreams:
    - {methods: [GET], paths: [/*]}
    events: true
";

/// Finds the binary `ostler`: at `OSTLER_BIN`, or in the target directory of this test.
pub fn host_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("OSTLER_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("this test's path");
    let binary = test.ancestors().nth(2).expect("target directory").join("ostler");
    assert!(
        binary.exists(),
        "{} is not built: cargo build -p ostler",
        binary.display()
    );
    binary
}
