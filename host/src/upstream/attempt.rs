//! A request's turn: what becomes of it is told to the breaker, and to the upstream's health.

use std::time::{Duration, Instant};

use super::{
    SendError,
    client::Client,
    health::Health,
    transport_error::{Fault, Kind},
};

/// A request that was given up counts as a failure of the upstream when it has had this long.
const LONG: Duration = Duration::from_secs(5);

/// A turn. Whatever becomes of a request, the breaker hears of it.
pub struct Ticket<'a> {
    client: &'a Client,
    /// Whether the others wait for it.
    pub trial: bool,
    since: Instant,
    open: bool,
}

impl<'a> Ticket<'a> {
    /// From now on.
    pub fn new(client: &'a Client, trial: bool) -> Self {
        Self {
            client,
            trial,
            since: Instant::now(),
            open: true,
        }
    }
    /// Something is known of the upstream's health.
    pub fn tell(&self, change: impl FnOnce(&mut Health) -> bool) {
        let news = change(&mut self.client.state.lock().expect("lock").health);
        if news {
            (self.client.around.news)();
        }
    }

    /// It was answered.
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

    /// It met no answer.
    pub fn failed(self, fault: &Fault) {
        if fault.unsent() || fault.kind == Kind::Address {
            self.tell(|health| health.unreachable(fault.kind, &fault.text));
        }
        self.failure(&fault.text, true);
    }

    /// It was answered, `waiting` with when to come back: such a server is at work. What it has not is no fault of
    /// its own.
    pub fn answered(self, status: u16, waiting: bool) {
        match status >= 500 && status != 501 && !waiting {
            true => self.failure(&format!("HTTP {status}"), false),
            false => self.succeeded(),
        }
    }

    /// There are no credentials to send.
    pub fn given_up(self, error: SendError) -> SendError {
        match &error {
            SendError::Unavailable(why) => self.failure(why, true),
            SendError::LoginFailed(_) => self.succeeded(),
            _ => {}
        }
        error
    }

    /// It was not sent, for a reason that others have told.
    pub fn unsent(mut self) {
        // However long that was waited for.
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
    /// The request was given up: by its time, or with the call that made it.
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
