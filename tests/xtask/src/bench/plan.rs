//! The plan: runs of the driver for the selected benches and subjects.

/// Names of the benches.
pub const BENCH_NAMES: [&str; 9] = [
    "converge-1k",
    "fanout-1k",
    "converge-10k",
    "noop-10k",
    "failover",
    "cache-100k",
    "growth",
    "density",
    "concourse",
];

/// Names of the measured subjects, starting with the upper bound.
pub const SUBJECT_NAMES: [&str; 11] = [
    "raw",
    "raw-apply",
    "ostler",
    "ostler-go",
    "ostler-js",
    "ostler-python",
    "controller-runtime",
    "controller-runtime-strip",
    "kube-rs",
    "kopf",
    "original",
];

/// Subjects that are Ostler with a plugin in another language than Rust. They take part where it is the plugin that is measured.
pub const LANGUAGE_SUBJECTS: [&str; 3] = ["ostler-go", "ostler-js", "ostler-python"];

/// Number of objects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// The number in the bench's name.
    Full,
    /// A tenth of it.
    Quick,
}

/// One run of the driver.
#[derive(Debug, PartialEq, Eq)]
pub struct DriverRun {
    scene: &'static str,
    /// Measured subjects.
    pub subjects: Vec<&'static str>,
    benches: Vec<&'static str>,
    objects: Vec<usize>,
    /// Further arguments of the driver.
    extra: &'static [&'static str],
}

impl DriverRun {
    /// Returns the name of the run in progress and error messages.
    pub fn title(&self) -> String {
        let subject = match self.subjects[..] {
            [one] => one,
            _ => "all",
        };
        format!("{} {subject}", self.benches.join("+"))
    }

    /// Returns whether the run needs the Concourse pack.
    pub fn has_pack(&self) -> bool {
        self.scene == "concourse"
    }

    /// Returns whether the run measures the memory of Ostler's store alone.
    pub fn measures_store(&self) -> bool {
        self.scene == "growth"
    }

    /// Returns the arguments of the driver.
    pub fn driver_arguments(&self) -> Vec<String> {
        let mut arguments = vec![self.scene.to_owned()];
        for (flag, values) in [("--subject", &self.subjects), ("--bench", &self.benches)] {
            for value in values {
                arguments.extend([flag.to_owned(), (*value).to_owned()]);
            }
        }
        let objects: Vec<_> = self.objects.iter().map(usize::to_string).collect();
        arguments.extend(["--objects".to_owned(), objects.join(",")]);
        arguments.extend(self.extra.iter().map(|&a| a.to_owned()));
        arguments
    }
}

/// Plans the runs for the selected benches and subjects (empty: all), in the order of execution.
pub fn plan_runs(benches: &[String], subjects: &[String], size: Size) -> Vec<DriverRun> {
    let selected = |list: &[String], one: &str| list.is_empty() || list.iter().any(|l| l == one);
    let scaled = |n: usize| if size == Size::Quick { n / 10 } else { n };
    let of = |group: &[&'static str]| -> Vec<&'static str> {
        let group = group.iter().copied();
        group.filter(|bench| selected(benches, bench)).collect()
    };
    let selected_subjects = SUBJECT_NAMES.into_iter().filter(|s| selected(subjects, s));
    // The original concourse-operator does not know Samples.
    let sample_subjects: Vec<_> = selected_subjects.clone().filter(|s| *s != "original").collect();
    let mut runs = Vec::new();
    // The subjects follow each other in the same bench, so that they meet the same state of the machine.
    for (group, objects) in [
        (["converge-1k", "fanout-1k"], 1000),
        (["converge-10k", "noop-10k"], 10_000),
    ] {
        for subject in &sample_subjects {
            let mut benches = of(&group);
            if subject.starts_with("raw") {
                benches.retain(|bench| !bench.starts_with("noop"));
            }
            if LANGUAGE_SUBJECTS.contains(subject) {
                benches.retain(|bench| bench.starts_with("noop"));
            }
            // The second variant differs only with many objects.
            if *subject == "controller-runtime-strip" && objects == 1000 {
                continue;
            }
            if !benches.is_empty() {
                runs.push(DriverRun {
                    scene: "converge",
                    subjects: vec![subject],
                    benches,
                    objects: vec![scaled(objects)],
                    extra: &[],
                });
            }
        }
    }
    let operators = |without: &[&str]| -> Vec<&'static str> {
        let all = sample_subjects.iter().copied();
        all.filter(|s| !s.starts_with("raw") && !LANGUAGE_SUBJECTS.contains(s) && !without.contains(s))
            .collect()
    };
    if !of(&["failover"]).is_empty() {
        for subject in operators(&["controller-runtime-strip"]) {
            runs.push(DriverRun {
                scene: "failover",
                subjects: vec![subject],
                benches: vec!["failover"],
                objects: vec![1],
                extra: &[],
            });
        }
    }
    let benches = of(&["cache-100k", "growth"]);
    let subjects = operators(&[]);
    if !benches.is_empty() && !subjects.is_empty() {
        runs.push(DriverRun {
            scene: "growth",
            subjects,
            benches,
            objects: [10_000, 30_000, 100_000].map(scaled).to_vec(),
            extra: &[],
        });
    }
    let languages = sample_subjects.iter().copied();
    let languages = languages.filter(|s| LANGUAGE_SUBJECTS.contains(s));
    let subjects: Vec<_> = operators(&["controller-runtime-strip", "kopf"])
        .into_iter()
        .chain(languages)
        .collect();
    if !of(&["density"]).is_empty() && !subjects.is_empty() {
        runs.push(DriverRun {
            scene: "density",
            subjects,
            benches: vec!["density"],
            objects: match size {
                Size::Full => vec![1, 10, 50, 100],
                Size::Quick => vec![1, 10],
            },
            extra: &[],
        });
    }
    let (benches, subjects) = (
        of(&["concourse"]),
        selected_subjects.filter(|s| matches!(*s, "ostler" | "original")),
    );
    let subjects: Vec<_> = subjects.collect();
    if !benches.is_empty() && !subjects.is_empty() {
        runs.push(DriverRun {
            scene: "concourse",
            subjects,
            benches,
            objects: vec![scaled(50)],
            extra: match size {
                Size::Full => &["--limit", "600"],
                Size::Quick => &["--limit", "600", "--window", "60"],
            },
        });
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_plan_has_every_bench_and_subject() {
        let runs = plan_runs(&[], &[], Size::Full);
        for bench in BENCH_NAMES {
            assert!(runs.iter().any(|p| p.benches.contains(&bench)), "{bench}");
        }
        for subject in SUBJECT_NAMES {
            assert!(runs.iter().any(|p| p.subjects.contains(&subject)), "{subject}");
        }
    }

    #[test]
    fn single_bench_and_subject_is_one_run() {
        let runs = plan_runs(&["noop-10k".into()], &["ostler".into()], Size::Quick);
        let [run] = &runs[..] else { panic!("{runs:?}") };
        assert_eq!(run.title(), "noop-10k ostler");
        assert_eq!(
            run.driver_arguments(),
            [
                "converge",
                "--subject",
                "ostler",
                "--bench",
                "noop-10k",
                "--objects",
                "1000"
            ]
        );
    }
}
