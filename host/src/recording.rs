//! Recordings of calls: the host calls of a reconcile with their results, to be read by people and replayed.
//!
//! While a reconcile runs, values are only cloned; they are converted when a recording is read. Of plugins that may read
//! Secrets no value is recorded, because a value that a component derives from a Secret cannot be recognized.

mod buffer;
pub mod codec;
pub mod comparison;
mod difference;
pub mod follow;
pub mod format;
pub mod recorder;
mod replayer;
pub mod store;
pub mod trace;
pub mod value;
pub mod wasi;

use std::time::Duration;

pub(crate) use self::replayer::ReplayProgress;
pub use self::{
    difference::Difference,
    follow::{FollowEvent, FollowKind, FollowStream},
    replayer::{ReplayStop, Replayer},
    store::{RecordingSettings, RecordingStore, Retention},
};
use self::{
    recorder::{CallEnd, RecordedCall, Recorder},
    wasi::WasiInputs,
};

/// How the host calls of one call into a component are handled.
#[derive(Default)]
pub enum CallMode {
    /// They are executed.
    #[default]
    Live,
    /// They are executed and recorded.
    Record(Box<Recorder>),
    /// They are answered from a recording, and nothing is executed.
    Replay(Replayer),
}

impl CallMode {
    /// True for a replay.
    pub fn is_replay(&self) -> bool {
        matches!(self, Self::Replay(_))
    }

    /// The clocks and the randomness of a component that imports WASI; none for the real ones, unrecorded.
    pub fn wasi_inputs(&mut self) -> Option<WasiInputs> {
        match self {
            Self::Live => None,
            Self::Record(recorder) => Some(recorder.wasi_inputs()),
            Self::Replay(replayer) => Some(replayer.wasi_inputs()),
        }
    }

    /// Ends the call and returns its recording, if there is one.
    pub fn finish(self, end: &CallEnd, cpu_time: Duration) -> Option<RecordedCall> {
        match self {
            Self::Record(recorder) => Some(recorder.finish(end, cpu_time)),
            Self::Live | Self::Replay(_) => None,
        }
    }
}
