//! Differences between a replay and its recording, and the calls that may differ without ending the replay.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    contract::host_calls::{EffectClass, HostCall},
    recording::{comparison::ValueChange, value::RecordedValue},
};

/// A difference between a replay and its recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "difference", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Difference {
    /// A call with other arguments, which was answered as recorded.
    Arguments {
        /// Its number in the recording, from 1.
        call: usize,
        /// `kubernetes.apply`.
        function: String,
        /// The changed arguments.
        changes: Vec<ValueChange>,
    },
    /// A call that is not in the recording, and needs no result from it.
    Additional {
        /// The number of the recorded call that follows, from 1.
        call: usize,
        /// `log.write`.
        function: String,
    },
    /// A recorded call that was not made.
    Missing {
        /// Its number in the recording, from 1.
        call: usize,
        /// `log.write`.
        function: String,
    },
    /// A call that the recording has no result for. The replay ends with it.
    Diverged {
        /// The number of the recorded call that was expected, from 1.
        call: usize,
        /// The expected function; empty at the end of the recording.
        recorded: String,
        /// The function that was called in its place.
        function: String,
        /// The changed arguments, if the function is the same.
        changes: Vec<ValueChange>,
    },
    /// Another outcome, failure or trap.
    Outcome {
        /// The changed fields.
        changes: Vec<ValueChange>,
    },
}

impl Difference {
    /// Returns true for a difference that others can see: writes, requests and the outcome, unlike log lines and metrics.
    pub fn affects_others(&self) -> bool {
        match self {
            Self::Arguments { function, .. } => !is_observation(function),
            Self::Additional { function, .. } | Self::Missing { function, .. } => {
                !is_observation(function) && !is_ambient(function)
            }
            Self::Diverged { .. } | Self::Outcome { .. } => true,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments {
                call,
                function,
                changes,
            } => {
                write!(f, "call {call}, {function}: {}", ChangesDisplay(changes))
            }
            Self::Additional { call, function } => {
                write!(f, "before call {call}: {function} is called besides")
            }
            Self::Missing { call, function } => write!(f, "call {call}, {function}: is not made"),
            Self::Diverged {
                call,
                recorded,
                function,
                changes,
            } => match (recorded == function, recorded.is_empty()) {
                (true, _) => write!(
                    f,
                    "diverges at call {call}, {function}: {}",
                    ChangesDisplay(changes)
                ),
                (false, true) => write!(
                    f,
                    "diverges at call {call}: {function} is called, where the recording ends"
                ),
                (false, false) => write!(
                    f,
                    "diverges at call {call}: {function} is called in place of {recorded}"
                ),
            },
            Self::Outcome { changes } => write!(f, "the outcome: {}", ChangesDisplay(changes)),
        }
    }
}

/// Formats changes on one line.
struct ChangesDisplay<'a>(&'a [ValueChange]);

impl fmt::Display for ChangesDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format_value =
            |value: &Option<serde_json::Value>| value.as_ref().map_or("nothing".into(), ToString::to_string);
        for (i, change) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            let (was, is) = (format_value(&change.recorded), format_value(&change.replayed));
            write!(f, "{separator}{}: {was} → {is}", change.path)?;
        }
        Ok(())
    }
}

/// Returns the effect class of a function; none if this host does not know it, as in a recording of another version.
fn effect_class(function: &str) -> Option<EffectClass> {
    HostCall::from_name(function).map(HostCall::effect)
}

/// Returns whether a call has no result and only people who observe the plugin see its effect.
pub(super) fn is_observation(function: &str) -> bool {
    effect_class(function) == Some(EffectClass::Observe)
}

/// Returns whether a call has no result, so that any number of them can be answered.
pub(super) fn has_no_result(function: &str) -> bool {
    matches!(
        effect_class(function),
        Some(EffectClass::Observe | EffectClass::Notify)
    )
}

/// Returns whether the result is true at any time, so that any number of calls can be answered.
pub(super) fn is_ambient(function: &str) -> bool {
    effect_class(function) == Some(EffectClass::Ambient)
}

/// Returns whether a call with other arguments may be answered as recorded, since its result says little about them.
pub(super) fn is_write(function: &str, arguments: &RecordedValue) -> bool {
    let writes = |request: &RecordedValue| {
        let method = request.get("method").and_then(RecordedValue::text);
        method.is_some_and(|method| !matches!(method, "get" | "head" | "options"))
    };
    match effect_class(function) {
        Some(EffectClass::Request) => match (arguments.get("request"), arguments.get("requests")) {
            (Some(request), _) => writes(request),
            (None, Some(RecordedValue::List(requests))) => requests.iter().all(writes),
            _ => false,
        },
        Some(EffectClass::Write) => true,
        _ => has_no_result(function),
    }
}
