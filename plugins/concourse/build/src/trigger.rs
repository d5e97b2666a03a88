//! Triggering of a build exactly once, and the search for a build whose response was lost.

use concourse_api::{
    BuildSpec, BuildStatus, BuildTrigger, ConcourseOperation, TriggerState, concourse_status, encode_segment,
    is_on_server, rest,
};
use ostler_sdk::{Response, Selection, api, duration, prelude::*};

use crate::{
    RemoteJob,
    attempt::{SearchResult, Sibling, assign_build, is_candidate, is_search_running, may_search},
    canceled_status, finish, job_of, observe, tracked, trigger_operation,
};

/// Time within which a lost request may still be carried out, unless the plugin is configured otherwise.
const DEFAULT_SETTLE_MS: u64 = 5000;
/// Delay before the first look at a build that was triggered.
const FIRST_LOOK_DELAY_MS: u64 = 1;
/// Builds per page of a list.
const PAGE_SIZE: usize = 100;

const TRIGGER_BUILD: ConcourseOperation = trigger_operation("trigger a build");
const READ_TRIGGERED: ConcourseOperation = trigger_operation("read the response");
const LIST_BUILDS: ConcourseOperation = trigger_operation("list the builds");
const READ_ACCOUNT: ConcourseOperation = trigger_operation("read the account");

/// Configuration of the plugin.
#[api]
struct Config {
    /// Time within which a lost request may still be carried out, such as 5s.
    settle: Option<String>,
}

/// Response of `/api/v1/user`.
#[api]
#[serde(rename_all = "snake_case")]
struct Account {
    display_user_id: Option<String>,
    user_name: Option<String>,
    name: Option<String>,
    sub: Option<String>,
}

impl RemoteJob<'_> {
    /// Triggers a build, unless it is canceled, or a sibling searches for a lost one.
    pub fn trigger_unless_search(&self) -> Result<Outcome, Failure> {
        if self.build.spec.canceled {
            return finish(self.ctx, self.build, &canceled_status(self.ctx));
        }
        if is_search_running(&self.list_siblings()?) {
            return Err(wait_for_sibling());
        }
        let after = self.read_newest_id()?;
        self.record_attempt(after)?;
        // Once more: a search that starts from now on sees this attempt.
        if is_search_running(&self.list_siblings()?) {
            self.checkpoint(None)?;
            return Err(wait_for_sibling());
        }
        self.trigger(after)
    }

    /// Lists the other Builds of this job.
    fn list_siblings(&self) -> Result<Vec<Sibling>, Failure> {
        let job = job_of(self.build);
        let fields = format!("spec.jobRef.name={}", job.name);
        let selection = Selection {
            fields: Some(&fields),
            ..Selection::default()
        };
        let builds = self
            .ctx
            .list::<BuildSpec>(&selection)
            .reason(TRIGGER_BUILD.reason())?;
        let siblings = builds
            .iter()
            .filter(|build| job_of(build) == job && build.metadata.uid != self.build.metadata.uid);
        Ok(siblings.map(Sibling::new).collect())
    }

    /// Records in the status that an attempt is in flight.
    fn record_attempt(&self, after: i64) -> Result<(), Failure> {
        self.checkpoint(Some(self.new_attempt(after, TriggerState::InFlight)))
    }

    fn checkpoint(&self, attempt: Option<BuildTrigger>) -> Result<(), Failure> {
        let fields = json!({ "trigger": attempt, "claimedServer": self.server });
        self.ctx.checkpoint(&fields).reason(TRIGGER_BUILD.reason())
    }

    fn new_attempt(&self, after: i64, state: TriggerState) -> BuildTrigger {
        let at = i64::try_from(self.ctx.now()).unwrap_or(i64::MAX);
        BuildTrigger { after, at, state }
    }

    fn attempt_status(&self, after: i64, state: TriggerState) -> BuildStatus {
        BuildStatus {
            trigger: Some(self.new_attempt(after, state)),
            claimed_server: self.server.clone(),
            ..BuildStatus::default()
        }
    }

    /// Reads the ID of the pipeline's newest build. The list of a job does not serve: it sorts a repetition next to
    /// the build it repeats.
    fn read_newest_id(&self) -> Result<i64, Failure> {
        let path = self.location.api_path("/builds", "limit=1");
        let builds: Vec<rest::BuildResponse> = LIST_BUILDS.read_list(self.concourse.get(path).send())?;
        Ok(builds.first().map(|build| build.id).unwrap_or_default())
    }

    /// Sends the request of an attempt that has been recorded. Outcome or failure record its result.
    fn trigger(&self, after: i64) -> Result<Outcome, Failure> {
        let path = self.location.api_path(&self.trigger_path(), "");
        // Whether there is a build is unknown: it is searched for.
        let lost = |failure: Failure| failure.status(&self.attempt_status(after, TriggerState::Unknown));
        // There is no build: the next attempt triggers one.
        let refused = |failure: Failure| failure.status(&BuildStatus::default());
        let response = match self.concourse.post(path).send() {
            Ok(response) => response,
            Err(error) => {
                let is_lost = matches!(error, Error::Unavailable(_) | Error::LimitExceeded(_));
                let failure = Failure::from(error).reason(TRIGGER_BUILD.reason());
                return Err(if is_lost { lost(failure) } else { refused(failure) });
            }
        };
        match concourse_status(&response) {
            Some(200..=299) => {}
            Some(400..=499) => return Err(refused(trigger_refused(&response))),
            // A server error, or the response of a proxy, may follow the creation of the build.
            _ => return Err(lost(TRIGGER_BUILD.failure(&response))),
        }
        let Ok(found) = response.json::<rest::BuildResponse>() else {
            return Err(lost(READ_TRIGGERED.failure(&response)));
        };
        let name = found.name.as_deref().unwrap_or_default();
        let note = format!("Triggered build {name} of {}.", self.job);
        self.ctx.event("Triggered", &note);
        Ok(self.claim_build(&found))
    }

    /// The outcome that assigns a build to the object. Everything else follows once that is written.
    fn claim_build(&self, found: &rest::BuildResponse) -> Outcome {
        let mut status = BuildStatus::default();
        observe::update_from_build(&mut status, found);
        status.claimed_server.clone_from(&self.server);
        status.instance_ref = Some(self.instance_ref());
        status.web_url = self.web_url(found);
        tracked(Outcome::after(FIRST_LOOK_DELAY_MS), &status)
    }

    fn trigger_path(&self) -> String {
        let job = encode_segment(self.job);
        match &self.build.spec.rerun_of {
            Some(name) => format!("/jobs/{job}/builds/{}", encode_segment(name)),
            None => format!("/jobs/{job}/builds"),
        }
    }

    /// Searches for the build of an attempt whose result is not known.
    pub fn search(&self, lost: &BuildTrigger) -> Result<Outcome, Failure> {
        let claimed = self.build.status.claimed_server.as_deref();
        let what = "build of an interrupted attempt";
        if !is_on_server(self.ctx, self.server.as_deref(), claimed, what) {
            return self.trigger_unless_search();
        }
        if lost.state == TriggerState::Ambiguous {
            let message = "Several builds may be the one of this Build: see the Event TriggerAmbiguous. Set \
                           spec.buildID, or delete this object.";
            return Err(Failure::terminal("TriggerAmbiguous", message));
        }
        if lost.state == TriggerState::InFlight {
            // The attempt was interrupted. Siblings have to see the search before it starts.
            self.checkpoint(Some(BuildTrigger {
                state: TriggerState::Unknown,
                ..lost.clone()
            }))?;
        }
        if !may_search(lost, &self.build.metadata.uid, &self.list_siblings()?) {
            return Err(wait_for_sibling());
        }
        let candidates = self.list_candidates(lost.after)?;
        let ids: Vec<i64> = candidates.iter().map(|build| build.id).collect();
        let rerun_of = self.build.spec.rerun_of.as_deref().unwrap_or_default();
        match assign_build(&ids, rerun_of, &self.list_siblings()?) {
            SearchResult::Found(id) => self.adopt(id, &candidates),
            SearchResult::NotFound => self.retrigger(lost),
            SearchResult::Ambiguous(ids) => Err(self.report_ambiguous(lost, &ids)),
        }
    }

    fn adopt(&self, id: i64, candidates: &[rest::BuildResponse]) -> Result<Outcome, Failure> {
        let note = format!("Build {id} was triggered by an attempt that was interrupted.");
        self.ctx.event("Adopted", &note);
        let found = candidates.iter().find(|build| build.id == id);
        let missing = || {
            Failure::retry(
                TRIGGER_BUILD.reason(),
                format!("Build {id} is not among the candidates."),
            )
        };
        found.map(|found| self.claim_build(found)).ok_or_else(missing)
    }

    /// Triggers a build after the lost request cannot be carried out any more.
    fn retrigger(&self, lost: &BuildTrigger) -> Result<Outcome, Failure> {
        if self.build.spec.canceled {
            return finish(self.ctx, self.build, &canceled_status(self.ctx));
        }
        let sent_at = u64::try_from(lost.at).unwrap_or_default();
        let left = (sent_at + read_settle_time(self.ctx)?).saturating_sub(self.ctx.now());
        if left > 0 {
            let message = "It is not known yet whether a build was triggered.";
            return Err(Failure::throttled(left, "TriggerUnknown", message));
        }
        let after = self.read_newest_id()?;
        self.record_attempt(after)?;
        self.trigger(after)
    }

    fn report_ambiguous(&self, lost: &BuildTrigger, ids: &[i64]) -> Failure {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let message = format!(
            "An attempt to trigger a build was interrupted, and this account has triggered more builds since than \
             were attempted: {}. Set spec.buildID to the right one, or delete this object.",
            ids.join(", ")
        );
        self.ctx.warn("TriggerAmbiguous", &message);
        let status = self.attempt_status(lost.after, TriggerState::Ambiguous);
        Failure::terminal("TriggerAmbiguous", message).status(&status)
    }

    /// Lists the builds after `after` that could result from an attempt.
    fn list_candidates(&self, after: i64) -> Result<Vec<rest::BuildResponse>, Failure> {
        let answer = self.concourse.get("/api/v1/user").send();
        let account: Account = READ_ACCOUNT.read(answer)?;
        let Account {
            display_user_id,
            user_name,
            name,
            sub,
        } = account;
        let accounts: Vec<String> = [display_user_id, user_name, name, sub]
            .into_iter()
            .flatten()
            .collect();
        let rerun_of = self.build.spec.rerun_of.as_deref().unwrap_or_default();
        let mut candidates = Vec::new();
        let mut from = after + 1;
        loop {
            let query = format!("from={from}&limit={PAGE_SIZE}");
            let path = self.location.api_path("/builds", &query);
            let page: Vec<rest::BuildResponse> = LIST_BUILDS.read_list(self.concourse.get(path).send())?;
            let last = page.iter().map(|build| build.id).max();
            let is_full = page.len() >= PAGE_SIZE;
            let page = page.into_iter().filter(|build| build.id > after);
            candidates.extend(page.filter(|build| is_candidate(build, self.job, rerun_of, &accounts)));
            match last {
                Some(last) if is_full && last >= from => from = last + 1,
                _ => return Ok(candidates),
            }
        }
    }
}

/// The failure while a sibling goes first. The change of its status wakes this object.
fn wait_for_sibling() -> Failure {
    let message = "Another Build of this job is finding out whether its own build was triggered.";
    Failure::wait("TriggerWaiting", message)
}

/// The failure for a trigger that Concourse refuses.
fn trigger_refused(response: &Response) -> Failure {
    if response.status() == 409 && response.bytes().is_empty() {
        let message = "The job does not allow manual builds: its config sets disable_manual_trigger or \
                       disable_reruns.";
        return Failure::wait(TRIGGER_BUILD.reason(), message);
    }
    TRIGGER_BUILD.failure(response)
}

/// Reads the time within which a lost request may still be carried out from the plugin's configuration.
fn read_settle_time(ctx: &Context) -> Result<u64, Failure> {
    let config: Config = ctx.config()?;
    let Some(settle) = config.settle else {
        return Ok(DEFAULT_SETTLE_MS);
    };
    duration(&settle).ok_or_else(|| {
        let message =
            format!("settle: {settle} in the plugin's configuration is not a duration, such as 5s.");
        Failure::terminal("InvalidConfig", message)
    })
}
