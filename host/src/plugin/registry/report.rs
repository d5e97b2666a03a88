//! Reports of the registry about its plugins, as `/plugins` gives them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::slot::Slot;
use crate::plugin::{HookState, LoadState, SlotId, spec::RolledBack};

/// Differences named in the one-line form of a preflight report.
const MAX_SHOWN_DIFFERENCES: usize = 3;

/// State of one component file, or one `Plugin` object.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SlotReport {
    /// Name of the plugin; until a build has been loaded, that of the file or object.
    pub name: String,
    /// The component file, or `Plugin/NAME`.
    pub file: String,
    /// Version of the build that serves.
    pub version: String,
    /// Digest of the build that serves; empty when none does.
    pub digest: String,
    /// State of the newest build.
    pub state: LoadState,
    /// Reason why the newest build does not serve, as a CamelCase word.
    pub reason: String,
    /// Message why the newest build does not serve.
    pub message: String,
    /// True when the refusal may pass by itself, and is retried.
    pub passing: bool,
    /// True when the build that serves is stopped because it violates the host's policy.
    pub stopped: bool,
    /// Reason and message why the signatures of a build that was accepted before could not be checked by the keys of now.
    pub unverified: Option<(String, String)>,
    /// Milliseconds from the change of the file to serving, at the last replacement.
    pub swapped_ms: Option<f64>,
    /// Number of builds that served.
    pub served: u64,
    /// Number of builds that were refused.
    pub refused: u64,
    /// Number of builds that were rolled back.
    pub rolled_back: u64,
    /// Progress of its life-cycle hooks.
    pub hooks: HookState,
    /// The kinds it reconciles.
    pub kinds: Vec<String>,
    /// Digest of the last build that completed its trial.
    pub last_good: String,
    /// Digest of the build that was rolled back.
    pub bad: String,
    /// The rollback to record in the status of the `Plugin` object: by this process, or by another one that has recorded it.
    #[serde(skip)]
    pub rollback: Option<RolledBack>,
    /// Number of objects whose last call trapped.
    pub trapping: usize,
    /// Message of the last trap.
    pub trap: String,
    /// The build that reconciles a part of the objects.
    pub canary: Option<CanaryReport>,
    /// Result of the preflight with which the build replaced the one before it.
    pub preflight: Option<PreflightReport>,
    /// Generation of the `Plugin` object that this is about; 0 for a file, and until the object has been processed.
    pub generation: i64,
}

/// State of a canary.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CanaryReport {
    /// Its version; empty until it has been loaded.
    pub version: String,
    /// Its digest; empty until it has been loaded.
    pub digest: String,
    /// `Loading`, `Serving`, `Refused` or `RolledBack`.
    pub state: LoadState,
    /// Message why it does not serve.
    pub message: String,
    /// The objects it reconciles: a percentage or a label selector.
    pub objects: String,
    /// Number of objects it has reconciled.
    pub reconciled: usize,
    /// Number of those whose last call failed.
    pub failing: usize,
}

/// Result of replaying recordings with a new build before it serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreflightReport {
    /// Number of recordings that were replayed.
    pub replayed: usize,
    /// Number of those without a difference but in log lines and the like.
    pub same: usize,
    /// Recordings with a difference in effects on the cluster or on upstreams.
    pub differing: Vec<PreflightDifference>,
    /// Recordings in which the build trapped, where the one before it did not.
    pub trapped: Vec<PreflightDifference>,
    /// Number of recordings that were not replayed, for lack of time or because they can't be.
    pub skipped: usize,
    /// Duration of the preflight.
    pub milliseconds: u64,
}

/// A recording in which a new build behaves differently.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreflightDifference {
    /// Id of the recording.
    pub recording: String,
    /// The object that was reconciled.
    pub object: String,
    /// The first difference, or the message of the trap.
    pub what: String,
}

impl fmt::Display for PreflightReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} recordings replay identically",
            self.same, self.replayed
        )?;
        for differing in self
            .differing
            .iter()
            .chain(&self.trapped)
            .take(MAX_SHOWN_DIFFERENCES)
        {
            write!(f, "; {}: {}", differing.object, differing.what)?;
        }
        Ok(())
    }
}

impl Slot {
    pub(super) fn report(&self, id: &SlotId) -> SlotReport {
        let serving = self.serving();
        let (trapping, trap) = serving.map(|p| p.health.trapping()).unwrap_or_default();
        let (reason, message) = self.describe_problem();
        let previous = self.previous.as_ref().filter(|p| p.violation.is_none());
        let on_trial = serving.filter(|p| p.health.is_on_trial());
        let last_good = on_trial
            .and(previous.map(|previous| &previous.plugin))
            .or(serving);
        let newest = self.newest.as_ref();
        let bad = newest.filter(|_| self.choice.rolled_back.is_some());
        SlotReport {
            name: serving.map_or_else(|| id.provisional_name().to_owned(), |p| p.name().to_string()),
            file: id.to_string(),
            version: serving.map(|p| p.version.clone()).unwrap_or_default(),
            digest: serving.map(|p| p.digest.clone()).unwrap_or_default(),
            state: self.load_state(),
            reason,
            message,
            passing: self.refusal.as_ref().is_some_and(|e| e.passing),
            stopped: self.choice.stopped.is_some(),
            unverified: self
                .unverified
                .as_ref()
                .map(|e| (e.reason.to_owned(), e.message.clone())),
            hooks: self.hooks.clone(),
            swapped_ms: self.replaced_after.map(|d| d.as_micros() as f64 / 1000.0),
            served: self.served,
            refused: self.refused,
            rolled_back: self.rolled_back,
            kinds: serving
                .map(|p| p.kinds.iter().map(|k| k.gvk.to_string()).collect())
                .unwrap_or_default(),
            last_good: last_good.map(|p| p.digest.clone()).unwrap_or_default(),
            bad: bad.map(|b| b.plugin.digest.clone()).unwrap_or_default(),
            rollback: self.rollback_to_record(),
            trapping,
            trap: if trapping > 0 { trap } else { String::new() },
            canary: self.report_canary(),
            preflight: serving.and_then(|p| p.preflight.clone()),
            generation: self.generation,
        }
    }

    fn load_state(&self) -> LoadState {
        match (
            self.serving(),
            self.choice.stopped.as_ref().or(self.refusal.as_ref()),
        ) {
            (Some(p), None) if p.suspended => LoadState::Suspended,
            (Some(_), Some(_)) => LoadState::Refused,
            (Some(_), None) if self.choice.rolled_back.is_some() => LoadState::RolledBack,
            (Some(_), None) => LoadState::Serving,
            (None, Some(_)) => LoadState::Failed,
            (None, None) => LoadState::Loading,
        }
    }

    /// Reason and message why the newest build does not serve; both empty when it does.
    fn describe_problem(&self) -> (String, String) {
        if let Some(refusal) = self.choice.stopped.as_ref().or(self.refusal.as_ref()) {
            return (refusal.reason.to_owned(), refusal.message.clone());
        }
        let (Some(why), Some(bad), Some(now)) = (&self.choice.rolled_back, &self.newest, self.serving())
        else {
            return Default::default();
        };
        let short = |digest: &str| digest.get(..12).unwrap_or_default().to_owned();
        let message = format!(
            "{} was rolled back, {} serves again: {why}",
            short(&bad.plugin.digest),
            short(&now.digest)
        );
        (LoadState::RolledBack.name().to_owned(), message)
    }

    fn report_canary(&self) -> Option<CanaryReport> {
        let canary = self.canary.as_ref()?;
        let build = canary.build.as_ref();
        let (reconciled, failing) = build
            .map(|build| build.plugin.health.count_objects())
            .unwrap_or_default();
        let rolled_back = build.and_then(|build| build.rolled_back.as_ref());
        let refusal = canary.refusal.as_ref().or(self.choice.canary_refusal.as_ref());
        let (state, message) = match (refusal, rolled_back) {
            (Some(refusal), _) => (
                LoadState::Refused,
                format!("{}: {}", refusal.reason, refusal.message),
            ),
            (None, Some(why)) => (LoadState::RolledBack, why.clone()),
            (None, None) if build.is_some() => (LoadState::Serving, String::new()),
            (None, None) => (LoadState::Loading, String::new()),
        };
        Some(CanaryReport {
            version: build.map(|b| b.plugin.version.clone()).unwrap_or_default(),
            digest: build.map(|b| b.plugin.digest.clone()).unwrap_or_default(),
            state,
            message,
            objects: canary.selector.to_string(),
            reconciled,
            failing,
        })
    }
}
