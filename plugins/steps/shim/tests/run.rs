//! The entry point with real processes.

mod support;

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use steps_protocol::{ContainerReport, ErrorReason, MAX_REPORT_BYTES};
use support::{Pod, ShimProcess, await_true};

fn reason(report: &ContainerReport) -> Option<ErrorReason> {
    report.error.as_ref().map(|error| error.reason)
}

#[test]
fn process_that_succeeds_is_reported_with_its_log() {
    let pod = Pod::new();
    let (output, report) = pod.run(&pod.script("echo hello; echo problem >&2"));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"hello\n"[..], &b"problem\n"[..])
    );
    assert_eq!(
        (report.exit_code, report.signal, reason(&report)),
        (Some(0), None, None)
    );
    assert!(
        report.log.contains("hello\n") && report.log.contains("problem\n"),
        "{}",
        report.log
    );
    assert!(report.start_time <= report.end_time && report.start_time.is_some());
}

#[test]
fn exit_code_of_the_process_becomes_that_of_the_container() {
    let pod = Pod::new();
    let (output, report) = pod.run(&pod.script("exit 7"));
    assert_eq!((output.status.code(), report.exit_code), (Some(7), Some(7)));
    let (output, report) = pod.run(&pod.script("kill -SEGV $$"));
    assert_eq!(
        (output.status.code(), report.exit_code, report.signal),
        (Some(139), Some(139), Some(11))
    );
}

#[test]
fn long_log_is_passed_on_whole_and_reported_within_the_limit() {
    let pod = Pod::new();
    let mut config =
        pod.script("i=0; while [ $i -lt 2000 ]; do echo \"line $i of the log\"; i=$((i+1)); done");
    config.log_tail_bytes = 2048;
    let (output, report) = pod.run(&config);
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 2000);
    assert!(report.log.ends_with("line 1999 of the log\n"), "{}", report.log);
    assert_eq!(report.log.len(), 2048);
    let message = fs::read(pod.path("message")).expect("a message");
    assert!(message.len() <= MAX_REPORT_BYTES, "{}", message.len());
}

#[test]
fn sigterm_reaches_the_whole_group_and_ends_the_process() {
    let pod = Pod::new();
    let ready = pod.text("ready");
    // The shell waits for its child: a signal to the shell alone would end it only after the child.
    let script = format!("trap 'echo stopped; exit 3' TERM; sleep 600 & echo > {ready}; wait $!");
    let child = pod
        .command("run", &pod.script(&script))
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut running = ShimProcess(child);
    await_true("the process is ready", || pod.path("ready").exists());
    let pid = Pid::from_child(&running.0);
    kill_process(pid, Signal::TERM).expect("the signal is sent");
    let status = running.0.wait().expect("ends");
    let report = pod.report();
    assert_eq!((status.code(), report.exit_code), (Some(3), Some(3)));
    // Some shells report the end of their child, before or after.
    assert!(report.log.lines().any(|line| line == "stopped"), "{}", report.log);
    assert_eq!((report.timed_out, report.stopped), (false, true));
}

#[test]
fn timeout_ends_the_process_and_one_that_ignores_sigterm() {
    let pod = Pod::new();
    let mut config = pod.script("sleep 600");
    config.timeout_seconds = Some(1);
    let (output, report) = pod.run(&config);
    assert_eq!(
        (output.status.code(), report.signal, report.timed_out),
        (Some(143), Some(15), true)
    );
    assert!(!report.stopped);
    // The children inherit that the signal is ignored.
    let mut config = pod.script("trap '' TERM; echo deaf; sleep 600; sleep 600");
    (config.timeout_seconds, config.grace_seconds) = (Some(1), 1);
    let (output, report) = pod.run(&config);
    assert_eq!(
        (output.status.code(), report.signal, report.timed_out),
        (Some(137), Some(9), true)
    );
    assert_eq!(report.log, "deaf\n");
}

#[test]
fn children_that_are_left_behind_are_ended_and_do_not_delay_the_end() {
    let pod = Pod::new();
    let file = pod.text("pid");
    let (output, report) = pod.run(&pod.script(&format!("sleep 600 & echo $! > {file}; exit 0")));
    assert_eq!((output.status.code(), report.exit_code), (Some(0), Some(0)));
    let pid = fs::read_to_string(&file).expect("a pid");
    // It is a zombie at most until the init process reaps it.
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    };
    await_true("the child is ended", || state().is_none_or(|state| state == 'Z'));
}

#[test]
fn command_that_cannot_run_is_named() {
    let pod = Pod::new();
    let plain = pod.path("plain");
    fs::write(&plain, "no program").expect("a file");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).expect("a mode");
    let text = fs::write(pod.path("script"), "#!/no/such/interpreter\n");
    text.and_then(|()| fs::set_permissions(pod.path("script"), fs::Permissions::from_mode(0o755)))
        .expect("a file");
    for (path, expected) in [
        ("/no/such/command".to_owned(), ErrorReason::CommandNotFound),
        ("no-such-command".to_owned(), ErrorReason::CommandNotFound),
        (pod.text("script"), ErrorReason::CommandNotFound),
        (pod.text("plain"), ErrorReason::CommandNotExecutable),
    ] {
        let mut config = pod.script("");
        config.process.path = path.clone();
        let (output, report) = pod.run(&config);
        assert_eq!(
            (output.status.code(), reason(&report)),
            (Some(126), Some(expected)),
            "{path}"
        );
        assert_eq!(report.exit_code, None);
        assert!(report.error.expect("an error").message.contains(&path));
    }
}

#[test]
fn missing_directory_unknown_user_and_missing_input_are_named() {
    let pod = Pod::new();
    let mut config = pod.script("");
    config.process.dir = Some("/no/such/directory".into());
    assert_eq!(reason(&pod.run(&config).1), Some(ErrorReason::DirectoryNotFound));
    let mut config = pod.script("");
    config.process.user = Some("no-such-user".into());
    assert_eq!(reason(&pod.run(&config).1), Some(ErrorReason::UserNotUsable));
    let mut config = pod.script("echo ran");
    config.inputs = vec!["in".into()];
    let (output, report) = pod.run(&config);
    assert_eq!(
        (output.status.code(), reason(&report)),
        (Some(126), Some(ErrorReason::InputMissing))
    );
    assert!(!String::from_utf8_lossy(&output.stdout).contains("ran"));
}

#[test]
fn user_of_the_process_is_changed_where_the_container_may() {
    let pod = Pod::new();
    let mut config = pod.script("id -u; id -g");
    config.process.dir = None;
    config.process.user = Some("65532:65531".into());
    let (_, report) = pod.run(&config);
    if rustix::process::getuid().is_root() {
        assert_eq!(report.log, "65532\n65531\n");
    } else {
        assert_eq!(reason(&report), Some(ErrorReason::UserNotUsable));
    }
}

/// As the container of a user that `/etc/passwd` of the image does not list.
#[test]
fn user_without_a_home_gets_one_in_the_volume() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let pod = Pod::new();
    for path in [pod.path(""), pod.path("root"), pod.path("out")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("a mode");
    }
    let config = pod.script("echo kept > $HOME/file && echo $HOME");
    let run = |home: &str| {
        fs::remove_file(pod.path("message")).ok();
        let mut shim = pod.command("run", &config);
        shim.uid(65_532).gid(65_532).env("HOME", home);
        let output = shim.output().expect("runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let home = pod.path("root/home").display().to_string();
    assert_eq!(run("/"), (Some(0), format!("{home}\n")));
    // One that the image or the Step names stays.
    let own = pod.text("out");
    assert_eq!(run(&own), (Some(0), format!("{own}\n")));
}

/// As the container of a Step with `runAsUser: 0`, which has no capabilities by default.
#[test]
fn root_without_capabilities_is_told_which_user_to_set() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let pod = Pod::new();
    let mut config = pod.script("echo ran");
    config.process.user = Some("65532:65531".into());
    let shim = pod.command("run", &config);
    let output = Command::new("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(shim.get_program())
        .args(shim.get_args())
        .output()
        .expect("setpriv runs");
    assert_eq!(output.status.code(), Some(126));
    let error = pod.report().error.expect("an error");
    assert_eq!(error.reason, ErrorReason::UserNotUsable);
    assert!(
        error
            .message
            .contains("runAsUser to 65532 and runAsGroup to 65531"),
        "{}",
        error.message
    );
}

#[test]
fn outputs_are_packed_also_when_the_process_fails() {
    let pod = Pod::new();
    let mut config = pod.script("echo content > file; exit 1");
    config.outputs = vec![pod.output()];
    let (output, report) = pod.run(&config);
    assert_eq!((output.status.code(), report.exit_code), (Some(1), Some(1)));
    let artifact = &report.artifacts[0];
    assert!(
        artifact.digest.starts_with("sha256:") && artifact.digest.len() == 71,
        "{artifact:?}"
    );
    let packed = fs::metadata(pod.path("root/artifacts/out.tar.lz4")).expect("is packed");
    assert_eq!(packed.len(), artifact.bytes);
}

#[test]
fn output_that_cannot_be_packed_fails_the_step() {
    let pod = Pod::new();
    let mut config = pod.script("true");
    config.outputs = vec![pod.output()];
    config.outputs[0].path = "/no/such/output".into();
    let (output, report) = pod.run(&config);
    assert_eq!((output.status.code(), report.exit_code), (Some(126), Some(0)));
    assert_eq!(reason(&report), Some(ErrorReason::OutputNotPacked));
    assert!(
        report
            .error
            .expect("an error")
            .message
            .contains("/no/such/output")
    );
}
