//! Chromium with its WebDriver, from Debian's packages.

use std::path::PathBuf;

use anyhow::Result;
use ostler_builder::toolchain;

use crate::debian;

/// Packages of the browser; the fonts are those that a page of text needs.
const PACKAGES: &[&str] = &["chromium", "chromium-driver", "fonts-dejavu-core"];

/// Returns the folder below which `usr/bin/chromedriver` and `usr/lib/chromium/chromium` are: that of the system, or one that the packages
/// are extracted into.
pub fn find_or_fetch() -> Result<PathBuf> {
    if toolchain::find_in_path("chromedriver").is_some_and(|path| path.starts_with("/usr/bin")) {
        return Ok("/".into());
    }
    debian::find_or_extract(PACKAGES, "chromium")
}
