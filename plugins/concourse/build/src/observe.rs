//! A build as Concourse shows it, as its object does.

use concourse_api::{BuildInput, BuildOutput, BuildStatus, version};
use ostler_sdk::{Condition, rfc3339, serde_json::Value};

/// Bytes of a log that go into a status.
const TAIL: usize = 4096;

/// Takes over what Concourse says of a build.
pub fn describe(build: &Value, status: &mut BuildStatus) {
    let text = |field: &str| build[field].as_str().map(ToOwned::to_owned);
    let time = |field: &str| build[field].as_u64().filter(|seconds| *seconds > 0);
    let (start, end) = (time("start_time"), time("end_time"));
    status.build_id = build["id"].as_i64();
    status.build_name = text("name");
    status.concourse_status = text("status");
    status.start_time = start.map(rfc3339);
    status.end_time = end.map(rfc3339);
    status.duration = start
        .zip(end)
        .map(|(start, end)| duration(end.saturating_sub(start)));
    status.api_url = text("api_url");
    status.created_by = text("created_by");
    status.comment = text("comment").filter(|comment| !comment.is_empty());
    status.rerun_of = build["rerun_of"]["name"].as_str().map(ToOwned::to_owned);
}

/// Takes over what Concourse says of its inputs and outputs.
pub fn resources(found: &Value, status: &mut BuildStatus) {
    let list = |field: &str| found[field].as_array().into_iter().flatten();
    let name = |one: &Value| one["name"].as_str().unwrap_or_default().to_owned();
    status.inputs = list("inputs")
        .map(|input| BuildInput {
            name: name(input),
            version: version(&input["version"]),
            first_occurrence: input["first_occurrence"].as_bool(),
        })
        .collect();
    status.outputs = list("outputs")
        .map(|output| BuildOutput {
            name: name(output),
            version: version(&output["version"]),
        })
        .collect();
}

/// `1h2m3s`, without what is zero in front.
fn duration(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    for (number, unit) in [(hours, "h"), (minutes, "m"), (rest, "s")] {
        if number > 0 || !text.is_empty() || unit == "s" {
            text.push_str(&number.to_string());
            text.push_str(unit);
        }
    }
    text
}

/// Whether the build has finished, and how.
pub fn complete(status: &BuildStatus) -> Condition {
    const TYPE: &str = "Complete";
    let name = ["Build ", status.build_name.as_deref().unwrap_or("?")].concat();
    let (reason, what) = match status.concourse_status.as_deref() {
        Some("succeeded") => ("Succeeded", " succeeded."),
        Some("failed") => ("Failed", " failed."),
        Some("errored") => ("Errored", " errored."),
        Some("aborted") => ("Aborted", " was aborted."),
        Some("started") => {
            let message = [&name, " is running."].concat();
            return Condition::new_false(TYPE, "InProgress", message);
        }
        _ => {
            let message = [&name, " has not started yet."].concat();
            return Condition::new_unknown(TYPE, "Pending", message);
        }
    };
    Condition::new_true(TYPE, reason, [&name, what].concat())
}

/// The last lines of what these events (their data) wrote.
pub fn log_tail<'a>(events: impl Iterator<Item = &'a Value>, lines: usize) -> String {
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
    let mut start = log.len().saturating_sub(TAIL);
    while !log.is_char_boundary(start) {
        start += 1;
    }
    // Tasks write to a terminal.
    let line = |line: &'_ str| line.trim_end_matches('\r').len();
    let mut tail: Vec<&str> = log[start..]
        .rsplit('\n')
        .take(lines)
        .map(|text| &text[..line(text)])
        .collect();
    tail.reverse();
    tail.join("\n")
}

#[cfg(test)]
mod tests {
    use ostler_sdk::serde_json::json;

    use super::*;

    #[test]
    fn durations() {
        let all = [0, 59, 60, 3599, 3600, 90_061].map(duration);
        assert_eq!(all, ["0s", "59s", "1m0s", "59m59s", "1h0m0s", "25h1m1s"]);
    }

    #[test]
    fn the_tail_is_whole_lines_and_bounded() {
        let log = |text: &str| json!({"event": "log", "data": {"payload": text}});
        let error = json!({"event": "error", "data": {"message": "no such file"}});
        let events = [log("one\r\ntw"), log("o\r\nthree"), error];
        assert_eq!(log_tail(events.iter(), 3), "two\nthree\nno such file");
        assert_eq!(log_tail(events.iter(), 1), "no such file");
        assert_eq!(log_tail([].iter(), 5), "");
        let long = log(&"é".repeat(10_000));
        let tail = log_tail([long].iter(), 5);
        assert!(tail.len() <= TAIL && tail.starts_with('é'));
    }
}
