//! `log`: log lines, with the object and the plugin added by the host.

use std::{
    borrow::Cow,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::StdoutStream;

use super::Call;
use crate::{
    contract::{
        bindings::log::{Host, Level},
        limits::Limit,
    },
    observe::metrics::{HostCall, PluginMetrics},
};

/// Longer lines are cut: a log is no place for documents.
const LINE: usize = 8 << 10;

impl Host for Call {
    async fn write(&mut self, level: Level, message: String, fields: Vec<(String, String)>) {
        if self.enter(HostCall::LogWrite).is_err() {
            return;
        }
        let size = fields.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        if self.takes(message.len() + size).is_err() || !self.line() {
            return;
        }
        let object = self.subject().map(ToString::to_string).unwrap_or_default();
        let mut line = message;
        for (key, value) in fields {
            if line.len() > LINE {
                break;
            }
            line.push_str(&format!(" {key}={value:?}"));
        }
        let line = clean(&line);
        let (plugin, reconcile) = (&*self.terms.plugin, self.id);
        match level {
            Level::Trace => tracing::trace!(target: "plugin", object, plugin, %reconcile, "{line}"),
            Level::Debug => tracing::debug!(target: "plugin", object, plugin, %reconcile, "{line}"),
            Level::Info => tracing::info!(target: "plugin", object, plugin, %reconcile, "{line}"),
            Level::Warn => tracing::warn!(target: "plugin", object, plugin, %reconcile, "{line}"),
            Level::Error => tracing::error!(target: "plugin", object, plugin, %reconcile, "{line}"),
        }
    }
}

/// A component's words as one line of a log: cut, and with nothing in it that ends a line or talks to a terminal.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    let mut end = text.len().min(LINE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let line = &text[..end];
    let dangerous = |c: char| (c.is_control() && c != '\t') || matches!(c, '\u{2028}' | '\u{2029}');
    if !line.contains(dangerous) {
        return Cow::Borrowed(line);
    }
    let mut clean = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        match dangerous(c) {
            true => clean.extend(c.escape_default()),
            false => clean.push(c),
        }
    }
    Cow::Owned(clean)
}

/// Counts the lines of one call.
#[derive(Clone)]
pub(super) struct Lines {
    pub plugin: Arc<str>,
    pub metrics: Option<Arc<PluginMetrics>>,
    pub written: Arc<AtomicU32>,
    pub most: u32,
}

impl Lines {
    /// Whether one more may be written. The first that may not is told of.
    pub fn one_more(written: &AtomicU32, most: u32, plugin: &str, metrics: Option<&PluginMetrics>) -> bool {
        let before = written.fetch_add(1, Ordering::Relaxed);
        if before == most {
            tracing::warn!(
                plugin,
                limit = most,
                "log line limit exceeded, dropping further lines"
            );
            if let Some(metrics) = metrics {
                metrics.record_exceeded(Limit::LogLines);
            }
        }
        before < most
    }

    fn one(&self) -> bool {
        Self::one_more(&self.written, self.most, &self.plugin, self.metrics.as_deref())
    }
}

/// What a component with WASI writes to its stdout or stderr.
#[derive(Clone)]
pub struct Printed {
    lines: Lines,
    level: tracing::Level,
    line: Vec<u8>,
}

impl Printed {
    /// Lines are logged at this level, as long as they are not too many.
    pub(super) fn new(lines: Lines, level: tracing::Level) -> Self {
        Self {
            lines,
            level,
            line: Vec::new(),
        }
    }

    fn flush_line(&mut self) {
        if !self.lines.one() {
            return self.line.clear();
        }
        let line = String::from_utf8_lossy(&self.line);
        let (line, plugin) = (clean(line.trim_end()), &*self.lines.plugin);
        if self.level == tracing::Level::WARN {
            tracing::warn!(target: "plugin", plugin, "{line}");
        } else {
            tracing::info!(target: "plugin", plugin, "{line}");
        }
        self.line.clear();
    }
}

impl StdoutStream for Printed {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for Printed {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        for byte in bytes {
            if *byte == b'\n' || self.line.len() >= LINE {
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
    fn one_line_is_one_line() {
        assert_eq!(clean("as it is\tä"), "as it is\tä");
        assert_eq!(
            clean("a\n2026-01-01 INFO forged\r\u{1b}[2J\u{2028}"),
            "a\\n2026-01-01 INFO forged\\r\\u{1b}[2J\\u{2028}"
        );
        let long = "ä".repeat(LINE);
        assert_eq!(clean(&long).len(), LINE);
    }

    #[test]
    fn what_is_printed_without_end_is_cut() {
        let written = Arc::new(AtomicU32::new(0));
        let (most, plugin) = (2, "p".into());
        let lines = Lines {
            plugin,
            metrics: None,
            written: written.clone(),
            most,
        };
        let allowed = (0..5).filter(|_| lines.one()).count();
        assert_eq!((allowed, written.load(Ordering::Relaxed)), (2, 5));
    }
}
