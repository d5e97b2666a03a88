//! What a plugin's recordings say of a new build of it.

use std::fmt;

use serde::{Deserialize, Serialize};

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
