//! Results of the tests: what libtest prints, summed over all executables and repetitions.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result};
use serde_json::json;

use crate::paths;

/// Number of lines repeated from the panic of a failed test on, and from the end of its output.
const EXCERPT_LINES: usize = 10;
/// Maximum number of characters of a panic's message in the last lines.
const MAX_SUMMARY_LENGTH: usize = 300;

/// Results of one executable, from the lines of libtest.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// Number of tests that passed.
    pub passed: u64,
    /// Tests that failed, in the order in which their output is printed.
    pub failures: Vec<TestOutput>,
    /// True after the line with the totals, which an executable that crashes does not print.
    pub is_complete: bool,
    section: Section,
}

/// Part of the output of libtest.
#[derive(Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Progress,
    /// Output of the last failure.
    Output,
    /// Names of all failures. With `--nocapture` there is no output of them.
    Failures,
}

/// Name and output of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestOutput {
    /// Name of the test.
    pub test: String,
    /// Its output.
    pub lines: Vec<String>,
}

impl TestOutput {
    /// Returns its name with the first line of the panic's message, or of its output if it has not panicked.
    fn summary(&self) -> String {
        let panicked = self.lines.iter().position(|line| line.contains("panicked at"));
        match self.lines.get(panicked.map_or(0, |index| index + 1)) {
            None => self.test.clone(),
            Some(message) => {
                let shortened: String = message.chars().take(MAX_SUMMARY_LENGTH).collect();
                format!("{}: {shortened}", self.test)
            }
        }
    }

    /// Returns the lines from its panic on, and its last ones.
    fn excerpt(&self) -> Vec<String> {
        let lines = &self.lines;
        let panicked = lines.iter().position(|l| l.contains("panicked at")).unwrap_or(0);
        let end = lines.len().min(panicked + EXCERPT_LINES);
        let last = end.max(lines.len().saturating_sub(EXCERPT_LINES));
        let mut excerpt = lines[panicked..end].to_vec();
        if last > end {
            excerpt.push("…".to_owned());
        }
        excerpt.extend_from_slice(&lines[last..]);
        excerpt
    }
}

impl Results {
    /// Adds a line of libtest.
    pub fn add_line(&mut self, line: &str) {
        let header = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" ----"));
        if let Some((test, "stdout")) = header.and_then(|header| header.rsplit_once(' ')) {
            self.add_failure(test);
            self.section = Section::Output;
        } else if let Some(totals) = line.strip_prefix("test result: ") {
            self.section = Section::Progress;
            self.is_complete = true;
            self.passed += count_of(totals, "passed");
        } else if line == "failures:" {
            self.section = Section::Failures;
        } else if line == "successes:" {
            self.section = Section::Progress;
        } else if self.section == Section::Failures {
            if let Some(test) = line.strip_prefix("    ")
                && self.failures.iter().all(|failed| failed.test != test)
            {
                self.add_failure(test);
            }
        } else if let (Section::Output, Some(output)) = (&self.section, self.failures.last_mut()) {
            output.lines.push(line.to_owned());
        }
    }

    fn add_failure(&mut self, test: &str) {
        self.failures.push(TestOutput {
            test: test.to_owned(),
            lines: Vec::new(),
        });
    }
}

/// Finds a count in the rest of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn count_of(totals: &str, what: &str) -> u64 {
    let counts = totals.split_once(". ").map_or(totals, |(_, counts)| counts);
    let mut counts = counts.split("; ").filter_map(|count| count.split_once(' '));
    let found = counts.find(|(_, word)| *word == what);
    found.map_or(0, |(n, _)| n.parse().unwrap_or(0))
}

/// A test that failed and passed when it ran again.
#[derive(Debug, PartialEq, Eq)]
struct Flaky {
    failed: TestOutput,
    passed: Vec<String>,
}

/// Results of the whole suite.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SuiteReport {
    passed: u64,
    failed: Vec<TestOutput>,
    flaky: Vec<Flaky>,
    omissions: Vec<String>,
}

impl SuiteReport {
    /// Adds tests that passed.
    pub fn add_passed(&mut self, count: u64) {
        self.passed += count;
    }

    /// Adds a test that failed.
    pub fn add_failure(&mut self, output: TestOutput) {
        self.failed.push(output);
    }

    /// Adds a test that failed, and passed when it ran again, alone.
    pub fn add_flaky(&mut self, failed: TestOutput, passed: Vec<String>) {
        self.flaky.push(Flaky { failed, passed });
    }

    /// Adds a reason why tests did not run.
    pub fn add_omission(&mut self, reason: String) {
        self.omissions.push(reason);
    }

    /// Returns how many tests failed, those that passed when they ran again not counted.
    pub fn failure_count(&self) -> usize {
        self.failed.len()
    }

    /// Returns whether no test failed.
    pub fn is_success(&self) -> bool {
        self.failed.is_empty()
    }

    /// Returns the last lines of the command: an excerpt of each failure, because thousands of lines follow it, and the totals.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for flaky in &self.flaky {
            lines.push(format!("---- {}: failed ----", flaky.failed.test));
            lines.extend(flaky.failed.excerpt());
            lines.push(format!("---- {}: passed alone ----", flaky.failed.test));
            let from = flaky.passed.len().saturating_sub(EXCERPT_LINES);
            lines.extend_from_slice(&flaky.passed[from..]);
        }
        for failed in &self.failed {
            lines.push(format!("---- {} ----", failed.test));
            lines.extend(failed.excerpt());
        }
        let summaries = |outputs: &mut dyn Iterator<Item = &TestOutput>| -> BTreeSet<_> {
            outputs.map(TestOutput::summary).collect()
        };
        for reason in &self.omissions {
            lines.push(format!("not run: {reason}"));
        }
        for summary in summaries(&mut self.flaky.iter().map(|flaky| &flaky.failed)) {
            lines.push(format!("flaky: {summary}"));
        }
        for summary in summaries(&mut self.failed.iter()) {
            lines.push(format!("failed: {summary}"));
        }
        lines.push(self.summary());
        lines
    }

    fn summary(&self) -> String {
        let mut summary = format!("{} passed, {} failed", self.passed, self.failed.len());
        if !self.flaky.is_empty() {
            summary.push_str(&format!(", {} flaky", self.flaky.len()));
        }
        summary
    }

    /// Writes the flaky tests with both outputs. The file is an empty list without any.
    pub fn write_flaky(&self, path: &Path) -> Result<()> {
        let tests: Vec<_> = self
            .flaky
            .iter()
            .map(|flaky| {
                json!({"test": flaky.failed.test, "failed": flaky.failed.lines, "passed": flaky.passed})
            })
            .collect();
        paths::replace_file(path, &serde_json::to_vec_pretty(&tests)?)
            .with_context(|| path.display().to_string())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Results {
        let mut results = Results::default();
        for line in lines {
            results.add_line(line);
        }
        results
    }

    #[test]
    fn result_line_completes_the_counts() {
        let results = read(&[
            "running 2 tests",
            "test a ... ok",
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.01s",
        ]);
        assert_eq!((results.passed, results.is_complete), (12, true));
        assert!(!read(&["running 2 tests", "test a ... ok"]).is_complete);
    }

    #[test]
    fn output_of_a_failed_test_is_kept() {
        let results = read(&[
            "running 2 tests",
            "test x::real ... FAILED",
            "",
            "failures:",
            "",
            "---- x::real stdout ----",
            "noise",
            "thread 'x::real' panicked at a.rs:1:1:",
            "no",
            "failures:",
            "    x::real",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ]);
        let output = TestOutput {
            test: "x::real".into(),
            lines: ["noise", "thread 'x::real' panicked at a.rs:1:1:", "no"]
                .map(str::to_owned)
                .into(),
        };
        assert_eq!((results.passed, results.failures), (1, vec![output]));
    }

    #[test]
    fn test_that_fails_without_captured_output_is_named() {
        let results = read(&[
            "running 1 test",
            "test x::real ... FAILED",
            "",
            "failures:",
            "",
            "failures:",
            "    x::real",
            "",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ]);
        let names: Vec<_> = results.failures.iter().map(|failed| &*failed.test).collect();
        assert_eq!(names, ["x::real"]);
    }

    fn long_output(test: &str) -> TestOutput {
        let noise = (0..100).map(|n| format!("noise {n}"));
        let end = ["thread 'x' panicked at a.rs:1:1:", "no"].map(str::to_owned);
        TestOutput {
            test: test.into(),
            lines: noise.chain(end).collect(),
        }
    }

    #[test]
    fn flaky_and_failed_tests_are_named_before_the_totals() {
        let mut report = SuiteReport::default();
        report.add_passed(7);
        report.add_omission("node: it needs root".into());
        report.add_flaky(long_output("a"), vec!["calm".into()]);
        report.add_failure(long_output("b"));
        let panicked = "thread 'x' panicked at a.rs:1:1:";
        let expected = [
            "---- a: failed ----",
            panicked,
            "no",
            "---- a: passed alone ----",
            "calm",
            "---- b ----",
            panicked,
            "no",
            "not run: node: it needs root",
            "flaky: a: no",
            "failed: b: no",
            "7 passed, 1 failed, 1 flaky",
        ];
        assert_eq!(report.lines(), expected);
        assert!(!report.is_success());
    }

    #[test]
    fn flaky_tests_are_written_with_both_outputs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flaky.json");
        let mut report = SuiteReport::default();
        let read = || serde_json::from_slice::<serde_json::Value>(&std::fs::read(&path).unwrap()).unwrap();
        report.write_flaky(&path).unwrap();
        assert_eq!(read(), json!([]));
        let failed = TestOutput {
            test: "a".into(),
            lines: vec!["no".into()],
        };
        report.add_flaky(failed, vec!["calm".into()]);
        report.write_flaky(&path).unwrap();
        assert_eq!(
            read(),
            json!([{"test": "a", "failed": ["no"], "passed": ["calm"]}])
        );
        assert!(report.is_success());
    }
}
