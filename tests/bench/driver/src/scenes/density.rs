//! Density: many plugins in one host beside as many operators in processes of their own, without any object.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::SceneStage;
use crate::{
    process::SubjectProcess,
    report::{SubjectReport, print_progress},
    subject::{BenchSubject, PLUGIN_NAME, RunningSubject},
};

/// The kind in the component and in its CRD, and its plural.
const KIND: &str = "Sample";
/// Time from the start until memory and CPU time are those at rest.
const SETTLE_TIME: Duration = Duration::from_secs(10);
/// Time in which the CPU time at rest is measured.
const REST_TIME: Duration = Duration::from_secs(30);
/// Time without a call after which the code of a plugin is unloaded: after the measurement of the idle ones.
const UNLOAD_AFTER: Duration = Duration::from_secs(50);

/// Memory and CPU time of processes together.
#[derive(Clone, Copy, Default)]
struct TotalUsage {
    pss: u64,
    cpu_seconds: f64,
}

impl TotalUsage {
    fn read(processes: &[&SubjectProcess]) -> Result<Self> {
        let mut sum = Self::default();
        for process in processes {
            sum.pss += process.read_pss()?;
            sum.cpu_seconds += process.read_usage()?.cpu_seconds;
        }
        Ok(sum)
    }
}

/// Measures each subject with each number of plugins or operators.
pub async fn run(stage: &SceneStage, subjects: &[BenchSubject], steps: &[usize]) -> Result<()> {
    let largest = steps.iter().copied().max().unwrap_or_default();
    let crd = include_str!("../../../crd.yaml");
    for number in 0..largest {
        let crd = crd
            .replace(KIND, &number_name(KIND, number))
            .replace(&KIND.to_lowercase(), &number_name(KIND, number).to_lowercase());
        let crd: Value = serde_saphyr::from_str(&crd)?;
        stage.cluster.install_crd(&crd).await?;
    }
    for &subject in subjects {
        for &step in steps {
            print_progress(format!("{}: {step} at rest", subject.name()));
            let running = start_all(stage, subject, step).await?;
            // A measurement takes as long as it takes: nothing happens that could be awaited.
            tokio::time::sleep(SETTLE_TIME).await;
            let processes: Vec<&SubjectProcess> = running.iter().map(|running| &running.process).collect();
            let before = TotalUsage::read(&processes)?;
            tokio::time::sleep(REST_TIME).await;
            let after = TotalUsage::read(&processes)?;
            for bench in &stage.benches {
                let report = SubjectReport { bench, subject };
                report.report_value(&format!("pss_{step}"), after.pss, "bytes");
                let per_hour = (after.cpu_seconds - before.cpu_seconds) * 3600.0 / REST_TIME.as_secs_f64();
                report.report_value(&format!("cpu_per_hour_{step}"), per_hour, "s");
            }
            for running in running {
                if subject.is_ostler() {
                    running.wait_unloaded(stage.limit).await?;
                    let pss = TotalUsage::read(&[&running.process])?.pss;
                    for bench in &stage.benches {
                        let report = SubjectReport { bench, subject };
                        report.report_value(&format!("pss_unloaded_{step}"), pss, "bytes");
                    }
                }
                running.process.terminate().await?;
            }
            // A hundred components in Python take gigabytes.
            if subject.is_ostler() {
                fs::remove_dir_all(step_folder(stage, subject, step)).context("removing the components")?;
            }
        }
        // So does their code, which all steps share.
        if subject.is_ostler() {
            fs::remove_dir_all(stage.compiled_folder()).context("removing the compiled code")?;
        }
    }
    Ok(())
}

/// Returns the folder of a host with this number of plugins.
fn step_folder(stage: &SceneStage, subject: BenchSubject, count: usize) -> PathBuf {
    stage.folder.join(format!("density-{}-{count}", subject.name()))
}

/// Starts one host with this number of plugins, or this number of operators.
async fn start_all(stage: &SceneStage, subject: BenchSubject, count: usize) -> Result<Vec<RunningSubject>> {
    if subject.is_ostler() {
        let component = stage.programs.require_component(subject)?;
        let folder = step_folder(stage, subject, count);
        let (components, grants) = write_copies(component, &folder, count)?;
        let start = async || {
            RunningSubject::start_plugins(stage, subject, &folder, (&components, &grants), UNLOAD_AFTER).await
        };
        // The first start compiles the components, which a deployment does once.
        start().await?.process.terminate().await?;
        return Ok(vec![start().await?]);
    }
    let mut running = Vec::new();
    for number in 0..count {
        running.push(RunningSubject::start_beside(stage, subject, number).await?);
    }
    Ok(running)
}

/// Puts a number in place of the last three characters of a name, so that it takes as many bytes.
fn number_name(name: &str, number: usize) -> String {
    let kept = &name[..name.len() - 3];
    format!("{kept}{number:03}")
}

/// Writes copies of a component, each a plugin with a name and a kind of its own. Returns them and their grants.
fn write_copies(component: &Path, folder: &Path, count: usize) -> Result<(Vec<PathBuf>, PathBuf)> {
    let components = folder.join("components");
    fs::create_dir_all(&components)?;
    let original = fs::read(component).with_context(|| format!("reading {}", component.display()))?;
    let (mut paths, mut grants) = (Vec::new(), "plugins:\n".to_owned());
    for number in 0..count {
        let (name, kind) = (number_name(PLUGIN_NAME, number), number_name(KIND, number));
        let mut copy = original.clone();
        replace_all(&mut copy, PLUGIN_NAME.as_bytes(), name.as_bytes());
        replace_all(&mut copy, KIND.as_bytes(), kind.as_bytes());
        let path = components.join(format!("{name}.wasm"));
        fs::write(&path, copy)?;
        paths.push(path);
        grants += &format!(
            "  {name}:\n    reconciles:\n    - {{group: bench.ostler.dev, kinds: [{kind}]}}\n    kubernetes:\n    \
             - {{kinds: [ConfigMap], verbs: [get, apply]}}\n"
        );
    }
    let file = folder.join("grants.yaml");
    fs::write(&file, grants)?;
    Ok((paths, file))
}

/// Replaces a text by one of the same length.
fn replace_all(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let mut at = 0;
    while at + from.len() <= bytes.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            at += to.len();
        } else {
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_names_of_the_same_length() {
        assert_eq!(
            (number_name(PLUGIN_NAME, 7).len(), number_name(KIND, 99).len()),
            (PLUGIN_NAME.len(), KIND.len())
        );
        let mut bytes = *b"a Sample, Samples, Samp";
        replace_all(&mut bytes, b"Sample", number_name(KIND, 12).as_bytes());
        assert_eq!(&bytes, b"a Sam012, Sam012s, Samp");
    }
}
