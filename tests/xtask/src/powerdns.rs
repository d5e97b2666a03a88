//! The real DNS server for tests: Debian's pdns-server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{debian, paths};

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
    let folder = paths::create_target_subdir("pdns-server")?;
    // Written last, so that an extraction that was interrupted is repeated.
    let complete = folder.join("complete");
    if !complete.is_file() {
        debian::extract_with_dependencies(SERVER_PACKAGES, &folder)?;
        fs::write(&complete, "")?;
    }
    Ok(folder)
}
