//! The real OCI registry for tests: Debian's docker-registry.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use ostler_builder::toolchain;
use serde_json::json;

use crate::{debian, paths, process::Child};

const REGISTRY_PACKAGE: &str = "docker-registry";
/// Timeout until the registry listens.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running registry without authentication, by plain HTTP.
pub struct RunningRegistry {
    process: Child,
    address: SocketAddr,
}

impl RunningRegistry {
    /// Starts a registry at a port of the kernel's choice, with its data in a folder that exists.
    pub fn start(address: Ipv4Addr, folder: &Path) -> Result<Self> {
        // JSON is valid YAML.
        let config = json!({
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": folder.join("registry")}},
            "http": {"addr": format!("{address}:0"), "secret": "of this registry"},
        });
        let (path, log) = (folder.join("registry.yaml"), folder.join("registry.log"));
        fs::write(&path, config.to_string()).with_context(|| path.display().to_string())?;
        let mut command = Command::new(find_or_fetch()?);
        command.arg("serve").arg(&path);
        let mut process = Child::spawn_logged(REGISTRY_PACKAGE, command, &log)?;
        let address = process.wait_until("port", START_TIMEOUT, || {
            find_address(&fs::read_to_string(&log).ok()?)
        })?;
        Ok(Self { process, address })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Fails when it has exited.
    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }
}

/// Returns the address in the line of the log that is written once the registry listens.
fn find_address(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once("listening on ")?;
    // A line that is not complete yet may end within the port.
    let (line, _) = rest.split_once('\n')?;
    line.split(['"', ' ', ',']).next()?.parse().ok()
}

/// Finds the registry in the `PATH`, or extracts it from its Debian package.
pub fn find_or_fetch() -> Result<PathBuf> {
    if let Some(path) = toolchain::find_in_path(REGISTRY_PACKAGE) {
        return Ok(path);
    }
    let folder = paths::create_target_subdir(REGISTRY_PACKAGE)?;
    let binary = folder.join("usr/bin").join(REGISTRY_PACKAGE);
    if !binary.is_file() {
        debian::extract_packages(&[REGISTRY_PACKAGE], &folder)?;
    }
    Ok(binary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_the_log_is_found_once_its_line_is_complete() {
        let line =
            r#"time="2026-11-28T10:00:00Z" level=info msg="listening on 10.11.0.1:41033" go.version=go1.19"#;
        assert_eq!(find_address(line), None);
        let found = find_address(&format!("first\n{line}\n"));
        assert_eq!(found, Some(([10, 11, 0, 1], 41033).into()));
    }
}
