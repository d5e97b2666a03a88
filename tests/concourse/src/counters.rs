//! Request counters and a bounded request log.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// Maximum number of requests in the log.
const MAX_LOGGED_REQUESTS: usize = 20_000;

/// Counters of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RequestCounters {
    /// Requests with GET or HEAD.
    pub reads: u64,
    /// All other requests except logins.
    pub writes: u64,
    /// Requests for a token.
    pub logins: u64,
    /// Builds of jobs that were triggered by a request, including reruns.
    pub triggers: u64,
    /// Frames sent on event streams.
    pub event_frames: u64,
    /// Bytes of these frames.
    pub event_bytes: u64,
    /// Requests by method and route, such as `GET /api/v1/teams/{team}`.
    pub routes: BTreeMap<String, u64>,
}

/// A logged request, without headers and body, which may contain secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoggedRequest {
    /// HTTP method.
    pub method: String,
    /// Path of the URL.
    pub path: String,
    /// Query of the URL, without the question mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Status of the response; `None` when there is none (yet).
    pub status: Option<u16>,
}

#[derive(Debug, Default)]
struct MeterState {
    counters: RequestCounters,
    log: VecDeque<LoggedRequest>,
    /// Number of requests removed from the log.
    dropped: u64,
}

/// Counters and log behind a lock.
#[derive(Debug, Default)]
pub(crate) struct RequestMeter(Mutex<MeterState>);

impl RequestMeter {
    fn lock_state(&self) -> MutexGuard<'_, MeterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and logs a request. Returns the number for [`RequestMeter::record_status`].
    pub fn record_request(&self, request: LoggedRequest, route: &str, login: bool) -> u64 {
        let mut state = self.lock_state();
        let counters = &mut state.counters;
        *match request.method.as_str() {
            _ if login => &mut counters.logins,
            "GET" | "HEAD" => &mut counters.reads,
            _ => &mut counters.writes,
        } += 1;
        *counters
            .routes
            .entry(format!("{} {route}", request.method))
            .or_default() += 1;
        state.log.push_back(request);
        if state.log.len() > MAX_LOGGED_REQUESTS {
            state.log.pop_front();
            state.dropped += 1;
        }
        state.dropped + state.log.len() as u64 - 1
    }

    /// Stores the status of a response.
    pub fn record_status(&self, number: u64, status: u16) {
        let mut state = self.lock_state();
        let index = number
            .checked_sub(state.dropped)
            .and_then(|i| usize::try_from(i).ok());
        if let Some(request) = index.and_then(|i| state.log.get_mut(i)) {
            request.status = Some(status);
        }
    }

    /// Counts a triggered build.
    pub fn count_trigger(&self) {
        self.lock_state().counters.triggers += 1;
    }

    /// Counts frames sent on an event stream.
    pub fn count_frames(&self, frames: &str) {
        let counters = &mut self.lock_state().counters;
        counters.event_frames += frames.matches("\n\n").count() as u64;
        counters.event_bytes += frames.len() as u64;
    }

    pub fn counters(&self) -> RequestCounters {
        self.lock_state().counters.clone()
    }

    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.lock_state().log.iter().cloned().collect()
    }

    pub fn reset(&self) {
        let mut state = self.lock_state();
        state.dropped += state.log.len() as u64;
        state.log.clear();
        state.counters = RequestCounters::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str) -> LoggedRequest {
        LoggedRequest {
            method: method.into(),
            path: "/x".into(),
            query: None,
            status: None,
        }
    }

    #[test]
    fn full_log_drops_the_oldest_request_and_counters_do_not() {
        let meter = RequestMeter::default();
        let first = meter.record_request(request("GET"), "/x", false);
        for _ in 0..MAX_LOGGED_REQUESTS {
            meter.record_request(request("PUT"), "/x", false);
        }
        let last = meter.record_request(request("POST"), "/x", true);
        meter.record_status(first, 200);
        meter.record_status(last, 201);
        let log = meter.requests();
        assert_eq!(
            (log.len(), log[0].status, log[MAX_LOGGED_REQUESTS - 1].status),
            (MAX_LOGGED_REQUESTS, None, Some(201))
        );
        let counters = meter.counters();
        assert_eq!(
            (counters.reads, counters.writes, counters.logins),
            (1, MAX_LOGGED_REQUESTS as u64, 1)
        );
        assert_eq!(counters.routes["PUT /x"], MAX_LOGGED_REQUESTS as u64);
        meter.reset();
        meter.record_status(last, 500);
        assert_eq!(
            (meter.requests(), meter.counters()),
            (vec![], RequestCounters::default())
        );
    }
}
