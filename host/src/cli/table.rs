//! Tables and colours for people.

use std::io::IsTerminal;

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};

/// Text in a colour, where the terminal shows colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shade {
    /// As it is.
    Plain,
    /// All is well.
    Good,
    /// Not yet.
    Waiting,
    /// Something is wrong.
    Bad,
    /// Of less interest.
    Faint,
}

/// Columns below which wrapped tables can't be read.
const NARROW: u16 = 60;

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

/// A cell.
pub fn cell(text: impl ToString, shade: Shade) -> Cell {
    let cell = Cell::new(text);
    match shade.colour() {
        Some(colour) if colours() => cell.fg(colour),
        _ => cell,
    }
}

/// Text in a colour, outside of tables.
pub fn shaded(text: &str, shade: Shade) -> String {
    let code = match shade {
        Shade::Good => "32",
        Shade::Waiting => "33",
        Shade::Bad => "31",
        Shade::Faint => "90",
        Shade::Plain => return text.to_owned(),
    };
    match colours() && !text.is_empty() {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// A table without lines, wrapped to the terminal's width.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.style_text_only();
    // Of a terminal that is too narrow, or does not know its width, the terminal makes the best itself.
    if table.width().is_some_and(|width| width >= NARROW) {
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

/// A title and what is under it; nothing when there is nothing.
pub fn section(title: &str, body: &str) -> String {
    match body.is_empty() {
        true => String::new(),
        false if colours() => format!("\n\x1b[1m{title}\x1b[0m\n{body}"),
        false => format!("\n{title}\n{body}"),
    }
}

/// Reason and message, as one text.
pub fn why(reason: &str, message: &str) -> String {
    match (reason, message) {
        ("", "") => "no Ready condition yet".into(),
        (reason, "") => reason.into(),
        ("", message) => message.into(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// Whether the terminal shows colours.
pub fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
