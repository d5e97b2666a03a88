//! The live table; where there is no terminal, a line per change.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};

use super::facts::{Object, Plugin, why};
use crate::progress;

const HEADER: [&str; 8] = [
    "KIND",
    "OBJECT",
    "READY",
    "AFTER",
    "RECONCILES",
    "API W",
    "CI R/W",
    "PLUGIN",
];

/// Shows objects and plugins as they change.
pub struct Table {
    lines: Vec<ProgressBar>,
    shown: BTreeMap<String, String>,
    terminal: bool,
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        Self {
            lines: Vec::new(),
            shown: BTreeMap::new(),
            terminal: console::Term::stderr().is_term(),
        }
    }

    /// Shows the state of things.
    pub fn show(&mut self, objects: &[Object], plugins: &[Plugin], note: &str) {
        if !self.terminal {
            for (what, now) in changes(&mut self.shown, objects, plugins) {
                progress::say(&format!("{what}: {now}"));
            }
            return;
        }
        let mut lines = render(objects, plugins);
        lines.push(note.to_owned());
        while self.lines.len() < lines.len() {
            let bar = progress::add(ProgressBar::new_spinner());
            bar.set_style(
                ProgressStyle::with_template("{wide_msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            self.lines.push(bar);
        }
        for (i, bar) in self.lines.iter().enumerate() {
            bar.set_message(lines.get(i).cloned().unwrap_or_default());
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // The last state stays to be read.
        for line in &self.lines {
            line.abandon();
        }
    }
}

/// The table's lines: objects, then what the plugins are at.
fn render(objects: &[Object], plugins: &[Plugin]) -> Vec<String> {
    let mut rows = vec![HEADER.map(str::to_owned)];
    rows.extend(objects.iter().map(|o| {
        [
            o.kind.clone(),
            format!("{}/{}", o.namespace, o.name),
            if o.ready { "True".into() } else { why(o) },
            o.ready_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.0} ms")),
            o.reconciles.to_string(),
            o.api_writes.to_string(),
            format!("{}/{}", o.upstream_reads, o.upstream_writes),
            format!("{}@{}", o.plugin, short(&o.plugin_digest)),
        ]
    }));
    for row in &mut rows {
        row[2] = console::truncate_str(&row[2], 40, "…").into_owned();
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row| console::measure_text_width(&row[column]))
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; 8] = std::array::from_fn(width);
    let mut lines: Vec<_> = rows
        .iter()
        .map(|row| {
            let cells = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| console::pad_str(cell, width, console::Alignment::Left, None));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect();
    lines.push(String::new());
    lines.extend(
        plugins
            .iter()
            .map(|plugin| format!("{}  {}", plugin.name, state(plugin))),
    );
    lines
}

fn state(plugin: &Plugin) -> String {
    let mut text = format!("{} {}", plugin.state, short(&plugin.digest));
    if let Some(ms) = plugin.swapped_ms {
        text.push_str(&format!(", swapped in {ms:.0} ms"));
    }
    if !plugin.message.is_empty() {
        text.push_str(&format!(": {}", plugin.message));
    }
    text
}

/// What is not as it was shown; remembers it as shown.
fn changes(
    shown: &mut BTreeMap<String, String>,
    objects: &[Object],
    plugins: &[Plugin],
) -> Vec<(String, String)> {
    let objects = objects.iter().map(|o| {
        let now = match o.ready_ms {
            Some(ms) if o.ready => format!("Ready after {ms:.0} ms"),
            _ if o.ready => "Ready".into(),
            _ => why(o),
        };
        (format!("{} {}/{}", o.kind, o.namespace, o.name), now)
    });
    let plugins = plugins
        .iter()
        .map(|plugin| (format!("plugin {}", plugin.name), state(plugin)));
    let now: Vec<_> = objects.chain(plugins).collect();
    now.into_iter()
        .filter(|(what, now)| shown.insert(what.clone(), now.clone()).as_ref() != Some(now))
        .collect()
}

fn short(digest: &str) -> &str {
    digest.get(..8).unwrap_or(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> Object {
        Object {
            kind: "Team".into(),
            namespace: "ci".into(),
            name: "a".into(),
            reason: "InstanceNotReady".into(),
            ..Object::default()
        }
    }

    #[test]
    fn columns_line_up() {
        let long = Object {
            kind: "Pipeline".into(),
            ready: true,
            ready_ms: Some(12.4),
            ..team()
        };
        let plugin = Plugin {
            name: "p".into(),
            state: "Serving".into(),
            digest: "0123456789".into(),
            ..Plugin::default()
        };
        let lines = render(&[team(), long], &[plugin]);
        let at = |line: &str, word: &str| line.find(word).unwrap();
        assert_eq!(at(&lines[0], "OBJECT"), at(&lines[1], "ci/a"));
        assert_eq!(at(&lines[0], "AFTER"), at(&lines[2], "12 ms"));
        assert_eq!(lines[4], "p  Serving 01234567");
    }

    #[test]
    fn only_changes_are_told() {
        let mut shown = BTreeMap::new();
        assert_eq!(
            changes(&mut shown, &[team()], &[]),
            [("Team ci/a".into(), "InstanceNotReady".into())]
        );
        assert_eq!(changes(&mut shown, &[team()], &[]), []);
        let ready = Object {
            ready: true,
            ready_ms: Some(5.0),
            ..team()
        };
        assert_eq!(
            changes(&mut shown, &[ready], &[]),
            [("Team ci/a".into(), "Ready after 5 ms".into())]
        );
    }
}
