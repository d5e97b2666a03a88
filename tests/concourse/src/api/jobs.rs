//! Jobs.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get, post, put};
use serde_json::{Map, Value, json};

use super::builds;
use super::{Answered, Call, INTERNAL, NOT_FOUND, Refused, done, ok, without_nulls};
use crate::App;
use crate::config::{each_step, resource_of};
use crate::state::{Job, Model, Pipeline, Role, Trigger};

pub(super) fn routes() -> Router<Arc<App>> {
    const J: &str = "/api/v1/teams/{team}/pipelines/{pipeline}/jobs/{job}";
    let at = |path: &str| format!("{J}{path}");
    Router::new()
        .route("/api/v1/jobs", get(list_all))
        .route("/api/v1/teams/{team}/pipelines/{pipeline}/jobs", get(list))
        .route(J, get(show))
        .route(&at("/pause"), put(pause))
        .route(&at("/unpause"), put(unpause))
        .route(&at("/schedule"), put(schedule))
        .route(&at("/inputs"), get(inputs))
        .route(&at("/builds"), get(list_builds).post(trigger))
        .route(&at("/builds/{build}"), get(build).merge(post(rerun)))
        .route(&at("/tasks/{step}/cache"), delete(clear_cache))
}

/// A job's gets (or puts) as its JSON lists them.
fn steps(config: &Value, kind: &str, summary: bool) -> Value {
    let mut found = Vec::new();
    each_step(config, &mut |step| {
        let (Some(name), Some(resource)) = (step.get(kind), resource_of(step)) else {
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

fn shown(call: &Call, model: &Model, pipeline: &Pipeline, job: &Job, summary: bool) -> Value {
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
        "inputs": steps(config, "get", summary), "outputs": steps(config, "put", summary),
    }));
    let build_shown = |b| {
        if summary {
            builds::summary(model, b)
        } else {
            builds::commented(call, model, b)
        }
    };
    let next = model.builds_of(job).find(|b| !b.status.ended()).map(build_shown);
    let finished = model.builds_of(job).rfind(|b| b.status.ended()).map(build_shown);
    for (key, build) in [("next_build", next), ("finished_build", finished)] {
        // A job alone says that there is none, one in a list says nothing.
        if build.is_some() || !summary {
            value[key] = build.unwrap_or_default();
        }
    }
    value
}

async fn list_all(call: Call) -> Answered {
    let model = call.model();
    let seen = model
        .pipelines
        .iter()
        .filter(|p| p.public || call.may_see(&model, p.team_id));
    ok(&seen
        .flat_map(|p| {
            model
                .jobs_of(p)
                .into_iter()
                .map(|j| shown(&call, &model, p, j, true))
                .collect::<Vec<_>>()
        })
        .collect::<Vec<_>>())
}

async fn list(call: Call) -> Answered {
    let model = call.model();
    let pipeline = call.shown(&model)?;
    ok(&model
        .jobs_of(pipeline)
        .into_iter()
        .map(|j| shown(&call, &model, pipeline, j, true))
        .collect::<Vec<_>>())
}

fn find<'m>(call: &Call, model: &'m Model, pipeline: &Pipeline) -> Result<&'m Job, Refused> {
    model.job(pipeline.id, call.param("job")).ok_or(NOT_FOUND)
}

async fn show(call: Call) -> Answered {
    let model = call.model();
    let pipeline = call.shown(&model)?;
    ok(&shown(
        &call,
        &model,
        pipeline,
        find(&call, &model, pipeline)?,
        false,
    ))
}

async fn pause(call: Call) -> Answered {
    set_paused(&call, true)
}

async fn unpause(call: Call) -> Answered {
    set_paused(&call, false)
}

fn set_paused(call: &Call, paused: bool) -> Answered {
    let mut model = call.model();
    let id = find(call, &model, call.pipeline(&model, Role::Operator)?)?.id;
    let mark = paused.then_some((call.user()?.to_owned(), model.seconds()));
    if let Some(job) = model.job_mut(id) {
        job.paused = mark;
    }
    done()
}

async fn schedule(call: Call) -> Answered {
    let model = call.model();
    find(&call, &model, call.live(&model, Role::Operator)?)?;
    done()
}

async fn inputs(call: Call) -> Answered {
    let model = call.model();
    let job = find(&call, &model, call.pipeline(&model, Role::Viewer)?)?;
    let mut found = Vec::new();
    let versions = model.inputs(job).unwrap_or_default();
    each_step(model.job_config(job), &mut |step| {
        let (Some(name), Some(resource)) = (step["get"].as_str(), resource_of(step)) else {
            return;
        };
        if let Some((_, version)) = versions.iter().find(|v| v.0 == name) {
            found.push(json!({"name": name, "resource": resource, "version": version}));
        }
    });
    ok(&found)
}

async fn list_builds(call: Call) -> Answered {
    let model = call.model();
    let job = find(&call, &model, call.shown(&model)?)?;
    let ids: Vec<u64> = model.builds_of(job).map(|b| b.id).collect();
    builds::page(&call, &model, &ids, |model, b| builds::commented(&call, model, b))
}

async fn trigger(call: Call) -> Answered {
    let mut model = call.model();
    let pipeline = call.live(&model, Role::Operator)?;
    let Ok(job) = find(&call, &model, pipeline) else {
        // So it is: JSON that is not there.
        return Ok((
            StatusCode::NOT_FOUND,
            [(header::CONTENT_TYPE, "application/json")],
        )
            .into_response());
    };
    if model.job_config(job)["disable_manual_trigger"] == true {
        return Err(Refused::Empty(StatusCode::CONFLICT));
    }
    let what = Trigger::Job(job.id);
    let id = model.trigger(what, call.user.as_deref()).ok_or(INTERNAL)?;
    call.app.meter.triggered();
    ok(&builds::shown(&model, model.builds.get(&id).ok_or(INTERNAL)?))
}

fn named(call: &Call, model: &Model, job: &Job) -> Result<u64, Refused> {
    let name = call.param("build");
    let mut builds = model.builds_of(job);
    builds.find(|b| b.name == name).map(|b| b.id).ok_or(NOT_FOUND)
}

async fn build(call: Call) -> Answered {
    let model = call.model();
    let job = find(&call, &model, call.shown(&model)?)?;
    let id = named(&call, &model, job)?;
    ok(&builds::commented(
        &call,
        &model,
        model.builds.get(&id).ok_or(NOT_FOUND)?,
    ))
}

async fn rerun(call: Call) -> Answered {
    let mut model = call.model();
    let job = find(&call, &model, call.live(&model, Role::Operator)?)?;
    if model.job_config(job)["disable_reruns"] == true {
        return Err(Refused::Empty(StatusCode::CONFLICT));
    }
    let id = named(&call, &model, job)?;
    // A build that never had its inputs has none to be run with again.
    if model.builds.get(&id).is_some_and(|b| b.plan.is_null()) && model.inputs(job).is_err() {
        return Err(INTERNAL);
    }
    let again = model
        .trigger(Trigger::Rerun(id), call.user.as_deref())
        .ok_or(INTERNAL)?;
    call.app.meter.triggered();
    ok(&builds::shown(&model, model.builds.get(&again).ok_or(INTERNAL)?))
}

async fn clear_cache(call: Call) -> Answered {
    let model = call.model();
    find(&call, &model, call.pipeline(&model, Role::Operator)?)?;
    let mut answer = Map::new();
    answer.insert("caches_removed".into(), 0.into());
    ok(&answer)
}
