//! Random faults between the host and the API server while objects are created, edited and deleted: no change is lost,
//! and the final state is exact.
//!
//! Each run has a seed, which a failure prints; `CHAOS_SEED=N` repeats that run.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use ostler::testing::{backoff::Backoff, scope::Projection};
use ostler_apiserver::{Effect, Match, RequestFault};
use ostler_test_harness::{
    Lab,
    probe::{config_map, kind, write},
    proxy::Proxy,
    scenario, wait_for,
};
use serde_json::{Value, json};

/// Number of objects.
const OBJECT_COUNT: usize = 500;
/// Edits and deletions per run.
const EDIT_COUNT: usize = 100;

/// Writes of one object are answered with 429 Too Many Requests. Other objects are not delayed, although all share one
/// worker.
#[scenario(embedded = "it injects faults into the API server", hostile)]
async fn throttled_write_does_not_block_the_worker(mut lab: Lab) {
    lab.settings.workers = 1;
    lab.install(&["tests/probe"]);
    lab.start_host_with(lab.client_at(lab.api_address()).await).await;
    let server = lab.embedded.as_ref().expect("it is the embedded one");
    let throttled = RequestFault {
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
    apply_probe(&api, "slow".into(), "1".into()).await;
    let is_throttled = || server.counters().of("apply", "configmaps") > 0;
    lab.wait_until("the first write is throttled", async || is_throttled())
        .await;
    apply_probe(&api, "quick".into(), "1".into()).await;
    lab.wait_ready(&kind(), "quick").await;
    let slow = lab.get(&kind(), "slow").await.expect("it is there");
    assert_ne!(
        ostler_test_harness::find_condition(&slow, "Ready")["status"],
        "True"
    );
    // The client does not retry by itself: each reconcile sends one request.
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

fn choose_seeds(count: u64) -> Vec<u64> {
    match std::env::var("CHAOS_SEED") {
        Ok(seed) => vec![seed.parse().expect("CHAOS_SEED is a number")],
        Err(_) => (0..count).map(|_| fastrand::u64(..)).collect(),
    }
}

/// Prints the seed if a run panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("repeat this run with CHAOS_SEED={}", self.0);
        }
    }
}

/// Maximum number of printed differences and causes.
const MAX_PRINTED: usize = 5;

/// The host's state of a probe: its version in the store, and its place in the queue.
fn describe_probe(lab: &Lab, name: &str) -> String {
    let (key, services) = (lab.key(&kind(), name), lab.host().services());
    let stored = services.cache.store.get(&key, Projection::Full);
    let stored = stored.map(|o| (o.generation, o.resource_version));
    let scheduled = services.dispatcher.explain(&key);
    let since = scheduled.causes.len().saturating_sub(MAX_PRINTED);
    format!(
        "generation and version in the store: {stored:?}, state in the queue: {:?}, due in {:?}, last causes: {:?}",
        scheduled.turn.state,
        scheduled.turn.due_in,
        &scheduled.causes[since..]
    )
}

/// Prints the differences if a run panics.
#[derive(Default)]
struct Differences(std::sync::Mutex<Vec<String>>);

impl Differences {
    /// Compares two states, and returns `true` if they are equal.
    fn is_equal(
        &self,
        lab: &Lab,
        found: &BTreeMap<String, String>,
        expected: &BTreeMap<String, String>,
    ) -> bool {
        let names: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
        let differing = names
            .into_iter()
            .filter(|name| found.get(*name) != expected.get(*name));
        let lines = differing.map(|name| {
            let (found, expected) = (found.get(name), expected.get(name));
            format!(
                "{name}: {found:?}, expected {expected:?}; {}",
                describe_probe(lab, name)
            )
        });
        let lines: Vec<String> = lines.take(MAX_PRINTED).collect();
        let none = lines.is_empty();
        *self.0.lock().expect("lock") = lines;
        none
    }
}

impl Drop for Differences {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.0.lock().expect("lock");
            println!("differences (at most {MAX_PRINTED}): {lines:#?}");
        }
    }
}

#[scenario(hostile)]
async fn objects_converge_under_random_faults(lab: Lab) {
    check_convergence(lab, 10).await;
}

/// The same, for longer.
#[scenario(embedded = "it is about the host alone", hostile, campaign = "takes a minute")]
async fn objects_converge_under_fifty_runs_of_random_faults(lab: Lab) {
    check_convergence(lab, 50).await;
}

/// One host executes all runs, so that each run starts from the state that the previous ones left.
async fn check_convergence(mut lab: Lab, runs: u64) {
    let proxy = Proxy::start(lab.api_address()).await.expect("a proxy");
    let client = lab.client_at(proxy.address()).await;
    lab.install(&["tests/probe"]);
    // There are faults all the time: with the default the delay would stay at its maximum of 30 s.
    lab.settings.watch_backoff =
        Backoff::new(Duration::from_millis(50), Duration::from_secs(1)).with_jitter(50);
    lab.start_host_with(client).await;
    let api = lab.api(&kind(), &lab.namespace);
    let mut expected: BTreeMap<String, String> = (0..OBJECT_COUNT)
        .map(|i| (format!("p{i}"), "0".to_owned()))
        .collect();
    stream::iter(expected.clone())
        .for_each_concurrent(8, |(name, value)| apply_probe(&api, name, value))
        .await;
    for seed in choose_seeds(runs) {
        let _seed = Seed(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let (finished, mut dice) = (AtomicBool::new(false), random.fork());
        let edits = async {
            edit_objects(&api, &mut random, &mut expected).await;
            finished.store(true, Ordering::Relaxed);
        };
        tokio::join!(edits, inject_faults(&lab, &proxy, &mut dice, &finished));
        proxy.set_down(false);
        proxy.set_latency(Duration::ZERO);
        if let Some(server) = &lab.embedded {
            server.faults().clear();
        }
        let differences = Differences::default();
        lab.wait_until(
            &format!("all objects have their expected state (seed {seed})"),
            async || differences.is_equal(&lab, &observed(&lab).await, &expected),
        )
        .await;
        // The last deletions are delivered after the watch has reconnected.
        lab.wait_until(
            &format!("deleted objects are forgotten (seed {seed})"),
            async || lab.host().stats().all_objects().len() == expected.len(),
        )
        .await;
        lab.wait_idle().await;
        let overlaps: u64 = lab.host().stats().all_objects().iter().map(|f| f.overlaps).sum();
        assert_eq!(overlaps, 0, "no object is reconciled concurrently (seed {seed})");
    }
}

/// The observed state: by probe, the value of its child; with `?` if the status is not of the current generation.
async fn observed(lab: &Lab) -> BTreeMap<String, String> {
    // Connections that were cut may still fail requests: without a response the list is empty, and polled again.
    let list = async |gvk| {
        let api = lab.api(gvk, &lab.namespace);
        let found = with_timeout(api.list(&ListParams::default())).await;
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

/// Edits, deletes and recreates objects, and tracks the expected state.
async fn edit_objects(
    api: &Api<DynamicObject>,
    random: &mut fastrand::Rng,
    expected: &mut BTreeMap<String, String>,
) {
    for _ in 0..EDIT_COUNT {
        let name = format!("p{}", random.usize(0..OBJECT_COUNT));
        if random.u8(0..4) == 0 {
            delete_probe(api, &name).await;
            expected.remove(&name);
        } else {
            let value = random.u64(..).to_string();
            // Its name is not free yet. Faults go on, and each one that meets its cleanup doubles the delay of the next attempt.
            if is_being_deleted(api, &name).await {
                continue;
            }
            apply_probe(api, name.clone(), value.clone()).await;
            expected.insert(name, value);
        }
    }
}

/// Timeout after which a request is repeated. Some responses never arrive: if a connection breaks before its first use,
/// its request keeps waiting for another connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The result of a request; `None` after a timeout.
async fn with_timeout<T>(request: impl Future<Output = kube::Result<T>>) -> Option<kube::Result<T>> {
    let result = tokio::time::timeout(REQUEST_TIMEOUT, request).await;
    if result.is_err() {
        println!("no response within {REQUEST_TIMEOUT:?}: repeating the request");
    }
    result.ok()
}

/// Returns whether the deletion of a probe is in progress, repeating the request until there is a response.
async fn is_being_deleted(api: &Api<DynamicObject>, name: &str) -> bool {
    let look = async || match with_timeout(api.get_opt(name)).await {
        Some(Ok(found)) => Some(found.is_some_and(|probe| probe.metadata.deletion_timestamp.is_some())),
        Some(Err(_)) | None => None,
    };
    wait_for(look, || format!("a response about {name}")).await
}

/// Applies a probe, repeating the request until the server confirms it.
async fn apply_probe(api: &Api<DynamicObject>, name: String, value: String) {
    let probe: Value = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
        "metadata": {"name": name}, "spec": {"steps": [write("apply", &name, &value)]}});
    let (parameters, patch) = (PatchParams::apply("test").force(), Patch::Apply(&probe));
    let attempt = async || with_timeout(api.patch(&name, &parameters, &patch)).await?.ok();
    wait_for(attempt, || format!("{name} to be applied")).await;
}

async fn delete_probe(api: &Api<DynamicObject>, name: &str) {
    let attempt = async || match with_timeout(api.delete(name, &DeleteParams::default())).await {
        Some(Ok(_)) => Some(()),
        Some(Err(kube::Error::Api(status))) if status.code == 404 => Some(()),
        Some(Err(_)) | None => None,
    };
    wait_for(attempt, || format!("{name} to be deleted")).await;
}

/// Injects faults at random intervals.
async fn inject_faults(lab: &Lab, proxy: &Proxy, dice: &mut fastrand::Rng, finished: &AtomicBool) {
    while !finished.load(Ordering::Relaxed) {
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
                let fault = RequestFault {
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
                // In place of the one before: on a busy machine requests are fewer than faults, which would otherwise add up until
                // no request of the test itself is answered.
                server.faults().disarm();
                server.faults().add(fault).expect("no pattern in it");
            }
            (_, None) => {}
        }
    }
}
