//! A real OCI registry: Debian's docker-registry, on this machine alone.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

/// The user of a registry that wants one.
pub const USER: &str = "robot";
/// That user's password.
pub const PASSWORD: &str = "registry-pass-0003";
/// Both, as docker-registry wants them: bcrypt, with the least rounds it takes.
const HTPASSWD: &str = "robot:$2b$04$NtiNtQ7AvHjTbitRE9mUduRmn7fqLsVLLcvu6pWT8DDr5DlxrWjQ2\n";

/// A registry; ended, with its data, when dropped.
pub struct Registry {
    child: Child,
    address: String,
    closed: bool,
    directory: TempDir,
}

impl Registry {
    /// One that everybody may read and write.
    pub fn open() -> Self {
        Self::start(false)
    }

    /// One for [`USER`] alone.
    pub fn closed() -> Self {
        Self::start(true)
    }

    fn start(closed: bool) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (child, address) = run(&directory, closed, "127.0.0.1:0");
        Self {
            child,
            address,
            closed,
            directory,
        }
    }

    /// Its host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends it; its data stays.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, at the same address.
    pub fn resume(&mut self) {
        let (child, _) = run(&self.directory, self.closed, &self.address);
        self.child = child;
    }

    /// The file of a blob (`sha256:…`).
    pub fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        let blobs = self.directory.path().join("docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts it, and waits until it says where it listens.
fn run(directory: &TempDir, closed: bool, address: &str) -> (Child, String) {
    let at = |name: &str| directory.path().join(name);
    let (config, htpasswd) = (at("config.yml"), at("htpasswd"));
    std::fs::write(&htpasswd, HTPASSWD).expect("users written");
    let mut text = format!(
        "version: 0.1\nlog: {{level: info, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
         http: {{addr: '{address}', secret: only-here}}\n",
        directory.path().display(),
    );
    if closed {
        text.push_str(&format!(
            "auth: {{htpasswd: {{realm: tests, path: {}}}}}\n",
            htpasswd.display()
        ));
    }
    std::fs::write(&config, text).expect("configuration written");
    let mut child = Command::new(binary())
        .arg("serve")
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("docker-registry: `cargo xtask test real` brings it");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut said = Vec::new();
    let address = loop {
        let Some(Ok(line)) = lines.next() else {
            panic!("docker-registry does not listen:\n{}", said.join("\n"));
        };
        if let Some((_, rest)) = line.split_once("listening on ") {
            break rest.split(['"', ' ', ',']).next().unwrap_or(rest).to_owned();
        }
        said.push(line);
    };
    // A pipe nobody reads would stop it when it is full.
    std::thread::spawn(move || lines.for_each(drop));
    (child, address)
}

/// `docker-registry`: where xtask has put it, or in the path.
fn binary() -> PathBuf {
    std::env::var_os("OSTLER_TEST_REGISTRY").map_or_else(|| "docker-registry".into(), PathBuf::from)
}
