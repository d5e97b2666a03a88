//! The real DNS server for tests: Debian's pdns-server.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::debian;

/// The server, and a backend that needs neither a database server nor a schema.
const SERVER_PACKAGES: &[&str] = &["pdns-server", "pdns-backend-lmdb"];

/// Returns the root of an installed server with this backend, or that of the extracted packages, and extracts them
/// unless it has been done.
pub fn find_or_fetch() -> Result<PathBuf> {
    let backend = format!(
        "/usr/lib/{}-linux-gnu/pdns/liblmdbbackend.so",
        std::env::consts::ARCH
    );
    if ["/usr/sbin/pdns_server", &backend]
        .iter()
        .all(|file| Path::new(file).is_file())
    {
        return Ok("/".into());
    }
    debian::find_or_extract(SERVER_PACKAGES, "pdns-server")
}
