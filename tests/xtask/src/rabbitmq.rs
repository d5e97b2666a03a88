//! The real message broker for tests: Debian's rabbitmq-server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{debian, paths};

/// Packages that the broker runs from: itself, and the applications of Erlang that it loads without plugins.
const BROKER_PACKAGES: &[&str] = &[
    "rabbitmq-server",
    "erlang-asn1",
    "erlang-base",
    "erlang-crypto",
    "erlang-inets",
    "erlang-mnesia",
    "erlang-os-mon",
    "erlang-parsetools",
    "erlang-public-key",
    "erlang-runtime-tools",
    "erlang-ssl",
    "erlang-syntax-tools",
    "erlang-tools",
    "erlang-xmerl",
];

/// Folder of the broker in its package; one subfolder per version.
const BROKER_FOLDER: &str = "usr/lib/rabbitmq/lib";

/// Returns the root of the extracted packages, and extracts them unless it has been done. An installed broker is not
/// used: Debian's commands run it as its own user only.
pub fn find_or_fetch() -> Result<PathBuf> {
    let folder = paths::create_target_subdir("rabbitmq-server")?;
    // Written last, so that an extraction that was interrupted is repeated.
    let complete = folder.join("complete");
    if !complete.is_file() {
        debian::extract_packages(BROKER_PACKAGES, &folder)?;
        remove_plugins(&folder.join(BROKER_FOLDER))?;
        fs::write(&complete, "")?;
    }
    Ok(folder)
}

/// Removes the plugins, which no test enables. The broker reads the attributes of every module in its code path when
/// it starts: without the plugins it takes half the time.
fn remove_plugins(broker: &Path) -> Result<()> {
    for version in fs::read_dir(broker).with_context(|| broker.display().to_string())? {
        for entry in fs::read_dir(version?.path().join("plugins"))? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // The prelaunch is part of the broker.
            if name.starts_with("rabbitmq_") && !name.starts_with("rabbitmq_prelaunch-") {
                fs::remove_dir_all(entry.path())?;
            }
        }
    }
    Ok(())
}
