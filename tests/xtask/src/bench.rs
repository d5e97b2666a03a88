//! The bench: operators of several kinds do the same work on the real control plane, in one run.

mod build;
mod plan;
mod plot;
mod report;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use self::{
    build::Programs,
    plan::{Play, Size, plan},
    report::Report,
};
use crate::{
    control_plane::{self, ControlPlane},
    paths,
    process::{Child, check_interrupt},
    progress::{Step, print, say},
};

/// What to bench.
#[derive(Args)]
pub struct Options {
    /// Only these (all without any): converge-1k, converge-10k, noop-10k, cache-100k, fanout-1k, failover, growth, concourse.
    #[arg(value_parser = plan::BENCHES)]
    benches: Vec<String>,
    /// Only this one; may be given more than once.
    #[arg(long = "subject", value_parser = plan::SUBJECTS)]
    subjects: Vec<String>,
    /// A tenth of the objects, to see that everything works.
    #[arg(long)]
    quick: bool,
    /// Write the sections of docs/benchmarks.md and the plots; all of it when everything was run at full size, which
    /// does so anyway.
    #[arg(long)]
    docs: bool,
}

/// Builds everyone, lets them work, and reports.
pub fn run(options: &Options) -> Result<ExitCode> {
    let began = Instant::now();
    let size = if options.quick { Size::Quick } else { Size::Full };
    let plays = plan(&options.benches, &options.subjects, size);
    if plays.is_empty() {
        bail!("no such subject in these benches");
    }
    let programs = Programs::build(&plays)?;
    let control_plane = control_plane::build()?;
    let folder = paths::target("bench")?;
    let logs = folder.join("logs");
    // Of an earlier run; usually there is one.
    let _ = fs::remove_dir_all(&logs);
    let mut report = Report::new(options.quick);
    let mut failed = Vec::new();
    for play in &plays {
        check_interrupt()?;
        if let Err(e) = perform(play, &programs, &control_plane, &logs, &mut report) {
            check_interrupt()?;
            say(&format!("{}: {e:#}", play.title()));
            failed.push(play.title());
        }
        // After each: a run that is interrupted was not for nothing.
        report.write(&folder.join("report.json"))?;
    }
    print(&report.table());
    let whole = options.benches.is_empty() && options.subjects.is_empty() && !options.quick;
    if (whole && failed.is_empty()) || options.docs {
        report.write_docs(&paths::root().join("docs"), whole)?;
        print("docs/benchmarks.md is written");
    }
    print(&format!(
        "{} values in {} ({:.0} s)",
        report.len(),
        folder.join("report.json").display(),
        began.elapsed().as_secs_f64()
    ));
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!("failed: {}", failed.join(", ")));
    Ok(ExitCode::FAILURE)
}

/// Plays one scene, on a control plane of its own: nothing is left of the one before.
fn perform(
    play: &Play,
    programs: &Programs,
    control_plane: &Path,
    logs: &Path,
    report: &mut Report,
) -> Result<()> {
    let running = ControlPlane::start(control_plane)?;
    let step = Step::new(play.title());
    let mut command = Command::new(&programs.driver);
    command
        .args(play.arguments())
        .args(&programs.arguments)
        .arg("--kubeconfig")
        .arg(running.kubeconfig())
        .arg("--folder")
        .arg(logs.join(play.title().replace(' ', "-")))
        // Its errors say where; a trace of the driver itself tells nothing more.
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
                step.at(line.clone());
                if line.starts_with("Error") || last.starts_with("Error") {
                    last = format!("{last}\n{line}").trim().to_owned();
                }
            }
            last
        });
        for line in stdout.lines().map_while(Result::ok) {
            report.take(&line)?;
        }
        anyhow::Ok(last.join().unwrap_or_default())
    })?;
    let status = driver.wait()?;
    check_interrupt()?;
    if !status.success() {
        bail!("{last}");
    }
    step.done("");
    Ok(())
}
