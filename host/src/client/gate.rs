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
    circuit::{Circuit, CircuitPass, CircuitTransition},
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
    circuit: Circuit,
    /// Time of the last response while requests are in flight, or else of the first of them.
    quiet_since: Mutex<Option<Instant>>,
    on_transition: TransitionListener,
}

/// An admitted request. Without a result, the breaker learns on drop how long there was no response.
pub struct AdmittedRequest<'a> {
    gate: &'a RequestGate,
    pass: CircuitPass<'a>,
    started: Instant,
    _permit: Option<SemaphorePermit<'a>>,
}

impl RequestGate {
    /// Creates a gate for this many requests in flight.
    pub fn new(requests_in_flight: u32, on_transition: TransitionListener) -> Self {
        Self {
            requests: Semaphore::new(requests_in_flight as usize),
            requests_in_flight: requests_in_flight as usize,
            circuit: Circuit::default(),
            quiet_since: Mutex::default(),
            on_transition,
        }
    }

    /// The failure for which no request is sent; none while requests pass.
    pub fn open_reason(&self) -> Option<String> {
        self.circuit.open_reason()
    }

    /// Admits a request whose response ends.
    pub async fn admit_request(&self) -> Result<AdmittedRequest<'_>, ApiError> {
        // Fails at once while the breaker is open, without a turn.
        let mut admitted = self.admit_watch()?;
        let Some(permit) = self.wait_for_turn().await else {
            admitted.pass.cancel();
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
            *self.quiet_since.lock() = Some(admitted.started);
        }
        Ok(admitted)
    }

    /// Waits for one of the requests in flight to end. Returns none after [`MAX_TURN_WAIT`], and at once while the cluster is
    /// silent: none of them is about to end.
    async fn wait_for_turn(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.requests.try_acquire() {
            return Some(permit);
        }
        let quiet_since = *self.quiet_since.lock();
        if quiet_since.is_some_and(|since| since.elapsed() >= SILENCE_THRESHOLD) {
            return None;
        }
        let turn = tokio::time::timeout(MAX_TURN_WAIT, self.requests.acquire()).await;
        turn.ok()?.ok()
    }

    /// Admits a watch, which takes no turn: its response does not end.
    pub fn admit_watch(&self) -> Result<AdmittedRequest<'_>, ApiError> {
        let pass = self.circuit.admit_request();
        let refused = |why| ApiError::Unreachable(format!("not asked for a moment: {why}"));
        Ok(AdmittedRequest {
            gate: self,
            pass: pass.map_err(refused)?,
            started: Instant::now(),
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
        *self.gate.quiet_since.lock() = Some(Instant::now());
        if self.pass.record_success() == CircuitTransition::Closed {
            (self.gate.on_transition)();
        }
    }

    fn record_failure(&mut self, why: &str) {
        let failures = match self.started.elapsed() >= SILENCE_THRESHOLD {
            true => SILENT_FAILURES,
            false => 1,
        };
        if self.pass.record_failure(why, failures, true) == CircuitTransition::Opened {
            (self.gate.on_transition)();
        }
    }
}

impl Drop for AdmittedRequest<'_> {
    fn drop(&mut self) {
        let silence = self.started.elapsed();
        if !self.pass.is_finished() && silence >= SILENCE_THRESHOLD {
            self.record_failure(&format!("no answer within {silence:.1?}"));
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
            let mut quiet_since = gate.quiet_since.lock();
            let since = quiet_since.expect("a request is in flight");
            *quiet_since = Some(since.checked_sub(silence).expect("a time"));
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
