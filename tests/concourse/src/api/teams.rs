//! Teams.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::{get, put};
use serde::Deserialize;
use serde_json::json;

use super::{
    Answered, BAD_REQUEST, Call, INTERNAL, NOT_FOUND, Refused, empty, forbidden, new_name, ok, warned,
};
use crate::App;
use crate::config;
use crate::state::{Auth, Role};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/teams", get(list))
        .route("/api/v1/teams/{team}", get(show).put(set).delete(destroy))
        .route("/api/v1/teams/{team}/rename", put(rename))
}

async fn list(call: Call) -> Answered {
    let model = call.model();
    ok(&model
        .teams
        .iter()
        .filter(|t| call.may_see(&model, t.id))
        .collect::<Vec<_>>())
}

async fn show(call: Call) -> Answered {
    let model = call.model();
    call.team(&model, Role::Viewer)?;
    ok(&model.team(call.param("team")).ok_or(NOT_FOUND)?)
}

#[derive(Deserialize)]
struct Wanted {
    #[serde(default)]
    auth: Auth,
}

async fn set(call: Call, body: Bytes) -> Answered {
    let mut model = call.model();
    let (user, name) = (call.user()?, call.param("team"));
    let wanted: Wanted = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    if wanted.auth.is_empty()
        || wanted
            .auth
            .values()
            .any(|members| members.values().all(Vec::is_empty))
    {
        return Err(BAD_REQUEST);
    }
    let allowed = if model.team(name).is_some() {
        model.may(user, name, Role::Owner)
    } else {
        model.is_admin(user)
    };
    if !allowed {
        return Err(forbidden());
    }
    let warnings: Vec<_> = config::identifier(name, "team")
        .map_err(|_| BAD_REQUEST)?
        .into_iter()
        .collect();
    let (team, created) = model.set_team(name, wanted.auth);
    let status = if created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(warned(status, json!({"team": team}), &warnings))
}

async fn rename(call: Call, body: Bytes) -> Answered {
    let mut model = call.model();
    call.team(&model, Role::Owner)?;
    let (name, warning) = new_name(&body, "team", INTERNAL)?;
    if !model.rename_team(call.param("team"), &name) {
        return Err(INTERNAL);
    }
    Ok(warned(StatusCode::OK, json!({}), warning.as_slice()))
}

async fn destroy(call: Call) -> Answered {
    let mut model = call.model();
    call.admin(&model)?;
    let name = call.param("team");
    model.team(name).ok_or(NOT_FOUND)?;
    // The last team of admins stays.
    if name == "main" {
        return Err(Refused::Empty(StatusCode::FORBIDDEN));
    }
    model.delete_team(name);
    Ok(empty(StatusCode::NO_CONTENT))
}
