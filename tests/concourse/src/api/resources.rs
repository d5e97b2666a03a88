//! Resources and their versions.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get, post, put};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Answered, BAD_REQUEST, Call, INTERNAL, NOT_FOUND, Refused, builds, done, ok, unauthorized, without_nulls,
};
use crate::App;
use crate::page::{self, Window};
use crate::state::{InstanceVars, Model, Pipeline, Resource, Role, Trigger, Version};

pub(super) fn routes() -> Router<Arc<App>> {
    const R: &str = "/api/v1/teams/{team}/pipelines/{pipeline}/resources/{resource}";
    let at = |path: &str| format!("{R}{path}");
    Router::new()
        .route("/api/v1/resources", get(list_all))
        .route("/api/v1/teams/{team}/pipelines/{pipeline}/resources", get(list))
        .route(R, get(show))
        .route(&at("/check"), post(check))
        .route(&at("/check/webhook"), post(webhook))
        .route(&at("/versions"), get(versions).delete(clear_versions))
        .route(&at("/versions/{version}"), get(version))
        .route(&at("/versions/{version}/enable"), put(enable))
        .route(&at("/versions/{version}/disable"), put(disable))
        .route(&at("/versions/{version}/pin"), put(pin))
        .route(&at("/unpin"), put(unpin))
        .route(&at("/pin_comment"), put(pin_comment))
        .route(&at("/cache"), delete(clear_cache))
}

fn shown(model: &Model, pipeline: &Pipeline, resource: &Resource) -> Value {
    let config = model.resource_config(resource);
    let in_config = config.get("version");
    let pinned = resource
        .pinned
        .and_then(|id| resource.versions.iter().find(|v| v.id == id))
        .map(|v| json!(v.version));
    let check = resource
        .check
        .and_then(|id| model.builds.get(&id))
        .map(|b| builds::summary(model, b));
    without_nulls(json!({
        "name": resource.name, "pipeline_id": pipeline.id, "pipeline_name": pipeline.name,
        "pipeline_instance_vars": pipeline.instance_vars, "team_name": model.team_name(pipeline.team_id),
        "type": config["type"], "last_checked": resource.last_checked, "icon": config["icon"],
        "pinned_version": in_config.cloned().or(pinned), "pinned_in_config": in_config.map(|_| true),
        "pin_comment": Some(&resource.pin_comment).filter(|c| !c.is_empty()), "build": check,
    }))
}

async fn list_all(call: Call) -> Answered {
    let model = call.model();
    let seen = model
        .pipelines
        .iter()
        .filter(|p| p.public || call.may_see(&model, p.team_id));
    let model = &model;
    ok(&seen
        .flat_map(|p| model.resources_of(p).map(move |r| shown(model, p, r)))
        .collect::<Vec<_>>())
}

async fn list(call: Call) -> Answered {
    let model = call.model();
    let pipeline = call.shown(&model)?;
    ok(&model
        .resources_of(pipeline)
        .map(|r| shown(&model, pipeline, r))
        .collect::<Vec<_>>())
}

fn find<'m>(call: &Call, model: &'m Model, pipeline: &Pipeline) -> Result<&'m Resource, Refused> {
    model
        .resource(pipeline.id, call.param("resource"))
        .ok_or(NOT_FOUND)
}

/// The resource in the path, to change.
fn own<'m>(call: &Call, model: &'m mut Model) -> Result<&'m mut Resource, Refused> {
    let pipeline = call.live(model, Role::Operator)?.id;
    model
        .resource_mut(pipeline, call.param("resource"))
        .ok_or(NOT_FOUND)
}

async fn show(call: Call) -> Answered {
    let model = call.model();
    let pipeline = call.shown(&model)?;
    ok(&shown(&model, pipeline, find(&call, &model, pipeline)?))
}

#[derive(Deserialize)]
struct From {
    #[serde(rename = "from")]
    _from: Option<InstanceVars>,
}

fn start_check(model: &mut Model, pipeline: u64, resource: &str) -> Answered {
    let id = model
        .trigger(Trigger::Check(pipeline, resource), None)
        .ok_or(INTERNAL)?;
    let build = builds::shown(model, model.builds.get(&id).ok_or(INTERNAL)?);
    // So it is: the real one does not say that it is JSON.
    Ok((
        StatusCode::CREATED,
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        build.to_string(),
    )
        .into_response())
}

async fn check(call: Call, body: Bytes) -> Answered {
    let mut model = call.model();
    let pipeline = call.live(&model, Role::Operator)?;
    serde_json::from_slice::<From>(&body).map_err(|_| BAD_REQUEST)?;
    let (pipeline, resource) = (pipeline.id, find(&call, &model, pipeline)?.name.clone());
    start_check(&mut model, pipeline, &resource)
}

async fn webhook(call: Call) -> Answered {
    let mut model = call.model();
    let token = call
        .query("webhook_token")
        .filter(|t| !t.is_empty())
        .ok_or(BAD_REQUEST)?;
    let pipeline = call.find_pipeline(&model)?.ok_or(NOT_FOUND)?;
    let resource = find(&call, &model, pipeline)?;
    if model.resource_config(resource)["webhook_token"] != token {
        return Err(unauthorized());
    }
    let (pipeline, resource) = (pipeline.id, resource.name.clone());
    start_check(&mut model, pipeline, &resource)
}

fn version_shown(version: &Version) -> Value {
    json!({"id": version.id, "version": version.version, "enabled": version.enabled})
}

async fn versions(call: Call) -> Answered {
    let model = call.model();
    let resource = find(&call, &model, call.shown(&model)?)?;
    // A filter without a colon filters nothing.
    let filters: Vec<(&str, &str)> = call
        .query
        .iter()
        .filter(|q| q.0 == "filter")
        .filter_map(|q| q.1.split_once(':'))
        .collect();
    let fits = |v: &&Version| {
        filters
            .iter()
            .all(|(key, value)| v.version.get(*key).is_some_and(|found| found == value.trim()))
    };
    let window = Window::of(|key| call.query(key));
    let ids: Vec<u64> = resource.versions.iter().filter(fits).map(|v| v.id).collect();
    let page = page::cut(&ids, window);
    let items = page
        .ids
        .iter()
        .filter_map(|id| resource.versions.iter().find(|v| v.id == *id))
        .map(version_shown);
    call.paged(&page, window.limit, &items.collect::<Vec<_>>())
}

async fn clear_versions(call: Call) -> Answered {
    let mut model = call.model();
    call.admin(&model)?;
    let resource = own(&call, &mut model)?;
    let removed = std::mem::take(&mut resource.versions).len();
    ok(&json!({"versions_removed": removed}))
}

fn version_id(call: &Call) -> Result<u64, Refused> {
    call.param("version").parse().map_err(|_| BAD_REQUEST)
}

async fn version(call: Call) -> Answered {
    let (model, id) = (call.model(), version_id(&call)?);
    let resource = find(&call, &model, call.shown(&model)?)?;
    ok(&version_shown(
        resource.versions.iter().find(|v| v.id == id).ok_or(NOT_FOUND)?,
    ))
}

async fn enable(call: Call) -> Answered {
    set_enabled(&call, true)
}

async fn disable(call: Call) -> Answered {
    set_enabled(&call, false)
}

fn set_enabled(call: &Call, enabled: bool) -> Answered {
    let (mut model, id) = (call.model(), version_id(call)?);
    let resource = own(call, &mut model)?;
    resource
        .versions
        .iter_mut()
        .find(|v| v.id == id)
        .ok_or(NOT_FOUND)?
        .enabled = enabled;
    done()
}

async fn pin(call: Call) -> Answered {
    let (mut model, id) = (call.model(), version_id(&call)?);
    let pipeline = call.live(&model, Role::Operator)?;
    let resource = find(&call, &model, pipeline)?;
    // In both cases the real one fails rather than refuses.
    if model.resource_config(resource).get("version").is_some()
        || !resource.versions.iter().any(|v| v.id == id)
    {
        return Err(INTERNAL);
    }
    let resource = own(&call, &mut model)?;
    resource.pinned = Some(id);
    resource.pin_comment.clear();
    done()
}

async fn unpin(call: Call) -> Answered {
    let mut model = call.model();
    let resource = own(&call, &mut model)?;
    resource.pin_comment.clear();
    // What is not pinned cannot be unpinned.
    resource.pinned.take().ok_or(INTERNAL)?;
    done()
}

async fn pin_comment(call: Call, body: Bytes) -> Answered {
    let mut model = call.model();
    let resource = own(&call, &mut model)?;
    let body: Value = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    if resource.pinned.is_some() {
        resource.pin_comment = body["pin_comment"].as_str().unwrap_or_default().to_owned();
    }
    done()
}

async fn clear_cache(call: Call) -> Answered {
    let model = call.model();
    find(&call, &model, call.live(&model, Role::Operator)?)?;
    ok(&json!({"caches_removed": 0}))
}
