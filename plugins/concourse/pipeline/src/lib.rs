//! Reconciles `concourse-ci.org/v1alpha1` Pipeline: config, name, visibility, pause and archival.
//!
//! A pipeline that matches its spec costs two reads of Concourse and no write.

mod config;
mod desired;
mod injected;
mod parent;
mod remote;
mod vars;

use concourse_api::{
    ContainerImage, InstanceSpec, JobSpec, NamespacedName, Pipeline, PipelineSpec, PipelineStatus,
    ReclaimPolicy, ResourceSpec, TeamSpec, config_warning_condition, delete_dependents, suspended_outcome,
};
use ostler_sdk::prelude::*;
use parent::ParentTeam;
use remote::{POLL_INTERVAL_MS, RemotePipeline};

/// Reconciles Pipelines.
pub struct Pipelines;

impl Reconciler for Pipelines {
    type Spec = PipelineSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/pipeline-finalizer");

    fn reconcile(&self, ctx: &Context, pipeline: &Pipeline) -> Result<Outcome, Failure> {
        if pipeline.spec.suspend {
            return Ok(suspended_outcome());
        }
        let Dereferenced { team, default_image } = dereference(ctx, pipeline)?;
        let remote = RemotePipeline::new(ctx, pipeline, &team)?;
        let unclaimed = PipelineStatus::default();
        let last = if remote.has_status(&pipeline.status)? {
            &pipeline.status
        } else {
            &unclaimed
        };
        let desired = desired::build(ctx, pipeline, default_image.as_ref())?;
        remote.rename(pipeline, last)?;
        let status = remote.apply(&pipeline.spec, &desired, last)?;
        Ok(update_status(&status))
    }

    fn cleanup(&self, ctx: &Context, pipeline: &Pipeline) -> Result<Outcome, Failure> {
        for kind in [JobSpec::gvk(), ResourceSpec::gvk()] {
            if delete_dependents(ctx, &kind, "pipelineRef", pipeline)? {
                let message = "Waiting for the deletion of its Jobs and Resources.";
                return Err(Failure::wait("DependentsRemain", message));
            }
        }
        if !pipeline.status.is_claimed() {
            return Ok(Outcome::await_change());
        }
        if pipeline.spec.reclaim_policy == ReclaimPolicy::Orphan {
            let note = "The pipeline stays in Concourse: spec.reclaimPolicy is Orphan.";
            ctx.event("Orphaned", note);
            return Ok(Outcome::await_change());
        }
        let Some(team) = ctx.get_json(&team_of(pipeline).object_ref::<TeamSpec>())? else {
            ctx.warn("Orphaned", "The pipeline stays in Concourse: its Team is gone.");
            return Ok(Outcome::await_change());
        };
        RemotePipeline::new(ctx, pipeline, &ParentTeam::new(team))?.delete(&pipeline.status)
    }
}

/// The objects that a Pipeline refers to.
struct Dereferenced {
    team: ParentTeam,
    /// Image of the resource type for `spec.k8sConfigs` that the Instance sets by default.
    default_image: Option<ContainerImage>,
}

/// Dereferences the Team, which has to be Ready, and the Instance if its defaults apply.
fn dereference(ctx: &Context, pipeline: &Pipeline) -> Result<Dereferenced, Failure> {
    let team = ctx.require_ready_json(&team_of(pipeline).object_ref::<TeamSpec>());
    let team = ParentTeam::new(team.reason("TeamNotReady")?);
    let needs_default = !pipeline.spec.k8s_configs.is_empty() && pipeline.spec.k8s_config_image.is_none();
    let default_image = if needs_default {
        read_default_image(ctx, &team)?
    } else {
        None
    };
    Ok(Dereferenced { team, default_image })
}

/// Reads one field of the Team's Instance. To read the whole Instance as its type would take 13 KB of this component.
fn read_default_image(ctx: &Context, team: &ParentTeam) -> Result<Option<ContainerImage>, Failure> {
    let instance = ctx.get_json(&team.instance().object_ref::<InstanceSpec>())?;
    let instance = instance.unwrap_or_default();
    let image = &instance["spec"]["defaults"]["k8sConfigImage"];
    let text = |field| image[field].as_str().map(ToOwned::to_owned);
    Ok(text("repository").map(|repository| ContainerImage {
        repository,
        tag: text("tag"),
    }))
}

fn team_of(pipeline: &Pipeline) -> NamespacedName<'_> {
    pipeline.spec.team_ref.resolve(pipeline.namespace())
}

fn update_status(status: &PipelineStatus) -> Outcome {
    let synced = if status.archived == Some(true) {
        let message = "Concourse keeps no config of an archived pipeline.";
        Condition::new_false("ConfigSynced", "Archived", message)
    } else {
        Condition::new_true("ConfigSynced", "Synced", "Concourse has the config.")
    };
    Outcome::poll(POLL_INTERVAL_MS)
        .with(Condition::new_true(
            "Ready",
            "Ready",
            "The pipeline matches its spec.",
        ))
        .with(synced)
        .with(config_warning_condition(&status.warnings))
        .status(status)
}

ostler_sdk::plugin!(Pipelines);
