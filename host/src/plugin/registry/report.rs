//! What the registry tells of a plugin.

use serde::{Deserialize, Serialize};

use super::{Bad, Canary, Slot};
use crate::plugin::Probe;

/// What is known of one component file, or one `Plugin` object.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The plugin's name; the file's until it has been loaded once.
    pub name: String,
    /// The component file, or `Plugin/NAME`.
    pub file: String,
    /// The plugin's version.
    pub version: String,
    /// Digest of the build that serves; empty when none does.
    pub digest: String,
    /// `serving`, `suspended` (its objects wait), `loading`, `failed` (nothing serves), `kept` (the newest is bad, the
    /// one before serves), or `rolled-back` (the newest trapped, the one before serves again).
    pub state: &'static str,
    /// What is wrong with the newest, in a word.
    pub reason: String,
    /// What is wrong with the newest.
    pub message: String,
    /// Whether that may pass by itself.
    pub passing: bool,
    /// Milliseconds from the file's change to serving, of the last swap.
    pub swapped_ms: Option<f64>,
    /// Builds that came to serve.
    pub served: u64,
    /// Builds that did not.
    pub refused: u64,
    /// Builds that were taken back.
    pub rolled_back: u64,
    /// Its life-cycle hooks: empty when it has none, `pending`, `done`, or what is wrong (its objects wait).
    pub hooks: String,
    /// The kinds it reconciles.
    pub kinds: Vec<String>,
    /// Digest of the last build that has served well.
    pub last_good: String,
    /// Digest of the build that was taken back.
    pub bad: String,
    /// Objects whose last call trapped.
    pub trapping: usize,
    /// The last trap.
    pub trap: String,
    /// The build that serves a part of the objects.
    pub canary: Option<CanaryReport>,
    /// What recordings said of it when it replaced the build before.
    pub probe: Option<Probe>,
    /// Generation of the `Plugin` object that this is about; 0 for a file, and until it has been dealt with.
    pub generation: i64,
}

/// What is known of a canary.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CanaryReport {
    /// Its version; empty until it has been loaded.
    pub version: String,
    /// Its digest; empty until it has been loaded.
    pub digest: String,
    /// `Serving`, `Loading`, `Refused` or `RolledBack`.
    pub state: String,
    /// Why it does not serve.
    pub message: String,
    /// Which objects it reconciles.
    pub objects: String,
    /// Objects it has reconciled.
    pub reconciled: usize,
    /// Those of them whose last call failed.
    pub failing: usize,
}

impl Slot {
    pub(super) fn report(&self, id: &str) -> Report {
        let serving = self.serving.as_ref();
        let bare = || {
            id.trim_end_matches(".wasm")
                .trim_start_matches("Plugin/")
                .to_owned()
        };
        let (trapping, trap) = serving.map(|p| p.record.trapping()).unwrap_or_default();
        let bad = self.bad.as_ref();
        let back = |b: &Bad| {
            let short = |digest: &str| digest.get(..12).unwrap_or_default().to_owned();
            let now = serving.map_or_else(String::new, |p| short(&p.digest));
            let message = format!(
                "{} was taken back, {now} serves again: {}",
                short(&b.plugin.digest),
                b.why
            );
            ("RolledBack".to_owned(), message)
        };
        let refused = self
            .refusal
            .as_ref()
            .map(|r| (r.reason.to_owned(), r.message.clone()));
        let (reason, message) = refused.or_else(|| bad.map(back)).unwrap_or_default();
        let trying = serving.filter(|p| p.record.on_trial());
        let good = trying.and(self.good.as_ref()).or(serving);
        Report {
            name: serving.map_or_else(bare, |p| p.name().to_string()),
            file: id.to_owned(),
            version: serving.map(|p| p.version.clone()).unwrap_or_default(),
            digest: serving.map(|p| p.digest.clone()).unwrap_or_default(),
            state: match (serving, &self.refusal) {
                (Some(p), None) if p.suspended => "suspended",
                (Some(_), Some(_)) => "kept",
                (Some(_), None) if bad.is_some() => "rolled-back",
                (Some(_), None) => "serving",
                (None, Some(_)) => "failed",
                (None, None) => "loading",
            },
            reason,
            message,
            passing: self.refusal.as_ref().is_some_and(|r| r.passing),
            hooks: self.hooks.clone(),
            swapped_ms: self.swapped.map(|d| d.as_micros() as f64 / 1000.0),
            served: self.served,
            refused: self.refused,
            rolled_back: self.rolled_back,
            kinds: serving
                .map(|p| p.kinds.iter().map(|k| k.gvk.to_string()).collect())
                .unwrap_or_default(),
            last_good: good.map(|p| p.digest.clone()).unwrap_or_default(),
            bad: bad.map(|b| b.plugin.digest.clone()).unwrap_or_default(),
            trapping,
            trap: if trapping > 0 { trap } else { String::new() },
            canary: self.canary.as_ref().map(Canary::report),
            probe: serving.and_then(|p| p.probe.clone()),
            generation: self.generation,
        }
    }
}

impl Canary {
    pub(super) fn report(&self) -> CanaryReport {
        let build = self.serving.as_ref().or(self.bad.as_ref().map(|b| &b.plugin));
        let (reconciled, failing) = build.map(|p| p.record.counted()).unwrap_or_default();
        let (state, message) = match (&self.serving, &self.refusal, &self.bad) {
            (Some(_), _, _) => ("Serving", String::new()),
            (None, Some(refusal), _) => ("Refused", format!("{}: {}", refusal.reason, refusal.message)),
            (None, None, Some(bad)) => ("RolledBack", bad.why.clone()),
            (None, None, None) => ("Loading", String::new()),
        };
        CanaryReport {
            version: build.map(|p| p.version.clone()).unwrap_or_default(),
            digest: build.map(|p| p.digest.clone()).unwrap_or_default(),
            state: state.into(),
            message,
            objects: self.choice.to_string(),
            reconciled,
            failing,
        }
    }
}
