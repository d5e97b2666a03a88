//! The contract this builder was compiled with.

use anyhow::{Result, anyhow};
use wit_parser::{Resolve, SourceMap, WorldId};

/// Files of `wit/`, by name.
pub const WIT_FILES: [(&str, &str); 4] = [
    ("types.wit", include_str!("../../../wit/types.wit")),
    ("reconciler.wit", include_str!("../../../wit/reconciler.wit")),
    ("capabilities.wit", include_str!("../../../wit/capabilities.wit")),
    ("world.wit", include_str!("../../../wit/world.wit")),
];

/// World of a plugin that exports all that a plugin may export; `wit/` has those that export less.
pub const FULL_WORLD: (&str, &str) = (
    "full.wit",
    "package ostler:plugin@0.1.0;\nworld full-plugin { include messaging-plugin; include lifecycle-plugin; }\n",
);

/// Interfaces that a plugin exports besides the reconciler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionalExports {
    /// The message handler.
    pub messages: bool,
    /// The life-cycle hooks.
    pub lifecycle: bool,
}

impl OptionalExports {
    /// Returns the world of a plugin with these exports.
    #[must_use]
    pub fn world(self) -> &'static str {
        match (self.messages, self.lifecycle) {
            (false, false) => "plugin",
            (true, false) => "messaging-plugin",
            (false, true) => "lifecycle-plugin",
            (true, true) => "full-plugin",
        }
    }
}

/// Resolves the contract together with other WIT files, and finds a world in it.
///
/// # Errors
/// When one of the other files does not parse, or there is no such world.
pub fn resolve_world(others: &[(&str, &str)], world: &str) -> Result<(Resolve, WorldId)> {
    let mut map = SourceMap::new();
    for (name, text) in WIT_FILES.iter().chain([&FULL_WORLD]).chain(others) {
        map.push_str(name, *text);
    }
    let group = map.parse().map_err(|(_, e)| anyhow!("{e}"))?;
    let mut resolve = Resolve::default();
    let package = resolve.push_group(group)?;
    let world = resolve.packages[package].worlds.get(world).copied();
    Ok((
        resolve,
        world.ok_or_else(|| anyhow!("the contract has no world of this name"))?,
    ))
}
