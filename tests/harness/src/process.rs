//! Hosts in processes of their own, to be stopped and killed.

use std::{
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use crate::{GRANTS, Lab, workspace};

/// A host in a process; killed when dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
    ready: PathBuf,
}

impl Process {
    /// Starts a host of this name with the plugins of the lab, or of the directory `NAME` in it when there is one;
    /// it reaches the API server as `NAME.kubeconfig` there says, when there is one.
    pub fn start(lab: &Lab, name: &str, arguments: &[&str]) -> Self {
        let at = |suffix: &str| lab.path().join(format!("{name}{suffix}"));
        let (log, ready, grants) = (at(".log"), at(".ready"), at(".grants.yaml"));
        std::fs::write(&grants, format!("{GRANTS}{MORE_GRANTS}")).expect("grants written");
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
        let child = Command::new(binary())
            .arg("run")
            .args(["--allow-network", "127.0.0.1"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--plugins")
            .arg(plugins)
            .arg("--grants")
            .arg(grants)
            .arg("--cache")
            .arg(workspace().join("target/compiled"))
            .arg("--ready-file")
            .arg(&ready)
            .args(["--namespace", &lab.namespace, "--admin", "127.0.0.1:0"])
            .args(arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(output)
            .spawn()
            .expect("the host starts");
        Self { child, log, ready }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits until it has started: plugins loaded, admin server bound.
    pub async fn started(&self, lab: &Lab) {
        lab.until("the host has started", async || self.ready.exists())
            .await;
    }

    /// Waits until it has written something to its log.
    pub async fn says(&self, lab: &Lab, what: &str) {
        lab.until(&format!("the host says {what:?}"), async || {
            self.log().contains(what)
        })
        .await;
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has ended.
    pub async fn ended(&mut self, lab: &Lab) -> ExitStatus {
        let child = &mut self.child;
        lab.until("the host has ended", || {
            std::future::ready(child.try_wait().expect("a child").is_some())
        })
        .await;
        child.wait().expect("it has ended")
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

/// What the plugin `lifecycle` may do, besides [`GRANTS`].
pub const MORE_GRANTS: &str = "  lifecycle:
    kubernetes:
    - {kinds: [ConfigMap], verbs: [get, apply]}
    upstreams:
    - {methods: [GET], paths: [/*]}
    events: true
";

/// `ostler`, built beside this test.
pub fn binary() -> PathBuf {
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
