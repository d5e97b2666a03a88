//! What a plan says.

use serde::Serialize;
use serde_json::Value;

use super::{
    diff::{Shown, unified},
    overlay::{Entry, PlannedEvent, Request},
};
use crate::reconcile::run_once::ReconcileStep;

/// A plan.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Objects that would be otherwise, in order of their names.
    pub changes: Vec<Change>,
    /// Requests to upstreams that would be sent.
    pub requests: Vec<Request>,
    /// Events that would be written.
    pub events: Vec<PlannedEvent>,
    /// How the reconciles ended, by object.
    pub objects: Vec<PlannedObject>,
    /// What else there is to know.
    pub notes: Vec<String>,
}

/// One object that would be otherwise.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Kind, namespace and name.
    pub object: String,
    /// Its group and version.
    pub api_version: String,
    /// What would be done.
    pub action: Action,
    /// On whose behalf: objects that are reconciled, or files.
    pub by: Vec<String>,
    /// What the API server could not be asked about.
    pub unchecked: Vec<String>,
    /// Whether some of it rests on an answer that nobody gave.
    pub guess: bool,
    /// As YAML, line by line.
    pub diff: String,
    /// As it is.
    pub live: Option<Value>,
    /// As it would be.
    pub planned: Option<Value>,
}

/// What would be done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is not there.
    Create,
    /// It is otherwise.
    Update,
    /// It goes.
    Delete,
}

/// Result of the last reconcile of a planned object.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedObject {
    /// Kind, namespace and name.
    pub object: String,
    /// Who reconciles it.
    pub plugin: String,
    /// How it ended.
    pub verdict: Verdict,
    /// Why, in a word; empty when it did what it could.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Whether it rests on an answer that nobody gave.
    pub guess: bool,
}

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It did what it could.
    Done,
    /// The object is gone.
    Gone,
    /// It waits for something.
    Waits,
    /// It failed, and would be tried again.
    Fails,
    /// It failed, and would not be tried again by itself.
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
    /// As a sentence goes on after the object's name; empty where there is nothing to say.
    fn words(self) -> &'static str {
        match self {
            Self::Done | Self::Gone => "",
            Self::Waits => "waits",
            Self::Fails => "fails, and is tried again",
            Self::Parked => "fails, until something changes",
        }
    }
}

impl Change {
    /// The change of an entry, fit to be shown; none where it looks the same.
    pub(super) fn of(entry: &Entry, shown: &Shown) -> Option<Self> {
        let key = entry.key()?;
        let (live, planned) = shown.states(entry.live.as_ref(), entry.planned.as_ref());
        let action = match (&live, &planned) {
            (None, _) => Action::Create,
            (_, None) => Action::Delete,
            _ => Action::Update,
        };
        let diff = unified(&key.to_string(), live.as_ref(), planned.as_ref());
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

impl Report {
    /// Whether anything would change.
    pub fn changed(&self) -> bool {
        !self.changes.is_empty() || !self.requests.is_empty()
    }

    /// Makes fit to be shown what is not yet.
    pub(super) fn hide(&mut self, shown: &Shown) {
        let hide = |text: &mut String| *text = shown.text(text);
        for request in &mut self.requests {
            [&mut request.by, &mut request.path].into_iter().for_each(hide);
            request.body = shown.value(&request.body);
        }
        for news in &mut self.events {
            [&mut news.about, &mut news.reason, &mut news.note]
                .into_iter()
                .for_each(hide);
        }
        for looked in &mut self.objects {
            [&mut looked.object, &mut looked.reason, &mut looked.message]
                .into_iter()
                .for_each(hide);
        }
        for change in &mut self.changes {
            [&mut change.object, &mut change.diff].into_iter().for_each(hide);
            change.by.iter_mut().chain(&mut change.unchecked).for_each(hide);
        }
        self.notes.iter_mut().for_each(hide);
    }

    /// The plan for people: diffs that `patch` takes, and comments. Empty when there is nothing to say.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut say = |line: &str| {
            for line in line.lines() {
                out.push_str(line);
                out.push('\n');
            }
        };
        for change in &self.changes {
            let action = match change.action {
                Action::Create => "created",
                Action::Update => "changed",
                Action::Delete => "deleted",
            };
            say(&format!(
                "# {} is {action} by {}",
                change.object,
                change.by.join(", ")
            ));
            if change.guess {
                say("#   a guess: it rests on answers to requests that were not sent");
            }
            for why in &change.unchecked {
                say(&format!("#   not checked by the API server: {}", one_line(why)));
            }
            say(&change.diff);
        }
        for request in &self.requests {
            let guess = if request.guess { "a guess, and " } else { "" };
            say(&format!(
                "# {} asks Upstream {}; {guess}not sent, taken as answered by 200 and {{}}",
                request.by, request.upstream
            ));
            say(&format!("+ {} {}", request.method, request.path));
            let body = match &request.body {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                json => serde_json::to_string_pretty(json).unwrap_or_else(|_| json.to_string()),
            };
            for line in body.lines() {
                say(&format!("+   {line}"));
            }
        }
        for news in &self.events {
            say(&format!(
                "# event on {}: {} {}: {}",
                news.about,
                news.kind,
                news.reason,
                one_line(&news.note)
            ));
        }
        for looked in self.objects.iter().filter(|l| !l.verdict.words().is_empty()) {
            let guess = if looked.guess { " (a guess)" } else { "" };
            say(&format!(
                "# {} {}{guess}: {}: {}",
                looked.object,
                looked.verdict.words(),
                looked.reason,
                one_line(&looked.message)
            ));
        }
        for note in &self.notes {
            say(&format!("# {}", one_line(note)));
        }
        out
    }
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" ")
}
