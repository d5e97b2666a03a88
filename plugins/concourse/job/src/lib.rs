//! Reconciles `concourse-ci.org/v1alpha1` Job: its pause, and how many of its
//! Builds are kept. Reads once and writes nothing while all is as wanted.

mod history;

use concourse_api::{
    Job, JobInput, JobObservation, JobOutput, JobSpec, Place, discard, escape, suspended, undone,
};
use ostler_sdk::{ObjectRef, Selection, Upstream, prelude::*, rfc3339, serde_json::Value};

const POLL: u64 = 60_000;
const FETCH_FAILED: &str = "FetchFailed";

/// Reconciles Jobs.
pub struct Jobs;

impl Reconciler for Jobs {
    type Spec = JobSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/job-finalizer");

    fn reconcile(&self, ctx: &Context, job: &Job) -> Result<Outcome, Failure> {
        if job.spec.suspend {
            return Ok(suspended());
        }
        let place = Place::ready(ctx, &pipeline_of(job))?;
        let remote = Remote::new(ctx, &place, job);
        let mut found = remote.read().map_err(|failure| {
            let message = failure.message.clone();
            failure.with(Condition::new_unknown(
                "LastBuildSucceeded",
                FETCH_FAILED,
                message,
            ))
        })?;
        let mut owned = job.status.pause_owned;
        match (found["paused"] == true, job.spec.paused) {
            (false, true) => {
                // Before, so that it is known whose pause it is whatever happens in between.
                ctx.checkpoint(&json!({ "pauseOwned": true }))
                    .reason("PauseFailed")?;
                owned = Some(true);
                remote.put("/pause", "pause the job", "PauseFailed")?;
                found = remote.read()?;
            }
            (true, false) => {
                remote.put("/unpause", "unpause the job", "UnpauseFailed")?;
                owned = None;
                found = remote.read()?;
            }
            (true, true) => {}
            (false, false) => owned = None,
        }
        prune(ctx, job)?;
        let mut status = describe(&found);
        status.resolved_name = Some(job_name(job).to_owned());
        status.web_url = place.page(&remote.rest);
        status.pause_owned = owned;
        Ok(Outcome::poll(POLL)
            .with(Condition::new_true("Ready", "Ready", "The job is as wanted."))
            .with(last_build_succeeded(&found["finished_build"]))
            .status(&status))
    }

    fn cleanup(&self, ctx: &Context, job: &Job) -> Result<Outcome, Failure> {
        let what = ["job ", job_name(job)].concat();
        if job.status.pause_owned != Some(true) {
            return Ok(Outcome::await_change());
        }
        let Some(place) = Place::last(ctx, &pipeline_of(job), &what)? else {
            return Ok(Outcome::await_change());
        };
        let remote = Remote::new(ctx, &place, job);
        let answer = remote.concourse.put(remote.path("/unpause")).send();
        undone(ctx, place.instance(), answer, "unpause", &what)
    }
}

fn pipeline_of(job: &Job) -> ObjectRef {
    job.spec.pipeline_ref.pipeline(job.namespace())
}

fn job_name(job: &Job) -> &str {
    job.spec.job_name.as_deref().unwrap_or(job.name())
}

/// The job in Concourse.
struct Remote<'a> {
    concourse: Upstream<'a>,
    place: &'a Place,
    /// Its path below the pipeline.
    rest: String,
}

impl<'a> Remote<'a> {
    fn new(ctx: &'a Context, place: &'a Place, job: &Job) -> Self {
        Self {
            concourse: place.concourse(ctx),
            place,
            rest: ["/jobs/", &escape(job_name(job))].concat(),
        }
    }

    fn path(&self, tail: &str) -> String {
        self.place.path(&[&self.rest, tail].concat(), "")
    }

    fn read(&self) -> Result<Value, Failure> {
        let response = self.concourse.get(self.path("")).send().reason(FETCH_FAILED)?;
        match response.status() {
            200 => response.value().reason(FETCH_FAILED),
            404 => {
                let message = "The pipeline has no job of this name; waiting for its config to change.";
                Err(Failure::wait("JobNotFound", message))
            }
            _ => Err(Place::refused(&response, "read the job", FETCH_FAILED)),
        }
    }

    fn put(&self, verb: &str, what: &str, reason: &str) -> Result<(), Failure> {
        let response = self.concourse.put(self.path(verb)).send().reason(reason)?;
        match response.is_success() {
            true => Ok(()),
            false => Err(Place::refused(&response, what, reason)),
        }
    }
}

/// Deletes the Builds that are too many. They are found by the job they name, in whatever namespace they are.
fn prune(ctx: &Context, job: &Job) -> Result<(), Failure> {
    let kind = gvk("concourse-ci.org", "v1alpha1", "Build");
    let fields = ["spec.jobRef.name=", job.name()].concat();
    let selection = Selection {
        fields: Some(&fields),
        ..Selection::default()
    };
    let builds = ctx
        .list_json(&kind, &selection, &["metadata", "spec.jobRef", "status"])
        .reason("PruneFailed")?;
    let spec = &job.spec;
    let surplus = history::surplus(
        &builds,
        (job.namespace(), job.name()),
        spec.successful_builds_history_limit,
        spec.failed_builds_history_limit,
    );
    for build in surplus {
        let text = |field: &str| build["metadata"][field].as_str().unwrap_or_default();
        let reference = kind.clone().named(text("namespace"), text("name"));
        discard(ctx, &reference, text("uid")).reason("PruneFailed")?;
    }
    Ok(())
}

fn last_build_succeeded(build: &Value) -> Condition {
    const TYPE: &str = "LastBuildSucceeded";
    let message = ["Build ", build["name"].as_str().unwrap_or_default()].concat();
    match build["status"].as_str().unwrap_or_default() {
        "succeeded" => Condition::new_true(TYPE, "Succeeded", [&message, " succeeded."].concat()),
        "failed" => Condition::new_false(TYPE, "Failed", [&message, " failed."].concat()),
        "errored" => Condition::new_false(TYPE, "Errored", [&message, " errored."].concat()),
        "aborted" => Condition::new_false(TYPE, "Aborted", [&message, " was aborted."].concat()),
        _ => Condition::new_unknown(TYPE, "NoBuild", "No build has finished yet."),
    }
}

/// A job as Concourse shows it.
fn describe(job: &Value) -> JobObservation {
    let (next, last) = (&job["next_build"], &job["finished_build"]);
    JobObservation {
        job_id: job["id"].as_i64(),
        paused: Some(job["paused"] == true),
        paused_by: text(&job["paused_by"]),
        paused_at: job["paused_at"].as_u64().map(rfc3339),
        has_new_inputs: Some(job["has_new_inputs"] == true),
        disable_manual_trigger: Some(job["disable_manual_trigger"] == true),
        groups: texts(&job["groups"]),
        inputs: list(&job["inputs"])
            .map(|input| JobInput {
                name: text(&input["name"]).unwrap_or_default(),
                resource: text(&input["resource"]),
                trigger: input["trigger"].as_bool(),
                passed: texts(&input["passed"]),
            })
            .collect(),
        outputs: list(&job["outputs"])
            .map(|output| JobOutput {
                name: text(&output["name"]).unwrap_or_default(),
                resource: text(&output["resource"]),
            })
            .collect(),
        next_build_id: next["id"].as_i64(),
        next_build_name: text(&next["name"]),
        next_build_status: text(&next["status"]),
        last_build_id: last["id"].as_i64(),
        last_build_name: text(&last["name"]),
        last_build_status: text(&last["status"]),
        last_build_time: last["end_time"].as_u64().map(rfc3339),
        ..JobObservation::default()
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(ToOwned::to_owned)
}

fn texts(value: &Value) -> Vec<String> {
    list(value).filter_map(text).collect()
}

ostler_sdk::plugin!(Jobs);
