//! Which scenes are played for the benches and subjects asked for.

/// The benches.
pub const BENCHES: [&str; 8] = [
    "converge-1k",
    "fanout-1k",
    "converge-10k",
    "noop-10k",
    "failover",
    "cache-100k",
    "growth",
    "concourse",
];

/// Who is measured, the ceiling first.
pub const SUBJECTS: [&str; 8] = [
    "raw",
    "raw-apply",
    "ostler",
    "controller-runtime",
    "controller-runtime-strip",
    "kube-rs",
    "kopf",
    "original",
];

/// How many objects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As the benches' names say.
    Full,
    /// A tenth.
    Quick,
}

/// One run of the driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Play {
    scene: &'static str,
    /// Who is measured in it.
    pub subjects: Vec<&'static str>,
    benches: Vec<&'static str>,
    objects: Vec<usize>,
    /// More arguments.
    extra: &'static [&'static str],
}

impl Play {
    /// What people are told is going on.
    pub fn title(&self) -> String {
        let who = match self.subjects[..] {
            [one] => one,
            _ => "all",
        };
        format!("{} {who}", self.benches.join("+"))
    }

    /// Whether it is of the Concourse pack.
    pub fn has_pack(&self) -> bool {
        self.scene == "concourse"
    }

    /// The driver's arguments.
    pub fn arguments(&self) -> Vec<String> {
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

/// The scenes for the benches and subjects asked for (all without any), in the order they are played.
pub fn plan(benches: &[String], subjects: &[String], size: Size) -> Vec<Play> {
    let asked = |list: &[String], one: &str| list.is_empty() || list.iter().any(|l| l == one);
    let scaled = |n: usize| if size == Size::Quick { n / 10 } else { n };
    let of = |group: &[&'static str]| -> Vec<&'static str> {
        let group = group.iter().copied();
        group.filter(|bench| asked(benches, bench)).collect()
    };
    let asked_for = SUBJECTS.into_iter().filter(|s| asked(subjects, s));
    // The original is no operator of Samples.
    let who: Vec<_> = asked_for.clone().filter(|s| *s != "original").collect();
    let mut plays = Vec::new();
    // One operator after the other at the same work, so that they meet the same state of the machine.
    for (group, objects) in [
        (["converge-1k", "fanout-1k"], 1000),
        (["converge-10k", "noop-10k"], 10_000),
    ] {
        for subject in &who {
            let mut benches = of(&group);
            if subject.starts_with("raw") {
                benches.retain(|bench| bench.starts_with("converge"));
            }
            // A second variant only where it can make a difference.
            if *subject == "controller-runtime-strip" && objects == 1000 {
                continue;
            }
            if !benches.is_empty() {
                plays.push(Play {
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
        let all = who.iter().copied();
        all.filter(|s| !s.starts_with("raw") && !without.contains(s))
            .collect()
    };
    if !of(&["failover"]).is_empty() {
        for subject in operators(&["controller-runtime-strip"]) {
            plays.push(Play {
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
        plays.push(Play {
            scene: "growth",
            subjects,
            benches,
            objects: [10_000, 30_000, 100_000].map(scaled).to_vec(),
            extra: &[],
        });
    }
    let (benches, subjects) = (
        of(&["concourse"]),
        asked_for.filter(|s| matches!(*s, "ostler" | "original")),
    );
    let subjects: Vec<_> = subjects.collect();
    if !benches.is_empty() && !subjects.is_empty() {
        plays.push(Play {
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
    plays
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bench_and_subject_is_played() {
        let plays = plan(&[], &[], Size::Full);
        for bench in BENCHES {
            assert!(plays.iter().any(|p| p.benches.contains(&bench)), "{bench}");
        }
        for subject in SUBJECTS {
            assert!(plays.iter().any(|p| p.subjects.contains(&subject)), "{subject}");
        }
    }

    #[test]
    fn one_can_be_run_alone() {
        let plays = plan(&["noop-10k".into()], &["ostler".into()], Size::Quick);
        let [play] = &plays[..] else { panic!("{plays:?}") };
        assert_eq!(play.title(), "noop-10k ostler");
        assert_eq!(
            play.arguments(),
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
