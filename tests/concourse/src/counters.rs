//! What was asked: numbers, and a log that does not grow for ever.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// How many requests the log keeps.
const KEPT: usize = 20_000;

/// Numbers of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// GET and HEAD.
    pub reads: u64,
    /// All others, but logins.
    pub writes: u64,
    /// Requests for a token.
    pub logins: u64,
    /// Builds of jobs that were begun because somebody asked, run again or not.
    pub triggers: u64,
    /// Frames of event streams, and their bytes.
    pub event_frames: u64,
    /// See above.
    pub event_bytes: u64,
    /// By method and the route's path, such as `GET /api/v1/teams/{team}`.
    pub routes: BTreeMap<String, u64>,
}

/// One request. Never its headers or body: they may hold secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
    /// Its query, without the question mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The answer's status; none when there was no answer (yet).
    pub status: Option<u16>,
}

#[derive(Debug, Default)]
struct Kept {
    counters: Counters,
    log: VecDeque<Request>,
    /// How many requests are no longer in the log.
    gone: u64,
}

/// Counts requests.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Kept>);

impl Meter {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request came; gives what to say its status with.
    pub fn came(&self, request: Request, route: &str, login: bool) -> u64 {
        let mut kept = self.kept();
        let counters = &mut kept.counters;
        *match request.method.as_str() {
            _ if login => &mut counters.logins,
            "GET" | "HEAD" => &mut counters.reads,
            _ => &mut counters.writes,
        } += 1;
        *counters
            .routes
            .entry(format!("{} {route}", request.method))
            .or_default() += 1;
        kept.log.push_back(request);
        if kept.log.len() > KEPT {
            kept.log.pop_front();
            kept.gone += 1;
        }
        kept.gone + kept.log.len() as u64 - 1
    }

    /// It was answered.
    pub fn answered(&self, number: u64, status: u16) {
        let mut kept = self.kept();
        let index = number
            .checked_sub(kept.gone)
            .and_then(|i| usize::try_from(i).ok());
        if let Some(request) = index.and_then(|i| kept.log.get_mut(i)) {
            request.status = Some(status);
        }
    }

    /// A build was begun.
    pub fn triggered(&self) {
        self.kept().counters.triggers += 1;
    }

    /// Frames were sent on an event stream.
    pub fn sent(&self, frames: &str) {
        let counters = &mut self.kept().counters;
        counters.event_frames += frames.matches("\n\n").count() as u64;
        counters.event_bytes += frames.len() as u64;
    }

    pub fn counters(&self) -> Counters {
        self.kept().counters.clone()
    }

    pub fn requests(&self) -> Vec<Request> {
        self.kept().log.iter().cloned().collect()
    }

    pub fn reset(&self) {
        let mut kept = self.kept();
        kept.gone += kept.log.len() as u64;
        kept.log.clear();
        kept.counters = Counters::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str) -> Request {
        Request {
            method: method.into(),
            path: "/x".into(),
            query: None,
            status: None,
        }
    }

    #[test]
    fn a_log_that_forgets_and_numbers_that_do_not() {
        let meter = Meter::default();
        let first = meter.came(request("GET"), "/x", false);
        for _ in 0..KEPT {
            meter.came(request("PUT"), "/x", false);
        }
        let last = meter.came(request("POST"), "/x", true);
        meter.answered(first, 200);
        meter.answered(last, 201);
        let log = meter.requests();
        assert_eq!(
            (log.len(), log[0].status, log[KEPT - 1].status),
            (KEPT, None, Some(201))
        );
        let counters = meter.counters();
        assert_eq!(
            (counters.reads, counters.writes, counters.logins),
            (1, KEPT as u64, 1)
        );
        assert_eq!(counters.routes["PUT /x"], KEPT as u64);
        meter.reset();
        meter.answered(last, 500);
        assert_eq!(
            (meter.requests(), meter.counters()),
            (vec![], Counters::default())
        );
    }
}
