//! `ostler get`: the objects that the host reconciles, with their states.

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use clap::Args;
use comfy_table::Cell;

use super::{
    ask::{AnswerFormat, Ask},
    completion::{namespace_completer, target_completer},
    connection::HostClient,
    table::{Shade, cell, format_age, format_seconds, join_reason, shade_text, table},
};
use crate::{
    admin::{
        explain::{ExplainedState, NextRun},
        objects::ObjectSummary,
    },
    kube::time::seconds_since,
};

/// Arguments of `ostler get`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  the objects were shown, of which there may be none\n  1  kind, object or host not found"
)]
pub struct GetCommand {
    /// Kind, such as `team` or `Team.concourse-ci.org`, or object, such as `team/platform`. Defaults to all kinds.
    #[arg(value_name = "KIND[/NAME]", add = target_completer())]
    target: Option<String>,
    /// Namespace of the objects. Defaults to that of the kubeconfig for a host in a cluster, and otherwise to all.
    #[arg(short, long, add = namespace_completer())]
    namespace: Option<String>,
    /// Show the objects of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Label selector of the objects, such as `team=ci`.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Show each change of a state, until interrupted.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Interval of the queries of `--watch`. The admin server answers from memory.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

impl GetCommand {
    /// Queries the host and prints the objects.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut host = self.ask.server.connect().await?;
        let namespace = match (&self.namespace, self.all_namespaces) {
            (Some(namespace), _) => Some(namespace.clone()),
            (None, true) => None,
            (None, false) => host.default_namespace.clone(),
        };
        let (kind, name) = match &self.target {
            None => (None, None),
            Some(target) => match target.split_once('/') {
                Some((kind, name)) => (Some(kind), Some(name)),
                None => (Some(&**target), None),
            },
        };
        let parameters = [
            ("kind", kind),
            ("name", name),
            ("namespace", namespace.as_deref()),
            ("selector", self.selector.as_deref()),
        ];
        let query: Vec<(&str, &str)> = parameters
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        let place = namespace
            .as_ref()
            .map_or(String::new(), |n| format!(" in namespace {n}"));
        let objects: Vec<ObjectSummary> = host.get("/states", &query).await?;
        let columns = Columns {
            namespace: namespace.is_none(),
            wide: self.ask.output == AnswerFormat::Wide,
        };
        match (name, &self.target) {
            (Some(_), Some(target)) if objects.is_empty() => bail!("there is no {target}{place}"),
            _ if objects.is_empty() && self.ask.output.is_text() => {
                eprintln!("no objects are reconciled{place}")
            }
            _ => self
                .ask
                .print_answer(&objects, |objects| columns.format(objects))?,
        }
        if self.watch {
            self.watch_changes(&mut host, &query, objects, columns).await?;
        }
        Ok(())
    }

    /// Prints each object whose state, reason or message changes.
    async fn watch_changes(
        &self,
        host: &mut HostClient,
        query: &[(&str, &str)],
        shown: Vec<ObjectSummary>,
        columns: Columns,
    ) -> anyhow::Result<()> {
        let mut interval = tokio::time::interval(WATCH_INTERVAL);
        let mut known = index_objects(shown);
        loop {
            interval.tick().await;
            let objects: Vec<ObjectSummary> = self.ask.server.get_again(host, "/states", query).await?;
            let now = index_objects(objects);
            let is_changed = |object: &&ObjectSummary| {
                known.get(&key(object)).is_none_or(|before| {
                    (before.state, &before.reason, &before.message)
                        != (object.state, &object.reason, &object.message)
                })
            };
            let changed: Vec<&ObjectSummary> = now.values().filter(is_changed).collect();
            for object in &changed {
                self.print_change(object, columns)?;
            }
            for (_, gone) in known.iter().filter(|(key, _)| !now.contains_key(*key)) {
                match self.ask.output {
                    AnswerFormat::Json | AnswerFormat::Yaml => {}
                    _ => println!("{} {}", describe(gone), shade_text("deleted", Shade::Waiting)),
                }
            }
            known = now;
        }
    }

    fn print_change(&self, object: &ObjectSummary, columns: Columns) -> anyhow::Result<()> {
        match self.ask.output {
            AnswerFormat::Json => println!("{}", serde_json::to_string(object)?),
            AnswerFormat::Yaml => print!("---\n{}", serde_saphyr::to_string(object)?),
            AnswerFormat::Table | AnswerFormat::Wide => {
                let why = match object.state {
                    ExplainedState::Ready => String::new(),
                    _ => join_reason(&object.reason, &object.message),
                };
                let state = shade_text(&format!("{:?}", object.state), object.state.shade());
                let plugin = if columns.wide { &*object.plugin } else { "" };
                let line = [&*describe(object), &state, &why, plugin].join(" ");
                println!("{}", line.trim_end());
            }
        }
        Ok(())
    }
}

type ObjectKey = (String, String, String);

fn key(object: &ObjectSummary) -> ObjectKey {
    (object.kind.clone(), object.namespace.clone(), object.name.clone())
}

fn index_objects(objects: Vec<ObjectSummary>) -> BTreeMap<ObjectKey, ObjectSummary> {
    objects.into_iter().map(|object| (key(&object), object)).collect()
}

/// The object with its namespace, as in `ci/team/platform`.
fn describe(object: &ObjectSummary) -> String {
    match &*object.namespace {
        "" => short_name(object),
        namespace => format!("{namespace}/{}", short_name(object)),
    }
}

/// The object as other commands take it: `team/platform`.
fn short_name(object: &ObjectSummary) -> String {
    format!("{}/{}", object.short_kind(), object.name)
}

/// The columns of the table.
#[derive(Clone, Copy)]
struct Columns {
    namespace: bool,
    wide: bool,
}

impl Columns {
    fn format(self, objects: &[ObjectSummary]) -> String {
        let mut header = vec!["NAMESPACE", "OBJECT", "STATE", "REASON", "AGE", "NEXT RUN"];
        if self.wide {
            header.extend(["LAST RUN", "RECONCILES", "FAILURES", "PLUGIN", "MESSAGE"]);
        }
        let skipped = usize::from(!self.namespace);
        let rows = objects.iter().map(|object| self.cells(object).split_off(skipped));
        table(&header[skipped..], rows.collect::<Vec<_>>())
    }

    fn cells(self, object: &ObjectSummary) -> Vec<Cell> {
        let ago = |at: &str| seconds_since(at).map_or_else(String::new, format_age);
        let mut cells = vec![
            cell(&object.namespace, Shade::Plain),
            cell(short_name(object), Shade::Plain),
            cell(format!("{:?}", object.state), object.state.shade()),
            cell(&object.reason, Shade::Plain),
            cell(ago(&object.created), Shade::Plain),
            cell(format_next(&object.next), Shade::Plain),
        ];
        if self.wide {
            let last = object.last_reconcile.as_deref().map(ago);
            cells.extend([
                cell(
                    last.map_or("never".into(), |last| format!("{last} ago")),
                    Shade::Plain,
                ),
                cell(object.reconciles, Shade::Plain),
                cell(object.failures, Shade::Plain),
                cell(&object.plugin, Shade::Plain),
                cell(&object.message, Shade::Plain),
            ]);
        }
        cells
    }
}

/// The next run in a word: of a delayed object when, of any other its place.
fn format_next(next: &NextRun) -> String {
    match (next.in_seconds, &*next.place) {
        (Some(seconds), _) => format!("in {}", format_seconds(seconds)),
        (None, "settled") => "on change".into(),
        (None, place) => place.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(state: ExplainedState, next: NextRun) -> ObjectSummary {
        ObjectSummary {
            since: None,
            waits_for: Vec::new(),
            last_ms: None,
            kind: "Team.v1alpha1.concourse-ci.org".into(),
            namespace: "ci".into(),
            name: "platform".into(),
            state,
            reason: "InstanceNotReady".into(),
            message: "Instance main does not exist.".into(),
            created: String::new(),
            next,
            plugin: "concourse-team".into(),
            reconciles: 3,
            failures: 1,
            last_reconcile: None,
        }
    }

    fn next(place: &str, in_seconds: Option<f64>) -> NextRun {
        NextRun {
            place: place.into(),
            in_seconds,
            why: String::new(),
        }
    }

    #[test]
    fn table_has_namespace_of_several_and_details_if_wide() {
        let objects = [
            summary(ExplainedState::NotReady, next("delayed", Some(25.1))),
            summary(ExplainedState::Ready, next("settled", None)),
        ];
        let format = |namespace, wide| Columns { namespace, wide }.format(&objects);
        let narrow = format(false, false);
        assert!(narrow.starts_with("OBJECT"), "{narrow}");
        for words in [
            "team/platform",
            "NotReady",
            "InstanceNotReady",
            "in 25.1 s",
            "on change",
        ] {
            assert!(narrow.contains(words), "{words} in\n{narrow}");
        }
        let wide = format(true, true);
        for words in [
            "NAMESPACE",
            "ci",
            "concourse-team",
            "never",
            "Instance main does not exist.",
        ] {
            assert!(wide.contains(words), "{words} in\n{wide}");
        }
    }
}
