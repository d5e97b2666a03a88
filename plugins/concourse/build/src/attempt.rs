//! Coordination of the attempts to trigger builds of one job.
//!
//! Concourse has no idempotency key for a trigger. So each attempt is recorded in the status before its request is
//! sent, and if its response is lost, its build is searched for among the existing ones.
//!
//! Builds of one job are interchangeable: it does not matter which of several lost builds is assigned to which object,
//! only that each is assigned to one. An attempt in flight learns its build from its own response. Therefore a search
//! waits until no attempt is in flight, and no attempt starts during a search. Both record what they do before they
//! read what the others do, so that of two at the same time one sees the other.

use concourse_api::{Build, BuildTrigger, TriggerState, rest};

/// Another Build of the same job.
#[derive(Debug)]
pub struct Sibling {
    /// UID of the object.
    pub uid: String,
    /// IDs of the build it has, or is to adopt.
    pub build_ids: Vec<i64>,
    /// Name of the build it repeats; may be empty.
    pub rerun_of: String,
    /// Its attempt.
    pub trigger: Option<BuildTrigger>,
}

impl Sibling {
    /// The fields of a Build that matter to its siblings.
    pub fn new(build: &Build) -> Self {
        let (spec, status) = (&build.spec, &build.status);
        Self {
            uid: build.metadata.uid.clone(),
            build_ids: spec.build_id.into_iter().chain(status.build_id).collect(),
            rerun_of: spec.rerun_of.clone().unwrap_or_default(),
            trigger: status.trigger.clone(),
        }
    }

    fn is_in(&self, state: TriggerState) -> bool {
        self.trigger
            .as_ref()
            .is_some_and(|trigger| trigger.state == state)
    }
}

/// Returns whether a sibling searches for a lost build, during which no attempt may start.
pub fn is_search_running(siblings: &[Sibling]) -> bool {
    siblings
        .iter()
        .any(|sibling| sibling.is_in(TriggerState::Unknown))
}

/// Returns whether this Build may search: no attempt is in flight, and no earlier search is running.
pub fn may_search(own: &BuildTrigger, uid: &str, siblings: &[Sibling]) -> bool {
    let is_earlier_search = |sibling: &Sibling| {
        let is_earlier = |trigger: &BuildTrigger| (trigger.after, sibling.uid.as_str()) < (own.after, uid);
        sibling.is_in(TriggerState::Unknown) && sibling.trigger.as_ref().is_some_and(is_earlier)
    };
    !siblings
        .iter()
        .any(|sibling| sibling.is_in(TriggerState::InFlight) || is_earlier_search(sibling))
}

/// Result of a search for the build of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum SearchResult {
    /// The build of the attempt, or an equivalent one.
    Found(i64),
    /// No build resulted from the attempt.
    NotFound,
    /// More builds could be of the attempt than were attempted.
    Ambiguous(Vec<i64>),
}

/// Assigns one of the builds that could result from an attempt: those of its job and account, triggered since.
pub fn assign_build(candidates: &[i64], own_rerun_of: &str, siblings: &[Sibling]) -> SearchResult {
    let is_claimed = |id: &i64| siblings.iter().any(|sibling| sibling.build_ids.contains(id));
    let mut free: Vec<i64> = candidates.iter().copied().filter(|id| !is_claimed(id)).collect();
    free.sort_unstable();
    let is_equivalent =
        |sibling: &&Sibling| sibling.is_in(TriggerState::Unknown) && sibling.rerun_of == own_rerun_of;
    let attempts = 1 + siblings.iter().filter(is_equivalent).count();
    match free.first() {
        None => SearchResult::NotFound,
        // Another client of the same account has triggered builds, too.
        Some(_) if free.len() > attempts => SearchResult::Ambiguous(free),
        Some(first) => SearchResult::Found(*first),
    }
}

/// Returns whether a build could result from an attempt.
pub fn is_candidate(build: &rest::BuildResponse, job: &str, rerun_of: &str, accounts: &[String]) -> bool {
    let repeats = build.rerun_of.as_ref().map(|rerun| rerun.name.as_str());
    // Concourse records the first build of a chain of repetitions: 2 for a repetition of 2.1.
    let original = rerun_of.split('.').next().unwrap_or_default();
    build.job_name.as_deref() == Some(job)
        && repeats.unwrap_or_default() == original
        && build
            .created_by
            .as_ref()
            .is_some_and(|account| accounts.contains(account))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trigger(after: i64, state: TriggerState) -> Option<BuildTrigger> {
        Some(BuildTrigger { after, at: 0, state })
    }

    fn sibling(uid: &str, build: &[i64], trigger: Option<BuildTrigger>) -> Sibling {
        Sibling {
            uid: uid.into(),
            build_ids: build.to_vec(),
            rerun_of: String::new(),
            trigger,
        }
    }

    #[test]
    fn may_search_allows_one_search_and_none_beside_attempts_in_flight() {
        use TriggerState::{Ambiguous, InFlight, Unknown};
        let own = trigger(5, Unknown).expect("one");
        let others = |t| [sibling("m", &[], t)];
        assert!(may_search(&own, "b", &[]));
        assert!(!may_search(&own, "b", &others(trigger(1, InFlight))));
        assert!(!may_search(&own, "b", &others(trigger(4, Unknown))));
        assert!(may_search(&own, "b", &others(trigger(5, Unknown))), "b before m");
        assert!(!may_search(&own, "z", &others(trigger(5, Unknown))));
        assert!(may_search(&own, "z", &others(trigger(6, Unknown))));
        assert!(may_search(&own, "z", &others(trigger(1, Ambiguous))));
        assert!(is_search_running(&others(trigger(6, Unknown))));
        assert!(!is_search_running(&others(trigger(6, Ambiguous))) && !is_search_running(&others(None)));
    }

    #[test]
    fn assign_build_distinguishes_found_missing_and_ambiguous() {
        use TriggerState::Unknown;
        assert_eq!(assign_build(&[], "", &[]), SearchResult::NotFound);
        assert_eq!(assign_build(&[8], "", &[]), SearchResult::Found(8));
        assert_eq!(
            assign_build(&[8], "", &[sibling("x", &[8], None)]),
            SearchResult::NotFound
        );
        assert_eq!(
            assign_build(&[9, 8], "", &[]),
            SearchResult::Ambiguous(vec![8, 9])
        );
        let two = [sibling("x", &[], trigger(3, Unknown))];
        assert_eq!(assign_build(&[9, 8], "", &two), SearchResult::Found(8));
        assert_eq!(
            assign_build(&[9, 8], "4", &two),
            SearchResult::Ambiguous(vec![8, 9]),
            "the sibling repeats no build"
        );
    }

    #[test]
    fn is_candidate_requires_job_account_and_repeated_build() {
        let build = |created_by: Option<&str>, rerun_of: Option<&str>| rest::BuildResponse {
            id: 3,
            name: None,
            status: None,
            job_name: Some("j".into()),
            api_url: None,
            created_by: created_by.map(Into::into),
            start_time: None,
            end_time: None,
            comment: None,
            rerun_of: rerun_of.map(|name| rest::RerunOf { name: name.into() }),
        };
        let is_candidate = |build: &rest::BuildResponse, job, rerun_of, account: &str| {
            super::is_candidate(build, job, rerun_of, &[account.to_owned()])
        };
        let first = build(Some("ci"), None);
        assert!(is_candidate(&first, "j", "", "ci"));
        assert!(!is_candidate(&first, "k", "", "ci"));
        assert!(!is_candidate(&first, "j", "", "other"));
        assert!(!is_candidate(&first, "j", "2", "ci"));
        let rerun = build(Some("ci"), Some("2"));
        assert!(is_candidate(&rerun, "j", "2.1", "ci"));
        assert!(!is_candidate(&rerun, "j", "", "ci"));
        let automatic = build(None, None);
        assert!(!is_candidate(&automatic, "j", "", "ci"));
    }
}
