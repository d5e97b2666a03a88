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
use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::EPOCH_INTERVAL;

/// Largest time that is counted for a poll of a call that is not long. The first epoch after [`EPOCH_INTERVAL`] ends its computation;
/// what is beyond is the time in which the kernel ran other threads, as on a busy node or in a throttled container.
const MAX_SHORT_POLL: Duration = EPOCH_INTERVAL.saturating_mul(2);

/// Measures the CPU time of one call: the time spent polling it. Epochs would count the time of host calls, too.
pub(super) struct CpuMeter {
    /// Nanoseconds of the polls that have ended.
    spent: AtomicU64,
    /// The beginning of the poll that runs.
    poll_started: Mutex<Option<PollStart>>,
    /// The component has computed, or grown, so much that it needs a permit to go on, and that its polls are worth a system call.
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

    /// The CPU time so far. While the call is polled, only for the thread that does.
    pub fn cpu_time(&self) -> Duration {
        let running = self
            .poll_started
            .lock()
            .map_or(Duration::ZERO, PollStart::elapsed);
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

/// The beginning of a poll.
#[derive(Clone, Copy)]
enum PollStart {
    /// Of a call that has computed little: reading this clock costs 20 ns, and no system call.
    Clock(Instant),
    /// Of a long call: the CPU time of this thread, which stands still while the kernel runs another one.
    ThreadCpuTime(Duration),
}

impl PollStart {
    fn now(is_long: bool) -> Self {
        if is_long {
            Self::ThreadCpuTime(read_thread_cpu_time())
        } else {
            Self::Clock(Instant::now())
        }
    }

    /// The CPU time since then. To be called by the thread that polls.
    fn elapsed(self) -> Duration {
        match self {
            Self::Clock(start) => start.elapsed().min(MAX_SHORT_POLL),
            Self::ThreadCpuTime(start) => read_thread_cpu_time().saturating_sub(start),
        }
    }
}

fn read_thread_cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    Duration::from_secs(part(tv_sec)) + Duration::from_nanos(part(tv_nsec))
}

/// A future whose polls are measured.
pub(super) struct MeteredFuture<'a, T> {
    pub inner: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    pub meter: Arc<CpuMeter>,
}

impl<T> Future for MeteredFuture<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let is_long = self.meter.long.load(Ordering::Relaxed);
        let start = PollStart::now(is_long);
        *self.meter.poll_started.lock() = Some(start);
        let polled = if is_long && is_multi_threaded() {
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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Polls a call once, which spends this time without the CPU, as a thread does that the kernel does not run.
    fn poll_suspended(meter: &Arc<CpuMeter>, time: Duration) {
        let mut future = MeteredFuture {
            inner: Box::pin(async move { std::thread::sleep(time) }),
            meter: meter.clone(),
        };
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut future).poll(&mut context).is_ready());
    }

    #[test]
    fn time_in_which_the_kernel_runs_other_threads_is_not_counted() {
        let meter = Arc::new(CpuMeter::new(Arc::new(Semaphore::new(1))));
        let suspended = 10 * MAX_SHORT_POLL;
        poll_suspended(&meter, suspended);
        assert_eq!(
            meter.cpu_time(),
            MAX_SHORT_POLL,
            "a short call's clock is bounded"
        );
        meter.long.store(true, Ordering::Relaxed);
        poll_suspended(&meter, suspended);
        assert!(meter.cpu_time() < 2 * MAX_SHORT_POLL, "{:?}", meter.cpu_time());
    }

    #[test]
    fn computation_of_a_long_call_is_counted() {
        let meter = Arc::new(CpuMeter::new(Arc::new(Semaphore::new(1))));
        meter.long.store(true, Ordering::Relaxed);
        let computing = async {
            let start = read_thread_cpu_time();
            while read_thread_cpu_time() - start < 2 * MAX_SHORT_POLL {
                std::hint::spin_loop();
            }
        };
        let mut future = MeteredFuture {
            inner: Box::pin(computing),
            meter: meter.clone(),
        };
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut future).poll(&mut context).is_ready());
        assert!(meter.cpu_time() >= 2 * MAX_SHORT_POLL, "{:?}", meter.cpu_time());
    }
}
