//! Faults at random between the host and the API server while objects are made, edited and deleted: nothing
//! is lost, and the end state is exact.
//!
//! Each run has a seed, which a failure prints; `CHAOS_SEED=N` runs that one alone.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use ostler::testing::scope::Projection;
use ostler_apiserver::{Effect, Fault, Match};
use ostler_test_harness::{
    Lab,
    probe::{config_map, kind, write},
    proxy::Proxy,
};
use serde_json::{Value, json};

/// Objects there are.
const OBJECTS: usize = 500;
/// Edits and deletions in each run.
const STEPS: usize = 100;

mod hostile {
    mod embedded {
        use ostler_test_harness::run_bounded;

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn chaos() {
            run_bounded(async { super::super::chaos(ostler_test_harness::Lab::embedded().await, 50).await })
                .await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn who_is_throttled_holds_no_worker() {
            run_bounded(async {
                super::super::who_is_throttled_holds_no_worker(ostler_test_harness::Lab::embedded().await)
                    .await
            })
            .await;
        }
    }
    mod real {
        use ostler_test_harness::run_bounded;

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "needs the real control plane: cargo xtask test real"]
        async fn chaos() {
            run_bounded(async { super::super::chaos(ostler_test_harness::Lab::real().await, 10).await })
                .await;
        }
    }
}

/// An API server that says 429 again and again to one object's writes costs the others nothing, though there is one
/// worker for all of them.
async fn who_is_throttled_holds_no_worker(mut lab: Lab) {
    lab.settings.workers = 1;
    lab.install(&["tests/probe"]);
    lab.start_host_with(lab.client_at(lab.api_address()).await).await;
    let server = lab.embedded.as_ref().expect("it is the embedded one");
    let throttled = Fault {
        matches: Match {
            path: Some("/configmaps/slow".into()),
            ..Match::default()
        },
        times: None,
        effect: Effect::Respond {
            code: 429,
            retry_after: None,
        },
    };
    server.faults().add(throttled).expect("a pattern");
    let api = lab.api(&kind(), &lab.namespace);
    apply(&api, "slow".into(), "1".into()).await;
    let met = || server.counters().of("apply", "configmaps") > 0;
    lab.wait_until("the first write is throttled", async || met())
        .await;
    apply(&api, "quick".into(), "1".into()).await;
    lab.wait_ready(&kind(), "quick").await;
    let slow = lab.get(&kind(), "slow").await.expect("it is there");
    assert_ne!(
        ostler_test_harness::find_condition(&slow, "Ready")["status"],
        "True"
    );
    // Nothing between the host and the server tries again by itself: one reconcile is one request.
    let requests = server.counters().of("apply", "configmaps");
    let reconciles: u64 = lab
        .host()
        .stats()
        .all_objects()
        .iter()
        .map(|f| f.reconciles)
        .sum();
    assert!(
        requests <= reconciles,
        "{requests} requests of {reconciles} reconciles"
    );
    server.faults().clear();
    lab.wait_ready(&kind(), "slow").await;
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("CHAOS_SEED") {
        Ok(seed) => vec![seed.parse().expect("CHAOS_SEED is a number")],
        Err(_) => (0..count).map(|_| fastrand::u64(..)).collect(),
    }
}

/// Says which seed it was when a run ends by a panic.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("to see it again: CHAOS_SEED={}", self.0);
        }
    }
}

/// So many differences are told.
const SAID: usize = 5;

/// What the host knows of a probe: as it is in the store, and its turn.
fn known(lab: &Lab, name: &str) -> String {
    let (key, services) = (lab.key(&kind(), name), lab.host().services());
    let stored = services.cache.store.get(&key, Projection::Full);
    let stored = stored.map(|o| (o.generation, o.resource_version));
    let turn = services.dispatcher.explain(&key);
    let since = turn.causes.len().saturating_sub(SAID);
    format!(
        "generation and version in the store {stored:?}, in the queue {:?}, due in {:?}, woken last by {:?}",
        turn.state,
        turn.due_in,
        &turn.causes[since..]
    )
}

/// Says what differed when a run ends by a panic.
#[derive(Default)]
struct Differences(std::sync::Mutex<Vec<String>>);

impl Differences {
    /// Whether there are none.
    fn between(
        &self,
        lab: &Lab,
        found: &BTreeMap<String, String>,
        wanted: &BTreeMap<String, String>,
    ) -> bool {
        let names: std::collections::BTreeSet<_> = found.keys().chain(wanted.keys()).collect();
        let differing = names
            .into_iter()
            .filter(|name| found.get(*name) != wanted.get(*name));
        let said = differing.map(|name| {
            let (found, wanted) = (found.get(name), wanted.get(name));
            format!("{name}: {found:?} is to be {wanted:?}; {}", known(lab, name))
        });
        let said: Vec<String> = said.take(SAID).collect();
        let none = said.is_empty();
        *self.0.lock().expect("lock") = said;
        none
    }
}

impl Drop for Differences {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.0.lock().expect("lock");
            println!("these differ, at least: {said:#?}");
        }
    }
}

/// One host goes through all runs: what one of them leaves behind, the next ones meet.
async fn chaos(mut lab: Lab, runs: u64) {
    let proxy = Proxy::start(lab.api_address()).await.expect("a proxy");
    let client = lab.client_at(proxy.address()).await;
    lab.install(&["tests/probe"]);
    lab.start_host_with(client).await;
    let api = lab.api(&kind(), &lab.namespace);
    let mut wanted: BTreeMap<String, String> =
        (0..OBJECTS).map(|i| (format!("p{i}"), "0".to_owned())).collect();
    stream::iter(wanted.clone())
        .for_each_concurrent(8, |(name, value)| apply(&api, name, value))
        .await;
    for seed in seeds(runs) {
        let _said = Seed(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let (over, mut dice) = (AtomicBool::new(false), random.fork());
        let people = async {
            people(&api, &mut random, &mut wanted).await;
            over.store(true, Ordering::Relaxed);
        };
        tokio::join!(people, faults(&lab, &proxy, &mut dice, &over));
        proxy.set_down(false);
        proxy.set_latency(Duration::ZERO);
        if let Some(server) = &lab.embedded {
            server.faults().clear();
        }
        let differences = Differences::default();
        lab.wait_until(&format!("all is as it should be (seed {seed})"), async || {
            differences.between(&lab, &found(&lab).await, &wanted)
        })
        .await;
        // The last deletions are told when the watch is back.
        lab.wait_until(&format!("what is gone is forgotten (seed {seed})"), async || {
            lab.host().stats().all_objects().len() == wanted.len()
        })
        .await;
        lab.wait_idle().await;
        let overlaps: u64 = lab.host().stats().all_objects().iter().map(|f| f.overlaps).sum();
        assert_eq!(overlaps, 0, "none twice at once (seed {seed})");
    }
}

/// What is there: by probe, the value its child has; `?` where that is not what its status speaks of.
async fn found(lab: &Lab) -> BTreeMap<String, String> {
    // Connections that were cut may still be found out about: no answer is nothing found.
    let list = async |gvk| {
        let api = lab.api(gvk, &lab.namespace);
        let found = answered(api.list(&ListParams::default())).await;
        let found = found.and_then(Result::ok).map(|l| l.items).unwrap_or_default();
        let found = found.into_iter().map(|o| serde_json::to_value(o).expect("JSON"));
        found.collect::<Vec<Value>>()
    };
    let (probes, children) = (list(&kind()).await, list(&config_map()).await);
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    for child in children {
        let name = child["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if let Some(value) = child["data"]["v"].as_str() {
            values.insert(name, value.to_owned());
        }
    }
    for probe in &probes {
        let name = probe["metadata"]["name"].as_str().unwrap_or_default();
        let current = probe["status"]["observedGeneration"] == probe["metadata"]["generation"]
            && ostler_test_harness::find_condition(probe, "Ready")["status"] == "True";
        let value = values.entry(name.to_owned()).or_insert_with(|| "no child".into());
        if !current {
            value.push('?');
        }
    }
    values
}

/// Edits, deletes and makes anew; keeps what is to be in the end.
async fn people(api: &Api<DynamicObject>, random: &mut fastrand::Rng, wanted: &mut BTreeMap<String, String>) {
    for _ in 0..STEPS {
        let name = format!("p{}", random.usize(0..OBJECTS));
        if random.u8(0..4) == 0 {
            delete(api, &name).await;
            wanted.remove(&name);
        } else {
            let value = random.u64(..).to_string();
            gone_if_going(api, &name).await;
            apply(api, name.clone(), value.clone()).await;
            wanted.insert(name, value);
        }
    }
}

/// How long a person waits for an answer before asking again. Some never come: where a connection breaks before it was
/// used, its request waits for another's.
const PATIENCE: Duration = Duration::from_secs(20);

/// None where no answer comes.
async fn answered<T>(request: impl Future<Output = kube::Result<T>>) -> Option<kube::Result<T>> {
    let answer = tokio::time::timeout(PATIENCE, request).await;
    if answer.is_err() {
        println!("no answer within {PATIENCE:?}: asked again");
    }
    answer.ok()
}

/// A name that is being deleted can't be used again before it is free.
async fn gone_if_going(api: &Api<DynamicObject>, name: &str) {
    loop {
        match answered(api.get_opt(name)).await {
            Some(Ok(Some(object))) if object.metadata.deletion_timestamp.is_some() => {}
            Some(Ok(_)) => return,
            Some(Err(_)) | None => {}
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// As a person with patience does: again until the server says that it is done.
async fn apply(api: &Api<DynamicObject>, name: String, value: String) {
    let probe: Value = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
        "metadata": {"name": name}, "spec": {"steps": [write("apply", &name, &value)]}});
    let (parameters, patch) = (PatchParams::apply("test").force(), Patch::Apply(&probe));
    while !matches!(answered(api.patch(&name, &parameters, &patch)).await, Some(Ok(_))) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn delete(api: &Api<DynamicObject>, name: &str) {
    loop {
        match answered(api.delete(name, &DeleteParams::default())).await {
            Some(Ok(_)) => return,
            Some(Err(kube::Error::Api(status))) if status.code == 404 => return,
            Some(Err(_)) | None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Breaks something every now and then.
async fn faults(lab: &Lab, proxy: &Proxy, dice: &mut fastrand::Rng, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(dice.u64(20..200))).await;
        match (dice.u8(0..10), &lab.embedded) {
            (0, _) => {
                proxy.set_down(true);
                tokio::time::sleep(Duration::from_millis(dice.u64(10..300))).await;
                proxy.set_down(false);
            }
            (1, _) => proxy.cut_connections(),
            (2, _) => proxy.set_latency(Duration::from_millis(dice.u64(0..20))),
            (3, Some(server)) => server.faults().cut_watches(),
            (4, Some(server)) => server.compact(),
            (5, Some(server)) => server.faults().restart(),
            (6, Some(server)) => server.faults().set_latency(Duration::from_millis(dice.u64(0..3))),
            (_, Some(server)) => {
                let status = |code| Effect::Respond {
                    code,
                    retry_after: None,
                };
                let fault = Fault {
                    matches: Match::default(),
                    times: Some(dice.u64(1..20)),
                    effect: match dice.u8(0..6) {
                        0 => status(429),
                        1 => status(409),
                        2 => status(410),
                        3 => status(500),
                        4 => Effect::Drop,
                        _ => Effect::DropAnswer,
                    },
                };
                server.faults().add(fault).expect("no pattern in it");
            }
            (_, None) => {}
        }
    }
}
