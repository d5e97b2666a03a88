//! Builds and their events.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, put};
use serde_json::{Map, Value, json};

use super::{
    Answered, BAD_REQUEST, Call, NOT_FOUND, Refused, empty, forbidden, ok, unauthorized, without_nulls,
};
use crate::App;
use crate::page::{self, Window};
use crate::state::{Build, Model, Role};

pub(super) fn routes() -> Router<Arc<App>> {
    const B: &str = "/api/v1/builds/{build}";
    let at = |path: &str| format!("{B}{path}");
    Router::new()
        .route("/api/v1/builds", get(list))
        .route("/api/v1/teams/{team}/builds", get(list_of_team))
        .route(
            "/api/v1/teams/{team}/pipelines/{pipeline}/builds",
            get(list_of_pipeline),
        )
        .route(B, get(show))
        .route(&at("/plan"), get(plan))
        .route(&at("/resources"), get(resources))
        .route(&at("/preparation"), get(preparation))
        .route(&at("/artifacts"), get(artifacts))
        .route(&at("/abort"), put(abort))
        .route(&at("/comment"), put(comment))
        .route(&at("/events"), get(events))
}

/// A build as lists of a team's, a pipeline's or all builds have it, and new ones are answered: without its comment.
pub(super) fn shown(model: &Model, build: &Build) -> Value {
    let pipeline = build.pipeline_id.and_then(|id| model.pipeline_by_id(id));
    let job = model.jobs.iter().find(|j| Some(j.id) == build.job_id);
    let first = build.rerun_of.and_then(|(id, _)| model.builds.get(&id));
    without_nulls(json!({
        "id": build.id, "team_name": model.team_name(build.team_id), "name": build.name, "status": build.status,
        "api_url": format!("/api/v1/builds/{}", build.id),
        "job_name": job.map(|j| &j.name), "resource_name": build.resource,
        "pipeline_id": build.pipeline_id, "pipeline_name": pipeline.map(|p| &p.name),
        "pipeline_instance_vars": pipeline.and_then(|p| p.instance_vars.as_ref()),
        "start_time": build.start_time, "end_time": build.end_time,
        "rerun_number": build.rerun_of.map(|r| r.1),
        "rerun_of": first.map(|b| json!({"id": b.id, "name": b.name})),
        "created_by": build.created_by,
    }))
}

/// A build alone or among its job's: those of its team see the comment.
pub(super) fn commented(call: &Call, model: &Model, build: &Build) -> Value {
    let mut value = shown(model, build);
    if !build.comment.is_empty() && call.may_see(model, build.team_id) {
        value["comment"] = build.comment.as_str().into();
    }
    value
}

/// A build as lists of jobs and resources mention it.
pub(super) fn summary(model: &Model, build: &Build) -> Value {
    let mut value = shown(model, build);
    if let Value::Object(map) = &mut value {
        for key in [
            "api_url",
            "resource_name",
            "rerun_number",
            "rerun_of",
            "created_by",
        ] {
            map.remove(key);
        }
    }
    value
}

/// The part of these builds (ids upwards) that the query asks for.
pub(super) fn page(
    call: &Call,
    model: &Model,
    ids: &[u64],
    shown: impl Fn(&Model, &Build) -> Value,
) -> Answered {
    let window = Window::of(|key| call.query(key));
    let page = page::cut(ids, window);
    let items: Vec<Value> = page
        .ids
        .iter()
        .filter_map(|id| model.builds.get(id))
        .map(|b| shown(model, b))
        .collect();
    call.paged(&page, window.limit, &items)
}

fn visible(call: &Call, model: &Model, build: &Build) -> bool {
    let public = build
        .pipeline_id
        .and_then(|id| model.pipeline_by_id(id))
        .is_some_and(|p| p.public);
    public || call.may_see(model, build.team_id)
}

/// Checks are not listed, as on the real one.
fn ids(model: &Model, which: impl Fn(&Build) -> bool) -> Vec<u64> {
    model
        .builds
        .values()
        .filter(|b| b.resource.is_none() && which(b))
        .map(|b| b.id)
        .collect()
}

async fn list(call: Call) -> Answered {
    let model = call.model();
    page(&call, &model, &ids(&model, |b| visible(&call, &model, b)), shown)
}

async fn list_of_team(call: Call) -> Answered {
    let model = call.model();
    let team = call.team(&model, Role::Viewer)?;
    page(&call, &model, &ids(&model, |b| b.team_id == team), shown)
}

async fn list_of_pipeline(call: Call) -> Answered {
    let model = call.model();
    let pipeline = call.shown(&model)?.id;
    page(
        &call,
        &model,
        &ids(&model, |b| b.pipeline_id == Some(pipeline)),
        shown,
    )
}

/// The build in the path, for one who may look at it.
fn find<'m>(call: &Call, model: &'m Model) -> Result<&'m Build, Refused> {
    let id: u64 = call.param("build").parse().map_err(|_| NOT_FOUND)?;
    let build = model.builds.get(&id).ok_or(NOT_FOUND)?;
    match &call.user {
        _ if visible(call, model, build) => Ok(build),
        None => Err(unauthorized()),
        Some(_) => Err(forbidden()),
    }
}

/// The build in the path, for one who may act on it.
fn own(call: &Call, model: &Model) -> Result<u64, Refused> {
    let user = call.user()?;
    let id: u64 = call.param("build").parse().map_err(|_| NOT_FOUND)?;
    let team = model.builds.get(&id).ok_or(NOT_FOUND)?.team_id;
    if model.may(user, model.team_name(team), Role::Operator) {
        Ok(id)
    } else {
        Err(forbidden())
    }
}

async fn show(call: Call) -> Answered {
    let model = call.model();
    ok(&commented(&call, &model, find(&call, &model)?))
}

async fn plan(call: Call) -> Answered {
    let model = call.model();
    let build = find(&call, &model)?;
    if build.plan.is_null() {
        return Err(NOT_FOUND);
    }
    ok(&json!({"schema": "exec.v2", "plan": build.plan}))
}

async fn resources(call: Call) -> Answered {
    let model = call.model();
    let build = find(&call, &model)?;
    let input = |(name, version): &(String, _)| json!({"name": name, "version": version, "pipeline_id": build.pipeline_id, "first_occurrence": false});
    ok(&json!({
        "inputs": build.inputs.iter().map(input).collect::<Vec<_>>(),
        "outputs": build.outputs.iter().map(|name| json!({"name": name, "version": {}})).collect::<Vec<_>>(),
    }))
}

async fn preparation(call: Call) -> Answered {
    let model = call.model();
    let build = find(&call, &model)?;
    let state = |blocks: bool| if blocks { "blocking" } else { "not_blocking" };
    let waiting = !build.status.ended() && build.plan.is_null();
    let job = model
        .jobs
        .iter()
        .find(|j| Some(j.id) == build.job_id)
        .filter(|_| waiting);
    let missing = job.and_then(|j| model.inputs(j).err()).unwrap_or_default();
    let each = |value: &str| {
        missing
            .iter()
            .map(|name| (name.clone(), value.into()))
            .collect::<Map<_, Value>>()
    };
    let paused = build
        .pipeline_id
        .and_then(|id| model.pipeline_by_id(id))
        .is_some_and(|p| p.paused);
    ok(&json!({
        "build_id": build.id,
        "paused_pipeline": state(waiting && paused),
        "paused_job": state(job.is_some_and(|j| j.paused.is_some())),
        "max_running_builds": "not_blocking",
        "inputs": each("blocking"),
        "inputs_satisfied": state(!missing.is_empty()),
        "missing_input_reasons": each("latest version of resource not found"),
    }))
}

async fn artifacts(call: Call) -> Answered {
    find(&call, &call.model())?;
    ok(&json!([]))
}

async fn abort(call: Call) -> Answered {
    let mut model = call.model();
    let id = own(&call, &model)?;
    model.abort(id);
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn comment(call: Call, body: Bytes) -> Answered {
    let mut model = call.model();
    let id = own(&call, &model)?;
    let body: Value = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    if let Some(build) = model.builds.get_mut(&id) {
        build.comment = body["comment"].as_str().unwrap_or_default().to_owned();
    }
    // So it is: JSON that is not there.
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/json")]).into_response())
}

/// Server-sent events: all so far, all to come, `end`; then open until the client closes.
async fn events(call: Call, headers: HeaderMap) -> Answered {
    let id = find(&call, &call.model())?.id;
    let next = match headers.get("last-event-id") {
        None => 0,
        Some(last) => last
            .to_str()
            .ok()
            .and_then(|l| l.parse::<usize>().ok())
            .ok_or(BAD_REQUEST)?
            .saturating_add(1),
    };
    let steps = call.app.steps.subscribe();
    let open = OpenStream::new(&call.app);
    let stream = futures::stream::unfold(
        (open, steps, Some(next)),
        move |(open, mut steps, next)| async move {
            let app = &open.0;
            let Some(next) = next else {
                // Counted as open for as long as the client stays.
                return std::future::pending().await;
            };
            loop {
                let (text, after, ended) = frames(&app.model(), id, next)?;
                if !text.is_empty() {
                    app.meter.sent(&text);
                    let follows = (!ended).then_some(after);
                    return Some((Ok::<_, std::convert::Infallible>(text), (open, steps, follows)));
                }
                steps.changed().await.ok()?;
            }
        },
    );
    let kind = [
        (header::CONTENT_TYPE.as_str(), "text/event-stream; charset=utf-8"),
        ("x-atc-stream-version", "2.0"),
        ("cache-control", "no-cache, no-store, must-revalidate"),
    ];
    Ok((kind, Body::from_stream(stream)).into_response())
}

/// A stream somebody listens to.
struct OpenStream(Arc<App>);

impl OpenStream {
    fn new(app: &Arc<App>) -> Self {
        app.open_streams.fetch_add(1, Ordering::SeqCst);
        Self(app.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open_streams.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The frames from this event on, the number of the next, and whether that was all; `None` when the build is gone.
fn frames(model: &Model, id: u64, from: usize) -> Option<(String, usize, bool)> {
    let build = model.builds.get(&id)?;
    let mut text: String = build
        .events
        .iter()
        .enumerate()
        .skip(from)
        .map(|(n, event)| format!("id: {n}\nevent: event\ndata: {event}\n\n"))
        .collect();
    let ended = build.status.ended();
    let next = build.events.len().max(from);
    if ended {
        text.push_str(&format!("id: {next}\nevent: end\ndata\n\n"));
    }
    Some((text, next, ended))
}
