//! Following of a build until it finishes.

use concourse_api::{
    Build, BuildStatus, ConcourseOperation, NamespacedName, Reference, build_path, concourse_status,
    encode_segment, find_server_url, is_finished, is_on_server, rest,
};
use ostler_sdk::{
    EventMatch, Upstream,
    prelude::*,
    rfc3339,
    serde_json::{Value, from_str},
};

use crate::{RemoteJob, finish, is_comment_different, observe, tracked};

/// Interval of polling a build whose events are followed.
const FOLLOWED_INTERVAL_MS: u64 = 600_000;
/// Interval of polling a build whose events cannot be followed.
const POLLED_INTERVAL_MS: u64 = 30_000;
/// Delay before the next reconcile after a build has vanished.
const RETRIGGER_DELAY_MS: u64 = 1;

/// Events and bytes of a log that are read for its tail.
const MAX_LOG_EVENTS: u32 = 200;
const MAX_LOG_BYTES: u32 = 64 << 10;

const READ_BUILD: ConcourseOperation = ConcourseOperation::new("read the build", "FetchFailed");
const WRITE_COMMENT: ConcourseOperation = ConcourseOperation::new("comment on the build", "CommentFailed");
const ABORT_BUILD: ConcourseOperation = ConcourseOperation::new("abort the build", "CancelFailed");

/// A build that is followed. Only its Instance is needed: its Job may be deleted, its pipeline archived.
pub struct FollowedBuild<'a> {
    ctx: &'a Context<'a>,
    build: &'a Build,
    instance: NamespacedName<'a>,
    concourse: Upstream<'a>,
    /// The job that the build was triggered in; none for a build that the status knows already.
    job: Option<&'a RemoteJob<'a>>,
}

impl RemoteJob<'_> {
    /// The Instance of the job.
    pub fn instance_ref(&self) -> Reference {
        let instance = self.location.instance();
        Reference {
            name: instance.name.to_owned(),
            namespace: Some(instance.namespace.to_owned()),
        }
    }

    /// URL of a build's page.
    pub fn web_url(&self, build: &rest::BuildResponse) -> Option<String> {
        let name = build.name.as_deref().unwrap_or_default();
        let page = format!("/jobs/{}/builds/{name}", encode_segment(self.job));
        self.location.web_url(&page)
    }
}

impl<'a> FollowedBuild<'a> {
    /// The build whose Instance the status has recorded.
    pub fn known(ctx: &'a Context<'a>, build: &'a Build) -> Option<Self> {
        let instance = build.status.instance_ref.as_ref()?.resolve(build.namespace());
        Some(Self {
            ctx,
            build,
            instance,
            concourse: ctx.upstream_in(instance.namespace, instance.name),
            job: None,
        })
    }

    /// The build of a job, which has to belong to it.
    pub fn in_job(job: &'a RemoteJob<'a>) -> Self {
        let instance = job.location.instance();
        Self {
            ctx: job.ctx,
            build: job.build,
            instance,
            concourse: job.ctx.upstream_in(instance.namespace, instance.name),
            job: Some(job),
        }
    }

    /// Subscribes to the build's events, which wake the object, and reads the build.
    pub fn follow(&self, id: i64) -> Result<Outcome, Failure> {
        let last = &self.build.status;
        let server = find_server_url(self.ctx, self.instance).reason(READ_BUILD.reason())?;
        // A build that is adopted inherits nothing from the one before.
        let is_known = last.build_id == Some(id);
        let claimed = last.claimed_server.as_deref().filter(|_| is_known);
        if !is_on_server(self.ctx, server.as_deref(), claimed, &format!("build {id}")) {
            return self.handle_vanished(id);
        }
        let mut status = if is_known {
            last.clone()
        } else {
            BuildStatus::default()
        };
        // Before the read, so that no event between the two is missed.
        let subscribed = self.concourse.subscribe(
            build_path(id, "/events"),
            &[EventMatch::named("event").with("/event", "status")],
            &[EventMatch::named("end")],
        );
        let [found, resources] = self.concourse.send_all([
            self.concourse.get(build_path(id, "")),
            self.concourse.get(build_path(id, "/resources")),
        ]);
        let found = found.reason(READ_BUILD.reason())?;
        if concourse_status(&found) == Some(404) {
            return self.handle_vanished(id);
        }
        let found: rest::BuildResponse = READ_BUILD.read(Ok(found))?;
        if is_known && is_another_build(&found, last) {
            return self.handle_vanished(id);
        }
        if let Some(RemoteJob { job, .. }) = self.job
            && found.job_name.as_deref() != Some(job)
        {
            let message = format!("Build {id} does not belong to the job {job}.");
            return Err(Failure::terminal("InvalidSpec", message));
        }
        status.claimed_server = server;
        self.update_status(&mut status, &found);
        if let Ok(resources) = resources
            && concourse_status(&resources) == Some(200)
        {
            observe::update_from_resources(&mut status, resources.json().unwrap_or_default());
        }
        let has_finished = is_finished(status.concourse_status.as_deref());
        if has_finished && !is_finished(last.concourse_status.as_deref()) {
            self.record_end(id, &mut status);
        }
        if !has_finished && self.build.spec.canceled {
            self.abort(id)?;
        }
        // Last, because a failure of the comment must not prevent the rest.
        self.apply_comment(id, &mut status)?;
        if has_finished {
            return finish(self.ctx, self.build, &status);
        }
        let interval = match subscribed {
            Ok(()) => FOLLOWED_INTERVAL_MS,
            Err(error) => {
                let message = format!(
                    "Polling the build instead of following its events: {}",
                    error.text()
                );
                self.ctx.info(&message);
                POLLED_INTERVAL_MS
            }
        };
        Ok(tracked(Outcome::poll(interval), &status))
    }

    fn update_status(&self, status: &mut BuildStatus, found: &rest::BuildResponse) {
        observe::update_from_build(status, found);
        status.trigger = None;
        if let Some(job) = self.job {
            status.instance_ref = Some(job.instance_ref());
            status.web_url = job.web_url(found);
        }
    }

    fn apply_comment(&self, id: i64, status: &mut BuildStatus) -> Result<(), Failure> {
        let Some(comment) = &self.build.spec.comment else {
            return Ok(());
        };
        if !is_comment_different(&self.build.spec, status) {
            return Ok(());
        }
        let request = self.concourse.put(build_path(id, "/comment"));
        let answer = request.json(&json!({ "comment": comment })).send();
        match WRITE_COMMENT.check(answer) {
            Ok(_) => {
                status.comment = Some(comment.clone());
                Ok(())
            }
            Err(failure) => Err(failure.status(status)),
        }
    }

    fn abort(&self, id: i64) -> Result<(), Failure> {
        ABORT_BUILD.check(self.concourse.put(build_path(id, "/abort")).send())?;
        let note = "Requested Concourse to abort the build: spec.canceled is true.";
        self.ctx.event("Canceling", note);
        Ok(())
    }

    /// Records the end of the build when it is first seen: an Event, and the end of the log of a failed build.
    fn record_end(&self, id: i64, status: &mut BuildStatus) {
        let name = status.build_name.as_deref().unwrap_or_default();
        let result = status.concourse_status.as_deref().unwrap_or_default();
        let has_failed = matches!(result, "failed" | "errored");
        let note = format!("Build {name} {result}.");
        if has_failed {
            self.ctx.warn("BuildFailed", &note);
        } else {
            self.ctx.event("BuildFinished", &note);
        }
        let lines = usize::try_from(self.build.spec.log_tail_lines).unwrap_or_default();
        if has_failed && lines > 0 && status.log_tail.is_none() {
            status.log_tail = self.read_log_tail(id, lines);
        }
    }

    fn read_log_tail(&self, id: i64, lines: usize) -> Option<String> {
        let match_event = |kind: &str| EventMatch::named("event").with("/event", kind);
        let tail = self.concourse.read_events(
            build_path(id, "/events"),
            &[match_event("log"), match_event("error")],
            &[EventMatch::named("end")],
            MAX_LOG_EVENTS,
            MAX_LOG_BYTES,
        );
        match tail {
            Ok(tail) => {
                let events = tail.events.iter();
                let events: Vec<Value> = events.filter_map(|event| from_str(&event.data).ok()).collect();
                let text = observe::build_log_tail(events.iter(), lines);
                Some(text).filter(|text| !text.is_empty())
            }
            Err(error) => {
                let message = format!("The log could not be read: {}", error.text());
                self.ctx.info(&message);
                None
            }
        }
    }

    /// The outcome for a build that Concourse does not have any more.
    fn handle_vanished(&self, id: i64) -> Result<Outcome, Failure> {
        let last = &self.build.status;
        if last.build_id == Some(id) && is_finished(last.concourse_status.as_deref()) {
            // Concourse deletes old builds. The build has finished, and nothing is left to comment on.
            let mut status = last.clone();
            status.comment.clone_from(&self.build.spec.comment);
            return finish(self.ctx, self.build, &status);
        }
        if self.build.spec.build_id.is_some() {
            let message = format!("Concourse has no build {id}.");
            return Err(Failure::terminal("BuildVanished", message));
        }
        let note =
            format!("Build {id} vanished from Concourse before it finished; another one is triggered.");
        self.ctx.warn("BuildVanished", &note);
        Ok(Outcome::after(RETRIGGER_DELAY_MS)
            .with(Condition::new_false("Ready", "BuildVanished", &note))
            .with(Condition::new_unknown("Complete", "Pending", note))
            .status(&BuildStatus::default()))
    }
}

/// Returns whether a build has the ID of the known one and is not the same, as after the server's database was replaced:
/// IDs are unique in a database only.
fn is_another_build(found: &rest::BuildResponse, known: &BuildStatus) -> bool {
    let start_time = found.start_time.filter(|time| *time > 0).map(rfc3339);
    known.build_name.is_some() && found.name != known.build_name
        || known.start_time.is_some() && known.start_time != start_time
}
