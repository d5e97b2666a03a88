//! How long a guest has computed, and turns for those that do so for long.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Epochs tick while the guest waits for the host, too: what counts is the time spent polling it.
pub(super) struct Meter {
    spent: AtomicU64,
    since: Mutex<Option<Instant>>,
    /// Whether it has computed, or grown, so much that it takes turns.
    long: AtomicBool,
    turns: Arc<Semaphore>,
    /// Held while a guest that computes for long does.
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Meter {
    /// Nothing is spent yet; turns are taken from these.
    pub fn new(turns: Arc<Semaphore>) -> Self {
        Self {
            spent: AtomicU64::new(0),
            since: Mutex::default(),
            long: AtomicBool::new(false),
            turns,
            turn: Mutex::default(),
        }
    }

    /// What was spent so far.
    pub fn used(&self) -> Duration {
        let running = self
            .since
            .lock()
            .expect("lock")
            .map_or(Duration::ZERO, |since| since.elapsed());
        Duration::from_nanos(self.spent.load(Ordering::Relaxed)) + running
    }

    /// Whether it computes in a turn.
    pub fn in_turn(&self) -> bool {
        self.turn.lock().expect("lock").is_some()
    }

    /// Lets others run, then waits for a turn to compute on. It is given back when the guest next waits, or ends.
    pub async fn turn(self: Arc<Self>) {
        self.long.store(true, Ordering::Relaxed);
        tokio::task::yield_now().await;
        // It is never closed.
        let turn = self.turns.clone().acquire_owned().await.ok();
        *self.turn.lock().expect("lock") = turn;
    }
}

/// A call, measured.
pub(super) struct Metered<'a, T> {
    pub inner: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    pub meter: Arc<Meter>,
}

impl<T> Future for Metered<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let start = Instant::now();
        *self.meter.since.lock().expect("lock") = Some(start);
        let polled = match self.meter.long.load(Ordering::Relaxed) && many_threads() {
            // What else this thread would run is run by another meanwhile.
            true => tokio::task::block_in_place(|| self.inner.as_mut().poll(context)),
            false => self.inner.as_mut().poll(context),
        };
        *self.meter.since.lock().expect("lock") = None;
        drop(self.meter.turn.lock().expect("lock").take());
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.meter.spent.fetch_add(spent, Ordering::Relaxed);
        polled
    }
}

fn many_threads() -> bool {
    let here = tokio::runtime::Handle::try_current();
    here.is_ok_and(|h| h.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread)
}
