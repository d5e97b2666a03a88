//! Reconcile latency of a neighbour while other objects misbehave, compared with a calm period of the same run.

use std::time::{Duration, Instant};

use ostler_test_harness::{Lab, find_condition, greeting_kind, scenario};
use serde_json::json;

use super::{Mirror, greeting, object, set_grants};

/// Changes per measurement.
const CHANGE_COUNT: usize = 50;
/// Number of misbehaving objects.
const ATTACKER_COUNT: usize = 8;
/// Maximum ratio of the p98 latencies.
const MAX_RATIO: f64 = 2.0;
/// Measurements of which the majority must be within the ratio, each with its own calm period: the machine is shared.
const ATTEMPT_COUNT: usize = 3;

/// Measurements of a neighbour's latency, until the majority is within the ratio or beyond it.
#[derive(Default)]
pub struct Majority {
    within: usize,
    beyond: usize,
    /// A line for each measurement.
    pub table: String,
}

impl Majority {
    /// Adds a measurement.
    pub fn add(&mut self, calm: Duration, loaded: Duration, note: &str) {
        let ratio = loaded.as_secs_f64() / calm.as_secs_f64();
        let counted = match ratio <= MAX_RATIO {
            true => &mut self.within,
            false => &mut self.beyond,
        };
        *counted += 1;
        let line = format!("{calm:>8.1?} → {loaded:>8.1?}  ×{ratio:.2} {note}\n");
        print!("{line}");
        self.table.push_str(&line);
    }

    /// Returns whether the majority is within the ratio, once that is decided.
    pub fn verdict(&self) -> Option<bool> {
        let is_within = self.within > self.beyond;
        (self.within.max(self.beyond) > ATTEMPT_COUNT / 2).then_some(is_within)
    }
}

const BEHAVIOURS: [&str; 12] = [
    "loop",
    "grow",
    "recurse",
    "trap",
    "random",
    "call",
    "chatter",
    "announce",
    "hurry",
    "hurry-and-write",
    "flood",
    "words",
];

/// The second slowest of fifty changes, from the write until Ready.
pub async fn measure_p98(lab: &Lab, round: &mut u32) -> Duration {
    let mut took = Vec::with_capacity(CHANGE_COUNT);
    for _ in 0..CHANGE_COUNT {
        *round += 1;
        let mut changed = greeting(lab, "neighbour");
        changed["spec"]["name"] = format!("number {round}").into();
        let started = Instant::now();
        let generation = lab.apply(changed).await["metadata"]["generation"].clone();
        lab.wait_until("the neighbour is Ready", async || {
            let object = lab.get(&greeting_kind(), "neighbour").await.unwrap_or_default();
            let ready = find_condition(&object, "Ready");
            ready["status"] == "True" && ready["observedGeneration"] == generation
        })
        .await;
        took.push(started.elapsed());
    }
    took.sort_unstable();
    took[CHANGE_COUNT - 2]
}

#[scenario(embedded = "it measures the host alone", hostile, alone)]
async fn neighbour_latency_stays_within_twice_the_calm_p98(mut lab: Lab) {
    set_grants(
        &mut lab,
        "    kubernetes: [{kinds: [ConfigMap], verbs: [apply]}]\n    upstreams: [{}]\n    events: true\n",
    );
    let slow = Mirror::start(None).await;
    lab.apply(slow.upstream(&lab, "slow")).await;
    lab.install(&["hostile/hostile", "examples/greeting"]);
    lab.start_host().await;
    let mut round = 0;
    let mut late = Vec::new();
    for behaviour in BEHAVIOURS {
        let mut measured = Majority::default();
        while measured.verdict().is_none() {
            let calm = measure_p98(&lab, &mut round).await;
            for i in 0..ATTACKER_COUNT {
                let mut attacker = object(&lab, &format!("attacker-{i}"), behaviour);
                attacker["spec"]["target"] = "slow".into();
                lab.apply(attacker).await;
            }
            let loaded = measure_p98(&lab, &mut round).await;
            for i in 0..ATTACKER_COUNT {
                let name = format!("attacker-{i}");
                lab.apply(object(&lab, &name, "behave")).await;
                lab.wait_ready(&super::hostile(), &name).await;
            }
            measured.add(calm, loaded, behaviour);
        }
        if measured.verdict() == Some(false) {
            late.push(measured.table);
        }
    }
    assert!(
        late.is_empty(),
        "p98 of a neighbour's changes, calm and loaded, more than {MAX_RATIO} times as long:\n{}",
        late.concat()
    );
}

/// Objects of each plugin whose upstream answers slowly, and the time it takes.
const SLOW_COUNT: usize = 20;
const SLOW_RESPONSE: Duration = Duration::from_secs(3);

/// An upstream that answers after seconds opens no circuit breaker: all reconciles of its plugins wait.
#[scenario(hostile, alone)]
async fn slow_upstreams_of_two_plugins_do_not_delay_a_third(mut lab: Lab) {
    set_grants(
        &mut lab,
        "    upstreams: [{}]\n  probe:\n    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]\n    upstreams: [{}]\n",
    );
    lab.settings.workers = 16;
    // Room for as many reconciles as the two plugins may have, and some.
    lab.settings.memory_budget = Some(256 << 20);
    let slow = Mirror::start(Some(SLOW_RESPONSE)).await;
    lab.apply(slow.upstream(&lab, "slow")).await;
    lab.install(&["hostile/hostile", "tests/probe", "examples/greeting"]);
    lab.start_host().await;
    let (mut round, mut measured) = (0, Majority::default());
    while measured.verdict().is_none() {
        let calm = measure_p98(&lab, &mut round).await;
        let before = slow.seen().len();
        for i in 0..SLOW_COUNT {
            let mut asker = object(&lab, &format!("asker-{i}"), "ask");
            asker["spec"]["target"] = "slow".into();
            lab.apply(asker).await;
            let steps = json!([{"do": "http", "name": "slow"}, {"do": "poll", "milliseconds": 1}]);
            lab.apply_probe(&format!("asker-{i}"), steps, json!([])).await;
        }
        lab.wait_until("both plugins wait for their upstream", async || {
            slow.seen().len() >= before + 16
        })
        .await;
        let loaded = measure_p98(&lab, &mut round).await;
        for i in 0..SLOW_COUNT {
            let name = format!("asker-{i}");
            lab.apply(object(&lab, &name, "behave")).await;
            lab.apply_probe(&name, json!([]), json!([])).await;
        }
        measured.add(calm, loaded, "beside two plugins with slow upstreams");
    }
    assert_eq!(measured.verdict(), Some(true), "{}", measured.table);
}
