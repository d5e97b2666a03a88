//! The report: target/bench/report.json and docs/benchmarks.md.

use std::{fmt::Write, fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{
    plan::{BENCH_NAMES, LANGUAGE_SUBJECTS, SUBJECT_NAMES},
    plot,
};
use crate::paths;

/// A measured value.
#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    bench: String,
    subject: String,
    metric: String,
    value: f64,
    unit: String,
}

/// A remark, such as the reason for a missing value.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    bench: String,
    subject: String,
    note: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Measurement(Measurement),
    Note(Note),
}

/// All results of one benchmark.
#[derive(Serialize, Deserialize)]
pub struct BenchReport {
    #[serde(rename = "results")]
    values: Vec<Measurement>,
    notes: Vec<Note>,
    quick: bool,
    machine: Machine,
}

/// The machine that a benchmark ran on, as far as its times depend on it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Machine {
    cores: usize,
    memory_bytes: u64,
}

/// Returns the columns of a bench's table: metric and heading.
fn table_columns(bench: &str) -> &'static [(&'static str, &'static str)] {
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
            ("running_throughput", "created while running, objects/s"),
        ],
        "noop-10k" => &[
            ("per_second_per_core", "per second and core"),
            ("throughput", "per second"),
            ("p50_us", "p50"),
            ("p99_us", "p99"),
            ("line_transfer_ns", "between cores"),
            ("per_second_per_core_far", "far: per second and core"),
            ("p50_us_far", "p50"),
            ("line_transfer_ns_far", "between cores"),
            ("rss_peak", "memory, peak"),
            ("api_requests", "requests"),
        ],
        "failover" => &[("graceful_s", "graceful"), ("crash_s", "kill -9")],
        "cache-100k" => &[
            ("bytes_per_object", "resident per object"),
            ("heap_bytes_per_object", "allocated per object"),
            ("json_bytes_per_object", "its JSON"),
            ("rss_peak", "memory, peak"),
            ("cpu_seconds", "CPU to list"),
            ("store_rss_peak", "its store alone with ten times as many"),
        ],
        "density" => &[
            ("pss_1", "memory, 1"),
            ("pss_10", "10"),
            ("pss_50", "50"),
            ("pss_100", "memory, 100"),
            ("pss_unloaded_1", "unloaded, 1"),
            ("pss_unloaded_10", "10"),
            ("pss_unloaded_50", "50"),
            ("pss_unloaded_100", "unloaded, 100"),
            ("cpu_per_hour_1", "CPU per hour, 1"),
            ("cpu_per_hour_10", "10"),
            ("cpu_per_hour_50", "50"),
            ("cpu_per_hour_100", "CPU per hour, 100"),
        ],
        "concourse" => &[
            ("requests_per_minute", "requests per minute"),
            ("writes_per_minute", "writes per minute"),
            ("requests_per_minute.Instance", "Instance"),
            ("requests_per_minute.Team", "Team"),
            ("requests_per_minute.Pipeline", "Pipelines"),
            ("requests_per_minute.Job", "Jobs"),
            ("requests_per_minute.Build", "Builds"),
            ("rss", "memory"),
            ("rss_peak", "peak"),
            ("cpu_seconds", "CPU"),
            ("api_requests", "API requests"),
            ("total_s", "start to all"),
            ("start_requests", "start: requests"),
            ("start_logins", "start: logins"),
            ("start_cpu_seconds", "start: CPU"),
            ("start_api_requests", "start: API requests"),
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

/// Returns the description of a bench.
fn describe_bench(bench: &str) -> &'static str {
    match bench {
        "converge-1k" => {
            "1,000 objects exist when the operator starts. Throughput is measured from the first \
            object that becomes Ready to the last; the time until the first is a column of its own."
        }
        "converge-10k" => "As converge-1k, with 10,000 objects.",
        "fanout-1k" => {
            "A ConfigMap that 1,000 objects read changes, in five rounds. Measured from the change to the last \
            child with the new value; times and requests are those of a round. raw replaces each child as it has it, raw-apply applies it: what the \
            API server takes for either."
        }
        "noop-10k" => {
            "All 10,000 objects are reconciled again without any change to make, in five rounds or more. Per core means \
            per second of the process' CPU time. p50 and p99 are the duration of one reconcile: for Ostler including \
            a fresh WebAssembly instance, for the others the reconcile function only. Between cores is the time in which a \
            changed cache line gets from one core to the other, the median of the rounds: a hypervisor may move the cores of a virtual machine \
            between complexes of caches, where it takes several times as long, and with it all that threads share. Rounds go on for 45 s at most \
            until each distance had five, near or *far* (100 ns or more); one that never occurred has no figures. Compare \
            subjects with the same distance."
        }
        "failover" => {
            "Two replicas with a Lease of 15 s. Measured from the signal to the leader until an object \
            created right after it is Ready."
        }
        "cache-100k" => {
            "100,000 ConfigMaps of 1.3 KiB, which the operator caches because it reads one of them. \
            Resident per object is the growth of the process' memory divided by the number of objects; \
            allocated is measured in a process that has only the store, and so is the memory of ten times as many."
        }
        "density" => {
            "1, 10, 50 and 100 plugins in one host, each with a kind of its own, beside as many processes of an operator, all \
            without an object. Components are compiled before: the host starts from its cache. Memory is the proportional set size, which divides the pages of a binary among its \
            processes; CPU time is that of 30 s at rest, as seconds per hour. Unloaded is the memory after the host has unloaded the code of \
            plugins that nothing calls (--unload-after). What a busy plugin takes is in noop-10k."
        }
        "concourse" => {
            "A Concourse with 50 pipelines of 10 jobs each, 4 builds per job, 20 of the 2,000 builds running: the \
            Concourse pack and the simulator, which counts requests. All objects exist when the operator starts; \
            *start to all* is the time until each is Ready and each build that ends is Complete, and the columns \
            *start: …* cover that time. The other columns are the steady state at the pack's default intervals \
            without any change: ten minutes, starting two and a half minutes later. The original is \
            concourse-operator. It is not run; its requests are computed from its code."
        }
        _ => "Memory in the steady state and CPU time until then, by number of cached objects.",
    }
}

impl BenchReport {
    /// Creates an empty report.
    pub fn new(quick: bool) -> Self {
        Self {
            values: Vec::new(),
            notes: Vec::new(),
            quick,
            machine: Machine {
                cores: core_count(),
                memory_bytes: total_memory(),
            },
        }
    }

    /// Reads a report that [`BenchReport::write_json`] has written.
    pub fn read_json(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| path.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| format!("{}: not a report", path.display()))
    }

    /// Adds a line of the driver's output.
    pub fn add_line(&mut self, line: &str) -> Result<()> {
        let read = serde_json::from_str(line).with_context(|| format!("the driver printed {line}"))?;
        match read {
            Line::Measurement(value) => self.values.push(value),
            // A bench with several steps repeats its notes.
            Line::Note(note) if self.notes.contains(&note) => {}
            Line::Note(note) => self.notes.push(note),
        }
        Ok(())
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Writes the report as JSON.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        paths::replace_file(path, (serde_json::to_string_pretty(self)? + "\n").as_bytes())?;
        Ok(())
    }

    /// Renders each value as a ratio to that of an earlier report, by bench. Values that only one of them has are left out.
    pub fn compare_to(&self, before: &Self) -> String {
        let mut out = String::new();
        if (self.quick, &self.machine) != (before.quick, &before.machine) {
            out.push_str(
                "The reports are of different machines or sizes: compare the ratios of one subject with those of another.\n\n",
            );
        }
        let mut bench = "";
        for now in &self.values {
            let Some(then) = before.find_value(&now.bench, &now.subject, &now.metric) else {
                continue;
            };
            if now.bench != bench {
                bench = &now.bench;
                let _ = write!(
                    out,
                    "## {bench}\n\n| | | before | now | ratio |\n|---|---|--:|--:|--:|\n"
                );
            }
            let ratio = match then.value == 0.0 {
                true => String::new(),
                false => format!("{:.2}×", now.value / then.value),
            };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {ratio} |",
                now.subject,
                now.metric.replace('_', " "),
                format_value(then),
                format_value(now),
            );
        }
        out
    }

    fn find_value(&self, bench: &str, subject: &str, metric: &str) -> Option<&Measurement> {
        self.values
            .iter()
            .find(|v| v.bench == bench && v.subject == subject && v.metric == metric)
    }

    fn measured_benches(&self) -> impl Iterator<Item = &'static str> {
        let has_results = |bench: &str| {
            self.values.iter().any(|v| v.bench == bench) || self.notes.iter().any(|n| n.bench == bench)
        };
        BENCH_NAMES.into_iter().filter(move |bench| has_results(bench))
    }

    /// Renders all sections as Markdown.
    pub fn markdown_tables(&self) -> String {
        let tables = self.measured_benches().map(|bench| self.markdown_section(bench));
        tables.collect::<Vec<_>>().join("\n")
    }

    fn markdown_section(&self, bench: &str) -> String {
        let columns: Vec<_> = table_columns(bench)
            .iter()
            .filter(|(metric, _)| {
                SUBJECT_NAMES
                    .iter()
                    .any(|s| self.find_value(bench, s, metric).is_some())
            })
            .collect();
        let mut out = format!("## {bench}\n\n{}\n\n| |", describe_bench(bench));
        for (_, heading) in &columns {
            let _ = write!(out, " {heading} |");
        }
        out.push_str("\n|---|");
        out.push_str(&"--:|".repeat(columns.len()));
        out.push('\n');
        for subject in SUBJECT_NAMES {
            let cells: Vec<_> = columns
                .iter()
                .map(|(metric, _)| {
                    let cell = self
                        .find_value(bench, subject, metric)
                        .map(format_value)
                        .unwrap_or_default();
                    match *metric {
                        "api_requests" => cell + &self.requests_by_verb(bench, subject),
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
        for ratio in self.ratio_lines(bench) {
            let _ = writeln!(out, "\n{ratio}");
        }
        out
    }

    fn requests_by_verb(&self, bench: &str, subject: &str) -> String {
        let of = |v: &&Measurement| v.bench == bench && v.subject == subject;
        let verbs: Vec<_> = self
            .values
            .iter()
            .filter(of)
            .filter_map(|v| {
                Some(format!(
                    "{} {}",
                    v.metric.strip_prefix("api_requests.")?,
                    format_value(v)
                ))
            })
            .collect();
        if verbs.is_empty() {
            return String::new();
        }
        format!(" ({})", verbs.join(", "))
    }

    /// Compares Ostler with each other subject. Ratios within one run are meaningful on a shared machine, times are not.
    fn ratio_lines(&self, bench: &str) -> Vec<String> {
        let metrics: &[&str] = match bench {
            "converge-1k" | "converge-10k" => &["throughput", "rss_peak", "cpu_seconds", "api_requests"],
            "fanout-1k" => &["throughput", "cpu_seconds", "api_requests"],
            "noop-10k" => &["per_second_per_core", "p50_us"],
            "cache-100k" => &["bytes_per_object", "rss_peak"],
            "growth" => &["rss_100k", "cpu_seconds_100k"],
            "density" => &["pss_1", "pss_50", "pss_100", "cpu_per_hour_100"],
            "concourse" => &["requests_per_minute", "writes_per_minute"],
            _ => &[],
        };
        let mut lines = Vec::new();
        for other in SUBJECT_NAMES.into_iter().filter(|s| *s != "ostler") {
            let ratios: Vec<_> = metrics
                .iter()
                .filter_map(|metric| {
                    let ours = self.find_value(bench, "ostler", metric)?.value;
                    let theirs = self.find_value(bench, other, metric)?.value;
                    (theirs > 0.0).then(|| format!("{} {:.2}×", metric.replace('_', " "), ours / theirs))
                })
                .collect();
            if !ratios.is_empty() {
                let ours = match LANGUAGE_SUBJECTS.contains(&other) {
                    true => "The plugin in Rust",
                    false => "Ostler",
                };
                lines.push(format!("{ours} compared with {other}: {}.", ratios.join(", ")));
            }
        }
        lines
    }

    /// Writes docs/benchmarks.md and its plots: the whole page, or only the measured sections.
    pub fn write_docs(&self, folder: &Path, whole: bool) -> Result<()> {
        fs::create_dir_all(folder)?;
        let file = folder.join("benchmarks.md");
        let machine = format!(
            "{} cores, {:.0} GiB of memory{}.",
            self.machine.cores,
            self.machine.memory_bytes as f64 / f64::from(1 << 30),
            if self.quick {
                ", a tenth of the objects"
            } else {
                ""
            }
        );
        let before = if whole {
            None
        } else {
            fs::read_to_string(&file).ok()
        };
        let mut page = match &before {
            Some(page) => page.trim_end().to_owned() + "\n\n",
            None => format!("{}\nThis run: {machine}\n\n", include_str!("intro.md")),
        };
        for bench in self.measured_benches() {
            let mut section = self.markdown_section(bench);
            if before.is_some() {
                let _ = writeln!(section, "\nMeasured in a separate run: {machine}");
            }
            for (name, svg) in self.render_plots(bench) {
                paths::replace_file(&folder.join(&name), svg.as_bytes())?;
                let _ = writeln!(section, "\n![{}]({name})", name.trim_end_matches(".svg"));
            }
            section.push('\n');
            replace_section(&mut page, bench, &section);
        }
        paths::replace_file(&file, (page.trim_end().to_owned() + "\n").as_bytes())?;
        Ok(())
    }

    fn render_plots(&self, bench: &str) -> Vec<(String, String)> {
        let wanted: &[(&str, &str)] = match bench {
            "converge-1k" | "converge-10k" => &[
                ("throughput", "Objects per second"),
                ("rss_peak", "Peak memory, MiB"),
            ],
            "fanout-1k" => &[("total_s", "Seconds until all have the new value")],
            "noop-10k" => &[("per_second_per_core", "Reconciles per second and core")],
            "failover" => &[
                ("graceful_s", "Seconds, graceful"),
                ("crash_s", "Seconds, kill -9"),
            ],
            "cache-100k" => &[("bytes_per_object", "Resident bytes per object")],
            "density" => &[("pss_50", "Memory of 50 at rest, MiB")],
            "concourse" => &[("requests_per_minute", "Requests per minute to Concourse")],
            "growth" => return self.growth_plot().into_iter().collect(),
            _ => &[],
        };
        let mut plots = Vec::new();
        for (metric, title) in wanted {
            let bars: Vec<_> = SUBJECT_NAMES
                .into_iter()
                .filter_map(|s| Some((s, scale_bytes(self.find_value(bench, s, metric)?))))
                .collect();
            if !bars.is_empty() {
                let name = metric.trim_end_matches("_s").replace('_', "-");
                plots.push((
                    format!("bench-{bench}-{name}.svg"),
                    plot::bar_chart(&format!("{bench}: {title}"), &bars),
                ));
            }
        }
        plots
    }

    fn growth_plot(&self) -> Option<(String, String)> {
        let lines: Vec<_> = SUBJECT_NAMES
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
                    .filter_map(|(x, metric)| Some((x, scale_bytes(self.find_value("growth", s, metric)?))));
                let points: Vec<_> = points.collect();
                (!points.is_empty()).then_some((s, points))
            })
            .collect();
        let title = "growth: memory in MiB by thousands of cached objects";
        (!lines.is_empty()).then(|| ("bench-growth.svg".to_owned(), plot::line_chart(title, &lines)))
    }
}

/// Replaces the section of this name, or appends it.
fn replace_section(page: &mut String, name: &str, section: &str) {
    let Some(start) = page.find(&format!("\n## {name}\n")).map(|at| at + 1) else {
        return page.push_str(section);
    };
    let end = page[start..]
        .find("\n## ")
        .map_or(page.len(), |at| start + at + 1);
    page.replace_range(start..end, section);
}

/// Formats a value with its unit. Large numbers of bytes are shown in MiB.
fn format_value(value: &Measurement) -> String {
    let v = value.value;
    match &*value.unit {
        "bytes" if v >= 1e6 => format!("{:.1} MiB", v / f64::from(1 << 20)),
        "bytes" => format!("{} B", group_thousands(v)),
        "s" => format!("{v:.2} s"),
        "us" => format!("{} µs", group_thousands(v)),
        "ns" => format!("{} ns", group_thousands(v)),
        // Tenths matter for small numbers.
        unit if unit.starts_with("requests/min") && v < 100.0 => format!("{v:.1}"),
        _ => group_thousands(v),
    }
}

fn scale_bytes(value: &Measurement) -> f64 {
    match &*value.unit {
        "bytes" if value.value >= 1e6 => value.value / f64::from(1 << 20),
        _ => value.value,
    }
}

/// Formats an integer with thousands separators, as in 12,345.
fn group_thousands(v: f64) -> String {
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

fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn total_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    kib.and_then(|k| k.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample_report() -> BenchReport {
        let mut report = BenchReport::new(false);
        for (subject, value) in [("ostler", 1234.5), ("controller-runtime", 617.25)] {
            let line = json!({"bench": "converge-1k", "subject": subject, "metric": "throughput",
                "value": value, "unit": "objects/s"});
            report.add_line(&line.to_string()).unwrap();
        }
        let note = json!({"bench": "converge-1k", "subject": "kopf", "note": "900 of 1000 objects in 60 s"});
        report.add_line(&note.to_string()).unwrap();
        report
    }

    #[test]
    fn table_has_values_ratios_and_notes() {
        let table = sample_report().markdown_tables();
        assert!(table.contains("| ostler | 1,234 |"), "{table}");
        assert!(
            table.contains("Ostler compared with controller-runtime: throughput 2.00×."),
            "{table}"
        );
        assert!(table.contains("kopf: 900 of 1000 objects in 60 s."), "{table}");
    }

    #[test]
    fn report_is_compared_with_the_one_that_was_written_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        sample_report().write_json(&path).unwrap();
        let before = BenchReport::read_json(&path).unwrap();
        let mut now = sample_report();
        now.values[0].value *= 2.0;
        let compared = now.compare_to(&before);
        assert!(
            compared.starts_with("## converge-1k\n\n| | | before | now | ratio |"),
            "{compared}"
        );
        assert!(
            compared.contains("| ostler | throughput | 1,234 | 2,469 | 2.00× |"),
            "{compared}"
        );
        now.machine.cores += 1;
        assert!(
            now.compare_to(&before)
                .starts_with("The reports are of different machines")
        );
        fs::write(&path, "{}").unwrap();
        let refused = BenchReport::read_json(&path).err().unwrap().to_string();
        assert!(refused.ends_with("not a report"), "{refused}");
    }

    #[test]
    fn page_links_its_plots() {
        let folder = tempfile::tempdir().unwrap();
        sample_report().write_docs(folder.path(), true).unwrap();
        let page = fs::read_to_string(folder.path().join("benchmarks.md")).unwrap();
        assert!(page.contains("(bench-converge-1k-throughput.svg)"), "{page}");
        let svg = fs::read_to_string(folder.path().join("bench-converge-1k-throughput.svg")).unwrap();
        assert!(svg.contains("controller-runtime"), "{svg}");
    }

    #[test]
    fn partial_run_replaces_only_its_section() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("benchmarks.md");
        fs::write(
            &file,
            "# Benchmarks\n\n## converge-1k\n\noutdated\n\n## failover\n\nkept\n",
        )
        .unwrap();
        for _ in 0..2 {
            sample_report().write_docs(folder.path(), false).unwrap();
            let page = fs::read_to_string(&file).unwrap();
            assert!(
                page.starts_with("# Benchmarks\n\n## converge-1k\n\n1,000"),
                "{page}"
            );
            assert!(page.ends_with("\n\n## failover\n\nkept\n"), "{page}");
            assert!(!page.contains("outdated"), "{page}");
        }
        let mut page = "# Benchmarks\n".to_owned();
        replace_section(&mut page, "growth", "## growth\n");
        assert_eq!(page, "# Benchmarks\n## growth\n");
    }

    #[test]
    fn line_that_is_not_json_is_refused() {
        assert!(BenchReport::new(false).add_line("hello").is_err());
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(
            [
                group_thousands(7.0),
                group_thousands(1234.4),
                group_thousands(1_234_567.0)
            ],
            ["7", "1,234", "1,234,567"]
        );
    }
}
