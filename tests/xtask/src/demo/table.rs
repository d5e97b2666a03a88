//! The live table of objects and plugins; without a terminal, a line per change.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};

use super::facts::{ObjectStats, PluginStats, ready_reason};
use crate::progress;

const TABLE_HEADER: [&str; 8] = [
    "KIND",
    "OBJECT",
    "READY",
    "AFTER",
    "RECONCILES",
    "API W",
    "CI R/W",
    "PLUGIN",
];

/// The table, or the lines printed so far.
pub struct Table {
    lines: Vec<ProgressBar>,
    shown: BTreeMap<String, String>,
    terminal: bool,
}

impl Table {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self {
            lines: Vec::new(),
            shown: BTreeMap::new(),
            terminal: console::Term::stderr().is_term(),
        }
    }

    /// Updates the table, or prints a line for everything that changed.
    pub fn update(&mut self, objects: &[ObjectStats], plugins: &[PluginStats], note: &str) {
        if !self.terminal {
            for (subject, state) in take_changes(&mut self.shown, objects, plugins) {
                progress::print_status(&format!("{subject}: {state}"));
            }
            return;
        }
        let mut lines = render_lines(objects, plugins);
        lines.push(note.to_owned());
        while self.lines.len() < lines.len() {
            let bar = progress::add_bar(ProgressBar::new_spinner());
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
        // The last state stays on the screen.
        for line in &self.lines {
            line.abandon();
        }
    }
}

/// Renders the lines of the table: objects, then the states of the plugins.
fn render_lines(objects: &[ObjectStats], plugins: &[PluginStats]) -> Vec<String> {
    let mut rows = vec![TABLE_HEADER.map(str::to_owned)];
    rows.extend(objects.iter().map(|o| {
        [
            o.kind.clone(),
            format!("{}/{}", o.namespace, o.name),
            if o.ready { "True".into() } else { ready_reason(o) },
            o.ready_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.0} ms")),
            o.reconciles.to_string(),
            o.api_writes.to_string(),
            format!("{}/{}", o.upstream_reads, o.upstream_writes),
            format!("{}@{}", o.plugin, short_digest(&o.plugin_digest)),
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
            .map(|plugin| format!("{}  {}", plugin.name, plugin_state(plugin))),
    );
    lines
}

fn plugin_state(plugin: &PluginStats) -> String {
    let mut text = format!("{} {}", plugin.state, short_digest(&plugin.digest));
    if let Some(ms) = plugin.swapped_ms {
        text.push_str(&format!(", swapped in {ms:.0} ms"));
    }
    if !plugin.message.is_empty() {
        text.push_str(&format!(": {}", plugin.message));
    }
    text
}

/// Returns what has changed since the last call, and stores it as shown.
fn take_changes(
    shown: &mut BTreeMap<String, String>,
    objects: &[ObjectStats],
    plugins: &[PluginStats],
) -> Vec<(String, String)> {
    let objects = objects.iter().map(|o| {
        let now = match o.ready_ms {
            Some(ms) if o.ready => format!("Ready after {ms:.0} ms"),
            _ if o.ready => "Ready".into(),
            _ => ready_reason(o),
        };
        (format!("{} {}/{}", o.kind, o.namespace, o.name), now)
    });
    let plugins = plugins
        .iter()
        .map(|plugin| (format!("plugin {}", plugin.name), plugin_state(plugin)));
    let now: Vec<_> = objects.chain(plugins).collect();
    now.into_iter()
        .filter(|(what, now)| shown.insert(what.clone(), now.clone()).as_ref() != Some(now))
        .collect()
}

fn short_digest(digest: &str) -> &str {
    digest.get(..8).unwrap_or(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> ObjectStats {
        ObjectStats {
            kind: "Team".into(),
            namespace: "ci".into(),
            name: "a".into(),
            reason: "InstanceNotReady".into(),
            ..ObjectStats::default()
        }
    }

    #[test]
    fn columns_are_aligned() {
        let long = ObjectStats {
            kind: "Pipeline".into(),
            ready: true,
            ready_ms: Some(12.4),
            ..team()
        };
        let plugin = PluginStats {
            name: "p".into(),
            state: "Serving".into(),
            digest: "0123456789".into(),
            ..PluginStats::default()
        };
        let lines = render_lines(&[team(), long], &[plugin]);
        let at = |line: &str, word: &str| line.find(word).unwrap();
        assert_eq!(at(&lines[0], "OBJECT"), at(&lines[1], "ci/a"));
        assert_eq!(at(&lines[0], "AFTER"), at(&lines[2], "12 ms"));
        assert_eq!(lines[4], "p  Serving 01234567");
    }

    #[test]
    fn only_changes_are_printed() {
        let mut shown = BTreeMap::new();
        assert_eq!(
            take_changes(&mut shown, &[team()], &[]),
            [("Team ci/a".into(), "InstanceNotReady".into())]
        );
        assert_eq!(take_changes(&mut shown, &[team()], &[]), []);
        let ready = ObjectStats {
            ready: true,
            ready_ms: Some(5.0),
            ..team()
        };
        assert_eq!(
            take_changes(&mut shown, &[ready], &[]),
            [("Team ci/a".into(), "Ready after 5 ms".into())]
        );
    }
}
