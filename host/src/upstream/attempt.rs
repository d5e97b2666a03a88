//! One attempt of a request, and its result for the circuit breaker and the upstream's health.

use std::time::{Duration, Instant};

use super::{
    ResponseBudget, SendError,
    client::UpstreamClient,
    health::UpstreamHealth,
    transport_error::{TransportError, TransportErrorKind},
};

/// Duration after which an abandoned attempt counts as a failure of the upstream. A shorter one proves nothing: the
/// caller may have had little time left.
const ABANDONED_TIMEOUT: Duration = Duration::from_secs(5);

/// An admitted attempt. The breaker learns the result of each, also if the future is dropped.
pub struct Attempt<'a> {
    client: &'a UpstreamClient,
    /// The attempt is the trial of a half-open breaker.
    pub is_trial: bool,
    started_at: Instant,
    unfinished: bool,
    /// The budget of the response, while its body is read.
    pub budget: Option<ResponseBudget>,
}

impl<'a> Attempt<'a> {
    /// Starts an attempt now.
    pub fn new(client: &'a UpstreamClient, trial: bool) -> Self {
        Self {
            client,
            is_trial: trial,
            started_at: Instant::now(),
            unfinished: true,
            budget: None,
        }
    }
    /// Changes the upstream's health, and reports a change of its status.
    pub fn update_health(&self, change: impl FnOnce(&mut UpstreamHealth) -> bool) {
        let changed = change(&mut self.client.state.lock().health);
        if changed {
            (self.client.context.on_status_change)();
        }
    }

    /// The server has responded.
    pub fn record_success(mut self) {
        self.unfinished = false;
        let mut state = self.client.state.lock();
        let before = state.breaker.trial_at().is_some();
        state.breaker.record_success(self.is_trial);
        let closed = before && state.breaker.trial_at().is_none();
        drop(state);
        if closed {
            (self.client.context.on_status_change)();
        }
    }

    /// No response arrived: the connection failed, broke or timed out.
    pub fn record_transport_error(self, error: &TransportError) {
        if error.is_unsent() || error.kind == TransportErrorKind::Address {
            self.update_health(|health| health.record_unreachable(error.kind, &error.text));
        }
        self.finish_failed(&error.text, true);
    }

    /// A response arrived. A 5xx status is a failure, except 501 and responses with `Retry-After` (`has_retry_after`),
    /// which show a live server.
    pub fn record_status(self, status: u16, has_retry_after: bool) {
        if status >= 500 && status != 501 && !has_retry_after {
            self.finish_failed(&format!("HTTP {status}"), false);
        } else {
            self.record_success();
        }
    }

    /// No credential could be had. A login that met no response is a failure of the upstream; a rejected login is a
    /// response.
    pub fn record_credential_error(self, error: SendError) -> SendError {
        match &error {
            SendError::Unavailable(why) => self.finish_failed(why, true),
            SendError::LoginFailed(_) => self.record_success(),
            _ => {}
        }
        error
    }

    /// Nothing was sent, because an earlier login failed; that failure is already recorded.
    pub fn mark_not_sent(mut self) {
        // The wait for the earlier login must not count as a timeout of this attempt.
        self.started_at = Instant::now();
    }

    fn finish_failed(mut self, why: &str, is_unanswered: bool) {
        self.unfinished = false;
        self.record_failure(why, is_unanswered);
    }

    fn record_failure(&self, why: &str, is_unanswered: bool) {
        let mut state = self.client.state.lock();
        if state.breaker.trial_at().is_none() || self.is_trial {
            why.clone_into(&mut state.last_failure);
            state.last_failure_unanswered = is_unanswered;
        }
        let opened = state.breaker.record_failure(self.is_trial, Instant::now());
        drop(state);
        if opened {
            (self.client.context.on_status_change)();
        }
    }
}

impl Drop for Attempt<'_> {
    /// The future of the request was dropped: its timeout passed, or its call ended.
    fn drop(&mut self) {
        if !self.unfinished {
            return;
        }
        let waited_for_host = self.budget.as_ref().is_some_and(ResponseBudget::waits_for_memory);
        if !waited_for_host && self.started_at.elapsed() >= ABANDONED_TIMEOUT.min(self.client.timeout) {
            return self.record_failure("no answer in time", true);
        }
        if self.is_trial {
            self.client.state.lock().breaker.cancel_trial();
        }
    }
}
