//! Random kills of hosts, of leaders and of the connections to two other clusters, while owners of objects there are created,
//! changed and deleted: an owner is gone only after its objects, in the end exactly the objects that the owners apply exist,
//! and none is left after their deletion.
//!
//! Each run has a seed, which it prints and which decides about all edits and kills; `CHAOS_SEED=N` repeats that run. A
//! hundred kills over two hundred objects are `cargo xtask test all clusters::chaos::hundred`.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kube::api::ListParams;
use ostler_test_harness::{
    replicas::{REPLICA_NAMES, Replicas},
    scenario, wait_for,
};

use super::*;

#[scenario(hostile)]
async fn owned_objects_are_exact_after_random_kills(lab: Lab) {
    let extent = Extent {
        owners: 10,
        kills: 20,
    };
    check_chaos(lab, extent).await;
}

/// The same, for longer.
#[scenario(embedded = "it is about the host alone", hostile, campaign = "takes minutes")]
async fn hundred_kills_over_two_hundred_owned_objects_leak_none(lab: Lab) {
    let extent = Extent {
        owners: 50,
        kills: 100,
    };
    check_chaos(lab, extent).await;
}

/// Numbers of owners, each of as many objects as [`OWNABLE`] has, and of kills.
#[derive(Clone, Copy)]
struct Extent {
    owners: usize,
    kills: usize,
}

/// Names of the clusters.
const CLUSTER_NAMES: [&str; 2] = ["east", "west"];
/// The objects that an owner may own: the index of the cluster, and the end of the name.
const OWNABLE: [(usize, &str); 4] = [(0, "a"), (0, "b"), (1, "a"), (1, "b")];
/// Number of edits of owners before each kill.
const EDITS_PER_KILL: usize = 2;
/// Bound of the milliseconds between the edits and the kill.
const MAX_PAUSE_MILLISECONDS: u64 = 100;
/// Bound of the milliseconds for which a cluster is unreachable.
const MAX_OUTAGE_MILLISECONDS: u64 = 500;

/// Grants of the hosts. What a deletion waits for after a lost connection is no event, so the interval of waits is short.
const GRANTS: &str = "plugins:
  probe:
    reconcile: {waitInterval: 1s}
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes:
    - {kinds: [ConfigMap], verbs: [get, list, apply, create, patch, delete], namespaces: ['*'], clusters: ['Same/*']}
";

/// The values of an owner's objects; none for one that its plugin deletes.
type Contents = [Option<u8>; OWNABLE.len()];

/// Contents of an owner, or none to delete it.
type Edit = (usize, Option<Contents>);

#[derive(Clone, Copy, Debug)]
enum Kill {
    /// `kill -9` of a host, which leads or stands by.
    Host(&'static str),
    /// `kill -9` of the leader.
    Leader,
    /// The leader ends in order and hands over.
    ChangeLeader,
    /// The leader loses its Lease, and lives on as a candidate.
    DeposeLeader,
    /// The connections to a cluster are closed.
    Connections(usize),
    /// A cluster is unreachable for some milliseconds.
    Outage(usize, u64),
}

impl Kill {
    fn choose(dice: &mut fastrand::Rng) -> Self {
        let cluster = dice.usize(0..CLUSTER_NAMES.len());
        let host = REPLICA_NAMES[dice.usize(0..REPLICA_NAMES.len())];
        let milliseconds = dice.u64(0..MAX_OUTAGE_MILLISECONDS);
        match dice.u8(0..10) {
            0 => Self::Leader,
            1 => Self::ChangeLeader,
            2 => Self::DeposeLeader,
            3 | 4 => Self::Host(host),
            5..=7 => Self::Connections(cluster),
            _ => Self::Outage(cluster, milliseconds),
        }
    }
}

/// Edits, the milliseconds after them, and the kill that follows.
struct Step {
    edits: Vec<Edit>,
    pause: u64,
    kill: Kill,
}

fn plan_run(extent: Extent, dice: &mut fastrand::Rng) -> Vec<Step> {
    let choose_value = |dice: &mut fastrand::Rng| (dice.u8(0..4) > 0).then(|| dice.u8(1..4));
    let choose_edit = |dice: &mut fastrand::Rng| {
        let owner = dice.usize(0..extent.owners);
        let contents = OWNABLE.map(|_| choose_value(dice));
        (owner, (dice.u8(0..4) > 0).then_some(contents))
    };
    let steps = (0..extent.kills).map(|_| Step {
        edits: (0..EDITS_PER_KILL).map(|_| choose_edit(dice)).collect(),
        pause: dice.u64(0..MAX_PAUSE_MILLISECONDS),
        kill: Kill::choose(dice),
    });
    steps.collect()
}

async fn check_chaos(lab: Lab, extent: Extent) {
    let seed = match std::env::var("CHAOS_SEED") {
        Ok(seed) => seed.parse().expect("CHAOS_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("repeat this run with CHAOS_SEED={seed}");
    let steps = plan_run(extent, &mut fastrand::Rng::with_seed(seed));
    let started = Instant::now();
    let clusters = [
        SecondCluster::start(&lab).await,
        SecondCluster::start_embedded(&lab).await,
    ];
    for (name, cluster) in CLUSTER_NAMES.iter().zip(&clusters) {
        apply_cluster(&lab, name, cluster.kubeconfig()).await;
    }
    lab.install(&["tests/probe"]);
    let mut replicas = Replicas::start(&lab, GRANTS);
    let mut owners = Owners {
        lab: &lab,
        clusters: &clusters,
        contents: BTreeMap::new(),
    };
    for owner in 0..extent.owners {
        owners.edit((owner, Some([Some(0); OWNABLE.len()]))).await;
    }
    owners.wait_exact().await;
    for (n, step) in steps.into_iter().enumerate() {
        for edit in step.edits {
            owners.edit(edit).await;
        }
        tokio::time::sleep(Duration::from_millis(step.pause)).await;
        println!("kill {n} after {:.1?}: {:?}", started.elapsed(), step.kill);
        match step.kill {
            Kill::Host(name) => replicas.kill(name),
            Kill::Leader => replicas.kill_leader().await,
            Kill::ChangeLeader => replicas.change_leader().await,
            Kill::DeposeLeader => replicas.depose_leader().await,
            Kill::Connections(cluster) => clusters[cluster].cut_connections(),
            Kill::Outage(cluster, milliseconds) => {
                clusters[cluster].set_down(true);
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
                clusters[cluster].set_down(false);
            }
        }
    }
    println!("last kill after {:.1?}", started.elapsed());
    owners.wait_exact().await;
    for owner in 0..extent.owners {
        owners.edit((owner, None)).await;
    }
    for owner in 0..extent.owners {
        owners.wait_gone(owner).await;
    }
    assert_eq!(owners.list_owned().await, BTreeMap::new(), "nothing is left");
    println!(
        "{} objects of {} owners, {} kills in {:.1?}: nothing leaked",
        extent.owners * OWNABLE.len(),
        extent.owners,
        extent.kills,
        started.elapsed()
    );
}

/// The owners, and the contents of those that are not deleted.
struct Owners<'a> {
    lab: &'a Lab,
    clusters: &'a [SecondCluster; 2],
    contents: BTreeMap<usize, Contents>,
}

/// Name of a cluster and of an object there.
type OwnedName = (&'static str, String);
/// UID of the owner in the label of an object, and its value.
type OwnedState = (String, String);

fn owner_name(owner: usize) -> String {
    format!("owner-{owner}")
}

fn owned_name(owner: usize, index: usize) -> OwnedName {
    let (cluster, end) = OWNABLE[index];
    (CLUSTER_NAMES[cluster], format!("{}-{end}", owner_name(owner)))
}

impl Owners<'_> {
    /// Creates, changes or deletes an owner.
    async fn edit(&mut self, (owner, contents): Edit) {
        let name = owner_name(owner);
        let Some(contents) = contents else {
            if self.contents.remove(&owner).is_some() {
                self.lab.delete(&kind(), &name).await;
            }
            return;
        };
        // An edit of one that is still being deleted would be lost with it.
        if !self.contents.contains_key(&owner) {
            self.wait_gone(owner).await;
        }
        let steps = contents.iter().enumerate().map(|(index, value)| {
            let (cluster, object) = owned_name(owner, index);
            match value {
                Some(value) => own_on(self.lab, cluster, &object, &value.to_string()),
                None => {
                    let delete = json!({"do": "delete", "kind": "ConfigMap", "name": object});
                    on_cluster(self.lab, cluster, delete)
                }
            }
        });
        let steps: Vec<Value> = steps.collect();
        self.lab.apply_probe(&name, json!(steps), json!([])).await;
        self.contents.insert(owner, contents);
    }

    /// Waits until an owner is gone, and checks that its objects were gone before.
    async fn wait_gone(&self, owner: usize) {
        self.lab.wait_gone(&kind(), &owner_name(owner)).await;
        let found = self.list_owned().await;
        for index in 0..OWNABLE.len() {
            let left = found.get_key_value(&owned_name(owner, index));
            assert_eq!(left, None, "left by an owner that is gone");
        }
    }

    /// Waits until exactly the objects of the owners exist.
    async fn wait_exact(&self) {
        let mut expected: BTreeMap<OwnedName, OwnedState> = BTreeMap::new();
        for (owner, contents) in &self.contents {
            let object = self.lab.get(&kind(), &owner_name(*owner)).await;
            let uid = object.expect("an owner")["metadata"]["uid"].clone();
            for (index, value) in contents.iter().enumerate() {
                if let Some(value) = value {
                    let state = (uid.as_str().expect("a UID").to_owned(), value.to_string());
                    expected.insert(owned_name(*owner, index), state);
                }
            }
        }
        let last = RefCell::default();
        let look = async || {
            let found = last.replace(self.list_owned().await);
            (found == expected).then_some(())
        };
        wait_for(look, || format!("{expected:#?}, not {:#?}", last.borrow())).await;
        for owner in self.contents.keys() {
            self.lab.wait_ready(&kind(), &owner_name(*owner)).await;
        }
        assert_eq!(
            self.list_owned().await,
            expected,
            "nothing has changed until all are Ready"
        );
    }

    /// Lists the objects of both clusters that carry the mark of an owner.
    async fn list_owned(&self) -> BTreeMap<OwnedName, OwnedState> {
        const UID_LABEL: &str = "ostler.dev/owner-uid";
        let marked = ListParams::default().labels(UID_LABEL);
        let mut owned = BTreeMap::new();
        for (name, cluster) in CLUSTER_NAMES.into_iter().zip(self.clusters) {
            let api = cluster.api("ConfigMap", Some(&self.lab.namespace));
            // Its connection may be one of those that were closed.
            let list = async || api.list(&marked).await.ok();
            let listed = wait_for(list, || format!("objects of the cluster {name}")).await;
            for object in listed.items {
                let labels = object.metadata.labels.expect("labels");
                let value = object.data["data"]["v"].as_str().unwrap_or_default();
                let state = (labels[UID_LABEL].clone(), value.to_owned());
                owned.insert((name, object.metadata.name.expect("a name")), state);
            }
        }
        owned
    }
}
