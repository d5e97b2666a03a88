//! The gate of requests to another cluster: bounded concurrency and a circuit breaker, so that a cluster that is slow or
//! down costs the calls that use it and nothing else.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::client::{
    api::ApiError,
    breaker::{Admission, CircuitBreaker},
};

/// Longest wait for one of the requests in flight to end. A longer one is HTTP 429 to the caller, which frees its
/// resources meanwhile.
const MAX_TURN_WAIT: Duration = Duration::from_secs(1);

/// Delay in milliseconds after which such a request is repeated.
const TURN_RETRY_MILLISECONDS: u64 = 1000;

/// Time without a response after which a cluster is silent. It exceeds the time for which a call of a plugin waits without room
/// among the slow ones (`cluster::waits`): such a call is no sign of an outage.
const SILENCE_THRESHOLD: Duration = Duration::from_secs(3);

/// Number of failures that a request counts as which had no response for so long: three of them in a row open the breaker. It
/// counts also if it was abandoned, because the call that made it has a shorter timeout than the request.
const SILENT_FAILURES: u32 = 2;

/// Callback for the breaker having opened or closed.
pub type TransitionListener = Arc<dyn Fn() + Send + Sync>;

/// The gate of one cluster.
pub struct RequestGate {
    requests: Semaphore,
    requests_in_flight: usize,
    circuit: Mutex<Circuit>,
    on_transition: TransitionListener,
}

#[derive(Default)]
struct Circuit {
    breaker: CircuitBreaker,
    /// Time of the last response while requests are in flight, or else of the first of them.
    quiet_since: Option<Instant>,
    /// The failure that opened the breaker.
    last_failure: String,
}

/// An admitted request. Without a result, the breaker learns on drop how long there was no response.
pub struct AdmittedRequest<'a> {
    gate: &'a RequestGate,
    is_trial: bool,
    started: Instant,
    is_finished: bool,
    _permit: Option<SemaphorePermit<'a>>,
}

impl RequestGate {
    /// Creates a gate for this many requests in flight.
    pub fn new(requests_in_flight: u32, on_transition: TransitionListener) -> Self {
        Self {
            requests: Semaphore::new(requests_in_flight as usize),
            requests_in_flight: requests_in_flight as usize,
            circuit: Mutex::default(),
            on_transition,
        }
    }

    /// The failure for which no request is sent; none while requests pass.
    pub fn open_reason(&self) -> Option<String> {
        let circuit = self.circuit.lock();
        circuit.breaker.trial_at().map(|_| circuit.last_failure.clone())
    }

    /// Admits a request whose response ends.
    pub async fn admit_request(&self) -> Result<AdmittedRequest<'_>, ApiError> {
        // Fails at once while the breaker is open, without a turn.
        let mut admitted = self.admit_watch()?;
        let Some(permit) = self.wait_for_turn().await else {
            admitted.is_finished = true;
            if admitted.is_trial {
                self.circuit.lock().breaker.cancel_trial();
            }
            return Err(ApiError::Status {
                code: 429,
                reason: String::new(),
                message: "as many requests to the cluster are in flight as its `spec.limits.requestsInFlight` allows".into(),
                fields: Vec::new(),
                retry_after: Some(TURN_RETRY_MILLISECONDS),
            });
        };
        admitted._permit = Some(permit);
        admitted.started = Instant::now();
        if self.requests.available_permits() + 1 == self.requests_in_flight {
            self.circuit.lock().quiet_since = Some(admitted.started);
        }
        Ok(admitted)
    }

    /// Waits for one of the requests in flight to end. Returns none after [`MAX_TURN_WAIT`], and at once while the cluster is
    /// silent: none of them is about to end.
    async fn wait_for_turn(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.requests.try_acquire() {
            return Some(permit);
        }
        let quiet_since = self.circuit.lock().quiet_since;
        if quiet_since.is_some_and(|since| since.elapsed() >= SILENCE_THRESHOLD) {
            return None;
        }
        let turn = tokio::time::timeout(MAX_TURN_WAIT, self.requests.acquire()).await;
        turn.ok()?.ok()
    }

    /// Admits a watch, which takes no turn: its response does not end.
    pub fn admit_watch(&self) -> Result<AdmittedRequest<'_>, ApiError> {
        let mut circuit = self.circuit.lock();
        let is_trial = match circuit.breaker.admit_request(Instant::now()) {
            Admission::Allowed => false,
            Admission::Trial => true,
            Admission::TrialRunning | Admission::Rejected(_) => {
                let why = format!("not asked for a moment: {}", circuit.last_failure);
                return Err(ApiError::Unreachable(why));
            }
        };
        Ok(AdmittedRequest {
            gate: self,
            is_trial,
            started: Instant::now(),
            is_finished: false,
            _permit: None,
        })
    }
}

impl AdmittedRequest<'_> {
    /// Records the result. Any response is a sign of life.
    pub fn finish(mut self, error: Option<&ApiError>) {
        match error {
            Some(ApiError::Unreachable(why)) => self.record_failure(why),
            _ => self.record_success(),
        }
    }

    fn record_success(&mut self) {
        self.is_finished = true;
        let mut circuit = self.gate.circuit.lock();
        circuit.quiet_since = Some(Instant::now());
        let was_open = circuit.breaker.trial_at().is_some();
        circuit.breaker.record_success(self.is_trial);
        let has_closed = was_open && circuit.breaker.trial_at().is_none();
        drop(circuit);
        if has_closed {
            (self.gate.on_transition)();
        }
    }

    fn record_failure(&mut self, why: &str) {
        self.is_finished = true;
        let failures = match self.started.elapsed() >= SILENCE_THRESHOLD {
            true => SILENT_FAILURES,
            false => 1,
        };
        let mut circuit = self.gate.circuit.lock();
        let was_open = circuit.breaker.trial_at().is_some();
        if !was_open || self.is_trial {
            why.clone_into(&mut circuit.last_failure);
        }
        let now = Instant::now();
        let has_opened =
            (0..failures).any(|_| circuit.breaker.record_failure(self.is_trial, now)) && !was_open;
        drop(circuit);
        if has_opened {
            (self.gate.on_transition)();
        }
    }
}

impl Drop for AdmittedRequest<'_> {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let silence = self.started.elapsed();
        if silence >= SILENCE_THRESHOLD {
            self.record_failure(&format!("no answer within {silence:.1?}"));
        } else if self.is_trial {
            self.gate.circuit.lock().breaker.cancel_trial();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn unreachable() -> ApiError {
        ApiError::Unreachable("connection refused".into())
    }

    #[tokio::test]
    async fn requests_beyond_the_limit_are_throttled_and_do_not_count_as_failures() {
        let gate = RequestGate::new(2, Arc::new(|| ()));
        let held = (gate.admit_request().await, gate.admit_request().await);
        let waiting = futures::future::join_all((0..20).map(|_| gate.admit_request())).await;
        for refused in waiting {
            assert_eq!(refused.err().expect("the limit is reached").code(), 429);
        }
        assert_eq!(gate.open_reason(), None);
        assert!(gate.admit_watch().is_ok(), "watches take no turn");
        drop(held);
        assert!(gate.admit_request().await.is_ok());
    }

    #[tokio::test]
    async fn failures_in_a_row_fail_further_requests_at_once_and_are_reported_once() {
        let transitions = Arc::new(AtomicU32::default());
        let count = transitions.clone();
        let gate = RequestGate::new(
            2,
            Arc::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            }),
        );
        for _ in 0..4 {
            let admitted = gate.admit_request().await.expect("closed");
            admitted.finish(Some(&unreachable()));
        }
        let conflict = crate::client::api::status_error(409, None, b"");
        gate.admit_request()
            .await
            .expect("closed")
            .finish(Some(&conflict));
        for _ in 0..5 {
            assert_eq!(gate.open_reason(), None, "a response came in between");
            gate.admit_request()
                .await
                .expect("closed")
                .finish(Some(&unreachable()));
        }
        let rejected = gate.admit_request().await.err().expect("open");
        assert!(rejected.to_string().contains("connection refused"), "{rejected}");
        assert_eq!(gate.open_reason().as_deref(), Some("connection refused"));
        assert_eq!(transitions.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn requests_beyond_the_limit_of_a_silent_cluster_are_throttled_at_once() {
        let gate = RequestGate::new(1, Arc::new(|| ()));
        let held = gate.admit_request().await.expect("the first");
        let age = |silence: Duration| {
            let mut circuit = gate.circuit.lock();
            let since = circuit.quiet_since.expect("a request is in flight");
            circuit.quiet_since = Some(since.checked_sub(silence).expect("a time"));
        };
        age(SILENCE_THRESHOLD);
        let asked = Instant::now();
        let refused = gate.admit_request().await.err().expect("the limit is reached");
        assert_eq!(refused.code(), 429);
        assert!(asked.elapsed() < MAX_TURN_WAIT / 2, "{:?}", asked.elapsed());
        held.finish(None);
        // A long idle time is no silence.
        age(SILENCE_THRESHOLD);
        let held = gate.admit_request().await.expect("the limit is free");
        let (waited, ()) = tokio::join!(gate.admit_request(), async {
            tokio::time::sleep(MAX_TURN_WAIT / 4).await;
            drop(held);
        });
        assert!(waited.is_ok(), "it waits for the end of the other");
    }

    #[tokio::test]
    async fn three_silent_requests_in_a_row_open_the_breaker() {
        let gate = RequestGate::new(4, Arc::new(|| ()));
        for _ in 0..3 {
            assert_eq!(gate.open_reason(), None);
            let mut admitted = gate.admit_request().await.expect("closed");
            let silence = SILENCE_THRESHOLD;
            admitted.started = admitted.started.checked_sub(silence).expect("a time");
            admitted.finish(Some(&unreachable()));
        }
        assert!(gate.open_reason().is_some());
    }

    #[test]
    fn abandoned_request_is_a_failure_only_after_a_silence() {
        let gate = RequestGate::new(2, Arc::new(|| ()));
        for silence in [Duration::ZERO, SILENCE_THRESHOLD] {
            for _ in 0..5 {
                // None is admitted once the breaker is open.
                let Ok(mut admitted) = gate.admit_watch() else {
                    break;
                };
                admitted.started = admitted.started.checked_sub(silence).expect("a time");
                drop(admitted);
            }
            assert_eq!(gate.open_reason().is_some(), silence == SILENCE_THRESHOLD);
        }
    }
}
