//! The result of a plan, as data and as text.

use serde::Serialize;
use serde_json::Value;

use super::{
    diff::{DisplayFilter, unified_diff},
    overlay::{Entry, PUBLISH, PlannedEvent, UnsentRequest},
};
use crate::reconcile::run_once::ReconcileStep;

/// Result of a plan.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PlanReport {
    /// Objects that would be created, changed or deleted, in order of their names.
    pub changes: Vec<PlannedChange>,
    /// Requests to upstreams that would be sent.
    pub requests: Vec<UnsentRequest>,
    /// Events that would be written.
    pub events: Vec<PlannedEvent>,
    /// Results of the reconciles, by object.
    pub objects: Vec<PlannedObject>,
    /// Remarks on what the plan leaves out or could not determine.
    pub notes: Vec<String>,
}

/// Planned change of one object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedChange {
    /// Kind, namespace and name.
    pub object: String,
    /// Its API group and version.
    pub api_version: String,
    /// Kind of change.
    pub action: PlannedAction,
    /// Reconciled objects and files that cause the change.
    pub by: Vec<String>,
    /// Parts of the change that the API server could not validate, with the reason.
    pub unchecked: Vec<String>,
    /// `true` if some of it depends on the assumed response of a request that was not sent.
    pub guess: bool,
    /// Unified diff of the YAML.
    pub diff: String,
    /// The live object; `None` if it does not exist.
    pub live: Option<Value>,
    /// The planned object; `None` if it would be deleted.
    pub planned: Option<Value>,
}

/// Kind of change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannedAction {
    /// The object does not exist yet.
    Create,
    /// The object differs from the live one.
    Update,
    /// The object would be deleted.
    Delete,
}

/// Result of the last reconcile of a planned object.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedObject {
    /// Kind, namespace and name.
    pub object: String,
    /// The plugin that reconciles it.
    pub plugin: String,
    /// Outcome of the reconcile.
    pub verdict: Verdict,
    /// Machine-readable reason of the outcome; empty after a success.
    pub reason: String,
    /// Human-readable reason of the outcome.
    pub message: String,
    /// `true` if the outcome depends on the assumed response of a request that was not sent.
    pub guess: bool,
}

/// Outcome of a planned reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The reconcile succeeded.
    Done,
    /// The object would be deleted.
    Gone,
    /// The object waits, for example for another object.
    Waits,
    /// The reconcile failed and would be retried with backoff.
    Fails,
    /// The reconcile failed and would not be retried until a change.
    Parked,
}

impl From<ReconcileStep> for Verdict {
    fn from(step: ReconcileStep) -> Self {
        match step {
            ReconcileStep::Gone => Self::Gone,
            ReconcileStep::Done => Self::Done,
            ReconcileStep::Waits => Self::Waits,
            ReconcileStep::Fails => Self::Fails,
            ReconcileStep::Parked => Self::Parked,
        }
    }
}

impl Verdict {
    /// The predicate of a sentence about the object; empty if there is nothing to report.
    fn describe(self) -> &'static str {
        match self {
            Self::Done | Self::Gone => "",
            Self::Waits => "waits",
            Self::Fails => "fails and is retried",
            Self::Parked => "fails and is not retried until a change",
        }
    }
}

impl PlannedChange {
    /// The change of an entry, redacted; `None` if its displayed states do not differ.
    pub(super) fn from_entry(entry: &Entry, filter: &DisplayFilter) -> Option<Self> {
        let key = entry.object_ref()?;
        let (live, planned) = filter.display_states(entry.live.as_ref(), entry.planned.as_ref());
        let action = match (&live, &planned) {
            (None, _) => PlannedAction::Create,
            (_, None) => PlannedAction::Delete,
            _ => PlannedAction::Update,
        };
        let diff = unified_diff(&key.to_string(), live.as_ref(), planned.as_ref());
        (!diff.is_empty()).then(|| Self {
            object: key.to_string(),
            api_version: key.gvk.api_version(),
            action,
            by: entry.by.iter().cloned().collect(),
            unchecked: entry.unchecked.iter().cloned().collect(),
            guess: entry.guess,
            diff,
            live,
            planned,
        })
    }
}

impl PlanReport {
    /// Returns `true` if any object or upstream would change.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty() || !self.requests.is_empty()
    }

    /// Redacts all texts of the report.
    pub(super) fn redact(&mut self, filter: &DisplayFilter) {
        let hide = |text: &mut String| *text = filter.redact_text(text);
        for request in &mut self.requests {
            [&mut request.by, &mut request.path].into_iter().for_each(hide);
            request.body = filter.redact_value(&request.body);
        }
        for event in &mut self.events {
            [&mut event.about, &mut event.reason, &mut event.note]
                .into_iter()
                .for_each(hide);
        }
        for object in &mut self.objects {
            [&mut object.object, &mut object.reason, &mut object.message]
                .into_iter()
                .for_each(hide);
        }
        for change in &mut self.changes {
            [&mut change.object, &mut change.diff].into_iter().for_each(hide);
            change.by.iter_mut().chain(&mut change.unchecked).for_each(hide);
        }
        self.notes.iter_mut().for_each(hide);
    }

    /// The plan as text: diffs that `patch` accepts, with comments. Empty if there is nothing to report.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut print_lines = |text: &str| {
            for line in text.lines() {
                out.push_str(line);
                out.push('\n');
            }
        };
        for change in &self.changes {
            let action = match change.action {
                PlannedAction::Create => "created",
                PlannedAction::Update => "changed",
                PlannedAction::Delete => "deleted",
            };
            print_lines(&format!(
                "# {} is {action} by {}",
                change.object,
                change.by.join(", ")
            ));
            if change.guess {
                print_lines("#   a guess: it depends on responses to requests that were not sent");
            }
            for why in &change.unchecked {
                print_lines(&format!("#   not checked by the API server: {}", join_lines(why)));
            }
            print_lines(&change.diff);
        }
        for request in &self.requests {
            let guess = if request.guess { "a guess, and " } else { "" };
            let (by, upstream) = (&request.by, &request.upstream);
            print_lines(&match request.method.as_str() {
                PUBLISH => format!("# {by} publishes a message to Upstream {upstream}; {guess}not sent"),
                _ => format!(
                    "# {by} sends a request to Upstream {upstream}; {guess}not sent, assumed response 200 with {{}}"
                ),
            });
            print_lines(&format!("+ {} {}", request.method, request.path));
            let body = match &request.body {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                json => serde_json::to_string_pretty(json).unwrap_or_else(|_| json.to_string()),
            };
            for line in body.lines() {
                print_lines(&format!("+   {line}"));
            }
        }
        for event in &self.events {
            print_lines(&format!(
                "# event on {}: {} {}: {}",
                event.about,
                event.kind,
                event.reason,
                join_lines(&event.note)
            ));
        }
        for object in self.objects.iter().filter(|o| !o.verdict.describe().is_empty()) {
            let guess = if object.guess { " (a guess)" } else { "" };
            print_lines(&format!(
                "# {} {}{guess}: {}: {}",
                object.object,
                object.verdict.describe(),
                object.reason,
                join_lines(&object.message)
            ));
        }
        for note in &self.notes {
            print_lines(&format!("# {}", join_lines(note)));
        }
        out
    }
}

fn join_lines(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" ")
}
