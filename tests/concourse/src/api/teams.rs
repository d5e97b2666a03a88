//! Teams.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::{get, put};
use serde::Deserialize;
use serde_json::json;

use super::{
    ApiError, ApiResult, BAD_REQUEST, Call, INTERNAL_ERROR, NOT_FOUND, empty_response, forbidden,
    json_with_warnings, ok_json, parse_rename,
};
use crate::App;
use crate::config;
use crate::state::{SimulatedRole, SimulatedTeamAuth};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/teams", get(list_teams))
        .route(
            "/api/v1/teams/{team}",
            get(get_team).put(set_team).delete(delete_team),
        )
        .route("/api/v1/teams/{team}/rename", put(rename_team))
}

async fn list_teams(call: Call) -> ApiResult {
    let model = call.model();
    ok_json(
        &model
            .teams
            .iter()
            .filter(|t| call.can_view(&model, t.id))
            .collect::<Vec<_>>(),
    )
}

async fn get_team(call: Call) -> ApiResult {
    let model = call.model();
    call.require_team(&model, SimulatedRole::Viewer)?;
    ok_json(&model.team(call.param("team")).ok_or(NOT_FOUND)?)
}

#[derive(Deserialize)]
struct SetTeamRequest {
    #[serde(default)]
    auth: SimulatedTeamAuth,
}

async fn set_team(call: Call, body: Bytes) -> ApiResult {
    let mut model = call.model();
    let (user, name) = (call.require_user()?, call.param("team"));
    let wanted: SetTeamRequest = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    if wanted.auth.is_empty()
        || wanted
            .auth
            .values()
            .any(|members| members.values().all(Vec::is_empty))
    {
        return Err(BAD_REQUEST);
    }
    let allowed = if model.team(name).is_some() {
        model.has_role(user, name, SimulatedRole::Owner)
    } else {
        model.is_admin(user)
    };
    if !allowed {
        return Err(forbidden());
    }
    let warnings: Vec<_> = config::check_identifier(name, "team")
        .map_err(|_| BAD_REQUEST)?
        .into_iter()
        .collect();
    let (team, created) = model.set_team(name, wanted.auth);
    let status = if created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(json_with_warnings(status, json!({"team": team}), &warnings))
}

async fn rename_team(call: Call, body: Bytes) -> ApiResult {
    let mut model = call.model();
    call.require_team(&model, SimulatedRole::Owner)?;
    let (name, warning) = parse_rename(&body, "team", INTERNAL_ERROR)?;
    if !model.rename_team(call.param("team"), &name) {
        return Err(INTERNAL_ERROR);
    }
    Ok(json_with_warnings(StatusCode::OK, json!({}), warning.as_slice()))
}

async fn delete_team(call: Call) -> ApiResult {
    let mut model = call.model();
    call.require_admin(&model)?;
    let name = call.param("team");
    model.team(name).ok_or(NOT_FOUND)?;
    // Concourse refuses to delete the last admin team.
    if name == "main" {
        return Err(ApiError::Empty(StatusCode::FORBIDDEN));
    }
    model.delete_team(name);
    Ok(empty_response(StatusCode::NO_CONTENT))
}
