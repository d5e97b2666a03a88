//! Recent log lines of plugins, for `ostler logs`.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Extension, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::watch;

use super::{
    Admin,
    access::{AccessRefusal, Requester},
    question::Question,
};
use crate::observe::log_ring::{LogBatch, LogLevel, LogLine, LogRing, LogSubject};

/// Interval of empty lines, by which a closed connection is noticed.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Query parameters of `/logs`: an object or a plugin.
#[derive(Deserialize)]
pub struct LogQuery {
    /// Kind of the object.
    kind: Option<String>,
    /// Its namespace; optional if the name is unique.
    namespace: Option<String>,
    /// Its name.
    name: Option<String>,
    /// The plugin, for the lines of all its objects.
    plugin: Option<String>,
    /// Lowest level; `info` by default.
    #[serde(default = "default_level")]
    level: LogLevel,
    /// Maximum number of lines that are stored already; the newest are returned.
    tail: Option<usize>,
    /// Also return the lines to come, until the connection is closed.
    #[serde(default)]
    follow: bool,
}

fn default_level() -> LogLevel {
    LogLevel::Info
}

/// The lines as JSON, one per line, oldest first.
pub async fn logs(
    State(admin): State<Admin>,
    Extension(requester): Extension<Requester>,
    Query(query): Query<LogQuery>,
) -> Response {
    let subject = match find_subject(&admin, &requester, &query).await {
        Ok(subject) => subject,
        Err(refusal) => return refusal.into_response(),
    };
    let ring = admin.services.logs.clone();
    // Before the first read, so that no line is missed in between.
    let appended = ring.watch_appends();
    let mut stored = ring.read(&subject, 0, query.level);
    // What was dropped before is no gap.
    stored.is_incomplete = false;
    let surplus = stored
        .lines
        .len()
        .saturating_sub(query.tail.unwrap_or(usize::MAX));
    stored.lines.drain(..surplus);
    let first = encode_batch(&stored);
    let kind = [(header::CONTENT_TYPE, "application/jsonl")];
    if !query.follow {
        return (kind, first).into_response();
    }
    let follower = LogFollower {
        ring,
        appended,
        subject,
        level: query.level,
        next: stored.next,
        first: Some(first),
    };
    let lines = futures::stream::unfold(follower, async |mut follower| {
        let bytes = follower.next_bytes().await?;
        Some((Ok::<_, Infallible>(Bytes::from(bytes)), follower))
    });
    (kind, Body::from_stream(Box::pin(lines))).into_response()
}

/// The object or plugin of a query. The lines of a plugin are about objects of anybody.
async fn find_subject(
    admin: &Admin,
    requester: &Requester,
    query: &LogQuery,
) -> Result<LogSubject, AccessRefusal> {
    if let Some(plugin) = &query.plugin {
        requester.check_path("/logs").await?;
        let serving = admin.registry.serving();
        let mut known: Vec<Arc<str>> = serving.iter().map(|plugin| plugin.name().clone()).collect();
        known.extend(admin.services.logs.list_plugins());
        if let Some(plugin) = known.iter().find(|name| ***name == **plugin) {
            return Ok(LogSubject::Plugin(plugin.clone()));
        }
        known.sort();
        known.dedup();
        let message = match known.is_empty() {
            true => format!("there is no plugin `{plugin}`: this host serves none"),
            false => format!("there is no plugin `{plugin}`; there are {}", known.join(", ")),
        };
        return Err(AccessRefusal(StatusCode::NOT_FOUND, message));
    }
    let (Some(kind), Some(name)) = (query.kind.clone(), query.name.clone()) else {
        let message = "the query needs `kind` and `name`, or `plugin`";
        return Err(AccessRefusal(StatusCode::BAD_REQUEST, message.into()));
    };
    let question = Question {
        kind,
        namespace: query.namespace.clone(),
        name,
    };
    // A deleted object has lines for a while, its cleanup's among them.
    let mut keys = admin.stats.keys();
    let logged = admin.services.logs.list_objects();
    keys.extend(logged.into_iter().filter(|key| key.is_home()));
    keys.sort();
    keys.dedup();
    let found = admin.find_visible(requester, "get", &question, keys).await;
    found.map(LogSubject::Object)
}

/// A connection that follows the lines.
struct LogFollower {
    ring: Arc<LogRing>,
    appended: watch::Receiver<u64>,
    subject: LogSubject,
    level: LogLevel,
    /// The position from which lines have not been sent.
    next: u64,
    /// The stored lines, until they are sent.
    first: Option<Vec<u8>>,
}

impl LogFollower {
    /// Waits for further lines; an empty line is the heartbeat. None when the host ends.
    async fn next_bytes(&mut self) -> Option<Vec<u8>> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Some(first);
        }
        loop {
            match tokio::time::timeout(HEARTBEAT_INTERVAL, self.appended.changed()).await {
                Err(_) => return Some(b"\n".to_vec()),
                Ok(Err(_)) => return None,
                Ok(Ok(())) => {}
            }
            let batch = self.ring.read(&self.subject, self.next, self.level);
            self.next = batch.next;
            let bytes = encode_batch(&batch);
            if !bytes.is_empty() {
                return Some(bytes);
            }
        }
    }
}

/// Encodes lines as JSON lines. A gap before them is a line of its own.
fn encode_batch(batch: &LogBatch) -> Vec<u8> {
    let mut bytes = Vec::new();
    let gap = batch.is_incomplete.then(|| {
        Arc::new(LogLine {
            at: crate::kube::time::now_rfc3339(),
            level: LogLevel::Warn,
            plugin: String::new(),
            object: String::new(),
            reconcile: String::new(),
            message: "lines were dropped before they were sent: the reader was too slow".into(),
            stack: String::new(),
        })
    });
    for line in gap.iter().chain(&batch.lines) {
        if let Ok(json) = serde_json::to_vec(&**line) {
            bytes.extend(json);
            bytes.push(b'\n');
        }
    }
    bytes
}
