//! Pipelines and their configs.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::routing::{get, put};
use serde_json::{Value, json};

use super::{
    ApiError, ApiResult, BAD_REQUEST, Call, NOT_FOUND, bad_request_errors, empty_response, json_response,
    json_with_warnings, ok_empty, ok_json, parse_rename, without_nulls,
};
use crate::App;
use crate::config;
use crate::state::{ConcourseModel, SaveOutcome, SimulatedInstanceVars, SimulatedPipeline, SimulatedRole};

const VERSION_HEADER: &str = "x-concourse-config-version";

pub(super) fn routes() -> Router<Arc<App>> {
    const PIPELINE_PATH: &str = "/api/v1/teams/{team}/pipelines/{pipeline}";
    let below = |path: &str| format!("{PIPELINE_PATH}{path}");
    Router::new()
        .route("/api/v1/pipelines", get(list_all_pipelines))
        .route("/api/v1/teams/{team}/pipelines", get(list_pipelines))
        .route("/api/v1/teams/{team}/pipelines/ordering", put(order_pipelines))
        .route(PIPELINE_PATH, get(get_pipeline).delete(delete_pipeline))
        .route(&below("/config"), get(read_config).put(save_config))
        .route(&below("/pause"), put(pause_pipeline))
        .route(&below("/unpause"), put(unpause_pipeline))
        .route(&below("/expose"), put(expose_pipeline))
        .route(&below("/hide"), put(hide_pipeline))
        .route(&below("/archive"), put(archive_pipeline))
        .route(&below("/rename"), put(rename_pipeline))
        .route(&below("/ordering"), put(order_instances))
        .route(&below("/resource-types"), get(list_resource_types))
}

fn pipeline_json(model: &ConcourseModel, pipeline: &SimulatedPipeline) -> Value {
    without_nulls(json!({
        "id": pipeline.id, "name": pipeline.name, "instance_vars": pipeline.instance_vars,
        "paused": pipeline.paused, "paused_by": pipeline.paused_by, "paused_at": pipeline.paused_at,
        "public": pipeline.public, "archived": pipeline.archived, "groups": pipeline.groups,
        "display": pipeline.display, "team_name": model.team_name(pipeline.team_id),
        "last_updated": pipeline.last_updated,
    }))
}

async fn list_all_pipelines(call: Call) -> ApiResult {
    let model = call.model();
    let mut seen: Vec<&SimulatedPipeline> = model
        .pipelines
        .iter()
        .filter(|p| p.public || call.can_view(&model, p.team_id))
        .collect();
    seen.sort_by_key(|p| model.team_name(p.team_id));
    ok_json(
        &seen
            .into_iter()
            .map(|p| pipeline_json(&model, p))
            .collect::<Vec<_>>(),
    )
}

async fn list_pipelines(call: Call) -> ApiResult {
    let model = call.model();
    let team = model.team(call.param("team")).ok_or(NOT_FOUND)?.id;
    let all = call.can_view(&model, team);
    let seen = model
        .pipelines
        .iter()
        .filter(|p| p.team_id == team && (p.public || all));
    ok_json(&seen.map(|p| pipeline_json(&model, p)).collect::<Vec<_>>())
}

async fn get_pipeline(call: Call) -> ApiResult {
    let model = call.model();
    ok_json(&pipeline_json(&model, call.visible_pipeline(&model)?))
}

async fn delete_pipeline(call: Call) -> ApiResult {
    let mut model = call.model();
    let id = call.require_pipeline(&model, SimulatedRole::Member)?.id;
    model.delete_pipeline(id);
    Ok(empty_response(StatusCode::NO_CONTENT))
}

async fn read_config(call: Call) -> ApiResult {
    let model = call.model();
    let pipeline = call.require_pipeline(&model, SimulatedRole::Viewer)?;
    if pipeline.archived {
        return Err(NOT_FOUND);
    }
    let mut response = json_response(StatusCode::OK, &json!({"config": pipeline.config}));
    response
        .headers_mut()
        .insert(VERSION_HEADER, HeaderValue::from(pipeline.version));
    Ok(response)
}

async fn save_config(call: Call, headers: HeaderMap, body: Bytes) -> ApiResult {
    let mut model = call.model();
    // Concourse checks the role first and whether the team exists last.
    match call.require_team(&model, SimulatedRole::Member) {
        Ok(_) | Err(ApiError::Empty(StatusCode::NOT_FOUND)) => {}
        Err(refused) => return Err(refused),
    }
    let header_text = |name: &str| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
    };
    let version = match header_text(VERSION_HEADER) {
        "" => 0,
        version => version
            .parse()
            .map_err(|_| bad_request_errors(["config version is malformed: expected integer".to_owned()]))?,
    };
    let media = header_text(header::CONTENT_TYPE.as_str())
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if !["application/x-yaml", "application/json"].contains(&media) {
        return Err(ApiError::Empty(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let config =
        config::parse_config(&String::from_utf8_lossy(&body)).map_err(|e| bad_request_errors([e]))?;
    let mut warnings = config::validate_config(&config).map_err(bad_request_errors)?;
    let name = call.param("pipeline");
    warnings.extend(config::check_identifier(name, "pipeline").map_err(|e| bad_request_errors([e]))?);
    let (vars, team) = (
        call.instance_vars()?,
        call.require_team(&model, SimulatedRole::Member)?,
    );
    match model.save_config(team, name, vars, config, version) {
        SaveOutcome::Created => Ok(json_with_warnings(StatusCode::CREATED, json!({}), &warnings)),
        SaveOutcome::Updated => Ok(json_with_warnings(StatusCode::OK, json!({}), &warnings)),
        SaveOutcome::Stale => Err(ApiError::Text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "failed to save config: comparison with existing config failed during save".into(),
        )),
    }
}

async fn pause_pipeline(call: Call) -> ApiResult {
    let mut model = call.model();
    let id = call.unarchived_pipeline(&model, SimulatedRole::Operator)?.id;
    model.set_paused(id, Some(&call.require_user()?.name));
    ok_empty()
}

async fn unpause_pipeline(call: Call) -> ApiResult {
    let mut model = call.model();
    let id = call.unarchived_pipeline(&model, SimulatedRole::Operator)?.id;
    model.set_paused(id, None);
    ok_empty()
}

async fn expose_pipeline(call: Call) -> ApiResult {
    set_public(&call, true)
}

async fn hide_pipeline(call: Call) -> ApiResult {
    set_public(&call, false)
}

fn set_public(call: &Call, public: bool) -> ApiResult {
    let mut model = call.model();
    let id = call.require_pipeline(&model, SimulatedRole::Member)?.id;
    if let Some(pipeline) = model.pipeline_mut(id) {
        pipeline.public = public;
    }
    ok_empty()
}

async fn archive_pipeline(call: Call) -> ApiResult {
    let mut model = call.model();
    let id = call.require_pipeline(&model, SimulatedRole::Member)?.id;
    model.archive_pipeline(id);
    ok_empty()
}

async fn rename_pipeline(call: Call, body: Bytes) -> ApiResult {
    let mut model = call.model();
    let team = call.require_team(&model, SimulatedRole::Member)?;
    let (name, warning) = parse_rename(
        &body,
        "pipeline",
        bad_request_errors(["malformed request".to_owned()]),
    )?;
    let old = call.param("pipeline");
    if !model.pipelines.iter().any(|p| p.team_id == team && p.name == old) {
        return Err(NOT_FOUND);
    }
    if name != old
        && model
            .pipelines
            .iter()
            .any(|p| p.team_id == team && p.name == name)
    {
        return Err(super::INTERNAL_ERROR);
    }
    model.rename_pipeline(team, old, &name);
    Ok(json_with_warnings(StatusCode::OK, json!({}), warning.as_slice()))
}

async fn order_pipelines(call: Call, body: Bytes) -> ApiResult {
    let mut model = call.model();
    let team = call.require_team(&model, SimulatedRole::Member)?;
    let names: Vec<String> = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    for name in &names {
        if !model
            .pipelines
            .iter()
            .any(|p| p.team_id == team && p.name == *name)
        {
            return Err(ApiError::Text(
                StatusCode::BAD_REQUEST,
                format!("pipeline '{name}' not found\n"),
            ));
        }
    }
    model.order_pipelines(team, |p| names.iter().position(|n| *n == p.name));
    ok_empty()
}

async fn order_instances(call: Call, body: Bytes) -> ApiResult {
    let mut model = call.model();
    let team = call.require_team(&model, SimulatedRole::Member)?;
    let wanted: Vec<SimulatedInstanceVars> = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    let name = call.param("pipeline");
    fn non_empty(vars: &SimulatedInstanceVars) -> Option<&SimulatedInstanceVars> {
        Some(vars).filter(|v| !v.is_empty())
    }
    if wanted.iter().any(|vars| {
        model
            .pipeline(call.param("team"), name, non_empty(vars))
            .is_none()
    }) {
        return Err(ApiError::Text(
            StatusCode::BAD_REQUEST,
            format!("pipeline '{name}' not found\n"),
        ));
    }
    let place = |p: &SimulatedPipeline| {
        wanted
            .iter()
            .position(|vars| p.instance_vars.as_ref() == non_empty(vars))
    };
    model.order_instances(team, name, place);
    ok_empty()
}

async fn list_resource_types(call: Call) -> ApiResult {
    let model = call.model();
    let types = &call.visible_pipeline(&model)?.config["resource_types"];
    ok_json(types.as_array().unwrap_or(&Vec::new()))
}
