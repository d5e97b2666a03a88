//! The CPU time of a component, and permits that limit the number of components that compute for long.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Measures the CPU time of one call: the time spent polling it. Epochs would count the time of host calls, too.
pub(super) struct CpuMeter {
    /// Nanoseconds of the polls that have ended.
    spent: AtomicU64,
    /// The beginning of the poll that runs.
    poll_started: Mutex<Option<Instant>>,
    /// The component has computed, or grown, so much that it needs a permit to go on.
    long: AtomicBool,
    permits: Arc<Semaphore>,
    /// The permit, held until the end of the poll.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl CpuMeter {
    /// A meter for a call that begins.
    pub fn new(permits: Arc<Semaphore>) -> Self {
        Self {
            spent: AtomicU64::new(0),
            poll_started: Mutex::default(),
            long: AtomicBool::new(false),
            permits,
            permit: Mutex::default(),
        }
    }

    /// The CPU time so far.
    pub fn cpu_time(&self) -> Duration {
        let running = self
            .poll_started
            .lock()
            .map_or(Duration::ZERO, |since| since.elapsed());
        Duration::from_nanos(self.spent.load(Ordering::Relaxed)) + running
    }

    /// True while it holds a permit.
    pub fn has_permit(&self) -> bool {
        self.permit.lock().is_some()
    }

    /// Yields to other tasks, then waits for a permit to compute on. It is released when the component next waits, or ends.
    pub async fn acquire_permit(self: Arc<Self>) {
        self.long.store(true, Ordering::Relaxed);
        tokio::task::yield_now().await;
        // The semaphore is never closed.
        let permit = self.permits.clone().acquire_owned().await.ok();
        *self.permit.lock() = permit;
    }
}

/// A future whose polls are measured.
pub(super) struct MeteredFuture<'a, T> {
    pub inner: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    pub meter: Arc<CpuMeter>,
}

impl<T> Future for MeteredFuture<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let start = Instant::now();
        *self.meter.poll_started.lock() = Some(start);
        let polled = if self.meter.long.load(Ordering::Relaxed) && is_multi_threaded() {
            // Another thread takes over the other tasks of this one meanwhile.
            tokio::task::block_in_place(|| self.inner.as_mut().poll(context))
        } else {
            self.inner.as_mut().poll(context)
        };
        *self.meter.poll_started.lock() = None;
        drop(self.meter.permit.lock().take());
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.meter.spent.fetch_add(spent, Ordering::Relaxed);
        polled
    }
}

/// Returns true in a runtime with several threads, which `block_in_place` needs.
fn is_multi_threaded() -> bool {
    let here = tokio::runtime::Handle::try_current();
    here.is_ok_and(|h| h.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread)
}
