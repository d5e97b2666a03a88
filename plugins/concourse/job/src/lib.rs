//! Reconciles `concourse-ci.org/v1alpha1` Job: its pause, and the history limits of its Builds.
//!
//! Jobs of one pipeline share one read of Concourse per minute; a job that matches its spec costs no write.

mod history;

use concourse_api::{
    BuildSpec, ConcourseOperation, Job, JobSpec, JobStatus, Location, NamespacedName, concourse_name,
    delete_dependents, delete_object, encode_segment, find_server_url, finish_cleanup, is_on_server, rest,
    suspended_outcome,
};
use history::HistoryLimits;
use ostler_sdk::{Selection, Upstream, prelude::*, rfc3339};

const POLL_INTERVAL_MS: u64 = 60_000;

/// `Cache-Control` of the list of a pipeline's jobs, which is the same for all of them: as long as none has a
/// difference, they share a cached one.
const SHARED_LIST: &str = "max-age=60";
/// `Cache-Control` of the list before and after a request that changes a job.
const UNCACHED_LIST: &str = "max-age=0";

const READ_JOB: ConcourseOperation = ConcourseOperation::new("read the job", "FetchFailed").in_pipeline();
const PAUSE_JOB: ConcourseOperation = ConcourseOperation::new("pause the job", "PauseFailed").in_pipeline();
const UNPAUSE_JOB: ConcourseOperation =
    ConcourseOperation::new("unpause the job", "UnpauseFailed").in_pipeline();
const PRUNE_FAILED: &str = "PruneFailed";
const LAST_BUILD_SUCCEEDED: &str = "LastBuildSucceeded";

/// Reconciles Jobs.
pub struct Jobs;

impl Reconciler for Jobs {
    type Spec = JobSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/job-finalizer");

    fn reconcile(&self, ctx: &Context, job: &Job) -> Result<Outcome, Failure> {
        if job.spec.suspend {
            return Ok(suspended_outcome());
        }
        let location = Location::dereference(ctx, pipeline_of(job))?;
        let remote = RemoteJob::new(ctx, &location, job);
        let own_pause = remote.find_own_pause(job)?;
        let found = remote.read(job).map_err(|failure| {
            let message = failure.message.clone();
            failure.with(Condition::new_unknown(
                LAST_BUILD_SUCCEEDED,
                READ_JOB.reason(),
                message,
            ))
        })?;
        let (found, own_pause) = apply_pause(&remote, job, found, own_pause)?;
        prune_builds(ctx, job)?;
        Ok(update_status(&remote, job, &found, own_pause))
    }

    fn cleanup(&self, ctx: &Context, job: &Job) -> Result<Outcome, Failure> {
        // Without their Job nothing would limit their history.
        delete_dependents(ctx, &BuildSpec::gvk(), "jobRef", job)?;
        if job.status.pause_owned != Some(true) {
            return Ok(Outcome::await_change());
        }
        let what = format!("job {}", concourse_name(job));
        let Some(location) = Location::dereference_for_cleanup(ctx, pipeline_of(job), &what)? else {
            return Ok(Outcome::await_change());
        };
        let remote = RemoteJob::new(ctx, &location, job);
        if remote.find_own_pause(job)?.is_none() {
            return Ok(Outcome::await_change());
        }
        let answer = remote.concourse.put(remote.api_path("/unpause")).send();
        finish_cleanup(ctx, location.instance(), answer, "unpause", &what)
    }
}

fn pipeline_of(job: &Job) -> NamespacedName<'_> {
    job.spec.pipeline_ref.resolve(job.namespace())
}

/// A pause that the object has set.
struct OwnPause {
    /// The server of the paused job; none if it is not known.
    server: Option<String>,
}

/// A job in Concourse.
struct RemoteJob<'a> {
    ctx: &'a Context<'a>,
    concourse: Upstream<'a>,
    location: &'a Location,
    name: &'a str,
    /// Path of the job below its pipeline.
    path: String,
}

impl<'a> RemoteJob<'a> {
    fn new(ctx: &'a Context<'a>, location: &'a Location, job: &'a Job) -> Self {
        Self {
            ctx,
            concourse: location.upstream(ctx),
            location,
            name: concourse_name(job),
            path: format!("/jobs/{}", encode_segment(concourse_name(job))),
        }
    }

    fn api_path(&self, rest: &str) -> String {
        self.location.api_path(&format!("{}{rest}", self.path), "")
    }

    /// Reads the job from the list that all Jobs of the pipeline share. A list that calls for a change, or that lacks
    /// the job, may be older than what calls for it, so a new one decides.
    fn read(&self, job: &Job) -> Result<rest::JobResponse, Failure> {
        match self.find(SHARED_LIST)? {
            Some(found) if found.paused == job.spec.paused => Ok(found),
            _ => self.read_uncached(),
        }
    }

    fn read_uncached(&self) -> Result<rest::JobResponse, Failure> {
        self.find(UNCACHED_LIST)?.ok_or_else(|| {
            let message = "The pipeline has no job of this name; waiting for its config to change.";
            Failure::wait("JobNotFound", message)
        })
    }

    fn find(&self, age: &str) -> Result<Option<rest::JobResponse>, Failure> {
        let path = self.location.api_path("/jobs", "");
        let request = self.concourse.get(path).header("Cache-Control", age);
        let jobs: Option<Option<Vec<rest::JobResponse>>> = READ_JOB.read_optional(request.send())?;
        let mut jobs = jobs.flatten().unwrap_or_default().into_iter();
        Ok(jobs.find(|job| job.name == self.name))
    }

    fn find_server(&self) -> Result<Option<String>, Failure> {
        let server = find_server_url(self.ctx, self.location.instance());
        server.reason(READ_JOB.reason())
    }

    /// The pause that the status records; none if it is on another server.
    fn find_own_pause(&self, job: &Job) -> Result<Option<OwnPause>, Failure> {
        if job.status.pause_owned != Some(true) {
            return Ok(None);
        }
        let (server, claimed) = (self.find_server()?, job.status.claimed_server.as_deref());
        let what = format!("job {}", self.name);
        Ok(is_on_server(self.ctx, server.as_deref(), claimed, &what).then_some(OwnPause { server }))
    }

    fn put(&self, operation: &ConcourseOperation, rest: &str) -> Result<(), Failure> {
        operation.check(self.concourse.put(self.api_path(rest)).send())?;
        Ok(())
    }
}

/// Pauses or unpauses the job if its spec says otherwise. Returns the job as it is then, and the pause if this object
/// owns it.
fn apply_pause(
    remote: &RemoteJob,
    job: &Job,
    found: rest::JobResponse,
    own_pause: Option<OwnPause>,
) -> Result<(rest::JobResponse, Option<OwnPause>), Failure> {
    match (found.paused, job.spec.paused) {
        (false, true) => {
            let server = remote.find_server()?;
            // A checkpoint before the request: the owner of the pause is known even if this call is interrupted.
            let claim = json!({ "pauseOwned": true, "claimedServer": server });
            remote.ctx.checkpoint(&claim).reason(PAUSE_JOB.reason())?;
            remote.put(&PAUSE_JOB, "/pause")?;
            Ok((remote.read_uncached()?, Some(OwnPause { server })))
        }
        (true, false) => {
            remote.put(&UNPAUSE_JOB, "/unpause")?;
            Ok((remote.read_uncached()?, None))
        }
        (true, true) => Ok((found, own_pause)),
        (false, false) => Ok((found, None)),
    }
}

/// Deletes the Builds that exceed the history limits, in any namespace. They are found by the job they refer to.
fn prune_builds(ctx: &Context, job: &Job) -> Result<(), Failure> {
    let fields = format!("spec.jobRef.name={}", job.name());
    let selection = Selection {
        fields: Some(&fields),
        ..Selection::default()
    };
    let parts = ["metadata", "spec.jobRef", "status"];
    let builds = ctx
        .list_json(&BuildSpec::gvk(), &selection, &parts)
        .reason(PRUNE_FAILED)?;
    let limits = HistoryLimits {
        succeeded: job.spec.successful_builds_history_limit,
        failed: job.spec.failed_builds_history_limit,
    };
    for build in history::find_surplus(&builds, NamespacedName::of(job), &limits) {
        let field = |name: &str| build["metadata"][name].as_str().unwrap_or_default();
        let reference = BuildSpec::reference(field("namespace"), field("name"));
        delete_object(ctx, &reference, field("uid")).reason(PRUNE_FAILED)?;
    }
    Ok(())
}

fn update_status(
    remote: &RemoteJob,
    job: &Job,
    found: &rest::JobResponse,
    own_pause: Option<OwnPause>,
) -> Outcome {
    let status = JobStatus {
        resolved_name: Some(concourse_name(job).to_owned()),
        web_url: remote.location.web_url(&remote.path),
        pause_owned: own_pause.is_some().then_some(true),
        claimed_server: own_pause.and_then(|pause| pause.server),
        ..build_status(found)
    };
    Outcome::poll(POLL_INTERVAL_MS)
        .with(Condition::new_true("Ready", "Ready", "The job matches its spec."))
        .with(last_build_condition(found.finished_build.as_ref()))
        .status(&status)
}

fn last_build_condition(build: Option<&rest::BuildResponse>) -> Condition {
    const CONDITION_TYPE: &str = LAST_BUILD_SUCCEEDED;
    let name = build.and_then(|build| build.name.as_deref()).unwrap_or_default();
    match build.and_then(|build| build.status.as_deref()) {
        Some("succeeded") => {
            Condition::new_true(CONDITION_TYPE, "Succeeded", format!("Build {name} succeeded."))
        }
        Some("failed") => Condition::new_false(CONDITION_TYPE, "Failed", format!("Build {name} failed.")),
        Some("errored") => Condition::new_false(CONDITION_TYPE, "Errored", format!("Build {name} errored.")),
        Some("aborted") => {
            Condition::new_false(CONDITION_TYPE, "Aborted", format!("Build {name} was aborted."))
        }
        _ => Condition::new_unknown(CONDITION_TYPE, "NoBuild", "No build has finished yet."),
    }
}

/// The status fields that Concourse shows.
fn build_status(job: &rest::JobResponse) -> JobStatus {
    let (next, last) = (job.next_build.as_ref(), job.finished_build.as_ref());
    JobStatus {
        job_id: job.id,
        paused: Some(job.paused),
        paused_by: job.paused_by.clone(),
        paused_at: job.paused_at.map(rfc3339),
        has_new_inputs: Some(job.has_new_inputs),
        disable_manual_trigger: Some(job.disable_manual_trigger),
        groups: job.groups.clone(),
        inputs: job.inputs.clone(),
        outputs: job.outputs.clone(),
        next_build_id: next.map(|build| build.id),
        next_build_name: next.and_then(|build| build.name.clone()),
        next_build_status: next.and_then(|build| build.status.clone()),
        last_build_id: last.map(|build| build.id),
        last_build_name: last.and_then(|build| build.name.clone()),
        last_build_status: last.and_then(|build| build.status.clone()),
        last_build_time: last.and_then(|build| build.end_time).map(rfc3339),
        ..JobStatus::default()
    }
}

ostler_sdk::plugin!(Jobs);
