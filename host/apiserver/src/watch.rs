//! Watches: an object's changes as a stream of JSON lines.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use crate::api::Api;
use crate::kind::{Kind, Version};
use crate::request::{ListOptions, Shape};
use crate::state::State;
use crate::status::ApiError;
use crate::storage::{Change, Stored};
use crate::table;

/// What a watch shows.
pub struct Watch {
    /// The server.
    pub state: Arc<State>,
    /// Kind and version.
    pub kind: Arc<Kind>,
    /// Served version.
    pub version: String,
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only this object.
    pub name: Option<String>,
    /// Selectors, revision, bookmarks.
    pub options: ListOptions,
    /// Shape of the objects.
    pub shape: Shape,
    /// `includeObject` of tables.
    pub include: String,
}

type Lines = mpsc::Sender<Result<Bytes, io::Error>>;

/// Why a watch ends early: nobody listens any more.
struct Closed;

impl Watch {
    /// Checks options that make no sense before the stream starts.
    pub fn check(options: &ListOptions) -> Result<(), ApiError> {
        let forbidden = |why: &str| {
            Err(ApiError::new(
                422,
                "Invalid",
                format!("ListOptions.meta.k8s.io \"\" is invalid: {why}"),
            ))
        };
        match (options.initial_events, options.revision_match.as_deref()) {
            (Some(_), Some("NotOlderThan")) | (None, None) => Ok(()),
            (Some(_), _) => forbidden(
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ),
            (None, Some(_)) => forbidden(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ),
        }
    }

    /// Sends lines until the client leaves, time is up, or history runs out.
    pub async fn run(self, lines: Lines) {
        let Some(version) = self.kind.version(&self.version) else {
            return;
        };
        // Ends only because nobody listens; there is nobody to tell.
        let _ = self.follow(version, &lines).await;
    }

    async fn follow(&self, version: &Version, lines: &Lines) -> Result<(), Closed> {
        let storage = &self.state.api.storage;
        let mut signal = storage.subscribe(&self.kind.resource);
        let mut cuts = self.state.faults.cuts.subscribe();
        let mut first = true;
        let mut at = match (self.options.initial_events, self.options.revision) {
            (Some(true), _) | (None, None | Some(0)) => {
                let (objects, revision) = storage.list(&self.kind.resource, self.namespace.as_deref());
                for object in objects.iter().filter(|object| self.selects(&object.value)) {
                    self.send(version, lines, "ADDED", object, None, &mut first)
                        .await?;
                }
                if self.options.initial_events == Some(true) && self.options.bookmarks {
                    self.bookmark(version, lines, revision, true).await?;
                }
                revision
            }
            (Some(false), None | Some(0)) => storage.revision(),
            (_, Some(revision)) => revision,
        };
        // Clients that give no limit get one as generous as the real server's.
        let timeout = self
            .options
            .timeout
            .unwrap_or_else(|| Duration::from_secs(fastrand::u64(1800..3600)));
        let end = tokio::time::sleep_until(Instant::now() + timeout);
        tokio::pin!(end);
        let mut ticks = tokio::time::interval_at(
            Instant::now() + self.state.bookmark_interval,
            self.state.bookmark_interval,
        );
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut bookmark, mut last) = (false, false);
        loop {
            signal.mark_unchanged();
            match storage.changes(&self.kind.resource, at) {
                Ok((changes, revision)) => {
                    for change in changes {
                        self.pass(version, lines, &change, &mut first).await?;
                    }
                    at = at.max(revision);
                }
                Err(compacted) => {
                    let error =
                        ApiError::expired(format!("too old resource version: {at} ({})", compacted.oldest));
                    return line(lines, &json!({"type": "ERROR", "object": error.to_value()})).await;
                }
            }
            if bookmark && self.options.bookmarks {
                self.bookmark(version, lines, at, false).await?;
            }
            // A definition that went takes its watches with it.
            if last || self.state.api.registry.of(&self.kind.resource).is_none() {
                return Ok(());
            }
            bookmark = false;
            tokio::select! {
                _ = signal.changed() => {}
                _ = ticks.tick() => bookmark = true,
                () = &mut end => (bookmark, last) = (true, true),
                _ = cuts.changed() => {
                    let _ = lines.send(Err(io::Error::other("watch cut"))).await;
                    return Ok(());
                }
                () = lines.closed() => return Ok(()),
            }
        }
    }

    fn selects(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        self.namespace
            .as_deref()
            .is_none_or(|namespace| metadata["namespace"] == namespace)
            && self.name.as_deref().is_none_or(|name| metadata["name"] == name)
            && self.options.labels.matches(object)
            && self.options.fields.matches(object)
    }

    /// A change as it looks through the selectors.
    async fn pass(
        &self,
        version: &Version,
        lines: &Lines,
        change: &Change,
        first: &mut bool,
    ) -> Result<(), Closed> {
        let before = change
            .previous
            .as_ref()
            .filter(|previous| self.selects(&previous.value));
        let after = !change.deleted && self.selects(&change.object.value);
        match (before, after) {
            (None, true) => {
                self.send(version, lines, "ADDED", &change.object, None, first)
                    .await
            }
            (Some(_), true) => {
                self.send(version, lines, "MODIFIED", &change.object, None, first)
                    .await
            }
            (Some(_), false) if change.deleted => {
                self.send(version, lines, "DELETED", &change.object, None, first)
                    .await
            }
            // It left the selection: shown as it last was inside, at the revision it left.
            (Some(previous), false) => {
                self.send(version, lines, "DELETED", previous, Some(change.revision), first)
                    .await
            }
            (None, false) => Ok(()),
        }
    }

    async fn send(
        &self,
        version: &Version,
        lines: &Lines,
        event: &str,
        object: &Stored,
        revision: Option<u64>,
        first: &mut bool,
    ) -> Result<(), Closed> {
        let as_stored = object.value["apiVersion"] == self.kind.api_version(&version.name).as_str();
        if self.shape == Shape::Object && revision.is_none() && as_stored {
            let json = object.json();
            let mut text = Vec::with_capacity(json.len() + 40);
            text.extend_from_slice(b"{\"type\":\"");
            text.extend_from_slice(event.as_bytes());
            text.extend_from_slice(b"\",\"object\":");
            text.extend_from_slice(json);
            text.extend_from_slice(b"}\n");
            return lines.send(Ok(text.into())).await.map_err(|_| Closed);
        }
        let mut value = Api::present(&self.kind, version, object);
        if let Some(revision) = revision {
            value["metadata"]["resourceVersion"] = revision.to_string().into();
        }
        let shown = match self.shape {
            Shape::Object => value,
            Shape::Partial => table::partial(&value),
            Shape::Table => {
                // Headings are the same for the whole stream and said once.
                let headings = if std::mem::take(first) {
                    table::headings(&self.kind, version)
                } else {
                    Value::Null
                };
                json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": value["metadata"]["resourceVersion"]},
                    "columnDefinitions": headings,
                    "rows": [table::row(&self.kind, version, &value, &self.include, Timestamp::now())],
                })
            }
        };
        line(lines, &json!({"type": event, "object": shown})).await
    }

    async fn bookmark(
        &self,
        version: &Version,
        lines: &Lines,
        revision: u64,
        initial: bool,
    ) -> Result<(), Closed> {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.shape {
            Shape::Object => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(&version.name), "metadata": metadata})
            }
            Shape::Partial => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Shape::Table => {
                metadata["creationTimestamp"].take();
                json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": null, "rows": []})
            }
        };
        line(lines, &json!({"type": "BOOKMARK", "object": object})).await
    }
}

async fn line(lines: &Lines, value: &Value) -> Result<(), Closed> {
    lines
        .send(Ok(Bytes::from(format!("{value}\n"))))
        .await
        .map_err(|_| Closed)
}
