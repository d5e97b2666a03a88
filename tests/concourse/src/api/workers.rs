//! Workers.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::{get, put};
use serde::Deserialize;
use serde_json::json;

use super::{Answered, BAD_REQUEST, Call, NOT_FOUND, Refused, done, forbidden, ok};
use crate::App;
use crate::state::{Model, Role, Worker};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/workers", get(list).post(system_only))
        .route("/api/v1/workers/{worker}", axum::routing::delete(system_only))
        .route("/api/v1/workers/{worker}/heartbeat", put(system_only))
        .route("/api/v1/workers/{worker}/land", put(land))
        .route("/api/v1/workers/{worker}/retire", put(retire))
        .route("/api/v1/workers/{worker}/prune", put(prune))
}

async fn list(call: Call) -> Answered {
    let model = call.model();
    let user = call.user()?;
    let all = model.is_admin(user);
    let seen = model
        .workers
        .iter()
        .filter(|w| all || w.team.is_empty() || model.may(user, &w.team, Role::Viewer));
    ok(&seen.collect::<Vec<_>>())
}

/// Workers speak of themselves with tokens no user has.
async fn system_only(call: Call) -> Answered {
    call.user()?;
    Err(forbidden())
}

/// The worker in the path, for an admin or an owner of its team.
fn own<'m>(call: &Call, model: &'m mut Model) -> Result<&'m mut Worker, Refused> {
    let (user, name) = (call.user()?, call.param("worker"));
    let team = model
        .workers
        .iter()
        .find(|w| w.name == name)
        .map(|w| w.team.clone());
    let allowed = team
        .as_ref()
        .is_some_and(|t| !t.is_empty() && model.may(user, t, Role::Owner));
    if !allowed && !model.is_admin(user) {
        return Err(forbidden());
    }
    model.workers.iter_mut().find(|w| w.name == name).ok_or(NOT_FOUND)
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    team: String,
}

/// Lands or retires: the body has to name the worker's team.
fn leave(call: &Call, body: &[u8], state: &str) -> Answered {
    let mut model = call.model();
    let body = serde_json::from_slice::<Body>(body);
    let worker = own(call, &mut model)?;
    if body.map_err(|_| BAD_REQUEST)?.team != worker.team {
        return Err(BAD_REQUEST);
    }
    state.clone_into(&mut worker.state);
    done()
}

async fn land(call: Call, body: Bytes) -> Answered {
    leave(&call, &body, "landing")
}

async fn retire(call: Call, body: Bytes) -> Answered {
    leave(&call, &body, "retiring")
}

async fn prune(call: Call) -> Answered {
    let mut model = call.model();
    let worker = own(&call, &mut model)?;
    if worker.state == "running" {
        return Err(Refused::Json(
            StatusCode::BAD_REQUEST,
            json!({"stderr": "cannot prune running worker"}),
        ));
    }
    let name = worker.name.clone();
    model.workers.retain(|w| w.name != name);
    done()
}
