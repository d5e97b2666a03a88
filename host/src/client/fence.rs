//! Whether this process may write: while it leads, by its own monotonic clock, at the moment of sending.
//!
//! Nobody has to close the gate: it is shut when the time is over that the last renewal of the lease was
//! good for, also when every thread of the process was stopped meanwhile. What was begun in one term can't
//! write in the next.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use tokio::sync::watch;

tokio::task_local! {
    /// The term in which the running task was begun.
    static TERM: u64;
}

/// Nothing is written: another may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host does not lead: nothing is written")]
pub struct Deposed;

/// The one gate of a host. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gate {
    state: Arc<watch::Sender<State>>,
    rereads: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    term: u64,
    open: Open,
    draining: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    No,
    Until(Instant),
    Always,
}

impl State {
    fn open(&self) -> bool {
        match self.open {
            Open::No => false,
            Open::Until(until) => Instant::now() < until,
            Open::Always => true,
        }
    }
}

impl Default for Gate {
    /// Always open: the host is alone.
    fn default() -> Self {
        Self::of(1, Open::Always)
    }
}

impl Gate {
    /// Shut until somebody leads.
    pub fn shut() -> Self {
        Self::of(0, Open::No)
    }

    fn of(term: u64, open: Open) -> Self {
        let state = State {
            term,
            open,
            draining: false,
        };
        Self {
            state: Arc::new(watch::Sender::new(state)),
            rereads: Arc::default(),
        }
    }

    /// Opens for a term, or keeps it open for longer.
    pub fn lead(&self, term: u64, until: Instant) {
        self.state.send_if_modified(|state| {
            // Longer is no news: who waits for the end looks again when it would have come.
            let news = state.term != term || state.open == Open::No;
            (state.term, state.open) = (term, Open::Until(until));
            news
        });
    }

    /// The lease had to be read again by who leads: somebody else has changed it.
    pub fn reread(&self) {
        self.rereads.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was.
    pub fn rereads(&self) -> u64 {
        self.rereads.load(Ordering::Relaxed)
    }

    /// Shuts at once.
    pub fn close(&self) {
        self.state.send_if_modified(|state| {
            let news = state.open != Open::No;
            state.open = Open::No;
            news
        });
    }

    /// Whether a write may be sent now, by the running task.
    pub fn check(&self) -> Result<(), Deposed> {
        let state = *self.state.borrow();
        let begun = TERM.try_with(|term| *term).unwrap_or(state.term);
        match begun == state.term && state.open() {
            true => Ok(()),
            false => Err(Deposed),
        }
    }

    /// The term, while it is open.
    pub fn term(&self) -> Option<u64> {
        let state = *self.state.borrow();
        state.open().then_some(state.term)
    }

    /// Waits until it is open; none when no work is to be begun any more.
    pub async fn opened(&self) -> Option<u64> {
        let mut changes = self.state.subscribe();
        let state = changes.wait_for(|s| s.draining || s.open()).await.ok()?;
        (!state.draining).then_some(state.term)
    }

    /// Waits until a term is over.
    pub async fn ended(&self, term: u64) {
        let mut changes = self.state.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            if state.term != term || !state.open() {
                return;
            }
            let over = async {
                match state.open {
                    Open::Until(until) => tokio::time::sleep_until(until.into()).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = over => {}
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Does something for as long as a term lasts; then it is dropped where it is.
    pub async fn during<T>(&self, term: u64, work: impl Future<Output = T>) -> Result<T, Deposed> {
        tokio::select! {
            biased;
            () = self.ended(term) => Err(Deposed),
            done = TERM.scope(term, work) => Ok(done),
        }
    }

    /// From now on no work is begun, and what runs is asked to end early.
    pub fn drain(&self) {
        self.state.send_modify(|state| state.draining = true);
    }

    /// Whether it is being drained.
    pub fn draining(&self) -> bool {
        self.state.borrow().draining
    }

    /// Waits until it is being drained.
    pub async fn drained(&self) {
        let _ = self.state.subscribe().wait_for(|s| s.draining).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn shuts_by_itself_and_a_term_can_t_write_in_the_next() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let gate = Gate::shut();
            assert_eq!(gate.check(), Err(Deposed));
            let now = Instant::now();
            gate.lead(1, now);
            assert_eq!(gate.check(), Err(Deposed), "the time is over already");
            gate.lead(2, now + Duration::from_secs(3600));
            assert_eq!((gate.check(), gate.opened().await), (Ok(()), Some(2)));
            let writing = async { gate.check() };
            assert_eq!(gate.during(2, writing).await, Ok(Ok(())));
            let old = TERM.scope(1, async { gate.check() });
            assert_eq!(old.await, Err(Deposed));
            let reign = gate.during(2, async {
                gate.lead(3, now + Duration::from_secs(3600));
                assert_eq!(gate.check(), Err(Deposed), "within the same poll");
                std::future::pending::<()>().await;
            });
            assert_eq!(reign.await, Err(Deposed));
            gate.drain();
            assert_eq!((gate.opened().await, gate.check()), (None, Ok(())));
        });
    }
}
