//! The differences of a run, and those that are meant.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::run::{AnswerDifference, format_answer};
use super::sequence::{Sequence, Step};

/// What is meant to differ, with the reason.
const DIFFERENCES: &str = include_str!("differences.yaml");
/// Name of the page that is generated from the differences.
const PAGE: &str = "embedded-api-server.md";

/// A difference that is meant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeantDifference {
    /// Heading of its part of the page.
    title: String,
    /// Explanation for authors: what differs, and what follows for them.
    why: String,
    /// Regular expressions of the kinds of differences; none for what no sequence shows.
    #[serde(default)]
    kinds: Vec<String>,
}

static MEANT_DIFFERENCES: LazyLock<Vec<MeantDifference>> =
    LazyLock::new(|| serde_saphyr::from_str(DIFFERENCES).expect("differences.yaml is valid"));

/// The kinds of differences that are meant, each with the heading of its part of the page.
static MEANT_KINDS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let kinds = MEANT_DIFFERENCES.iter().flat_map(|meant| {
        let kinds = meant.kinds.iter();
        kinds.map(|kind| (kind, meant.title.as_str()))
    });
    // Causes that are alike make no difference of another kind.
    let parse = |kind| Regex::new(&format!("^(?:{kind})(?:, beside others)?$"));
    kinds
        .map(|(kind, title)| (parse(kind).expect("a kind is a regular expression"), title))
        .collect()
});

/// A kind of difference, with a sequence that shows it.
#[derive(Debug)]
struct FoundDifference {
    count: u64,
    seed: u64,
    shrunk: Option<String>,
}

/// The differences of a run.
#[derive(Debug, Default)]
pub struct ConformanceReport {
    alike: u64,
    /// Number of sequences with a difference that is meant, by its title.
    meant: BTreeMap<&'static str, u64>,
    found: BTreeMap<String, FoundDifference>,
}

impl ConformanceReport {
    /// Counts a sequence whose answers are alike.
    pub fn add_alike(&mut self) {
        self.alike += 1;
    }

    /// Adds a difference. Returns true if it is of a new kind, which is worth shrinking.
    pub fn add(&mut self, sequence: &Sequence, difference: &AnswerDifference) -> bool {
        let meant = MEANT_KINDS
            .iter()
            .find(|(kind, _)| kind.is_match(&difference.kind));
        if let Some((_, title)) = meant {
            *self.meant.entry(title).or_default() += 1;
            return false;
        }
        let found = self
            .found
            .entry(difference.kind.clone())
            .or_insert(FoundDifference {
                count: 0,
                seed: sequence.seed,
                shrunk: None,
            });
        found.count += 1;
        found.count == 1
    }

    /// Adds the shortest sequence that shows a difference.
    pub fn add_shrunk(
        &mut self,
        sequence: &Sequence,
        schema: &Value,
        steps: Vec<Step>,
        difference: AnswerDifference,
    ) {
        let Some(found) = self.found.get_mut(&difference.kind) else {
            return;
        };
        let mut text = String::new();
        for step in &steps {
            let _ = writeln!(text, "    {step}");
        }
        let _ = writeln!(text, "    embedded: {}", format_answer(&difference.embedded));
        let _ = writeln!(text, "    real:     {}", format_answer(&difference.real));
        if sequence.family == super::SequenceFamily::Custom {
            let _ = writeln!(text, "    schema:   {}", schema["properties"]["spec"]);
        }
        found.shrunk = Some(text);
    }

    /// Adds the results of another run.
    pub fn merge(&mut self, other: Self) {
        self.alike += other.alike;
        for (title, count) in other.meant {
            *self.meant.entry(title).or_default() += count;
        }
        for (kind, theirs) in other.found {
            match self.found.get_mut(&kind) {
                Some(mine) => mine.count += theirs.count,
                None => drop(self.found.insert(kind, theirs)),
            }
        }
    }

    /// Returns true if no difference was found but those that are meant.
    pub fn is_alike(&self) -> bool {
        self.found.is_empty()
    }

    /// Formats the report.
    pub fn format(&self, seed: u64, sequences: u64, took: Duration) -> String {
        let mut text = String::new();
        let mut found: Vec<_> = self.found.iter().collect();
        found.sort_by_key(|(_, difference)| std::cmp::Reverse(difference.count));
        for (kind, difference) in found {
            let _ = writeln!(text, "{}x (seed {}) {kind}", difference.count, difference.seed);
            text.push_str(difference.shrunk.as_deref().unwrap_or_default());
        }
        for (title, count) in &self.meant {
            let _ = writeln!(text, "{count}x as it is meant to: {title}");
        }
        let differ: u64 = self.found.values().map(|difference| difference.count).sum();
        let minutes = took.as_secs_f64() / 60.0;
        let _ = write!(
            text,
            "{sequences} sequences from seed {seed} in {:.0} s ({:.0} per minute): {} alike, {} differ as they are meant to, {differ} differ in {} ways",
            took.as_secs_f64(),
            sequences as f64 / minutes,
            self.alike,
            self.meant.values().sum::<u64>(),
            self.found.len()
        );
        text
    }
}

/// Writes the page of the docs.
fn format_page() -> String {
    let mut page = String::from(
        "# The embedded API server\n\n\
         `ostler plugin dev`, `plugin test` and the tests of a plugin run against an API server in the process itself. It speaks the \
         real protocol, and generated sequences of requests compare its answers with those of a real kube-apiserver: `cargo xtask \
         conform` runs them, and a difference that is not on this page is a bug.\n\n\
         This page is generated from the file by which the comparison knows what is meant to differ.\n",
    );
    for meant in MEANT_DIFFERENCES.iter() {
        let _ = write!(page, "\n## {}\n\n{}\n", meant.title, meant.why.trim());
    }
    page
}

#[test]
fn page_of_the_docs_lists_the_differences_that_are_meant() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(PAGE);
    let expected = format_page();
    if std::env::var_os("UPDATE_DIFFERENCES").is_some() {
        std::fs::write(&path, &expected).expect("the page is writable");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/{PAGE} is out of date: UPDATE_DIFFERENCES=1 cargo xtask test pure page_of_the_docs"
    );
}
