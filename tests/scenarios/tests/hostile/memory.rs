//! A host in a container of 512 MiB, under all attacks on its memory at once, and its compiler.

use std::{
    cell::Cell,
    io::Write,
    process::{Command, Stdio},
};

use ostler_test_harness::{
    Lab, PACK_GRANTS,
    cgroup::MemoryCgroup,
    find_condition, greeting_kind,
    process::{HostProcess, ProcessOptions, host_binary},
    scenario,
};
use serde_json::{Value, json};

use super::{
    Mirror, greeting,
    neighbours::{Majority, measure_p98},
    object,
};

/// Memory limit of the pod in `deploy/`.
const POD_BYTES: usize = 512 << 20;
/// Objects of each attack.
const HOLDER_COUNT: usize = 24;
const RECEIVER_COUNT: usize = 6;
const FLOODER_COUNT: usize = 4;
const WATCHER_COUNT: usize = 2;
const EXPANDER_COUNT: usize = 4;
const FOLLOWER_COUNT: usize = 4;
/// Size of a secret that a short placeholder stands for.
const SECRET_BYTES: usize = 512 << 10;

/// Calls that held their memory until their time was over: that of the CPU or, where they wait for each other's permits, of the clock.
const TIME_TRAPS: [&str; 2] = [
    "ostler_wasm_traps_total{plugin=\"hostile\",reason=\"cpu_time\"}",
    "ostler_wasm_traps_total{plugin=\"hostile\",reason=\"timeout\"}",
];
/// Number of them in each attempt, after the measurement, and the bytes that calls must have held together at some time.
/// Otherwise nothing was attacked.
const MIN_TRAPS: f64 = 8.0;
const MIN_USED_BYTES: f64 = 64e6;

/// Grants of the hostile plugin, beside those of deploy/grants.yaml for other plugins. Its calls have less CPU time than others, so
/// that many run into the limit beside other tests: the attackers share one core.
const HOSTILE_GRANTS: &str = "
  hostile:
    limits: {cpuTime: 250ms}
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes: [{kinds: [ConfigMap], verbs: [list]}]
    upstreams: [{}]
    secrets: [{names: [treasure], origins: ['http://127.0.0.1:*']}]
";

/// The attacks, and the objects of each.
const ATTACKS: [(&str, usize); 6] = [
    ("hold-memory", HOLDER_COUNT),
    ("receive", RECEIVER_COUNT),
    ("chatter", FLOODER_COUNT),
    ("watch", WATCHER_COUNT),
    ("expand", EXPANDER_COUNT),
    ("follow", FOLLOWER_COUNT),
];

/// The attackers, as objects with this behaviour for each attack.
async fn apply_attackers(lab: &Lab) {
    for (behaviour, count) in ATTACKS {
        for i in 0..count {
            let mut attacker = object(lab, &format!("{behaviour}-{i}"), behaviour);
            attacker["spec"]["target"] = "large".into();
            lab.apply(attacker).await;
        }
    }
}

/// Ends all attacks.
async fn calm_attackers(lab: &Lab) {
    let names = ATTACKS.map(|(behaviour, count)| (0..count).map(move |i| format!("{behaviour}-{i}")));
    let names: Vec<String> = names.into_iter().flatten().collect();
    for name in &names {
        lab.apply(object(lab, name, "behave")).await;
    }
    for name in &names {
        lab.wait_ready(&super::hostile(), name).await;
    }
}

async fn count_time_traps(process: &HostProcess) -> f64 {
    process.fetch_metric(TIME_TRAPS[0]).await + process.fetch_metric(TIME_TRAPS[1]).await
}

#[scenario(embedded = "it measures the host alone", hostile, alone)]
async fn host_in_512_mib_survives_all_attacks_on_its_memory(lab: Lab) {
    let Some(cgroup) = MemoryCgroup::create_or_skip(POD_BYTES) else {
        return;
    };
    let large = Mirror::start(None).await;
    lab.apply(large.upstream(&lab, "large")).await;
    lab.apply(json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "treasure", "namespace": lab.namespace},
        "stringData": {"large": "s".repeat(SECRET_BYTES), "short": "silver-1"}}))
        .await;
    lab.install(&["hostile/hostile", "examples/greeting"]);
    let grants = format!("{PACK_GRANTS}{HOSTILE_GRANTS}");
    let options = ProcessOptions {
        grants: Some(&grants),
        cgroup: Some(&cgroup),
    };
    let mut process =
        HostProcess::start_with(&lab, "host", &["--leader-elect=false", "--workers=40"], options);
    process.wait_started(&lab).await;
    lab.apply(greeting(&lab, "neighbour")).await;
    lab.wait_ready(&greeting_kind(), "neighbour").await;
    let (mut round, mut measured) = (0, Majority::default());
    let most_used = Cell::new(0.0_f64);
    while measured.verdict().is_none() {
        let calm = measure_p98(&lab, &mut round).await;
        apply_attackers(&lab).await;
        let loaded = measure_p98(&lab, &mut round).await;
        // Attacks go on for a while: what adds up shows only then.
        let traps = count_time_traps(&process).await;
        lab.wait_until("calls held memory, and more ran into their limits", async || {
            let used = process.fetch_metric("ostler_memory_budget_used_bytes").await;
            most_used.set(used.max(most_used.get()));
            let trapped = count_time_traps(&process).await - traps;
            let seen = large.seen();
            let is_tried = |path: &&str| seen.iter().any(|seen| seen.path.starts_with(*path));
            let all_tried = ["/large", "/repeat", "/stream/"].iter().all(is_tried);
            trapped >= MIN_TRAPS && most_used.get() > MIN_USED_BYTES && all_tried
        })
        .await;
        calm_attackers(&lab).await;
        measured.add(calm, loaded, &format!("peak {} MiB", cgroup.peak_bytes() >> 20));
        assert!(process.is_running(), "the host has ended:\n{}", measured.table);
    }
    let table = &measured.table;
    let log = process.log();
    for line in log.lines().filter(|l| l.contains("expand")).take(12) {
        println!("LOG {line}");
    }
    let seen = large.seen();
    for path in ["/large", "/repeat", "/stream/0"] {
        assert!(
            seen.iter().any(|seen| seen.path.starts_with(path)),
            "{path} was not tried"
        );
    }
    assert!(
        seen.iter().all(|seen| seen.path != "/echo"),
        "a body beyond its limit was sent"
    );
    assert_eq!(cgroup.oom_kills(), 0, "the kernel has killed a process:\n{table}");
    assert_eq!(measured.verdict(), Some(true), "{table}");
    let holder: Value = lab
        .get(&super::hostile(), "hold-memory-0")
        .await
        .expect("it exists");
    assert_eq!(
        holder["status"]["observedGeneration"],
        holder["metadata"]["generation"]
    );
    drop(process);
}

/// The budget has room for small calls only. The status of an object that needs more says so, the build is not blamed, and
/// the object is reconciled as soon as it needs less.
#[scenario(hostile)]
async fn object_that_gets_no_memory_of_the_budget_says_so_and_recovers(mut lab: Lab) {
    lab.settings.memory_budget = Some(32 << 20);
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    lab.apply(object(&lab, "large", "hold-memory")).await;
    lab.wait_until("the status of the object has the reason", async || {
        let large = lab.get(&super::hostile(), "large").await.expect("it exists");
        let ready = find_condition(&large, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ready["status"] == "False"
            && ready["reason"] == "HostExhausted"
            && message.contains("--memory-budget")
    })
    .await;
    let plugins = lab.host().registry().serving();
    let trapping = plugins.iter().map(|plugin| plugin.health.trapping().0);
    assert_eq!(trapping.sum::<usize>(), 0, "the build is not at fault");
    lab.apply(object(&lab, "large", "behave")).await;
    lab.wait_ready(&super::hostile(), "large").await;
}

/// The smallest valid component.
const EMPTY_COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

/// The compiler sets its limits before it reads the component, which therefore is sent last.
#[scenario(embedded = "it measures the host alone", hostile)]
async fn compiler_in_512_mib_has_half_of_them_and_the_lowest_priority(lab: Lab) {
    let Some(cgroup) = MemoryCgroup::create_or_skip(POD_BYTES) else {
        return;
    };
    let cache = lab.path().join("compiled");
    let mut compiler = Command::new("sh")
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(cgroup.processes())
        .arg(host_binary())
        .args(["compile", "--concurrency=2", "--memory=1048576", "--cache"])
        .arg(&cache)
        .stdin(Stdio::piped())
        .spawn()
        .expect("the compiler starts");
    let read = |file: &str| {
        std::fs::read_to_string(format!("/proc/{}/{file}", compiler.id())).expect("it waits for its input")
    };
    let limits = || {
        let limits = read("limits");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max data size"));
        let fields = line.expect("a limit of data").split_ascii_whitespace();
        fields.take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let half = (POD_BYTES / 2).to_string();
    lab.wait_until("the compiler has a limit of memory", async || {
        limits() == [half.as_str(); 2]
    })
    .await;
    assert_eq!(
        read("oom_score_adj").trim(),
        "1000",
        "it is killed before the host"
    );
    // The niceness is the 17th field after the command.
    let stat = read("stat");
    let (_, fields) = stat.rsplit_once(')').expect("a command");
    assert_eq!(fields.split_ascii_whitespace().nth(16), Some("19"));
    let mut input = compiler.stdin.take().expect("a pipe");
    input.write_all(EMPTY_COMPONENT).expect("it reads");
    drop(input);
    assert!(compiler.wait().expect("it ends").success());
    assert!(cache.exists(), "it has stored its code");
}
