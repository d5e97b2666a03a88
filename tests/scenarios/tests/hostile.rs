//! A component that misbehaves costs that reconcile only; its neighbours go on.

#[path = "hostile/limits.rs"]
mod limits;
#[path = "hostile/neighbours.rs"]
mod neighbours;
#[path = "hostile/server.rs"]
mod server;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use limits::every_limit_is_broken_by_somebody;
use neighbours::neighbours_go_on_as_before;
use ostler::testing::{engine::Inspector, grants::Grants, key::Gvk};
use ostler_test_harness::{Lab, captured_logs, find_condition, scenarios};
use serde_json::{Value, json};
use server::Mirror;

scenarios!(hostile: traps,
    panics,
    traps_at_random,
    loops_for_ever,
    allocates_without_end,
    recurses_without_end,
    returns_nonsense,
    calls_and_chatters_without_end,
    writes_without_end,
    forges_its_status,
    shouts_into_events_and_the_log,
    goes_where_it_may_not,
    puts_paths_into_names,
    smuggles_headers_and_paths,
    sends_secrets_to_a_mirror,
    every_limit_is_broken_by_somebody,
    neighbours_go_on_as_before
);

fn hostile() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Hostile")
}

fn config_map() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

fn object(lab: &Lab, name: &str, behaviour: &str) -> Value {
    json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"behaviour": behaviour}})
}

/// An object that does this to that.
async fn attack(lab: &Lab, behaviour: &str, target: &str) {
    let mut attack = object(lab, behaviour, behaviour);
    attack["spec"]["target"] = target.into();
    lab.apply(attack).await;
}

/// What it says came of its attempts.
async fn tried(lab: &Lab, behaviour: &str) -> Vec<String> {
    let done = lab.wait_ready(&hostile(), behaviour).await;
    let said = find_condition(&done, "Tried")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    said.lines().map(str::to_owned).collect()
}

fn greeting(lab: &Lab, name: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": name}})
}

fn greetings() -> Gvk {
    Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting")
}

/// What the hostile plugin is granted, besides what deploy/grants.yaml gives others.
fn grant(lab: &mut Lab, entry: &str) {
    let text = format!("{}\n  hostile:\n{entry}", ostler_test_harness::PACK_GRANTS);
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("the grants parse");
}

/// One object misbehaves; objects of the same plugin and of another are made after that and become Ready all the
/// same, and the one that misbehaved says what happened and recovers when it is told to behave.
async fn costs_its_own_reconcile(lab: &mut Lab, behaviour: &str, reason: &str, words: &str) {
    lab.settings.limits.cpu_time = Duration::from_millis(200);
    lab.install(&["hostile/hostile", "examples/greeting"]);
    lab.start_host().await;
    lab.apply(object(lab, "bad", behaviour)).await;
    let bad = lab
        .wait_condition(&hostile(), "bad", "Ready", "False", reason)
        .await;
    let message = find_condition(&bad, "Ready")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(message.contains(words), "{message:?} should speak of {words:?}");
    lab.apply(object(lab, "good", "behave")).await;
    lab.apply(greeting(lab, "neighbour")).await;
    lab.wait_ready(&hostile(), "good").await;
    lab.wait_ready(&greetings(), "neighbour").await;
    lab.apply(object(lab, "bad", "behave")).await;
    lab.wait_ready(&hostile(), "bad").await;
}

async fn traps(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "trap", "PluginTrapped", "unreachable").await;
}

async fn panics(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "panic", "PluginTrapped", "trapped").await;
    assert!(
        ostler_test_harness::captured_logs().contains("as told"),
        "the panic's own words are in the log"
    );
}

/// Twice in three times: whoever is tried again gets there.
async fn traps_at_random(mut lab: Lab) {
    lab.settings.backoff.max = Duration::from_millis(50);
    lab.install(&["hostile/hostile", "examples/greeting"]);
    lab.start_host().await;
    for i in 0..10 {
        lab.apply(object(&lab, &format!("random-{i}"), "random")).await;
    }
    lab.apply(greeting(&lab, "neighbour")).await;
    lab.wait_ready(&greetings(), "neighbour").await;
    for i in 0..10 {
        lab.wait_ready(&hostile(), &format!("random-{i}")).await;
    }
}

async fn loops_for_ever(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "loop", "PluginTimeout", "does it loop?").await;
}

async fn allocates_without_end(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "grow", "PluginOutOfMemory", "64MiB").await;
}

async fn recurses_without_end(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "recurse", "PluginTrapped", "trapped").await;
}

async fn returns_nonsense(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "nonsense", "InvalidStatus", "not a JSON object").await;
}

async fn calls_and_chatters_without_end(mut lab: Lab) {
    lab.settings.limits.host_calls = 100;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    for behaviour in ["call", "chatter"] {
        lab.apply(object(&lab, behaviour, behaviour)).await;
        // What is over the limit is dropped; the reconcile itself is none the worse.
        lab.wait_ready(&hostile(), behaviour).await;
    }
}

/// Who writes and wants to be called again at once, each time, is let do so once a second.
async fn writes_without_end(mut lab: Lab) {
    grant(
        &mut lab,
        "    kubernetes: [{kinds: [ConfigMap], verbs: [apply]}]\n",
    );
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    lab.apply(object(&lab, "bad", "hurry-and-write")).await;
    let bad = lab
        .wait_condition(&hostile(), "bad", "HotLoop", "True", "TightRequeueLoop")
        .await;
    assert_eq!(
        find_condition(&bad, "Ready")["status"],
        "True",
        "what it does it does"
    );
    let writes = || {
        let facts = lab.host().stats().object(&lab.key(&hostile(), "bad"));
        facts.map_or(0, |facts| facts.api_writes)
    };
    // Of writes that end after this, the first alone may have begun before.
    let (since, before) = (Instant::now(), writes());
    lab.wait_until("it has written three times more", async || writes() > before + 2)
        .await;
    assert!(since.elapsed() > Duration::from_secs(1), "{:?}", since.elapsed());
    // A person need not wait for it, and when it ends it is said no more.
    lab.apply(object(&lab, "bad", "behave")).await;
    let good = lab.wait_ready(&hostile(), "bad").await;
    assert!(find_condition(&good, "HotLoop").is_null(), "{good:#}");
}

async fn forges_its_status(mut lab: Lab) {
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    lab.apply(object(&lab, "forge", "forge")).await;
    let forged = lab
        .wait_condition(&hostile(), "forge", "Ready", "False", "Unspecified")
        .await;
    let ready = find_condition(&forged, "Ready");
    assert_ne!(ready["lastTransitionTime"], "2000-01-01T00:00:00Z");
    let status = &forged["status"];
    assert_eq!(status["observedGeneration"], forged["metadata"]["generation"]);
    assert_eq!(status["conditions"].as_array().map(Vec::len), Some(1));
}

async fn shouts_into_events_and_the_log(mut lab: Lab) {
    grant(&mut lab, "    events: true\n");
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    lab.apply(object(&lab, "shout", "shout")).await;
    lab.wait_ready(&hostile(), "shout").await;
    let event = Gvk::new("", "v1", "Event");
    let of_it = |e: &Value| e["involvedObject"]["name"] == "shout";
    lab.wait_until("its event is written, cut", async || {
        let events = lab.list(&event).await;
        events
            .iter()
            .any(|e| of_it(e) && e["reason"].as_str().is_some_and(|r| r.len() == 128))
    })
    .await;
    let log = captured_logs();
    assert!(log.contains("a line\\nERROR forged"), "the line is in the log");
    assert!(
        !log.lines().any(|l| l.starts_with("ERROR forged")),
        "a forged line"
    );
    assert!(!log.contains('\u{1b}'), "something that talks to a terminal");
    let longest = log.lines().map(str::len).max();
    assert!(
        longest.is_some_and(|n| n < 64 << 10),
        "a line of {longest:?} bytes"
    );
}

async fn goes_where_it_may_not(mut lab: Lab) {
    let here = lab.namespace.clone();
    let entry = format!(
        "    kubernetes:
    - {{kinds: ['*'], verbs: [get, list, apply, create, delete, hold], namespaces: [{here}]}}
    secrets:
    - {{names: [treasure], namespaces: [{here}]}}
"
    );
    grant(&mut lab, &entry);
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"password": "gold"},
        "metadata": {"name": "treasure", "namespace": here}}),
    )
    .await;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    attack(&lab, "trespass", "kube-system").await;
    let tried = tried(&lab, "trespass").await;
    let (last, refused) = tried.split_last().expect("attempts");
    // It may write that: without an owner of its own choosing.
    assert_eq!(last, "adopt: ok null");
    for attempt in refused {
        let fine = attempt.ends_with(": denied") || attempt.starts_with("digest: ok ");
        assert!(fine, "{attempt}\n{tried:#?}");
    }
    assert_eq!(refused.len(), 13);
    let there = lab.api(&config_map(), "kube-system");
    assert!(there.get_opt("planted").await.expect("an answer").is_none());
}

async fn puts_paths_into_names(mut lab: Lab) {
    let entry = "    kubernetes:
    - {group: '*', kinds: ['*'], verbs: [get, list, apply, create, delete, hold]}
    secrets: [{}]
    upstreams: [{}]
";
    grant(&mut lab, entry);
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"password": "gold"},
        "metadata": {"name": "treasure", "namespace": lab.namespace}}),
    )
    .await;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    let target = lab.namespace.clone();
    attack(&lab, "inject", &target).await;
    let tried = tried(&lab, "inject").await;
    assert_eq!(tried.len(), 9 * 6 + 4 * 3 + 6 * 2);
    let wrong: Vec<_> = tried.iter().filter(|t| !t.ends_with(": invalid")).collect();
    assert_eq!(wrong, Vec::<&String>::new());
    let secret = lab.get(&Gvk::new("", "v1", "Secret"), "treasure").await;
    assert!(secret.is_some(), "the Secret is still there");
}

async fn smuggles_headers_and_paths(mut lab: Lab) {
    grant(&mut lab, "    upstreams: [{}]\n");
    let (mirror, elsewhere) = (Mirror::start(None).await, Mirror::start(None).await);
    mirror.redirect_to(&elsewhere);
    lab.apply(mirror.upstream(&lab, "mirror")).await;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    attack(&lab, "smuggle", "mirror").await;
    let tried = tried(&lab, "smuggle").await;
    let (redirect, refused) = tried.split_last().expect("attempts");
    assert_eq!(
        redirect, "redirect: ok 302",
        "it is told of it, and nobody goes there"
    );
    for attempt in refused {
        assert!(attempt.ends_with(": invalid"), "{attempt}\n{tried:#?}");
    }
    assert_eq!(refused.len(), 12 + 12 + 5);
    let seen: Vec<_> = mirror.seen().into_iter().filter(|s| s.path != "/").collect();
    assert_eq!(seen.len(), 1, "only what led elsewhere was sent: {seen:?}");
    assert!(elsewhere.seen().is_empty());
}

async fn sends_secrets_to_a_mirror(mut lab: Lab) {
    const TREASURE: &str = "gold, silver & \"jewels\" of 2026";
    grant(
        &mut lab,
        "    upstreams: [{names: [mirror]}]\n    secrets: [{names: [treasure]}]\n",
    );
    let found = Arc::new(Mutex::new(0));
    let finding = found.clone();
    lab.settings.inspect = Some(Inspector::new(move |memory: &[u8]| {
        for part in ["silver & ", "jewels", "silver+", "silver%20"] {
            if memory.windows(part.len()).any(|w| w == part.as_bytes()) {
                *finding.lock().expect("lock") += 1;
            }
        }
    }));
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"password": TREASURE},
        "metadata": {"name": "treasure", "namespace": lab.namespace}}),
    )
    .await;
    let mirror = Mirror::start(None).await;
    lab.apply(mirror.upstream(&lab, "mirror")).await;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    attack(&lab, "exfiltrate", "mirror").await;
    let tried = tried(&lab, "exfiltrate").await;
    assert_eq!(tried.len(), 4, "{tried:?}");
    assert!(tried.iter().all(|t| t.contains(": ok ")), "{tried:?}");
    // The server has it, and in every encoding; the component has the placeholder.
    let bodies: Vec<_> = mirror.seen().into_iter().map(|s| s.body).collect();
    assert!(bodies.iter().any(|b| b.contains(TREASURE)), "{bodies:?}");
    assert!(
        bodies.iter().filter(|b| b.contains("silver")).count() >= 3,
        "{bodies:?}"
    );
    assert!(!tried.join("").contains("silver"), "{tried:?}");
    assert_eq!(
        *found.lock().expect("lock"),
        0,
        "a secret in a component's memory"
    );
    assert!(!captured_logs().contains("silver"), "a secret in the log");
}
