//! Tables and colours on a terminal.

use std::io::IsTerminal;

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};

use crate::kube::well_known::environment;

/// The colour of a text, if the terminal supports colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shade {
    /// No colour.
    Plain,
    /// Success.
    Good,
    /// Waiting.
    Waiting,
    /// Failure.
    Bad,
    /// Secondary information.
    Faint,
}

/// Minimum terminal width for wrapped tables; narrower ones are unreadable.
const MIN_WRAP_WIDTH: u16 = 60;

impl Shade {
    fn colour(self) -> Option<Color> {
        match self {
            Self::Plain => None,
            Self::Good => Some(Color::Green),
            Self::Waiting => Some(Color::Yellow),
            Self::Bad => Some(Color::Red),
            Self::Faint => Some(Color::DarkGrey),
        }
    }
}

/// A coloured cell.
pub fn cell(text: impl ToString, shade: Shade) -> Cell {
    let cell = Cell::new(text);
    match shade.colour() {
        Some(colour) if supports_colours() => cell.fg(colour),
        _ => cell,
    }
}

/// Coloured text outside of tables.
pub fn shade_text(text: &str, shade: Shade) -> String {
    let code = match shade {
        Shade::Good => "32",
        Shade::Waiting => "33",
        Shade::Bad => "31",
        Shade::Faint => "90",
        Shade::Plain => return text.to_owned(),
    };
    if supports_colours() && !text.is_empty() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// A table without borders, wrapped to the terminal's width.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.style_text_only();
    // A terminal that is too narrow or of unknown width wraps the lines itself.
    if table.width().is_some_and(|width| width >= MIN_WRAP_WIDTH) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    if !header.is_empty() {
        table.set_header(header.iter().map(|h| cell(h, Shade::Faint)));
    }
    for row in rows {
        table.add_row(row);
    }
    let lines = table.to_string();
    let mut text = String::new();
    for line in lines.lines() {
        text.push_str(line.strip_prefix(' ').unwrap_or(line).trim_end());
        text.push('\n');
    }
    text
}

/// A titled section; empty if the body is empty.
pub fn section(title: &str, body: &str) -> String {
    if body.is_empty() {
        String::new()
    } else if supports_colours() {
        format!("\n\x1b[1m{title}\x1b[0m\n{body}")
    } else {
        format!("\n{title}\n{body}")
    }
}

/// Reason and message as one text.
pub fn join_reason(reason: &str, message: &str) -> String {
    match (reason, message) {
        ("", "") => "no Ready condition yet".into(),
        (reason, "") => reason.into(),
        ("", message) => message.into(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// Returns true if standard output supports colours.
pub fn supports_colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os(environment::NO_COLOR).is_none_or(|v| v.is_empty())
}

/// Formats seconds with a unit that leaves one to three digits before the point.
pub fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Formats an age as kubectl does: `42s`, `5m`, `3h`, `2d`.
pub fn format_age(seconds: u64) -> String {
    match seconds {
        s if s < 120 => format!("{s}s"),
        s if s < 7200 => format!("{}m", s / 60),
        s if s < 48 * 3600 => format!("{}h", s / 3600),
        s => format!("{}d", s / (24 * 3600)),
    }
}
