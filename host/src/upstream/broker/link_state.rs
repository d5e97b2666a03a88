//! The state of the connection on which all publish to a broker. It is one value, which callers read, wait for and change under
//! one lock. Pure: callers pass the time.
//!
//! ```text
//!  Idle ──▶ Connecting ──▶ Open ──▶ Failed (lost: due at once)
//!               ▲   └────▶ Failed (due after a growing delay)      any ──▶ Superseded
//!               └───────────┘
//! ```

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::{
    kube::backoff::Backoff,
    upstream::{CircuitState, SendError},
};

/// Delays between connection attempts; in between, calls fail at once.
const CONNECT_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).with_jitter(25);

/// Time after which a call is repeated that came while another one was trying to connect.
const TRIAL_RETRY_MILLISECONDS: u64 = 1000;

/// The state of the connection `L`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LinkState<L> {
    /// There is none, and nothing is known against an attempt.
    #[default]
    Idle,
    /// An attempt is under way, after this many failed ones in a row.
    Connecting { failures: u32 },
    /// It works, as far as is known.
    Open(L),
    /// It was lost after zero failed attempts, or this many have failed in a row.
    Failed {
        failures: u32,
        retry_at: Instant,
        why: Arc<str>,
    },
    /// The Upstream has changed or was deleted: there is no further connection.
    Superseded,
}

/// The next step of a caller that needs the connection.
#[derive(Debug, PartialEq)]
pub enum LinkStep<L> {
    /// It uses this one.
    Use(L),
    /// It makes an attempt, which the state has recorded.
    Connect,
    /// It waits for the first attempt of another caller.
    Wait,
    /// It fails.
    Fail(SendError),
}

impl<L: Clone> LinkState<L> {
    /// Returns the next step of a caller, and records the attempt that it makes. `is_open` returns false for a connection whose loss
    /// was not recorded yet.
    pub fn begin(&mut self, now: Instant, is_open: impl Fn(&L) -> bool) -> LinkStep<L> {
        let failures = match self {
            Self::Open(link) if is_open(link) => return LinkStep::Use(link.clone()),
            Self::Superseded => return LinkStep::Fail(superseded()),
            Self::Connecting { failures: 0 } => return LinkStep::Wait,
            // A broker that is down may take the whole timeout: callers that waited would hold their memory meanwhile.
            Self::Connecting { .. } => {
                return LinkStep::Fail(SendError::Throttled(TRIAL_RETRY_MILLISECONDS));
            }
            Self::Failed { retry_at, why, .. } if now < *retry_at => {
                return LinkStep::Fail(SendError::Unavailable(format!("not connected: {why}")));
            }
            Self::Failed { failures, .. } => *failures,
            Self::Idle | Self::Open(_) => 0,
        };
        *self = Self::Connecting { failures };
        LinkStep::Connect
    }

    /// Records the connection of an attempt. Returns false if the client was superseded meanwhile.
    pub fn record_open(&mut self, link: L) -> bool {
        let is_wanted = !matches!(self, Self::Superseded);
        if is_wanted {
            *self = Self::Open(link);
        }
        is_wanted
    }

    /// Records that an attempt has failed.
    pub fn record_failure(&mut self, now: Instant, why: &str) {
        if let Self::Connecting { failures } = *self {
            let failures = failures.saturating_add(1);
            *self = Self::Failed {
                failures,
                retry_at: now + CONNECT_BACKOFF.delay(failures),
                why: why.into(),
            };
        }
    }

    /// Records that an attempt was not made, since this host does not lead.
    pub fn record_withdrawal(&mut self) {
        if matches!(self, Self::Connecting { .. }) {
            *self = Self::Idle;
        }
    }

    /// Records that the connection, which this state has, was lost. The next use connects again at once.
    pub fn record_loss(&mut self, now: Instant, why: &str) {
        *self = Self::Failed {
            failures: 0,
            retry_at: now,
            why: why.into(),
        };
    }

    /// Takes the connection, if there is one. The next use connects again.
    pub fn take_open(&mut self) -> Option<L> {
        let link = match self {
            Self::Open(link) => Some(link.clone()),
            _ => None,
        };
        if link.is_some() {
            *self = Self::Idle;
        }
        link
    }

    /// The wait until the next attempt may begin.
    pub fn wait(&self, now: Instant) -> Duration {
        match self {
            Self::Failed { retry_at, .. } => retry_at.saturating_duration_since(now),
            _ => Duration::ZERO,
        }
    }

    /// The state of the circuit: open while there is no attempt to connect.
    pub fn circuit_state(&self, now: Instant) -> CircuitState {
        match self {
            Self::Failed { failures: 1.., .. } if !self.wait(now).is_zero() => CircuitState::Open,
            Self::Failed { failures: 1.., .. } | Self::Connecting { failures: 1.. } => CircuitState::HalfOpen,
            _ => CircuitState::Closed,
        }
    }
}

/// The connections that are established from now on.
pub struct LinkChanges<L>(pub watch::Receiver<LinkState<L>>);

impl<L> LinkChanges<L> {
    /// Waits for the next one. Never returns if there is none any more.
    pub async fn wait_open(mut self) {
        while self.0.changed().await.is_ok() {
            if matches!(*self.0.borrow_and_update(), LinkState::Open(_)) {
                return;
            }
        }
        std::future::pending().await
    }
}

/// The error of a client that a newer version of its Upstream has superseded.
pub fn superseded() -> SendError {
    SendError::Unavailable("the Upstream has changed: try again".into())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    type State = LinkState<u32>;

    fn begin(state: &mut State, now: Instant) -> LinkStep<u32> {
        state.begin(now, |link| *link != 0)
    }

    #[test]
    fn one_caller_connects_and_others_wait_for_its_first_attempt_only() {
        let (mut state, now) = (State::Idle, Instant::now());
        assert_eq!(begin(&mut state, now), LinkStep::Connect);
        assert_eq!(begin(&mut state, now), LinkStep::Wait);
        state.record_failure(now, "refused");
        let error = SendError::Unavailable("not connected: refused".into());
        assert_eq!(begin(&mut state, now), LinkStep::Fail(error));
        let due = now + state.wait(now);
        assert_eq!(begin(&mut state, due), LinkStep::Connect);
        let error = SendError::Throttled(TRIAL_RETRY_MILLISECONDS);
        assert_eq!(begin(&mut state, due), LinkStep::Fail(error));
        assert!(state.record_open(7));
        assert_eq!(begin(&mut state, due), LinkStep::Use(7));
    }

    #[test]
    fn lost_connection_is_replaced_at_once_and_a_superseded_client_has_none() {
        let now = Instant::now();
        // Its loss was not recorded yet.
        let mut state = State::Open(0);
        assert_eq!(begin(&mut state, now), LinkStep::Connect);
        let mut state = State::Open(7);
        state.record_loss(now, "reset");
        assert_eq!(state.circuit_state(now), CircuitState::Closed);
        assert_eq!(begin(&mut state, now), LinkStep::Connect);
        assert!(state.record_open(8));
        assert_eq!((state.take_open(), state.take_open()), (Some(8), None));
        assert_eq!(begin(&mut state, now), LinkStep::Connect);
        state = State::Superseded;
        assert!(!state.record_open(9));
        state.record_failure(now, "late");
        assert_eq!(begin(&mut state, now), LinkStep::Fail(superseded()));
    }

    #[test]
    fn circuit_opens_with_each_failure_for_longer() {
        let (mut state, now) = (State::Idle, Instant::now());
        assert_eq!(state.circuit_state(now), CircuitState::Closed);
        let (mut last, mut due) = (Duration::ZERO, now);
        for attempt in 0..100 {
            assert_eq!(begin(&mut state, due), LinkStep::Connect);
            state.record_failure(now, "refused");
            let wait = state.wait(now);
            assert!(wait > last || attempt >= 5, "{wait:?}");
            assert!(wait <= Duration::from_secs(30), "{wait:?}");
            assert_eq!(state.circuit_state(now), CircuitState::Open);
            assert_eq!(state.circuit_state(now + wait), CircuitState::HalfOpen);
            (last, due) = (wait, now + wait);
        }
    }

    #[test]
    fn wait_for_connection_ends_with_a_new_one_only() {
        let client = watch::Sender::new(State::Open(1));
        let ends =
            |changes: watch::Receiver<State>| LinkChanges(changes).wait_open().now_or_never().is_some();
        assert!(!ends(client.subscribe()), "it is connected already");
        let changes = client.subscribe();
        client.send_replace(State::Connecting { failures: 1 });
        assert!(!ends(changes.clone()), "it is about to");
        client.send_replace(State::Open(2));
        assert!(ends(changes), "it was connected meanwhile");
        let changes = client.subscribe();
        client.send_replace(State::Superseded);
        drop(client);
        assert!(!ends(changes), "it was superseded");
    }
}
