//! Watches: an object's changes as a stream of JSON lines.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use crate::kind::{ServedKind, ServedVersion};
use crate::request::{ListOptions, ResponseShape};
use crate::state::RequestHandler;
use crate::state::ServerState;
use crate::status::StatusError;
use crate::storage::{ObjectWrite, StoredObject};
use crate::table;

/// A watch request.
pub struct WatchRequest {
    /// The server.
    pub state: Arc<ServerState>,
    /// Kind and version.
    pub kind: Arc<ServedKind>,
    /// Served version.
    pub version: String,
    /// Restricts the watch to a namespace.
    pub namespace: Option<String>,
    /// Restricts the watch to one object.
    pub name: Option<String>,
    /// Selectors, revision, bookmarks.
    pub options: ListOptions,
    /// Shape of the objects.
    pub shape: ResponseShape,
    /// `includeObject` of tables.
    pub include: String,
}

type LineSender = mpsc::Sender<Result<Bytes, io::Error>>;

/// The client has closed the connection.
struct ClientGone;

impl WatchRequest {
    /// Refuses contradictory options before the stream starts.
    pub fn validate_options(options: &ListOptions) -> Result<(), StatusError> {
        let forbidden = |why: &str| {
            Err(StatusError::new(
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

    /// Sends lines until the client disconnects, the timeout passes, or the history no longer reaches back.
    pub async fn run_watch(self, lines: LineSender) {
        let Some(version) = self.kind.version(&self.version) else {
            return;
        };
        // The only error is a closed connection, which has no receiver for a message.
        let _ = self.stream_events(version, &lines).await;
    }

    async fn stream_events(&self, version: &ServedVersion, lines: &LineSender) -> Result<(), ClientGone> {
        let storage = &self.state.api.storage;
        let mut signal = storage.subscribe(&self.kind.resource);
        let mut cuts = self.state.faults.cuts.subscribe();
        let mut first = true;
        let mut at = match (self.options.initial_events, self.options.revision) {
            (Some(true), _) | (None, None | Some(0)) => {
                let (objects, revision) = storage.list(&self.kind.resource, self.namespace.as_deref());
                for object in objects.iter().filter(|object| self.is_selected(&object.value)) {
                    self.send_event(version, lines, "ADDED", object, None, &mut first)
                        .await?;
                }
                if self.options.initial_events == Some(true) && self.options.bookmarks {
                    self.send_bookmark(version, lines, revision, true).await?;
                }
                revision
            }
            (Some(false), None | Some(0)) => storage.revision(),
            (_, Some(revision)) => revision,
        };
        // The default timeout is that of kube-apiserver: 30 to 60 minutes.
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
            match storage.changes_since(&self.kind.resource, at) {
                Ok((changes, revision)) => {
                    for change in changes {
                        self.send_change(version, lines, &change, &mut first).await?;
                    }
                    at = at.max(revision);
                }
                Err(compacted) => {
                    let error = StatusError::expired(format!(
                        "too old resource version: {at} ({})",
                        compacted.oldest
                    ));
                    return send_line(lines, &json!({"type": "ERROR", "object": error.to_value()})).await;
                }
            }
            if bookmark && self.options.bookmarks {
                self.send_bookmark(version, lines, at, false).await?;
            }
            if last || self.is_superseded() {
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

    /// Returns true once the definition of the kind is deleted or has changed: a watch shows objects by the schema with which it began.
    fn is_superseded(&self) -> bool {
        let current = self.state.api.registry.get_by_resource(&self.kind.resource);
        current.is_none_or(|current| current.generation != self.kind.generation)
    }

    fn is_selected(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        self.namespace
            .as_deref()
            .is_none_or(|namespace| metadata["namespace"] == namespace)
            && self.name.as_deref().is_none_or(|name| metadata["name"] == name)
            && self.options.selects(object)
    }

    /// Sends a change as an event, by whether the object was and is selected.
    async fn send_change(
        &self,
        version: &ServedVersion,
        lines: &LineSender,
        change: &ObjectWrite,
        first: &mut bool,
    ) -> Result<(), ClientGone> {
        let before = change
            .previous
            .as_ref()
            .filter(|previous| self.is_selected(&previous.value));
        let after = !change.deleted && self.is_selected(&change.object.value);
        match (before, after) {
            (None, true) => {
                self.send_event(version, lines, "ADDED", &change.object, None, first)
                    .await
            }
            (Some(_), true) => {
                self.send_event(version, lines, "MODIFIED", &change.object, None, first)
                    .await
            }
            (Some(_), false) if change.deleted => {
                self.send_event(version, lines, "DELETED", &change.object, None, first)
                    .await
            }
            // The object left the selection: its last selected state is sent, at the revision of the change.
            (Some(previous), false) => {
                self.send_event(version, lines, "DELETED", previous, Some(change.revision), first)
                    .await
            }
            (None, false) => Ok(()),
        }
    }

    async fn send_event(
        &self,
        version: &ServedVersion,
        lines: &LineSender,
        event: &str,
        object: &StoredObject,
        revision: Option<u64>,
        first: &mut bool,
    ) -> Result<(), ClientGone> {
        let as_stored = object.value["apiVersion"] == self.kind.api_version(&version.name).as_str();
        if self.shape == ResponseShape::Object && revision.is_none() && as_stored {
            let json = object.json();
            let mut text = Vec::with_capacity(json.len() + 40);
            text.extend_from_slice(b"{\"type\":\"");
            text.extend_from_slice(event.as_bytes());
            text.extend_from_slice(b"\",\"object\":");
            text.extend_from_slice(json);
            text.extend_from_slice(b"}\n");
            return lines.send(Ok(text.into())).await.map_err(|_| ClientGone);
        }
        let mut value = RequestHandler::convert_to_version(&self.kind, version, object);
        if let Some(revision) = revision {
            value["metadata"]["resourceVersion"] = revision.to_string().into();
        }
        let shown = match self.shape {
            ResponseShape::Object => value,
            ResponseShape::Partial => table::partial_object(&value),
            ResponseShape::Table => {
                // Only the first event has column definitions: they are the same for the whole stream.
                let headings = if std::mem::take(first) {
                    table::column_definitions(&self.kind, version)
                } else {
                    Value::Null
                };
                json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": value["metadata"]["resourceVersion"]},
                    "columnDefinitions": headings,
                    "rows": [table::build_row(&self.kind, version, &value, &self.include, Timestamp::now())],
                })
            }
        };
        send_line(lines, &json!({"type": event, "object": shown})).await
    }

    async fn send_bookmark(
        &self,
        version: &ServedVersion,
        lines: &LineSender,
        revision: u64,
        initial: bool,
    ) -> Result<(), ClientGone> {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.shape {
            ResponseShape::Object => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(&version.name), "metadata": metadata})
            }
            ResponseShape::Partial => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            ResponseShape::Table => {
                metadata["creationTimestamp"].take();
                json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": null, "rows": []})
            }
        };
        send_line(lines, &json!({"type": "BOOKMARK", "object": object})).await
    }
}

async fn send_line(lines: &LineSender, value: &Value) -> Result<(), ClientGone> {
    lines
        .send(Ok(Bytes::from(format!("{value}\n"))))
        .await
        .map_err(|_| ClientGone)
}
