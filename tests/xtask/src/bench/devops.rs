//! The benches of the DevOps pack: delay of heartbeats under load, and the requests of an idle hour. They run on the stage of the
//! demo, with an embedded API server, and the optimized host.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::Options;
use crate::{
    cargo, components,
    demo::{Pack, Variation, devops, stage::Stage},
    paths, process,
    progress::{Step, print_result},
};

/// Names of the benches.
pub const DEVOPS_BENCH_NAMES: [&str; 2] = ["heartbeats", "devops-idle"];
/// Interval of the heartbeats of a running deployment.
const HEARTBEAT_INTERVAL_MS: u64 = 30_000;
/// Delay that no heartbeat may have.
const MAX_DELAY_MS: u64 = 5_000;
/// Deployments that run, and whose heartbeats are measured.
const RUNNING_DEPLOYMENTS: usize = 50;
/// Deployments that have ended, and are reconciled again and again.
const ENDED_DEPLOYMENTS: usize = 10_000;
/// Time without load, and after a restart: each deployment sends at least one heartbeat after its first.
const CALM_WINDOW: Duration = Duration::from_secs(65);
/// Timeout until the load is there.
const LOAD_TIMEOUT: Duration = Duration::from_secs(900);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the benches of these names.
pub fn run(names: &[&str], options: &Options) -> Result<ExitCode> {
    let environment = devops::fetch_servers()?;
    let built = components::build_components(|guest| Pack::Devops.has_guest(guest))?;
    let mut binaries = cargo::build_debug_binaries(&Pack::Devops.programs())?;
    let host = match &options.host {
        Some(host) => host.clone(),
        None => cargo::build_release_binary("ostler")?,
    };
    binaries.insert("ostler".into(), host);
    let window = |default| Duration::from_secs(options.window.unwrap_or(default));
    let mut passed = true;
    for name in names {
        let is_heartbeats = *name == "heartbeats";
        let variation = Variation {
            folder: if is_heartbeats {
                "bench-heartbeats"
            } else {
                "bench-devops-idle"
            },
            hold_builds: is_heartbeats,
            deployments: if is_heartbeats { RUNNING_DEPLOYMENTS } else { 1 },
            ttl_seconds: 10_800,
        };
        let mut stage = Stage::start(Pack::Devops, &variation, &binaries, &environment, &built)?;
        passed &= if is_heartbeats {
            let records = if options.quick {
                ENDED_DEPLOYMENTS / 10
            } else {
                ENDED_DEPLOYMENTS
            };
            measure_heartbeats(&mut stage, records, window(120))?
        } else {
            measure_idle(&mut stage, window(600))?
        };
    }
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A part of the bench.
struct Phase {
    name: String,
    from_ms: u64,
    until_ms: u64,
    reconciles: u64,
    requests: Counts,
    cpu_seconds: f64,
}

/// Runs something, and measures what the host does meanwhile.
fn measure_phase(
    stage: &mut Stage,
    name: &str,
    work: impl FnOnce(&mut Stage) -> Result<String>,
) -> Result<Phase> {
    let step = Step::new(name.to_owned());
    let (before, from_ms) = (Snapshot::read(stage)?, devops::now_ms());
    let remark = work(stage)?;
    let now = Snapshot::read(stage)?;
    step.finish(&remark);
    Ok(Phase {
        name: format!("{name}{remark}"),
        from_ms,
        until_ms: devops::now_ms(),
        reconciles: now.reconciles.saturating_sub(before.reconciles),
        requests: subtract(&now.requests, &before.requests),
        cpu_seconds: (now.cpu_seconds - before.cpu_seconds).max(0.0),
    })
}

fn measure_heartbeats(stage: &mut Stage, records: usize, window: Duration) -> Result<bool> {
    let step = Step::new(format!("Starting {RUNNING_DEPLOYMENTS} deployments"));
    let began = Instant::now();
    while stage.script().count_heartbeat_ids() < RUNNING_DEPLOYMENTS {
        let objects = stage.objects()?;
        stage.advance(&objects)?;
        wait(stage, LOOK_INTERVAL)?;
        if began.elapsed() > LOAD_TIMEOUT {
            bail!(
                "only {} deployments send heartbeats",
                stage.script().count_heartbeat_ids()
            );
        }
    }
    step.finish("");
    let mut phases = Vec::new();
    phases.push(measure_phase(stage, "no load", |stage| {
        wait(stage, CALM_WINDOW)?;
        Ok(String::new())
    })?);
    let created = format!("{records} records are created and fail");
    phases.push(measure_phase(stage, &created, |stage| {
        let began = Instant::now();
        let ended: Vec<_> = (0..records).map(build_ended).collect();
        stage.cluster().create_all(
            "/apis/devops.ostler.dev/v1alpha1/namespaces/devops/deploymentrecords",
            &ended,
        )?;
        while count_ended(stage)? < records {
            wait(stage, Duration::from_secs(2))?;
            if began.elapsed() > LOAD_TIMEOUT {
                bail!("only {} of {records} records have ended", count_ended(stage)?);
            }
        }
        Ok(format!(", in {:.0} s", began.elapsed().as_secs_f64()))
    })?);
    phases.push(measure_phase(stage, "all are reconciled again", |stage| {
        let rounds = resync_for(stage, records, window)?;
        Ok(format!(", {rounds} times in {:.0} s", window.as_secs_f64()))
    })?);
    stage.restart_host()?;
    phases.push(measure_phase(stage, "the host has restarted", |stage| {
        wait(stage, CALM_WINDOW)?;
        Ok(String::new())
    })?);
    stage.script_mut().read()?;
    let heartbeats = stage.script().heartbeats();
    let is_running = |body: &Value| body["id"].as_str().is_some_and(|id| id.starts_with("d-"));
    let times = heartbeats.iter().filter(|(_, body)| is_running(body));
    let mut by_id: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (at, body) in times {
        by_id
            .entry(body["id"].as_str().unwrap_or_default())
            .or_default()
            .push(*at);
    }
    let end = phases.last().map_or(0, |phase| phase.until_ms);
    let series: Vec<_> = by_id.into_values().collect();
    let mut worst = 0;
    let mut table =
        "| load | heartbeats | delay p50 | p99 | max | reconciles | API requests | CPU of the host |\n\
        |---|--:|--:|--:|--:|--:|--:|--:|\n"
            .to_owned();
    let mut report = Vec::new();
    for phase in &phases {
        let delays = find_delays(&series, phase.from_ms, phase.until_ms, end);
        let at = |share: f64| percentile(&delays, share);
        worst = worst.max(at(1.0));
        let api: f64 = phase
            .requests
            .iter()
            .filter(|(k, _)| k.starts_with("API "))
            .map(|(_, n)| n)
            .sum();
        writeln!(
            table,
            "| {} | {} | {} ms | {} ms | {} ms | {} | {api:.0} | {:.0} s |",
            phase.name,
            delays.len(),
            at(0.5),
            at(0.99),
            at(1.0),
            phase.reconciles,
            phase.cpu_seconds
        )?;
        report.push(
            json!({ "load": phase.name, "heartbeats": delays.len(), "p50_ms": at(0.5), "p99_ms": at(0.99),
            "max_ms": at(1.0), "reconciles": phase.reconciles, "requests": phase.requests,
            "cpu_seconds": phase.cpu_seconds }),
        );
    }
    let passed = worst <= MAX_DELAY_MS;
    print_result(&table);
    print_result(&format!(
        "{RUNNING_DEPLOYMENTS} running deployments; the longest delay is {worst} ms, {} {MAX_DELAY_MS} ms",
        if passed { "not more than" } else { "MORE than" }
    ));
    let file = paths::create_target_subdir("bench")?.join("heartbeats.json");
    fs::write(&file, json!(report).to_string())?;
    Ok(passed)
}

/// A deployment that fails at once: the ArgoSetting has no such application.
fn build_ended(n: usize) -> Value {
    json!({ "apiVersion": "devops.ostler.dev/v1alpha1", "kind": "DeploymentRecord",
        "metadata": { "name": format!("ended-{n:05}"), "namespace": "devops" },
        "spec": { "environment": "alpha", "sync": { "settingRef": { "name": "shop" }, "application": "none" } } })
}

fn count_ended(stage: &Stage) -> Result<usize> {
    let objects = stage.objects()?;
    let ended = objects
        .iter()
        .filter(|o| o.kind == "DeploymentRecord" && o.reason == "Failed");
    Ok(ended.count())
}

/// Has all records reconciled again and again, by changes of the plugin's configuration. Returns the number of rounds.
fn resync_for(stage: &mut Stage, records: usize, window: Duration) -> Result<usize> {
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < window {
        let before = stage.count_reconciles()?;
        let config = format!("settle: {}ms\n", 5000 + rounds);
        paths::replace_file(
            &stage.plugin_folder().join("devops-deployment.yaml"),
            config.as_bytes(),
        )?;
        while stage.count_reconciles()? < before + records as u64 {
            wait(stage, Duration::from_millis(100))?;
            if began.elapsed() > window + LOAD_TIMEOUT {
                bail!("round {rounds} does not end");
            }
        }
        rounds += 1;
    }
    Ok(rounds)
}

/// Waits, and fails when a process has ended.
fn wait(stage: &mut Stage, time: Duration) -> Result<()> {
    let began = Instant::now();
    loop {
        stage.script_mut().read()?;
        stage.check_processes()?;
        let left = time.saturating_sub(began.elapsed());
        if process::wait_for_interrupt(left.min(LOOK_INTERVAL)) {
            bail!("interrupted");
        }
        if began.elapsed() >= time {
            return Ok(());
        }
    }
}

/// The delays of the heartbeats that were due in a time: by how much more than the interval they followed the one before. One that
/// has not come until `end` is as late as that.
fn find_delays(series: &[Vec<u64>], from: u64, until: u64, end: u64) -> Vec<u64> {
    let mut delays = Vec::new();
    for times in series {
        let due = |at: u64| at + HEARTBEAT_INTERVAL_MS;
        let is_here = |at: u64| (from..until).contains(&due(at));
        let pairs = times.windows(2).filter(|pair| is_here(pair[0]));
        delays.extend(pairs.map(|pair| pair[1].saturating_sub(due(pair[0]))));
        let open = times.last().filter(|at| is_here(**at) && due(**at) < end);
        delays.extend(open.map(|at| end - due(*at)));
    }
    delays.sort_unstable();
    delays
}

/// The value below which this share of the sorted values is.
fn percentile(sorted: &[u64], share: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * share).ceil() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(0)
}

fn measure_idle(stage: &mut Stage, window: Duration) -> Result<bool> {
    let step = Step::new("Deploying once");
    let began = Instant::now();
    loop {
        let objects = stage.objects()?;
        stage.advance(&objects)?;
        if stage.is_complete() && objects.iter().all(|object| object.ready) {
            break;
        }
        wait(stage, LOOK_INTERVAL)?;
        if began.elapsed() > LOAD_TIMEOUT {
            bail!("the deployment is not Ready");
        }
    }
    // What follows the last write.
    wait(stage, Duration::from_secs(10))?;
    let objects = stage.objects()?.len();
    step.finish(format!("{objects} objects"));
    let phase = measure_phase(stage, "idle", |stage| {
        wait(stage, window)?;
        Ok(String::new())
    })?;
    let hours = window.as_secs_f64() / 3600.0;
    let mut table = format!(
        "{objects} objects, counted for {} s\n\n| | counted | per hour |\n|---|--:|--:|\n",
        window.as_secs()
    );
    writeln!(
        table,
        "| reconciles | {} | {:.0} |",
        phase.reconciles,
        phase.reconciles as f64 / hours
    )?;
    for (name, n) in &phase.requests {
        writeln!(table, "| {name} | {n:.0} | {:.0} |", n / hours)?;
    }
    print_result(&table);
    let file = paths::create_target_subdir("bench")?.join("devops-idle.json");
    fs::write(
        &file,
        json!({ "seconds": window.as_secs(), "requests": phase.requests }).to_string(),
    )?;
    Ok(true)
}

/// Requests by what they were sent to.
type Counts = BTreeMap<String, f64>;

/// The counters of the host.
struct Snapshot {
    reconciles: u64,
    requests: Counts,
    cpu_seconds: f64,
}

impl Snapshot {
    fn read(stage: &Stage) -> Result<Self> {
        Ok(Self {
            reconciles: stage.count_reconciles()?,
            requests: count_requests(&stage.metrics()?),
            cpu_seconds: stage.host_cpu_seconds().unwrap_or(0.0),
        })
    }
}

/// Sums the requests of the host in its metrics: to the API server by method, and to each upstream.
fn count_requests(metrics: &str) -> Counts {
    let mut counts = Counts::new();
    for line in metrics.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let label = |name: &str| {
            let (_, rest) = series.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let name = match series.split_once('{') {
            Some(("rest_client_requests_total", _)) => label("method").map(|m| format!("API {m}")),
            Some(("ostler_upstream_requests_total", _)) => label("upstream").map(|u| format!("upstream {u}")),
            _ => None,
        };
        if let (Some(name), Ok(value)) = (name, value.parse::<f64>()) {
            *counts.entry(name).or_default() += value;
        }
    }
    counts
}

fn subtract(now: &Counts, before: &Counts) -> Counts {
    let since = now.iter().map(|(name, n)| {
        let earlier = before.get(name).copied().unwrap_or(0.0);
        (name.clone(), (n - earlier).max(0.0))
    });
    since.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_counts_from_the_interval_and_belongs_to_the_time_it_was_due() {
        let series = [vec![0, 30_100, 66_100], vec![1_000, 30_500]];
        // Due at 30.0 and 31.0 s; the second came early, as after a restart.
        assert_eq!(find_delays(&series, 0, 40_000, 66_200), [0, 100]);
        // Due at 60.1 s, and one at 60.5 s that has not come.
        assert_eq!(find_delays(&series, 40_000, 66_200, 66_200), [5_700, 6_000]);
    }

    #[test]
    fn percentile_of_few_values_is_one_of_them() {
        assert_eq!(
            [0.5, 0.99, 1.0].map(|share| percentile(&[1, 2, 3], share)),
            [2, 3, 3]
        );
        assert_eq!(percentile(&[], 0.5), 0);
    }

    #[test]
    fn requests_are_counted_by_method_and_upstream() {
        let metrics = "rest_client_requests_total{code=\"200\",method=\"PATCH\",host=\"h\"} 3\n\
            rest_client_requests_total{code=\"409\",method=\"PATCH\",host=\"h\"} 1\n\
            ostler_upstream_requests_total{upstream=\"ns/git\",code=\"200\"} 2\nother{method=\"GET\"} 9\n";
        let counts = count_requests(metrics);
        assert_eq!(
            counts,
            Counts::from([("API PATCH".into(), 4.0), ("upstream ns/git".into(), 2.0)])
        );
        assert_eq!(subtract(&counts, &counts)["API PATCH"], 0.0);
    }
}
