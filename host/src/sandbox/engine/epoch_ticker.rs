//! The thread that advances the epoch, at which the CPU time of running components is checked. It waits while there is no call,
//! so that a host at rest does not wake a processor a hundred times per second.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, Thread},
};

use super::EPOCH_INTERVAL;

/// Epochs without a call after which the thread waits for one. Waking it takes a system call, which calls in quick succession
/// must not pay.
const MAX_IDLE_EPOCHS: u32 = 100;

/// Advances the epoch while calls run.
pub(super) struct EpochTicker {
    state: Arc<TickerState>,
    thread: Thread,
}

#[derive(Default)]
struct TickerState {
    /// Number of calls that run.
    calls: AtomicUsize,
    /// The thread waits for a call. It looks at `calls` after it has set this, and a call at this after it has counted itself, so
    /// that one of them sees the other.
    is_waiting: AtomicBool,
    is_stopped: AtomicBool,
}

/// A call that runs.
pub(super) struct RunningCall<'a>(&'a TickerState);

impl EpochTicker {
    /// Starts the thread, since a component that loops would delay a task of the runtime. `advance` is called once per
    /// [`EPOCH_INTERVAL`] until it returns false.
    pub fn start(advance: impl FnMut() -> bool + Send + 'static) -> std::io::Result<Self> {
        let state = Arc::new(TickerState::default());
        let ticking = state.clone();
        let thread = thread::Builder::new()
            .name("epoch".into())
            .spawn(move || ticking.run(advance))?;
        Ok(Self {
            state,
            thread: thread.thread().clone(),
        })
    }

    /// Has epochs advance until the guard is dropped.
    pub fn begin_call(&self) -> RunningCall<'_> {
        self.state.calls.fetch_add(1, Ordering::SeqCst);
        if self.state.is_waiting.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        RunningCall(&self.state)
    }
}

impl TickerState {
    fn run(&self, mut advance: impl FnMut() -> bool) {
        let mut idle_epochs = 0;
        while !self.is_stopped.load(Ordering::SeqCst) {
            thread::sleep(EPOCH_INTERVAL);
            if !advance() {
                break;
            }
            idle_epochs = if self.is_idle() { idle_epochs + 1 } else { 0 };
            if idle_epochs == MAX_IDLE_EPOCHS {
                self.wait_call();
                idle_epochs = 0;
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.calls.load(Ordering::SeqCst) == 0
    }

    fn wait_call(&self) {
        self.is_waiting.store(true, Ordering::SeqCst);
        while self.is_idle() && !self.is_stopped.load(Ordering::SeqCst) {
            thread::park();
        }
        self.is_waiting.store(false, Ordering::SeqCst);
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for EpochTicker {
    fn drop(&mut self) {
        self.state.is_stopped.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn epochs_stand_still_without_a_call_and_advance_with_the_next() {
        let (sender, epochs) = mpsc::channel();
        let ticker = EpochTicker::start(move || sender.send(()).is_ok()).expect("a thread");
        for _ in 0..2 {
            let call = ticker.begin_call();
            while epochs.try_recv().is_ok() {}
            for _ in 0..3 {
                epochs.recv().expect("an epoch while the call runs");
            }
            drop(call);
            while !ticker.state.is_waiting.load(Ordering::SeqCst) {
                thread::sleep(EPOCH_INTERVAL);
            }
            while epochs.try_recv().is_ok() {}
            let further = epochs.recv_timeout(10 * EPOCH_INTERVAL);
            assert!(further.is_err(), "no epoch without a call");
        }
        drop(ticker);
        let ended = epochs.recv_timeout(Duration::from_secs(60));
        assert_eq!(
            ended,
            Err(mpsc::RecvTimeoutError::Disconnected),
            "the thread ends"
        );
    }
}
