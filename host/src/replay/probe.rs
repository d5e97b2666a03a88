//! What a plugin's recordings say of a new build.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::replay;
use crate::{engine::Engine, plugin::Plugin, tape::rolling::Finished};

/// What the last recordings say of a new build.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Recordings that were replayed.
    pub replayed: usize,
    /// Of these, those in which nothing differs but log lines and the like.
    pub same: usize,
    /// Those in which others would see a difference.
    pub differing: Vec<Differing>,
    /// Those in which it trapped, where the build before did not.
    pub trapped: Vec<Differing>,
    /// Recordings for which there was no time, or that can't be replayed.
    pub skipped: usize,
    /// How long it took.
    pub milliseconds: u64,
}

/// A recording in which a new build does otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Differing {
    /// Its id.
    pub recording: String,
    /// The object.
    pub object: String,
    /// The first difference, or how it trapped.
    pub what: String,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} recordings replay the same", self.same, self.replayed)?;
        for differing in self.differing.iter().chain(&self.trapped).take(3) {
            write!(f, "; {}: {}", differing.object, differing.what)?;
        }
        Ok(())
    }
}

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
