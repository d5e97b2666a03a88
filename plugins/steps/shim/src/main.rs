//! The shim in the pods of Steps. It runs as the entry point of the process's container (`run`), as the init container that
//! fetches inputs (`fetch`) or only copies the shim (`install`), and as the streamer of the outputs (`serve`).
//!
//! The configuration is one JSON argument. The result is the termination message, which the kubelet reports.

mod client;
mod fetch;
mod files;
mod install;
mod memory;
mod pack;
mod process;
mod run;
mod serve;
mod signature;
mod tail;
mod user;

use std::{
    env,
    error::Error,
    fs,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag::register_conditional_shutdown,
};
use steps_protocol::{ContainerReport, ErrorReason, FetchConfig, ROOT_PATH, RunConfig, ServeConfig};

/// Exit code for errors of the shim itself, as a shell has it for a command that it cannot run.
const SHIM_FAILED: u8 = 126;

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let config = args.next();
    match dispatch(&command, config.as_deref()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("shim {command}: {error}");
            ExitCode::from(SHIM_FAILED)
        }
    }
}

fn dispatch(command: &str, config: Option<&str>) -> Result<ExitCode, Box<dyn Error>> {
    let text = || config.ok_or("the configuration, one JSON argument, is missing");
    match command {
        "run" => {
            let config: RunConfig = serde_json::from_str(text()?)?;
            let report = run::run(&config);
            let code = report.exit_code.and_then(|code| u8::try_from(code).ok());
            write_report(&report, &config.termination_path)?;
            // A failure to pack is a failure of the step, though the process had none.
            let failed = code == Some(0) && report.error.is_some();
            Ok(ExitCode::from(code.filter(|_| !failed).unwrap_or(SHIM_FAILED)))
        }
        "fetch" => {
            let config: FetchConfig = serde_json::from_str(text()?)?;
            // An init process ignores the signals that it does not handle, and the pod would be killed after its grace period.
            for signal in [SIGTERM, SIGINT] {
                register_conditional_shutdown(signal, 128 + signal, Arc::new(AtomicBool::new(true)))?;
            }
            install::install(&config.root)?;
            finish(fetch::fetch(&config), &config.termination_path)
        }
        "install" => {
            install::install(config.unwrap_or(ROOT_PATH))?;
            Ok(ExitCode::SUCCESS)
        }
        "serve" => {
            let config: ServeConfig = serde_json::from_str(text()?)?;
            finish(serve::serve(&config), &config.termination_path)
        }
        _ => Err("the command is run, fetch, serve or install".into()),
    }
}

fn finish(
    result: Result<(), (ErrorReason, String)>,
    termination_path: &str,
) -> Result<ExitCode, Box<dyn Error>> {
    let Err((reason, message)) = result else {
        return Ok(ExitCode::SUCCESS);
    };
    write_report(&ContainerReport::of_error(reason, message), termination_path)?;
    Ok(ExitCode::from(SHIM_FAILED))
}

/// Writes the termination message. The error also goes to the log, for `kubectl logs`.
fn write_report(report: &ContainerReport, path: &str) -> Result<(), Box<dyn Error>> {
    if let Some(error) = &report.error {
        eprintln!("shim: {:?}: {}", error.reason, error.message);
    }
    fs::write(path, report.encode()).map_err(|error| format!("{path}: {error}").into())
}
