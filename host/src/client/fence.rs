//! The write fence: this process may write only while it leads, by its own monotonic clock, at the moment of sending.
//!
//! The fence closes by itself when the last renewal of the lease expires, even if every thread of the process was
//! suspended meanwhile. Work that began in one leader term cannot write in the next.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Instant,
};

use tokio::sync::watch;

tokio::task_local! {
    /// The leader term in which the running task began.
    static TERM: u64;
}

/// The error of a write that was not sent because another host may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host is not the leader: the write is refused")]
pub struct NotLeader;

/// The fence that all writes of a host pass. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WriteFence {
    state: Arc<watch::Sender<State>>,
    rereads: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    term: u64,
    opening: Opening,
    draining: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    Closed,
    Until(Instant),
    Always,
}

impl State {
    fn is_open(&self) -> bool {
        match self.opening {
            Opening::Closed => false,
            Opening::Until(until) => Instant::now() < until,
            Opening::Always => true,
        }
    }
}

impl Default for WriteFence {
    /// Always open, for a host without leader election.
    fn default() -> Self {
        Self::with_state(1, Opening::Always)
    }
}

impl WriteFence {
    /// Creates a fence that is closed until this host leads.
    pub fn closed() -> Self {
        Self::with_state(0, Opening::Closed)
    }

    fn with_state(term: u64, opening: Opening) -> Self {
        let state = State {
            term,
            opening,
            draining: false,
        };
        Self {
            state: Arc::new(watch::Sender::new(state)),
            rereads: Arc::default(),
        }
    }

    /// Opens the fence for a term until a deadline, or moves the deadline.
    pub fn open_until(&self, term: u64, until: Instant) {
        self.state.send_if_modified(|state| {
            // A renewal only moves the deadline, so waiters are not woken; they re-check it when it passes.
            let opens = state.term != term || state.opening == Opening::Closed;
            (state.term, state.opening) = (term, Opening::Until(until));
            opens
        });
    }

    /// Counts a reread of the lease by the leader, which happens when another process changed it.
    pub fn count_reread(&self) {
        self.rereads.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of rereads of the lease by the leader.
    pub fn rereads(&self) -> u64 {
        self.rereads.load(Ordering::Relaxed)
    }

    /// Closes the fence at once.
    pub fn close(&self) {
        self.state.send_if_modified(|state| {
            let closes = state.opening != Opening::Closed;
            state.opening = Opening::Closed;
            closes
        });
    }

    /// Succeeds if the running task may send a write now.
    pub fn check_open(&self) -> Result<(), NotLeader> {
        let state = *self.state.borrow();
        let term = TERM.try_with(|term| *term).unwrap_or(state.term);
        if term == state.term && state.is_open() {
            Ok(())
        } else {
            Err(NotLeader)
        }
    }

    /// The current term while the fence is open.
    pub fn term(&self) -> Option<u64> {
        let state = *self.state.borrow();
        state.is_open().then_some(state.term)
    }

    /// Waits until the fence is open and returns the term; none if draining has started.
    pub async fn wait_open(&self) -> Option<u64> {
        let state = *self.state.borrow();
        if state.is_open() && !state.draining {
            return Some(state.term);
        }
        let mut changes = self.state.subscribe();
        let state = changes.wait_for(|s| s.draining || s.is_open()).await.ok()?;
        (!state.draining).then_some(state.term)
    }

    /// Waits until a term is over.
    pub async fn wait_term_end(&self, term: u64) {
        let mut changes = self.state.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            if state.term != term || !state.is_open() {
                return;
            }
            let deadline = async {
                match state.opening {
                    Opening::Until(until) => tokio::time::sleep_until(until.into()).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = deadline => {}
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Runs work for as long as a term lasts. At the end of the term the future is dropped.
    pub async fn run_in_term<T>(&self, term: u64, work: impl Future<Output = T>) -> Result<T, NotLeader> {
        if self.term() != Some(term) {
            return Err(NotLeader);
        }
        let mut work = pin!(TERM.scope(term, work));
        // Most work never waits, and takes no timer for the end of the term then.
        if let Poll::Ready(done) = futures::poll!(work.as_mut()) {
            return Ok(done);
        }
        tokio::select! {
            biased;
            () = self.wait_term_end(term) => Err(NotLeader),
            done = work => Ok(done),
        }
    }

    /// Starts draining: no further work is begun, and running work is asked to end early.
    pub fn start_drain(&self) {
        self.state.send_modify(|state| state.draining = true);
    }

    /// Returns true once draining has started.
    pub fn is_draining(&self) -> bool {
        self.state.borrow().draining
    }

    /// Waits until draining starts.
    pub async fn wait_drain(&self) {
        let _ = self.state.subscribe().wait_for(|s| s.draining).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn fence_closes_at_its_deadline_and_refuses_writes_of_earlier_terms() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let fence = WriteFence::closed();
            assert_eq!(fence.check_open(), Err(NotLeader));
            let now = Instant::now();
            fence.open_until(1, now);
            assert_eq!(
                fence.check_open(),
                Err(NotLeader),
                "the deadline has passed already"
            );
            fence.open_until(2, now + Duration::from_secs(3600));
            assert_eq!((fence.check_open(), fence.wait_open().await), (Ok(()), Some(2)));
            let writing = async { fence.check_open() };
            assert_eq!(fence.run_in_term(2, writing).await, Ok(Ok(())));
            let old = TERM.scope(1, async { fence.check_open() });
            assert_eq!(old.await, Err(NotLeader));
            let work = fence.run_in_term(2, async {
                fence.open_until(3, now + Duration::from_secs(3600));
                assert_eq!(fence.check_open(), Err(NotLeader), "within the same poll");
                std::future::pending::<()>().await;
            });
            assert_eq!(work.await, Err(NotLeader));
            fence.start_drain();
            assert_eq!((fence.wait_open().await, fence.check_open()), (None, Ok(())));
        });
    }
}
