//! Traps: the ends of calls into a component that did not return.

use std::{fmt, time::Duration};

use super::limits::{Bytes, Limit};

/// Maximum number of bytes of a panic's message and location in conditions.
const MAX_MESSAGE_BYTES: usize = 1 << 10;
/// Maximum number of bytes of a stack trace in the log.
const MAX_STACK_BYTES: usize = 4 << 10;

/// Field of a log line with the location of a panic. An SDK logs such a line right before it ends the instance.
const LOCATION_FIELD: &str = "exception.location";
/// Field of a log line with the stack trace of a panic.
const STACK_FIELD: &str = "exception.stacktrace";

/// The end of a call into a component that did not return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// It used more CPU time than its limit.
    #[error("computed for more than {0:?}: does it loop?")]
    CpuTime(Duration),
    /// It took longer than its timeout.
    #[error("took longer than {0:?}, host calls included")]
    Timeout(Duration),
    /// It requested more memory than its limit.
    #[error("asked for more than {}B of memory", Bytes(*.0))]
    Memory(usize),
    /// It requested larger tables than its limit.
    #[error("asked for more than {0} elements of tables")]
    Tables(u32),
    /// It passed more bytes in one host call than its limit.
    #[error("handed more than {}B to the host at once", Bytes(*.0))]
    Bytes(usize),
    /// The host had no memory or no instance left for it. It is no fault of the component.
    #[error("was not run to its end: {0}")]
    HostExhausted(String),
    /// It panicked, or threw an exception, and its SDK reported that.
    #[error("trapped: {0}")]
    Panicked(Box<PanicReport>),
    /// Any other trap: unreachable, a stack overflow …
    #[error("trapped: {0}")]
    Other(String),
}

/// Report of a panic or an exception: the log line that the SDK writes right before it ends the instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PanicReport {
    /// Message, on one line.
    pub message: String,
    /// File and line, where they are known.
    pub location: String,
    /// Stack trace, where the language has one.
    pub stack: String,
}

impl PanicReport {
    /// Reads the report from an error line. None for a line without the field that marks it.
    pub fn from_line(message: &str, fields: &[(String, String)]) -> Option<Self> {
        let field = |name| {
            fields
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| &**value)
        };
        let location = field(LOCATION_FIELD)?;
        let stack = field(STACK_FIELD).unwrap_or_default();
        let location = match location {
            "" => find_location(stack).unwrap_or_default(),
            known => known,
        };
        Some(Self {
            message: join_words(message, MAX_MESSAGE_BYTES),
            location: join_words(location, MAX_MESSAGE_BYTES),
            stack: clean_stack(stack),
        })
    }
}

impl fmt::Display for PanicReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.location.is_empty() {
            write!(f, " ({})", self.location)?;
        }
        Ok(())
    }
}

/// Modules whose functions in a stack trace of Go are not the author's: the runtime, and the SDK.
const OTHER_MODULES: [&str; 2] = ["runtime/", "ostler.dev"];

/// The file and line of the innermost function of the author in a stack trace of Go, whose runtime reports the panics of goroutines
/// without them. Each function has a line like `\tmodule/main.go:12 +0x3`, those of the runtime and of the SDK among them.
fn find_location(stack: &str) -> Option<&str> {
    let places = stack
        .lines()
        .filter_map(|line| line.strip_prefix('\t')?.split_whitespace().next());
    let is_own = |place: &&str| !OTHER_MODULES.iter().any(|module| place.starts_with(module));
    places.filter(is_own).find(|place| place.contains(".go:"))
}

/// A text on one line and without control characters, which would forge lines of a log or control a terminal.
fn join_words(text: &str, max_bytes: usize) -> String {
    let is_separator = |c: char| c.is_whitespace() || c.is_control();
    let words: Vec<&str> = text.split(is_separator).filter(|word| !word.is_empty()).collect();
    truncate(&words.join(" "), max_bytes).to_owned()
}

/// A stack trace without control characters other than the ends of its lines.
fn clean_stack(text: &str) -> String {
    let lines = truncate(text, MAX_STACK_BYTES).lines();
    let clean = |line: &str| line.replace('\t', "  ").replace(|c: char| c.is_control(), "");
    let lines: Vec<String> = lines.map(|line| clean(line).trim_end().to_owned()).collect();
    lines.join("\n").trim_end().to_owned()
}

fn truncate(text: &str, max_bytes: usize) -> &str {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Trap {
    /// The kind for metrics.
    pub fn kind(&self) -> TrapKind {
        match self {
            Self::CpuTime(_) => TrapKind::CpuTime,
            Self::Timeout(_) => TrapKind::Timeout,
            Self::Memory(_) | Self::Tables(_) => TrapKind::Memory,
            Self::HostExhausted(_) => TrapKind::HostExhausted,
            Self::Bytes(_) | Self::Panicked(_) | Self::Other(_) => TrapKind::Other,
        }
    }

    /// The limit that was exceeded.
    pub fn limit(&self) -> Option<Limit> {
        Some(match self {
            Self::CpuTime(_) => Limit::CpuTime,
            Self::Timeout(_) => Limit::Timeout,
            Self::Memory(_) => Limit::Memory,
            Self::Tables(_) => Limit::TableElements,
            Self::Bytes(_) => Limit::CallBytes,
            Self::HostExhausted(_) | Self::Panicked(_) | Self::Other(_) => return None,
        })
    }

    /// The stack trace of a panic, for the log.
    pub fn stack(&self) -> Option<&str> {
        match self {
            Self::Panicked(report) if !report.stack.is_empty() => Some(&report.stack),
            _ => None,
        }
    }
}

/// The kinds of traps in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrapKind {
    /// Too much CPU time.
    CpuTime,
    /// Timeout.
    Timeout,
    /// Too much memory, or too large tables.
    Memory,
    /// No memory or instance of the host was left.
    HostExhausted,
    /// Any other trap.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    #[test]
    fn report_names_message_and_location_on_one_line() {
        let fields = [
            field(LOCATION_FIELD, "src/lib.rs:8:16"),
            field(STACK_FIELD, "a\n\tb\u{1b}[2J\r\n\n"),
        ];
        let report =
            PanicReport::from_line("assertion failed\n  left: 1\r\n right: 2", &fields).expect("a report");
        let trap = Trap::Panicked(Box::new(report));
        assert_eq!(
            trap.to_string(),
            "trapped: assertion failed left: 1 right: 2 (src/lib.rs:8:16)"
        );
        assert_eq!(trap.stack(), Some("a\n  b[2J"));
        let unknown = PanicReport::from_line("boom", &[field(LOCATION_FIELD, "")]).expect("a report");
        assert_eq!(unknown.to_string(), "boom");
        let long = PanicReport::from_line(&"ä".repeat(MAX_MESSAGE_BYTES), &fields).expect("a report");
        assert_eq!(long.message.len(), MAX_MESSAGE_BYTES);
    }

    #[test]
    fn location_that_is_not_reported_is_that_of_the_trace() {
        let stack = "panic: boom\n\ngoroutine 6 [running]:\npanic({0x1, 0x2})\n\truntime/panic.go:770 +0x3\nmain.reconcile.func1()\n\
                     \thello/main.go:12 +0x3\ncreated by main.reconcile in goroutine 1\n\thello/main.go:10 +0x2\n";
        let fields = [field(LOCATION_FIELD, ""), field(STACK_FIELD, stack)];
        let report = PanicReport::from_line("boom", &fields).expect("a report");
        assert_eq!(report.to_string(), "boom (hello/main.go:12)");
    }

    #[test]
    fn line_without_a_location_is_no_report() {
        assert_eq!(PanicReport::from_line("failed", &[field("status", "500")]), None);
    }
}
