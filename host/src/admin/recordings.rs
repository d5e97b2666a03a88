//! Recordings and traces, for `ostler record` and `ostler trace`.

use std::{collections::HashSet, convert::Infallible, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::{Extension, Query, State},
    http::{Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde::Deserialize;

use super::{
    Admin,
    access::{AccessRefusal, RECORD, Requester},
    question::Question,
};
use crate::{
    kube::key::ObjectRef,
    plugin,
    recording::{FollowEvent, FollowKind, FollowStream, format::RecordingSummary},
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

/// The recordings of objects that the requester may record, newest first.
pub async fn recordings(
    State(admin): State<Admin>,
    Extension(requester): Extension<Requester>,
) -> Result<Json<Vec<RecordingSummary>>, AccessRefusal> {
    let recordings = admin.services.recordings.list();
    let keys = recordings.iter().map(|recorded| recorded.key().clone()).collect();
    let visible: HashSet<ObjectRef> = requester
        .retain_visible(RECORD, keys)
        .await?
        .into_iter()
        .collect();
    let visible = recordings
        .iter()
        .filter(|recorded| visible.contains(recorded.key()));
    Ok(Json(visible.map(|recorded| recorded.summary()).collect()))
}

/// The last recording of an object.
pub async fn recording(
    State(admin): State<Admin>,
    Extension(requester): Extension<Requester>,
    Query(question): Query<Question>,
) -> Result<Response, AccessRefusal> {
    let key = find_target(&admin, &requester, &question).await?;
    let last = admin.services.recordings.last(&key).ok_or_else(|| {
        let message = format!(
            "there is no recording of {key}: without --last the command waits for its next reconcile"
        );
        AccessRefusal(StatusCode::NOT_FOUND, message)
    })?;
    Ok(Json(last.to_recording()).into_response())
}

/// The next reconciles of an object as recordings, one per line. A POST also triggers a reconcile, as a change of the object would.
pub async fn record(
    method: Method,
    State(admin): State<Admin>,
    Extension(requester): Extension<Requester>,
    Query(question): Query<Question>,
    Query(stream): Query<StreamQuery>,
) -> Result<Response, AccessRefusal> {
    let (key, following) = start_following(&admin, &requester, &question, FollowKind::Recordings).await?;
    // A plugin without an object has messages only, which come by themselves.
    if method == Method::POST && admin.stats.object(&key).is_some() {
        requester.check_object("patch", &key).await?;
        admin
            .services
            .dispatcher
            .enqueue(&key, Priority::High, Cause::Manual);
    }
    Ok(stream_response(following, stream.count.unwrap_or(usize::MAX)))
}

/// The reconciles of an object live, one host call per line.
pub async fn trace(
    State(admin): State<Admin>,
    Extension(requester): Extension<Requester>,
    Query(question): Query<Question>,
) -> Result<Response, AccessRefusal> {
    let (_, following) = start_following(&admin, &requester, &question, FollowKind::Lines).await?;
    Ok(stream_response(following, usize::MAX))
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

/// Finds the object or plugin of a question, which the requester must be allowed to record.
async fn find_target(
    admin: &Admin,
    requester: &Requester,
    question: &Question,
) -> Result<ObjectRef, AccessRefusal> {
    admin
        .find_visible(requester, RECORD, question, list_targets(admin))
        .await
}

async fn start_following(
    admin: &Admin,
    requester: &Requester,
    question: &Question,
    kind: FollowKind,
) -> Result<(ObjectRef, FollowStream), AccessRefusal> {
    let key = find_target(admin, requester, question).await?;
    admin.check_leads()?;
    let following = admin.services.recordings.follow(&key, kind);
    Ok((key, following))
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
