//! One attempt of a request, and its result for the circuit breaker and the upstream's health.

use std::time::{Duration, Instant};

use super::{
    ResponseBudget, SendError,
    client::UpstreamClient,
    health::UpstreamHealth,
    transport_error::{TransportError, TransportErrorKind},
};
use crate::client::circuit::{CircuitPass, CircuitTransition};

/// Duration after which an abandoned attempt counts as a failure of the upstream. A shorter one proves nothing: the
/// caller may have had little time left.
const ABANDONED_TIMEOUT: Duration = Duration::from_secs(5);

/// An admitted attempt. The breaker learns the result of each, also if the future is dropped.
pub struct Attempt<'a> {
    client: &'a UpstreamClient,
    pass: CircuitPass<'a>,
    started_at: Instant,
    /// The budget of the response, while its body is read.
    pub budget: Option<ResponseBudget>,
}

impl<'a> Attempt<'a> {
    /// Starts an attempt now.
    ///
    /// # Errors
    /// The circuit is open: the failure that opened it.
    pub fn start(client: &'a UpstreamClient) -> Result<Self, String> {
        Ok(Self {
            client,
            pass: client.circuit.admit_request()?,
            started_at: Instant::now(),
            budget: None,
        })
    }

    /// The attempt is the trial of a circuit that is open.
    pub fn is_trial(&self) -> bool {
        self.pass.is_trial()
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
        if self.pass.record_success() != CircuitTransition::Unchanged {
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
        self.record_failure(why, is_unanswered);
    }

    fn record_failure(&mut self, why: &str, is_unanswered: bool) {
        if self.pass.record_failure(why, 1, is_unanswered) != CircuitTransition::Unchanged {
            (self.client.context.on_status_change)();
        }
    }
}

impl Drop for Attempt<'_> {
    /// The future of the request was dropped: its timeout passed, or its call ended.
    fn drop(&mut self) {
        if self.pass.is_finished() {
            return;
        }
        let waited_for_host = self.budget.as_ref().is_some_and(ResponseBudget::waits_for_memory);
        if !waited_for_host && self.started_at.elapsed() >= ABANDONED_TIMEOUT.min(self.client.timeout) {
            self.record_failure("no answer in time", true);
        }
    }
}
