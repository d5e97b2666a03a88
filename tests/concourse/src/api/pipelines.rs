//! Pipelines and their configs.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::routing::{get, put};
use serde_json::{Value, json};

use super::{
    Answered, BAD_REQUEST, Call, NOT_FOUND, Refused, done, empty, errors, json_as, new_name, ok, warned,
    without_nulls,
};
use crate::App;
use crate::config;
use crate::state::{InstanceVars, Model, Pipeline, Role, Saved};

const VERSION_HEADER: &str = "x-concourse-config-version";

pub(super) fn routes() -> Router<Arc<App>> {
    const P: &str = "/api/v1/teams/{team}/pipelines/{pipeline}";
    let at = |path: &str| format!("{P}{path}");
    Router::new()
        .route("/api/v1/pipelines", get(list_all))
        .route("/api/v1/teams/{team}/pipelines", get(list))
        .route("/api/v1/teams/{team}/pipelines/ordering", put(order))
        .route(P, get(show).delete(delete))
        .route(&at("/config"), get(read_config).put(save_config))
        .route(&at("/pause"), put(pause))
        .route(&at("/unpause"), put(unpause))
        .route(&at("/expose"), put(expose))
        .route(&at("/hide"), put(hide))
        .route(&at("/archive"), put(archive))
        .route(&at("/rename"), put(rename))
        .route(&at("/ordering"), put(order_instances))
        .route(&at("/resource-types"), get(resource_types))
}

fn shown(model: &Model, pipeline: &Pipeline) -> Value {
    without_nulls(json!({
        "id": pipeline.id, "name": pipeline.name, "instance_vars": pipeline.instance_vars,
        "paused": pipeline.paused, "paused_by": pipeline.paused_by, "paused_at": pipeline.paused_at,
        "public": pipeline.public, "archived": pipeline.archived, "groups": pipeline.groups,
        "display": pipeline.display, "team_name": model.team_name(pipeline.team_id),
        "last_updated": pipeline.last_updated,
    }))
}

async fn list_all(call: Call) -> Answered {
    let model = call.model();
    let mut seen: Vec<&Pipeline> = model
        .pipelines
        .iter()
        .filter(|p| p.public || call.may_see(&model, p.team_id))
        .collect();
    seen.sort_by_key(|p| model.team_name(p.team_id));
    ok(&seen.into_iter().map(|p| shown(&model, p)).collect::<Vec<_>>())
}

async fn list(call: Call) -> Answered {
    let model = call.model();
    let team = model.team(call.param("team")).ok_or(NOT_FOUND)?.id;
    let all = call.may_see(&model, team);
    let seen = model
        .pipelines
        .iter()
        .filter(|p| p.team_id == team && (p.public || all));
    ok(&seen.map(|p| shown(&model, p)).collect::<Vec<_>>())
}

async fn show(call: Call) -> Answered {
    let model = call.model();
    ok(&shown(&model, call.shown(&model)?))
}

async fn delete(call: Call) -> Answered {
    let mut model = call.model();
    let id = call.pipeline(&model, Role::Member)?.id;
    model.delete_pipeline(id);
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn read_config(call: Call) -> Answered {
    let model = call.model();
    let pipeline = call.pipeline(&model, Role::Viewer)?;
    if pipeline.archived {
        return Err(NOT_FOUND);
    }
    let mut response = json_as(StatusCode::OK, &json!({"config": pipeline.config}));
    response
        .headers_mut()
        .insert(VERSION_HEADER, HeaderValue::from(pipeline.version));
    Ok(response)
}

async fn save_config(call: Call, headers: HeaderMap, body: Bytes) -> Answered {
    let mut model = call.model();
    // The team is looked for last, but who may not do this is told at once.
    match call.team(&model, Role::Member) {
        Ok(_) | Err(Refused::Empty(StatusCode::NOT_FOUND)) => {}
        Err(refused) => return Err(refused),
    }
    let said = |name: &str| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
    };
    let version = match said(VERSION_HEADER) {
        "" => 0,
        version => version
            .parse()
            .map_err(|_| errors(["config version is malformed: expected integer".to_owned()]))?,
    };
    let media = said(header::CONTENT_TYPE.as_str())
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if !["application/x-yaml", "application/json"].contains(&media) {
        return Err(Refused::Empty(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let config = config::parse(&String::from_utf8_lossy(&body)).map_err(|e| errors([e]))?;
    let mut warnings = config::validate(&config).map_err(errors)?;
    let name = call.param("pipeline");
    warnings.extend(config::identifier(name, "pipeline").map_err(|e| errors([e]))?);
    let (vars, team) = (call.vars()?, call.team(&model, Role::Member)?);
    match model.save(team, name, vars, config, version) {
        Saved::Created => Ok(warned(StatusCode::CREATED, json!({}), &warnings)),
        Saved::Updated => Ok(warned(StatusCode::OK, json!({}), &warnings)),
        Saved::Stale => Err(Refused::Text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "failed to save config: comparison with existing config failed during save".into(),
        )),
    }
}

async fn pause(call: Call) -> Answered {
    let mut model = call.model();
    let id = call.live(&model, Role::Operator)?.id;
    model.pause(id, Some(call.user()?));
    done()
}

async fn unpause(call: Call) -> Answered {
    let mut model = call.model();
    let id = call.live(&model, Role::Operator)?.id;
    model.pause(id, None);
    done()
}

async fn expose(call: Call) -> Answered {
    set_public(&call, true)
}

async fn hide(call: Call) -> Answered {
    set_public(&call, false)
}

fn set_public(call: &Call, public: bool) -> Answered {
    let mut model = call.model();
    let id = call.pipeline(&model, Role::Member)?.id;
    if let Some(pipeline) = model.pipeline_mut(id) {
        pipeline.public = public;
    }
    done()
}

async fn archive(call: Call) -> Answered {
    let mut model = call.model();
    let id = call.pipeline(&model, Role::Member)?.id;
    model.archive(id);
    done()
}

async fn rename(call: Call, body: Bytes) -> Answered {
    let mut model = call.model();
    let team = call.team(&model, Role::Member)?;
    let (name, warning) = new_name(&body, "pipeline", errors(["malformed request".to_owned()]))?;
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
        return Err(super::INTERNAL);
    }
    model.rename_pipeline(team, old, &name);
    Ok(warned(StatusCode::OK, json!({}), warning.as_slice()))
}

async fn order(call: Call, body: Bytes) -> Answered {
    let mut model = call.model();
    let team = call.team(&model, Role::Member)?;
    let names: Vec<String> = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    for name in &names {
        if !model
            .pipelines
            .iter()
            .any(|p| p.team_id == team && p.name == *name)
        {
            return Err(Refused::Text(
                StatusCode::BAD_REQUEST,
                format!("pipeline '{name}' not found\n"),
            ));
        }
    }
    model.order_pipelines(team, |p| names.iter().position(|n| *n == p.name));
    done()
}

async fn order_instances(call: Call, body: Bytes) -> Answered {
    let mut model = call.model();
    let team = call.team(&model, Role::Member)?;
    let wanted: Vec<InstanceVars> = serde_json::from_slice(&body).map_err(|_| BAD_REQUEST)?;
    let name = call.param("pipeline");
    fn instance(vars: &InstanceVars) -> Option<&InstanceVars> {
        Some(vars).filter(|v| !v.is_empty())
    }
    if wanted
        .iter()
        .any(|vars| model.pipeline(call.param("team"), name, instance(vars)).is_none())
    {
        return Err(Refused::Text(
            StatusCode::BAD_REQUEST,
            format!("pipeline '{name}' not found\n"),
        ));
    }
    let place = |p: &Pipeline| {
        wanted
            .iter()
            .position(|vars| p.instance_vars.as_ref() == instance(vars))
    };
    model.order_instances(team, name, place);
    done()
}

async fn resource_types(call: Call) -> Answered {
    let model = call.model();
    let types = &call.shown(&model)?.config["resource_types"];
    ok(types.as_array().unwrap_or(&Vec::new()))
}
