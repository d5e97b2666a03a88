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
    ApiError, ApiResult, BAD_REQUEST, Call, NOT_FOUND, empty_response, forbidden, ok_json, unauthorized,
    without_nulls,
};
use crate::App;
use crate::page::{self, PageRequest};
use crate::state::{ConcourseModel, SimulatedBuild, SimulatedRole};

pub(super) fn routes() -> Router<Arc<App>> {
    const BUILD_PATH: &str = "/api/v1/builds/{build}";
    let below = |path: &str| format!("{BUILD_PATH}{path}");
    Router::new()
        .route("/api/v1/builds", get(list_builds))
        .route("/api/v1/teams/{team}/builds", get(list_team_builds))
        .route(
            "/api/v1/teams/{team}/pipelines/{pipeline}/builds",
            get(list_pipeline_builds),
        )
        .route(BUILD_PATH, get(get_build))
        .route(&below("/plan"), get(get_plan))
        .route(&below("/resources"), get(get_resources))
        .route(&below("/preparation"), get(get_preparation))
        .route(&below("/artifacts"), get(list_artifacts))
        .route(&below("/abort"), put(abort_build))
        .route(&below("/comment"), put(set_comment))
        .route(&below("/events"), get(stream_events))
}

/// Returns a build as in lists of a team, a pipeline or all builds, and in the response of a trigger: without its
/// comment.
pub(super) fn build_json(model: &ConcourseModel, build: &SimulatedBuild) -> Value {
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

/// Returns a build as on its own or in the list of its job, with the comment for members of its team.
pub(super) fn build_json_with_comment(call: &Call, model: &ConcourseModel, build: &SimulatedBuild) -> Value {
    let mut value = build_json(model, build);
    if !build.comment.is_empty() && call.can_view(model, build.team_id) {
        value["comment"] = build.comment.as_str().into();
    }
    value
}

/// Returns a build as nested in jobs and resources.
pub(super) fn build_summary(model: &ConcourseModel, build: &SimulatedBuild) -> Value {
    let mut value = build_json(model, build);
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

/// Returns the page of builds that the query selects, from ids in ascending order.
pub(super) fn page_of_builds(
    call: &Call,
    model: &ConcourseModel,
    ids: &[u64],
    to_json: impl Fn(&ConcourseModel, &SimulatedBuild) -> Value,
) -> ApiResult {
    let window = PageRequest::from_query(|key| call.query(key));
    let page = page::cut_page(ids, window);
    let items: Vec<Value> = page
        .ids
        .iter()
        .filter_map(|id| model.builds.get(id))
        .map(|b| to_json(model, b))
        .collect();
    call.page_response(&page, window.limit, &items)
}

fn is_visible(call: &Call, model: &ConcourseModel, build: &SimulatedBuild) -> bool {
    let public = build
        .pipeline_id
        .and_then(|id| model.pipeline_by_id(id))
        .is_some_and(|p| p.public);
    public || call.can_view(model, build.team_id)
}

/// Returns the ids of builds, without checks, which Concourse does not list.
fn build_ids(model: &ConcourseModel, which: impl Fn(&SimulatedBuild) -> bool) -> Vec<u64> {
    model
        .builds
        .values()
        .filter(|b| b.resource.is_none() && which(b))
        .map(|b| b.id)
        .collect()
}

async fn list_builds(call: Call) -> ApiResult {
    let model = call.model();
    page_of_builds(
        &call,
        &model,
        &build_ids(&model, |b| is_visible(&call, &model, b)),
        build_json,
    )
}

async fn list_team_builds(call: Call) -> ApiResult {
    let model = call.model();
    let team = call.require_team(&model, SimulatedRole::Viewer)?;
    page_of_builds(
        &call,
        &model,
        &build_ids(&model, |b| b.team_id == team),
        build_json,
    )
}

async fn list_pipeline_builds(call: Call) -> ApiResult {
    let model = call.model();
    let pipeline = call.visible_pipeline(&model)?.id;
    page_of_builds(
        &call,
        &model,
        &build_ids(&model, |b| b.pipeline_id == Some(pipeline)),
        build_json,
    )
}

/// Returns the build in the path for reading.
fn visible_build<'m>(call: &Call, model: &'m ConcourseModel) -> Result<&'m SimulatedBuild, ApiError> {
    let id: u64 = call.param("build").parse().map_err(|_| NOT_FOUND)?;
    let build = model.builds.get(&id).ok_or(NOT_FOUND)?;
    match &call.user {
        _ if is_visible(call, model, build) => Ok(build),
        None => Err(unauthorized()),
        Some(_) => Err(forbidden()),
    }
}

/// Returns the id of the build in the path, if the user may act on it.
fn operable_build(call: &Call, model: &ConcourseModel) -> Result<u64, ApiError> {
    let user = call.require_user()?;
    let id: u64 = call.param("build").parse().map_err(|_| NOT_FOUND)?;
    let team = model.builds.get(&id).ok_or(NOT_FOUND)?.team_id;
    if model.has_role(user, model.team_name(team), SimulatedRole::Operator) {
        Ok(id)
    } else {
        Err(forbidden())
    }
}

async fn get_build(call: Call) -> ApiResult {
    let model = call.model();
    ok_json(&build_json_with_comment(
        &call,
        &model,
        visible_build(&call, &model)?,
    ))
}

async fn get_plan(call: Call) -> ApiResult {
    let model = call.model();
    let build = visible_build(&call, &model)?;
    if build.plan.is_null() {
        return Err(NOT_FOUND);
    }
    ok_json(&json!({"schema": "exec.v2", "plan": build.plan}))
}

async fn get_resources(call: Call) -> ApiResult {
    let model = call.model();
    let build = visible_build(&call, &model)?;
    let input = |(name, version): &(String, _)| json!({"name": name, "version": version, "pipeline_id": build.pipeline_id, "first_occurrence": false});
    ok_json(&json!({
        "inputs": build.inputs.iter().map(input).collect::<Vec<_>>(),
        "outputs": build.outputs.iter().map(|name| json!({"name": name, "version": {}})).collect::<Vec<_>>(),
    }))
}

async fn get_preparation(call: Call) -> ApiResult {
    let model = call.model();
    let build = visible_build(&call, &model)?;
    let state = |blocks: bool| if blocks { "blocking" } else { "not_blocking" };
    let waiting = !build.status.has_ended() && build.plan.is_null();
    let job = model
        .jobs
        .iter()
        .find(|j| Some(j.id) == build.job_id)
        .filter(|_| waiting);
    let missing = job
        .and_then(|j| model.resolve_inputs(j).err())
        .unwrap_or_default();
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
    ok_json(&json!({
        "build_id": build.id,
        "paused_pipeline": state(waiting && paused),
        "paused_job": state(job.is_some_and(|j| j.paused.is_some())),
        "max_running_builds": "not_blocking",
        "inputs": each("blocking"),
        "inputs_satisfied": state(!missing.is_empty()),
        "missing_input_reasons": each("latest version of resource not found"),
    }))
}

async fn list_artifacts(call: Call) -> ApiResult {
    visible_build(&call, &call.model())?;
    ok_json(&json!([]))
}

async fn abort_build(call: Call) -> ApiResult {
    let mut model = call.model();
    let id = operable_build(&call, &model)?;
    model.abort_build(id);
    Ok(empty_response(StatusCode::NO_CONTENT))
}

async fn set_comment(call: Call, body: Bytes) -> ApiResult {
    let mut model = call.model();
    let id = operable_build(&call, &model)?;
    let body: Value = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    if let Some(build) = model.builds.get_mut(&id) {
        build.comment = body["comment"].as_str().unwrap_or_default().to_owned();
    }
    // Concourse announces JSON here and sends no body.
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/json")]).into_response())
}

/// Streams server-sent events: past ones, future ones, then `end`. The stream stays open until the client closes it.
async fn stream_events(call: Call, headers: HeaderMap) -> ApiResult {
    let id = visible_build(&call, &call.model())?.id;
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
                // Counted as open until the client disconnects.
                return std::future::pending().await;
            };
            loop {
                let (text, after, ended) = format_frames(&app.model(), id, next)?;
                if !text.is_empty() {
                    app.meter.count_frames(&text);
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

/// An open event stream.
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

/// Formats the frames from an event on. Returns them with the number of the next event and whether the build has ended;
/// `None` when the build no longer exists.
fn format_frames(model: &ConcourseModel, id: u64, from: usize) -> Option<(String, usize, bool)> {
    let build = model.builds.get(&id)?;
    let mut text: String = build
        .events
        .iter()
        .enumerate()
        .skip(from)
        .map(|(n, event)| format!("id: {n}\nevent: event\ndata: {event}\n\n"))
        .collect();
    let ended = build.status.has_ended();
    let next = build.events.len().max(from);
    if ended {
        text.push_str(&format!("id: {next}\nevent: end\ndata\n\n"));
    }
    Some((text, next, ended))
}
