//! A real OCI registry on loopback: Debian's docker-registry.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::process::wait_line;

/// User of a private registry.
pub const REGISTRY_USER: &str = "robot";
/// Password of that user.
pub const REGISTRY_PASSWORD: &str = "registry-pass-0003";
/// User and password as an htpasswd line: bcrypt, with the fewest rounds that docker-registry accepts.
const HTPASSWD_LINE: &str = "robot:$2b$04$NtiNtQ7AvHjTbitRE9mUduRmn7fqLsVLLcvu6pWT8DDr5DlxrWjQ2\n";

/// A registry process, ended and its data removed when dropped.
pub struct RegistryProcess {
    child: Child,
    address: String,
    access: Access,
    directory: TempDir,
    /// Holds the port while the process is stopped: the kernel would give it to the server of another test.
    reservation: Option<TcpSocket>,
}

/// Access to a registry.
#[derive(Clone)]
enum Access {
    Public,
    /// For [`REGISTRY_USER`].
    Private,
    /// With any token. The registry names the token server of this URL.
    Tokens(String),
}

impl RegistryProcess {
    /// Starts a registry without authentication.
    pub fn start_public() -> Self {
        Self::start(Access::Public)
    }

    /// Starts a registry that only [`REGISTRY_USER`] can read and write.
    pub fn start_private() -> Self {
        Self::start(Access::Private)
    }

    /// Starts a registry that names a token server, and accepts any token.
    pub fn start_with_token_server(realm: &str) -> Self {
        Self::start(Access::Tokens(realm.to_owned()))
    }

    fn start(access: Access) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (child, address) = spawn_registry(&directory, &access, "127.0.0.1:0");
        Self {
            child,
            address,
            access,
            directory,
            reservation: None,
        }
    }

    /// Returns its host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Stops the process and keeps its data and its port, at which connections are refused.
    pub fn stop(&mut self) {
        self.end();
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket
            .bind(self.address.parse().expect("an address"))
            .expect("the port is free");
        self.reservation = Some(socket);
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again at the same address.
    pub fn restart(&mut self) {
        self.reservation = None;
        let (child, _) = spawn_registry(&self.directory, &self.access, &self.address);
        self.child = child;
    }

    /// Returns the file of a blob, named by its digest (`sha256:…`).
    pub fn blob_path(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        let blobs = self.directory.path().join("docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }
}

impl Drop for RegistryProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts docker-registry and waits until its log names the address it listens on.
fn spawn_registry(directory: &TempDir, access: &Access, address: &str) -> (Child, String) {
    let at = |name: &str| directory.path().join(name);
    let (config, htpasswd) = (at("config.yml"), at("htpasswd"));
    std::fs::write(&htpasswd, HTPASSWD_LINE).expect("users written");
    let mut text = format!(
        "version: 0.1\nlog: {{level: info, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
         http: {{addr: '{address}', secret: only-here}}\n",
        directory.path().display(),
    );
    match access {
        Access::Public => {}
        Access::Private => text.push_str(&format!(
            "auth: {{htpasswd: {{realm: tests, path: {}}}}}\n",
            htpasswd.display()
        )),
        Access::Tokens(realm) => {
            text.push_str(&format!(
                "auth: {{silly: {{realm: '{realm}', service: tests}}}}\n"
            ));
        }
    }
    std::fs::write(&config, text).expect("configuration written");
    let mut child = Command::new(registry_binary())
        .arg("serve")
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("docker-registry is not installed: run the test by `cargo xtask test`, which fetches it");
    let pipe = child.stderr.take().expect("piped");
    let address = wait_line("docker-registry", pipe, |line| {
        let (_, rest) = line.split_once("listening on ")?;
        Some(rest.split(['"', ' ', ',']).next().unwrap_or(rest).to_owned())
    });
    (child, address)
}

/// Returns `OSTLER_TEST_REGISTRY`, which `cargo xtask test` sets, or `docker-registry` of the `PATH`.
fn registry_binary() -> PathBuf {
    std::env::var_os("OSTLER_TEST_REGISTRY").map_or_else(|| "docker-registry".into(), PathBuf::from)
}
