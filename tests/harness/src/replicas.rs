//! Replicas of a host in processes of their own, of which one leads.

use std::{collections::BTreeMap, sync::Mutex};

use kube::api::{Patch, PatchParams};
use ostler::testing::key::Gvk;
use serde_json::json;

use crate::{
    Lab,
    process::{HostProcess, ProcessOptions, Signal},
};

/// Names of the replicas.
pub const REPLICA_NAMES: [&str; 2] = ["a", "b"];
/// The lease is short, because many leaders are killed.
const LEASE_TIMING: [&str; 3] = ["--lease-duration=3", "--renew-deadline=2", "--retry-period=0.5"];
/// Duration of a Lease that a test has taken: longer than the renew deadline, after which the leader has stopped.
const STOLEN_LEASE_SECONDS: u32 = 3;

/// The host processes.
pub struct Replicas<'a> {
    lab: &'a Lab,
    grants: String,
    running: BTreeMap<&'static str, HostProcess>,
}

impl<'a> Replicas<'a> {
    /// Starts all replicas, with these grants and the lab's plugin directory.
    pub fn start(lab: &'a Lab, grants: &str) -> Self {
        let mut replicas = Self {
            lab,
            grants: grants.into(),
            running: BTreeMap::new(),
        };
        for name in REPLICA_NAMES {
            replicas.start_one(name);
        }
        replicas
    }

    fn start_one(&mut self, name: &'static str) {
        let mut arguments = vec!["--identity", name, "--lease-namespace", &self.lab.namespace];
        arguments.extend(LEASE_TIMING);
        let options = ProcessOptions {
            grants: Some(&self.grants),
            ..ProcessOptions::default()
        };
        let process = HostProcess::start_with(self.lab, name, &arguments, options);
        self.running.insert(name, process);
    }

    /// Waits for a leader that runs, and returns its name.
    pub async fn wait_leader(&self) -> &'static str {
        let lease = lease_kind();
        let leader = Mutex::new("");
        self.lab
            .wait_until("a host leads", async || {
                let lease = self.lab.get(&lease, "ostler").await.unwrap_or_default();
                let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
                let found = REPLICA_NAMES.into_iter().find(|name| *name == holder);
                *leader.lock().expect("lock") = found.unwrap_or_default();
                found.is_some()
            })
            .await;
        leader.into_inner().expect("lock")
    }

    /// Waits until all replicas have loaded their plugins.
    pub async fn wait_started(&self) {
        for process in self.running.values() {
            process.wait_started(self.lab).await;
        }
    }

    /// Counts the terms of leaders so far.
    pub fn count_terms(&self) -> usize {
        let logs = self.running.values().map(HostProcess::log);
        logs.map(|log| log.matches("became leader").count()).sum()
    }

    /// Kills a replica and starts it again.
    pub fn kill(&mut self, name: &'static str) {
        // A process is killed by SIGKILL when it is dropped.
        self.running.remove(name);
        self.start_one(name);
    }

    /// Kills the leader and starts it again as the standby.
    pub async fn kill_leader(&mut self) {
        let leader = self.wait_leader().await;
        self.kill(leader);
    }

    /// Ends the leader in order and starts it again as the standby.
    pub async fn change_leader(&mut self) {
        let leader = self.wait_leader().await;
        if let Some(mut process) = self.running.remove(leader) {
            process.send_signal(Signal::TERM);
            process.wait_exit(self.lab).await;
        }
        self.start_one(leader);
    }

    /// Takes the Lease from the leader. Either host gets it once it has expired.
    pub async fn depose_leader(&self) {
        self.wait_leader().await;
        let taken =
            json!({"spec": {"holderIdentity": "neither", "leaseDurationSeconds": STOLEN_LEASE_SECONDS}});
        let api = self.lab.api(&lease_kind(), &self.lab.namespace);
        api.patch("ostler", &PatchParams::default(), &Patch::Merge(&taken))
            .await
            .expect("the Lease exists");
        self.wait_leader().await;
    }
}

fn lease_kind() -> Gvk {
    Gvk::new("coordination.k8s.io", "v1", "Lease")
}
