//! Workers.

use std::time::Duration;

use serde::Serialize;

use super::ConcourseModel;

/// A worker.
#[derive(Debug, Clone, Serialize)]
pub struct SimulatedWorker {
    addr: String,
    baggageclaim_url: String,
    active_containers: u32,
    active_volumes: u32,
    active_tasks: u32,
    max_active_tasks: u32,
    resource_types: Option<Vec<String>>,
    platform: String,
    tags: Option<Vec<String>>,
    /// Team it is assigned to; empty for all teams.
    pub team: String,
    /// Its name.
    pub name: String,
    version: String,
    start_time: u64,
    ephemeral: bool,
    /// State: running, stalled, landing, landed or retiring.
    pub state: String,
}

impl SimulatedWorker {
    /// Creates a running worker for all teams.
    pub fn new(name: &str, now: Duration) -> Self {
        Self {
            addr: "127.0.0.1:7777".into(),
            baggageclaim_url: "http://127.0.0.1:7788".into(),
            active_containers: 2,
            active_volumes: 4,
            active_tasks: 0,
            max_active_tasks: 0,
            resource_types: None,
            platform: "linux".into(),
            tags: None,
            team: String::new(),
            name: name.to_owned(),
            version: crate::WORKER_VERSION.into(),
            start_time: now.as_secs(),
            ephemeral: false,
            state: "running".into(),
        }
    }
}

impl ConcourseModel {
    /// Sets the state of a worker, which is created if needed.
    pub fn set_worker(&mut self, name: &str, state: &str) {
        let now = self.now;
        let index = self
            .workers
            .iter()
            .position(|w| w.name == name)
            .unwrap_or_else(|| {
                self.workers.push(SimulatedWorker::new(name, now));
                self.workers.len() - 1
            });
        state.clone_into(&mut self.workers[index].state);
    }

    /// Assigns a worker to a team. The worker is created if needed.
    pub fn set_worker_team(&mut self, name: &str, team: &str) {
        if !self.workers.iter().any(|w| w.name == name) {
            self.workers.push(SimulatedWorker::new(name, self.now));
        }
        for worker in self.workers.iter_mut().filter(|w| w.name == name) {
            team.clone_into(&mut worker.team);
        }
    }

    pub(super) fn step_workers(&mut self) {
        self.workers.retain(|w| w.state != "retiring");
        for worker in self.workers.iter_mut().filter(|w| w.state == "landing") {
            worker.state = "landed".into();
            worker.addr.clear();
            worker.baggageclaim_url.clear();
        }
    }
}
