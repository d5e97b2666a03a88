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
    ApiError, ApiResult, BAD_REQUEST, Call, INTERNAL_ERROR, NOT_FOUND, builds, ok_empty, ok_json,
    unauthorized, without_nulls,
};
use crate::App;
use crate::page::{self, PageRequest};
use crate::state::{
    ConcourseModel, SimulatedInstanceVars, SimulatedPipeline, SimulatedResource, SimulatedRole,
    SimulatedVersion, Trigger,
};

pub(super) fn routes() -> Router<Arc<App>> {
    const RESOURCE_PATH: &str = "/api/v1/teams/{team}/pipelines/{pipeline}/resources/{resource}";
    let below = |path: &str| format!("{RESOURCE_PATH}{path}");
    Router::new()
        .route("/api/v1/resources", get(list_all_resources))
        .route(
            "/api/v1/teams/{team}/pipelines/{pipeline}/resources",
            get(list_resources),
        )
        .route(RESOURCE_PATH, get(get_resource))
        .route(&below("/check"), post(check_resource))
        .route(&below("/check/webhook"), post(check_by_webhook))
        .route(&below("/versions"), get(list_versions).delete(clear_versions))
        .route(&below("/versions/{version}"), get(get_version))
        .route(&below("/versions/{version}/enable"), put(enable_version))
        .route(&below("/versions/{version}/disable"), put(disable_version))
        .route(&below("/versions/{version}/pin"), put(pin_version))
        .route(&below("/unpin"), put(unpin_resource))
        .route(&below("/pin_comment"), put(set_pin_comment))
        .route(&below("/cache"), delete(clear_resource_cache))
}

fn resource_json(
    model: &ConcourseModel,
    pipeline: &SimulatedPipeline,
    resource: &SimulatedResource,
) -> Value {
    let config = model.resource_config(resource);
    let in_config = config.get("version");
    let pinned = resource
        .pinned
        .and_then(|id| resource.versions.iter().find(|v| v.id == id))
        .map(|v| json!(v.version));
    let check = resource
        .check
        .and_then(|id| model.builds.get(&id))
        .map(|b| builds::build_summary(model, b));
    without_nulls(json!({
        "name": resource.name, "pipeline_id": pipeline.id, "pipeline_name": pipeline.name,
        "pipeline_instance_vars": pipeline.instance_vars, "team_name": model.team_name(pipeline.team_id),
        "type": config["type"], "last_checked": resource.last_checked, "icon": config["icon"],
        "pinned_version": in_config.cloned().or(pinned), "pinned_in_config": in_config.map(|_| true),
        "pin_comment": Some(&resource.pin_comment).filter(|c| !c.is_empty()), "build": check,
    }))
}

async fn list_all_resources(call: Call) -> ApiResult {
    let model = call.model();
    let seen = model
        .pipelines
        .iter()
        .filter(|p| p.public || call.can_view(&model, p.team_id));
    let model = &model;
    ok_json(
        &seen
            .flat_map(|p| model.resources_of(p).map(move |r| resource_json(model, p, r)))
            .collect::<Vec<_>>(),
    )
}

async fn list_resources(call: Call) -> ApiResult {
    let model = call.model();
    let pipeline = call.visible_pipeline(&model)?;
    ok_json(
        &model
            .resources_of(pipeline)
            .map(|r| resource_json(&model, pipeline, r))
            .collect::<Vec<_>>(),
    )
}

fn find_resource<'m>(
    call: &Call,
    model: &'m ConcourseModel,
    pipeline: &SimulatedPipeline,
) -> Result<&'m SimulatedResource, ApiError> {
    model
        .resource(pipeline.id, call.param("resource"))
        .ok_or(NOT_FOUND)
}

/// Returns the resource in the path for changes.
fn unarchived_resource<'m>(
    call: &Call,
    model: &'m mut ConcourseModel,
) -> Result<&'m mut SimulatedResource, ApiError> {
    let pipeline = call.unarchived_pipeline(model, SimulatedRole::Operator)?.id;
    model
        .resource_mut(pipeline, call.param("resource"))
        .ok_or(NOT_FOUND)
}

async fn get_resource(call: Call) -> ApiResult {
    let model = call.model();
    let pipeline = call.visible_pipeline(&model)?;
    ok_json(&resource_json(
        &model,
        pipeline,
        find_resource(&call, &model, pipeline)?,
    ))
}

#[derive(Deserialize)]
struct CheckRequest {
    #[serde(rename = "from")]
    _from: Option<SimulatedInstanceVars>,
}

fn start_check(model: &mut ConcourseModel, pipeline: u64, resource: &str) -> ApiResult {
    let id = model
        .trigger_build(Trigger::Check(pipeline, resource), None)
        .ok_or(INTERNAL_ERROR)?;
    let build = builds::build_json(model, model.builds.get(&id).ok_or(INTERNAL_ERROR)?);
    // Concourse does not declare this response as JSON.
    Ok((
        StatusCode::CREATED,
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        build.to_string(),
    )
        .into_response())
}

async fn check_resource(call: Call, body: Bytes) -> ApiResult {
    let mut model = call.model();
    let pipeline = call.unarchived_pipeline(&model, SimulatedRole::Operator)?;
    serde_json::from_slice::<CheckRequest>(&body).map_err(|_| BAD_REQUEST)?;
    let (pipeline, resource) = (pipeline.id, find_resource(&call, &model, pipeline)?.name.clone());
    start_check(&mut model, pipeline, &resource)
}

async fn check_by_webhook(call: Call) -> ApiResult {
    let mut model = call.model();
    let token = call
        .query("webhook_token")
        .filter(|t| !t.is_empty())
        .ok_or(BAD_REQUEST)?;
    let pipeline = call.find_pipeline(&model)?.ok_or(NOT_FOUND)?;
    let resource = find_resource(&call, &model, pipeline)?;
    if model.resource_config(resource)["webhook_token"] != token {
        return Err(unauthorized());
    }
    let (pipeline, resource) = (pipeline.id, resource.name.clone());
    start_check(&mut model, pipeline, &resource)
}

fn version_json(version: &SimulatedVersion) -> Value {
    json!({"id": version.id, "version": version.version, "enabled": version.enabled})
}

async fn list_versions(call: Call) -> ApiResult {
    let model = call.model();
    let resource = find_resource(&call, &model, call.visible_pipeline(&model)?)?;
    // A filter without a colon is ignored.
    let filters: Vec<(&str, &str)> = call
        .query
        .iter()
        .filter(|q| q.0 == "filter")
        .filter_map(|q| q.1.split_once(':'))
        .collect();
    let fits = |v: &&SimulatedVersion| {
        filters
            .iter()
            .all(|(key, value)| v.version.get(*key).is_some_and(|found| found == value.trim()))
    };
    let window = PageRequest::from_query(|key| call.query(key));
    let ids: Vec<u64> = resource.versions.iter().filter(fits).map(|v| v.id).collect();
    let page = page::cut_page(&ids, window);
    let items = page
        .ids
        .iter()
        .filter_map(|id| resource.versions.iter().find(|v| v.id == *id))
        .map(version_json);
    call.page_response(&page, window.limit, &items.collect::<Vec<_>>())
}

async fn clear_versions(call: Call) -> ApiResult {
    let mut model = call.model();
    call.require_admin(&model)?;
    let resource = unarchived_resource(&call, &mut model)?;
    let removed = std::mem::take(&mut resource.versions).len();
    ok_json(&json!({"versions_removed": removed}))
}

fn parse_version_id(call: &Call) -> Result<u64, ApiError> {
    call.param("version").parse().map_err(|_| BAD_REQUEST)
}

async fn get_version(call: Call) -> ApiResult {
    let (model, id) = (call.model(), parse_version_id(&call)?);
    let resource = find_resource(&call, &model, call.visible_pipeline(&model)?)?;
    ok_json(&version_json(
        resource.versions.iter().find(|v| v.id == id).ok_or(NOT_FOUND)?,
    ))
}

async fn enable_version(call: Call) -> ApiResult {
    set_enabled(&call, true)
}

async fn disable_version(call: Call) -> ApiResult {
    set_enabled(&call, false)
}

fn set_enabled(call: &Call, enabled: bool) -> ApiResult {
    let (mut model, id) = (call.model(), parse_version_id(call)?);
    let resource = unarchived_resource(call, &mut model)?;
    resource
        .versions
        .iter_mut()
        .find(|v| v.id == id)
        .ok_or(NOT_FOUND)?
        .enabled = enabled;
    ok_empty()
}

async fn pin_version(call: Call) -> ApiResult {
    let (mut model, id) = (call.model(), parse_version_id(&call)?);
    let pipeline = call.unarchived_pipeline(&model, SimulatedRole::Operator)?;
    let resource = find_resource(&call, &model, pipeline)?;
    // In both cases Concourse answers 500.
    if model.resource_config(resource).get("version").is_some()
        || !resource.versions.iter().any(|v| v.id == id)
    {
        return Err(INTERNAL_ERROR);
    }
    let resource = unarchived_resource(&call, &mut model)?;
    resource.pinned = Some(id);
    resource.pin_comment.clear();
    ok_empty()
}

async fn unpin_resource(call: Call) -> ApiResult {
    let mut model = call.model();
    let resource = unarchived_resource(&call, &mut model)?;
    resource.pin_comment.clear();
    // Concourse answers 500 when the resource is not pinned.
    resource.pinned.take().ok_or(INTERNAL_ERROR)?;
    ok_empty()
}

async fn set_pin_comment(call: Call, body: Bytes) -> ApiResult {
    let mut model = call.model();
    let resource = unarchived_resource(&call, &mut model)?;
    let body: Value = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    if resource.pinned.is_some() {
        resource.pin_comment = body["pin_comment"].as_str().unwrap_or_default().to_owned();
    }
    ok_empty()
}

async fn clear_resource_cache(call: Call) -> ApiResult {
    let model = call.model();
    find_resource(
        &call,
        &model,
        call.unarchived_pipeline(&model, SimulatedRole::Operator)?,
    )?;
    ok_json(&json!({"caches_removed": 0}))
}
