//! Cached objects: an operator that reads one ConfigMap has all of them in its cache.

use anyhow::{Result, bail};
use serde::Deserialize;
use tokio::process::Command;

use super::SceneStage;
use crate::{
    api::{config_maps_path, samples_path},
    observer::{ObservedObject, Observer},
    process::ResourceUsage,
    report::{SubjectReport, print_progress},
    subject::{BenchSubject, RunningSubject},
    work,
};

/// Measures each subject at each number of objects.
pub async fn run(stage: &SceneStage, subjects: &[BenchSubject], steps: &[usize]) -> Result<()> {
    let cluster = &stage.cluster;
    cluster
        .create(&config_maps_path(), &work::build_shared("there"))
        .await?;
    let padding = work::ballast_padding(cluster).await?;
    let mut there = 0;
    let mut empty: Vec<(BenchSubject, ResourceUsage)> = Vec::new();
    for &step in [0].iter().chain(steps) {
        let making = (there..step).map(|i| work::build_ballast(i, padding));
        let progress = |done| print_progress(format!("{} objects created", there + done));
        cluster.create_all(&config_maps_path(), making, progress).await?;
        there = step;
        for &subject in subjects {
            let base = empty.iter().find(|(s, _)| *s == subject).map(|(_, usage)| *usage);
            match subject {
                BenchSubject::Raw | BenchSubject::RawApply => {}
                BenchSubject::Kopf if step == 0 => {}
                BenchSubject::Kopf => {
                    report_note_to_all(stage, subject, "keeps no cache: it reads from the API server")
                }
                _ => {
                    print_progress(format!("{}: keeping {step}", subject.name()));
                    let Some((usage, running)) = measure_cached(stage, subject, step).await? else {
                        report_note_to_all(
                            stage,
                            subject,
                            &format!("is not done with {step} in {} s", stage.limit.as_secs()),
                        );
                        continue;
                    };
                    match base {
                        None => empty.push((subject, usage)),
                        Some(base) => {
                            let last = steps.last() == Some(&step);
                            report_memory(stage, &running, subject, step, last, base, usage).await?;
                        }
                    }
                    running.process.terminate().await?;
                }
            }
        }
    }
    Ok(())
}

/// Runs an operator until its cache is complete. Returns `None` at the timeout.
async fn measure_cached(
    stage: &SceneStage,
    subject: BenchSubject,
    step: usize,
) -> Result<Option<(ResourceUsage, RunningSubject)>> {
    let name = format!("{}-{step}", subject.name());
    let wanted = name.clone();
    let observer = Observer::start(&stage.cluster, &samples_path(), move |o: &ObservedObject| {
        o.metadata.name == wanted && o.is_ready()
    })
    .await?;
    let sample = work::build_sample(&name, Some(work::SHARED_CONFIG_MAP));
    stage.cluster.create(&samples_path(), &sample).await?;
    let running = RunningSubject::start(stage, subject, None).await?;
    if !observer.wait_count(1, stage.limit).await? {
        running.process.terminate().await?;
        return Ok(None);
    }
    running.process.wait_idle(stage.limit).await?;
    Ok(Some((running.process.read_usage()?, running)))
}

async fn report_memory(
    stage: &SceneStage,
    running: &RunningSubject,
    subject: BenchSubject,
    step: usize,
    last: bool,
    empty: ResourceUsage,
    usage: ResourceUsage,
) -> Result<()> {
    let per_object = usage.rss.saturating_sub(empty.rss) / step as u64;
    if let Some(bench) = stage.bench_name("growth") {
        let report = SubjectReport { bench, subject };
        let thousands = step / 1000;
        report.report_value(&format!("rss_{thousands}k"), usage.rss, "bytes");
        report.report_value(&format!("rss_peak_{thousands}k"), usage.rss_peak, "bytes");
        report.report_value(&format!("cpu_seconds_{thousands}k"), usage.cpu_seconds, "s");
        if last {
            report.report_value("rss_peak", usage.rss_peak, "bytes");
            report.report_value("cpu_seconds", usage.cpu_seconds, "s");
        }
    }
    if let Some(bench) = stage.bench_name("cache").filter(|_| last) {
        let report = SubjectReport { bench, subject };
        report.report_value("bytes_per_object", per_object, "bytes");
        report.report_value("rss_peak", usage.rss_peak, "bytes");
        report.report_value("cpu_seconds", usage.cpu_seconds, "s");
        if let Some((objects, bytes)) = running.store_size().await? {
            report.report_value("json_bytes_per_object", bytes / objects.max(1), "bytes");
            if let Some(memory) = measure_store(stage, step).await? {
                report.report_value("heap_bytes_per_object", memory.allocated_per_object, "bytes");
            }
            if let Some(memory) = measure_store(stage, step * 10).await? {
                report.report_value("store_rss_peak", memory.rss_peak, "bytes");
            }
        }
    }
    Ok(())
}

/// The memory of Ostler's store alone, as `bench-store` prints it.
#[derive(Deserialize)]
struct StoreMemory {
    /// Allocated bytes per object.
    allocated_per_object: i64,
    /// Resident bytes of its process at the peak.
    rss_peak: u64,
}

/// Measures the memory of Ostler's store with this number of objects, in a process of its own.
async fn measure_store(stage: &SceneStage, objects: usize) -> Result<Option<StoreMemory>> {
    let Some(program) = &stage.programs.store else {
        return Ok(None);
    };
    let path = format!("{}/{}", config_maps_path(), work::object_name("kept", 0));
    let file = stage.folder.join("kept.json");
    std::fs::write(&file, stage.cluster.get(&path).await?.to_string())?;
    let mut counting = Command::new(program);
    let output = counting.arg(file).arg(objects.to_string()).output().await?;
    if !output.status.success() {
        bail!("counting: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(Some(serde_json::from_slice(&output.stdout)?))
}

fn report_note_to_all(stage: &SceneStage, subject: BenchSubject, note: &str) {
    for bench in &stage.benches {
        SubjectReport { bench, subject }.report_note(note);
    }
}
