//! Faults on demand and counters of what was asked, for tests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use regex::Regex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::status::ApiError;

/// Which requests a fault meets; what isn't said matches all.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Match {
    /// HTTP method.
    pub method: Option<String>,
    /// Verb: get, list, watch, create, update, patch, apply, delete, deletecollection.
    pub verb: Option<String>,
    /// Regular expression on the path.
    pub path: Option<String>,
    /// Resource, or `resource/subresource`.
    pub resource: Option<String>,
}

/// What happens to a matching request.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Effect {
    /// Answered with this status, without being carried out.
    #[serde(rename_all = "camelCase")]
    Respond {
        /// HTTP status code.
        code: u16,
        /// Seconds for `Retry-After`.
        #[serde(default)]
        retry_after: Option<u32>,
    },
    /// The connection is closed without an answer; the request is not carried out.
    Drop,
    /// Carried out, but the connection is closed instead of the answer.
    DropAnswer,
    /// Carried out after this many milliseconds.
    Delay(u64),
}

/// A fault: which requests, how many of them, what happens.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Which requests.
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// How many; `None` for all from now on.
    #[serde(default)]
    pub times: Option<u64>,
    /// What happens.
    pub effect: Effect,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    path: Option<Regex>,
    left: Option<u64>,
}

/// One request, as faults and counters see it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// HTTP method.
    #[serde(skip)]
    pub method: String,
    /// Verb.
    pub verb: &'static str,
    /// Path.
    pub path: String,
    /// Resource, or `resource/subresource`.
    pub resource: String,
    /// `User-Agent`.
    pub user_agent: String,
    /// Whether it is a dry run.
    pub dry_run: bool,
}

/// The switchboard of faults.
#[derive(Debug)]
pub struct Faults {
    armed: Mutex<Vec<Armed>>,
    latency: Mutex<Duration>,
    /// Counts cuts: watches end when it moves.
    pub(crate) cuts: watch::Sender<u64>,
    /// Counts restarts: connections close when it moves.
    pub(crate) restarts: watch::Sender<u64>,
    /// Whether new connections are turned away.
    pub(crate) refusing: watch::Sender<bool>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            armed: Mutex::default(),
            latency: Mutex::default(),
            cuts: watch::Sender::new(0),
            restarts: watch::Sender::new(0),
            refusing: watch::Sender::new(false),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    /// Arms a fault.
    pub fn add(&self, fault: Fault) -> Result<(), regex::Error> {
        let path = fault.matches.path.as_deref().map(Regex::new).transpose()?;
        let left = fault.times;
        lock(&self.armed).push(Armed { fault, path, left });
        Ok(())
    }

    /// Disarms all faults and takes latency away; new connections are accepted again.
    pub fn clear(&self) {
        lock(&self.armed).clear();
        self.set_latency(Duration::ZERO);
        self.refusing.send_replace(false);
    }

    /// Makes every request wait.
    pub fn set_latency(&self, latency: Duration) {
        *lock(&self.latency) = latency;
    }

    /// Breaks every watch's connection off.
    pub fn cut_watches(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    /// Closes every connection, as a restart does; the data stays.
    pub fn restart(&self) {
        self.restarts.send_modify(|count| *count += 1);
    }

    /// Turns new connections away and closes the open ones, or accepts again.
    pub fn refuse_connections(&self, refuse: bool) {
        self.refusing.send_replace(refuse);
        if refuse {
            self.restart();
        }
    }

    pub(crate) fn latency(&self) -> Duration {
        *lock(&self.latency)
    }

    /// The effect on a request, used up by one.
    pub(crate) fn meet(&self, seen: &Seen) -> Option<Effect> {
        let mut armed = lock(&self.armed);
        let at = armed.iter().position(|one| {
            let matches = &one.fault.matches;
            let same = |wanted: &Option<String>, found: &str| {
                wanted
                    .as_deref()
                    .is_none_or(|wanted| wanted.eq_ignore_ascii_case(found))
            };
            same(&matches.method, &seen.method)
                && same(&matches.verb, seen.verb)
                && same(&matches.resource, &seen.resource)
                && one.path.as_ref().is_none_or(|path| path.is_match(&seen.path))
        })?;
        let effect = armed[at].fault.effect.clone();
        if let Some(left) = &mut armed[at].left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                armed.remove(at);
            }
        }
        Some(effect)
    }
}

/// The error an injected status stands for.
pub(crate) fn injected(code: u16, retry_after: Option<u32>) -> ApiError {
    let (reason, message) = match code {
        401 => ("Unauthorized", "Unauthorized"),
        403 => ("Forbidden", "forbidden by an injected fault"),
        404 => ("NotFound", "the server could not find the requested resource"),
        409 => (
            "Conflict",
            "Operation cannot be fulfilled: the object has been modified; please apply your changes to the latest version and try again",
        ),
        410 => (
            "Expired",
            "The resourceVersion for the provided watch is too old.",
        ),
        429 => ("TooManyRequests", "Too many requests, please try again later."),
        500 => ("InternalError", "Internal error occurred: an injected fault"),
        503 => (
            "ServiceUnavailable",
            "the server is currently unable to handle the request",
        ),
        504 => (
            "Timeout",
            "Timeout: request did not complete within requested timeout",
        ),
        _ => ("", "an injected fault"),
    };
    ApiError {
        retry_after,
        ..ApiError::new(code, reason, message)
    }
}

const RECENT: usize = 1024;

#[derive(Debug, Default)]
struct Tally {
    counts: BTreeMap<(&'static str, String), u64>,
    writes: VecDeque<Seen>,
}

/// Counts of requests by verb and resource.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Tally>);

impl Counters {
    pub(crate) fn record(&self, seen: &Seen, writes: bool) {
        let mut tally = lock(&self.0);
        *tally
            .counts
            .entry((seen.verb, seen.resource.clone()))
            .or_default() += 1;
        if writes && !seen.dry_run {
            if tally.writes.len() == RECENT {
                tally.writes.pop_front();
            }
            tally.writes.push_back(seen.clone());
        }
    }

    /// Requests with a verb on a resource or `resource/subresource`.
    pub fn of(&self, verb: &str, resource: &str) -> u64 {
        lock(&self.0)
            .counts
            .iter()
            .filter(|((v, r), _)| *v == verb && r == resource)
            .map(|(_, count)| count)
            .sum()
    }

    /// All requests with a verb that may write. Whether they changed anything is another question.
    pub fn writes(&self) -> u64 {
        lock(&self.0)
            .counts
            .iter()
            .filter(|((verb, _), _)| !matches!(*verb, "get" | "list" | "watch"))
            .map(|(_, count)| count)
            .sum()
    }

    /// All counts, as `verb resource`.
    pub fn all(&self) -> BTreeMap<String, u64> {
        lock(&self.0)
            .counts
            .iter()
            .map(|((verb, resource), count)| (format!("{verb} {resource}"), *count))
            .collect()
    }

    /// The latest writes, oldest first.
    pub fn recent_writes(&self) -> Vec<Seen> {
        lock(&self.0).writes.iter().cloned().collect()
    }

    /// Starts counting from nothing.
    pub fn reset(&self) {
        *lock(&self.0) = Tally::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_meets_what_it_matches_as_often_as_it_says() {
        let faults = Faults::default();
        let fault: Fault = serde_json::from_str(
            r#"{"match": {"verb": "list", "path": "/teams$"}, "times": 1, "effect": {"respond": {"code": 429, "retryAfter": 2}}}"#,
        )
        .unwrap();
        faults.add(fault).unwrap();
        let seen = |verb, path: &str| Seen {
            method: "GET".into(),
            verb,
            path: path.into(),
            resource: "teams".into(),
            user_agent: String::new(),
            dry_run: false,
        };
        assert!(faults.meet(&seen("get", "/apis/g/v/teams")).is_none());
        assert!(faults.meet(&seen("list", "/apis/g/v/teams/x")).is_none());
        assert!(matches!(
            faults.meet(&seen("list", "/apis/g/v/teams")),
            Some(Effect::Respond {
                code: 429,
                retry_after: Some(2)
            })
        ));
        assert!(faults.meet(&seen("list", "/apis/g/v/teams")).is_none());
    }
}
