//! Log queues: lines are written by threads of their own, so that a full pipe at stderr blocks no reconcile.

use std::{io::Write, sync::OnceLock};

use tracing::Metadata;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::MakeWriter;

/// Target of the log lines of plugins.
pub const PLUGIN_TARGET: &str = "plugin";

/// Maximum number of lines of the host that wait to be written. A place takes 32 bytes from the start.
const MAX_HOST_LINES: usize = 4 << 10;
/// Maximum number of lines of plugins that wait to be written.
const MAX_PLUGIN_LINES: usize = 2 << 10;

/// The queues of this process, for metrics.
static DROPPED: OnceLock<DroppedLines> = OnceLock::new();

/// Counters of the lines that were dropped because a queue was full.
pub struct DroppedLines {
    host: ErrorCounter,
    plugins: ErrorCounter,
}

impl DroppedLines {
    /// The counters of this process; none before its log is started.
    pub fn of_process() -> Option<&'static Self> {
        DROPPED.get()
    }

    /// The number of dropped lines of the host and of plugins.
    pub fn counts(&self) -> [(&'static str, u64); 2] {
        let count = |counter: &ErrorCounter| counter.dropped_lines() as u64;
        [("host", count(&self.host)), ("plugin", count(&self.plugins))]
    }
}

/// Two queues: that of plugins is short and drops lines first, so that a plugin cannot keep out the lines of the host.
pub struct LogQueues {
    host: NonBlocking,
    plugins: NonBlocking,
}

/// Guard of the threads, which write the last lines when it is dropped.
pub type LogGuard = [WorkerGuard; 2];

impl LogQueues {
    /// Starts the threads, which write to `open()`.
    pub fn start<W: Write + Send + 'static>(open: impl Fn() -> W) -> (Self, LogGuard) {
        let start = |lines, thread| {
            NonBlockingBuilder::default()
                .lossy(true)
                .buffered_lines_limit(lines)
                .thread_name(thread)
                .finish(open())
        };
        let (host, host_guard) = start(MAX_HOST_LINES, "log");
        let (plugins, plugins_guard) = start(MAX_PLUGIN_LINES, "log-plugins");
        (Self { host, plugins }, [plugins_guard, host_guard])
    }

    /// Counters of the dropped lines.
    fn dropped_lines(&self) -> DroppedLines {
        DroppedLines {
            host: self.host.error_counter(),
            plugins: self.plugins.error_counter(),
        }
    }

    /// Makes the dropped lines those of this process, for metrics.
    pub fn publish_counters(&self) {
        let _ = DROPPED.set(self.dropped_lines());
    }
}

impl<'a> MakeWriter<'a> for LogQueues {
    type Writer = NonBlocking;

    fn make_writer(&'a self) -> NonBlocking {
        self.host.clone()
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> NonBlocking {
        if metadata.target() == PLUGIN_TARGET {
            self.plugins.clone()
        } else {
            self.host.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// A pipe, which blocks writers while the test holds its lock.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<Vec<u8>>>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("lock").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn full_pipe_blocks_nothing_and_drops_plugin_lines_first() {
        let pipe = Pipe::default();
        let (queues, guard) = LogQueues::start(|| pipe.clone());
        let dropped = queues.dropped_lines();
        let log = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(queues);
        let full = pipe.0.lock().expect("lock");
        // It would not return if a line waited for the pipe.
        tracing::subscriber::with_default(tracing_subscriber::registry().with(log), || {
            for line in 0..2 * MAX_PLUGIN_LINES {
                tracing::info!(target: PLUGIN_TARGET, "flood {line}");
            }
            for line in 0..100 {
                tracing::info!("host line {line}.");
            }
        });
        let [(_, host), (_, plugins)] = dropped.counts();
        assert_eq!(host, 0);
        // One line is in the hands of the thread.
        let expected = MAX_PLUGIN_LINES as u64 - 1..=MAX_PLUGIN_LINES as u64;
        assert!(expected.contains(&plugins), "{plugins}");
        drop(full);
        drop(guard);
        let text = String::from_utf8(pipe.0.lock().expect("lock").clone()).expect("text");
        for line in 0..100 {
            assert!(text.contains(&format!("host line {line}.")), "{line}");
        }
    }
}
