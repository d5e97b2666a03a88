//! `log`: log lines, with the object and the plugin added by the host.

use std::{
    borrow::Cow,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Instant,
};

use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::StdoutStream;

use super::PluginCall;
use crate::{
    contract::{
        bindings::log::{Host, Level},
        limits::Limit,
        trap::{PanicReport, Trap},
    },
    observe::{
        log_ring::{LogLevel, LogRing, LogSource},
        metrics::{HostCall, LineVerdict, PluginMetrics},
        telemetry::PLUGIN_TARGET,
    },
    recording::{codec::Recordable, recorder::CallArguments},
};

/// Message in conditions for a panic of a plugin that may read Secrets.
const WITHHELD_MESSAGE: &str = "a panic, whose message is in the log only: the plugin may read Secrets";

/// Maximum number of bytes of a log line. The rest of a longer line is dropped.
const MAX_LINE_BYTES: usize = 8 << 10;

impl Host for PluginCall {
    async fn write(&mut self, level: Level, message: String, fields: Vec<(String, String)>) {
        let begun = self.begin_host_call(HostCall::LogWrite).is_ok();
        if matches!(level, Level::Error)
            && let Some(report) = PanicReport::from_line(&message, &fields)
        {
            // Also beyond a limit: it is one line, of bounded size.
            return self.keep_panic_report(report);
        }
        if !begun {
            return;
        }
        let size = fields.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        if self.charge_bytes_to_host(message.len() + size).is_err() || !self.may_log_line() {
            return;
        }
        let mut line = message;
        for (key, value) in fields {
            if line.len() > MAX_LINE_BYTES {
                break;
            }
            line.push_str(&format!(" {key}={value:?}"));
        }
        self.line_writer()
            .write_line(level.into(), &sanitize_line(&line), None);
    }
}

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Trace => Self::Trace,
            Level::Debug => Self::Debug,
            Level::Info => Self::Info,
            Level::Warn => Self::Warn,
            Level::Error => Self::Error,
        }
    }
}

impl PluginCall {
    /// Keeps the report of a panic until the call ends or goes on. The trap that follows has its message, and one log line
    /// has both.
    fn keep_panic_report(&mut self, report: PanicReport) {
        self.panic_report = Some(report.into());
        self.is_output_muted.store(true, Ordering::Relaxed);
    }

    /// The trap of a call that has ended for this cause: the panic that the component has reported right before, if any.
    pub fn explain_trap(&mut self, cause: String) -> Trap {
        let Some(report) = self.panic_report.take() else {
            return Trap::Other(cause);
        };
        if !self.context.policy.grants.can_read_secrets() {
            return Trap::Panicked(report);
        }
        let shown = PanicReport {
            message: WITHHELD_MESSAGE.into(),
            location: report.location.clone(),
            stack: String::new(),
        };
        self.panic_report = Some(report);
        self.log_panic_report();
        Trap::Panicked(Box::new(shown))
    }

    /// Logs the report of a panic that no trap followed, as the plugin's error.
    pub fn log_panic_report(&mut self) {
        let Some(report) = self.panic_report.take() else {
            return;
        };
        self.is_output_muted.store(false, Ordering::Relaxed);
        if self.mode.is_replay() || !self.may_log_line() {
            return;
        }
        let stack = Some(&*report.stack).filter(|stack| !stack.is_empty());
        self.line_writer()
            .write_line(LogLevel::Error, &report.to_string(), stack);
    }

    /// Keeps the report of a panic that a replayed call logs: the log of a replay is not written.
    pub(super) fn observe_replayed_call(&mut self, call: HostCall, arguments: &CallArguments) {
        self.panic_report = None;
        if call != HostCall::LogWrite {
            return;
        }
        let [_, (_, message), (_, fields)] = &arguments[..] else {
            return;
        };
        let message = String::from_recorded(message.to_recorded());
        if let (Ok(message), Ok(fields)) = (message, Vec::from_recorded(fields.to_recorded())) {
            self.panic_report = PanicReport::from_line(&message, &fields).map(Box::new);
        }
    }
}

/// Sanitizes a text of a component for one log line: cut to the limit, and with control characters escaped, which would
/// end the line or control a terminal.
pub(super) fn sanitize_line(text: &str) -> Cow<'_, str> {
    let mut end = text.len().min(MAX_LINE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let line = &text[..end];
    let is_unsafe = |c: char| (c.is_control() && c != '\t') || matches!(c, '\u{2028}' | '\u{2029}');
    if !line.contains(is_unsafe) {
        return Cow::Borrowed(line);
    }
    let mut clean = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        if is_unsafe(c) {
            clean.extend(c.escape_default());
        } else {
            clean.push(c);
        }
    }
    Cow::Owned(clean)
}

/// Limits the log lines of one reconcile, and those of its plugin in a minute.
#[derive(Clone)]
pub(super) struct LineLimiter {
    pub plugin: Arc<str>,
    pub metrics: Option<Arc<PluginMetrics>>,
    pub written: Arc<AtomicU32>,
    pub max: u32,
    pub max_per_minute: u32,
}

impl LineLimiter {
    /// Counts a line and returns true if it may be written. The first line beyond the limit of the reconcile, and one each
    /// minute beyond that of the plugin, log a warning.
    pub fn allow_line(&self) -> bool {
        let before = self.written.fetch_add(1, Ordering::Relaxed);
        if before >= self.max {
            if before == self.max {
                self.report_exceeded(Limit::LogLines, self.max);
            }
            return false;
        }
        let Some(metrics) = &self.metrics else { return true };
        match metrics
            .log_rate
            .lock()
            .take_line(Instant::now(), self.max_per_minute)
        {
            LineVerdict::Allowed => true,
            LineVerdict::Dropped { warn } => {
                if warn {
                    self.report_exceeded(Limit::LogLinesPerMinute, self.max_per_minute);
                }
                false
            }
        }
    }

    fn report_exceeded(&self, exceeded: Limit, limit: u32) {
        tracing::warn!(
            plugin = &*self.plugin,
            field = exceeded.name(),
            limit,
            "log line limit exceeded, dropping further lines"
        );
        if let Some(metrics) = &self.metrics {
            metrics.record_exceeded(exceeded);
        }
    }
}

/// Writes the log lines of one call, to the log and to the ring of recent lines.
#[derive(Clone)]
pub(super) struct LineWriter {
    pub source: LogSource,
    /// None in `describe`, which has no services.
    pub ring: Option<Arc<LogRing>>,
    /// The plugin may read Secrets, so its texts are in the log only.
    pub is_withheld: bool,
}

impl LineWriter {
    /// Writes a sanitized line.
    pub fn write_line(&self, level: LogLevel, line: &str, stack: Option<&str>) {
        let object = self
            .source
            .object
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let (plugin, reconcile) = (&*self.source.plugin, self.source.reconcile);
        match level {
            LogLevel::Trace => {
                tracing::trace!(target: PLUGIN_TARGET, object, plugin, %reconcile, stack, "{line}")
            }
            LogLevel::Debug => {
                tracing::debug!(target: PLUGIN_TARGET, object, plugin, %reconcile, stack, "{line}")
            }
            LogLevel::Info => {
                tracing::info!(target: PLUGIN_TARGET, object, plugin, %reconcile, stack, "{line}")
            }
            LogLevel::Warn => {
                tracing::warn!(target: PLUGIN_TARGET, object, plugin, %reconcile, stack, "{line}")
            }
            LogLevel::Error => {
                tracing::error!(target: PLUGIN_TARGET, object, plugin, %reconcile, stack, "{line}")
            }
        }
        if let Some(ring) = &self.ring {
            ring.append(
                &self.source,
                level,
                line,
                stack.unwrap_or_default(),
                self.is_withheld,
            );
        }
    }
}

/// The standard output or standard error of a component with WASI, logged line by line.
#[derive(Clone)]
pub struct OutputLog {
    limiter: LineLimiter,
    writer: LineWriter,
    level: LogLevel,
    is_muted: Arc<AtomicBool>,
    line: Vec<u8>,
}

impl OutputLog {
    /// A stream that logs at this level, within the limit of lines, while it is not muted.
    pub(super) fn new(
        limiter: LineLimiter,
        writer: LineWriter,
        level: LogLevel,
        is_muted: Arc<AtomicBool>,
    ) -> Self {
        Self {
            limiter,
            writer,
            level,
            is_muted,
            line: Vec::new(),
        }
    }

    fn flush_line(&mut self) {
        if self.is_muted.load(Ordering::Relaxed) || !self.limiter.allow_line() {
            return self.line.clear();
        }
        let line = String::from_utf8_lossy(&self.line);
        self.writer
            .write_line(self.level, &sanitize_line(line.trim_end()), None);
        self.line.clear();
    }
}

impl StdoutStream for OutputLog {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for OutputLog {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        for byte in bytes {
            if *byte == b'\n' || self.line.len() >= MAX_LINE_BYTES {
                self.flush_line();
            } else {
                self.line.push(*byte);
            }
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.line.is_empty() {
            self.flush_line();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_text_with_control_characters_is_one_escaped_line() {
        assert_eq!(sanitize_line("as it is\tä"), "as it is\tä");
        assert_eq!(
            sanitize_line("a\n2026-01-01 INFO forged\r\u{1b}[2J\u{2028}"),
            "a\\n2026-01-01 INFO forged\\r\\u{1b}[2J\\u{2028}"
        );
        let long = "ä".repeat(MAX_LINE_BYTES);
        assert_eq!(sanitize_line(&long).len(), MAX_LINE_BYTES);
    }

    #[test]
    fn log_lines_beyond_the_limit_are_dropped() {
        let written = Arc::new(AtomicU32::new(0));
        let (max, plugin) = (2, "p".into());
        let limiter = LineLimiter {
            plugin,
            metrics: None,
            written: written.clone(),
            max,
            max_per_minute: 1,
        };
        let allowed = (0..5).filter(|_| limiter.allow_line()).count();
        assert_eq!((allowed, written.load(Ordering::Relaxed)), (2, 5));
    }
}
