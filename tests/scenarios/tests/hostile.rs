//! Isolation: a misbehaving component fails its own reconcile only, and other objects are reconciled as before.

mod limits;
mod memory;
mod neighbours;
pub(crate) mod server;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use ostler::testing::{engine::Inspector, grants::Grants, key::Gvk};
use ostler_test_harness::{
    Lab, captured_logs, find_condition, greeting_kind,
    probe::{self, config_map},
    scenario,
};
use serde_json::{Value, json};
use server::Mirror;

pub(crate) fn hostile() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Hostile")
}

pub(crate) fn object(lab: &Lab, name: &str, behaviour: &str) -> Value {
    json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"behaviour": behaviour}})
}

/// Applies an object with this behaviour towards a target.
async fn apply_attack(lab: &Lab, behaviour: &str, target: &str) {
    let mut attack = object(lab, behaviour, behaviour);
    attack["spec"]["target"] = target.into();
    lab.apply(attack).await;
}

/// The results of its attempts, from its condition `Tried`.
async fn wait_attempts(lab: &Lab, behaviour: &str) -> Vec<String> {
    let done = lab.wait_ready(&hostile(), behaviour).await;
    let message = find_condition(&done, "Tried")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    message.lines().map(str::to_owned).collect()
}

fn greeting(lab: &Lab, name: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": name}})
}

/// Sets the grants of the hostile plugin, beside those of deploy/grants.yaml for other plugins.
fn set_grants(lab: &mut Lab, entry: &str) {
    let reconciles = "    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]";
    let text = format!(
        "{}\n  hostile:\n{reconciles}\n{entry}",
        ostler_test_harness::PACK_GRANTS
    );
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("the grants parse");
}

/// Applies an object that misbehaves. Objects of the same and of another plugin, applied later, must become Ready; the
/// first must report its failure, and recover after its behaviour is changed.
async fn expect_isolated_failure(lab: &mut Lab, behaviour: &str, reason: &str, words: &str) {
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
    assert!(message.contains(words), "{message:?} should contain {words:?}");
    lab.apply(object(lab, "good", "behave")).await;
    lab.apply(greeting(lab, "neighbour")).await;
    lab.wait_ready(&hostile(), "good").await;
    lab.wait_ready(&greeting_kind(), "neighbour").await;
    lab.apply(object(lab, "bad", "behave")).await;
    lab.wait_ready(&hostile(), "bad").await;
}

#[scenario(hostile)]
async fn trap_fails_only_its_own_reconcile(mut lab: Lab) {
    expect_isolated_failure(&mut lab, "trap", "PluginTrapped", "unreachable").await;
}

#[scenario(hostile)]
async fn panic_fails_only_its_own_reconcile(mut lab: Lab) {
    let message = "The plugin trapped: as requested";
    expect_isolated_failure(&mut lab, "panic", "PluginTrapped", message).await;
    let logs = ostler_test_harness::captured_logs();
    let object = format!("Hostile/{}/bad", lab.namespace);
    let attempts: Vec<&str> = logs
        .lines()
        .filter(|line| line.contains(&object) && line.contains("as requested"))
        // The Event of the first one.
        .filter(|line| !line.contains("ostler::effect::events"))
        .collect();
    assert!(!attempts.is_empty(), "the message of the panic is in the log");
    let ids: BTreeSet<_> = attempts.iter().map(|line| find_reconcile_id(line)).collect();
    assert_eq!(
        ids.len(),
        attempts.len(),
        "one entry for each attempt: {attempts:#?}"
    );
}

/// The id of the reconcile in a line of the log.
fn find_reconcile_id(line: &str) -> &str {
    let (_, rest) = line.split_once("reconcile=").expect("an id");
    rest.split_whitespace().next().unwrap_or_default()
}

/// Two of three calls trap, so that each object succeeds after some retries.
#[scenario(hostile)]
async fn randomly_trapping_objects_become_ready_by_retries(mut lab: Lab) {
    lab.settings.backoff = lab.settings.backoff.with_max(Duration::from_millis(50));
    lab.install(&["hostile/hostile", "examples/greeting"]);
    lab.start_host().await;
    for i in 0..10 {
        lab.apply(object(&lab, &format!("random-{i}"), "random")).await;
    }
    lab.apply(greeting(&lab, "neighbour")).await;
    lab.wait_ready(&greeting_kind(), "neighbour").await;
    for i in 0..10 {
        lab.wait_ready(&hostile(), &format!("random-{i}")).await;
    }
}

#[scenario(hostile)]
async fn endless_loop_ends_at_cpu_limit(mut lab: Lab) {
    expect_isolated_failure(&mut lab, "loop", "PluginTimeout", "does it loop?").await;
}

#[scenario(hostile)]
async fn endless_allocation_ends_at_memory_limit(mut lab: Lab) {
    expect_isolated_failure(&mut lab, "grow", "PluginOutOfMemory", "64MiB").await;
}

#[scenario(hostile)]
async fn endless_recursion_traps(mut lab: Lab) {
    expect_isolated_failure(&mut lab, "recurse", "PluginTrapped", "trapped").await;
}

#[scenario(hostile)]
async fn malformed_status_is_refused(mut lab: Lab) {
    expect_isolated_failure(&mut lab, "nonsense", "InvalidStatus", "not a JSON object").await;
}

#[scenario(hostile)]
async fn condition_without_a_valid_type_is_refused(mut lab: Lab) {
    expect_isolated_failure(&mut lab, "mistype", "InvalidStatus", "use CamelCase").await;
}

#[scenario(hostile)]
async fn excess_host_calls_and_log_lines_are_dropped(mut lab: Lab) {
    lab.settings.limits.host_calls = 100;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    for behaviour in ["call", "chatter"] {
        lab.apply(object(&lab, behaviour, behaviour)).await;
        // Calls over the limit are dropped without failing the reconcile.
        lab.wait_ready(&hostile(), behaviour).await;
    }
}

/// An object that writes and requeues itself immediately each time is reconciled once per second.
#[scenario(hostile)]
async fn tight_writing_loop_is_throttled_to_one_per_second(mut lab: Lab) {
    set_grants(
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
        "throttling does not make it fail"
    );
    let writes = || {
        let facts = lab.host().stats().object(&lab.key(&hostile(), "bad"));
        facts.map_or(0, |facts| facts.api_writes)
    };
    // At most one of the writes that are counted from here on may have started earlier.
    let (since, before) = (Instant::now(), writes());
    lab.wait_until("it has written three times more", async || writes() > before + 2)
        .await;
    assert!(since.elapsed() > Duration::from_secs(1), "{:?}", since.elapsed());
    // A spec change is reconciled without that delay, and the condition is removed when the loop ends.
    lab.apply(object(&lab, "bad", "behave")).await;
    let good = lab.wait_ready(&hostile(), "bad").await;
    assert!(find_condition(&good, "HotLoop").is_null(), "{good:#}");
}

#[scenario(hostile)]
async fn forged_status_fields_are_ignored(mut lab: Lab) {
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

#[scenario(hostile)]
async fn oversized_events_and_log_lines_are_cut_and_escaped(mut lab: Lab) {
    set_grants(&mut lab, "    events: true\n");
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
    assert!(!log.contains('\u{1b}'), "a terminal escape sequence");
    let longest = log.lines().map(str::len).max();
    assert!(
        longest.is_some_and(|n| n < 64 << 10),
        "a line of {longest:?} bytes"
    );
}

#[scenario(hostile)]
async fn access_outside_the_grant_is_denied(mut lab: Lab) {
    let here = lab.namespace.clone();
    let entry = format!(
        "    kubernetes:
    - {{kinds: ['*'], verbs: [get, list, apply, create, delete, hold], namespaces: [{here}]}}
    secrets:
    - {{names: [treasure], namespaces: [{here}], origins: ['*']}}
"
    );
    set_grants(&mut lab, &entry);
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"password": "gold"},
        "metadata": {"name": "treasure", "namespace": here}}),
    )
    .await;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    apply_attack(&lab, "trespass", "kube-system").await;
    let attempts = wait_attempts(&lab, "trespass").await;
    let (last, refused) = attempts.split_last().expect("attempts");
    // The last attempt is allowed, but the forged owner reference is dropped.
    assert_eq!(last, "adopt: ok null");
    for attempt in refused {
        let fine = attempt.ends_with(": denied") || attempt.starts_with("digest: ok ");
        assert!(fine, "{attempt}\n{attempts:#?}");
    }
    assert_eq!(refused.len(), 13);
    let there = lab.api(&config_map(), "kube-system");
    assert!(there.get_opt("planted").await.expect("an answer").is_none());
}

#[scenario(hostile)]
async fn names_with_path_characters_are_refused(mut lab: Lab) {
    let entry = "    kubernetes:
    - {group: '*', kinds: ['*'], verbs: [get, list, apply, create, delete, hold], namespaces: ['*']}
    secrets: [{namespaces: ['*'], origins: ['*']}]
    upstreams: [{namespaces: ['*']}]
";
    set_grants(&mut lab, entry);
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"password": "gold"},
        "metadata": {"name": "treasure", "namespace": lab.namespace}}),
    )
    .await;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    let target = lab.namespace.clone();
    apply_attack(&lab, "inject", &target).await;
    let attempts = wait_attempts(&lab, "inject").await;
    assert_eq!(attempts.len(), 9 * 6 + 4 * 3 + 6 * 2);
    let wrong: Vec<_> = attempts.iter().filter(|t| !t.ends_with(": invalid")).collect();
    assert_eq!(wrong, Vec::<&String>::new());
    let secret = lab.get(&Gvk::new("", "v1", "Secret"), "treasure").await;
    assert!(secret.is_some(), "the Secret is still there");
}

#[scenario(hostile)]
async fn smuggled_headers_and_paths_are_refused(mut lab: Lab) {
    set_grants(&mut lab, "    upstreams: [{}]\n");
    let (mirror, elsewhere) = (Mirror::start(None).await, Mirror::start(None).await);
    mirror.redirect_to(&elsewhere);
    lab.apply(mirror.upstream(&lab, "mirror")).await;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    apply_attack(&lab, "smuggle", "mirror").await;
    let attempts = wait_attempts(&lab, "smuggle").await;
    let (redirect, refused) = attempts.split_last().expect("attempts");
    assert_eq!(
        redirect, "redirect: ok 302",
        "the redirect is returned and not followed"
    );
    for attempt in refused {
        assert!(attempt.ends_with(": invalid"), "{attempt}\n{attempts:#?}");
    }
    assert_eq!(refused.len(), 12 + 12, "headers and paths");
    let seen: Vec<_> = mirror.seen().into_iter().filter(|s| s.path != "/").collect();
    assert_eq!(seen.len(), 1, "only the redirected request was sent: {seen:?}");
    assert!(elsewhere.seen().is_empty());
}

#[scenario(hostile)]
async fn mirrored_secrets_return_as_placeholders(mut lab: Lab) {
    const SECRET_VALUE: &str = "gold, silver & \"jewels\" of 2026";
    set_grants(
        &mut lab,
        "    upstreams: [{names: [mirror]}]\n    secrets: [{names: [treasure], origins: ['http://127.0.0.1:*']}]\n",
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
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"password": SECRET_VALUE},
        "metadata": {"name": "treasure", "namespace": lab.namespace}}),
    )
    .await;
    let mirror = Mirror::start(None).await;
    lab.apply(mirror.upstream(&lab, "mirror")).await;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    apply_attack(&lab, "exfiltrate", "mirror").await;
    let attempts = wait_attempts(&lab, "exfiltrate").await;
    assert_eq!(attempts.len(), 5 + 1, "encodings, and a later read: {attempts:?}");
    assert!(attempts.iter().all(|t| t.contains(": ok ")), "{attempts:?}");
    // The server received the secret in every encoding; the component received the placeholder.
    let bodies: Vec<_> = mirror.seen().into_iter().map(|s| s.body).collect();
    assert!(bodies.iter().any(|b| b.contains(SECRET_VALUE)), "{bodies:?}");
    assert!(
        bodies.iter().filter(|b| b.contains("silver")).count() >= 3,
        "{bodies:?}"
    );
    assert!(!attempts.join("").contains("silver"), "{attempts:?}");
    assert_eq!(
        *found.lock().expect("lock"),
        0,
        "a secret in a component's memory"
    );
    assert!(!captured_logs().contains("silver"), "a secret in the log");
}

/// Waits until a probe is denied, and returns why.
async fn wait_denied(lab: &Lab, name: &str) -> String {
    let object = lab
        .wait_condition(&probe::kind(), name, "Ready", "False", "PermissionDenied")
        .await;
    find_condition(&object, "Ready")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Sets the grants of the probe.
fn set_probe_grants(lab: &mut Lab, entry: &str) {
    let text =
        format!("plugins:\n  probe:\n    reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}]\n{entry}");
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("the grants parse");
}

/// A plugin without a grant for Secrets has the host log in to a server of its own, and redirects an Upstream with a
/// Secret to it.
#[scenario(hostile)]
async fn upstream_written_by_a_plugin_sends_no_ungranted_secret(mut lab: Lab) {
    set_probe_grants(
        &mut lab,
        "    kubernetes: [{group: ostler.dev, kinds: [Upstream], verbs: [get, apply, create, patch]}]\n    upstreams: [{}]\n",
    );
    let (trusted, attacker) = (Mirror::start(None).await, Mirror::start(None).await);
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"password": "gold"},
        "metadata": {"name": "treasure", "namespace": lab.namespace}}),
    )
    .await;
    let login = json!({"login": {"path": "/login", "username": "ada", "tokenJsonPath": ".token",
        "passwordSecretRef": {"name": "treasure", "key": "password"}}});
    let mut mine = trusted.upstream(&lab, "mine");
    mine["spec"]["auth"] = login.clone();
    lab.apply(mine).await;
    lab.start_probe().await;
    lab.wait_until("the trusted server has the password", async || {
        trusted.seen().iter().any(|s| s.body.contains("gold"))
    })
    .await;
    let mut stolen = attacker.upstream(&lab, "stolen");
    stolen["spec"]["auth"] = login;
    let redirected = attacker.upstream(&lab, "mine");
    let patch = json!({"spec": redirected["spec"]}).to_string();
    let request = json!({"do": "http", "name": "stolen"});
    for (name, step) in [
        ("apply", json!({"do": "apply", "object": stolen.to_string()})),
        ("force", json!({"do": "force", "object": stolen.to_string()})),
        ("create", json!({"do": "create", "object": stolen.to_string()})),
        (
            "redirect",
            json!({"do": "force", "object": redirected.to_string()}),
        ),
        (
            "patch",
            json!({"do": "patch", "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream", "name": "mine", "object": patch}),
        ),
    ] {
        lab.apply_probe(name, json!([step, request]), json!([])).await;
        let why = wait_denied(&lab, name).await;
        let remedy = format!(
            "origins: [\"{}\"]",
            attacker.upstream(&lab, "u")["spec"]["url"]
                .as_str()
                .unwrap_or_default()
        );
        let field = why.contains("spec.auth.login.passwordSecretRef") && why.contains(&remedy);
        assert!(field || name == "patch", "{name}: {why}");
    }
    // An Upstream without credentials is no way to a Secret, and is allowed.
    let open = json!({"do": "apply", "object": attacker.upstream(&lab, "open").to_string()});
    lab.apply_probe("open", json!([open]), json!([])).await;
    lab.wait_ready(&probe::kind(), "open").await;
    let upstreams = Gvk::new("ostler.dev", "v1alpha1", "Upstream");
    assert!(lab.get(&upstreams, "stolen").await.is_none());
    assert!(
        !attacker.seen().iter().any(|s| s.body.contains("gold")),
        "{:?}",
        attacker.seen()
    );
}

#[scenario(hostile)]
async fn plugin_objects_are_written_by_no_plugin(mut lab: Lab) {
    set_probe_grants(
        &mut lab,
        "    kubernetes:
    - {group: '*', kinds: ['*'], verbs: [get, apply, create, patch, delete, hold], namespaces: ['*']}
    - {group: ostler.dev, kinds: [Plugin], verbs: [get, apply, create, patch, delete, hold], namespaces: ['*']}
",
    );
    lab.start_probe().await;
    let plugin = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin", "metadata": {"name": lab.namespace},
        "spec": {"source": {"file": "probe.wasm"}, "grants": {"events": true}}});
    for action in ["apply", "force", "create"] {
        let step = json!({"do": action, "object": plugin.to_string()});
        lab.apply_probe(action, json!([step]), json!([])).await;
        let why = wait_denied(&lab, action).await;
        assert!(why.contains("no grant allows it"), "{action}: {why}");
    }
    let step = json!({"do": "apply", "object": json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "u"}, "spec": {"url": "https://127.0.0.1:1"}}).to_string()});
    lab.apply_probe("wildcard", json!([step]), json!([])).await;
    let why = wait_denied(&lab, "wildcard").await;
    assert!(why.contains("kinds: [Upstream]"), "{why}");
    let plugins = lab.api(&Gvk::new("ostler.dev", "v1alpha1", "Plugin"), "");
    assert!(
        plugins
            .get_opt(&lab.namespace)
            .await
            .expect("an answer")
            .is_none()
    );
}
