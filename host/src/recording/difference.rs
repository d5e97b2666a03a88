//! How a replay differs from its recording, and which calls may differ without ending it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::recording::value::{Change, Shown};

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
            Self::Arguments { function, .. } => !quiet(function),
            Self::Additional { function, .. } | Self::Missing { function, .. } => {
                !quiet(function) && !ambient(function)
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

/// Gives nothing back and changes nothing that others work with.
pub(super) fn quiet(function: &str) -> bool {
    matches!(function, "log.write" | "metrics.counter" | "metrics.gauge")
}

/// Gives nothing back, so that any number of them can be answered.
pub(super) fn unanswered(function: &str) -> bool {
    quiet(function) || matches!(function, "events.emit" | "memo.remove")
}

/// Tells what is so at any time, however often it is asked.
pub(super) fn ambient(function: &str) -> bool {
    matches!(function, "clock.now" | "clock.remaining" | "config.get")
}

/// Whether a call with other arguments may be answered as recorded: it writes, and what it gives says little.
pub(super) fn writes(function: &str, arguments: &Shown) -> bool {
    let writing = |request: &Shown| {
        let method = request.get("method").and_then(Shown::text);
        method.is_some_and(|m| !matches!(m, "GET" | "HEAD" | "OPTIONS"))
    };
    match function {
        "http.send" => arguments.get("request").is_some_and(writing),
        "http.send-all" => match arguments.get("requests") {
            Some(Shown::List(requests)) => requests.iter().all(writing),
            _ => false,
        },
        "kubernetes.apply" | "kubernetes.create" | "kubernetes.delete" | "references.hold"
        | "messaging.publish" | "status.checkpoint" | "memo.put" => true,
        other => unanswered(other),
    }
}
