//! `ostler explain`: the state of an object and its reasons.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use clap::Args;

use super::{
    ask::{AnswerFormat, Ask, ObjectArguments},
    table::{Shade, cell, format_seconds, join_reason, section, table},
};
use crate::admin::explain::{
    ExplainedState, Followed, NextRun, ObjectExplanation, Read, ReadState, Subscribed,
};

/// Arguments of `ostler explain`.
#[derive(Args)]
pub struct ExplainCommand {
    #[command(flatten)]
    object: ObjectArguments,
    /// Print the explanation again whenever it changes, until interrupted.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Interval of the queries of `--watch`. The admin server answers from memory.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

impl ExplainCommand {
    /// Queries the host and prints the explanation.
    pub async fn run(self) -> anyhow::Result<()> {
        let query = self.object.query()?;
        if self.watch {
            return self.watch_changes(&query).await;
        }
        let explanation: ObjectExplanation = self.ask.get("/explain", &query).await?;
        self.ask.print_answer(&explanation, format_explanation)
    }

    /// Prints each changed explanation: on a terminal in place of the last one, in JSON as one line.
    async fn watch_changes(&self, query: &[(&str, &str)]) -> anyhow::Result<()> {
        let mut interval = tokio::time::interval(WATCH_INTERVAL);
        let mut last = None;
        let mut host = self.ask.server.connect().await?;
        loop {
            interval.tick().await;
            let explanation: ObjectExplanation =
                self.ask.server.get_again(&mut host, "/explain", query).await?;
            let facts = Some(strip_countdown(&explanation)?);
            if facts == last {
                continue;
            }
            let text = match self.ask.output {
                AnswerFormat::Json => format!("{}\n", serde_json::to_string(&explanation)?),
                AnswerFormat::Yaml => format!("---\n{}", serde_saphyr::to_string(&explanation)?),
                AnswerFormat::Table | AnswerFormat::Wide => format_explanation(&explanation),
            };
            let separator = match self.ask.output {
                output if output.is_text() && std::io::stdout().is_terminal() => CLEAR_SCREEN,
                output if output.is_text() && last.is_some() => "\n",
                _ => "",
            };
            print!("{separator}{text}");
            std::io::stdout().flush()?;
            last = facts;
        }
    }
}

/// The explanation without the seconds until the next reconcile, which differ in each answer.
fn strip_countdown(explanation: &ObjectExplanation) -> anyhow::Result<serde_json::Value> {
    let mut facts = serde_json::to_value(explanation)?;
    if let Some(next) = facts["next"].as_object_mut() {
        next.remove("in_seconds");
    }
    Ok(facts)
}

/// Clears a terminal and moves the cursor to its beginning.
const CLEAR_SCREEN: &str = "\x1b[2J\x1b[H";

/// The next run in words.
pub fn format_next(next: &NextRun) -> String {
    match next.in_seconds {
        Some(seconds) => format!("in {}: {}", format_seconds(seconds), next.why),
        None => next.why.clone(),
    }
}

impl ExplainedState {
    /// The colour of the state.
    pub fn shade(self) -> Shade {
        match self {
            Self::Ready => Shade::Good,
            Self::NotReady => Shade::Bad,
            Self::Paused | Self::Terminating | Self::New => Shade::Waiting,
        }
    }
}

/// The explanation as text, the most important facts first.
fn format_explanation(explanation: &ObjectExplanation) -> String {
    let section_of = |title: &str, rows: Vec<Vec<comfy_table::Cell>>| match &*rows {
        [] => String::new(),
        _ => section(title, &table(&[], rows)),
    };
    let cells = |items: &[String], shade| items.iter().map(|item| vec![cell(item, shade)]).collect();
    let follows = explanation.follows.iter().map(stream_row);
    let subscriptions = explanation.subscriptions.iter().map(subscription_row);
    let errors = explanation.errors.iter().rev().map(|e| {
        vec![
            cell(&e.at, Shade::Faint),
            cell(format!("×{}", e.count), Shade::Faint),
            cell(join_reason(&e.reason, &e.message), Shade::Bad),
        ]
    });
    [
        table(&[], list_facts(explanation)),
        format_reads("Waits for", &explanation.waits_for),
        section_of("Held by", cells(&explanation.holders, Shade::Waiting)),
        section_of("Holds", cells(&explanation.holds, Shade::Plain)),
        section_of("Owns", cells(&explanation.owns, Shade::Plain)),
        section_of(
            "Deleted once these finalizers are removed",
            cells(&explanation.finalizers, Shade::Plain),
        ),
        format_reads("Reads (changes wake it)", &explanation.reads),
        section_of("Follows", follows.collect()),
        section_of("Subscriptions", subscriptions.collect()),
        section_of("Last errors", errors.collect()),
    ]
    .concat()
}

/// The facts about the object, one row each.
fn list_facts(explanation: &ObjectExplanation) -> Vec<Vec<comfy_table::Cell>> {
    let name = if explanation.namespace.is_empty() {
        explanation.name.clone()
    } else {
        format!("{}/{}", explanation.namespace, explanation.name)
    };
    let because = match (explanation.reason.is_empty(), explanation.state) {
        (true, _) | (_, ExplainedState::Ready) => String::new(),
        _ => join_reason(&explanation.reason, &explanation.message),
    };
    let last = match (&explanation.last_reconcile, explanation.last_ms) {
        (Some(at), Some(ms)) => format!("{at}, took {}", format_seconds(ms / 1000.0)),
        _ => "never".into(),
    };
    let state = format!("{:?}", explanation.state);
    let (reconciles, attempts) = (explanation.reconciles, explanation.attempts);
    let digest = explanation.plugin_digest.get(..12).unwrap_or_default();
    let paused = match explanation.paused {
        true => "yes, by annotation; its deletion still cleans up",
        false => "",
    };
    let facts = [
        ("Object", format!("{} {name}", explanation.kind), Shade::Plain),
        ("State", state, explanation.state.shade()),
        ("Why", because, Shade::Plain),
        ("Next run", format_next(&explanation.next), Shade::Plain),
        ("Last run", last, Shade::Plain),
        ("Woken by", format_causes(&explanation.woken_by), Shade::Plain),
        (
            "Reconciles",
            format!("{reconciles} ({attempts} failures in a row)"),
            Shade::Plain,
        ),
        ("Permits", explanation.permits.join("; "), Shade::Plain),
        ("Plugin", format!("{} {digest}", explanation.plugin), Shade::Plain),
        ("Paused", paused.to_owned(), Shade::Waiting),
    ];
    let known = facts.into_iter().filter(|(_, value, _)| !value.is_empty());
    known
        .map(|(what, value, shade)| vec![cell(what, Shade::Faint), cell(value, shade)])
        .collect()
}

fn format_reads(title: &str, reads: &[Read]) -> String {
    if reads.is_empty() {
        return String::new();
    }
    let rows = reads.iter().map(|read| {
        let (word, shade) = match read.state {
            ReadState::Absent => ("absent".to_owned(), Shade::Bad),
            ReadState::Exists => ("exists".to_owned(), Shade::Plain),
            ReadState::NotReady => ("not Ready".to_owned(), Shade::Waiting),
            ReadState::Ready => ("Ready".to_owned(), Shade::Good),
            ReadState::Terminating => ("being deleted".to_owned(), Shade::Waiting),
            ReadState::Unknown => ("unknown".to_owned(), Shade::Bad),
            ReadState::List(n) => (format!("{n} objects"), Shade::Plain),
        };
        vec![
            cell(&read.what, Shade::Plain),
            cell(word, shade),
            cell(&read.why, Shade::Plain),
        ]
    });
    section(title, &table(&[], rows))
}

fn subscription_row(subscribed: &Subscribed) -> Vec<comfy_table::Cell> {
    let shade = match &*subscribed.state {
        "consuming" => Shade::Good,
        _ => Shade::Waiting,
    };
    let ready = subscribed
        .depth
        .map_or_else(String::new, |n| format!("{n} ready, "));
    let counts = format!(
        "{ready}{} in flight, {} acknowledged, {} retried, {} dead-lettered",
        subscribed.in_flight, subscribed.acknowledged, subscribed.retried, subscribed.dead_lettered
    );
    let why = if subscribed.why.is_empty() {
        counts
    } else {
        format!("{counts}; last: {}", subscribed.why)
    };
    vec![
        cell(
            format!(
                "{} at {} for {}",
                subscribed.queue, subscribed.upstream, subscribed.plugin
            ),
            Shade::Plain,
        ),
        cell(&subscribed.state, shade),
        cell(why, Shade::Faint),
    ]
}

fn stream_row(stream: &Followed) -> Vec<comfy_table::Cell> {
    let shade = match &*stream.state {
        "open" => Shade::Good,
        "ended" => Shade::Plain,
        _ => Shade::Waiting,
    };
    let shared = match stream.followers {
        0 | 1 => String::new(),
        n => format!(", shared by {n} objects"),
    };
    let counts = format!(
        "{} events, reconnected {} times{shared}",
        stream.events, stream.reconnects
    );
    let why = if stream.why.is_empty() {
        counts
    } else {
        format!("{}; {counts}", stream.why)
    };
    vec![
        cell(&stream.what, Shade::Plain),
        cell(&stream.state, shade),
        cell(why, Shade::Faint),
    ]
}

/// Formats causes; equal neighbours are shown once with their number.
fn format_causes(causes: &[String]) -> String {
    let runs = causes.chunk_by(|a, b| a == b);
    let words = runs.map(|run| match run.len() {
        1 => run[0].clone(),
        n => format!("{} ×{n}", run[0]),
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{admin::explain::NextRun, reconcile::stats::RecordedError};

    #[test]
    fn most_urgent_finding_comes_first() {
        let read = Read {
            what: "Instance/demo/ci".into(),
            state: ReadState::Absent,
            why: String::new(),
        };
        let explanation = ObjectExplanation {
            kind: "Team.v1alpha1.concourse-ci.org".into(),
            namespace: "demo".into(),
            name: "platform".into(),
            state: ExplainedState::NotReady,
            reason: "InstanceNotReady".into(),
            message: "ci is not there".into(),
            permits: vec!["waits for one of `pods` (3 of 3 in use, 12 waiting)".into()],
            waits_for: vec![read.clone()],
            reads: vec![read],
            follows: vec![Followed {
                what: "Upstream/demo/ci/api/v1/builds/1/events".into(),
                state: "waiting".into(),
                why: "the server ended the stream".into(),
                events: 7,
                reconnects: 2,
                followers: 3,
            }],
            subscriptions: vec![Subscribed {
                plugin: "orders".into(),
                upstream: "demo/mq".into(),
                queue: "in".into(),
                state: "consuming".into(),
                why: "rejected: no such order".into(),
                depth: Some(4),
                in_flight: 2,
                acknowledged: 9,
                retried: 1,
                dead_lettered: 1,
            }],
            next: NextRun {
                place: "delayed".into(),
                in_seconds: Some(28.4),
                why: "it waits".into(),
            },
            woken_by: vec!["start".into(), "change".into(), "change".into()],
            holders: vec!["Thing/n/x".into()],
            holds: Vec::new(),
            owns: vec!["ConfigMap/fleet/east:apps/c".into()],
            finalizers: Vec::new(),
            paused: false,
            plugin: "concourse-team".into(),
            plugin_digest: "0123456789abcdef".into(),
            reconciles: 3,
            attempts: 0,
            last_reconcile: Some("2026-11-21T08:00:00Z".into()),
            last_ms: Some(1.25),
            errors: vec![RecordedError {
                at: "2026-11-21T07:00:00Z".into(),
                reason: "Failed".into(),
                message: "once".into(),
                count: 2,
            }],
        };
        let text = format_explanation(&explanation);
        let places: Vec<_> = [
            "Team.v1alpha1.concourse-ci.org demo/platform",
            "InstanceNotReady: ci is not there",
            "in 28.4 s: it waits",
            "took 1 ms",
            "start, change ×2",
            "concourse-team 0123456789ab",
            "Waits for",
            "Instance/demo/ci",
            "absent",
            "Thing/n/x",
            "Owns",
            "ConfigMap/fleet/east:apps/c",
            "Upstream/demo/ci/api/v1/builds/1/events",
            "the server ended the stream; 7 events, reconnected 2 times, shared by 3 objects",
            "Failed: once",
        ]
        .map(|words| text.find(words).unwrap_or_else(|| panic!("{words} in\n{text}")))
        .into();
        assert!(places.is_sorted(), "{text}");
        let mut later = explanation.clone();
        later.next.in_seconds = Some(27.4);
        let facts = |of: &ObjectExplanation| strip_countdown(of).expect("JSON");
        assert_eq!(facts(&explanation), facts(&later), "time alone is no change");
        later.reconciles += 1;
        assert_ne!(facts(&explanation), facts(&later));
        assert!(!text.contains('\x1b'), "no colours but on a terminal");
    }
}
