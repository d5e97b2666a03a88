//! What a task's command would do: enough of a shell for tests to say what they want to happen.

use serde_json::Value;

/// How a task went.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What it printed.
    pub output: String,
    /// Its exit status.
    pub status: i32,
    /// Seconds it slept; the simulator's clock takes one step for each.
    pub seconds: u64,
}

/// Runs a task config's `run`: `echo`, `sleep`, `exit`, `false`, in a shell's `-c` or alone; all else succeeds.
pub fn run(config: &Value) -> Outcome {
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
            shell(script, &mut outcome);
        }
        _ => {
            command(program, &args, &mut outcome);
        }
    }
    outcome
}

fn shell(script: &str, outcome: &mut Outcome) {
    for line in script.split([';', '\n']) {
        for part in line.split("&&") {
            let mut words = part.split_whitespace().map(|w| w.trim_matches(['"', '\'']));
            let Some(program) = words.next() else { continue };
            if !command(program, &words.collect::<Vec<_>>(), outcome) {
                return;
            }
            if outcome.status != 0 {
                break;
            }
        }
    }
}

/// Runs one command; false when the shell ends here.
fn command(program: &str, args: &[&str], outcome: &mut Outcome) -> bool {
    outcome.status = 0;
    let number = args.first().and_then(|n| n.parse::<i32>().ok());
    match program {
        "echo" => {
            outcome.output.push_str(&args.join(" "));
            // Tasks have a terminal.
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

    fn script(text: &str) -> Outcome {
        run(&json!({"run": {"path": "/bin/sh", "args": ["-ec", text]}}))
    }

    #[test]
    fn commands() {
        assert_eq!(script("echo hello world; true").output, "hello world\r\n");
        assert_eq!(
            script("echo 'a'; exit 3; echo b"),
            Outcome {
                output: "a\r\n".into(),
                status: 3,
                seconds: 0
            }
        );
        assert_eq!(
            script("false && echo no\nsleep 2"),
            Outcome {
                seconds: 2,
                ..Outcome::default()
            }
        );
        assert_eq!(script("make && false").status, 1);
        assert_eq!(run(&json!({"run": {"path": "false"}})).status, 1);
        assert_eq!(
            run(&json!({"run": {"path": "sleep", "args": ["30"]}})).seconds,
            30
        );
        assert_eq!(run(&Value::Null), Outcome::default());
    }
}
