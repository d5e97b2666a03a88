//! Reconciles `concourse-ci.org/v1alpha1` Build: begins a build once (or adopts one), follows it by its events, and
//! says how it ended. A finished one costs nothing.

mod observe;
mod trigger;

use concourse_api::{
    Build, BuildSpec, BuildStatus, BuildTrigger, JobSpec, Place, TriggerState, discard, escape, finished,
    name_of, refused, suspended, target, undone,
};
use ostler_sdk::{
    EventMatch, ObjectRef, Response, Selection, Upstream, duration, from_rfc3339,
    prelude::*,
    serde_json::{Value, from_str},
};

use trigger::{Fate, Sibling};

/// How often a build is looked at whose events are followed, and one whose are not.
const FOLLOWED: u64 = 600_000;
const POLLED: u64 = 30_000;
/// A request that was lost may still be carried out for so long.
const SETTLE: u64 = 5000;
const TRIGGER_FAILED: &str = "TriggerFailed";
const FETCH_FAILED: &str = "FetchFailed";

/// Reconciles Builds.
pub struct Builds;

impl Reconciler for Builds {
    type Spec = BuildSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/build-finalizer");

    fn reconcile(&self, ctx: &Context, build: &Build) -> Result<Outcome, Failure> {
        if build.spec.suspend {
            return Ok(suspended());
        }
        let (spec, status) = (&build.spec, &build.status);
        let adopted = spec.build_id.filter(|id| status.build_id != Some(*id));
        let comment = comment_differs(spec, status);
        if finished(status.concourse_status.as_deref()) && adopted.is_none() && !comment {
            return self::done(ctx, build, status);
        }
        let job = ctx.require_ready_json(&job_of(build)).reason("ChainNotReady")?;
        let (namespace, name) = target(&job, "pipelineRef");
        let pipeline = concourse_api::PipelineSpec::reference(namespace, name);
        let place = Place::ready(ctx, &pipeline).reason("ChainNotReady")?;
        let remote = Remote {
            ctx,
            build,
            concourse: place.concourse(ctx),
            job: name_of(&job, "jobName").to_owned(),
            place,
        };
        match (adopted, status.build_id, &status.trigger) {
            (Some(id), ..) => remote.follow(id, BuildStatus::default()),
            (None, Some(id), _) => remote.follow(id, status.clone()),
            (None, None, None) if spec.canceled => Ok(never_begun()),
            (None, None, None) => remote.begin(),
            (None, None, Some(lost)) => remote.look(lost),
        }
    }

    fn cleanup(&self, ctx: &Context, build: &Build) -> Result<Outcome, Failure> {
        let (spec, status) = (&build.spec, &build.status);
        let running = !finished(status.concourse_status.as_deref());
        if !spec.abort_on_delete || !running || spec.build_id.is_some() {
            return Ok(Outcome::await_change());
        }
        let Some(id) = status.build_id else {
            if status.trigger.is_some() {
                ctx.warn("Orphaned", "A build may have been begun that nobody aborts.");
            }
            return Ok(Outcome::await_change());
        };
        let what = ["build ", &id.to_string()].concat();
        let Some(job) = ctx.get_json(&job_of(build))? else {
            ctx.warn(
                "Orphaned",
                &[&what, " goes on in Concourse: its Job is gone."].concat(),
            );
            return Ok(Outcome::await_change());
        };
        let (namespace, name) = target(&job, "pipelineRef");
        let pipeline = concourse_api::PipelineSpec::reference(namespace, name);
        let Some(place) = Place::last(ctx, &pipeline, &what)? else {
            return Ok(Outcome::await_change());
        };
        let answer = place.concourse(ctx).put(path(id, "/abort")).send();
        undone(ctx, place.instance(), answer, "abort", &what)
    }
}

/// What is said of a build that was canceled before there was one.
fn never_begun() -> Outcome {
    let message = "Canceled before a build was begun.";
    Outcome::await_change()
        .with(Condition::new_true("Ready", "Canceled", "No build was begun."))
        .with(Condition::new_true("Complete", "Aborted", message))
}

/// Whether a comment is to be written. None and an empty one are the same in Concourse.
fn comment_differs(spec: &BuildSpec, status: &BuildStatus) -> bool {
    let now = status.comment.as_deref().unwrap_or_default();
    spec.comment.as_deref().is_some_and(|wanted| wanted != now)
}

fn job_of(build: &Build) -> ObjectRef {
    let job = &build.spec.job_ref;
    JobSpec::reference(job.namespace_or(build.namespace()), &job.name)
}

/// Path of a build, or of what is below it.
fn path(id: i64, rest: &str) -> String {
    ["/api/v1/builds/", &id.to_string(), rest].concat()
}

/// A build that has finished: nothing is asked any more; its object goes when its time is over.
fn done(ctx: &Context, build: &Build, status: &BuildStatus) -> Result<Outcome, Failure> {
    let said = |outcome: Outcome| {
        outcome
            .with(Condition::new_true("Ready", "Tracked", "The build has finished."))
            .with(observe::complete(status))
            .status(status)
    };
    let end = status.end_time.as_deref().and_then(from_rfc3339);
    let Some((ttl, end)) = build.spec.ttl_seconds_after_finished.zip(end) else {
        return Ok(said(Outcome::await_change()));
    };
    let until = (end + u64::try_from(ttl).unwrap_or_default()).saturating_mul(1000);
    if ctx.now() < until {
        return Ok(said(Outcome::at(until)));
    }
    let own = BuildSpec::reference(build.namespace(), build.name());
    discard(ctx, &own, &build.metadata.uid).reason("DeleteFailed")?;
    Ok(said(Outcome::await_change()))
}

/// The job in Concourse, and what is to be done there.
struct Remote<'a> {
    ctx: &'a Context<'a>,
    build: &'a Build,
    concourse: Upstream<'a>,
    place: Place,
    job: String,
}

impl Remote<'_> {
    /// Follows a build: its events wake, and what it is now is read.
    fn follow(&self, id: i64, mut status: BuildStatus) -> Result<Outcome, Failure> {
        let spec = &self.build.spec;
        // First, so that nothing is missed between reading and following.
        let followed = self.concourse.subscribe(
            path(id, "/events"),
            &[EventMatch::named("event").with("/event", "status")],
            &[EventMatch::named("end")],
        );
        let [found, resources] = self.concourse.send_all([
            self.concourse.get(path(id, "")),
            self.concourse.get(path(id, "/resources")),
        ]);
        let found = found.reason(FETCH_FAILED)?;
        let found = match found.status() {
            200 => found.value().reason(FETCH_FAILED)?,
            // A page of somebody in between is no word of Concourse.
            404 if found.header("x-concourse-version").is_some() => return self.vanished(id),
            _ => return Err(refused(&found, "read the build", FETCH_FAILED)),
        };
        if found["job_name"] != self.job.as_str() {
            let message = ["Build ", &id.to_string(), " is not of the job ", &self.job, "."].concat();
            return Err(Failure::terminal("InvalidSpec", message));
        }
        observe::describe(&found, &mut status);
        status.trigger = None;
        let name = status.build_name.clone().unwrap_or_default();
        status.web_url = self
            .place
            .page(&["/jobs/", &escape(&self.job), "/builds/", &name].concat());
        if let Ok(resources) = resources
            && resources.status() == 200
        {
            observe::resources(&resources.value().unwrap_or_default(), &mut status);
        }
        let over = finished(status.concourse_status.as_deref());
        if over && !finished(self.build.status.concourse_status.as_deref()) {
            self.ended(id, &name, &mut status);
        }
        if !over && spec.canceled {
            self.abort(id)?;
        }
        // Last: it stands in the way of nothing.
        self.comment(id, &mut status)?;
        if over {
            return done(self.ctx, self.build, &status);
        }
        let interval = match followed {
            Ok(()) => FOLLOWED,
            Err(error) => {
                self.ctx
                    .info(&["Polled instead of followed: ", &error.text()].concat());
                POLLED
            }
        };
        Ok(Outcome::poll(interval)
            .with(Condition::new_true("Ready", "Tracked", "The build is followed."))
            .with(observe::complete(&status))
            .status(&status))
    }

    fn comment(&self, id: i64, status: &mut BuildStatus) -> Result<(), Failure> {
        const FAILED: &str = "CommentFailed";
        let Some(comment) = &self.build.spec.comment else {
            return Ok(());
        };
        if !comment_differs(&self.build.spec, status) {
            return Ok(());
        }
        let request = self.concourse.put(path(id, "/comment"));
        let sent = request.json(&json!({ "comment": comment })).send();
        let failure = match sent {
            Ok(response) if response.is_success() => {
                status.comment = Some(comment.clone());
                return Ok(());
            }
            Ok(response) => refused(&response, "comment on the build", FAILED),
            Err(error) => Failure::from(error).reason(FAILED),
        };
        Err(failure.status(status))
    }

    fn abort(&self, id: i64) -> Result<(), Failure> {
        const FAILED: &str = "CancelFailed";
        let response = self.concourse.put(path(id, "/abort")).send().reason(FAILED)?;
        match response.status() {
            200 | 204 => {
                self.ctx
                    .event("Canceling", "The build is aborted, as spec.canceled says.");
                Ok(())
            }
            _ => Err(refused(&response, "abort the build", FAILED)),
        }
    }

    /// Seen for the first time that it has finished.
    fn ended(&self, id: i64, name: &str, status: &mut BuildStatus) {
        let how = status.concourse_status.as_deref().unwrap_or_default();
        let note = ["Build ", name, " ", how, "."].concat();
        match how {
            "failed" | "errored" => self.ctx.warn("BuildFailed", &note),
            _ => self.ctx.event("BuildFinished", &note),
        }
        let lines = usize::try_from(self.build.spec.log_tail_lines).unwrap_or_default();
        if lines == 0 || !matches!(how, "failed" | "errored") || status.log_tail.is_some() {
            return;
        }
        let of = |kind: &str| EventMatch::named("event").with("/event", kind);
        let read = self.concourse.read_events(
            path(id, "/events"),
            &[of("log"), of("error")],
            &[EventMatch::named("end")],
            200,
            64 << 10,
        );
        match read {
            Ok(tail) => {
                let events: Vec<Value> = tail
                    .events
                    .iter()
                    .filter_map(|event| from_str(&event.data).ok())
                    .collect();
                let text = observe::log_tail(events.iter(), lines);
                status.log_tail = Some(text).filter(|text| !text.is_empty());
            }
            Err(error) => self.ctx.info(&["The log was not read: ", &error.text()].concat()),
        }
    }

    /// Concourse does not know the build any more, which had not finished.
    fn vanished(&self, id: i64) -> Result<Outcome, Failure> {
        let before = &self.build.status;
        if before.build_id == Some(id) && finished(before.concourse_status.as_deref()) {
            // Reaped, as old builds are: it has ended, and there is nothing left to comment on.
            let mut kept = before.clone();
            kept.comment.clone_from(&self.build.spec.comment);
            return done(self.ctx, self.build, &kept);
        }
        let id = id.to_string();
        if self.build.spec.build_id.is_some() {
            let message = ["Concourse has no build ", &id, "."].concat();
            return Err(Failure::terminal("BuildVanished", message));
        }
        let note = [
            "Build ",
            &id,
            " is gone from Concourse before it finished; another is begun.",
        ]
        .concat();
        self.ctx.warn("BuildVanished", &note);
        Ok(Outcome::after(1)
            .with(Condition::new_false("Ready", "BuildVanished", &note))
            .with(Condition::new_unknown("Complete", "Pending", note))
            .status(&BuildStatus::default()))
    }

    /// The other Builds of this job.
    fn siblings(&self) -> Result<Vec<Sibling>, Failure> {
        let job = &self.build.spec.job_ref;
        let fields = ["spec.jobRef.name=", &job.name].concat();
        let selection = Selection {
            fields: Some(&fields),
            ..Selection::default()
        };
        let only = ["metadata", "spec", "status"];
        let list = self.ctx.list_json(&BuildSpec::gvk(), &selection, &only);
        let list = list.reason(TRIGGER_FAILED)?;
        let job = (job.namespace_or(self.build.namespace()), job.name.as_str());
        Ok(Sibling::read(&list, job, &self.build.metadata.uid))
    }

    /// Begins a build, unless somebody looks for a lost one.
    fn begin(&self) -> Result<Outcome, Failure> {
        if trigger::somebody_looks(&self.siblings()?) {
            return Err(wait());
        }
        let after = self.newest()?;
        self.note(Some((after, TriggerState::InFlight)))?;
        // Once more: now whoever begins to look sees this one.
        if trigger::somebody_looks(&self.siblings()?) {
            self.note(None)?;
            return Err(wait());
        }
        self.trigger(after)
    }

    /// Writes down what is being done.
    fn note(&self, attempt: Option<(i64, TriggerState)>) -> Result<(), Failure> {
        let attempt = attempt.map(|(after, state)| self.attempt(after, state));
        let noted = self.ctx.checkpoint(&json!({ "trigger": attempt }));
        noted.reason(TRIGGER_FAILED)
    }

    fn attempt(&self, after: i64, state: TriggerState) -> BuildTrigger {
        let at = i64::try_from(self.ctx.now()).unwrap_or(i64::MAX);
        BuildTrigger { after, at, state }
    }

    /// ID of the newest build of the pipeline. Of the pipeline, because the list of a job has builds that were run
    /// again beside those they repeat.
    fn newest(&self) -> Result<i64, Failure> {
        let path = self.place.path("/builds", "limit=1");
        let response = self.concourse.get(path).send().reason(TRIGGER_FAILED)?;
        if !response.is_success() {
            return Err(refused(&response, "list the builds", TRIGGER_FAILED));
        }
        let builds = response.value().reason(TRIGGER_FAILED)?;
        Ok(builds[0]["id"].as_i64().unwrap_or_default())
    }

    /// Asks for the build. The answer is written down with the outcome; if it is lost, so that it is looked for.
    fn trigger(&self, after: i64) -> Result<Outcome, Failure> {
        let mut rest = ["/jobs/", &escape(&self.job), "/builds"].concat();
        if let Some(name) = &self.build.spec.rerun_of {
            rest.push('/');
            rest.push_str(&escape(name));
        }
        let lost = |failure: Failure| {
            let status = BuildStatus {
                trigger: Some(self.attempt(after, TriggerState::Unknown)),
                ..BuildStatus::default()
            };
            failure.status(&status)
        };
        // Not begun: the next attempt begins anew.
        let failed = |failure: Failure| failure.status(&BuildStatus::default());
        let response = match self.concourse.post(self.place.path(&rest, "")).send() {
            Ok(response) => response,
            Err(error @ (Error::Unavailable(_) | Error::LimitExceeded(_))) => {
                return Err(lost(Failure::from(error).reason(TRIGGER_FAILED)));
            }
            Err(error) => return Err(failed(Failure::from(error).reason(TRIGGER_FAILED))),
        };
        match response.status() {
            200..=299 => {}
            400..=499 => return Err(failed(not_allowed(&response))),
            // It may have been begun before that went wrong.
            _ => return Err(lost(refused(&response, "begin a build", TRIGGER_FAILED))),
        }
        let found = match response.value() {
            Ok(found) if found["id"].is_i64() => found,
            _ => return Err(lost(refused(&response, "read the answer", TRIGGER_FAILED))),
        };
        let name = found["name"].as_str().unwrap_or_default();
        self.ctx.event(
            "Triggered",
            &["Build ", name, " of ", &self.job, " was begun."].concat(),
        );
        self.taken(&found)
    }

    /// A build is this object's from now on; all else comes when that is written.
    fn taken(&self, found: &Value) -> Result<Outcome, Failure> {
        let mut status = BuildStatus::default();
        observe::describe(found, &mut status);
        Ok(Outcome::after(1)
            .with(Condition::new_true("Ready", "Tracked", "The build is followed."))
            .with(observe::complete(&status))
            .status(&status))
    }

    /// Looks for the build of an attempt whose answer is not known.
    fn look(&self, lost: &BuildTrigger) -> Result<Outcome, Failure> {
        if lost.state == TriggerState::Ambiguous {
            let message = "It can't be told which build is this one's: see the Event TriggerAmbiguous. Set \
                           spec.buildID, or delete this object.";
            return Err(Failure::terminal("TriggerAmbiguous", message));
        }
        let uid = &self.build.metadata.uid;
        if lost.state == TriggerState::InFlight {
            let mut lost = lost.clone();
            lost.state = TriggerState::Unknown;
            let noted = self.ctx.checkpoint(&json!({ "trigger": lost }));
            noted.reason(TRIGGER_FAILED)?;
        }
        if !trigger::may_look(lost, uid, &self.siblings()?) {
            return Err(wait());
        }
        let found = self.candidates(lost.after)?;
        let rerun_of = self.build.spec.rerun_of.as_deref().unwrap_or_default();
        let id = |build: &Value| build["id"].as_i64();
        let ids: Vec<i64> = found.iter().filter_map(id).collect();
        match trigger::fate(&ids, rerun_of, &self.siblings()?) {
            Fate::Found(wanted) => {
                let found = found.iter().find(|b| id(b) == Some(wanted));
                let note = [
                    "Build ",
                    &wanted.to_string(),
                    " was begun by an attempt that was interrupted.",
                ];
                self.ctx.event("Adopted", &note.concat());
                self.taken(found.unwrap_or(&Value::Null))
            }
            Fate::None => {
                if self.build.spec.canceled {
                    return Ok(never_begun().status(&BuildStatus::default()));
                }
                let at = u64::try_from(lost.at).unwrap_or_default();
                let left = (at + settle(self.ctx)?).saturating_sub(self.ctx.now());
                if left > 0 {
                    let message = "Not known yet whether a build was begun.";
                    return Err(Failure::throttled(left, "TriggerUnknown", message));
                }
                let after = self.newest()?;
                self.note(Some((after, TriggerState::InFlight)))?;
                self.trigger(after)
            }
            Fate::Ambiguous(ids) => {
                let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                let message = [
                    "An attempt to begin a build was interrupted, and more builds were begun in this account since \
                     than were attempted: ",
                    &ids.join(", "),
                    ". Set spec.buildID to the one that is meant, or delete this object.",
                ]
                .concat();
                self.ctx.warn("TriggerAmbiguous", &message);
                let status = BuildStatus {
                    trigger: Some(self.attempt(lost.after, TriggerState::Ambiguous)),
                    ..BuildStatus::default()
                };
                Err(Failure::terminal("TriggerAmbiguous", message).status(&status))
            }
        }
    }

    /// The builds since `after` that could be of an attempt.
    fn candidates(&self, after: i64) -> Result<Vec<Value>, Failure> {
        const PAGE: usize = 100;
        let user = self.concourse.get("/api/v1/user").send().reason(TRIGGER_FAILED)?;
        if user.status() != 200 {
            return Err(refused(&user, "read the account", TRIGGER_FAILED));
        }
        let user = user.value().reason(TRIGGER_FAILED)?;
        let names = ["display_user_id", "user_name", "name", "sub"];
        let accounts: Vec<&str> = names.iter().filter_map(|n| user[*n].as_str()).collect();
        let rerun_of = self.build.spec.rerun_of.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        let mut from = after + 1;
        loop {
            let query = ["from=", &from.to_string(), "&limit=", &PAGE.to_string()].concat();
            let path = self.place.path("/builds", &query);
            let response = self.concourse.get(path).send().reason(TRIGGER_FAILED)?;
            if response.status() != 200 {
                return Err(refused(&response, "list the builds", TRIGGER_FAILED));
            }
            let mut page = response.value().reason(TRIGGER_FAILED)?;
            let page: Vec<Value> = page.as_array_mut().map(std::mem::take).unwrap_or_default();
            let last = page.iter().filter_map(|b| b["id"].as_i64()).max();
            let full = page.len() >= PAGE;
            let ours = |b: &Value| {
                b["id"].as_i64() > Some(after) && trigger::could_be(b, &self.job, rerun_of, &accounts)
            };
            found.extend(page.into_iter().filter(ours));
            match last.filter(|last| full && *last >= from) {
                Some(last) => from = last + 1,
                None => return Ok(found),
            }
        }
    }
}

/// Somebody else of the same job goes first; that one's change wakes this.
fn wait() -> Failure {
    let message = "Another Build of this job finds out first whether its own was begun.";
    Failure::wait("TriggerWaiting", message)
}

/// Why the job lets nobody begin a build.
fn not_allowed(response: &Response) -> Failure {
    match (response.status(), response.bytes()) {
        (409, []) => Failure::wait(
            TRIGGER_FAILED,
            "The job lets nobody begin a build by hand: disable_manual_trigger or disable_reruns in its config.",
        ),
        _ => refused(response, "begin a build", TRIGGER_FAILED),
    }
}

/// How long a lost request may still be carried out, by the plugin's configuration (`settle: 5s`).
fn settle(ctx: &Context) -> Result<u64, Failure> {
    let config: Value = ctx.config()?;
    let Some(text) = config["settle"].as_str() else {
        return Ok(SETTLE);
    };
    duration(text).ok_or_else(|| {
        let message = [
            "settle: ",
            text,
            " in the plugin's configuration is no duration, such as 5s.",
        ];
        Failure::terminal("InvalidConfig", message.concat())
    })
}

ostler_sdk::plugin!(Builds);
