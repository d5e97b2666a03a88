//! Observability: metrics, Events, `ostler status` and `ostler explain`.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
};

use kube::config::{KubeConfigOptions, Kubeconfig};
use ostler::testing::{
    admin::{
        Admin,
        explain::{ExplainedState, ObjectExplanation, ReadState},
        question::Question,
        status::HostStatus,
    },
    dispatcher::Cause,
    election::Timing,
    grants::Grants,
    key::Gvk,
    lease,
    log_ring::LogLine,
    queue::Priority,
};
use ostler_test_harness::{
    ADMIN_PASSWORD, Lab, PACK_GRANTS, concourse::kind, greeting_kind, probe, process, scenario,
};
use serde_json::{Value, json};

/// The admin server of the lab's host.
pub(crate) async fn serve_admin(lab: &Lab) -> (Admin, String) {
    let admin = lab.admin();
    let address = admin
        .clone()
        .serve_local("127.0.0.1:0".parse().expect("an address"))
        .await
        .expect("it binds");
    (admin, format!("http://{address}"))
}

async fn fetch(url: &str, accept: &str) -> (String, String) {
    let request = reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("a client")
        .get(url)
        .header("accept", accept);
    let response = request.send().await.expect("a response");
    let kind = response.headers()["content-type"]
        .to_str()
        .expect("text")
        .to_owned();
    (kind, response.text().await.expect("a text"))
}

/// The samples of a metrics text, by name and labels in their text form.
pub(crate) struct Samples(BTreeMap<String, f64>);

impl Samples {
    pub(crate) async fn of(admin: &str) -> Self {
        let (_, text) = fetch(&format!("{admin}/metrics"), "text/plain").await;
        let samples = text.lines().filter(|l| !l.starts_with('#'));
        let parsed = samples.map(|l| {
            let (name, value) = l.rsplit_once(' ').unwrap_or_else(|| panic!("a sample: {l}"));
            (
                name.to_owned(),
                value.parse().unwrap_or_else(|_| panic!("a number: {l}")),
            )
        });
        Self(parsed.collect())
    }

    /// The sample with exactly this name and these labels.
    fn get(&self, sample: &str) -> f64 {
        *self
            .0
            .get(sample)
            .unwrap_or_else(|| panic!("no {sample} in\n{:#?}", self.0.keys()))
    }

    /// The sum of the samples whose name and labels contain all of these parts.
    pub(crate) fn sum(&self, parts: &[&str]) -> f64 {
        let of = self
            .0
            .iter()
            .filter(|(name, _)| parts.iter().all(|p| name.contains(p)));
        of.map(|(_, value)| value).sum()
    }
}

#[scenario]
async fn metrics_follow_controller_runtime_names(mut lab: Lab) {
    lab.settings.api_server = "api.test:6443".into();
    lab.start_pack().await;
    let (_, admin) = serve_admin(&lab).await;
    lab.apply_chain().await;
    let before = Samples::of(&admin).await;
    let queue = r#"{name="concourse-team",controller="concourse-team"}"#;
    let controller = r#"{controller="concourse-team"}"#;
    for name in [
        "adds_total",
        "retries_total",
        "unfinished_work_seconds",
        "longest_running_processor_seconds",
    ] {
        before.get(&format!("workqueue_{name}{queue}"));
    }
    for name in ["queue_duration_seconds", "work_duration_seconds"] {
        assert!(before.get(&format!("workqueue_{name}_count{queue}")) >= 1.0);
        before.get(&format!("workqueue_{name}_sum{queue}"));
    }
    for priority in ["100", "0", "-100"] {
        let labels = queue.replace('}', &format!(r#",priority="{priority}"}}"#));
        assert_eq!(before.get(&format!("workqueue_depth{labels}")), 0.0);
    }
    for name in [
        "reconcile_errors_total",
        "terminal_reconcile_errors_total",
        "reconcile_panics_total",
        "reconcile_timeouts_total",
        "active_workers",
    ] {
        assert_eq!(
            before.get(&format!("controller_runtime_{name}{controller}")),
            0.0,
            "{name}"
        );
    }
    assert_eq!(
        before.get(&format!(
            "controller_runtime_max_concurrent_reconciles{controller}"
        )),
        f64::from(lab.settings.workers)
    );
    let total = |s: &Samples| -> f64 {
        let of = |result| {
            s.get(&format!(
                r#"controller_runtime_reconcile_total{{controller="concourse-team",result="{result}"}}"#
            ))
        };
        ["success", "error", "requeue", "requeue_after"]
            .map(of)
            .iter()
            .sum()
    };
    let timed = |s: &Samples| {
        s.get(&format!(
            "controller_runtime_reconcile_time_seconds_count{controller}"
        ))
    };
    assert_eq!(total(&before), timed(&before));
    let bucket = |le| {
        format!(
            r#"controller_runtime_reconcile_time_seconds_bucket{{le="{le}",controller="concourse-team"}}"#
        )
    };
    assert!(before.get(&bucket("0.005")) <= before.get(&bucket("60.0")));
    assert_eq!(before.get(&bucket("+Inf")), timed(&before));
    // Requests to the API server and to upstreams.
    assert!(
        before.get(r#"rest_client_requests_total{code="200",method="PATCH",host="api.test:6443"}"#) >= 3.0
    );
    assert!(
        before.get(r#"rest_client_request_duration_seconds_count{verb="PATCH",host="api.test:6443"}"#) >= 3.0
    );
    assert!(before.sum(&["ostler_upstream_requests_total", &lab.namespace, "code=\"200\""]) >= 2.0);
    // State of the cache, the watches and the plugins.
    let size = lab.host().services().cache.store.size();
    assert_eq!(before.get("ostler_cache_objects"), size.objects as f64);
    assert_eq!(before.get("ostler_cache_bytes"), size.bytes as f64);
    assert!(before.get(r#"ostler_watches{state="synced"}"#) >= 3.0);
    assert_eq!(
        before.get(r#"ostler_objects{kind="Team.v1alpha1.concourse-ci.org",ready="true"}"#),
        1.0
    );
    assert_eq!(
        before.get(r#"ostler_component_loads_total{plugin="concourse-team",result="served"}"#),
        1.0
    );
    assert_eq!(before.sum(&["ostler_component_info", "concourse-team"]), 1.0);
    let calls = r#"ostler_host_calls_total{plugin="concourse-team",call="kubernetes.require-ready"}"#;
    assert!(before.get(calls) >= 1.0);
    assert!(before.get(r#"ostler_wasm_call_duration_seconds_count{plugin="concourse-team"}"#) >= 1.0);
    assert!(before.get(r#"ostler_wasm_cpu_seconds_total{plugin="concourse-team"}"#) > 0.0);
    // Another reconcile raises the counters.
    let team = lab.key(&kind("Team"), "platform");
    lab.host()
        .services()
        .dispatcher
        .enqueue(&team, Priority::Normal, Cause::Poll);
    lab.wait_idle().await;
    let after = Samples::of(&admin).await;
    assert!(total(&after) > total(&before));
    assert_eq!(total(&after), timed(&after));
    let adds = format!("workqueue_adds_total{queue}");
    assert!(after.get(&adds) > before.get(&adds));
    assert!(after.get(calls) > before.get(calls));
    // The format follows the Accept header.
    let (kind, text) = fetch(
        &format!("{admin}/metrics"),
        "application/openmetrics-text;version=1.0.0",
    )
    .await;
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    assert!(text.ends_with("# EOF\n") && text.contains("# TYPE workqueue_adds counter\n"));
    let (kind, text) = fetch(&format!("{admin}/metrics"), "*/*").await;
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    assert!(!text.contains("# EOF") && text.contains("# TYPE workqueue_adds_total counter\n"));
    // No endpoint of the admin server shows a secret.
    let ask =
        |name: &str, kind: &str| format!("/explain?kind={kind}&namespace={}&name={name}", lab.namespace);
    for path in [
        "/metrics".into(),
        "/status".into(),
        "/objects".into(),
        ask("ci", "instance"),
        ask("app", "pipeline"),
    ] {
        let (_, text) = fetch(&format!("{admin}{path}"), "*/*").await;
        assert!(text.contains("concourse"), "{path}: {text}");
        for secret in [ADMIN_PASSWORD, "registry-pass-0001"] {
            assert!(!text.contains(secret), "{secret} in {path}");
        }
    }
}

fn greeting(lab: &Lab, name: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": name}})
}

#[scenario]
async fn unchanged_status_is_not_written(mut lab: Lab) {
    let gvk = greeting_kind();
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let (_, admin) = serve_admin(&lab).await;
    lab.apply(greeting(&lab, "a")).await;
    lab.wait_ready(&gvk, "a").await;
    lab.wait_idle().await;
    let first = Samples::of(&admin).await;
    assert_eq!(lab.api_writes(), 3, "the finalizer, the ConfigMap, the status");
    let version = lab.get(&gvk, "a").await.expect("there")["metadata"]["resourceVersion"].clone();
    for _ in 0..5 {
        lab.host()
            .services()
            .dispatcher
            .enqueue(&lab.key(&gvk, "a"), Priority::Normal, Cause::Poll);
        lab.wait_idle().await;
    }
    let last = Samples::of(&admin).await;
    assert_eq!(lab.api_writes(), 3, "nothing changed, nothing was written");
    let patches = |s: &Samples| s.sum(&["rest_client_requests_total", "method=\"PATCH\""]);
    assert_eq!(patches(&first), patches(&last));
    for write in ["apply", "status"] {
        let name = format!(r#"ostler_writes_suppressed_total{{plugin="greeting",operation="{write}"}}"#);
        assert_eq!(last.get(&name) - first.get(&name), 5.0, "{write}");
    }
    assert_eq!(
        version,
        lab.get(&gvk, "a").await.expect("there")["metadata"]["resourceVersion"]
    );
}

fn hostile() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Hostile")
}

async fn apply_hostile(lab: &Lab, behaviour: &str) {
    lab.apply(
        json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
        "metadata": {"name": behaviour, "namespace": lab.namespace}, "spec": {"behaviour": behaviour}}),
    )
    .await;
}

#[scenario]
async fn traps_and_plugin_metrics_are_counted(mut lab: Lab) {
    lab.settings.limits.cpu_time = std::time::Duration::from_millis(200);
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    let (admin, url) = serve_admin(&lab).await;
    apply_hostile(&lab, "measure").await;
    lab.wait_ready(&hostile(), "measure").await;
    apply_hostile(&lab, "trap").await;
    apply_hostile(&lab, "loop").await;
    lab.wait_condition(&hostile(), "trap", "Ready", "False", "PluginTrapped")
        .await;
    lab.wait_condition(&hostile(), "loop", "Ready", "False", "PluginTimeout")
        .await;
    lab.wait_until("both are counted", async || {
        let samples = Samples::of(&url).await;
        let controller = r#"{controller="hostile"}"#;
        samples.get(&format!("controller_runtime_reconcile_panics_total{controller}")) >= 1.0
            && samples.get(&format!(
                "controller_runtime_reconcile_timeouts_total{controller}"
            )) >= 1.0
            && samples.get(&format!("controller_runtime_reconcile_errors_total{controller}")) >= 2.0
    })
    .await;
    let samples = Samples::of(&url).await;
    assert!(samples.get(r#"ostler_wasm_traps_total{plugin="hostile",reason="trap"}"#) >= 1.0);
    assert!(samples.get(r#"ostler_wasm_traps_total{plugin="hostile",reason="cpu_time"}"#) >= 1.0);
    assert_eq!(
        samples.get(r#"ostler_plugin_measured_total{plugin="hostile"}"#),
        3.0
    );
    assert_eq!(
        samples.get(r#"ostler_plugin_depth_meters{plugin="hostile"}"#),
        1.5
    );
    // `explain` of the object shows the same error.
    let explained = admin
        .explain(&question(&lab, "hostile", "loop"))
        .expect("explained");
    assert!(
        explained.attempts >= 1 && explained.state == ExplainedState::NotReady,
        "{explained:?}"
    );
    let error = explained.errors.last().expect("an error");
    assert_eq!(error.reason, "PluginTimeout");
    assert!(admin.status().errors.iter().any(|e| e.object.ends_with("/loop")));
}

#[scenario]
async fn events_of_one_object_are_rate_limited(mut lab: Lab) {
    let grants = format!(
        "{PACK_GRANTS}\n  hostile:\n    reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}]\n    events: true\n"
    );
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("they parse");
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    let (_, admin) = serve_admin(&lab).await;
    apply_hostile(&lab, "announce").await;
    lab.wait_ready(&hostile(), "announce").await;
    lab.wait_idle().await;
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    let written = events.iter().filter(|e| e["reason"] == "News").count();
    assert_eq!(written, 25, "the burst limit of one object");
    let dropped = Samples::of(&admin)
        .await
        .get(r#"ostler_events_dropped_total{reason="rate_limited"}"#);
    assert_eq!(dropped, 15.0);
}

#[scenario]
async fn leadership_is_reported_in_metrics_and_status(mut lab: Lab) {
    let read = Kubeconfig::read_from(&lab.kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(read, &options)
        .await
        .expect("a configuration");
    let lease = |identity: &str| lease::ElectionSettings {
        config: config.clone(),
        namespace: lab.namespace.clone(),
        name: "observed".into(),
        identity: identity.into(),
        timing: Timing::default(),
        endpoint: Default::default(),
    };
    let (first, second) = (lease("first"), lease("second"));
    lab.settings.election = Some(first);
    lab.start_host().await;
    let (leader, leading) = serve_admin(&lab).await;
    let status = r#"leader_election_master_status{name="observed"}"#;
    lab.wait_until("it leads", async || {
        Samples::of(&leading).await.get(status) == 1.0
    })
    .await;
    assert!(leader.status().leases[0].leads);
    // Another client changes the Lease: the leader reads it again and keeps leading.
    let slow = r#"leader_election_slowpath_total{name="observed"}"#;
    assert_eq!(Samples::of(&leading).await.get(slow), 0.0);
    let lease_kind = Gvk::new("coordination.k8s.io", "v1", "Lease");
    lab.patch(
        &lease_kind,
        "observed",
        json!({"metadata": {"labels": {"touched": "yes"}}}),
    )
    .await;
    lab.wait_until("the lease was read again", async || {
        let samples = Samples::of(&leading).await;
        samples.get(slow) >= 1.0 && samples.get(status) == 1.0
    })
    .await;
    // A standby reports that it does not lead.
    lab.settings.election = Some(second);
    let leads = lab.host.take();
    lab.start_host().await;
    let (standby, standing) = serve_admin(&lab).await;
    assert_eq!(Samples::of(&standing).await.get(status), 0.0);
    assert_eq!(Samples::of(&leading).await.get(status), 1.0);
    let leases = standby.status().leases;
    assert!(leases[0].name == "observed" && !leases[0].leads);
    drop(leads);
}

pub fn question(lab: &Lab, kind: &str, name: &str) -> Question {
    Question {
        kind: kind.into(),
        namespace: Some(lab.namespace.clone()),
        name: name.into(),
    }
}

#[scenario]
async fn explain_follows_an_object_from_waiting_to_deletion(mut lab: Lab) {
    lab.start_pack().await;
    let (admin, _) = serve_admin(&lab).await;
    lab.apply(lab.team_object()).await;
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "InstanceNotReady")
        .await;
    lab.wait_idle().await;
    let ask = || admin.explain(&question(&lab, "team", "platform"));
    let explained = ask().expect("explained");
    let instance = lab.key(&kind("Instance"), "ci").to_string();
    assert_eq!(
        (explained.state, &*explained.reason),
        (ExplainedState::NotReady, "InstanceNotReady")
    );
    assert!(
        explained
            .waits_for
            .iter()
            .any(|r| r.what == instance && r.state == ReadState::Absent),
        "{explained:?}"
    );
    assert!(
        explained.next.place == "delayed" && explained.next.in_seconds.is_some(),
        "{:?}",
        explained.next
    );
    assert!(
        explained.errors.is_empty(),
        "waiting is no error: {:?}",
        explained.errors
    );
    assert_eq!(
        (&*explained.plugin, explained.plugin_digest.len()),
        ("concourse-team", 64)
    );
    assert!(
        explained.woken_by.iter().any(|c| c == "change" || c == "start"),
        "{:?}",
        explained.woken_by
    );
    // The parent exists but is not Ready, since its password is missing.
    lab.apply(lab.instance_object()).await;
    lab.wait_until("it waits for a parent that exists", async || {
        let explained = ask().expect("explained");
        let parent = explained.waits_for.iter().find(|r| r.what == instance);
        parent.is_some_and(|p| p.state == ReadState::NotReady && !p.why.is_empty())
    })
    .await;
    lab.apply(lab.password_secret(lab.concourse.password())).await;
    lab.wait_ready(&kind("Team"), "platform").await;
    lab.wait_idle().await;
    let explained = ask().expect("explained");
    assert_eq!(
        (explained.state, explained.waits_for.len()),
        (ExplainedState::Ready, 0),
        "{explained:?}"
    );
    assert!(
        explained
            .reads
            .iter()
            .any(|r| r.what == instance && r.state == ReadState::Ready),
        "{:?}",
        explained.reads
    );
    assert!(
        explained
            .woken_by
            .iter()
            .any(|c| *c == format!("dependency {instance}")),
        "{:?}",
        explained.woken_by
    );
    // The object is paused, and then held during its deletion.
    lab.patch(
        &kind("Team"),
        "platform",
        json!({"metadata": {"annotations": {"ostler.dev/paused": "true"}, "finalizers": ["example.org/other", "held-by.ostler.dev/1", "concourse-ci.org/team-finalizer"]}}),
    )
    .await;
    lab.wait_until("it is reported as paused", async || ask().is_ok_and(|t| t.paused))
        .await;
    let explained = ask().expect("explained");
    assert!(
        explained.holders.iter().any(|h| h.contains("uid 1")),
        "{:?}",
        explained.holders
    );
    lab.delete(&kind("Team"), "platform").await;
    lab.wait_until("it is reported as held", async || {
        ask().is_ok_and(|t| t.state == ExplainedState::Terminating && t.reason == "Held")
    })
    .await;
    let finalizers = json!(["example.org/other", "concourse-ci.org/team-finalizer"]);
    lab.patch(
        &kind("Team"),
        "platform",
        json!({"metadata": {"finalizers": finalizers}}),
    )
    .await;
    lab.wait_until("its remaining finalizers are reported", async || {
        ask().is_ok_and(|t| t.state == ExplainedState::Terminating && t.finalizers == ["example.org/other"])
    })
    .await;
    lab.patch(&kind("Team"), "platform", json!({"metadata": {"finalizers": []}}))
        .await;
    lab.wait_gone(&kind("Team"), "platform").await;
    lab.wait_until("it is forgotten", async || ask().is_err()).await;
    let error = admin
        .explain(&question(&lab, "instance", "unknown"))
        .expect_err("no such object");
    assert!(error.contains("unknown") && error.contains(&instance), "{error}");
}

/// Counts the requests that a host has sent to API servers, by the metrics of its admin server.
pub(crate) async fn count_requests(url: &str) -> f64 {
    Samples::of(url).await.sum(&["rest_client_requests_total"])
}

/// Runs `ostler` on a blocking thread, because the admin server it queries runs on the test's async threads.
pub(crate) async fn ostler(arguments: &[&str]) -> Output {
    let mut command = Command::new(process::host_binary());
    command
        .args(arguments)
        .env_remove("OSTLER_ADMIN")
        .stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("it ends")
}

/// A command that prints lines until it is killed, when this is dropped.
pub(crate) struct FollowedCommand {
    child: Child,
    lines: Option<Receiver<String>>,
}

impl FollowedCommand {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(process::host_binary());
        command
            .args(arguments)
            .env_remove("OSTLER_ADMIN")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut lines = stdout.lines().map_while(Result::ok);
            lines.all(|line| sender.send(line).is_ok())
        });
        Self {
            child,
            lines: Some(lines),
        }
    }

    /// Waits for a line with these words.
    pub(crate) async fn wait_line(&mut self, words: &str) -> String {
        let lines = self.lines.take().expect("lines");
        let words = words.to_owned();
        let read = move || {
            let found = lines.iter().find(|line| line.contains(&words));
            (
                found.unwrap_or_else(|| panic!("it has ended without {words}")),
                lines,
            )
        };
        let (line, lines) = tokio::task::spawn_blocking(read).await.expect("it reads");
        self.lines = Some(lines);
        line
    }
}

impl Drop for FollowedCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[scenario]
async fn logs_and_watched_explanations_follow_an_object(mut lab: Lab) {
    // Not those of the lab, with which it may read Secrets: the text of its lines would be withheld.
    lab.settings.grants = Grants::parse(
        "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}]}}",
        "grants.yaml",
    )
    .expect("grants");
    lab.start_probe().await;
    let (_, url) = serve_admin(&lab).await;
    let log = |text: &str| json!({"do": "log", "body": text});
    let detail = json!({"do": "debug", "body": "detail of a"});
    let cleanup = json!([log("cleanup of a")]);
    lab.apply_probe("a", json!([log("first of a"), detail]), cleanup.clone())
        .await;
    lab.apply_probe("b", json!([log("first of b"), {"do": "park"}]), json!([]))
        .await;
    lab.wait_seen("a", &[]).await;
    lab.wait_condition(&probe::kind(), "b", "Ready", "False", "Requested")
        .await;
    lab.wait_idle().await;
    let namespace = lab.namespace.clone();
    let run = async |arguments: &[&str]| {
        let output = ostler(&[arguments, &["--admin", &url]].concat()).await;
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.success(), text(output.stdout), text(output.stderr))
    };

    let (good, text, _) = run(&["logs", "probe/a", "-n", &namespace]).await;
    assert!(good && text.contains("INFO  first of a"), "{text}");
    assert!(!text.contains("of b") && !text.contains("detail"), "{text}");
    let (_, text, _) = run(&["logs", "probe/a", "--level", "debug", "--tail", "1"]).await;
    assert!(
        text.contains("DEBUG detail of a") && text.lines().count() == 1,
        "{text}"
    );
    let (_, text, _) = run(&["logs", "--plugin", "probe"]).await;
    for words in [
        format!("INFO  Probe/{namespace}/a first of a"),
        format!("INFO  Probe/{namespace}/b first of b"),
        format!("INFO  Probe/{namespace}/b reconcile failed: terminal: Requested: requested by a step"),
    ] {
        assert!(text.contains(&words), "{words} in\n{text}");
    }
    let (_, json, _) = run(&["logs", "probe/b", "-o", "json"]).await;
    let lines: Vec<LogLine> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("a LogLine"))
        .collect();
    assert_eq!((&*lines[0].message, &*lines[0].plugin), ("first of b", "probe"));
    assert!(
        !lines[0].reconcile.is_empty() && lines[0].at.ends_with('Z'),
        "{lines:?}"
    );
    let (good, _, error) = run(&["logs", "--plugin", "prober"]).await;
    assert!(
        !good && error.contains("no plugin `prober`; there are probe"),
        "{error}"
    );
    let (good, _, error) = run(&["logs", "probe/c"]).await;
    assert!(!good && error.contains("there is no probe/c"), "{error}");

    let query = ["probe/a", "-n", &namespace, "--admin", &url];
    let mut followed = FollowedCommand::start(&[&["logs", "-f"], &query[..]].concat());
    let mut watched = FollowedCommand::start(&[&["explain", "--watch", "-o", "json"], &query[..]].concat());
    followed.wait_line("first of a").await;
    let explained = |line: &str| serde_json::from_str::<ObjectExplanation>(line).expect("an Explanation");
    let before = explained(&watched.wait_line("{").await);
    lab.apply_probe("a", json!([log("second of a")]), cleanup).await;
    followed.wait_line("second of a").await;
    loop {
        let after = explained(&watched.wait_line("{").await);
        if after.reconciles > before.reconciles {
            break;
        }
    }
    lab.delete(&probe::kind(), "a").await;
    followed.wait_line("cleanup of a").await;
    lab.wait_gone(&probe::kind(), "a").await;
    let (good, text, error) = run(&["logs", "probe/a", "-n", &namespace, "--tail", "1"]).await;
    assert!(
        good && text.contains("cleanup of a"),
        "a deleted object has lines: {text}{error}"
    );
}

#[scenario]
async fn status_and_explain_commands_print_tables_and_json(mut lab: Lab) {
    lab.start_pack().await;
    let (_, url) = serve_admin(&lab).await;
    lab.apply(lab.team_object()).await;
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "InstanceNotReady")
        .await;
    lab.wait_idle().await;
    let run = async |arguments: &[&str]| {
        let output = ostler(&[arguments, &["--admin", &url]].concat()).await;
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let (good, table, _) = run(&["status"]).await;
    assert!(good && table.contains("0 of 1 objects Ready"), "{table}");
    for words in ["concourse-team", "Serving", "Team/platform", "InstanceNotReady"] {
        assert!(table.contains(words), "{words} in\n{table}");
    }
    assert!(!table.contains('\x1b'), "colors are for terminals only");
    let (_, json, _) = run(&["status", "-o", "json"]).await;
    let status: HostStatus = serde_json::from_str(&json).expect("a Status");
    assert_eq!(status.not_ready[0].name, "platform");
    let (good, table, _) = run(&["explain", "team/platform", "-n", &lab.namespace]).await;
    assert!(
        good && table.contains("Waits for") && table.contains("absent"),
        "{table}"
    );
    let (_, json, _) = run(&["explain", "Team/platform", "-o", "json"]).await;
    let explained: ObjectExplanation = serde_json::from_str(&json).expect("an Explanation");
    assert_eq!(explained.waits_for[0].state, ReadState::Absent);
    let (good, _, error) = run(&["explain", "teem/platform"]).await;
    assert!(
        !good && error.contains("there are Team.v1alpha1.concourse-ci.org"),
        "{error}"
    );
    let (good, _, error) = run(&["explain", "platform"]).await;
    assert!(!good && error.contains("KIND/NAME"), "{error}");
    // A port that was bound and released, so that no process listens on it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let unused = free.local_addr().expect("its address").to_string();
    drop(free);
    let output = ostler(&["status", "--admin", &unused]).await;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("kubectl ostler") && error.contains(&unused),
        "{error}"
    );
}

#[scenario(real = "CRDs: changes and validation")]
async fn kind_that_is_not_served_fails_its_reader_and_leaves_the_host_ready(mut lab: Lab) {
    lab.settings.grants = Grants::parse(
        "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{group: absent.dev, kinds: [Absent], verbs: [get, list], namespaces: ['*']}]}}",
        "grants.yaml",
    )
    .expect("grants");
    lab.start_probe().await;
    let read =
        |action: &str| json!({"do": action, "apiVersion": "absent.dev/v1", "kind": "Absent", "name": "a"});
    lab.apply_probe("get", json!([read("get")]), json!([])).await;
    lab.apply_probe("list", json!([read("list")]), json!([])).await;
    // A wait for the list would take the call's whole time, and each would be one attempt in that time.
    for name in ["get", "list"] {
        lab.wait_until(&format!("{name} is retried"), async || {
            lab.wake_causes(&probe::kind(), name).len() >= 3
        })
        .await;
        let object = lab.get(&probe::kind(), name).await.expect("the probe");
        let message = ostler_test_harness::find_condition(&object, "Ready")["message"].to_string();
        assert!(message.contains("absent.dev"), "{message}");
    }
    let (_, url) = serve_admin(&lab).await;
    let (_, readiness) = fetch(&format!("{url}/readyz"), "*/*").await;
    assert_eq!(readiness, "ok");
}
