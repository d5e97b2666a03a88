//! The log of a process that runs: its newest lines in the status, read at intervals.

use ostler_sdk::{Level, LogOptions, duration, from_rfc3339, prelude::*};
use steps_api::{Step, StepStatus};

use crate::{pod::PROCESS_CONTAINER, pod_reference, settings::StepSettings};

/// Number of lines that are read.
const TAIL_LINES: u32 = 50;

/// Maximum number of characters of the last line.
const MAX_LINE_CHARS: usize = 120;

/// Reads the newest lines of the log into the status, unless the process has just started. Returns the time of the next read, in
/// milliseconds since the Unix epoch; none where logs are not to be read, or may not. What cannot be read now stays as it was: the
/// log at the end is in the report.
pub fn read_log(ctx: &Context, step: &Step, status: &mut StepStatus, settings: &StepSettings) -> Option<u64> {
    let interval = duration(&settings.log_interval).filter(|interval| *interval > 0)?;
    let started = status.start_time.as_deref().and_then(from_rfc3339);
    let first = started.unwrap_or_default() * 1000 + interval;
    if ctx.now() < first {
        return Some(first);
    }
    let options = LogOptions {
        container: Some(PROCESS_CONTAINER.into()),
        tail_lines: TAIL_LINES,
        previous: false,
    };
    match ctx.read_log(&pod_reference(step, status.attempt), &options) {
        Ok(log) => set_log(status, &log, step.spec.log_tail_bytes),
        Err(Error::Denied(why)) => {
            ctx.log(Level::Debug, &format!("the log is not read: {why}"), &[]);
            return None;
        }
        Err(error) => ctx.log(Level::Debug, &format!("the log cannot be read: {error}"), &[]),
    }
    Some(ctx.now() + interval)
}

/// Sets the end of a log, of as many bytes at most, and its last line.
pub fn set_log(status: &mut StepStatus, log: &str, max_bytes: i64) {
    let max_bytes = usize::try_from(max_bytes).unwrap_or_default();
    let tail = cut_head(log, max_bytes);
    let last = tail.lines().rev().map(str::trim).find(|line| !line.is_empty());
    status.log_line = last.map(|line| line.chars().take(MAX_LINE_CHARS).collect());
    status.log_tail = Some(tail.to_owned()).filter(|tail| !tail.is_empty());
}

/// Cuts whole lines off the beginning of a text until it is no larger than this; a part of a line only if it is alone.
fn cut_head(text: &str, max_bytes: usize) -> &str {
    if text.len() <= max_bytes {
        return text;
    }
    let begin = text.ceil_char_boundary(text.len() - max_bytes);
    let rest = &text[begin..];
    match rest.split_once('\n') {
        Some((_, lines)) if !lines.is_empty() => lines,
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_cut_to_whole_lines_at_its_end() {
        assert_eq!(cut_head("a\nb\n", 10), "a\nb\n");
        assert_eq!(cut_head("first\nsecond\n", 9), "second\n");
        assert_eq!(cut_head("äöü", 3), "ü");
        assert_eq!(cut_head("long line\n", 5), "line\n");
    }

    #[test]
    fn last_line_is_the_newest_with_text() {
        let mut status = StepStatus::default();
        set_log(&mut status, "one\n  two  \n\n", 1024);
        assert_eq!(status.log_line.as_deref(), Some("two"));
        assert_eq!(status.log_tail.as_deref(), Some("one\n  two  \n\n"));
        set_log(&mut status, "", 1024);
        assert_eq!((status.log_line, status.log_tail), (None, None));
    }
}
