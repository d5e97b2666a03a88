//! Shared parts of the tests: the shim as a process, in a folder of its own.
#![allow(dead_code, missing_docs, reason = "each test uses some of it")]

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use steps_protocol::{
    ContainerReport, Directory, FetchConfig, InputSource, ProcessConfig, RunConfig, ServeConfig,
};

/// Key of the artifacts.
pub const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Time after which a test fails that waits.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The folders of one pod.
pub struct Pod {
    folder: tempfile::TempDir,
}

/// A process that ends with the test.
pub struct ShimProcess(pub Child);

impl Drop for ShimProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Pod {
    pub fn new() -> Self {
        let pod = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        for name in ["root", "in", "out"] {
            fs::create_dir(pod.path(name)).expect("a folder");
        }
        fs::write(pod.path("key"), KEY).expect("the key");
        let installed = Command::new(shim()).args(["install", &pod.text("root")]).status();
        assert!(installed.expect("runs").success());
        pod
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A configuration that runs a shell script.
    pub fn script(&self, script: &str) -> RunConfig {
        RunConfig {
            process: ProcessConfig {
                path: "/bin/sh".into(),
                args: vec!["-c".into(), script.into()],
                dir: Some(self.text("out")),
                user: None,
            },
            inputs: vec![],
            outputs: vec![],
            timeout_seconds: None,
            grace_seconds: 30,
            log_tail_bytes: 1024,
            root: self.text("root"),
            termination_path: self.text("message"),
        }
    }

    pub fn output(&self) -> Directory {
        Directory {
            name: "out".into(),
            path: self.text("out"),
        }
    }

    /// A command of the shim, by its copy in the volume: that is what the containers execute, each as its own user.
    pub fn command(&self, name: &str, config: &impl serde::Serialize) -> Command {
        let mut command = Command::new(self.path("root/bin/shim"));
        command.args([name, &serde_json::to_string(config).expect("JSON")]);
        command
    }

    /// Runs the entry point to its end.
    pub fn run(&self, config: &RunConfig) -> (Output, ContainerReport) {
        let output = self.command("run", config).output().expect("runs");
        (output, self.report())
    }

    /// The termination message.
    pub fn report(&self) -> ContainerReport {
        let text = fs::read_to_string(self.path("message")).expect("a termination message");
        ContainerReport::decode(&text).unwrap_or_else(|| panic!("a report: {text}"))
    }

    /// Starts the streamer at a free port of loopback.
    pub fn serve(&self, step: &str) -> (ShimProcess, SocketAddr) {
        let config = ServeConfig {
            step: step.into(),
            outputs: vec!["out".into()],
            listen: "127.0.0.1:0".into(),
            root: self.text("root"),
            key_path: self.text("key"),
            termination_path: self.text("message"),
        };
        let mut child = self
            .command("serve", &config)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line
            .trim()
            .trim_end_matches('.')
            .rsplit(' ')
            .next()
            .expect("an address");
        (
            ShimProcess(child),
            address.parse().unwrap_or_else(|_| panic!("an address: {line}")),
        )
    }

    pub fn fetch_config(&self, timeout_seconds: u64) -> FetchConfig {
        FetchConfig {
            inputs: vec![Directory {
                name: "in".into(),
                path: self.text("in"),
            }],
            timeout_seconds,
            root: self.text("root"),
            sources_path: self.text("sources"),
            key_path: self.text("key"),
            termination_path: self.text("message"),
        }
    }

    /// Writes the file of the downward API, at once as the kubelet does.
    pub fn set_source(&self, source: &InputSource) {
        let partial = self.path("sources.partial");
        fs::write(&partial, serde_json::to_string(&[source]).expect("JSON")).expect("the sources");
        fs::rename(partial, self.path("sources")).expect("the sources");
    }
}

/// A source of the input `in`.
pub fn source(step: &str, address: SocketAddr, report: &ContainerReport) -> InputSource {
    let artifact = &report.artifacts[0];
    InputSource {
        name: "in".into(),
        artifact: artifact.name.clone(),
        step: step.into(),
        address: address.to_string(),
        digest: artifact.digest.clone(),
        bytes: artifact.bytes,
    }
}

pub fn shim() -> &'static str {
    env!("CARGO_BIN_EXE_steps-shim")
}

/// Waits until a condition holds.
pub fn await_true(subject: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{subject} within {TEST_TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Most memory that a process has used, in KiB; none when it has ended.
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
