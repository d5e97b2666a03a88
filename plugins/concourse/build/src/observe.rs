//! Status and conditions of a build, as Concourse shows it.

use concourse_api::{BuildInput, BuildOutput, BuildStatus, rest};
use ostler_sdk::{Condition, rfc3339, serde_json::Value};

/// Bytes of a log that a status may contain.
const MAX_LOG_TAIL_BYTES: usize = 4096;

/// Updates the status with what Concourse shows of the build.
pub fn update_from_build(status: &mut BuildStatus, build: &rest::BuildResponse) {
    let (start, end) = (non_zero(build.start_time), non_zero(build.end_time));
    status.build_id = Some(build.id);
    status.build_name.clone_from(&build.name);
    status.concourse_status.clone_from(&build.status);
    status.start_time = start.map(rfc3339);
    status.end_time = end.map(rfc3339);
    status.duration = start
        .zip(end)
        .map(|(start, end)| format_duration(end.saturating_sub(start)));
    status.api_url.clone_from(&build.api_url);
    status.created_by.clone_from(&build.created_by);
    status.comment = build.comment.clone().filter(|comment| !comment.is_empty());
    status.rerun_of = build.rerun_of.as_ref().map(|rerun| rerun.name.clone());
}

fn non_zero(seconds: Option<u64>) -> Option<u64> {
    seconds.filter(|seconds| *seconds > 0)
}

/// Updates the status with the inputs and outputs of the build.
pub fn update_from_resources(status: &mut BuildStatus, resources: rest::BuildResources) {
    let inputs = resources.inputs.into_iter().map(|input| BuildInput {
        name: input.name,
        version: input.version,
        first_occurrence: input.first_occurrence,
    });
    let outputs = resources.outputs.into_iter().map(|output| BuildOutput {
        name: output.name,
        version: output.version,
    });
    status.inputs = inputs.collect();
    status.outputs = outputs.collect();
}

/// A duration as `1h2m3s`, without leading units that are zero.
fn format_duration(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// The condition `Complete`.
pub fn complete_condition(status: &BuildStatus) -> Condition {
    const CONDITION_TYPE: &str = "Complete";
    let name = status.build_name.as_deref().unwrap_or("?");
    if status.build_id.is_none() && status.end_time.is_some() {
        let message = "Canceled before a build was triggered.";
        return Condition::new_true(CONDITION_TYPE, "Aborted", message);
    }
    match status.concourse_status.as_deref() {
        Some("succeeded") => {
            Condition::new_true(CONDITION_TYPE, "Succeeded", format!("Build {name} succeeded."))
        }
        Some("failed") => Condition::new_true(CONDITION_TYPE, "Failed", format!("Build {name} failed.")),
        Some("errored") => Condition::new_true(CONDITION_TYPE, "Errored", format!("Build {name} errored.")),
        Some("aborted") => {
            Condition::new_true(CONDITION_TYPE, "Aborted", format!("Build {name} was aborted."))
        }
        Some("started") => {
            Condition::new_false(CONDITION_TYPE, "InProgress", format!("Build {name} is running."))
        }
        _ => Condition::new_unknown(
            CONDITION_TYPE,
            "Pending",
            format!("Build {name} has not started yet."),
        ),
    }
}

/// The last lines of the log in the data of a build's events.
pub fn build_log_tail<'a>(events: impl Iterator<Item = &'a Value>, lines: usize) -> String {
    let mut log = String::new();
    for event in events {
        let data = &event["data"];
        let text = data["payload"].as_str().or(data["message"].as_str());
        if event["event"] == "error" && !log.is_empty() && !log.ends_with('\n') {
            log.push('\n');
        }
        log.push_str(text.unwrap_or_default());
    }
    let log = log.trim_end();
    let mut start = log.len().saturating_sub(MAX_LOG_TAIL_BYTES);
    while !log.is_char_boundary(start) {
        start += 1;
    }
    // Tasks write to a terminal, whose lines end with a carriage return and a line feed.
    let mut tail: Vec<&str> = log[start..]
        .rsplit('\n')
        .take(lines)
        .map(|line| line.trim_end_matches('\r'))
        .collect();
    tail.reverse();
    tail.join("\n")
}

#[cfg(test)]
mod tests {
    use ostler_sdk::serde_json::json;

    use super::*;

    #[test]
    fn format_duration_omits_leading_zero_units() {
        let all = [0, 59, 60, 3599, 3600, 90_061].map(format_duration);
        assert_eq!(all, ["0s", "59s", "1m0s", "59m59s", "1h0m0s", "25h1m1s"]);
    }

    #[test]
    fn build_log_tail_returns_whole_lines_within_the_limit() {
        let log = |text: &str| json!({"event": "log", "data": {"payload": text}});
        let error = json!({"event": "error", "data": {"message": "no such file"}});
        let events = [log("one\r\ntw"), log("o\r\nthree"), error];
        assert_eq!(build_log_tail(events.iter(), 3), "two\nthree\nno such file");
        assert_eq!(build_log_tail(events.iter(), 1), "no such file");
        assert_eq!(build_log_tail([].iter(), 5), "");
        let long = log(&"é".repeat(10_000));
        let tail = build_log_tail([long].iter(), 5);
        assert!(tail.len() <= MAX_LOG_TAIL_BYTES && tail.starts_with('é'));
    }
}
