//! Reconciles `concourse-ci.org/v1alpha1` Build: triggers a build exactly once, or adopts an existing one, and follows
//! it by its event stream until it finishes. A finished build costs no request.

mod attempt;
mod follow;
mod observe;
mod trigger;

use concourse_api::{
    Build, BuildSpec, BuildStatus, ConcourseOperation, Job, JobSpec, Location, NamespacedName, build_path,
    concourse_name, delete_object, find_server_url, finish_cleanup, is_finished, is_on_server,
    suspended_outcome,
};
use follow::FollowedBuild;
use ostler_sdk::{Upstream, from_rfc3339, prelude::*, rfc3339};

const CHAIN_NOT_READY: &str = "ChainNotReady";

/// Reconciles Builds.
pub struct Builds;

impl Reconciler for Builds {
    type Spec = BuildSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/build-finalizer");

    fn reconcile(&self, ctx: &Context, build: &Build) -> Result<Outcome, Failure> {
        if build.spec.suspend {
            return Ok(suspended_outcome());
        }
        let step = next_step(build);
        match step {
            Step::Finish => return finish(ctx, build, &build.status),
            Step::Cancel => return finish(ctx, build, &canceled_status(ctx)),
            Step::Follow(id) if build.status.build_id == Some(id) => {
                if let Some(followed) = FollowedBuild::known(ctx, build) {
                    return followed.follow(id);
                }
            }
            _ => {}
        }
        let Dereferenced { job, location } = dereference(ctx, build)?;
        let server = find_server_url(ctx, location.instance()).reason(CHAIN_NOT_READY)?;
        let remote = RemoteJob {
            ctx,
            build,
            concourse: location.upstream(ctx),
            server,
            job: concourse_name(&job),
            location: &location,
        };
        match step {
            Step::Follow(id) => FollowedBuild::in_job(&remote).follow(id),
            Step::Search(lost) => remote.search(lost),
            Step::Trigger | Step::Finish | Step::Cancel => remote.trigger_unless_search(),
        }
    }

    fn cleanup(&self, ctx: &Context, build: &Build) -> Result<Outcome, Failure> {
        let (spec, status) = (&build.spec, &build.status);
        let is_running = !is_finished(status.concourse_status.as_deref());
        if !spec.abort_on_delete || !is_running || spec.build_id.is_some() {
            return Ok(Outcome::await_change());
        }
        let Some(id) = status.build_id else {
            if status.trigger.is_some() {
                let note =
                    "A build may have been triggered that is not aborted, because its ID is not known.";
                ctx.warn("Orphaned", note);
            }
            return Ok(Outcome::await_change());
        };
        let what = format!("build {id}");
        if let Some(instance) = &status.instance_ref {
            return abort(ctx, build, instance.resolve(build.namespace()), id, &what);
        }
        let job = job_of(build);
        let Some(job) = ctx.get::<JobSpec>(job.namespace, job.name)? else {
            let note = format!("{what} continues in Concourse: its Job is gone.");
            ctx.warn("Orphaned", &note);
            return Ok(Outcome::await_change());
        };
        let Some(location) = Location::dereference_for_cleanup(ctx, pipeline_of(&job), &what)? else {
            return Ok(Outcome::await_change());
        };
        abort(ctx, build, location.instance(), id, &what)
    }
}

/// Aborts the build of an object that is deleted, unless it is on another server.
fn abort(
    ctx: &Context,
    build: &Build,
    instance: NamespacedName,
    id: i64,
    what: &str,
) -> Result<Outcome, Failure> {
    let server = find_server_url(ctx, instance)?;
    if !is_on_server(
        ctx,
        server.as_deref(),
        build.status.claimed_server.as_deref(),
        what,
    ) {
        return Ok(Outcome::await_change());
    }
    let concourse = ctx.upstream_in(instance.namespace, instance.name);
    let answer = concourse.put(build_path(id, "/abort")).send();
    finish_cleanup(ctx, instance, answer, "abort", what)
}

/// The next step of a reconcile.
enum Step<'a> {
    /// The build has finished, and nothing is left to do in Concourse.
    Finish,
    /// The build was canceled before it was triggered.
    Cancel,
    /// Follow the build with this ID.
    Follow(i64),
    /// Search for the build of an attempt whose result is not known.
    Search(&'a concourse_api::BuildTrigger),
    /// Trigger a build.
    Trigger,
}

fn next_step(build: &Build) -> Step<'_> {
    let (spec, status) = (&build.spec, &build.status);
    let adopted = spec.build_id.filter(|id| status.build_id != Some(*id));
    match (adopted, status.build_id, &status.trigger) {
        (Some(id), ..) => Step::Follow(id),
        (None, ..)
            if is_finished(status.concourse_status.as_deref()) && !is_comment_different(spec, status) =>
        {
            Step::Finish
        }
        (None, Some(id), _) => Step::Follow(id),
        (None, None, Some(lost)) => Step::Search(lost),
        (None, None, None) if spec.canceled => Step::Cancel,
        (None, None, None) => Step::Trigger,
    }
}

/// The objects that a Build refers to.
struct Dereferenced {
    job: Job,
    location: Location,
}

/// Dereferences the Job and its Pipeline, which have to be Ready.
fn dereference(ctx: &Context, build: &Build) -> Result<Dereferenced, Failure> {
    let job = job_of(build);
    let job = ctx.require_ready::<JobSpec>(job.namespace, job.name);
    let job = job.reason(CHAIN_NOT_READY)?;
    let location = Location::dereference(ctx, pipeline_of(&job)).reason(CHAIN_NOT_READY)?;
    Ok(Dereferenced { job, location })
}

fn job_of(build: &Build) -> NamespacedName<'_> {
    build.spec.job_ref.resolve(build.namespace())
}

fn pipeline_of(job: &Job) -> NamespacedName<'_> {
    job.spec.pipeline_ref.resolve(job.namespace())
}

/// A job in Concourse, and the Build of it that is reconciled.
struct RemoteJob<'a> {
    ctx: &'a Context<'a>,
    build: &'a Build,
    concourse: Upstream<'a>,
    /// The server of the job; none if the Upstream is gone.
    server: Option<String>,
    location: &'a Location,
    /// Name of the job.
    job: &'a str,
}

/// The status of a Build that was canceled before a build was triggered. It counts as aborted from now on, so that
/// history limits and time to live apply to it.
fn canceled_status(ctx: &Context) -> BuildStatus {
    BuildStatus {
        concourse_status: Some("aborted".to_owned()),
        end_time: Some(rfc3339(ctx.now() / 1000)),
        ..BuildStatus::default()
    }
}

/// Returns whether the comment has to be written. To Concourse none and an empty one are the same.
fn is_comment_different(spec: &BuildSpec, status: &BuildStatus) -> bool {
    let current = status.comment.as_deref().unwrap_or_default();
    spec.comment.as_deref().is_some_and(|desired| desired != current)
}

/// The outcome for a build that has finished. Its object is deleted when its time to live is over.
fn finish(ctx: &Context, build: &Build, status: &BuildStatus) -> Result<Outcome, Failure> {
    let next = match expiry_of(build, status) {
        Some(expiry) if ctx.now() < expiry => Outcome::at(expiry),
        Some(_) => {
            delete_object(ctx, &build.reference(), &build.metadata.uid).reason("DeleteFailed")?;
            Outcome::await_change()
        }
        None => Outcome::await_change(),
    };
    let ready = match status.build_id {
        Some(_) => Condition::new_true("Ready", "Tracked", "The build has finished."),
        None => Condition::new_true("Ready", "Canceled", "No build was triggered."),
    };
    Ok(next
        .with(ready)
        .with(observe::complete_condition(status))
        .status(status))
}

/// Time at which the object of a finished build is deleted, in milliseconds since the Unix epoch.
fn expiry_of(build: &Build, status: &BuildStatus) -> Option<u64> {
    let end = from_rfc3339(status.end_time.as_deref()?)?;
    let ttl = u64::try_from(build.spec.ttl_seconds_after_finished?).unwrap_or_default();
    Some((end + ttl).saturating_mul(1000))
}

/// The outcome for a build that has not finished.
fn tracked(outcome: Outcome, status: &BuildStatus) -> Outcome {
    outcome
        .with(Condition::new_true("Ready", "Tracked", "The build is followed."))
        .with(observe::complete_condition(status))
        .status(status)
}

/// Shared by the steps that trigger a build, so that all of them fail with the same reason.
const fn trigger_operation(action: &'static str) -> ConcourseOperation {
    ConcourseOperation::new(action, "TriggerFailed")
}

ostler_sdk::plugin!(Builds);
