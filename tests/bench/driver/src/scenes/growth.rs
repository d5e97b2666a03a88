//! Cached objects: an operator that reads one ConfigMap has all of them in its cache.

use anyhow::{Result, bail};
use tokio::process::Command;

use super::Stage;
use crate::{
    api::{config_maps, samples},
    observer::{Object, Observer},
    process::Usage,
    report::{Report, print_progress},
    subject::{Running, Subject},
    work,
};

/// Measures each subject at each number of objects.
pub async fn run(stage: &Stage, subjects: &[Subject], steps: &[usize]) -> Result<()> {
    let cluster = &stage.cluster;
    cluster.create(&config_maps(), &work::shared("there")).await?;
    let padding = work::ballast_padding(cluster).await?;
    let mut there = 0;
    let mut empty: Vec<(Subject, Usage)> = Vec::new();
    for &step in [0].iter().chain(steps) {
        let making = (there..step).map(|i| work::ballast(i, padding));
        let told = |done| print_progress(format!("{} objects made", there + done));
        cluster.create_all(&config_maps(), making, told).await?;
        there = step;
        for &subject in subjects {
            let base = empty.iter().find(|(s, _)| *s == subject).map(|(_, usage)| *usage);
            match subject {
                Subject::Raw | Subject::RawApply => {}
                Subject::Kopf if step == 0 => {}
                Subject::Kopf => note(stage, subject, "keeps no cache: it reads from the API server"),
                _ => {
                    print_progress(format!("{}: keeping {step}", subject.name()));
                    let Some((usage, running)) = kept(stage, subject, step).await? else {
                        note(
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
                            tell(stage, &running, subject, step, last, base, usage).await?;
                        }
                    }
                    running.process.end().await?;
                }
            }
        }
    }
    Ok(())
}

/// Runs an operator until its cache is complete. Returns `None` at the timeout.
async fn kept(stage: &Stage, subject: Subject, step: usize) -> Result<Option<(Usage, Running)>> {
    let name = format!("{}-{step}", subject.name());
    let wanted = name.clone();
    let observer = Observer::start(&stage.cluster, &samples(), move |o: &Object| {
        o.metadata.name == wanted && o.ready()
    })
    .await?;
    let sample = work::sample(&name, Some(work::SHARED_CONFIG_MAP));
    stage.cluster.create(&samples(), &sample).await?;
    let running = Running::start(stage, subject, None).await?;
    if !observer.reaches(1, stage.limit).await? {
        running.process.end().await?;
        return Ok(None);
    }
    running.process.idle(stage.limit).await?;
    Ok(Some((running.process.usage()?, running)))
}

async fn tell(
    stage: &Stage,
    running: &Running,
    subject: Subject,
    step: usize,
    last: bool,
    empty: Usage,
    usage: Usage,
) -> Result<()> {
    let per_object = usage.rss.saturating_sub(empty.rss) / step as u64;
    if let Some(bench) = stage.bench("growth") {
        let report = Report { bench, subject };
        let thousands = step / 1000;
        report.value(&format!("rss_{thousands}k"), usage.rss, "bytes");
        report.value(&format!("rss_peak_{thousands}k"), usage.rss_peak, "bytes");
        report.value(&format!("cpu_seconds_{thousands}k"), usage.cpu_seconds, "s");
        if last {
            report.value("rss_peak", usage.rss_peak, "bytes");
            report.value("cpu_seconds", usage.cpu_seconds, "s");
        }
    }
    if let Some(bench) = stage.bench("cache").filter(|_| last) {
        let report = Report { bench, subject };
        report.value("bytes_per_object", per_object, "bytes");
        report.value("rss_peak", usage.rss_peak, "bytes");
        report.value("cpu_seconds", usage.cpu_seconds, "s");
        if let Some((objects, bytes)) = running.store().await? {
            report.value("json_bytes_per_object", bytes / objects.max(1), "bytes");
            if let Some(bytes) = measure_store(stage, step).await? {
                report.value("heap_bytes_per_object", bytes, "bytes");
            }
        }
    }
    Ok(())
}

/// Measures the allocations of Ostler's store per object, in a process of its own.
async fn measure_store(stage: &Stage, objects: usize) -> Result<Option<i64>> {
    let Some(program) = &stage.programs.store else {
        return Ok(None);
    };
    let path = format!("{}/{}", config_maps(), work::name("kept", 0));
    let file = stage.folder.join("kept.json");
    std::fs::write(&file, stage.cluster.get(&path).await?.to_string())?;
    let mut counting = Command::new(program);
    let output = counting.arg(file).arg(objects.to_string()).output().await?;
    if !output.status.success() {
        bail!("counting: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(Some(String::from_utf8(output.stdout)?.trim().parse()?))
}

fn note(stage: &Stage, subject: Subject, note: &str) {
    for bench in &stage.benches {
        Report { bench, subject }.note(note);
    }
}
