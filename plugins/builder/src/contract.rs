//! The contract, as this builder was made with it.

use anyhow::{Result, anyhow};
use wit_parser::{Resolve, SourceMap, WorldId};

/// The files of `wit/`.
pub const FILES: [(&str, &str); 4] = [
    ("types.wit", include_str!("../../../wit/types.wit")),
    ("reconciler.wit", include_str!("../../../wit/reconciler.wit")),
    ("capabilities.wit", include_str!("../../../wit/capabilities.wit")),
    ("world.wit", include_str!("../../../wit/world.wit")),
];

/// The world of a plugin.
pub const WORLD: &str = "plugin";

/// The contract with these files besides, and a world of it.
///
/// # Errors
/// When one of the other files is wrong.
pub fn resolve(others: &[(&str, &str)], world: &str) -> Result<(Resolve, WorldId)> {
    let mut map = SourceMap::new();
    for (name, text) in FILES.iter().chain(others) {
        map.push_str(name, *text);
    }
    let group = map.parse().map_err(|(_, e)| anyhow!("{e}"))?;
    let mut resolve = Resolve::default();
    let package = resolve.push_group(group)?;
    let world = resolve.packages[package].worlds.get(world).copied();
    Ok((resolve, world.ok_or_else(|| anyhow!("no such world"))?))
}
