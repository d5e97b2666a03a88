//! What was found, as JSON lines on stdout; what is going on, as lines on stderr.

use serde::Serialize;
use serde_json::json;

use crate::subject::Subject;

/// Tells the results of one subject in one bench.
#[derive(Clone, Copy)]
pub struct Report<'a> {
    /// The bench.
    pub bench: &'a str,
    /// The subject.
    pub subject: Subject,
}

impl Report<'_> {
    /// A measured value.
    pub fn value(self, metric: &str, value: impl Serialize, unit: &str) {
        let line = json!({"bench": self.bench, "subject": self.subject.name(), "metric": metric, "value": value, "unit": unit});
        println!("{line}");
    }

    /// Why there is none.
    pub fn note(self, note: &str) {
        println!(
            "{}",
            json!({"bench": self.bench, "subject": self.subject.name(), "note": note})
        );
    }
}

/// A line of progress.
pub fn say(line: impl AsRef<str>) {
    eprintln!("{}", line.as_ref());
}
