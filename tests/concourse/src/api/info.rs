//! Facts of the server, the user who asks, the wall.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::get;
use serde_json::{Map, Value, json};

use super::auth::subject;
use super::{Answered, BAD_REQUEST, Call, done, ok};
use crate::state::Wall;
use crate::{App, VERSION, WORKER_VERSION};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/info", get(info))
        .route("/api/v1/user", get(user))
        .route("/api/v1/wall", get(wall).put(set_wall).delete(clear_wall))
}

async fn info(call: Call) -> Answered {
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
    ok(
        &json!({"version": VERSION, "worker_version": WORKER_VERSION, "feature_flags": flags, "external_url": call.app.url}),
    )
}

async fn user(call: Call) -> Answered {
    let (model, user) = (call.model(), call.user()?);
    let roles = model
        .teams
        .iter()
        .map(|t| (t.name.clone(), model.roles(user, &t.name)));
    let teams: Map<String, Value> = roles
        .filter(|r| !r.1.is_empty())
        .map(|(team, roles)| (team, json!(roles)))
        .collect();
    ok(&json!({
        "sub": subject(user), "name": user, "user_id": user, "user_name": "", "email": user,
        "is_admin": model.is_admin(user), "is_system": false, "teams": teams,
        "connector": "local", "display_user_id": user,
    }))
}

async fn wall(call: Call) -> Answered {
    let model = call.model();
    let mut shown = json!({});
    if let Some(wall) = model.wall() {
        shown["message"] = wall.message.as_str().into();
        if let Some(until) = wall.until {
            let left = until.saturating_sub(model.now).as_nanos();
            shown["TTL"] = u64::try_from(left).unwrap_or(u64::MAX).into();
        }
    }
    ok(&shown)
}

async fn set_wall(call: Call, body: Bytes) -> Answered {
    let mut model = call.model();
    call.admin(&model)?;
    let body: Value = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    let lifetime = body["TTL"]
        .as_u64()
        .filter(|ttl| *ttl > 0)
        .map(Duration::from_nanos);
    model.wall = Some(Wall {
        message: body["message"].as_str().unwrap_or_default().to_owned(),
        until: lifetime.map(|ttl| model.now.saturating_add(ttl)),
    });
    done()
}

async fn clear_wall(call: Call) -> Answered {
    let mut model = call.model();
    call.admin(&model)?;
    model.wall = None;
    done()
}
