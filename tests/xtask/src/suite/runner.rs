//! Runs of test executables, with a limit between two lines of their output.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    process::{Child, check_interrupt},
    progress::{print_result, print_status},
};

/// Timeout between two lines of test output. No single test takes as long.
const OUTPUT_TIMEOUT: Duration = Duration::from_mins(15);

/// Runs tests and passes their output on. `each` receives every line of stdout. Returns whether all passed.
pub fn run_tests(command: Command, each: impl FnMut(&str)) -> Result<bool> {
    run_tests_within(OUTPUT_TIMEOUT, command, each)
}

fn run_tests_within(timeout: Duration, mut command: Command, mut each: impl FnMut(&str)) -> Result<bool> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Child::spawn("the tests", command)?;
    let stderr = BufReader::new(child.stderr.take().context("piped")?);
    let stdout = BufReader::new(child.stdout.take().context("piped")?);
    // Neither thread is joined: a process that a test has left behind may keep the pipes open.
    std::thread::spawn(|| {
        for line in stderr.lines().map_while(Result::ok) {
            print_status(&line);
        }
    });
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let (mut last_output, mut slow) = (Instant::now(), BTreeSet::new());
    loop {
        match lines.recv_timeout(Duration::from_secs(1)) {
            Ok(line) => {
                last_output = Instant::now();
                track_slow_tests(&mut slow, &line);
                each(&line);
                print_result(&line);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if child.has_ended() => break,
            Err(mpsc::RecvTimeoutError::Timeout) if last_output.elapsed() > timeout => {
                let slow: Vec<_> = slow.into_iter().collect();
                bail!(
                    "the tests printed nothing for {} s and were terminated; not finished: {}",
                    timeout.as_secs(),
                    if slow.is_empty() {
                        "unknown".to_owned()
                    } else {
                        slow.join(", ")
                    }
                );
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
    let status = child.wait()?;
    check_interrupt()?;
    Ok(status.success())
}

/// Updates the set of slow tests from the runner's lines about tests that take long or end.
fn track_slow_tests(slow: &mut BTreeSet<String>, line: &str) {
    let Some(test) = line.strip_prefix("test ") else {
        return;
    };
    if let Some((name, _)) = test.split_once(" has been running for over ") {
        slow.insert(name.to_owned());
    } else if let Some((name, _)) = test.split_once(" ... ") {
        slow.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::shell_command;

    #[test]
    fn hanging_tests_are_terminated_and_named() {
        let messages = "echo 'test a has been running for over 60 seconds'; \
            echo 'test b has been running for over 60 seconds'; echo 'test a ... ok'; sleep 600";
        let error = run_tests_within(Duration::from_secs(2), shell_command(messages), |_| {}).unwrap_err();
        assert!(error.to_string().ends_with("not finished: b"), "{error}");
    }

    #[test]
    fn process_left_behind_by_a_test_does_not_block_the_run() {
        let (mut lines, began) = (Vec::new(), Instant::now());
        let passed = run_tests_within(
            Duration::from_secs(60),
            shell_command("echo one; setsid sleep 40 & exit 3"),
            |l| lines.push(l.to_owned()),
        );
        assert!(!passed.unwrap());
        assert_eq!(lines, ["one"]);
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
