//! Fault injection and request counters, for tests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use regex::Regex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::status::StatusError;

/// A filter on requests; a missing field matches all.
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

/// The effect of a fault on a matching request.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Effect {
    /// Responds with this status; the request is not carried out.
    #[serde(rename_all = "camelCase")]
    Respond {
        /// HTTP status code.
        code: u16,
        /// Seconds for `Retry-After`.
        #[serde(default)]
        retry_after: Option<u32>,
    },
    /// Responds with 403 and this message, as admission does; the request is not carried out.
    Refuse(String),
    /// Closes the connection without a response; the request is not carried out.
    Drop,
    /// Carries the request out, then closes the connection without a response.
    DropAnswer,
    /// Carries the request out after this number of milliseconds.
    Delay(u64),
}

/// A fault: a filter, a number of requests, and an effect.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestFault {
    /// The filter on requests.
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// Number of requests; `None` for all until the fault is disarmed.
    #[serde(default)]
    pub times: Option<u64>,
    /// The effect.
    pub effect: Effect,
}

#[derive(Debug)]
struct ArmedFault {
    fault: RequestFault,
    path: Option<Regex>,
    remaining: Option<u64>,
}

/// The attributes of a request that faults and counters use.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestAttributes {
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
    /// True for a dry run.
    pub dry_run: bool,
}

/// Fault injection.
#[derive(Debug)]
pub struct FaultInjector {
    armed: Mutex<Vec<ArmedFault>>,
    latency: Mutex<Duration>,
    /// Number of cuts; a change breaks all watches.
    pub(crate) cuts: watch::Sender<u64>,
    /// Number of restarts; a change closes all connections.
    pub(crate) restarts: watch::Sender<u64>,
    /// True while new connections are refused.
    pub(crate) refusing: watch::Sender<bool>,
}

impl Default for FaultInjector {
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

impl FaultInjector {
    /// Arms a fault.
    pub fn add(&self, fault: RequestFault) -> Result<(), regex::Error> {
        let path = fault.matches.path.as_deref().map(Regex::new).transpose()?;
        let remaining = fault.times;
        lock(&self.armed).push(ArmedFault {
            fault,
            path,
            remaining,
        });
        Ok(())
    }

    /// Removes the faults that were added.
    pub fn disarm(&self) {
        lock(&self.armed).clear();
    }

    /// Disarms all faults, removes the latency, and accepts new connections.
    pub fn clear(&self) {
        self.disarm();
        self.set_latency(Duration::ZERO);
        self.refusing.send_replace(false);
    }

    /// Delays every request.
    pub fn set_latency(&self, latency: Duration) {
        *lock(&self.latency) = latency;
    }

    /// Breaks the connection of every watch.
    pub fn cut_watches(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    /// Closes every connection, as a restart does. The data is kept.
    pub fn restart(&self) {
        self.restarts.send_modify(|count| *count += 1);
    }

    /// Refuses new connections and closes the open ones, or accepts connections again.
    pub fn refuse_connections(&self, refuse: bool) {
        self.refusing.send_replace(refuse);
        if refuse {
            self.restart();
        }
    }

    pub(crate) fn latency(&self) -> Duration {
        *lock(&self.latency)
    }

    /// The effect on a request, which counts as one use of the fault.
    pub(crate) fn take_effect(&self, seen: &RequestAttributes) -> Option<Effect> {
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
        if let Some(remaining) = &mut armed[at].remaining {
            *remaining = remaining.saturating_sub(1);
            if *remaining == 0 {
                armed.remove(at);
            }
        }
        Some(effect)
    }
}

/// The error response of an injected status.
pub(crate) fn injected_error(code: u16, retry_after: Option<u32>) -> StatusError {
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
    StatusError {
        retry_after,
        ..StatusError::new(code, reason, message)
    }
}

const MAX_RECENT_WRITES: usize = 1024;

#[derive(Debug, Default)]
struct Tally {
    counts: BTreeMap<(&'static str, String), u64>,
    writes: VecDeque<RequestAttributes>,
}

/// Counts of requests by verb and resource.
#[derive(Debug, Default)]
pub struct VerbCounters(Mutex<Tally>);

impl VerbCounters {
    pub(crate) fn record_request(&self, seen: &RequestAttributes, writes: bool) {
        let mut tally = lock(&self.0);
        *tally
            .counts
            .entry((seen.verb, seen.resource.clone()))
            .or_default() += 1;
        if writes && !seen.dry_run {
            if tally.writes.len() == MAX_RECENT_WRITES {
                tally.writes.pop_front();
            }
            tally.writes.push_back(seen.clone());
        }
    }

    /// Number of requests with a verb on a resource or `resource/subresource`.
    pub fn of(&self, verb: &str, resource: &str) -> u64 {
        lock(&self.0)
            .counts
            .iter()
            .filter(|((v, r), _)| *v == verb && r == resource)
            .map(|(_, count)| count)
            .sum()
    }

    /// Number of requests with a writing verb, including those that changed nothing.
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
    pub fn recent_writes(&self) -> Vec<RequestAttributes> {
        lock(&self.0).writes.iter().cloned().collect()
    }

    /// Resets all counters to zero.
    pub fn reset(&self) {
        *lock(&self.0) = Tally::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_applies_to_matching_requests_the_given_number_of_times() {
        let faults = FaultInjector::default();
        let fault: RequestFault = serde_json::from_str(
            r#"{"match": {"verb": "list", "path": "/teams$"}, "times": 1, "effect": {"respond": {"code": 429, "retryAfter": 2}}}"#,
        )
        .unwrap();
        faults.add(fault).unwrap();
        let seen = |verb, path: &str| RequestAttributes {
            method: "GET".into(),
            verb,
            path: path.into(),
            resource: "teams".into(),
            user_agent: String::new(),
            dry_run: false,
        };
        assert!(faults.take_effect(&seen("get", "/apis/g/v/teams")).is_none());
        assert!(faults.take_effect(&seen("list", "/apis/g/v/teams/x")).is_none());
        assert!(matches!(
            faults.take_effect(&seen("list", "/apis/g/v/teams")),
            Some(Effect::Respond {
                code: 429,
                retry_after: Some(2)
            })
        ));
        assert!(faults.take_effect(&seen("list", "/apis/g/v/teams")).is_none());
    }
}
