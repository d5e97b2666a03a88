//! Control endpoints `/_sim/…` for tests in other processes, with JSON bodies.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::state::{ConcourseModel, SimulatedInstanceVars};
use crate::{App, FaultAction};

type HttpError = (StatusCode, String);

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/_sim/state", get(get_state))
        .route("/_sim/counters", get(get_counters).delete(reset_counters))
        .route("/_sim/requests", get(get_requests))
        .route("/_sim/faults", post(add_fault).delete(clear_faults))
        .route("/_sim/faults/release", post(release_hanging))
        .route("/_sim/latency", post(set_latency))
        .route("/_sim/outage", post(set_outage))
        .route("/_sim/tokens", delete(expire_tokens))
        .route("/_sim/password", post(set_password))
        .route("/_sim/step", post(step_clock))
        .route("/_sim/version", post(add_version))
        .route("/_sim/worker", post(set_worker))
}

/// Returns the state without credentials, for assertions.
pub(crate) fn state_json(model: &ConcourseModel) -> Value {
    let pipelines = |team: u64| {
        let of_team = model.pipelines.iter().filter(move |p| p.team_id == team);
        of_team.map(|p| json!(p)).collect::<Vec<_>>()
    };
    let teams = model.teams.iter().map(|team| {
        let mut shown = json!(team);
        shown["pipelines"] = pipelines(team.id).into();
        shown
    });
    let builds = model.builds.values().map(|b| {
        json!({"id": b.id, "pipeline_id": b.pipeline_id, "job_id": b.job_id, "name": b.name, "status": b.status, "comment": b.comment, "events": b.events.len()})
    });
    json!({
        "teams": teams.collect::<Vec<_>>(),
        "builds": builds.collect::<Vec<_>>(),
        "workers": model.workers,
        "wall": model.wall().map(|w| &w.message),
    })
}

async fn get_state(State(app): State<Arc<App>>) -> Json<Value> {
    Json(state_json(&app.model()))
}

async fn get_counters(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!(app.meter.counters()))
}

async fn get_requests(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!(app.meter.requests()))
}

async fn reset_counters(State(app): State<Arc<App>>) -> StatusCode {
    app.meter.reset();
    StatusCode::NO_CONTENT
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    /// Number of requests; all later requests by default.
    times: Option<usize>,
    #[serde(default = "any_method")]
    method: String,
    path: String,
    answer: FaultAction,
}

fn any_method() -> String {
    "*".to_owned()
}

async fn add_fault(State(app): State<Arc<App>>, Json(fault): Json<Fault>) -> Result<StatusCode, HttpError> {
    let times = fault.times.unwrap_or(usize::MAX);
    app.faults
        .try_add_rule(times, &fault.method, &fault.path, fault.answer)
        .map_err(|e| (StatusCode::BAD_REQUEST, e.to_string()))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn clear_faults(State(app): State<Arc<App>>) -> StatusCode {
    app.faults.clear();
    StatusCode::NO_CONTENT
}

async fn release_hanging(State(app): State<Arc<App>>) -> StatusCode {
    app.faults.release_hanging();
    StatusCode::NO_CONTENT
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Latency {
    milliseconds: u64,
}

async fn set_latency(State(app): State<Arc<App>>, Json(latency): Json<Latency>) -> StatusCode {
    app.faults
        .set_latency(Duration::from_millis(latency.milliseconds));
    StatusCode::NO_CONTENT
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Outage {
    on: bool,
}

async fn set_outage(State(app): State<Arc<App>>, Json(outage): Json<Outage>) -> StatusCode {
    app.faults.set_outage(outage.on);
    StatusCode::NO_CONTENT
}

async fn expire_tokens(State(app): State<Arc<App>>) -> StatusCode {
    app.model().expire_tokens();
    StatusCode::NO_CONTENT
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Password {
    user: String,
    password: String,
}

async fn set_password(State(app): State<Arc<App>>, Json(new): Json<Password>) -> StatusCode {
    app.model().set_password(&new.user, &new.password);
    StatusCode::NO_CONTENT
}

async fn step_clock(State(app): State<Arc<App>>) -> StatusCode {
    app.step();
    StatusCode::NO_CONTENT
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Version {
    team: String,
    pipeline: String,
    instance_vars: Option<SimulatedInstanceVars>,
    resource: String,
    version: SimulatedInstanceVars,
}

async fn add_version(State(app): State<Arc<App>>, Json(new): Json<Version>) -> StatusCode {
    let mut model = app.model();
    let pipeline = model
        .pipeline(&new.team, &new.pipeline, new.instance_vars.as_ref())
        .map(|p| p.id);
    match pipeline {
        Some(id) if model.add_version(id, &new.resource, new.version) => StatusCode::NO_CONTENT,
        _ => StatusCode::NOT_FOUND,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Worker {
    name: String,
    state: String,
}

async fn set_worker(State(app): State<Arc<App>>, Json(worker): Json<Worker>) -> StatusCode {
    app.model().set_worker(&worker.name, &worker.state);
    StatusCode::NO_CONTENT
}
