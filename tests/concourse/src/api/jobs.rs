//! Jobs.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get, post, put};
use serde_json::{Map, Value, json};

use super::builds;
use super::{ApiError, ApiResult, Call, INTERNAL_ERROR, NOT_FOUND, ok_empty, ok_json, without_nulls};
use crate::App;
use crate::config::{step_resource, visit_steps};
use crate::state::{ConcourseModel, SimulatedJob, SimulatedPipeline, SimulatedRole, Trigger};

pub(super) fn routes() -> Router<Arc<App>> {
    const JOB_PATH: &str = "/api/v1/teams/{team}/pipelines/{pipeline}/jobs/{job}";
    let below = |path: &str| format!("{JOB_PATH}{path}");
    Router::new()
        .route("/api/v1/jobs", get(list_all_jobs))
        .route("/api/v1/teams/{team}/pipelines/{pipeline}/jobs", get(list_jobs))
        .route(JOB_PATH, get(get_job))
        .route(&below("/pause"), put(pause_job))
        .route(&below("/unpause"), put(unpause_job))
        .route(&below("/schedule"), put(schedule_job))
        .route(&below("/inputs"), get(list_inputs))
        .route(&below("/builds"), get(list_job_builds).post(trigger_build))
        .route(
            &below("/builds/{build}"),
            get(get_job_build).merge(post(rerun_build)),
        )
        .route(&below("/tasks/{step}/cache"), delete(clear_task_cache))
}

/// Returns a job's get (or put) steps as in its JSON.
fn steps_json(config: &Value, kind: &str, summary: bool) -> Value {
    let mut found = Vec::new();
    visit_steps(config, &mut |step| {
        let (Some(name), Some(resource)) = (step.get(kind), step_resource(step)) else {
            return;
        };
        let mut shown = json!({"name": name, "resource": resource});
        if kind == "get" {
            if !summary || step["trigger"] == true {
                shown["trigger"] = (step["trigger"] == true).into();
            }
            if let Some(passed) = step.get("passed") {
                shown["passed"] = passed.clone();
            }
        }
        found.push(shown);
    });
    if found.is_empty() {
        Value::Null
    } else {
        found.into()
    }
}

fn job_json(
    call: &Call,
    model: &ConcourseModel,
    pipeline: &SimulatedPipeline,
    job: &SimulatedJob,
    summary: bool,
) -> Value {
    let config = model.job_config(job);
    let groups = pipeline.groups.as_array().into_iter().flatten();
    let mine = groups.filter(|g| {
        g["jobs"]
            .as_array()
            .is_some_and(|jobs| jobs.iter().any(|j| *j == job.name.as_str()))
    });
    let groups: Vec<&Value> = mine.map(|g| &g["name"]).collect();
    let flag = |key: &str| (config[key] == true).then_some(true);
    let mut value = without_nulls(json!({
        "id": job.id, "name": job.name, "team_name": model.team_name(pipeline.team_id),
        "pipeline_id": pipeline.id, "pipeline_name": pipeline.name, "pipeline_instance_vars": pipeline.instance_vars,
        "paused": job.paused.as_ref().map(|_| true),
        "paused_by": job.paused.as_ref().map(|p| &p.0), "paused_at": job.paused.as_ref().map(|p| p.1),
        "groups": if groups.is_empty() { Value::Null } else { json!(groups) },
        "disable_manual_trigger": flag("disable_manual_trigger"), "disable_reruns": flag("disable_reruns"),
        "inputs": steps_json(config, "get", summary), "outputs": steps_json(config, "put", summary),
    }));
    let to_json = |b| {
        if summary {
            builds::build_summary(model, b)
        } else {
            builds::build_json_with_comment(call, model, b)
        }
    };
    let next = model.builds_of(job).find(|b| !b.status.has_ended()).map(to_json);
    let finished = model.builds_of(job).rfind(|b| b.status.has_ended()).map(to_json);
    for (key, build) in [("next_build", next), ("finished_build", finished)] {
        // A single job has null when there is none; in a list the field is omitted.
        if build.is_some() || !summary {
            value[key] = build.unwrap_or_default();
        }
    }
    value
}

async fn list_all_jobs(call: Call) -> ApiResult {
    let model = call.model();
    let seen = model
        .pipelines
        .iter()
        .filter(|p| p.public || call.can_view(&model, p.team_id));
    ok_json(
        &seen
            .flat_map(|p| {
                model
                    .jobs_of(p)
                    .into_iter()
                    .map(|j| job_json(&call, &model, p, j, true))
                    .collect::<Vec<_>>()
            })
            .collect::<Vec<_>>(),
    )
}

async fn list_jobs(call: Call) -> ApiResult {
    let model = call.model();
    let pipeline = call.visible_pipeline(&model)?;
    ok_json(
        &model
            .jobs_of(pipeline)
            .into_iter()
            .map(|j| job_json(&call, &model, pipeline, j, true))
            .collect::<Vec<_>>(),
    )
}

fn find_job<'m>(
    call: &Call,
    model: &'m ConcourseModel,
    pipeline: &SimulatedPipeline,
) -> Result<&'m SimulatedJob, ApiError> {
    model.job(pipeline.id, call.param("job")).ok_or(NOT_FOUND)
}

async fn get_job(call: Call) -> ApiResult {
    let model = call.model();
    let pipeline = call.visible_pipeline(&model)?;
    ok_json(&job_json(
        &call,
        &model,
        pipeline,
        find_job(&call, &model, pipeline)?,
        false,
    ))
}

async fn pause_job(call: Call) -> ApiResult {
    set_paused(&call, true)
}

async fn unpause_job(call: Call) -> ApiResult {
    set_paused(&call, false)
}

fn set_paused(call: &Call, paused: bool) -> ApiResult {
    let mut model = call.model();
    let id = find_job(
        call,
        &model,
        call.require_pipeline(&model, SimulatedRole::Operator)?,
    )?
    .id;
    let mark = paused.then_some((call.require_user()?.name.clone(), model.seconds()));
    if let Some(job) = model.job_mut(id) {
        job.paused = mark;
    }
    ok_empty()
}

async fn schedule_job(call: Call) -> ApiResult {
    let model = call.model();
    find_job(
        &call,
        &model,
        call.unarchived_pipeline(&model, SimulatedRole::Operator)?,
    )?;
    ok_empty()
}

async fn list_inputs(call: Call) -> ApiResult {
    let model = call.model();
    let job = find_job(
        &call,
        &model,
        call.require_pipeline(&model, SimulatedRole::Viewer)?,
    )?;
    let mut found = Vec::new();
    let versions = model.resolve_inputs(job).unwrap_or_default();
    visit_steps(model.job_config(job), &mut |step| {
        let (Some(name), Some(resource)) = (step["get"].as_str(), step_resource(step)) else {
            return;
        };
        if let Some((_, version)) = versions.iter().find(|v| v.0 == name) {
            found.push(json!({"name": name, "resource": resource, "version": version}));
        }
    });
    ok_json(&found)
}

async fn list_job_builds(call: Call) -> ApiResult {
    let model = call.model();
    let job = find_job(&call, &model, call.visible_pipeline(&model)?)?;
    let ids: Vec<u64> = model.builds_of(job).map(|b| b.id).collect();
    builds::page_of_builds(&call, &model, &ids, |model, b| {
        builds::build_json_with_comment(&call, model, b)
    })
}

async fn trigger_build(call: Call) -> ApiResult {
    let mut model = call.model();
    let pipeline = call.unarchived_pipeline(&model, SimulatedRole::Operator)?;
    let Ok(job) = find_job(&call, &model, pipeline) else {
        // Concourse announces JSON here and sends no body.
        return Ok((
            StatusCode::NOT_FOUND,
            [(header::CONTENT_TYPE, "application/json")],
        )
            .into_response());
    };
    if model.job_config(job)["disable_manual_trigger"] == true {
        return Err(ApiError::Empty(StatusCode::CONFLICT));
    }
    let what = Trigger::Job(job.id);
    let id = model
        .trigger_build(what, call.user_name())
        .ok_or(INTERNAL_ERROR)?;
    call.app.meter.count_trigger();
    ok_json(&builds::build_json(
        &model,
        model.builds.get(&id).ok_or(INTERNAL_ERROR)?,
    ))
}

fn find_build(call: &Call, model: &ConcourseModel, job: &SimulatedJob) -> Result<u64, ApiError> {
    let name = call.param("build");
    let mut builds = model.builds_of(job);
    builds.find(|b| b.name == name).map(|b| b.id).ok_or(NOT_FOUND)
}

async fn get_job_build(call: Call) -> ApiResult {
    let model = call.model();
    let job = find_job(&call, &model, call.visible_pipeline(&model)?)?;
    let id = find_build(&call, &model, job)?;
    ok_json(&builds::build_json_with_comment(
        &call,
        &model,
        model.builds.get(&id).ok_or(NOT_FOUND)?,
    ))
}

async fn rerun_build(call: Call) -> ApiResult {
    let mut model = call.model();
    let job = find_job(
        &call,
        &model,
        call.unarchived_pipeline(&model, SimulatedRole::Operator)?,
    )?;
    if model.job_config(job)["disable_reruns"] == true {
        return Err(ApiError::Empty(StatusCode::CONFLICT));
    }
    let id = find_build(&call, &model, job)?;
    // A build that never resolved its inputs can't be rerun with them.
    if model.builds.get(&id).is_some_and(|b| b.plan.is_null()) && model.resolve_inputs(job).is_err() {
        return Err(INTERNAL_ERROR);
    }
    let again = model
        .trigger_build(Trigger::Rerun(id), call.user_name())
        .ok_or(INTERNAL_ERROR)?;
    call.app.meter.count_trigger();
    ok_json(&builds::build_json(
        &model,
        model.builds.get(&again).ok_or(INTERNAL_ERROR)?,
    ))
}

async fn clear_task_cache(call: Call) -> ApiResult {
    let model = call.model();
    find_job(
        &call,
        &model,
        call.require_pipeline(&model, SimulatedRole::Operator)?,
    )?;
    let mut answer = Map::new();
    answer.insert("caches_removed".into(), 0.into());
    ok_json(&answer)
}
