//! Workers.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::{get, put};
use serde::Deserialize;
use serde_json::json;

use super::{ApiError, ApiResult, BAD_REQUEST, Call, NOT_FOUND, forbidden, ok_empty, ok_json};
use crate::App;
use crate::state::{ConcourseModel, SimulatedRole, SimulatedWorker};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/workers", get(list_workers).post(refuse_user))
        .route("/api/v1/workers/{worker}", axum::routing::delete(refuse_user))
        .route("/api/v1/workers/{worker}/heartbeat", put(refuse_user))
        .route("/api/v1/workers/{worker}/land", put(land_worker))
        .route("/api/v1/workers/{worker}/retire", put(retire_worker))
        .route("/api/v1/workers/{worker}/prune", put(prune_worker))
}

async fn list_workers(call: Call) -> ApiResult {
    let model = call.model();
    let user = call.require_user()?;
    let all = model.is_admin(user);
    let seen = model
        .workers
        .iter()
        .filter(|w| all || w.team.is_empty() || model.has_role(user, &w.team, SimulatedRole::Viewer));
    ok_json(&seen.collect::<Vec<_>>())
}

/// Refuses endpoints that need the system token of a worker.
async fn refuse_user(call: Call) -> ApiResult {
    call.require_user()?;
    Err(forbidden())
}

/// Returns the worker in the path, for an admin or an owner of its team.
fn owned_worker<'m>(call: &Call, model: &'m mut ConcourseModel) -> Result<&'m mut SimulatedWorker, ApiError> {
    let (user, name) = (call.require_user()?, call.param("worker"));
    let team = model
        .workers
        .iter()
        .find(|w| w.name == name)
        .map(|w| w.team.clone());
    let allowed = team
        .as_ref()
        .is_some_and(|t| !t.is_empty() && model.has_role(user, t, SimulatedRole::Owner));
    if !allowed && !model.is_admin(user) {
        return Err(forbidden());
    }
    model.workers.iter_mut().find(|w| w.name == name).ok_or(NOT_FOUND)
}

#[derive(Deserialize)]
struct TeamBody {
    #[serde(default)]
    team: String,
}

/// Lands or retires a worker. The body must name the worker's team.
fn set_leaving(call: &Call, body: &[u8], state: &str) -> ApiResult {
    let mut model = call.model();
    let body = serde_json::from_slice::<TeamBody>(body);
    let worker = owned_worker(call, &mut model)?;
    if body.map_err(|_| BAD_REQUEST)?.team != worker.team {
        return Err(BAD_REQUEST);
    }
    state.clone_into(&mut worker.state);
    ok_empty()
}

async fn land_worker(call: Call, body: Bytes) -> ApiResult {
    set_leaving(&call, &body, "landing")
}

async fn retire_worker(call: Call, body: Bytes) -> ApiResult {
    set_leaving(&call, &body, "retiring")
}

async fn prune_worker(call: Call) -> ApiResult {
    let mut model = call.model();
    let worker = owned_worker(&call, &mut model)?;
    if worker.state == "running" {
        return Err(ApiError::Json(
            StatusCode::BAD_REQUEST,
            json!({"stderr": "cannot prune running worker"}),
        ));
    }
    let name = worker.name.clone();
    model.workers.retain(|w| w.name != name);
    ok_empty()
}
