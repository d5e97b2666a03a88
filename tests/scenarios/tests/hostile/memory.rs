//! A host in a container of 512 MiB, under all attacks on its memory at once, and its compiler.

use std::{
    cell::Cell,
    io::Write,
    process::{Command, Stdio},
};

use ostler_test_harness::{
    Lab, PACK_GRANTS,
    cgroup::MemoryCgroup,
    process::{Process, ProcessOptions, host_binary},
    scenario,
};
use serde_json::Value;

use super::{Mirror, greeting, greetings, neighbours::measure_p99, object};

/// Memory limit of the pod in `deploy/`.
const POD_BYTES: usize = 512 << 20;
/// Objects of each attack.
const HOLDER_COUNT: usize = 24;
const RECEIVER_COUNT: usize = 6;
const FLOODER_COUNT: usize = 4;
const WATCHER_COUNT: usize = 2;
/// Maximum ratio of the p99 latencies, and the measurements of which the majority must be within it.
const MAX_RATIO: f64 = 2.0;
const ATTEMPT_COUNT: usize = 5;

/// Calls that held their memory until their time was over.
const CPU_TIME_TRAPS: &str = "ostler_wasm_traps_total{plugin=\"hostile\",reason=\"cpu_time\"}";
/// Number of them in each attempt, after the measurement, and the bytes that calls must have held together at some time.
/// Otherwise nothing was attacked.
const MIN_TRAPS: f64 = 8.0;
const MIN_USED_BYTES: f64 = 64e6;

/// Grants of the hostile plugin, beside those of deploy/grants.yaml for other plugins.
const HOSTILE_GRANTS: &str = "
  hostile:
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes: [{kinds: [ConfigMap], verbs: [list]}]
    upstreams: [{}]
";

/// The attackers, as objects with this behaviour for each attack, or all calm.
async fn apply_attackers(lab: &Lab, calm: bool) {
    let attacks = [
        ("hold-memory", HOLDER_COUNT),
        ("receive", RECEIVER_COUNT),
        ("chatter", FLOODER_COUNT),
        ("watch", WATCHER_COUNT),
    ];
    for (behaviour, count) in attacks {
        for i in 0..count {
            let name = format!("{behaviour}-{i}");
            let mut attacker = object(lab, &name, if calm { "behave" } else { behaviour });
            attacker["spec"]["target"] = "large".into();
            lab.apply(attacker).await;
        }
    }
}

#[scenario(embedded = "it measures the host alone", hostile)]
async fn host_in_512_mib_survives_all_attacks_on_its_memory(lab: Lab) {
    let Some(cgroup) = MemoryCgroup::create_or_skip(POD_BYTES) else {
        return;
    };
    let large = Mirror::start(None).await;
    lab.apply(large.upstream(&lab, "large")).await;
    lab.install(&["hostile/hostile", "examples/greeting"]);
    let grants = format!("{PACK_GRANTS}{HOSTILE_GRANTS}");
    let options = ProcessOptions {
        grants: Some(&grants),
        cgroup: Some(&cgroup),
    };
    let mut process = Process::start_with(&lab, "host", &["--leader-elect=false", "--workers=40"], options);
    process.wait_started(&lab).await;
    lab.apply(greeting(&lab, "neighbour")).await;
    lab.wait_ready(&greetings(), "neighbour").await;
    let (mut round, mut within, mut table) = (0, 0, String::new());
    let most_used = Cell::new(0.0_f64);
    for _ in 0..ATTEMPT_COUNT {
        let calm = measure_p99(&lab, &mut round).await;
        apply_attackers(&lab, false).await;
        let loaded = measure_p99(&lab, &mut round).await;
        // Attacks go on for a while: what adds up shows only then.
        let traps = process.fetch_metric(CPU_TIME_TRAPS).await;
        lab.wait_until("calls held memory, and more ran into their limits", async || {
            let used = process.fetch_metric("ostler_memory_budget_used_bytes").await;
            most_used.set(used.max(most_used.get()));
            let trapped = process.fetch_metric(CPU_TIME_TRAPS).await - traps;
            trapped >= MIN_TRAPS && most_used.get() > MIN_USED_BYTES
        })
        .await;
        apply_attackers(&lab, true).await;
        for i in 0..HOLDER_COUNT {
            lab.wait_ready(&super::hostile(), &format!("hold-memory-{i}"))
                .await;
        }
        let ratio = loaded.as_secs_f64() / calm.as_secs_f64();
        within += usize::from(ratio <= MAX_RATIO);
        let peak = cgroup.peak_bytes() >> 20;
        table.push_str(&format!(
            "{calm:>8.1?} → {loaded:>8.1?}  ×{ratio:.2}, peak {peak} MiB\n"
        ));
        assert!(process.is_running(), "the host has ended:\n{table}");
        if within > ATTEMPT_COUNT / 2 {
            break;
        }
    }
    println!("p99 of a neighbour, calm and under attack, and the memory of the host:\n{table}");
    assert_eq!(cgroup.oom_kills(), 0, "the kernel has killed a process:\n{table}");
    assert!(
        within > ATTEMPT_COUNT / 2,
        "more than {MAX_RATIO} times as long in most attempts:\n{table}"
    );
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
