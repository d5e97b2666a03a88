//! The circuit of one server: its breaker, the failure that opened it, and the pass of each request.

use std::time::Instant;

use parking_lot::Mutex;

use crate::client::breaker::{Admission, CircuitBreaker, CircuitState};

/// The circuit of the requests to one server.
#[derive(Debug, Default)]
pub struct Circuit(Mutex<CircuitRecord>);

#[derive(Debug, Default)]
struct CircuitRecord {
    breaker: CircuitBreaker,
    /// The failure that opened the breaker, or of the last trial. It is the reason of what is refused, word for word: a condition
    /// that alternated would be written with each attempt.
    last_failure: String,
    /// No response was received in that failure.
    is_unanswered: bool,
}

/// The change of a circuit by the result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitTransition {
    /// It is as before.
    Unchanged,
    /// Requests fail from now on.
    Opened,
    /// The trial failed.
    Reopened,
    /// Requests pass again.
    Closed,
}

/// The pass of an admitted request. A trial that is dropped without a result is cancelled.
pub struct CircuitPass<'a> {
    circuit: &'a Circuit,
    is_trial: bool,
    is_finished: bool,
}

impl Circuit {
    /// Admits a request.
    ///
    /// # Errors
    /// The circuit is open, or another request is its trial: the failure that opened it. A trial may take as long as its timeout;
    /// a request that waited for it would hold its resources meanwhile.
    pub fn admit_request(&self) -> Result<CircuitPass<'_>, String> {
        let mut record = self.0.lock();
        let is_trial = match record.breaker.admit_request(Instant::now()) {
            Admission::Allowed => false,
            Admission::Trial => true,
            Admission::TrialRunning | Admission::Rejected(_) => return Err(record.last_failure.clone()),
        };
        Ok(CircuitPass {
            circuit: self,
            is_trial,
            is_finished: false,
        })
    }

    /// The failure for which no request is sent; none while requests pass.
    pub fn open_reason(&self) -> Option<String> {
        let record = self.0.lock();
        record.breaker.trial_at().map(|_| record.last_failure.clone())
    }

    /// The time of the next trial; none while requests pass.
    pub fn trial_at(&self) -> Option<Instant> {
        self.0.lock().breaker.trial_at()
    }

    /// The state of the breaker.
    pub fn state(&self) -> CircuitState {
        self.0.lock().breaker.circuit_state(Instant::now())
    }

    /// No response was received in the last failure.
    pub fn is_unanswered(&self) -> bool {
        self.0.lock().is_unanswered
    }
}

impl CircuitPass<'_> {
    /// The request is the trial of a circuit that is open.
    pub fn is_trial(&self) -> bool {
        self.is_trial
    }

    /// The request has a result.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// The server has responded.
    pub fn record_success(&mut self) -> CircuitTransition {
        self.is_finished = true;
        let mut record = self.circuit.0.lock();
        let was_open = record.breaker.trial_at().is_some();
        record.breaker.record_success(self.is_trial);
        match was_open && record.breaker.trial_at().is_none() {
            true => CircuitTransition::Closed,
            false => CircuitTransition::Unchanged,
        }
    }

    /// The request failed, which counts as this many failures. With `is_unanswered` there was no response.
    pub fn record_failure(&mut self, why: &str, failures: u32, is_unanswered: bool) -> CircuitTransition {
        self.is_finished = true;
        let mut record = self.circuit.0.lock();
        let was_open = record.breaker.trial_at().is_some();
        if !was_open || self.is_trial {
            why.clone_into(&mut record.last_failure);
            record.is_unanswered = is_unanswered;
        }
        let now = Instant::now();
        let has_opened = (0..failures).any(|_| record.breaker.record_failure(self.is_trial, now));
        match (has_opened, was_open) {
            (false, _) => CircuitTransition::Unchanged,
            (true, false) => CircuitTransition::Opened,
            (true, true) => CircuitTransition::Reopened,
        }
    }

    /// The request was not sent, or its end proves nothing.
    pub fn cancel(&mut self) {
        self.is_finished = true;
        if self.is_trial {
            self.circuit.0.lock().breaker.cancel_trial();
        }
    }
}

impl Drop for CircuitPass<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.cancel();
        }
    }
}
