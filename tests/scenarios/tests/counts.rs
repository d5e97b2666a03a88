//! Costs that are the same on every machine: the allocations of a reconcile, of a change and of an event, the memory that objects
//! take, the instructions of a reconcile and of an event, and the requests of the benches. The limits of memory and instructions are
//! in `tests/scenarios/counts`.

#[cfg(target_arch = "x86_64")]
mod instructions;

use std::{collections::BTreeMap, sync::Arc};

use ostler::testing::{
    dispatcher::Cause,
    key::{Gvk, ObjectRef},
    queue::Priority,
    scope::{Projection, Scope},
    store::Store,
};
use ostler_test_harness::{
    Lab,
    allocations::{count_allocations, count_cached_objects, count_kept_memory},
    counts::PlaceCounts,
    greeting_kind, probe, scenario, workspace_root,
};
use serde_json::{Value, json};

use crate::observability::{Samples, serve_admin};

/// Objects that are reconciled. A change costs the server of the same process many allocations more, each of which is traced.
const OBJECT_COUNT: usize = 8;
/// Times that each is reconciled while allocations are counted.
const ROUNDS: usize = 16;
/// Objects that become Ready while the memory they take is counted: with those before, hash maps are as full as with the 10,000 of the
/// bench.
const READY_OBJECT_COUNT: usize = 187;
/// Objects that are put into a store while the memory they take is counted: hash maps are as full as with the 100,000 of the bench.
const CACHED_OBJECT_COUNT: usize = 100_000 >> 5;
/// Size of the JSON of a cached object without `managedFields`.
const CACHED_OBJECT_BYTES: usize = 1331;
/// Objects of a bench.
const BENCH_OBJECT_COUNT: usize = 100;
/// Name of the watch events among the costs.
const EVENTS: &str = "watch events";
/// Room above the counts of the files: repeated runs differ by less than a hundredth.
const RATIO: f64 = 1.05;

fn greeting(lab: &Lab, object: &str, greeted: &str) -> Value {
    json!({ "apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": { "name": object, "namespace": lab.namespace }, "spec": { "name": greeted } })
}

/// Starts a host with objects that are Ready. Returns their keys.
async fn start_greetings(lab: &mut Lab) -> Vec<ObjectRef> {
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    add_greetings(lab, "g", OBJECT_COUNT).await
}

/// Adds objects, and waits until they are Ready. Returns their keys.
async fn add_greetings(lab: &Lab, series: &str, count: usize) -> Vec<ObjectRef> {
    let names: Vec<String> = (0..count).map(|number| format!("{series}-{number}")).collect();
    for name in &names {
        lab.apply(greeting(lab, name, "Ada")).await;
    }
    for name in &names {
        lab.wait_ready(&greeting_kind(), name).await;
    }
    lab.wait_idle().await;
    names.iter().map(|name| lab.key(&greeting_kind(), name)).collect()
}

/// Compares counts with the limits of a file.
fn check_limits<const N: usize>(counted: &PlaceCounts<N>, file: &str) {
    let limits = workspace_root().join("tests/scenarios/counts").join(file);
    counted.assert_at_most(&limits, RATIO);
}

/// Reconciles all objects this number of times.
async fn reconcile_all(lab: &Lab, keys: &[ObjectRef], rounds: usize) {
    for _ in 0..rounds {
        for key in keys {
            lab.host()
                .services()
                .dispatcher
                .enqueue(key, Priority::Normal, Cause::Poll);
        }
        lab.wait_idle().await;
    }
}

fn count_reconciles(lab: &Lab, keys: &[ObjectRef]) -> u64 {
    let facts = keys.iter().filter_map(|key| lab.host().stats().object(key));
    facts.map(|facts| facts.reconciles).sum()
}

#[scenario(embedded = "it counts what the host allocates", alone)]
async fn reconcile_without_a_change_allocates_no_more_than_before(mut lab: Lab) {
    let keys = start_greetings(&mut lab).await;
    // Caches are filled and histories are full once.
    reconcile_all(&lab, &keys, 2).await;
    let (writes, reconciles) = (lab.api_writes(), count_reconciles(&lab, &keys));
    let counted = count_allocations(OBJECT_COUNT * ROUNDS, reconcile_all(&lab, &keys, ROUNDS)).await;
    assert_eq!(lab.api_writes(), writes, "nothing is written");
    let expected = reconciles + (OBJECT_COUNT * ROUNDS) as u64;
    assert_eq!(count_reconciles(&lab, &keys), expected);
    check_limits(&counted, "reconcile-without-change.txt");
}

/// A change of an object leads to two writes, of the object that it owns and of its status.
#[scenario(embedded = "it counts what the host allocates", alone)]
async fn change_with_two_writes_allocates_no_more_than_before(mut lab: Lab) {
    let keys = start_greetings(&mut lab).await;
    let change_all = async |greeted: &str| {
        let writes = lab.api_writes();
        for key in &keys {
            lab.apply(greeting(&lab, &key.name, greeted)).await;
        }
        lab.wait_until("all changes are written", async || {
            lab.api_writes() == writes + 2 * OBJECT_COUNT as u64
        })
        .await;
        lab.wait_idle().await;
    };
    change_all("Grace").await;
    let reconciles = count_reconciles(&lab, &keys);
    let counted = count_allocations(OBJECT_COUNT, change_all("Mary")).await;
    let expected = reconciles + OBJECT_COUNT as u64;
    assert_eq!(
        count_reconciles(&lab, &keys),
        expected,
        "what it writes wakes nothing"
    );
    check_limits(&counted, "change-with-two-writes.txt");
}

/// The watch of owned objects delivers the change of one that no reconcile has read.
#[scenario(embedded = "it counts what the host allocates", alone)]
async fn event_that_wakes_nothing_allocates_no_more_than_before(mut lab: Lab) {
    let keys = start_greetings(&mut lab).await;
    let foreign = lab.key(&probe::config_map(), "foreign");
    let change = async |value: &str| {
        let written = lab
            .apply(json!({ "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": "foreign", "namespace": lab.namespace,
                    "labels": { "ostler.dev/owner-uid": "another" } }, "data": { "value": value } }))
            .await;
        let version = written["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        lab.wait_until("the watch has delivered the change", async || {
            let cached = lab.host().services().cache.store.get(&foreign, Projection::Full);
            cached.is_some_and(|object| object.resource_version.to_string() == version)
        })
        .await;
    };
    change("before").await;
    let reconciles = count_reconciles(&lab, &keys);
    let counted = count_allocations(OBJECT_COUNT, async {
        for round in 0..OBJECT_COUNT {
            change(&format!("after {round}")).await;
        }
    });
    let counted = counted.await;
    assert_eq!(count_reconciles(&lab, &keys), reconciles);
    check_limits(&counted, "event-that-wakes-nothing.txt");
}

/// Store, dependency graph, queue, statistics, events, recordings: all that an object leaves behind once it is Ready.
#[scenario(embedded = "it counts what the host allocates", alone)]
async fn ready_object_takes_no_more_memory_than_before(mut lab: Lab) {
    start_greetings(&mut lab).await;
    let counted = count_kept_memory(READY_OBJECT_COUNT, async {
        add_greetings(&lab, "kept", READY_OBJECT_COUNT).await;
    });
    check_limits(&counted.await, "ready-object.txt");
}

/// A ConfigMap like those of the bench `cache-100k`: a few entries and labels, and digits that nothing compresses.
fn cached_config_map(number: usize) -> Vec<u8> {
    let build = |digits: &str| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": format!("kept-{number:06}"), "namespace": "bench",
                "uid": format!("{:08x}-7a51-4c1e-9d3f-{number:012x}", fastrand::Rng::with_seed(number as u64).u32(..)),
                "resourceVersion": (100_000 + number).to_string(),
                "creationTimestamp": format!("2026-01-01T10:{:02}:{:02}Z", number / 60 % 60, number % 60),
                "labels": { "app.kubernetes.io/name": "kept", "app.kubernetes.io/instance": format!("kept-{number:06}"),
                    "app.kubernetes.io/managed-by": "bench", "tier": (["web", "worker", "batch"][number % 3]) },
                "annotations": { "bench.ostler.dev/purpose": "cached, and read by no reconciler" } },
            "data": { "LOG_LEVEL": "info", "ENDPOINT": format!("https://service-{number}.example/api/v1"),
                "settings.yaml": digits } })
        .to_string()
    };
    let mut dice = fastrand::Rng::with_seed(number as u64);
    let digits = std::iter::repeat_with(|| dice.digit(16)).take(CACHED_OBJECT_BYTES - build("").len());
    build(&digits.collect::<String>()).into_bytes()
}

/// A store with a collection of a kind.
fn create_store(gvk: &Gvk) -> Arc<Store> {
    let store = Arc::new(Store::default());
    store.open_collection(&Scope {
        gvk: gvk.clone(),
        cluster: "".into(),
        namespace: "".into(),
        selector: None,
        projection: Projection::Full,
    });
    store
}

#[scenario(embedded = "it counts what the host allocates", alone)]
async fn cached_object_takes_no_more_memory_than_before(_: Lab) {
    let gvk = probe::config_map();
    let store = create_store(&gvk);
    let objects: Vec<Vec<u8>> = (0..CACHED_OBJECT_COUNT).map(cached_config_map).collect();
    let counted = count_cached_objects(&store, &gvk, &objects).await;
    let size = store.size();
    assert_eq!(size.bytes, CACHED_OBJECT_COUNT * CACHED_OBJECT_BYTES);
    check_limits(&counted, "cached-object.txt");
}

/// Requests to the API server by method, calls of components, and watch events so far.
async fn read_costs(url: &str) -> BTreeMap<String, f64> {
    let samples = Samples::of(url).await;
    let mut costs = BTreeMap::from([(EVENTS.to_owned(), samples.sum(&["ostler_watch_events_total"]))]);
    for (family, label, values) in [
        (
            "rest_client_requests_total",
            "method",
            &["GET", "PATCH", "POST", "PUT", "DELETE"][..],
        ),
        (
            "ostler_host_calls_total",
            "call",
            &["kubernetes.apply", "kubernetes.get"],
        ),
    ] {
        let count = |value: &&str| {
            (
                (*value).to_owned(),
                samples.sum(&[family, &format!("{label}=\"{value}\"")]),
            )
        };
        costs.extend(values.iter().map(count));
    }
    costs
}

/// What some work costs, once nothing more is to be reconciled and this number of watch events has come.
async fn count_costs(
    lab: &Lab,
    url: &str,
    events: f64,
    work: impl Future<Output = ()>,
) -> BTreeMap<String, f64> {
    let before = read_costs(url).await;
    work.await;
    lab.wait_until("the watch events have come", async || {
        read_costs(url).await[EVENTS] >= before[EVENTS] + events
    })
    .await;
    lab.wait_idle().await;
    let mut costs = read_costs(url).await;
    for (name, cost) in &mut costs {
        *cost -= before[name];
    }
    costs.retain(|_, cost| *cost != 0.0);
    costs
}

/// The benches `converge`, `noop` and `fanout` with fewer objects, by counting.
#[scenario]
async fn benches_cost_no_request_call_or_event_more_than_needed(mut lab: Lab) {
    let n = BENCH_OBJECT_COUNT as f64;
    let costs = |of: &[(&str, f64)]| -> BTreeMap<String, f64> {
        of.iter()
            .map(|(name, each)| ((*name).to_owned(), each * n))
            .collect()
    };
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let (_, url) = serve_admin(&lab).await;
    // The first object starts the watches.
    add_greetings(&lab, "first", 1).await;

    let mut keys = Vec::new();
    let converge = async { keys = add_greetings(&lab, "g", BENCH_OBJECT_COUNT).await };
    assert_eq!(
        count_costs(&lab, &url, 4.0 * n, converge).await,
        costs(&[("PATCH", 3.0), ("kubernetes.apply", 1.0), (EVENTS, 4.0)]),
        "the finalizer, the ConfigMap and the status; with the creation these are the events"
    );

    let reconcile = reconcile_all(&lab, &keys, 1);
    assert_eq!(
        count_costs(&lab, &url, 0.0, reconcile).await,
        costs(&[("kubernetes.apply", 1.0)])
    );

    lab.install(&["tests/probe"]);
    lab.apply_config_map("shared", "l", "before").await;
    let readers: Vec<String> = (0..BENCH_OBJECT_COUNT)
        .map(|number| format!("reader-{number}"))
        .collect();
    for reader in &readers {
        let read = json!([{"do": "get", "apiVersion": "v1", "kind": "ConfigMap", "name": "shared"}]);
        lab.apply_probe(reader, read, json!([])).await;
    }
    for reader in &readers {
        lab.wait_seen(reader, &[r#"{"v":"before"}"#]).await;
    }
    lab.wait_idle().await;
    let change_shared = lab.apply_config_map("shared", "l", "after");
    // Those of what they read, which the probe could hold and so watches twice, and of the status of each.
    let events = 2.0 + n;
    let mut expected = costs(&[("PATCH", 1.0), ("kubernetes.get", 1.0)]);
    expected.insert(EVENTS.to_owned(), events);
    assert_eq!(count_costs(&lab, &url, events, change_shared).await, expected);
}
