//! The state of a Concourse server: a pure model, without I/O and without a clock of its own.

mod access;
mod builds;
mod pipelines;
mod resources;
mod teams;
mod workers;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Map, Value};

pub use access::{SimulatedRole, SimulatedUser};
pub use builds::{SimulatedBuild, Trigger};
pub use pipelines::{SaveOutcome, SimulatedJob, SimulatedPipeline};
pub use resources::{SimulatedResource, SimulatedVersion};
pub use teams::{SimulatedTeam, SimulatedTeamAuth};
pub use workers::SimulatedWorker;

/// Variables that distinguish the instances of a pipeline.
pub type SimulatedInstanceVars = Map<String, Value>;

/// A generator of ascending ids.
#[derive(Debug, Default)]
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

#[derive(Debug, Default)]
struct Sequences {
    team: Sequence,
    pipeline: Sequence,
    job: Sequence,
    build: Sequence,
    config: Sequence,
    version: Sequence,
    plan: Sequence,
}

/// The message on the wall, with its expiry.
#[derive(Debug, Clone)]
pub struct Wall {
    /// Text of the message.
    pub message: String,
    /// Time of expiry since the epoch.
    pub until: Option<Duration>,
}

/// All state of the server.
#[derive(Debug, Default)]
pub struct ConcourseModel {
    /// Current time since the epoch, set before each change of the model.
    pub now: Duration,
    passwords: BTreeMap<String, String>,
    fixed_tokens: HashMap<String, String>,
    tokens: HashMap<String, access::Issued>,
    /// Teams by id.
    pub teams: Vec<SimulatedTeam>,
    /// Pipelines in their order.
    pub pipelines: Vec<SimulatedPipeline>,
    /// Jobs of all pipelines.
    pub jobs: Vec<SimulatedJob>,
    /// Resources of all pipelines.
    pub resources: Vec<SimulatedResource>,
    /// Builds by id.
    pub builds: BTreeMap<u64, SimulatedBuild>,
    /// Workers.
    pub workers: Vec<SimulatedWorker>,
    /// The message on the wall.
    pub wall: Option<Wall>,
    ids: Sequences,
}

impl ConcourseModel {
    /// Creates a server with the team `main`, whose owners are the admins, and one worker.
    pub fn new(now: Duration, users: Vec<(String, String, bool)>, tokens: Vec<(String, String)>) -> Self {
        let mut model = Self {
            now,
            fixed_tokens: tokens.into_iter().collect(),
            ..Self::default()
        };
        let admins = users
            .iter()
            .filter(|u| u.2)
            .map(|u| format!("local:{}", u.0))
            .collect();
        let members = BTreeMap::from([("groups".to_owned(), vec![]), ("users".to_owned(), admins)]);
        model.set_team("main", BTreeMap::from([("owner".to_owned(), members)]));
        model.passwords = users
            .into_iter()
            .map(|(name, password, _)| (name, password))
            .collect();
        model.workers.push(SimulatedWorker::new("w1", now));
        model
    }

    /// Returns the seconds since the epoch.
    pub fn seconds(&self) -> u64 {
        self.now.as_secs()
    }

    /// Returns the message on the wall, unless it has expired.
    pub fn wall(&self) -> Option<&Wall> {
        self.wall
            .as_ref()
            .filter(|w| w.until.is_none_or(|until| until > self.now))
    }

    /// Advances builds and workers by one step of the simulator's clock.
    pub fn advance(&mut self) {
        self.step_builds();
        self.step_workers();
    }
}

#[cfg(test)]
mod tests;
