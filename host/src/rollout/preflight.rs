//! A new build is tried with recordings before it serves.

use std::{sync::Arc, time::Duration};

use tracing::{info, warn};

use crate::{
    plugin::{Plugin, Refusal, Registry},
    recording::Tapes,
    replay,
    sandbox::engine::Engine,
};

/// How long a new build may be probed with recordings: a swap is to take 300 ms at most.
const PROBING: Duration = Duration::from_millis(100);

/// Replays recordings of the build before with a build that is to replace it. One that traps where that did not is
/// refused; other differences are told.
pub(super) async fn probe(
    engine: &Arc<Engine>,
    tapes: &Tapes,
    registry: &Registry,
    id: &str,
    plugin: Plugin,
) -> Result<Plugin, Refusal> {
    let before = registry.serves(id);
    if before.is_none_or(|before| before.digest == plugin.digest) || registry.taken_back(id, &plugin) {
        return Ok(plugin);
    }
    let recordings = tapes.of_plugin(plugin.name());
    if recordings.is_empty() {
        return Ok(plugin);
    }
    let probe = replay::probe(engine, &plugin, &recordings, PROBING).await;
    if let Some(trapped) = probe.trapped.first() {
        let why = format!(
            "it traps where the build before did not: {} (recording {}): {}",
            trapped.object, trapped.recording, trapped.what
        );
        return Err(Refusal::new("TrapsInReplay", why));
    }
    let (name, digest) = (&**plugin.name(), &plugin.digest[..12]);
    match probe.differing.is_empty() {
        true => info!(plugin = name, digest, "{probe}"),
        false => warn!(plugin = name, digest, "other effects than before: {probe}"),
    }
    Ok(Plugin {
        probe: Some(probe),
        ..plugin
    })
}
