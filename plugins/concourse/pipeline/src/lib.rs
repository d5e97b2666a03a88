//! Reconciles `concourse-ci.org/v1alpha1` Pipeline: config, name, visibility,
//! pause and archive state. Reads twice and writes nothing while all is as wanted.

mod config;
mod desired;
mod injected;
mod remote;
mod vars;
mod yaml;

use concourse_api::{PipelineSpec, TeamSpec, config_warning, delete, suspended, target};
use ostler_sdk::{ObjectRef, Raw, prelude::*, serde_json::Value};
use remote::{POLL, Remote};

/// Reconciles Pipelines.
pub struct Pipelines;

type Pipeline = Object<Raw<PipelineSpec>>;

impl Reconciler for Pipelines {
    type Spec = Raw<PipelineSpec>;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/pipeline-finalizer");

    fn reconcile(&self, ctx: &Context, pipeline: &Pipeline) -> Result<Outcome, Failure> {
        let spec = &pipeline.spec.json;
        if spec["suspend"] == true {
            return Ok(suspended());
        }
        if exists(pipeline) && vars_of(&pipeline.status) != vars_of(spec) {
            let message = "spec.instanceVars cannot be changed, for Concourse cannot change them: set them back, \
                           or make another Pipeline with the new ones.";
            return Err(Failure::terminal("InvalidSpec", message));
        }
        let team = ctx
            .require_ready_json(&team_of(pipeline))
            .reason("TeamNotReady")?;
        let desired = desired::load(ctx, pipeline, &team)?;
        let remote = Remote::new(ctx, pipeline, &team);
        remote.rename(pipeline)?;
        let mut status = pipeline.status.clone();
        let archived = remote.converge(spec, &desired, &mut status)?;
        let synced = match archived {
            true => {
                let message = "Concourse keeps no config of an archived pipeline.";
                Condition::new_false("ConfigSynced", "Archived", message)
            }
            false => Condition::new_true("ConfigSynced", "Synced", "Concourse has the config."),
        };
        let warnings: Vec<_> = config::strings(&status["warnings"]).map(Into::into).collect();
        Ok(Outcome::poll(POLL)
            .with(Condition::new_true(
                "Ready",
                "Ready",
                "The pipeline is as wanted.",
            ))
            .with(synced)
            .with(config_warning(&warnings))
            .status(&status))
    }

    fn cleanup(&self, ctx: &Context, pipeline: &Pipeline) -> Result<Outcome, Failure> {
        if pipeline.spec.json["reclaimPolicy"] == "Orphan" {
            ctx.event(
                "Orphaned",
                "The pipeline stays in Concourse, as reclaimPolicy says.",
            );
            return Ok(Outcome::await_change());
        }
        let Some(team) = ctx.get_json(&team_of(pipeline))? else {
            ctx.warn("Orphaned", "The pipeline stays in Concourse: its Team is gone.");
            return Ok(Outcome::await_change());
        };
        let remote = Remote::new(ctx, pipeline, &team);
        let name = remote.name_now(pipeline)?;
        let (namespace, instance) = target(&team, "instanceRef");
        let what = ["pipeline ", name].concat();
        delete(ctx, namespace, instance, &remote.path_of(name, ""), &what)
    }
}

fn team_of(pipeline: &Pipeline) -> ObjectRef {
    let reference = &pipeline.spec.json["teamRef"];
    let namespace = match text(&reference["namespace"]) {
        "" => pipeline.namespace(),
        namespace => namespace,
    };
    TeamSpec::reference(namespace, text(&reference["name"]))
}

/// The name it should have in Concourse.
fn name_wanted(pipeline: &Pipeline) -> &str {
    match text(&pipeline.spec.json["pipelineName"]) {
        "" => pipeline.name(),
        name => name,
    }
}

/// Whether it was in Concourse when it was last looked at.
fn exists(pipeline: &Pipeline) -> bool {
    !pipeline.status["pipelineID"].is_null()
}

/// The instance vars of a spec or status; null when there are none.
fn vars_of(part: &Value) -> &Value {
    match part["instanceVars"].as_object() {
        Some(vars) if !vars.is_empty() => &part["instanceVars"],
        _ => &Value::Null,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

ostler_sdk::plugin!(Pipelines);
