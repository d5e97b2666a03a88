//! Log lines as aligned text:
//!
//! ```text
//! 08:24:30.123  INFO Team/demo/platform concourse-team  InstanceNotReady: waiting for ci  attempt=2
//! ```

use std::{
    fmt::{self, Write},
    io::IsTerminal,
};

use k8s_openapi::jiff::Timestamp;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::kube::well_known::environment;

/// Field whose lines follow the line of the log.
const STACK_FIELD: &str = "stack";

const DIM_STYLE: &str = "\x1b[2m";
const BOLD_STYLE: &str = "\x1b[1m";
const CYAN_STYLE: &str = "\x1b[36m";
const PLAIN_STYLE: &str = "\x1b[0m";

/// True when stderr is a terminal and `NO_COLOR` is not set.
pub fn use_colours() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os(environment::NO_COLOR).is_none_or(|v| v.is_empty())
}

/// Formatter of log lines.
pub struct Pretty;

/// Formatter of the fields of spans, which are not shown.
pub struct Fields;

impl<'w> FormatFields<'w> for Fields {
    fn format_fields<R: RecordFields>(&self, _: Writer<'w>, _: R) -> fmt::Result {
        Ok(())
    }
}

/// Fields of a line: those with a column of their own, and the others.
#[derive(Default)]
struct Parts {
    message: String,
    object: String,
    plugin: String,
    others: String,
    /// Lines of a stack trace, which follow the line.
    stack: String,
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let place = match field.name() {
            "message" => &mut self.message,
            "object" => &mut self.object,
            "plugin" => &mut self.plugin,
            name => {
                // Writing to a String can't fail.
                let _ = write!(self.others, " {name}=");
                &mut self.others
            }
        };
        let _ = write!(place, "{value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == STACK_FIELD {
            return value.clone_into(&mut self.stack);
        }
        let plain = !value.is_empty() && !value.contains([' ', '"', '=']);
        if plain || matches!(field.name(), "message" | "object" | "plugin") {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }
}

impl<S, N> FormatEvent<S, N> for Pretty
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut parts = Parts::default();
        event.record(&mut parts);
        let coloured = out.has_ansi_escapes();
        let colour = |code| if coloured { code } else { "" };
        let level = *event.metadata().level();
        let shade = match level {
            Level::ERROR => "\x1b[31m",
            Level::WARN => "\x1b[33m",
            Level::INFO => "\x1b[32m",
            _ => DIM_STYLE,
        };
        let (dim, plain) = (colour(DIM_STYLE), colour(PLAIN_STYLE));
        write!(
            out,
            "{dim}{}{plain} {}{level:>5}{plain} ",
            Timestamp::now().strftime("%H:%M:%S%.3f"),
            colour(shade)
        )?;
        if !parts.object.is_empty() {
            write!(out, "{}{}{plain} ", colour(BOLD_STYLE), parts.object)?;
        }
        if !parts.plugin.is_empty() {
            write!(out, "{}{}{plain} ", colour(CYAN_STYLE), parts.plugin)?;
        }
        if !parts.object.is_empty() || !parts.plugin.is_empty() {
            out.write_char(' ')?;
        }
        out.write_str(&parts.message)?;
        if !parts.others.is_empty() {
            write!(out, " {dim}{}{plain}", parts.others)?;
        }
        out.write_char('\n')?;
        // The mark shows that they are no lines of the log, whatever their text is.
        for line in parts.stack.lines() {
            writeln!(out, "    {dim}| {line}{plain}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use parking_lot::Mutex;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn log_line_begins_with_object_and_plugin() {
        let kept = Kept::default();
        let writer = kept.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Pretty)
            .fmt_fields(Fields)
            .with_ansi(false)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let key = format_args!("Team/demo/a");
            tracing::warn!(attempt = 2, why = "no answer", object = %key, plugin = "teams", "it failed: {}", "x=1");
            let stack = Some("at f (index.js:8)\nat g (index.js:9)");
            tracing::info!(stack, "started");
        });
        let text = String::from_utf8(kept.0.lock().clone()).expect("UTF-8");
        let lines: Vec<_> = text
            .lines()
            .map(|l| l.split_once(' ').expect("a time").1)
            .collect();
        assert_eq!(
            lines,
            [
                " WARN Team/demo/a teams  it failed: x=1  attempt=2 why=\"no answer\"",
                " INFO started",
                "   | at f (index.js:8)",
                "   | at g (index.js:9)",
            ]
        );
    }
}
