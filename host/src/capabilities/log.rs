//! `log`: log lines, with the object and the plugin added by the host.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::StdoutStream;

use super::Call;
use crate::{
    bindings::log::{Host, Level},
    metrics::HostCall,
};

/// Longer lines are cut: a log is no place for documents.
const LINE: usize = 8 << 10;

impl Host for Call {
    async fn write(&mut self, level: Level, message: String, fields: Vec<(String, String)>) {
        if self.enter(HostCall::LogWrite).is_err() {
            return;
        }
        let object = self.subject().map(ToString::to_string).unwrap_or_default();
        let mut line = message;
        for (key, value) in fields {
            line.push_str(&format!(" {key}={value:?}"));
        }
        let line = cut(&line);
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

fn cut(line: &str) -> &str {
    let mut end = line.len().min(LINE);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

/// What a component with WASI writes to its stdout or stderr.
#[derive(Clone)]
pub struct Printed {
    plugin: Arc<str>,
    level: tracing::Level,
    line: Vec<u8>,
}

impl Printed {
    /// Lines are logged for this plugin, at this level.
    pub fn new(plugin: Arc<str>, level: tracing::Level) -> Self {
        Self {
            plugin,
            level,
            line: Vec::new(),
        }
    }

    fn flush_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        let (line, plugin) = (cut(line.trim_end()), &*self.plugin);
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
