//! The benches of the DevOps pack: the time from an event until its object is Ready, events per second, the requests of an idle
//! hour, and the delay of heartbeats under load. They run on the stage of the demo, with an embedded API server, and the optimized
//! host.

mod counts;
mod delays;
mod figures;

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use self::{
    counts::{CounterSnapshot, TargetCounts, count_acknowledged, count_reconciles, count_writes, subtract},
    delays::{find_delays, percentile},
    figures::Figures,
};
use super::{BenchOptions, build::find_or_build_host};
use crate::{
    cargo, components,
    demo::{Pack, Variation, devops, stage::DemoStage},
    paths, process,
    progress::{BuildStep, print_result},
};

/// Names of the benches.
pub const DEVOPS_BENCH_NAMES: [&str; 2] = ["heartbeats", "devops-idle"];
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
/// Interval of looks at what takes less than a second.
const SHORT_LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Events that wait in the queue when the host starts.
const WAITING_EVENTS: usize = 2_000;
/// Time without work in `heartbeats`: each setting is polled once. In `devops-idle` it is twice as long, as small counts are rough.
const IDLE_SECONDS: u64 = 300;

/// Runs the benches of these names.
pub fn run(names: &[&str], options: &BenchOptions) -> Result<ExitCode> {
    let environment = devops::fetch_servers()?;
    let built = components::build_components(|guest| Pack::Devops.has_guest(guest))?;
    let mut binaries = cargo::build_debug_binaries(&Pack::Devops.programs())?;
    binaries.insert("ostler".into(), find_or_build_host(options.host.as_deref())?);
    let start = |folder, hold_builds, deployments| {
        let variation = Variation {
            folder,
            hold_builds,
            deployments,
            ttl_seconds: 10_800,
        };
        DemoStage::start(Pack::Devops, &variation, &binaries, &environment, &built, None)
    };
    let scale = if options.quick { 10 } else { 1 };
    let (mut figures, mut passed) = (Figures::default(), true);

    let has = |name: &str| names.contains(&name);
    let idle = match (has("devops-idle"), options.window) {
        (true, Some(seconds)) => seconds,
        (true, None) => 2 * IDLE_SECONDS,
        (false, _) => IDLE_SECONDS / scale,
    };
    {
        let mut stage = start("bench-devops-idle", false, 1)?;
        measure_readiness(&mut stage, &mut figures)?;
        measure_idle(&mut stage, Duration::from_secs(idle), &mut figures)?;
        measure_event_rate(&mut stage, WAITING_EVENTS / scale as usize, &mut figures)?;
    }
    let mut name = "devops-idle";
    if has("heartbeats") {
        name = "heartbeats";
        let mut stage = start("bench-heartbeats", true, RUNNING_DEPLOYMENTS)?;
        let window = Duration::from_secs(options.window.unwrap_or(120));
        let records = ENDED_DEPLOYMENTS / scale as usize;
        passed = measure_heartbeats(&mut stage, records, window, &mut figures)?;
    }
    print_result(&figures.markdown_table());
    let file = paths::create_target_subdir("bench")?.join(format!("{name}.json"));
    fs::write(&file, figures.to_json().to_string())?;
    print_result(&format!("{} figures in {}", figures.len(), file.display()));
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
    requests: TargetCounts,
    cpu_seconds: f64,
}

/// Runs something, and measures what the host does meanwhile.
fn measure_phase(
    stage: &mut DemoStage,
    name: &str,
    work: impl FnOnce(&mut DemoStage) -> Result<String>,
) -> Result<Phase> {
    let step = BuildStep::new(name.to_owned());
    let (before, from_ms) = (CounterSnapshot::read(stage)?, devops::now_ms());
    let remark = work(stage)?;
    let now = CounterSnapshot::read(stage)?;
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

/// Sets up a project and deploys it, and measures the time from each event until its object is Ready.
fn measure_readiness(stage: &mut DemoStage, figures: &mut Figures) -> Result<()> {
    let step = BuildStep::new("Deploying once");
    let began = Instant::now();
    loop {
        let objects = stage.objects()?;
        stage.advance(&objects)?;
        if stage.is_complete() && objects.iter().all(|object| object.ready) {
            break;
        }
        wait(stage, SHORT_LOOK_INTERVAL)?;
        if began.elapsed() > LOAD_TIMEOUT {
            bail!("the deployment is not Ready");
        }
    }
    for (event, ready_ms) in stage.script().ready_times() {
        figures.add(
            format!("{event} until the object is Ready"),
            ready_ms as f64,
            "ms",
        );
    }
    step.finish(format!("{} objects", stage.objects()?.len()));
    Ok(())
}

/// Counts requests and writes without work.
fn measure_idle(stage: &mut DemoStage, window: Duration, figures: &mut Figures) -> Result<()> {
    // What follows the last write.
    wait(stage, Duration::from_secs(10))?;
    let objects = stage.objects()?.len();
    let writes = count_writes(stage)?;
    let idle = format!("{objects} objects without work");
    let phase = measure_phase(stage, &idle, |stage| {
        wait(stage, window)?;
        Ok(format!(" for {} s", window.as_secs()))
    })?;
    let written = count_writes(stage)?.saturating_sub(writes);
    let hours = window.as_secs_f64() / 3600.0;
    figures.add("objects without work", objects as f64, "");
    let mut add = |name: &str, n: f64| figures.add(format!("idle: {name}"), n / hours, "/h");
    add("reconciles", phase.reconciles as f64);
    add("writes of objects", written as f64);
    for (name, n) in &phase.requests {
        add(name, *n);
    }
    Ok(())
}

/// Has events wait in the queue while the host is stopped, and measures how fast it handles them.
fn measure_event_rate(stage: &mut DemoStage, events: usize, figures: &mut Figures) -> Result<()> {
    let step = BuildStep::new(format!("Handling {events} events that wait in the queue"));
    let bodies: Vec<_> = (0..events).map(build_event).collect();
    stage.restart_host_after(|stage| {
        let published = stage.script().count_published() + bodies.len();
        stage.script_mut().publish_deployments(&bodies)?;
        let began = Instant::now();
        while stage.script().count_published() < published {
            wait(stage, LOOK_INTERVAL)?;
            if began.elapsed() > LOAD_TIMEOUT {
                bail!("the events are not published");
            }
        }
        Ok(())
    })?;
    // Counted from the first look that finds some, because the start of the host is no part of it.
    let (began, mut first) = (Instant::now(), None);
    let rate = loop {
        let handled = count_acknowledged(&stage.metrics()?);
        let now = Instant::now();
        match first {
            None if handled > 0 => first = Some((now, handled)),
            Some((since, before)) if handled >= events as u64 => {
                break (handled - before) as f64 / (now - since).as_secs_f64();
            }
            _ => {}
        }
        wait(stage, SHORT_LOOK_INTERVAL)?;
        if began.elapsed() > LOAD_TIMEOUT {
            bail!("only {handled} of {events} events have been handled");
        }
    };
    figures.add("events handled", rate, "/s");
    step.finish(format!("{rate:.0}/s"));
    Ok(())
}

/// The event of a deployment that fails at once.
fn build_event(n: usize) -> Value {
    json!({ "id": format!("waiting-{n:05}"), "project": "shop", "environment": "none" })
}

fn measure_heartbeats(
    stage: &mut DemoStage,
    records: usize,
    window: Duration,
    figures: &mut Figures,
) -> Result<bool> {
    let step = BuildStep::new(format!("Starting {RUNNING_DEPLOYMENTS} deployments"));
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
        for (quantile, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            let name = format!("heartbeat delay {quantile}, {}", phase.name);
            figures.add(name, at(share) as f64, "ms");
        }
    }
    let passed = worst <= MAX_DELAY_MS;
    print_result(&table);
    print_result(&format!(
        "{RUNNING_DEPLOYMENTS} running deployments; the longest delay is {worst} ms, {} {MAX_DELAY_MS} ms",
        if passed { "not more than" } else { "MORE than" }
    ));
    Ok(passed)
}

/// A deployment that fails at once: the ArgoSetting has no such application.
fn build_ended(n: usize) -> Value {
    json!({ "apiVersion": "devops.ostler.dev/v1alpha1", "kind": "DeploymentRecord",
        "metadata": { "name": format!("ended-{n:05}"), "namespace": "devops" },
        "spec": { "environment": "alpha", "sync": { "settingRef": { "name": "shop" }, "application": "none" } } })
}

fn count_ended(stage: &DemoStage) -> Result<usize> {
    let objects = stage.objects()?;
    let ended = objects
        .iter()
        .filter(|o| o.kind == "DeploymentRecord" && o.reason == "Failed");
    Ok(ended.count())
}

/// Has all records reconciled again and again, by changes of the plugin's configuration. Returns the number of rounds.
fn resync_for(stage: &mut DemoStage, records: usize, window: Duration) -> Result<usize> {
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < window {
        let before = count_reconciles(&stage.metrics()?);
        let config = format!("settle: {}ms\n", 5000 + rounds);
        paths::replace_file(
            &stage.plugin_folder().join("devops-deployment.yaml"),
            config.as_bytes(),
        )?;
        while count_reconciles(&stage.metrics()?) < before + records as u64 {
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
fn wait(stage: &mut DemoStage, time: Duration) -> Result<()> {
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
