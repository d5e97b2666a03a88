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

/// World of a plugin.
pub const PLUGIN_WORLD: &str = "plugin";

/// World of a plugin that also handles messages.
pub const MESSAGING_WORLD: &str = "messaging-plugin";

/// Returns the world of a plugin, by whether it exports a message handler.
#[must_use]
pub fn plugin_world(messages: bool) -> &'static str {
    if messages { MESSAGING_WORLD } else { PLUGIN_WORLD }
}

/// Resolves the contract together with other WIT files, and finds a world in it.
///
/// # Errors
/// When one of the other files does not parse, or there is no such world.
pub fn resolve_world(others: &[(&str, &str)], world: &str) -> Result<(Resolve, WorldId)> {
    let mut map = SourceMap::new();
    for (name, text) in WIT_FILES.iter().chain(others) {
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
