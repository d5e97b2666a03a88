//! The shim as the init process of a container, in a PID namespace of its own.

mod support;

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, getuid, kill_process};
use support::{Pod, ShimProcess, await_true, shim};

/// Starts the shim as process 1.
fn start_as_init(command: &str, config: &impl serde::Serialize) -> Child {
    let mut unshare = Command::new("unshare");
    if !getuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc", shim(), command]);
    unshare.arg(serde_json::to_string(config).expect("JSON"));
    unshare.stdout(Stdio::piped()).spawn().expect("starts")
}

/// The init process of the namespace, once it is the shim.
fn find_init(unshare: &Child) -> Pid {
    let id = unshare.id();
    let mut found = None;
    await_true("the init process starts", || {
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let pid = children.split_whitespace().next().unwrap_or_default();
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.starts_with("steps-shim") {
            found = pid.parse().ok().and_then(Pid::from_raw);
        }
        found.is_some()
    });
    found.expect("is found")
}

/// The kernel does not deliver signals that an init process does not handle.
#[test]
fn sigterm_ends_an_init_process_that_fetches() {
    let pod = Pod::new();
    let mut running = ShimProcess(start_as_init("fetch", &pod.fetch_config(100)));
    let init = find_init(&running.0);
    let started = Instant::now();
    // It is sent again: the handler may not be there yet.
    await_true("the fetcher ends", || {
        let _ = kill_process(init, Signal::TERM);
        running.0.try_wait().expect("its status").is_some()
    });
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn orphans_are_reaped_and_processes_of_other_sessions_are_ended() {
    let pod = Pod::new();
    // The first child leaves an orphan that ends at once; the second leaves the group, and goes on writing.
    let script = "(sh -c 'exit 0' &); (setsid sh -c 'while true; do echo late >> late; sleep 0.01; done' &); \
                  while [ ! -e late ]; do sleep 0.01; done; exit 5";
    let mut config = pod.script(script);
    config.outputs = vec![pod.output()];
    let mut running = ShimProcess(start_as_init("run", &config));
    running.0.wait().expect("ends");
    let report = pod.report();
    assert_eq!((report.exit_code, report.artifacts.len()), (Some(5), 1));
    // The archive is equal to the directory: there was no writer any more.
    let length = fs::metadata(pod.path("out/late")).expect("is there").len();
    let consumer = Pod::new();
    let (_streamer, address) = pod.serve("uid-1");
    consumer.set_source(&support::source("uid-1", address, &report));
    let fetched = consumer.command("fetch", &consumer.fetch_config(30)).status();
    assert!(fetched.expect("runs").success());
    assert_eq!(
        fs::metadata(consumer.path("in/late")).expect("is there").len(),
        length
    );
}
