//! Results as JSON lines on stdout, and progress as lines on stderr.

use serde::Serialize;
use serde_json::json;

use crate::subject::BenchSubject;

/// Reports the results of one subject in one bench.
#[derive(Clone, Copy)]
pub struct SubjectReport<'a> {
    /// Name of the bench.
    pub bench: &'a str,
    /// Measured subject.
    pub subject: BenchSubject,
}

impl SubjectReport<'_> {
    /// Reports a measured value.
    pub fn report_value(self, metric: &str, value: impl Serialize, unit: &str) {
        let line = json!({"bench": self.bench, "subject": self.subject.name(), "metric": metric, "value": value, "unit": unit});
        println!("{line}");
    }

    /// Reports a remark, such as the reason for a missing value.
    pub fn report_note(self, note: &str) {
        println!(
            "{}",
            json!({"bench": self.bench, "subject": self.subject.name(), "note": note})
        );
    }
}

/// Prints a line of progress.
pub fn print_progress(line: impl AsRef<str>) {
    eprintln!("{}", line.as_ref());
}
