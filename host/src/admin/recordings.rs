//! Recordings and traces, for `ostler record` and `ostler trace`.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::{Query, State},
    http::{Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::{Admin, question::Question};
use crate::{
    kube::key::ObjectRef,
    plugin,
    recording::{FollowEvent, FollowKind, FollowStream, format::Summary},
    schedule::{dispatcher::Cause, queue::Priority},
};

/// Interval of empty lines, by which a closed connection is noticed.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Query parameters of a stream.
#[derive(Deserialize)]
pub struct StreamQuery {
    /// Number of reconciles; unlimited by default.
    count: Option<usize>,
}

/// The recordings, newest first.
pub async fn recordings(State(admin): State<Admin>) -> Json<Vec<Summary>> {
    let recordings = admin.services.recordings.list();
    Json(recordings.iter().map(|recorded| recorded.summary()).collect())
}

/// The last recording of an object.
pub async fn recording(State(admin): State<Admin>, Query(question): Query<Question>) -> Response {
    let found = question.find(&list_targets(&admin)).and_then(|key| {
        let last = admin.services.recordings.last(&key);
        last.ok_or_else(|| {
            format!("there is no recording of {key}: without --last the command waits for its next reconcile")
        })
    });
    match found {
        Ok(recorded) => Json(recorded.to_recording()).into_response(),
        Err(message) => error_response(StatusCode::NOT_FOUND, &message),
    }
}

/// The next reconciles of an object as recordings, one per line. A POST also triggers a reconcile.
pub async fn record(
    method: Method,
    State(admin): State<Admin>,
    Query(question): Query<Question>,
    Query(stream): Query<StreamQuery>,
) -> Response {
    let (key, following) = match start_following(&admin, &question, FollowKind::Recordings) {
        Ok(following) => following,
        Err(refused) => return refused,
    };
    // A plugin without an object has messages only, which come by themselves.
    if method == Method::POST && admin.stats.object(&key).is_some() {
        admin
            .services
            .dispatcher
            .enqueue(&key, Priority::High, Cause::Manual);
    }
    stream_response(following, stream.count.unwrap_or(usize::MAX))
}

/// The reconciles of an object live, one host call per line.
pub async fn trace(State(admin): State<Admin>, Query(question): Query<Question>) -> Response {
    match start_following(&admin, &question, FollowKind::Lines) {
        Ok((_, following)) => stream_response(following, usize::MAX),
        Err(refused) => refused,
    }
}

/// The objects whose calls are recorded: those that are reconciled, and the plugins, for whose messages there is no other. A
/// plugin of the plugin directory has no object of its own.
fn list_targets(admin: &Admin) -> Vec<ObjectRef> {
    let mut targets = admin.stats.keys();
    for serving in admin.registry.serving() {
        let key = ObjectRef::new(plugin::kind(), "", serving.name());
        if !targets.contains(&key) {
            targets.push(key);
        }
    }
    targets
}

fn start_following(
    admin: &Admin,
    question: &Question,
    kind: FollowKind,
) -> Result<(ObjectRef, FollowStream), Response> {
    let key = question
        .find(&list_targets(admin))
        .map_err(|message| error_response(StatusCode::NOT_FOUND, &message))?;
    if admin.services.fence.term().is_none() {
        let message = "this host is a standby and reconciles nothing: query the leader";
        return Err(error_response(StatusCode::CONFLICT, message));
    }
    let following = admin.services.recordings.follow(&key, kind);
    Ok((key, following))
}

fn error_response(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "message": message }))).into_response()
}

/// Streams events as JSON lines until the given number of recordings.
fn stream_response(following: FollowStream, count: usize) -> Response {
    let lines = futures::stream::unfold((following, count), async |(mut following, left)| {
        if left == 0 {
            return None;
        }
        let (mut line, left) = match tokio::time::timeout(HEARTBEAT_INTERVAL, following.next()).await {
            Err(_) => (Vec::new(), left),
            Ok(None) => return None,
            Ok(Some(FollowEvent::Line(line))) => (serde_json::to_vec(&line).ok()?, left),
            Ok(Some(FollowEvent::Recording(recorded))) => {
                (serde_json::to_vec(&recorded.to_recording()).ok()?, left - 1)
            }
        };
        line.push(b'\n');
        Some((Ok::<_, Infallible>(Bytes::from(line)), (following, left)))
    });
    let kind = [(header::CONTENT_TYPE, "application/jsonl")];
    (kind, Body::from_stream(Box::pin(lines))).into_response()
}
