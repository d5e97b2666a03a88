//! How a replay differs from its recording, and which calls may differ without ending it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    contract::host_calls::{EffectClass, HostCall},
    recording::value::{Change, RecordedValue},
};

/// How a replay differs from what was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "difference", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Difference {
    /// A call with other arguments, answered as recorded.
    Arguments {
        /// Its number on the tape, from 1.
        call: usize,
        /// `kubernetes.apply`.
        function: String,
        /// Where they differ.
        changes: Vec<Change>,
    },
    /// A call that the tape doesn't have and that needs no answer from it.
    Additional {
        /// Before which call of the tape.
        call: usize,
        /// `log.write`.
        function: String,
    },
    /// A call of the tape that was not made.
    Missing {
        /// Its number on the tape, from 1.
        call: usize,
        /// `log.write`.
        function: String,
    },
    /// A call that the tape can't answer: here the replay ended.
    Departed {
        /// The number on the tape of the call that was to come, from 1.
        call: usize,
        /// What was recorded; empty when nothing more was.
        recorded: String,
        /// What was called in its place.
        function: String,
        /// Its arguments where the function is the same.
        changes: Vec<Change>,
    },
    /// The calls came to something else.
    Outcome {
        /// Where it differs.
        changes: Vec<Change>,
    },
}

impl Difference {
    /// Whether it is about what others see: writes, requests, the outcome. Log lines and the like are not.
    pub fn of_effects(&self) -> bool {
        match self {
            Self::Arguments { function, .. } => !is_observation(function),
            Self::Additional { function, .. } | Self::Missing { function, .. } => {
                !is_observation(function) && !is_ambient(function)
            }
            Self::Departed { .. } | Self::Outcome { .. } => true,
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
                write!(f, "call {call}, {function}: {}", Paths(changes))
            }
            Self::Additional { call, function } => {
                write!(f, "before call {call}: {function} is called besides")
            }
            Self::Missing { call, function } => write!(f, "call {call}, {function}: is not made"),
            Self::Departed {
                call,
                recorded,
                function,
                changes,
            } => match (recorded == function, recorded.is_empty()) {
                (true, _) => write!(f, "departs at call {call}, {function}: {}", Paths(changes)),
                (false, true) => write!(
                    f,
                    "departs at call {call}: {function} is called, where the recording ends"
                ),
                (false, false) => write!(
                    f,
                    "departs at call {call}: {function} is called in place of {recorded}"
                ),
            },
            Self::Outcome { changes } => write!(f, "the outcome: {}", Paths(changes)),
        }
    }
}

/// Changes on one line.
struct Paths<'a>(&'a [Change]);

impl fmt::Display for Paths<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |value: &Option<serde_json::Value>| value.as_ref().map_or("nothing".into(), ToString::to_string);
        for (i, change) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            let (was, is) = (shown(&change.recorded), shown(&change.replayed));
            write!(f, "{separator}{}: {was} → {is}", change.path)?;
        }
        Ok(())
    }
}

/// Returns the effect class of a function; none if this host does not know it, as in a recording of another version.
fn effect(function: &str) -> Option<EffectClass> {
    HostCall::from_name(function).map(HostCall::effect)
}

/// Returns whether a call has no result and only people who observe the plugin see its effect.
pub(super) fn is_observation(function: &str) -> bool {
    effect(function) == Some(EffectClass::Observe)
}

/// Returns whether a call has no result, so that any number of them can be answered.
pub(super) fn has_no_result(function: &str) -> bool {
    matches!(effect(function), Some(EffectClass::Observe | EffectClass::Notify))
}

/// Returns whether the result is true at any time, so that any number of calls can be answered.
pub(super) fn is_ambient(function: &str) -> bool {
    effect(function) == Some(EffectClass::Ambient)
}

/// Returns whether a call with other arguments may be answered as recorded, since its result says little about them.
pub(super) fn is_write(function: &str, arguments: &RecordedValue) -> bool {
    let writes = |request: &RecordedValue| {
        let method = request.get("method").and_then(RecordedValue::text);
        method.is_some_and(|method| !matches!(method, "get" | "head" | "options"))
    };
    match effect(function) {
        Some(EffectClass::Request) => match (arguments.get("request"), arguments.get("requests")) {
            (Some(request), _) => writes(request),
            (None, Some(RecordedValue::List(requests))) => requests.iter().all(writes),
            _ => false,
        },
        Some(EffectClass::Write) => true,
        _ => has_no_result(function),
    }
}
