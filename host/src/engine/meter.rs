//! How long a guest has computed, and turns for those that do so for long.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::TICK;

/// Lets others run, then waits for a turn to compute on. It is given back when the guest is next polled to its end.
pub(super) async fn turn(turns: Arc<Semaphore>, meter: Arc<Meter>) {
    tokio::task::yield_now().await;
    // It is never closed.
    let turn = turns.acquire_owned().await.ok();
    *meter.turn.lock().expect("lock") = turn;
}

/// Epochs tick while the guest waits for the host, too: what counts is the time spent polling it.
#[derive(Default)]
pub(super) struct Meter {
    spent: AtomicU64,
    since: Mutex<Option<Instant>>,
    /// Held while a guest that computes for long does.
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Meter {
    /// What was spent so far.
    pub fn used(&self) -> Duration {
        let running = self
            .since
            .lock()
            .expect("lock")
            .map_or(Duration::ZERO, |since| since.elapsed());
        Duration::from_nanos(self.spent.load(Ordering::Relaxed)) + running
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
        let long = self.meter.spent.load(Ordering::Relaxed) > TICK.as_nanos() as u64;
        let polled = match long && many_threads() {
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
