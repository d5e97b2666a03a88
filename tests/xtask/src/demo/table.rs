//! The live table of objects, servers, messages and plugins; without a terminal, a line per change.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};

use super::facts::{ObjectFacts, PluginStats, ready_reason};
use crate::progress;

const TABLE_HEADER: [&str; 8] = [
    "KIND",
    "OBJECT",
    "READY",
    "AFTER",
    "RECONCILES",
    "API W",
    "UPSTREAM R/W",
    "PLUGIN",
];

/// Number of the newest messages that are shown.
const MAX_SHOWN_MESSAGES: usize = 8;
/// Number of plugins up to which each has a line.
const MAX_PLUGIN_LINES: usize = 8;

/// Servers around the plugins, and messages on the broker.
#[derive(Default)]
pub struct Surroundings {
    /// Names of the servers with their states.
    pub servers: Vec<(String, String)>,
    /// The messages so far, each as a line.
    pub messages: Vec<String>,
}

impl Surroundings {
    /// Sets the state of a server.
    pub fn set_state(&mut self, server: &str, state: &str) {
        match self.servers.iter_mut().find(|(name, _)| name == server) {
            Some((_, shown)) => state.clone_into(shown),
            None => self.servers.push((server.into(), state.into())),
        }
    }
}

/// The table, or the lines printed so far.
pub struct Table {
    lines: Vec<ProgressBar>,
    shown: BTreeMap<String, String>,
    messages_shown: usize,
    /// The first build of each plugin.
    first_digests: BTreeMap<String, String>,
    terminal: bool,
}

impl Table {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self {
            lines: Vec::new(),
            shown: BTreeMap::new(),
            messages_shown: 0,
            first_digests: BTreeMap::new(),
            terminal: console::Term::stderr().is_term(),
        }
    }

    /// Updates the table, or prints a line for everything that changed.
    pub fn update(
        &mut self,
        objects: &[ObjectFacts],
        plugins: &[PluginStats],
        surroundings: &Surroundings,
        note: &str,
    ) {
        if !self.terminal {
            for (subject, state) in take_changes(&mut self.shown, objects, plugins, surroundings) {
                progress::print_status(&format!("{subject}: {state}"));
            }
            for message in surroundings.messages.iter().skip(self.messages_shown) {
                progress::print_status(message);
            }
            self.messages_shown = surroundings.messages.len();
            return;
        }
        let mut lines = render_objects(objects);
        lines.extend(render_surroundings(surroundings));
        for plugin in plugins.iter().filter(|plugin| !plugin.digest.is_empty()) {
            let first = self.first_digests.entry(plugin.name.clone());
            first.or_insert_with(|| plugin.digest.clone());
        }
        lines.extend(render_plugins(plugins, &self.first_digests));
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

/// Renders the lines of the objects.
fn render_objects(objects: &[ObjectFacts]) -> Vec<String> {
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
            match short_digest(&o.plugin_digest) {
                // The host reconciles its own kinds.
                "" => o.plugin.clone(),
                digest => format!("{}@{digest}", o.plugin),
            },
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
    rows.iter()
        .map(|row| {
            let cells = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| console::pad_str(cell, width, console::Alignment::Left, None));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

/// Renders the states of the servers, and the newest messages.
fn render_surroundings(surroundings: &Surroundings) -> Vec<String> {
    let (servers, messages) = (&surroundings.servers, &surroundings.messages);
    let mut lines = Vec::new();
    if !servers.is_empty() {
        let width = servers.iter().map(|(name, _)| console::measure_text_width(name));
        let width = width.max().unwrap_or(0);
        let pad = |text: &str| console::pad_str(text, width, console::Alignment::Left, None).into_owned();
        lines.extend([String::new(), format!("{}  STATE", pad("SERVER"))]);
        lines.extend(
            servers
                .iter()
                .map(|(name, state)| format!("{}  {state}", pad(name))),
        );
    }
    if !messages.is_empty() {
        lines.extend([String::new(), "MESSAGES".into()]);
        let first = messages.len().saturating_sub(MAX_SHOWN_MESSAGES);
        lines.extend(messages[first..].iter().cloned());
    }
    lines
}

/// Renders the states of the plugins; of many only those that do not serve their first build.
fn render_plugins(plugins: &[PluginStats], first_digests: &BTreeMap<String, String>) -> Vec<String> {
    let is_plain = |plugin: &&PluginStats| {
        let is_first = first_digests.get(&plugin.name) == Some(&plugin.digest);
        plugin.state == "Serving" && plugin.message.is_empty() && is_first
    };
    let plain = plugins.iter().filter(is_plain).count();
    let is_many = plugins.len() > MAX_PLUGIN_LINES;
    let mut lines = vec![String::new()];
    if is_many && plain > 0 {
        lines.push(format!("{plain} plugins  Serving"));
    }
    let with_line = plugins.iter().filter(|plugin| !(is_many && is_plain(plugin)));
    lines.extend(with_line.map(|plugin| format!("{}  {}", plugin.name, plugin_state(plugin))));
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
    objects: &[ObjectFacts],
    plugins: &[PluginStats],
    surroundings: &Surroundings,
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
    let servers = surroundings.servers.iter().cloned();
    let now: Vec<_> = objects.chain(plugins).chain(servers).collect();
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

    fn team() -> ObjectFacts {
        ObjectFacts {
            kind: "Team".into(),
            namespace: "ci".into(),
            name: "a".into(),
            reason: "InstanceNotReady".into(),
            ..ObjectFacts::default()
        }
    }

    #[test]
    fn columns_are_aligned() {
        let long = ObjectFacts {
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
        let lines = render_objects(&[team(), long]);
        let at = |line: &str, word: &str| line.find(word).unwrap();
        assert_eq!(at(&lines[0], "OBJECT"), at(&lines[1], "ci/a"));
        assert_eq!(at(&lines[0], "AFTER"), at(&lines[2], "12 ms"));
        assert_eq!(
            render_plugins(&[plugin], &BTreeMap::new()),
            ["", "p  Serving 01234567"]
        );
    }

    #[test]
    fn of_many_plugins_only_those_that_differ_have_a_line() {
        let plugin = |n: usize| PluginStats {
            name: format!("p{n}"),
            state: "Serving".into(),
            digest: if n == 3 { "9876543210" } else { "0123456789" }.into(),
            swapped_ms: Some(80.0),
            ..PluginStats::default()
        };
        let plugins: Vec<_> = (0..=MAX_PLUGIN_LINES).map(plugin).collect();
        let first = plugins
            .iter()
            .map(|plugin| (plugin.name.clone(), "0123456789".to_owned()))
            .collect();
        assert_eq!(
            render_plugins(&plugins, &first),
            ["", "8 plugins  Serving", "p3  Serving 98765432, swapped in 80 ms"]
        );
    }

    #[test]
    fn servers_and_the_newest_messages_are_shown() {
        let mut surroundings = Surroundings::default();
        assert_eq!(render_surroundings(&surroundings), Vec::<String>::new());
        surroundings.set_state("Jenkins", "empty");
        surroundings.set_state("Jenkins", "one build");
        surroundings.messages = (0..=MAX_SHOWN_MESSAGES).map(|n| format!("m{n}")).collect();
        let lines = render_surroundings(&surroundings);
        assert_eq!(
            lines[..5],
            ["", "SERVER   STATE", "Jenkins  one build", "", "MESSAGES"]
        );
        assert_eq!((&*lines[5], lines.len()), ("m1", 5 + MAX_SHOWN_MESSAGES));
    }

    #[test]
    fn only_changes_are_printed() {
        let mut shown = BTreeMap::new();
        assert_eq!(
            take_changes(&mut shown, &[team()], &[], &Surroundings::default()),
            [("Team ci/a".into(), "InstanceNotReady".into())]
        );
        assert_eq!(
            take_changes(&mut shown, &[team()], &[], &Surroundings::default()),
            []
        );
        let ready = ObjectFacts {
            ready: true,
            ready_ms: Some(5.0),
            ..team()
        };
        assert_eq!(
            take_changes(&mut shown, &[ready], &[], &Surroundings::default()),
            [("Team ci/a".into(), "Ready after 5 ms".into())]
        );
    }
}
