//! A new build is run against recordings of the plugin.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::replay;
use crate::{
    plugin::{Differing, Plugin, Probe},
    recording::recorder::Finished,
    sandbox::engine::Engine,
};

/// Runs a build against recordings of the plugin, as long as there is time.
pub async fn probe(
    engine: &Engine,
    plugin: &Plugin,
    recordings: &[Arc<Finished>],
    budget: Duration,
) -> Probe {
    let started = Instant::now();
    let mut probe = Probe::default();
    for (i, finished) in recordings.iter().enumerate() {
        let left = budget.saturating_sub(started.elapsed());
        if left.is_zero() {
            probe.skipped += recordings.len() - i;
            break;
        }
        if plugin.kind(&finished.key().gvk).is_none() {
            probe.skipped += 1;
            continue;
        }
        // Configured otherwise, it may rightly do otherwise.
        if finished.config() != plugin.terms.config {
            probe.skipped += 1;
            continue;
        }
        let recording = Arc::new(finished.recording());
        let replaying = replay(engine, &plugin.compiled, recording.clone());
        let Ok(Ok(replayed)) = tokio::time::timeout(left, replaying).await else {
            probe.skipped += 1;
            continue;
        };
        probe.replayed += 1;
        let differing = |what: String| Differing {
            recording: recording.metadata.name.clone(),
            object: recording.object.clone(),
            what,
        };
        if replayed.trapped {
            probe.trapped.push(differing(replayed.ended));
        } else {
            match replayed.differences.iter().find(|d| d.of_effects()) {
                Some(first) => probe.differing.push(differing(first.to_string())),
                None => probe.same += 1,
            }
        }
    }
    probe.milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    probe
}
