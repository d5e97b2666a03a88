//! The alerts and the dashboard of `deploy/` on a running Prometheus: faults make each alert fire, and their end resolves it.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use kube::api::{DeleteParams, Patch, PatchParams};
use ostler::testing::{grants::Grants, key::Gvk};
use ostler_test_harness::{
    Lab, probe,
    process::{HostProcess, ProcessOptions},
    prometheus::Prometheus,
    rabbitmq::{RABBITMQ_PASSWORD, RabbitMq},
    read_component, scenario, wait_for, workspace_root,
};
use serde_json::{Value, json};

use crate::{
    hostile::{self, server::Mirror},
    messaging,
    observability::serve_admin,
    plugins::make_brittle,
};

/// Milliseconds that stand for a minute of the rules.
const MINUTE_MS: u64 = 400;
/// Thresholds in seconds, and what stands for them.
const THRESHOLDS: [(&str, &str); 2] = [("> 60\n", "> 0.4\n"), ("> 600\n", "> 4\n")];

fn read_file(name: &str) -> String {
    let path = workspace_root().join("deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Shortens a duration of a rule, such as `15m`.
fn shorten(duration: &str) -> String {
    let (number, unit) = duration.split_at(duration.len() - 1);
    let number: u64 = number
        .parse()
        .unwrap_or_else(|_| panic!("{duration:?} is no duration"));
    let minutes = match unit {
        "m" => number,
        "h" => number * 60,
        _ => panic!("{duration:?} is no duration"),
    };
    format!("{}ms", minutes * MINUTE_MS)
}

/// The rules with all durations shortened.
fn read_shortened_rules() -> String {
    let mut rules = String::new();
    for line in read_file("alerts.yaml").lines() {
        let line = match line.split_once("for: ") {
            Some((indent, duration)) => format!("{indent}for: {}", shorten(duration)),
            None => {
                let mut parts = line.split('[');
                let first = parts.next().unwrap_or_default().to_owned();
                parts.fold(first, |line, part| match part.split_once(']') {
                    Some((duration, rest)) => format!("{line}[{}]{rest}", shorten(duration)),
                    None => format!("{line}[{part}"),
                })
            }
        };
        rules.push_str(&line);
        rules.push('\n');
    }
    for (threshold, shortened) in THRESHOLDS {
        assert_eq!(rules.matches(threshold).count(), 1, "{threshold}");
        rules = rules.replace(threshold, shortened);
    }
    rules
}

/// The names of the alerts of `deploy/alerts.yaml`.
fn list_alerts() -> BTreeSet<String> {
    let rules = read_file("alerts.yaml");
    let names = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

async fn list_firing(prometheus: &Prometheus) -> BTreeSet<String> {
    let firing = prometheus.list_firing().await;
    let names = firing
        .iter()
        .map(|alert| alert["labels"]["alertname"].as_str().expect("a name").to_owned());
    names.collect()
}

/// Waits until each of these alerts has fired. One whose cause is a request that ends after a time limit does not fire all the time.
async fn wait_fired(prometheus: &Prometheus, alerts: &BTreeSet<String>) {
    let left = Mutex::new(alerts.clone());
    let look = async || {
        let firing = list_firing(prometheus).await;
        let mut left = left.lock().expect("lock");
        left.retain(|alert| !firing.contains(alert));
        left.is_empty().then_some(())
    };
    wait_for(look, || {
        format!("these alerts fire: {:?}", left.lock().expect("lock"))
    })
    .await;
}

/// Waits until no alert fires.
async fn wait_resolved(prometheus: &Prometheus) {
    let firing = Mutex::new(BTreeSet::new());
    let look = async || {
        let now = list_firing(prometheus).await;
        let is_none = now.is_empty();
        *firing.lock().expect("lock") = now;
        is_none.then_some(())
    };
    wait_for(look, || {
        format!("these alerts resolve: {:?}", firing.lock().expect("lock"))
    })
    .await;
}

/// An address at which nothing listens: ports below 1024 are not given to tests.
const CLOSED_URL: &str = "http://127.0.0.1:1";
/// Time that a server takes to answer, longer than a request may.
const HANGING_TIME: Duration = Duration::from_hours(1);

async fn apply_hostile(lab: &Lab, name: &str, behaviour: &str) {
    lab.apply(hostile::object(lab, name, behaviour)).await;
}

/// Changes objects again and again, as users do who look for the fault, so that they are reconciled before their backoff is over.
async fn touch_objects(lab: &Lab, objects: &[(Gvk, &str)]) {
    for round in 0_u64.. {
        for (gvk, name) in objects {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"touched": round.to_string()}}}));
            let api = lab.api(gvk, &lab.namespace);
            api.patch(name, &PatchParams::default(), &patch)
                .await
                .expect("patched");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Sets the grants of the plugins of a lab.
fn set_grants(lab: &mut Lab, more: &str) {
    let text = format!(
        "plugins:
  hostile: {{reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}]}}
  greeting: {{reconciles: [{{group: examples.ostler.dev, kinds: [Greeting]}}]}}
  probe:
    reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}]
    kubernetes: [{{kinds: [ConfigMap], verbs: [get, apply]}}]
    upstreams: [{{}}]
{more}"
    );
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("grants");
}

/// Two probes that revert each other's writes.
async fn fight(lab: &Lab) {
    for name in ["fighter-a", "fighter-b"] {
        lab.apply_probe(name, json!([probe::write("force", "ring", name)]), json!([]))
            .await;
    }
}

/// One Prometheus scrapes hosts of five labs. A minute of the rules takes 400 ms, in which a host on a busy machine may miss scrapes.
#[scenario(embedded = "it deletes a kind that other tests use", alone)]
async fn faults_make_every_alert_fire_and_their_end_resolves_it(lab: Lab) {
    let prometheus = Prometheus::start(&read_shortened_rules()).await;
    let down = ["OstlerDown".to_owned()].into();
    wait_fired(&prometheus, &down).await;

    // Leaders, and the grants file: processes, of which one waits for a Lease that somebody holds.
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "ostler", "namespace": lab.namespace},
        "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 3600, "acquireTime": "2026-11-28T10:00:00.000000Z",
            "renewTime": "2099-01-01T00:00:00.000000Z"}});
    lab.apply(lease).await;
    let other_namespace = format!("{}-other", lab.namespace);
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other_namespace}}))
        .await;
    let start = |name: &str, namespace: &str| {
        let arguments = ["--leader-elect", "--lease-namespace", namespace];
        HostProcess::start_with(&lab, name, &arguments, ProcessOptions::default())
    };
    let waiting = start("waiting", &lab.namespace);
    let (first, second) = (start("first", &other_namespace), start("second", "default"));
    for process in [&waiting, &first, &second] {
        process.wait_started(&lab).await;
    }
    let grants_file = lab.path().join("first.grants.yaml");
    let good_grants = std::fs::read_to_string(&grants_file).expect("the grants");
    std::fs::write(&grants_file, "plugins: [").expect("written");

    // One worker for each plugin, and calls that take long.
    let mut slow = Lab::embedded().await;
    set_grants(&mut slow, "");
    slow.settings.workers = 1;
    slow.install(&["hostile/hostile", "tests/probe"]);
    slow.start_host().await;
    let hanging = Mirror::start(Some(HANGING_TIME)).await;
    slow.apply(hanging.upstream(&slow, "hanging")).await;
    slow.apply_probe(
        "stuck",
        json!([{"do": "http", "name": "hanging", "path": "/"}]),
        json!([]),
    )
    .await;
    let loopers: Vec<String> = (0..4).map(|i| format!("loop-{i}")).collect();
    for name in &loopers {
        apply_hostile(&slow, name, "loop").await;
    }

    // Memory for a few calls.
    let mut small = Lab::embedded().await;
    set_grants(&mut small, "");
    small.settings.memory_budget = Some(256 << 20);
    small.install(&["hostile/hostile"]);
    small.start_host().await;
    let holders: Vec<String> = (0..6).map(|i| format!("hold-{i}")).collect();
    for name in &holders {
        apply_hostile(&small, name, "hold-memory").await;
    }

    // Everything else: a kind that is gone, failures, traps, a rollback, a fight, an upstream and a broker that are down.
    let rabbitmq = RabbitMq::start().await;
    rabbitmq.connect().await.declare_queue(messaging::QUEUE).await;
    let mut broken = Lab::embedded().await;
    let subscription = format!(
        "    subscriptions: [{{upstream: {{namespace: {}, name: broker}}, queue: {}}}]\n",
        broken.namespace,
        messaging::QUEUE
    );
    set_grants(&mut broken, &subscription);
    let sound = read_component("hostile/hostile");
    broken.install_bytes("hostile", &sound);
    broken.install(&["tests/probe", "examples/greeting"]);
    broken
        .apply(messaging::secret(&broken, "password", RABBITMQ_PASSWORD))
        .await;
    broken
        .apply(messaging::broker(&broken, &rabbitmq.url(), None))
        .await;
    broken.start_host().await;
    let mut admins = Vec::new();
    for (lab, namespace) in [(&slow, "slow"), (&small, "small"), (&broken, "broken")] {
        admins.push((serve_admin(lab).await.1, namespace, "a"));
    }
    admins.push((waiting.admin_url(), "waiting", "a"));
    admins.push((first.admin_url(), "led", "a"));
    admins.push((second.admin_url(), "led", "b"));
    let targets: Vec<_> = admins
        .iter()
        .map(|(url, namespace, pod)| (url.trim_start_matches("http://"), *namespace, *pod))
        .collect();
    prometheus.set_targets(&targets);
    // What has happened before the first scrape is no increase.
    let scraped = async || {
        let series = prometheus
            .query("ostler_component_rollbacks_total{namespace=\"broken\", plugin=\"hostile\"}")
            .await;
        (!series.is_empty()).then_some(())
    };
    wait_for(scraped, || "the host that rolls back is scraped".to_owned()).await;
    let brittle: Vec<String> = (0..3).map(|i| format!("brittle-{i}")).collect();
    for name in &brittle {
        apply_hostile(&broken, name, "behave").await;
        broken.wait_ready(&hostile::hostile(), name).await;
    }
    let working = Mirror::start(None).await;
    let mut closed = working.upstream(&broken, "closed");
    closed["spec"]["url"] = CLOSED_URL.into();
    broken.apply(closed).await;
    broken
        .apply_probe(
            "asks",
            json!([{"do": "http", "name": "closed", "path": "/"}]),
            json!([]),
        )
        .await;
    broken
        .apply_probe("fails", json!([{"do": "retry"}]), json!([]))
        .await;
    apply_hostile(&broken, "traps", "trap").await;
    fight(&broken).await;
    let definitions = broken.api(
        &Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        "",
    );
    let greetings = "greetings.examples.ostler.dev";
    definitions
        .delete(greetings, &DeleteParams::default())
        .await
        .expect("deleted");
    let served = broken.host().registry().reports();
    let digest = served
        .iter()
        .find(|report| report.name == "hostile")
        .expect("it serves")
        .digest
        .clone();
    broken.install_bytes("hostile", &make_brittle(&sound));
    broken
        .wait_until("the brittle build serves", async || {
            let reports = broken.host().registry().reports();
            reports
                .iter()
                .any(|report| report.name == "hostile" && report.digest != digest)
        })
        .await;
    for name in &brittle {
        apply_hostile(&broken, name, "brittle").await;
    }
    rabbitmq.stop().await;

    let mut expected = list_alerts();
    expected.remove("OstlerDown");
    let busy = [
        (probe::kind(), "fails"),
        (probe::kind(), "asks"),
        (hostile::hostile(), "traps"),
        (probe::kind(), "fighter-a"),
        (probe::kind(), "fighter-b"),
    ];
    let looped: Vec<_> = loopers
        .iter()
        .map(|name| (hostile::hostile(), name.as_str()))
        .collect();
    let held: Vec<_> = holders
        .iter()
        .map(|name| (hostile::hostile(), name.as_str()))
        .collect();
    tokio::select! {
        () = touch_objects(&broken, &busy) => {}
        () = touch_objects(&slow, &looped) => {}
        () = touch_objects(&small, &held) => {}
        () = wait_fired(&prometheus, &expected) => {}
    }
    assert_eq!(prometheus.list_failed_rules().await, Vec::<String>::new());
    for alert in prometheus.list_firing().await {
        let text = alert["annotations"]["summary"].as_str().expect("a summary");
        assert!(!text.is_empty() && !text.contains("<no value>"), "{alert:#}");
    }
    check_dashboard(&prometheus).await;

    // The end of the faults.
    let released = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
    lab.api(&Gvk::new("coordination.k8s.io", "v1", "Lease"), &lab.namespace)
        .patch("ostler", &PatchParams::default(), &released)
        .await
        .expect("released");
    drop(second);
    std::fs::write(&grants_file, good_grants).expect("written");
    slow.apply_probe("stuck", json!([]), json!([])).await;
    for (lab, names) in [(&slow, &loopers), (&small, &holders), (&broken, &brittle)] {
        for name in names {
            apply_hostile(lab, name, "behave").await;
        }
    }
    apply_hostile(&broken, "traps", "behave").await;
    broken.apply(working.upstream(&broken, "closed")).await;
    broken.apply_probe("fails", json!([]), json!([])).await;
    broken.delete(&probe::kind(), "fighter-a").await;
    broken.restore_kinds().await;
    rabbitmq.restart().await;
    prometheus.set_targets(&targets[..targets.len() - 1]);
    wait_resolved(&prometheus).await;
}

/// Each query of the dashboard returns series.
async fn check_dashboard(prometheus: &Prometheus) {
    let dashboard: Value = serde_json::from_str(&read_file("dashboard.json")).expect("JSON");
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("an expression");
            let expression = expression
                .replace("$__rate_interval", "30s")
                .replace("$namespace", ".*");
            assert!(!expression.contains('$'), "{expression}");
            let series = prometheus.query(&expression).await;
            assert!(!series.is_empty(), "{}: no data for {expression}", panel["title"]);
            queries += 1;
        }
    }
    assert!(queries > 20, "{queries}");
}
