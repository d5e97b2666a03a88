//! What came of it: target/bench/report.json, and docs/benchmarks.md.

use std::{fmt::Write, fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    plan::{BENCHES, SUBJECTS},
    plot,
};
use crate::paths;

/// A measured value.
#[derive(Debug, Serialize, Deserialize)]
struct Value {
    bench: String,
    subject: String,
    metric: String,
    value: f64,
    unit: String,
}

/// Why there is none.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    bench: String,
    subject: String,
    note: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Value(Value),
    Note(Note),
}

/// Everything that was measured in one run.
pub struct Report {
    quick: bool,
    values: Vec<Value>,
    notes: Vec<Note>,
}

/// The columns of a bench's table: metric and heading.
fn columns(bench: &str) -> &'static [(&'static str, &'static str)] {
    match bench {
        "converge-1k" | "converge-10k" => &[
            ("throughput", "objects/s"),
            ("start_s", "start to first"),
            ("total_s", "start to all"),
            ("rss_peak", "memory, peak"),
            ("rss_anon", "without the binary"),
            ("cpu_seconds", "CPU"),
            ("api_requests", "requests"),
        ],
        "fanout-1k" => &[
            ("throughput", "objects/s"),
            ("first_s", "to first"),
            ("total_s", "to all"),
            ("cpu_seconds", "CPU"),
            ("api_requests", "requests"),
            ("running_throughput", "made while running, objects/s"),
        ],
        "noop-10k" => &[
            ("per_second_per_core", "per second and core"),
            ("throughput", "per second"),
            ("p50_us", "p50"),
            ("p99_us", "p99"),
            ("api_requests", "requests"),
        ],
        "failover" => &[("graceful_s", "graceful"), ("crash_s", "kill -9")],
        "cache-100k" => &[
            ("bytes_per_object", "resident per object"),
            ("heap_bytes_per_object", "allocated per object"),
            ("json_bytes_per_object", "its JSON"),
            ("rss_peak", "memory, peak"),
            ("cpu_seconds", "CPU to list"),
        ],
        "concourse" => &[
            ("requests_per_minute", "requests per minute"),
            ("writes_per_minute", "of them writes"),
            ("requests_per_minute.Instance", "Instance"),
            ("requests_per_minute.Team", "Team"),
            ("requests_per_minute.Pipeline", "Pipelines"),
            ("requests_per_minute.Job", "Jobs"),
            ("requests_per_minute.Build", "Builds"),
            ("rss", "memory"),
            ("rss_peak", "peak"),
            ("cpu_seconds", "CPU"),
            ("api_requests", "API requests"),
            ("total_s", "from nothing to all"),
            ("start_requests", "its requests"),
            ("start_logins", "its logins"),
            ("start_cpu_seconds", "its CPU"),
            ("start_api_requests", "its API requests"),
        ],
        _ => &[
            ("rss_1k", "memory, 1k"),
            ("rss_3k", "3k"),
            ("rss_10k", "memory, 10k"),
            ("rss_30k", "30k"),
            ("rss_100k", "100k"),
            ("cpu_seconds_10k", "CPU, 10k"),
            ("cpu_seconds_30k", "30k"),
            ("cpu_seconds_100k", "100k"),
        ],
    }
}

/// What a bench is about.
fn about(bench: &str) -> &'static str {
    match bench {
        "converge-1k" => {
            "1,000 objects are there, then the operator starts. Throughput counts from the first \
             object that is Ready to the last; the start is told beside it."
        }
        "converge-10k" => "The same with 10,000 objects.",
        "fanout-1k" => {
            "A ConfigMap that 1,000 objects read changes. Time runs from the change to the last \
             child with the new value."
        }
        "noop-10k" => {
            "All 10,000 objects are reconciled again, with nothing to do: five rounds. Per core means \
             per second of CPU time of the process. p50 and p99 are of one reconcile: for Ostler all of \
             it, a fresh WebAssembly instance included; for the others the reconcile function alone."
        }
        "failover" => {
            "Two replicas with a Lease of 15 s. Time runs from the signal to the leader until an object \
             made right after it is Ready."
        }
        "cache-100k" => {
            "100,000 ConfigMaps of 1.3 KiB, which the operator keeps because it reads one of them. \
             Resident per object is what the process has more than with none, divided by their number; \
             allocated is counted in a process of the store alone."
        }
        "concourse" => {
            "A Concourse of 50 pipelines with 10 jobs each, 4 builds of each job, 20 of the 2,000 running: the \
             Concourse pack, and the simulator, which counts what it is asked. All objects are there, then the \
             operator starts; *from nothing to all* is until each is Ready and each build that ends is Complete, and \
             what stands right of it is of that time. Left of it is the steady state at the pack's own intervals, \
             nothing happening: ten minutes, beginning two and a half after that. The original is concourse-operator; \
             it is not run, its requests are computed from what its code does."
        }
        _ => "Memory once settled, and CPU time from the start to there, by number of objects kept.",
    }
}

impl Report {
    /// Nothing is measured yet.
    pub fn new(quick: bool) -> Self {
        Self {
            quick,
            values: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Takes a line of the driver.
    pub fn take(&mut self, line: &str) -> Result<()> {
        let read = serde_json::from_str(line).with_context(|| format!("the driver said {line}"))?;
        match read {
            Line::Value(value) => self.values.push(value),
            // Said at each step of a bench that has several.
            Line::Note(note) if self.notes.contains(&note) => {}
            Line::Note(note) => self.notes.push(note),
        }
        Ok(())
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Writes the values for programs.
    pub fn write(&self, path: &Path) -> Result<()> {
        let report = json!({
            "results": self.values,
            "notes": self.notes,
            "quick": self.quick,
            "machine": {"cores": cores(), "memory_bytes": memory()},
        });
        paths::replace(path, format!("{report:#}\n").as_bytes())?;
        Ok(())
    }

    fn get(&self, bench: &str, subject: &str, metric: &str) -> Option<&Value> {
        self.values
            .iter()
            .find(|v| v.bench == bench && v.subject == subject && v.metric == metric)
    }

    fn benches(&self) -> impl Iterator<Item = &'static str> {
        let told = |bench: &str| {
            self.values.iter().any(|v| v.bench == bench) || self.notes.iter().any(|n| n.bench == bench)
        };
        BENCHES.into_iter().filter(move |bench| told(bench))
    }

    /// All tables, as Markdown.
    pub fn table(&self) -> String {
        let tables = self.benches().map(|bench| self.table_of(bench));
        tables.collect::<Vec<_>>().join("\n")
    }

    fn table_of(&self, bench: &str) -> String {
        let columns: Vec<_> = columns(bench)
            .iter()
            .filter(|(metric, _)| SUBJECTS.iter().any(|s| self.get(bench, s, metric).is_some()))
            .collect();
        let mut out = format!("## {bench}\n\n{}\n\n| |", about(bench));
        for (_, heading) in &columns {
            let _ = write!(out, " {heading} |");
        }
        out.push_str("\n|---|");
        out.push_str(&"--:|".repeat(columns.len()));
        out.push('\n');
        for subject in SUBJECTS {
            let cells: Vec<_> = columns
                .iter()
                .map(|(metric, _)| {
                    let cell = self.get(bench, subject, metric).map(shown).unwrap_or_default();
                    match *metric {
                        "api_requests" => cell + &self.verbs(bench, subject),
                        _ => cell,
                    }
                })
                .collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                let _ = writeln!(out, "| {subject} | {} |", cells.join(" | "));
            }
        }
        for note in self.notes.iter().filter(|n| n.bench == bench) {
            let _ = writeln!(out, "\n{}: {}.", note.subject, note.note);
        }
        for ratio in self.ratios(bench) {
            let _ = writeln!(out, "\n{ratio}");
        }
        out
    }

    fn verbs(&self, bench: &str, subject: &str) -> String {
        let of = |v: &&Value| v.bench == bench && v.subject == subject;
        let verbs: Vec<_> = self
            .values
            .iter()
            .filter(of)
            .filter_map(|v| {
                Some(format!(
                    "{} {}",
                    v.metric.strip_prefix("api_requests.")?,
                    shown(v)
                ))
            })
            .collect();
        match verbs.is_empty() {
            true => String::new(),
            false => format!(" ({})", verbs.join(", ")),
        }
    }

    /// Ostler beside each other: what timings on a shared machine can tell.
    fn ratios(&self, bench: &str) -> Vec<String> {
        let metrics: &[&str] = match bench {
            "converge-1k" | "converge-10k" => &["throughput", "rss_peak", "cpu_seconds", "api_requests"],
            "fanout-1k" => &["throughput", "cpu_seconds", "api_requests"],
            "noop-10k" => &["per_second_per_core", "p50_us"],
            "cache-100k" => &["bytes_per_object", "rss_peak"],
            "growth" => &["rss_100k", "cpu_seconds_100k"],
            "concourse" => &["requests_per_minute", "writes_per_minute"],
            _ => &[],
        };
        let mut lines = Vec::new();
        for other in SUBJECTS.into_iter().filter(|s| *s != "ostler") {
            let told: Vec<_> = metrics
                .iter()
                .filter_map(|metric| {
                    let ours = self.get(bench, "ostler", metric)?.value;
                    let theirs = self.get(bench, other, metric)?.value;
                    (theirs > 0.0).then(|| format!("{} {:.2}×", metric.replace('_', " "), ours / theirs))
                })
                .collect();
            if !told.is_empty() {
                lines.push(format!("Ostler has {} of {other}.", told.join(", ")));
            }
        }
        lines
    }

    /// Writes the page for people, with its plots: all of it, or only the sections of what was measured.
    pub fn write_docs(&self, folder: &Path, whole: bool) -> Result<()> {
        fs::create_dir_all(folder)?;
        let file = folder.join("benchmarks.md");
        let machine = format!(
            "{} cores, {:.0} GiB of memory{}.",
            cores(),
            memory() as f64 / f64::from(1 << 30),
            if self.quick {
                ", a tenth of the objects"
            } else {
                ""
            }
        );
        let before = match whole {
            true => None,
            false => fs::read_to_string(&file).ok(),
        };
        let mut page = match &before {
            Some(page) => page.trim_end().to_owned() + "\n\n",
            None => format!("{}\nThis run: {machine}\n\n", include_str!("intro.md")),
        };
        for bench in self.benches() {
            let mut section = self.table_of(bench);
            if before.is_some() {
                let _ = writeln!(section, "\nMeasured apart from the others: {machine}");
            }
            for (name, svg) in self.plots(bench) {
                paths::replace(&folder.join(&name), svg.as_bytes())?;
                let _ = writeln!(section, "\n![{}]({name})", name.trim_end_matches(".svg"));
            }
            section.push('\n');
            put_section(&mut page, bench, &section);
        }
        paths::replace(&file, (page.trim_end().to_owned() + "\n").as_bytes())?;
        Ok(())
    }

    fn plots(&self, bench: &str) -> Vec<(String, String)> {
        let wanted: &[(&str, &str)] = match bench {
            "converge-1k" | "converge-10k" => &[
                ("throughput", "Objects per second"),
                ("rss_peak", "Memory at most, MiB"),
            ],
            "fanout-1k" => &[("total_s", "Seconds until all have the new value")],
            "noop-10k" => &[("per_second_per_core", "Reconciles per second and core")],
            "failover" => &[
                ("graceful_s", "Seconds, graceful"),
                ("crash_s", "Seconds, kill -9"),
            ],
            "cache-100k" => &[("bytes_per_object", "Resident bytes per object")],
            "concourse" => &[("requests_per_minute", "Requests per minute to Concourse")],
            "growth" => return self.growth().into_iter().collect(),
            _ => &[],
        };
        let mut plots = Vec::new();
        for (metric, title) in wanted {
            let bars: Vec<_> = SUBJECTS
                .into_iter()
                .filter_map(|s| Some((s, scaled(self.get(bench, s, metric)?))))
                .collect();
            if !bars.is_empty() {
                let name = metric.trim_end_matches("_s").replace('_', "-");
                plots.push((
                    format!("bench-{bench}-{name}.svg"),
                    plot::bars(&format!("{bench}: {title}"), &bars),
                ));
            }
        }
        plots
    }

    fn growth(&self) -> Option<(String, String)> {
        let lines: Vec<_> = SUBJECTS
            .into_iter()
            .filter_map(|s| {
                let points = [
                    (1.0, "rss_1k"),
                    (3.0, "rss_3k"),
                    (10.0, "rss_10k"),
                    (30.0, "rss_30k"),
                    (100.0, "rss_100k"),
                ];
                let points = points
                    .into_iter()
                    .filter_map(|(x, metric)| Some((x, scaled(self.get("growth", s, metric)?))));
                let points: Vec<_> = points.collect();
                (!points.is_empty()).then_some((s, points))
            })
            .collect();
        let title = "growth: memory in MiB by thousands of objects kept";
        (!lines.is_empty()).then(|| ("bench-growth.svg".to_owned(), plot::lines(title, &lines)))
    }
}

/// Puts a section where the one of its name is, else at the end.
fn put_section(page: &mut String, name: &str, section: &str) {
    let Some(start) = page.find(&format!("\n## {name}\n")).map(|at| at + 1) else {
        return page.push_str(section);
    };
    let end = page[start..]
        .find("\n## ")
        .map_or(page.len(), |at| start + at + 1);
    page.replace_range(start..end, section);
}

/// As people read it; bytes of whole processes in MiB.
fn shown(value: &Value) -> String {
    let v = value.value;
    match &*value.unit {
        "bytes" if v >= 1e6 => format!("{:.1} MiB", v / f64::from(1 << 20)),
        "bytes" => format!("{} B", thousands(v)),
        "s" => format!("{v:.2} s"),
        "us" => format!("{} µs", thousands(v)),
        // Of few, tenths tell.
        unit if unit.starts_with("requests/min") && v < 100.0 => format!("{v:.1}"),
        _ => thousands(v),
    }
}

fn scaled(value: &Value) -> f64 {
    match &*value.unit {
        "bytes" if value.value >= 1e6 => value.value / f64::from(1 << 20),
        _ => value.value,
    }
}

/// 12,345.
fn thousands(v: f64) -> String {
    let digits = format!("{v:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    kib.and_then(|k| k.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new(false);
        for (subject, value) in [("ostler", 1234.5), ("controller-runtime", 617.25)] {
            let line = json!({"bench": "converge-1k", "subject": subject, "metric": "throughput",
                "value": value, "unit": "objects/s"});
            report.take(&line.to_string()).unwrap();
        }
        let note = json!({"bench": "converge-1k", "subject": "kopf", "note": "900 of 1000 objects in 60 s"});
        report.take(&note.to_string()).unwrap();
        report
    }

    #[test]
    fn tables_have_values_ratios_and_reasons() {
        let table = report().table();
        assert!(table.contains("| ostler | 1,234 |"), "{table}");
        assert!(
            table.contains("Ostler has throughput 2.00× of controller-runtime."),
            "{table}"
        );
        assert!(table.contains("kopf: 900 of 1000 objects in 60 s."), "{table}");
    }

    #[test]
    fn the_page_has_its_plots() {
        let folder = tempfile::tempdir().unwrap();
        report().write_docs(folder.path(), true).unwrap();
        let page = fs::read_to_string(folder.path().join("benchmarks.md")).unwrap();
        assert!(page.contains("(bench-converge-1k-throughput.svg)"), "{page}");
        let svg = fs::read_to_string(folder.path().join("bench-converge-1k-throughput.svg")).unwrap();
        assert!(svg.contains("controller-runtime"), "{svg}");
    }

    #[test]
    fn a_part_replaces_its_own_section() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("benchmarks.md");
        fs::write(
            &file,
            "# Benchmarks\n\n## converge-1k\n\noutdated\n\n## failover\n\nkept\n",
        )
        .unwrap();
        for _ in 0..2 {
            report().write_docs(folder.path(), false).unwrap();
            let page = fs::read_to_string(&file).unwrap();
            assert!(
                page.starts_with("# Benchmarks\n\n## converge-1k\n\n1,000"),
                "{page}"
            );
            assert!(page.ends_with("\n\n## failover\n\nkept\n"), "{page}");
            assert!(!page.contains("outdated"), "{page}");
        }
        let mut page = "# Benchmarks\n".to_owned();
        put_section(&mut page, "growth", "## growth\n");
        assert_eq!(page, "# Benchmarks\n## growth\n");
    }

    #[test]
    fn what_is_no_result_is_an_error() {
        assert!(Report::new(false).take("hello").is_err());
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            [thousands(7.0), thousands(1234.4), thousands(1_234_567.0)],
            ["7", "1,234", "1,234,567"]
        );
    }
}
