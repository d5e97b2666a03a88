//! Server information, the current user, and the wall.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::get;
use serde_json::{Map, Value, json};

use super::auth::encode_subject;
use super::{ApiResult, BAD_REQUEST, Call, ok_empty, ok_json};
use crate::state::Wall;
use crate::{App, CONCOURSE_VERSION, WORKER_VERSION};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/info", get(get_info))
        .route("/api/v1/user", get(get_user))
        .route("/api/v1/wall", get(get_wall).put(set_wall).delete(clear_wall))
}

async fn get_info(call: Call) -> ApiResult {
    let off = [
        "build_rerun",
        "cache_streamed_volumes",
        "global_resources",
        "resource_causality",
    ];
    let flags: Map<String, Value> = off
        .into_iter()
        .map(|flag| (flag.to_owned(), false.into()))
        .collect();
    ok_json(
        &json!({"version": CONCOURSE_VERSION, "worker_version": WORKER_VERSION, "feature_flags": flags, "external_url": call.app.url}),
    )
}

async fn get_user(call: Call) -> ApiResult {
    let (model, user) = (call.model(), call.require_user()?);
    let roles = model
        .teams
        .iter()
        .map(|t| (t.name.clone(), model.roles(user, &t.name)));
    let teams: Map<String, Value> = roles
        .filter(|r| !r.1.is_empty())
        .map(|(team, roles)| (team, json!(roles)))
        .collect();
    let (name, connector) = (&user.name, if user.has_identity { "local" } else { "" });
    ok_json(&json!({
        "sub": encode_subject(name), "name": name, "user_id": name, "user_name": "", "email": name,
        "is_admin": model.is_admin(user), "is_system": false, "teams": teams,
        "connector": connector, "display_user_id": name,
    }))
}

async fn get_wall(call: Call) -> ApiResult {
    let model = call.model();
    let mut shown = json!({});
    if let Some(wall) = model.wall() {
        shown["message"] = wall.message.as_str().into();
        if let Some(until) = wall.until {
            let left = until.saturating_sub(model.now).as_nanos();
            shown["TTL"] = u64::try_from(left).unwrap_or(u64::MAX).into();
        }
    }
    ok_json(&shown)
}

async fn set_wall(call: Call, body: Bytes) -> ApiResult {
    let mut model = call.model();
    call.require_admin(&model)?;
    let body: Value = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    let lifetime = body["TTL"]
        .as_u64()
        .filter(|ttl| *ttl > 0)
        .map(Duration::from_nanos);
    model.wall = Some(Wall {
        message: body["message"].as_str().unwrap_or_default().to_owned(),
        until: lifetime.map(|ttl| model.now.saturating_add(ttl)),
    });
    ok_empty()
}

async fn clear_wall(call: Call) -> ApiResult {
    let mut model = call.model();
    call.require_admin(&model)?;
    model.wall = None;
    ok_empty()
}
