//! The benchmark: several operators do the same work on the real control plane, in one run.

mod build;
mod devops;
mod plan;
mod plot;
mod report;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use clap::{Args, builder::PossibleValuesParser};

use self::{
    build::BuiltPrograms,
    plan::{DriverRun, Size, plan_runs},
    report::BenchReport,
};
use crate::{
    control_plane::{self, ControlPlane},
    paths,
    process::{Child, check_interrupt},
    progress::{BuildStep, print_result, print_status},
};

/// Options of the benchmark.
#[derive(Args)]
pub struct BenchOptions {
    /// Benches to run (default: all that compare operators): converge-1k, converge-10k, noop-10k, cache-100k, fanout-1k,
    /// failover, growth, density, concourse; and of the DevOps pack alone: heartbeats, devops-idle.
    #[arg(value_parser = bench_names())]
    benches: Vec<String>,
    /// Subject to measure (default: all). Can be given more than once.
    #[arg(long = "subject", value_parser = plan::SUBJECT_NAMES)]
    subjects: Vec<String>,
    /// Use a tenth of the objects, to check that everything works.
    #[arg(long)]
    quick: bool,
    /// Write the measured sections of docs/benchmarks.md and their plots. A complete run at full size always writes the
    /// whole page.
    #[arg(long)]
    docs: bool,
    /// Run nothing, and show the last report as ratios to this one, which was copied from target/bench/report.json before.
    #[arg(long, value_name = "FILE", exclusive = true)]
    compare: Option<PathBuf>,
    /// Seconds under load (heartbeats, default 120), or without work if devops-idle is among the benches (default 600).
    #[arg(long)]
    window: Option<u64>,
    /// Binary of the host that is measured, instead of that of the image.
    #[arg(long)]
    host: Option<PathBuf>,
}

fn bench_names() -> PossibleValuesParser {
    let names = plan::BENCH_NAMES.iter().chain(&devops::DEVOPS_BENCH_NAMES);
    PossibleValuesParser::new(names.copied())
}

/// Builds the operators, runs the benches and writes the report.
pub fn run_bench(options: &BenchOptions) -> Result<ExitCode> {
    if let Some(before) = &options.compare {
        let last = paths::target_dir().join("bench/report.json");
        let compared = BenchReport::read_json(&last)?.compare_to(&BenchReport::read_json(before)?);
        print_result(&compared);
        return Ok(ExitCode::SUCCESS);
    }
    let of_pack = |name: &&str| options.benches.iter().any(|bench| bench == name);
    let of_pack: Vec<_> = devops::DEVOPS_BENCH_NAMES.into_iter().filter(of_pack).collect();
    if !of_pack.is_empty() {
        if of_pack.len() < options.benches.len() {
            bail!(
                "the benches of the DevOps pack run on their own: {}",
                of_pack.join(", ")
            );
        }
        return devops::run(&of_pack, options);
    }
    let began = Instant::now();
    let size = if options.quick { Size::Quick } else { Size::Full };
    let runs = plan_runs(&options.benches, &options.subjects, size);
    if runs.is_empty() {
        bail!("none of these subjects takes part in these benches");
    }
    let programs = BuiltPrograms::build(&runs, options.host.as_deref())?;
    let control_plane = control_plane::build_binary()?;
    let folder = paths::create_target_subdir("bench")?;
    let logs = folder.join("logs");
    // Logs of an earlier run. It fails when there are none.
    let _ = fs::remove_dir_all(&logs);
    let mut report = BenchReport::new(options.quick);
    let mut failed = Vec::new();
    for run in &runs {
        check_interrupt()?;
        if let Err(e) = execute_run(run, &programs, &control_plane, &logs, &mut report) {
            check_interrupt()?;
            print_status(&format!("{}: {e:#}", run.title()));
            failed.push(run.title());
        }
        // After each run, so that an interrupted benchmark keeps its results.
        report.write_json(&folder.join("report.json"))?;
    }
    print_result(&report.markdown_tables());
    let whole = options.benches.is_empty() && options.subjects.is_empty() && !options.quick;
    if (whole && failed.is_empty()) || options.docs {
        report.write_docs(&paths::workspace_root().join("docs"), whole)?;
        print_result("docs/benchmarks.md is written");
    }
    print_result(&format!(
        "{} values in {} ({:.0} s)",
        report.len(),
        folder.join("report.json").display(),
        began.elapsed().as_secs_f64()
    ));
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    print_result(&format!("failed: {}", failed.join(", ")));
    Ok(ExitCode::FAILURE)
}

/// Runs benches of a tenth of their size with an instrumented host, whose processes write counts to files of this pattern.
pub fn train_host(benches: &[&str], host: &Path, counts: &Path) -> Result<()> {
    let benches: Vec<String> = benches.iter().map(|&name| name.to_owned()).collect();
    let runs = plan_runs(&benches, &["ostler".to_owned()], Size::Quick);
    let mut programs = BuiltPrograms::build(&runs, Some(host))?;
    programs
        .environment
        .push(("LLVM_PROFILE_FILE", counts.to_owned()));
    let control_plane = control_plane::build_binary()?;
    let logs = paths::create_target_subdir("bench")?.join("training-logs");
    for run in &runs {
        check_interrupt()?;
        execute_run(run, &programs, &control_plane, &logs, &mut BenchReport::new(true))?;
    }
    Ok(())
}

/// Executes one run of the driver on a control plane of its own, so that no state of an earlier run is left.
fn execute_run(
    run: &DriverRun,
    programs: &BuiltPrograms,
    control_plane: &Path,
    logs: &Path,
    report: &mut BenchReport,
) -> Result<()> {
    let running = ControlPlane::start(control_plane)?;
    let step = BuildStep::new(run.title());
    let mut command = Command::new(&programs.driver);
    command
        .args(run.driver_arguments())
        .args(&programs.arguments)
        .envs(programs.environment.iter().map(|(name, value)| (name, value)))
        .arg("--kubeconfig")
        .arg(running.kubeconfig())
        .arg("--folder")
        .arg(logs.join(run.title().replace(' ', "-")))
        // Errors of the driver name their cause; a backtrace adds nothing.
        .env("RUST_LIB_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut driver = Child::spawn("bench-driver", command)?;
    let stdout = BufReader::new(driver.stdout.take().context("piped")?);
    let stderr = BufReader::new(driver.stderr.take().context("piped")?);
    let last = thread::scope(|scope| {
        let last = scope.spawn(|| {
            let mut last = String::new();
            for line in stderr.lines().map_while(Result::ok) {
                step.set_status(line.clone());
                if line.starts_with("Error") || last.starts_with("Error") {
                    last = format!("{last}\n{line}").trim().to_owned();
                }
            }
            last
        });
        for line in stdout.lines().map_while(Result::ok) {
            report.add_line(&line)?;
        }
        anyhow::Ok(last.join().unwrap_or_default())
    })?;
    let status = driver.wait()?;
    check_interrupt()?;
    if !status.success() {
        bail!("{last}");
    }
    step.finish("");
    Ok(())
}
