//! An interpreter for task commands: the part of a shell that tests need.

use serde_json::Value;

/// Outcome of a task.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Output on the terminal.
    pub output: String,
    /// Exit status.
    pub status: i32,
    /// Seconds of sleep; each takes one step of the simulator's clock.
    pub seconds: u64,
}

/// Runs the `run` of a task config: `echo`, `sleep`, `exit` and `false`, alone or in a shell's `-c`. All other
/// commands succeed.
pub fn run_task(config: &Value) -> Outcome {
    let run = &config["run"];
    let path = run["path"].as_str().unwrap_or_default();
    let args: Vec<&str> = run["args"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut outcome = Outcome::default();
    let program = path.rsplit('/').next().unwrap_or_default();
    match (program, args.split_last()) {
        ("sh" | "bash" | "ash", Some((script, flags)))
            if flags.iter().any(|f| f.starts_with('-') && f.ends_with('c')) =>
        {
            run_script(script, &mut outcome);
        }
        _ => {
            run_command(program, &args, &mut outcome);
        }
    }
    outcome
}

fn run_script(script: &str, outcome: &mut Outcome) {
    for line in script.split([';', '\n']) {
        for part in line.split("&&") {
            let mut words = part.split_whitespace().map(|w| w.trim_matches(['"', '\'']));
            let Some(program) = words.next() else { continue };
            if !run_command(program, &words.collect::<Vec<_>>(), outcome) {
                return;
            }
            if outcome.status != 0 {
                break;
            }
        }
    }
}

/// Runs one command. Returns false when it ends the shell.
fn run_command(program: &str, args: &[&str], outcome: &mut Outcome) -> bool {
    outcome.status = 0;
    let number = args.first().and_then(|n| n.parse::<i32>().ok());
    match program {
        "echo" => {
            outcome.output.push_str(&args.join(" "));
            // A task has a terminal, which adds the carriage return.
            outcome.output.push_str("\r\n");
        }
        "sleep" => {
            outcome.seconds = outcome
                .seconds
                .saturating_add(number.unwrap_or(1).unsigned_abs().into())
        }
        "false" => outcome.status = 1,
        "exit" => {
            outcome.status = number.unwrap_or(0);
            return false;
        }
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run_shell(text: &str) -> Outcome {
        run_task(&json!({"run": {"path": "/bin/sh", "args": ["-ec", text]}}))
    }

    #[test]
    fn script_output_status_and_sleep_are_computed() {
        assert_eq!(run_shell("echo hello world; true").output, "hello world\r\n");
        assert_eq!(
            run_shell("echo 'a'; exit 3; echo b"),
            Outcome {
                output: "a\r\n".into(),
                status: 3,
                seconds: 0
            }
        );
        assert_eq!(
            run_shell("false && echo no\nsleep 2"),
            Outcome {
                seconds: 2,
                ..Outcome::default()
            }
        );
        assert_eq!(run_shell("make && false").status, 1);
        assert_eq!(run_task(&json!({"run": {"path": "false"}})).status, 1);
        assert_eq!(
            run_task(&json!({"run": {"path": "sleep", "args": ["30"]}})).seconds,
            30
        );
        assert_eq!(run_task(&Value::Null), Outcome::default());
    }
}
