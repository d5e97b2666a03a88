//! The test suite, tier by tier.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, ExitCode},
    thread,
};

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;

use crate::{
    cargo, components,
    control_plane::{self, ControlPlane},
    paths,
    progress::{print, say},
    registry,
};

/// A tier of tests. A test's module says which it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tier {
    /// Logic alone: unit and property tests, guests included.
    Pure,
    /// The whole host, with real components, against the embedded API server.
    Embedded,
    /// Components that misbehave, and faults at random points.
    Hostile,
    /// The same scenarios as embedded, against a real control plane.
    Real,
}

impl Tier {
    /// The module its tests are in; pure ones are in none of these.
    fn module(self) -> Option<&'static str> {
        match self {
            Self::Pure => None,
            Self::Embedded => Some("embedded::"),
            Self::Hostile => Some("hostile::"),
            Self::Real => Some("real::"),
        }
    }

    /// The arguments of `cargo test` that run exactly this tier.
    fn arguments(self) -> Vec<&'static str> {
        let mut arguments = vec!["test", "--workspace", "--no-fail-fast"];
        match self.module() {
            // Documentation has examples of logic only.
            None => {
                arguments.push("--");
                for other in Self::value_variants().iter().filter_map(|tier| tier.module()) {
                    arguments.extend(["--skip", other]);
                }
            }
            Some(module) => arguments.extend(["--lib", "--bins", "--tests", module, "--"]),
        }
        // The hostile scenarios have an embedded and a real half, too.
        match self {
            Self::Embedded => arguments.extend(["--skip", "hostile::"]),
            Self::Hostile => arguments.extend(["--skip", "real::"]),
            Self::Pure | Self::Real => {}
        }
        if self == Self::Real {
            // They are ignored elsewhere, because they need what is started here.
            arguments.push("--include-ignored");
        }
        arguments
    }
}

/// Builds what the tiers need, runs them, and ends with the sum.
pub fn run(tiers: &[Tier]) -> Result<ExitCode> {
    let mut tiers = if tiers.is_empty() {
        Tier::value_variants().to_vec()
    } else {
        tiers.to_vec()
    };
    tiers.sort_unstable();
    tiers.dedup();
    let real = tiers.contains(&Tier::Real);

    thread::scope(|scope| {
        // Minutes of Go, beside the minutes of Rust.
        let control_plane = real.then(|| scope.spawn(control_plane::build));
        let environment = prepare(&tiers)?;
        let mut sum = Sum::default();
        let mut passed = true;
        for tier in tiers.iter().filter(|tier| **tier != Tier::Real) {
            passed &= run_tier(*tier, &environment, &mut sum)?;
        }
        if let Some(building) = control_plane {
            let binary = building
                .join()
                .map_err(|_| anyhow!("the build of the control plane panicked"))??;
            let running = ControlPlane::start(&binary)?;
            let mut environment = environment.clone();
            environment.insert("OSTLER_TEST_KUBECONFIG", running.kubeconfig());
            environment.insert("OSTLER_TEST_REGISTRY", registry::binary()?);
            passed &= run_tier(Tier::Real, &environment, &mut sum)?;
        }
        // A tier can fail without a failed test: a crash, or documentation that doesn't compile.
        if !passed && sum.failed == 0 {
            sum.failed = 1;
        }
        for line in sum.failures.excerpts() {
            print(&line);
        }
        print(&sum.line());
        Ok(if passed {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    })
}

/// Builds components, binaries and tests; gives what tests find them by.
fn prepare(tiers: &[Tier]) -> Result<BTreeMap<&'static str, PathBuf>> {
    let mut environment = BTreeMap::new();
    if tiers != [Tier::Pure] {
        components::build(|_| true)?;
        environment.insert("OSTLER_COMPONENTS", paths::target("components")?);
    }
    let mut binaries = cargo::tests()?;
    if let Some(binary) = binaries.remove("ostler") {
        environment.insert("OSTLER_BIN", binary);
    }
    Ok(environment)
}

fn run_tier(tier: Tier, environment: &BTreeMap<&str, PathBuf>, sum: &mut Sum) -> Result<bool> {
    let name = tier.to_possible_value().context("a tier has a name")?;
    say(&format!("── {} ──", name.get_name()));
    let mut command: Command = cargo::command();
    command.args(tier.arguments()).envs(environment);
    cargo::test(command, |line| sum.add(line))
}

/// What the test runners' closing lines add up to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    passed: u64,
    failed: u64,
    failures: Failures,
}

/// What failed tests printed, kept for the end: between it and the end are thousands of lines.
#[derive(Debug, Default, PartialEq, Eq)]
struct Failures {
    /// A line such as `---- name stdout ----`, and what came after it.
    said: Vec<(String, Vec<String>)>,
    reading: bool,
}

/// Lines of a failed test that are repeated: from its panic on, and the last ones.
const EXCERPT: usize = 10;

impl Failures {
    fn add(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.said.push((line.to_owned(), Vec::new()));
            self.reading = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.reading = false;
        } else if let (true, Some((_, lines))) = (self.reading, self.said.last_mut()) {
            lines.push(line.to_owned());
        }
    }

    fn excerpts(&self) -> Vec<String> {
        let mut excerpts = Vec::new();
        for (name, lines) in &self.said {
            excerpts.push(name.clone());
            let panicked = lines.iter().position(|l| l.contains("panicked at")).unwrap_or(0);
            let end = lines.len().min(panicked + EXCERPT);
            let last = end.max(lines.len().saturating_sub(EXCERPT));
            excerpts.extend(lines[panicked..end].iter().cloned());
            if last > end {
                excerpts.push("…".to_owned());
            }
            excerpts.extend(lines[last..].iter().cloned());
        }
        excerpts
    }
}

impl Sum {
    /// Takes a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, line: &str) {
        self.failures.add(line);
        let Some(counts) = line.strip_prefix("test result: ") else {
            return;
        };
        let counts = counts.split_once(". ").map_or(counts, |(_, counts)| counts);
        for count in counts.split("; ") {
            match count.split_once(' ') {
                Some((n, "passed")) => self.passed += n.parse().unwrap_or(0),
                Some((n, "failed")) => self.failed += n.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    fn line(&self) -> String {
        format!("{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_add_up() {
        let mut sum = Sum::default();
        sum.add("running 2 tests");
        sum.add(
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.01s",
        );
        sum.add("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        assert_eq!(sum.line(), "13 passed, 2 failed");
    }

    #[test]
    fn what_failed_is_said_again_at_the_end() {
        let mut sum = Sum::default();
        let noise = (0..100).map(|n| format!("noise {n}"));
        let said = ["running 2 tests", "", "failures:", "", "---- real::x stdout ----"];
        for line in said.map(str::to_owned).into_iter().chain(noise) {
            sum.add(&line);
        }
        for line in [
            "thread 'real::x' panicked at a.rs:1:1:",
            "no",
            "failures:",
            "    real::x",
        ] {
            sum.add(line);
        }
        let excerpts = sum.failures.excerpts();
        assert_eq!(
            excerpts,
            [
                "---- real::x stdout ----",
                "thread 'real::x' panicked at a.rs:1:1:",
                "no"
            ]
        );
    }

    #[test]
    fn every_test_belongs_to_one_tier() {
        let pure = Tier::Pure.arguments();
        for tier in [Tier::Embedded, Tier::Hostile, Tier::Real] {
            let module = tier.module().unwrap();
            assert!(pure.windows(2).any(|pair| pair == ["--skip", module]));
            assert!(tier.arguments().contains(&module));
        }
        let with_ignored = |tier: &&Tier| tier.arguments().contains(&"--include-ignored");
        assert_eq!(
            Tier::value_variants()
                .iter()
                .filter(with_ignored)
                .collect::<Vec<_>>(),
            [&Tier::Real]
        );
    }
}
