//! One attempt of a request, and its result for the circuit breaker and the upstream's health.

use std::time::{Duration, Instant};

use super::{
    SendError,
    client::Client,
    health::Health,
    transport_error::{Fault, Kind},
};

/// Duration after which an abandoned attempt counts as a failure of the upstream. A shorter one proves nothing: the
/// caller may have had little time left.
const LONG: Duration = Duration::from_secs(5);

/// An admitted attempt. The breaker learns the result of each, also if the future is dropped.
pub struct Ticket<'a> {
    client: &'a Client,
    /// The attempt is the trial of a half-open breaker, for which other requests wait.
    pub trial: bool,
    since: Instant,
    open: bool,
}

impl<'a> Ticket<'a> {
    /// Starts an attempt now.
    pub fn new(client: &'a Client, trial: bool) -> Self {
        Self {
            client,
            trial,
            since: Instant::now(),
            open: true,
        }
    }
    /// Changes the upstream's health, and reports a change of its status.
    pub fn tell(&self, change: impl FnOnce(&mut Health) -> bool) {
        let news = change(&mut self.client.state.lock().expect("lock").health);
        if news {
            (self.client.around.news)();
        }
    }

    /// The server has responded.
    pub fn succeeded(mut self) {
        self.open = false;
        let mut state = self.client.state.lock().expect("lock");
        let before = state.breaker.reopens().is_some();
        state.breaker.succeeded(self.trial);
        let closed = before && state.breaker.reopens().is_none();
        drop(state);
        self.client.tried.notify_waiters();
        if closed {
            (self.client.around.news)();
        }
    }

    /// No response arrived: the connection failed, broke or timed out.
    pub fn failed(self, fault: &Fault) {
        if fault.unsent() || fault.kind == Kind::Address {
            self.tell(|health| health.unreachable(fault.kind, &fault.text));
        }
        self.failure(&fault.text, true);
    }

    /// A response arrived. A 5xx status is a failure, except 501 and responses with `Retry-After` (`has_retry_after`),
    /// which show a live server.
    pub fn answered(self, status: u16, waiting: bool) {
        match status >= 500 && status != 501 && !waiting {
            true => self.failure(&format!("HTTP {status}"), false),
            false => self.succeeded(),
        }
    }

    /// No credential could be had. A login that met no response is a failure of the upstream; a rejected login is a
    /// response.
    pub fn given_up(self, error: SendError) -> SendError {
        match &error {
            SendError::Unavailable(why) => self.failure(why, true),
            SendError::LoginFailed(_) => self.succeeded(),
            _ => {}
        }
        error
    }

    /// Nothing was sent, because an earlier login failed; that failure is already recorded.
    pub fn unsent(mut self) {
        // The wait for the earlier login must not count as a timeout of this attempt.
        self.since = Instant::now();
    }

    fn failure(mut self, why: &str, unanswered: bool) {
        self.open = false;
        self.fail(why, unanswered);
    }

    fn fail(&self, why: &str, unanswered: bool) {
        let mut state = self.client.state.lock().expect("lock");
        if state.breaker.reopens().is_none() || self.trial {
            state.failure = format!("the last requests failed ({why})");
            state.unanswered = unanswered;
        }
        let opened = state.breaker.failed(self.trial, Instant::now());
        drop(state);
        self.client.tried.notify_waiters();
        if opened {
            (self.client.around.news)();
        }
    }
}

impl Drop for Ticket<'_> {
    /// The future of the request was dropped: its timeout passed, or its call ended.
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        if self.since.elapsed() >= LONG.min(self.client.timeout) {
            return self.fail("no answer in time", true);
        }
        if self.trial {
            self.client.state.lock().expect("lock").breaker.abandoned();
            self.client.tried.notify_waiters();
        }
    }
}
