//! Preflight of a new build: recordings of the plugin are replayed with it before it may serve.
//!
//! It is the last check before [`PluginRegistry::serve`], which makes the build replace the one that serves.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tracing::{info, warn};

use crate::{
    kube::well_known::plugin_reason,
    plugin::{LoadError, Plugin, PluginRegistry, PreflightDifference, PreflightReport, SlotId},
    recording::{RecordingStore, recorder::RecordedCall},
    replay,
    sandbox::engine::Engine,
};

/// Limit of the time for replays: a replacement is to take 300 ms at most.
const PREFLIGHT_TIMEOUT: Duration = Duration::from_millis(100);

/// Replays recordings of the plugin with a build that is to replace the one that serves. A build that traps where that
/// one did not is refused; other differences are logged and reported.
pub(super) async fn preflight_replay(
    engine: &Arc<Engine>,
    store: &RecordingStore,
    registry: &PluginRegistry,
    id: &SlotId,
    plugin: Plugin,
) -> Result<Plugin, LoadError> {
    let before = registry.serving_in(id);
    if before.is_none_or(|before| before.digest == plugin.digest) || registry.is_rolled_back(id, &plugin) {
        return Ok(plugin);
    }
    let recordings = store.list_replayable(plugin.name());
    if recordings.is_empty() {
        return Ok(plugin);
    }
    let report = replay_all(engine, &plugin, &recordings, PREFLIGHT_TIMEOUT).await;
    if let Some(trapped) = report.trapped.first() {
        let why = format!(
            "it traps where the previous build did not: {} (recording {}): {}",
            trapped.object, trapped.recording, trapped.what
        );
        return Err(LoadError::new(plugin_reason::PREFLIGHT_FAILED, why));
    }
    let (name, digest) = (&**plugin.name(), &plugin.digest[..12]);
    if report.differing.is_empty() {
        info!(plugin = name, digest, result = %report, "preflight replay passed");
    } else {
        warn!(plugin = name, digest, result = %report, "preflight replay shows different effects");
    }
    Ok(Plugin {
        preflight: Some(report),
        ..plugin
    })
}

/// Replays recordings until the time is over; the others are counted as skipped.
async fn replay_all(
    engine: &Engine,
    plugin: &Plugin,
    recordings: &[Arc<RecordedCall>],
    timeout: Duration,
) -> PreflightReport {
    let started = Instant::now();
    let mut report = PreflightReport::default();
    for (i, recording) in recordings.iter().enumerate() {
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            report.skipped += recordings.len() - i;
            break;
        }
        if is_comparable(plugin, recording) {
            replay_one(engine, plugin, recording, left, &mut report).await;
        } else {
            report.skipped += 1;
        }
    }
    report.milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    report
}

/// False for a recording of a kind that the build does not reconcile, and for one with another configuration, which
/// may rightly have other effects.
fn is_comparable(plugin: &Plugin, recording: &RecordedCall) -> bool {
    plugin.kind(&recording.key().gvk).is_some() && recording.config() == plugin.policy.config
}

/// Replays one recording and adds the result to the report.
async fn replay_one(
    engine: &Engine,
    plugin: &Plugin,
    recording: &RecordedCall,
    timeout: Duration,
    report: &mut PreflightReport,
) {
    let recording = Arc::new(recording.to_recording());
    let replaying = replay::replay(engine, &plugin.compiled, recording.clone());
    let Ok(Ok(replayed)) = tokio::time::timeout(timeout, replaying).await else {
        report.skipped += 1;
        return;
    };
    report.replayed += 1;
    let describe = |what: String| PreflightDifference {
        recording: recording.metadata.name.clone(),
        object: recording.object.clone(),
        what,
    };
    if replayed.trapped {
        report.trapped.push(describe(replayed.ended));
    } else {
        match replayed.differences.iter().find(|d| d.affects_others()) {
            Some(first) => report.differing.push(describe(first.to_string())),
            None => report.same += 1,
        }
    }
}
