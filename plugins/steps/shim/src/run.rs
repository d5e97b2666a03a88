//! The entry point of the process's container.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use steps_protocol::{ContainerReport, ErrorReason, ReportError, RunConfig};

use crate::{files::fetched_path, memory, pack, process, signature::now, tail::Tail};

/// Time that inputs have to appear. The init container has unpacked them before, so this is for slow volumes only.
const INPUTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which missing inputs are looked for.
const INPUTS_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the process and packs its outputs, also those of a process that failed.
pub fn run(config: &RunConfig) -> ContainerReport {
    if let Err(message) = await_inputs(config) {
        return ContainerReport::of_error(ErrorReason::InputMissing, message);
    }
    let tail = Tail::new(config.log_tail_bytes);
    let oom_kills = memory::count_oom_kills();
    let start_time = Some(now());
    let ended = match process::run(config, &tail) {
        Ok(ended) => ended,
        Err((reason, message)) => return ContainerReport::of_error(reason, message),
    };
    let mut report = ContainerReport {
        exit_code: Some(ended.exit_code),
        signal: ended.signal,
        timed_out: ended.timed_out,
        stopped: ended.stopped,
        oom_killed: memory::count_oom_kills() > oom_kills,
        start_time,
        end_time: Some(now()),
        ..ContainerReport::default()
    };
    for output in &config.outputs {
        match pack::pack(&config.root, output) {
            Ok(artifact) => report.artifacts.push(artifact),
            Err(error) => {
                let message = format!(
                    "Output {} cannot be packed from {}: {error}.",
                    output.name, output.path
                );
                report.error = Some(ReportError {
                    reason: ErrorReason::OutputNotPacked,
                    message,
                });
            }
        }
    }
    report.log = tail.text();
    report
}

fn await_inputs(config: &RunConfig) -> Result<(), String> {
    let deadline = Instant::now() + INPUTS_TIMEOUT;
    for input in &config.inputs {
        let path = fetched_path(&config.root, input);
        while !Path::new(&path).exists() {
            if Instant::now() > deadline {
                return Err(format!(
                    "Input {input} has not been unpacked by the init container."
                ));
            }
            thread::sleep(INPUTS_INTERVAL);
        }
    }
    Ok(())
}
