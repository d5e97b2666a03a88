//! Begins a build once. Concourse has no key that would make it so: the attempt is written down before it is made,
//! and one of which the answer was lost is looked for among the builds that are there.
//!
//! Builds of one job are alike, so it does not matter which of several lost ones is whose; it matters that each
//! belongs to one object. Attempts that are being made know their own answer. So who looks for a lost one waits
//! until none is being made, and none is begun while somebody looks; both say what they do before they look at
//! what the others do, so that one of two at the same time sees the other.

use concourse_api::{BuildTrigger, TriggerState, target};
use ostler_sdk::serde_json::Value;

/// Another Build of the same job.
#[derive(Debug)]
pub struct Sibling {
    /// Of the object.
    pub uid: String,
    /// The build it has, or is to have.
    pub build: Vec<i64>,
    /// The name of the build it runs again.
    pub rerun_of: String,
    /// Its attempt.
    pub trigger: Option<BuildTrigger>,
}

impl Sibling {
    /// Reads the Builds of a job out of a list, but for the one that asks.
    pub fn read(list: &[Value], job: (&str, &str), own: &str) -> Vec<Self> {
        let of_job = |build: &&Value| target(build, "jobRef") == job && build["metadata"]["uid"] != own;
        list.iter().filter(of_job).map(Self::of).collect()
    }

    fn of(build: &Value) -> Self {
        let (spec, status) = (&build["spec"], &build["status"]);
        let trigger = &status["trigger"];
        let state = match trigger["state"].as_str() {
            Some("InFlight") => Some(TriggerState::InFlight),
            Some("Unknown") => Some(TriggerState::Unknown),
            Some("Ambiguous") => Some(TriggerState::Ambiguous),
            _ => None,
        };
        let builds = [&spec["buildID"], &status["buildID"]];
        Self {
            uid: build["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            build: builds.iter().filter_map(|id| id.as_i64()).collect(),
            rerun_of: spec["rerunOf"].as_str().unwrap_or_default().to_owned(),
            trigger: state.map(|state| BuildTrigger {
                after: trigger["after"].as_i64().unwrap_or_default(),
                at: trigger["at"].as_i64().unwrap_or_default(),
                state,
            }),
        }
    }

    fn is(&self, state: TriggerState) -> bool {
        self.trigger.as_ref().is_some_and(|t| t.state == state)
    }
}

/// Whether somebody looks for a lost build: then none may be begun.
pub fn somebody_looks(siblings: &[Sibling]) -> bool {
    siblings.iter().any(|s| s.is(TriggerState::Unknown))
}

/// Whether it is this one's turn to look: nobody is at it, and nobody was before.
pub fn may_look(own: &BuildTrigger, uid: &str, siblings: &[Sibling]) -> bool {
    let before = |s: &Sibling| {
        let earlier = |t: &BuildTrigger| (t.after, s.uid.as_str()) < (own.after, uid);
        s.is(TriggerState::Unknown) && s.trigger.as_ref().is_some_and(earlier)
    };
    !siblings.iter().any(|s| s.is(TriggerState::InFlight) || before(s))
}

/// What became of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// This is its build, or as good as.
    Found(i64),
    /// There is none.
    None,
    /// One of these may be.
    Ambiguous(Vec<i64>),
}

/// What became of an attempt, when these builds could be of it (the right job and account, begun since).
pub fn fate(found: &[i64], own_rerun_of: &str, siblings: &[Sibling]) -> Fate {
    let claimed = |id: &i64| siblings.iter().any(|s| s.build.contains(id));
    let mut free: Vec<i64> = found.iter().copied().filter(|id| !claimed(id)).collect();
    free.sort_unstable();
    let alike = |s: &&Sibling| s.is(TriggerState::Unknown) && s.rerun_of == own_rerun_of;
    let looking = 1 + siblings.iter().filter(alike).count();
    match free.first() {
        None => Fate::None,
        // More than were attempted: somebody else began some, in the same account.
        Some(_) if free.len() > looking => Fate::Ambiguous(free),
        Some(first) => Fate::Found(*first),
    }
}

/// Whether a build as Concourse lists it could be of an attempt.
pub fn could_be(build: &Value, job: &str, rerun_of: &str, accounts: &[&str]) -> bool {
    let again = build["rerun_of"]["name"].as_str().unwrap_or_default();
    // A build that is run again a second time is still of the first.
    let first = rerun_of.split('.').next().unwrap_or_default();
    build["job_name"] == job
        && again == first
        && build["created_by"]
            .as_str()
            .is_some_and(|by| accounts.contains(&by))
}

#[cfg(test)]
mod tests {
    use ostler_sdk::serde_json::json;

    use super::*;

    fn trigger(after: i64, state: TriggerState) -> Option<BuildTrigger> {
        Some(BuildTrigger { after, at: 0, state })
    }

    fn sibling(uid: &str, build: &[i64], trigger: Option<BuildTrigger>) -> Sibling {
        Sibling {
            uid: uid.into(),
            build: build.to_vec(),
            rerun_of: String::new(),
            trigger,
        }
    }

    #[test]
    fn one_at_a_time_looks_and_only_while_none_is_begun() {
        use TriggerState::{Ambiguous, InFlight, Unknown};
        let own = trigger(5, Unknown).expect("one");
        let others = |t| [sibling("m", &[], t)];
        assert!(may_look(&own, "b", &[]));
        assert!(!may_look(&own, "b", &others(trigger(1, InFlight))));
        assert!(!may_look(&own, "b", &others(trigger(4, Unknown))));
        assert!(may_look(&own, "b", &others(trigger(5, Unknown))), "b before m");
        assert!(!may_look(&own, "z", &others(trigger(5, Unknown))));
        assert!(may_look(&own, "z", &others(trigger(6, Unknown))));
        assert!(may_look(&own, "z", &others(trigger(1, Ambiguous))));
        assert!(somebody_looks(&others(trigger(6, Unknown))));
        assert!(!somebody_looks(&others(trigger(6, Ambiguous))) && !somebody_looks(&others(None)));
    }

    #[test]
    fn found_none_or_ambiguous() {
        use TriggerState::Unknown;
        assert_eq!(fate(&[], "", &[]), Fate::None);
        assert_eq!(fate(&[8], "", &[]), Fate::Found(8));
        assert_eq!(fate(&[8], "", &[sibling("x", &[8], None)]), Fate::None);
        assert_eq!(fate(&[9, 8], "", &[]), Fate::Ambiguous(vec![8, 9]));
        let two = [sibling("x", &[], trigger(3, Unknown))];
        assert_eq!(fate(&[9, 8], "", &two), Fate::Found(8));
        assert_eq!(
            fate(&[9, 8], "4", &two),
            Fate::Ambiguous(vec![8, 9]),
            "that one runs no build again"
        );
    }

    #[test]
    fn a_build_of_this_job_and_account() {
        let build = json!({"id": 3, "job_name": "j", "created_by": "ci"});
        assert!(could_be(&build, "j", "", &["ci"]));
        assert!(!could_be(&build, "k", "", &["ci"]));
        assert!(!could_be(&build, "j", "", &["other"]));
        assert!(!could_be(&build, "j", "2", &["ci"]));
        let again = json!({"job_name": "j", "created_by": "ci", "rerun_of": {"id": 1, "name": "2"}});
        assert!(could_be(&again, "j", "2.1", &["ci"]));
        assert!(!could_be(&again, "j", "", &["ci"]));
        let automatic = json!({"job_name": "j"});
        assert!(!could_be(&automatic, "j", "", &["ci"]));
    }
}
