//! Random faults while messages of a real RabbitMQ are handled: the broker is killed, connections are cut, the leader is
//! killed between an effect and its acknowledgement, and the lead changes: the leader hands over, or loses its Lease and
//! lives on beside its successor. No message is lost, each has one effect in objects, and those of an ordered subscription are
//! handled in the order of the queue. An effect that no name makes unique, a message that the handler publishes, is counted: it
//! happens once, and again only where a fault has struck. Messages of an unordered subscription are retried and dead-lettered, too.
//!
//! Each run has a seed, which it prints; `CHAOS_SEED=N` repeats that run. The whole is
//! `cargo xtask test all message_chaos::thousand`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use kube::api::ListParams;
use lapin::BasicProperties;
use ostler_test_harness::{
    Lab,
    probe::config_map,
    proxy::Proxy,
    rabbitmq::{RABBITMQ_PASSWORD, RABBITMQ_USER, RabbitMq},
    replicas::Replicas,
    scenario,
};
use serde_json::{Value, json};

/// Number of messages and of faults.
#[derive(Clone, Copy)]
struct Extent {
    messages: usize,
    faults: usize,
}

/// Ordered queues, each with a subscription of its own. A key's messages are all in one of them.
const QUEUE_COUNT: usize = 2;
/// Queue with a subscription that is not ordered.
const UNORDERED_QUEUE: &str = "chaos-unordered";
/// Messages of it that are handled at once.
const PREFETCH: usize = 4;
/// Messages that can be in a handler when a fault strikes.
const MAX_IN_FLIGHT: usize = QUEUE_COUNT + PREFETCH;
/// Exchange of the messages that the handler publishes, and the queue where they are counted.
const OUTCOMES: &str = "outcomes";
/// Keys, within which the order counts.
const KEY_COUNT: usize = 8;
/// Messages that are published and not handled yet, at most.
const BACKLOG_LIMIT: usize = 20;
/// Milliseconds of computation between the effect of a message and its acknowledgement.
const SHORT_SPIN: u64 = 20;
/// The same, for a message during which the leader is killed; less than the second of computation that a call has.
const LONG_SPIN: u64 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// `kill -9` of the broker, and a restart after some milliseconds.
    KillBroker(u64),
    /// The connections between host and broker are reset.
    CutConnections,
    /// The broker closes its connections.
    CloseConnections,
    /// `kill -9` of the leader after the effect of a message, before its acknowledgement.
    KillLeader,
    /// The leader stops in order and hands over.
    ChangeLeader,
    /// The leader loses its Lease while it handles a message, and lives on as a candidate.
    DeposeLeader,
}

impl Fault {
    fn choose(dice: &mut fastrand::Rng) -> Self {
        match dice.u8(0..10) {
            0 | 1 => Self::KillBroker(dice.u64(0..2_000)),
            2 | 3 => Self::CutConnections,
            4 => Self::CloseConnections,
            5 | 6 => Self::KillLeader,
            7 => Self::ChangeLeader,
            _ => Self::DeposeLeader,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::KillBroker(_) => "broker killed",
            Self::CutConnections => "connections cut",
            Self::CloseConnections => "connections closed by the broker",
            Self::KillLeader => "leader killed after an effect",
            Self::ChangeLeader => "leader hands over",
            Self::DeposeLeader => "leader deposed",
        }
    }

    /// The leader loses the lead by it, and another term follows.
    fn ends_term(self) -> bool {
        matches!(self, Self::KillLeader | Self::ChangeLeader | Self::DeposeLeader)
    }

    /// The fault strikes between the effect of a message and its acknowledgement.
    fn strikes_handler(self) -> bool {
        matches!(self, Self::KillLeader | Self::DeposeLeader)
    }
}

/// The end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// It is acknowledged, in the order of its queue.
    Ordered,
    /// It is acknowledged.
    Unordered,
    /// It is delivered again after a second, and acknowledged then.
    Retried,
    /// It is dead-lettered.
    Rejected,
}

impl Course {
    fn choose(dice: &mut fastrand::Rng) -> Self {
        match dice.u8(0..10) {
            0 | 1 => Self::Unordered,
            2 | 3 => Self::Retried,
            4 => Self::Rejected,
            _ => Self::Ordered,
        }
    }
}

/// A message: the `sequence`-th of its key.
#[derive(Clone, Debug)]
struct Planned {
    key: usize,
    sequence: usize,
    spin: u64,
    course: Course,
}

impl Planned {
    fn name(&self) -> String {
        format!("m-{}-{}", self.key, self.sequence)
    }

    fn queue(&self) -> String {
        match self.course {
            Course::Ordered => queue_name(self.key % QUEUE_COUNT),
            _ => UNORDERED_QUEUE.to_owned(),
        }
    }

    /// Name of the effect that only the first delivery of a retried message has.
    fn first_effect(&self) -> String {
        format!("{}-first", self.name())
    }

    /// Number of deliveries without faults.
    fn deliveries(&self) -> usize {
        1 + usize::from(self.course == Course::Retried)
    }

    fn body(&self) -> Vec<u8> {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name(), "labels": {"chaos": "message"}},
            "data": {"key": self.key.to_string(), "sequence": self.sequence.to_string()}});
        let mut steps = vec![
            json!({"do": "ensure", "object": object.to_string()}),
            json!({"do": "publish", "exchange": OUTCOMES, "routingKey": "done", "messageId": self.name()}),
            json!({"do": "spin", "milliseconds": self.spin}),
        ];
        match self.course {
            Course::Ordered | Course::Unordered => {}
            Course::Retried => {
                let first = json!({"do": "publish", "exchange": OUTCOMES, "routingKey": "done", "messageId": self.first_effect(), "times": 1});
                // After the other effect: a fault in between makes no later delivery look like the first.
                steps.insert(2, first);
                steps.push(json!({"do": "retry", "milliseconds": 1000, "times": 1}));
            }
            Course::Rejected => steps.push(json!({"do": "reject", "body": "as planned"})),
        }
        json!({ "steps": steps }).to_string().into_bytes()
    }
}

fn queue_name(index: usize) -> String {
    format!("chaos-{index}")
}

/// Messages in the order of publication, and faults, each with the number of handled messages at which it strikes.
fn plan_run(extent: Extent, dice: &mut fastrand::Rng) -> (Vec<Planned>, Vec<(usize, Fault)>) {
    let distance = extent.messages / extent.faults;
    let faults = (0..extent.faults).map(|n| (n * distance + dice.usize(0..distance), Fault::choose(dice)));
    let faults: Vec<_> = faults.collect();
    let kills: Vec<usize> = faults
        .iter()
        .filter(|(_, fault)| fault.strikes_handler())
        .map(|(at, _)| *at)
        .collect();
    let mut sequences = [0; KEY_COUNT + 1];
    let messages = (0..extent.messages).map(|n| {
        let course = Course::choose(dice);
        // Those of the unordered queue are beside the keys.
        let key = match course {
            Course::Ordered => dice.usize(0..KEY_COUNT),
            _ => KEY_COUNT,
        };
        sequences[key] += 1;
        Planned {
            key,
            sequence: sequences[key],
            course,
            // Both queues have such a message in flight then.
            spin: if kills.iter().any(|at| n.abs_diff(*at) <= 1) {
                LONG_SPIN
            } else {
                SHORT_SPIN
            },
        }
    });
    (messages.collect(), faults)
}

/// Publishes the messages in order, each until the broker confirms it. A message whose confirmation is lost is published
/// twice. Returns the number of deliveries that those may have beside the planned ones.
async fn publish_all(lab: &Lab, broker: &RabbitMq, messages: &[Planned]) -> usize {
    let mut client = broker.connect().await;
    let mut unplanned_deliveries = 0;
    for (n, message) in messages.iter().enumerate() {
        let look = async || n < count_handled(lab).await + BACKLOG_LIMIT;
        lab.wait_until("the backlog is short", look).await;
        let (queue, body) = (message.queue(), message.body());
        loop {
            let properties = BasicProperties::default().with_message_id(message.name().into());
            let publishing = client.publish_with("", &queue, properties, &body);
            let confirmed = tokio::time::timeout(Duration::from_secs(10), publishing).await;
            if matches!(confirmed, Ok(Ok(()))) {
                break;
            }
            client = broker.connect().await;
            unplanned_deliveries += message.deliveries();
        }
    }
    unplanned_deliveries
}

/// The objects of the messages that were handled.
fn selection() -> ListParams {
    ListParams::default().labels("chaos=message")
}

async fn count_handled(lab: &Lab) -> usize {
    let api = lab.api(&config_map(), &lab.namespace);
    let listed = api.list_metadata(&selection()).await;
    listed.expect("a list").items.len()
}

/// Waits until this many messages are handled. The timeout is for each further message, not for all of them.
async fn wait_handled(lab: &Lab, count: usize) {
    let mut handled = count_handled(lab).await;
    while handled < count {
        lab.wait_until(
            &format!("more than {handled} of {count} messages are handled"),
            async || count_handled(lab).await > handled,
        )
        .await;
        handled = count_handled(lab).await;
    }
}

/// Injects the faults, and returns the number of terms that leaders have lost without one: on a busy machine a host may not renew
/// the Lease in time.
async fn inject_faults(lab: &Lab, broker: &RabbitMq, proxy: &Proxy, faults: &[(usize, Fault)]) -> usize {
    let mut replicas = Replicas::start(lab, "plugins: {}\n");
    for (n, (at, fault)) in faults.iter().enumerate() {
        wait_handled(lab, *at).await;
        println!("fault {n} after {at} messages: {fault:?}");
        match fault {
            Fault::KillBroker(milliseconds) => {
                broker.kill();
                tokio::time::sleep(Duration::from_millis(*milliseconds)).await;
                broker.restart().await;
            }
            Fault::CutConnections => proxy.cut_connections(),
            Fault::CloseConnections => broker.close_connections("chaos").await,
            Fault::KillLeader | Fault::DeposeLeader => {
                // The object of the next message is its effect; it then computes before it is acknowledged.
                wait_handled(lab, at + 1).await;
                match fault {
                    Fault::KillLeader => replicas.kill_leader().await,
                    _ => replicas.depose_leader().await,
                }
            }
            Fault::ChangeLeader => replicas.change_leader().await,
        }
    }
    let last = count_handled(lab).await;
    println!("all faults injected after {last} messages");
    replicas.wait_started().await;
    wait_queues_empty(lab, broker).await;
    let ended_terms = faults.iter().filter(|(_, fault)| fault.ends_term()).count();
    replicas.count_terms().saturating_sub(1 + ended_terms)
}

/// Waits until every message is acknowledged, those that are delivered again included.
async fn wait_queues_empty(lab: &Lab, broker: &RabbitMq) {
    lab.wait_until("all queues are empty", async || {
        let listed = broker
            .control(&["list_queues", "--vhost", broker.vhost(), "name", "messages"])
            .await;
        let is_handled = |name: &str| name.starts_with("chaos-") && !name.ends_with(".dead-letter");
        let depths = listed
            .lines()
            .filter_map(|line| line.rsplit_once('\t'))
            .filter(|(name, _)| is_handled(name))
            .filter_map(|(_, depth)| depth.parse::<u64>().ok());
        depths.sum::<u64>() == 0
    })
    .await;
}

/// Checks the effects: one object per message, and within a key in the order of publication.
async fn check_effects(lab: &Lab, messages: &[Planned]) {
    let api = lab.api(&config_map(), &lab.namespace);
    let mut found: Vec<(u64, usize, usize)> = Vec::new();
    for object in api.list(&selection()).await.expect("a list").items {
        let object = serde_json::to_value(object).expect("JSON");
        let number = |value: &Value| -> u64 {
            value
                .as_str()
                .and_then(|text| text.parse().ok())
                .expect("a number")
        };
        let data = &object["data"];
        found.push((
            // Of its creation, since nothing changes it afterwards.
            number(&object["metadata"]["resourceVersion"]),
            number(&data["key"]) as usize,
            number(&data["sequence"]) as usize,
        ));
    }
    found.sort_unstable();
    assert_eq!(found.len(), messages.len(), "one object per message");
    for key in 0..KEY_COUNT {
        let of_key = found.iter().filter(|(_, of, _)| *of == key);
        let sequences: Vec<usize> = of_key.map(|(_, _, sequence)| *sequence).collect();
        let expected: Vec<usize> = (1..=sequences.len()).collect();
        assert_eq!(sequences, expected, "the order of key {key}");
    }
}

/// Events beside the planned faults after which effects may be repeated.
#[derive(Clone, Copy, Debug)]
struct Unplanned {
    /// Deliveries of messages that were published twice.
    deliveries: usize,
    /// Terms of leaders that ended without a fault.
    lost_terms: usize,
}

/// What was counted outside of the cluster.
struct OutsideEffects {
    /// Effects beyond one for each delivery without faults.
    repeated: usize,
    /// Messages in a delay queue that the broker lost, as docs/messaging.md says it may.
    lost_in_delay: usize,
}

/// Takes all messages of a queue. Returns how often each was there.
async fn count_messages(broker: &RabbitMq, queue: &str) -> BTreeMap<String, usize> {
    let client = broker.connect().await;
    let mut counts = BTreeMap::new();
    while let Some(message) = client.take(queue).await {
        let name = message.properties.message_id().as_ref().map(ToString::to_string);
        *counts.entry(name.expect("a message ID")).or_default() += 1;
    }
    client.close().await;
    counts
}

/// Checks the effects outside of the cluster: each happened, and more often only where a fault has struck. The dead letters are
/// those that were planned.
async fn check_outside_effects(
    broker: &RabbitMq,
    messages: &[Planned],
    faults: &[(usize, Fault)],
    unplanned: Unplanned,
) -> OutsideEffects {
    let mut outcomes = count_messages(broker, OUTCOMES).await;
    let mut effects = OutsideEffects {
        repeated: 0,
        lost_in_delay: 0,
    };
    for message in messages {
        let first = outcomes.remove(&message.first_effect()).unwrap_or_default();
        let count = outcomes.get(&message.name()).copied().unwrap_or_default();
        assert!(count > 0, "{} has no effect outside", message.name());
        effects.repeated += count.saturating_sub(message.deliveries());
        // A fault may strike the first delivery before its effects: the message counts as delivered, and the next delivery, which
        // acknowledges it, is the only one with an effect.
        effects.lost_in_delay += usize::from(message.course == Course::Retried && count <= first);
    }
    assert_eq!(
        outcomes.len(),
        messages.len(),
        "effects of messages that were published"
    );
    let bound = (faults.len() + unplanned.lost_terms) * MAX_IN_FLIGHT + unplanned.deliveries;
    assert!(
        effects.repeated <= bound,
        "{} effects are repeated, of {bound} at most: {} faults, {unplanned:?}",
        effects.repeated,
        faults.len()
    );
    let kills = faults
        .iter()
        .filter(|(_, fault)| matches!(fault, Fault::KillBroker(_)));
    let bound = kills.count() * PREFETCH;
    assert!(
        effects.lost_in_delay <= bound,
        "{} of {bound} are lost",
        effects.lost_in_delay
    );

    let letters = count_messages(broker, &format!("{UNORDERED_QUEUE}.dead-letter")).await;
    let planned = messages
        .iter()
        .filter(|message| message.course == Course::Rejected);
    let planned: BTreeSet<String> = planned.map(Planned::name).collect();
    let found: BTreeSet<String> = letters.into_keys().collect();
    assert_eq!(found, planned);
    effects
}

#[scenario(hostile)]
async fn messages_are_handled_once_and_in_order_under_random_faults(lab: Lab) {
    let extent = Extent {
        messages: 100,
        faults: 10,
    };
    check_chaos(lab, extent).await;
}

/// The same, for longer.
#[scenario(
    embedded = "it is about host and broker",
    hostile,
    campaign = "takes a quarter of an hour"
)]
async fn thousand_messages_are_handled_once_and_in_order_under_two_hundred_faults(lab: Lab) {
    let extent = Extent {
        messages: 1000,
        faults: 200,
    };
    check_chaos(lab, extent).await;
}

async fn check_chaos(lab: Lab, extent: Extent) {
    let seed = match std::env::var("CHAOS_SEED") {
        Ok(seed) => seed.parse().expect("CHAOS_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("repeat this run with CHAOS_SEED={seed}");
    let (messages, faults) = plan_run(extent, &mut fastrand::Rng::with_seed(seed));
    let started = Instant::now();
    let run = async {
        let broker = RabbitMq::start().await;
        let proxy = Proxy::start(broker.address()).await.expect("a proxy");
        let client = broker.connect().await;
        for queue in (0..QUEUE_COUNT).map(queue_name) {
            client.declare_queue(&queue).await;
        }
        client.declare_queue(UNORDERED_QUEUE).await;
        client
            .declare_exchange(OUTCOMES, lapin::ExchangeKind::Topic)
            .await;
        client.declare_queue(OUTCOMES).await;
        client.bind_queue(OUTCOMES, OUTCOMES, "done").await;
        client.close().await;
        let _lock = lab.lock_plugin("probe").await;
        apply_plugin(&lab, &broker, &proxy).await;
        let (deliveries, lost_terms) = tokio::join!(
            publish_all(&lab, &broker, &messages),
            inject_faults(&lab, &broker, &proxy, &faults)
        );
        check_effects(&lab, &messages).await;
        let unplanned = Unplanned {
            deliveries,
            lost_terms,
        };
        println!("{unplanned:?}");
        let effects = check_outside_effects(&broker, &messages, &faults, unplanned).await;
        print_figures(&messages, &faults, &effects, started.elapsed());
    };
    run.await;
}

fn print_figures(
    messages: &[Planned],
    faults: &[(usize, Fault)],
    effects: &OutsideEffects,
    elapsed: Duration,
) {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, fault) in faults {
        *kinds.entry(fault.name()).or_default() += 1;
    }
    let count = |course: Course| messages.iter().filter(|message| message.course == course).count();
    println!(
        "{} messages ({} ordered in {KEY_COUNT} keys of {QUEUE_COUNT} queues; of an unordered one {} acknowledged at once, {} retried, {} \
         dead-lettered): one object each, in order; {} effects outside are repeated, {} lost in a delay queue; {} faults in {:.0} s: {kinds:?}",
        messages.len(),
        count(Course::Ordered),
        count(Course::Unordered),
        count(Course::Retried),
        count(Course::Rejected),
        effects.repeated,
        effects.lost_in_delay,
        faults.len(),
        elapsed.as_secs_f64()
    );
}

/// Installs the probe with a subscription per queue, and the Upstream of the broker behind the proxy.
async fn apply_plugin(lab: &Lab, broker: &RabbitMq, proxy: &Proxy) {
    lab.install(&["tests/probe"]);
    lab.apply(json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "rabbitmq", "namespace": lab.namespace},
        "stringData": {"password": RABBITMQ_PASSWORD}}))
        .await;
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "rabbitmq", "namespace": lab.namespace},
        "spec": {
            "url": broker.url_at(proxy.address()),
            "auth": {"basic": {"username": RABBITMQ_USER, "passwordSecretRef": {"name": "rabbitmq", "key": "password"}}},
        }}))
        .await;
    let upstream = json!({"namespace": lab.namespace, "name": "rabbitmq"});
    let mut subscriptions: Vec<Value> = (0..QUEUE_COUNT)
        .map(|index| json!({"upstream": upstream, "queue": queue_name(index), "ordered": true}))
        .collect();
    subscriptions.push(
        json!({"upstream": upstream, "queue": UNORDERED_QUEUE, "prefetch": PREFETCH,
        "retry": {"initialDelay": "1s", "maxDelay": "2s"}}),
    );
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
    "metadata": {"name": "probe", "labels": {"lab": lab.namespace}},
    "spec": {
        "source": {"file": "probe.wasm"},
        "subscriptions": subscriptions,
        "grants": {
            "reconciles": [{"group": "tests.ostler.dev", "kinds": ["*"]}],
            "kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["create"], "namespaces": [lab.namespace]}],
            "messages": [{"exchanges": [OUTCOMES]}],
        },
    }}))
    .await;
}
