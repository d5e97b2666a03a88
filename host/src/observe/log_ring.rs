//! The recent log lines of plugins, for `ostler logs`: a bounded ring per plugin, in memory.
//!
//! It has what the log has, and lines at every level, so that a plugin can be debugged without a restart of the host. Of
//! plugins that may read Secrets the text is withheld, as in recordings.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::telemetry::ReconcileId;
use crate::kube::{key::ObjectRef, time::now_rfc3339};

/// Maximum bytes of the lines of one plugin. Beyond it the plugin's oldest lines are dropped, so that a plugin that logs
/// much drops no line of another one.
const MAX_PLUGIN_BYTES: usize = 512 << 10;
/// Maximum bytes of all lines. Beyond it the oldest lines of the plugin with the most bytes are dropped.
const MAX_BYTES: usize = 8 << 20;
/// Bytes that a line takes besides its texts.
const LINE_OVERHEAD_BYTES: usize = 160;

/// The text of a line whose plugin may read Secrets: a value that is derived from one cannot be recognized.
const WITHHELD_TEXT: &str =
    "(withheld: the plugin may read Secrets; the line is in the log of the host only)";

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(clap::ValueEnum)]
pub enum LogLevel {
    /// Details of each step.
    Trace,
    /// Details for the author.
    Debug,
    /// What happens.
    Info,
    /// What may be wrong.
    Warn,
    /// What is wrong.
    Error,
}

impl LogLevel {
    /// Its name in upper case, as in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "TRACE",
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warn => "WARN",
            Self::Error => "ERROR",
        }
    }
}

/// A line, as `/logs` returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// Time, with a resolution of one second.
    pub at: String,
    /// Severity.
    pub level: LogLevel,
    /// The plugin.
    pub plugin: String,
    /// The object whose call wrote it, such as `Team/demo/platform`; empty where there is none.
    pub object: String,
    /// Id of the reconcile, as in the log.
    pub reconcile: String,
    /// Text.
    pub message: String,
    /// Stack trace of a panic; empty where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stack: String,
}

/// The call that writes a line.
#[derive(Clone)]
pub struct LogSource {
    /// Name of the plugin.
    pub plugin: Arc<str>,
    /// The object; none for a call without one.
    pub object: Option<ObjectRef>,
    /// Id of the call.
    pub reconcile: ReconcileId,
}

/// Selects lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogSubject {
    /// The lines of an object, by whichever plugin.
    Object(ObjectRef),
    /// The lines of a plugin, of all objects.
    Plugin(Arc<str>),
}

/// Lines that match, oldest first.
#[derive(Debug, Default)]
pub struct LogBatch {
    /// The lines.
    pub lines: Vec<Arc<LogLine>>,
    /// The position after the last line of the ring, for the next read.
    pub next: u64,
    /// Lines after the given position were dropped before they were read.
    pub is_incomplete: bool,
}

/// The rings of all plugins.
pub struct LogRing {
    rings: Mutex<Rings>,
    /// The position after the last line. Followers wait for its changes.
    next: watch::Sender<u64>,
}

#[derive(Default)]
struct Rings {
    plugins: HashMap<Arc<str>, PluginRing>,
    bytes: usize,
    next: u64,
}

#[derive(Default)]
struct PluginRing {
    lines: VecDeque<StoredLine>,
    bytes: usize,
    /// The position after the last dropped line.
    dropped: u64,
}

struct StoredLine {
    position: u64,
    object: Option<ObjectRef>,
    bytes: usize,
    line: Arc<LogLine>,
}

impl Default for LogRing {
    fn default() -> Self {
        Self {
            rings: Mutex::default(),
            next: watch::Sender::new(0),
        }
    }
}

impl LogRing {
    /// Appends a line. The text is replaced where it `is_withheld`.
    pub fn append(&self, source: &LogSource, level: LogLevel, message: &str, stack: &str, is_withheld: bool) {
        let (message, stack) = if is_withheld {
            (WITHHELD_TEXT, "")
        } else {
            (message, stack)
        };
        let line = LogLine {
            at: now_rfc3339(),
            level,
            plugin: source.plugin.to_string(),
            object: source
                .object
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            reconcile: source.reconcile.to_string(),
            message: message.to_owned(),
            stack: stack.to_owned(),
        };
        let mut rings = self.rings.lock();
        rings.append(line, source, (MAX_PLUGIN_BYTES, MAX_BYTES));
        let next = rings.next;
        // Under the lock, so that positions reach followers in order.
        self.next.send_replace(next);
    }

    /// The lines of a subject from a position on, at this level or above.
    pub fn read(&self, subject: &LogSubject, from: u64, level: LogLevel) -> LogBatch {
        self.rings.lock().read(subject, from, level)
    }

    /// A receiver that is changed by each line.
    pub fn watch_appends(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }

    /// The objects that have lines.
    pub fn list_objects(&self) -> Vec<ObjectRef> {
        let rings = self.rings.lock();
        let lines = rings.plugins.values().flat_map(|ring| &ring.lines);
        let objects: std::collections::BTreeSet<&ObjectRef> =
            lines.filter_map(|stored| stored.object.as_ref()).collect();
        objects.into_iter().cloned().collect()
    }

    /// The plugins that have lines.
    pub fn list_plugins(&self) -> Vec<Arc<str>> {
        self.rings.lock().plugins.keys().cloned().collect()
    }
}

impl Rings {
    fn append(&mut self, line: LogLine, source: &LogSource, (max_plugin, max): (usize, usize)) {
        let texts = line.message.len() + line.stack.len() + line.object.len();
        let bytes = texts + LINE_OVERHEAD_BYTES;
        let ring = self.plugins.entry(source.plugin.clone()).or_default();
        ring.lines.push_back(StoredLine {
            position: self.next,
            object: source.object.clone(),
            bytes,
            line: Arc::new(line),
        });
        ring.bytes += bytes;
        self.bytes += bytes;
        self.next += 1;
        while ring.bytes > max_plugin {
            self.bytes -= ring.drop_oldest();
        }
        while self.bytes > max
            && let Some(largest) = self.plugins.values_mut().max_by_key(|ring| ring.bytes)
        {
            self.bytes -= largest.drop_oldest();
        }
    }

    fn read(&self, subject: &LogSubject, from: u64, level: LogLevel) -> LogBatch {
        let is_read = |plugin: &Arc<str>| match subject {
            LogSubject::Plugin(name) => plugin == name,
            LogSubject::Object(_) => true,
        };
        let matches = |stored: &&StoredLine| {
            stored.position >= from
                && stored.line.level >= level
                && match subject {
                    LogSubject::Plugin(_) => true,
                    LogSubject::Object(key) => stored.object.as_ref() == Some(key),
                }
        };
        let rings = || {
            self.plugins
                .iter()
                .filter(|(name, _)| is_read(name))
                .map(|(_, ring)| ring)
        };
        let mut found: Vec<_> = rings().flat_map(|ring| &ring.lines).filter(matches).collect();
        found.sort_unstable_by_key(|stored| stored.position);
        LogBatch {
            lines: found.into_iter().map(|stored| stored.line.clone()).collect(),
            next: self.next,
            // Of an object, only where the plugin has written about it: it may be another plugin that logs much.
            is_incomplete: rings().any(|ring| ring.dropped > from && ring.has_lines_of(subject)),
        }
    }
}

impl PluginRing {
    /// Returns true for the subject of any of its lines.
    fn has_lines_of(&self, subject: &LogSubject) -> bool {
        match subject {
            LogSubject::Plugin(_) => true,
            LogSubject::Object(key) => self
                .lines
                .iter()
                .any(|stored| stored.object.as_ref() == Some(key)),
        }
    }

    /// Drops the oldest line and returns its bytes.
    fn drop_oldest(&mut self) -> usize {
        let Some(oldest) = self.lines.pop_front() else {
            return 0;
        };
        self.bytes -= oldest.bytes;
        self.dropped = oldest.position + 1;
        oldest.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::key::Gvk;

    fn source(plugin: &str, object: &str) -> LogSource {
        LogSource {
            plugin: plugin.into(),
            object: Some(ObjectRef::new(Gvk::new("a.dev", "v1", "Thing"), "n", object)),
            reconcile: ReconcileId::next(),
        }
    }

    fn messages(batch: &LogBatch) -> Vec<&str> {
        batch.lines.iter().map(|line| &*line.message).collect()
    }

    #[test]
    fn lines_are_selected_by_object_plugin_level_and_position() {
        let ring = LogRing::default();
        let (a, b, other) = (source("p", "a"), source("p", "b"), source("q", "a"));
        for (source, level, message) in [
            (&a, LogLevel::Info, "one"),
            (&b, LogLevel::Error, "two"),
            (&other, LogLevel::Debug, "three"),
            (&a, LogLevel::Debug, "four"),
        ] {
            ring.append(source, level, message, "", false);
        }
        let object = LogSubject::Object(a.object.clone().expect("an object"));
        let read = |subject: &LogSubject, from, level| ring.read(subject, from, level);
        let all = read(&object, 0, LogLevel::Trace);
        assert_eq!(messages(&all), ["one", "three", "four"]);
        assert_eq!((all.next, all.is_incomplete), (4, false));
        assert_eq!(messages(&read(&object, 0, LogLevel::Info)), ["one"]);
        let plugin = LogSubject::Plugin("p".into());
        assert_eq!(
            messages(&read(&plugin, 0, LogLevel::Trace)),
            ["one", "two", "four"]
        );
        assert_eq!(messages(&read(&plugin, 1, LogLevel::Info)), ["two"]);
        assert_eq!(ring.list_objects().len(), 2);
    }

    #[test]
    fn text_of_plugin_that_may_read_secrets_is_withheld() {
        let ring = LogRing::default();
        let source = source("p", "a");
        ring.append(&source, LogLevel::Error, "hunter2", "at hunter2", true);
        let batch = ring.read(&LogSubject::Plugin("p".into()), 0, LogLevel::Trace);
        assert_eq!(messages(&batch), [WITHHELD_TEXT]);
        assert_eq!(batch.lines[0].stack, "");
    }

    #[test]
    fn bytes_beyond_a_limit_drop_the_oldest_lines_of_the_largest_plugin() {
        let mut rings = Rings::default();
        let append = |rings: &mut Rings, plugin: &str, size: usize, limits| {
            let line = LogLine {
                at: String::new(),
                level: LogLevel::Info,
                plugin: plugin.into(),
                object: String::new(),
                reconcile: String::new(),
                message: "x".repeat(size),
                stack: String::new(),
            };
            rings.append(line, &source(plugin, "a"), limits);
        };
        let limits = (4 << 10, 6 << 10);
        append(&mut rings, "quiet", 1000, limits);
        for _ in 0..100 {
            append(&mut rings, "loud", 1000, limits);
        }
        let count = |rings: &Rings, plugin: &str| {
            let batch = rings.read(&LogSubject::Plugin(plugin.into()), 0, LogLevel::Info);
            (batch.lines.len(), batch.is_incomplete)
        };
        assert_eq!(count(&rings, "quiet"), (1, false));
        assert_eq!(count(&rings, "loud"), (3, true));
        append(&mut rings, "other", 2000, limits);
        assert_eq!(count(&rings, "quiet"), (1, false), "the largest one makes room");
        assert_eq!(count(&rings, "loud"), (2, true));
        let bytes = rings.plugins.values().map(|ring| ring.bytes).sum::<usize>();
        assert!(rings.bytes == bytes && bytes <= limits.1, "{bytes}");
        append(&mut rings, "huge", 5000, limits);
        assert_eq!(
            count(&rings, "huge"),
            (0, true),
            "a line beyond the limit of its plugin"
        );
    }
}
