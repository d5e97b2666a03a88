//! The test suite, by tiers.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, ExitCode},
    thread,
};

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;

use crate::{
    argocd, cargo, components,
    control_plane::{self, ControlPlane},
    paths, powerdns,
    progress::{print_result, print_status},
    rabbitmq, registry,
};

/// A tier of tests, selected by the module a test is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tier {
    /// Logic only: unit and property tests, including those of the plugins.
    Pure,
    /// The whole host with real components on the embedded API server.
    Embedded,
    /// Misbehaving components, and faults at random points.
    Hostile,
    /// The scenarios of the embedded tier on a real control plane.
    Real,
    /// The scenarios of the DevOps pack with a real Argo CD on a real control plane. Its build takes 8 minutes.
    Argocd,
}

/// The tiers of a change.
const DEFAULT_TIERS: [Tier; 4] = [Tier::Pure, Tier::Embedded, Tier::Hostile, Tier::Real];
/// Modules of the scenarios in which Argo CD has a part. A real one takes seconds for what the simulator does at once, and each
/// test has one of its own, with 300 MB.
const ARGO_CD_MODULES: [&str; 4] = [
    "devops::argo::real::",
    "devops::events::real::",
    "devops::steps::real::",
    "devops::whole::real::",
];
/// Threads of the scenarios of a tier, which wait most of their time: for time limits, and for the servers they start.
const SCENARIO_THREADS: &str = "--test-threads=5";

impl Tier {
    /// Returns the module of the tier's tests. Pure tests are in none of these modules, and the others have none of their own.
    fn module_prefix(self) -> Option<&'static str> {
        match self {
            Self::Pure | Self::Argocd => None,
            Self::Embedded => Some("embedded::"),
            Self::Hostile => Some("hostile::"),
            Self::Real => Some("real::"),
        }
    }

    /// Returns whether its scenarios run on the real control plane.
    fn needs_control_plane(self) -> bool {
        matches!(self, Self::Real | Self::Argocd)
    }

    /// Returns the arguments of cargo that run exactly this tier.
    fn cargo_arguments(self) -> Vec<&'static str> {
        if self == Self::Argocd {
            let mut arguments = vec!["test", "--workspace", "--test", "scenarios", "--no-fail-fast"];
            arguments.extend(["--", "--include-ignored", "--test-threads=1"]);
            arguments.extend(ARGO_CD_MODULES);
            return arguments;
        }
        let mut arguments = vec!["test", "--workspace", "--no-fail-fast"];
        match self.module_prefix() {
            // Documentation tests are pure, too.
            None => {
                arguments.push("--");
                for other in DEFAULT_TIERS.iter().filter_map(|tier| tier.module_prefix()) {
                    arguments.extend(["--skip", other]);
                }
            }
            Some(module) => arguments.extend(["--lib", "--bins", "--tests", module, "--"]),
        }
        // Hostile scenarios exist in an embedded and a real version.
        match self {
            Self::Embedded => arguments.extend(["--skip", "hostile::"]),
            Self::Hostile => arguments.extend(["--skip", "real::"]),
            Self::Pure | Self::Real | Self::Argocd => {}
        }
        match self {
            Self::Embedded | Self::Real => arguments.push(SCENARIO_THREADS),
            // It measures latencies and memory.
            Self::Hostile => arguments.push("--test-threads=1"),
            Self::Pure | Self::Argocd => {}
        }
        if self == Self::Real {
            // They are ignored by default, because they need the control plane that only this command starts.
            arguments.push("--include-ignored");
        }
        arguments
    }
}

/// Builds what the tiers need, runs them, and prints the totals.
pub fn run_tiers(tiers: &[Tier]) -> Result<ExitCode> {
    let mut tiers = if tiers.is_empty() {
        DEFAULT_TIERS.to_vec()
    } else {
        tiers.to_vec()
    };
    tiers.sort_unstable();
    tiers.dedup();
    let real = tiers.iter().any(|tier| tier.needs_control_plane());

    thread::scope(|scope| {
        // The Go build takes minutes and runs beside the Rust build.
        let control_plane = real.then(|| scope.spawn(control_plane::build_binary));
        let environment = prepare_environment(&tiers)?;
        let mut totals = Totals::default();
        let mut passed = true;
        for tier in tiers.iter().filter(|tier| !tier.needs_control_plane()) {
            passed &= run_tier(*tier, &environment, &mut totals)?;
        }
        if let Some(building) = control_plane {
            let binary = building
                .join()
                .map_err(|_| anyhow!("the build of the control plane panicked"))??;
            for tier in tiers.iter().filter(|tier| tier.needs_control_plane()) {
                let mut environment = environment.clone();
                if *tier == Tier::Argocd {
                    // Not for the other tiers, which have the simulator.
                    environment.insert(ARGO_CD_VARIABLE, argocd::build_programs()?);
                }
                // Each has its own: the CRDs of the real Argo CD have schemas.
                let mut running = ControlPlane::start(&binary)?;
                environment.insert(KUBECONFIG_VARIABLE, running.kubeconfig());
                environment.insert(SECOND_KUBECONFIG_VARIABLE, running.start_second_cluster()?);
                passed &= run_tier(*tier, &environment, &mut totals)?;
            }
        }
        // A tier can fail without a failed test: by a crash, or documentation that does not compile.
        if !passed && totals.failed == 0 {
            totals.failed = 1;
        }
        for line in totals.failures.excerpts() {
            print_result(&line);
        }
        print_result(&totals.summary());
        Ok(if passed {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    })
}

/// Environment variable of the real control plane's kubeconfig.
const KUBECONFIG_VARIABLE: &str = "OSTLER_TEST_KUBECONFIG";
/// Environment variable of the kubeconfig of its second API server, which is another cluster.
pub const SECOND_KUBECONFIG_VARIABLE: &str = "OSTLER_TEST_SECOND_KUBECONFIG";
/// Environment variable of the folder with the real Argo CD.
const ARGO_CD_VARIABLE: &str = "OSTLER_TEST_ARGOCD";

/// Something outside of the test binaries that scenarios need, and find by an environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dependency {
    Components,
    Host,
    Registry,
    RabbitMq,
    PowerDns,
}

impl Dependency {
    /// Returns the dependencies of a tier. The servers belong to each tier with scenarios: without them those
    /// about OCI, messages and DNS fail.
    fn of_tier(tier: Tier) -> &'static [Self] {
        match tier {
            Tier::Pure => &[Self::Host],
            Tier::Embedded | Tier::Hostile | Tier::Real | Tier::Argocd => &[
                Self::Components,
                Self::Registry,
                Self::RabbitMq,
                Self::PowerDns,
                Self::Host,
            ],
        }
    }

    /// Returns the environment variable that the harness reads.
    fn variable(self) -> &'static str {
        match self {
            Self::Components => "OSTLER_COMPONENTS",
            Self::Host => "OSTLER_BIN",
            Self::Registry => "OSTLER_TEST_REGISTRY",
            Self::RabbitMq => "OSTLER_TEST_RABBITMQ",
            Self::PowerDns => "OSTLER_TEST_POWERDNS",
        }
    }
}

/// Builds components, binaries and tests, and fetches the programs they run. Returns the environment variables by
/// which the tests find them.
fn prepare_environment(tiers: &[Tier]) -> Result<BTreeMap<&'static str, PathBuf>> {
    let needs = |dependency: Dependency| {
        let mut tiers = tiers.iter();
        tiers.any(|tier| Dependency::of_tier(*tier).contains(&dependency))
    };
    let mut environment = BTreeMap::new();
    // First, because they fail within seconds where a package can't be fetched.
    if needs(Dependency::Registry) {
        environment.insert(Dependency::Registry.variable(), registry::find_or_fetch()?);
    }
    if needs(Dependency::RabbitMq) {
        environment.insert(Dependency::RabbitMq.variable(), rabbitmq::find_or_fetch()?);
    }
    if needs(Dependency::PowerDns) {
        environment.insert(Dependency::PowerDns.variable(), powerdns::find_or_fetch()?);
    }
    if needs(Dependency::Components) {
        components::build_components(|_| true)?;
        let folder = paths::create_target_subdir("components")?;
        environment.insert(Dependency::Components.variable(), folder);
    }
    let mut binaries = cargo::build_tests()?;
    if let Some(binary) = binaries.remove("ostler") {
        environment.insert(Dependency::Host.variable(), binary);
    }
    Ok(environment)
}

fn run_tier(tier: Tier, environment: &BTreeMap<&str, PathBuf>, totals: &mut Totals) -> Result<bool> {
    let name = tier.to_possible_value().context("a tier has a name")?;
    print_status(&format!("── {} ──", name.get_name()));
    let mut command: Command = cargo::cargo_command();
    command.args(tier.cargo_arguments()).envs(environment);
    cargo::run_tests(command, |line| totals.add_line(line))
}

/// Sums over the last lines of all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    passed: u64,
    failed: u64,
    failures: Failures,
}

/// Output of failed tests, repeated at the end because thousands of lines follow it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Failures {
    /// Header lines such as `---- name stdout ----`, each with the output of that test.
    outputs: Vec<(String, Vec<String>)>,
    reading: bool,
}

/// Number of lines repeated from the panic of a failed test on, and from the end of its output.
const EXCERPT_LINES: usize = 10;

impl Failures {
    fn add_line(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.outputs.push((line.to_owned(), Vec::new()));
            self.reading = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.reading = false;
        } else if let (true, Some((_, lines))) = (self.reading, self.outputs.last_mut()) {
            lines.push(line.to_owned());
        }
    }

    fn excerpts(&self) -> Vec<String> {
        let mut excerpts = Vec::new();
        for (name, lines) in &self.outputs {
            excerpts.push(name.clone());
            let panicked = lines.iter().position(|l| l.contains("panicked at")).unwrap_or(0);
            let end = lines.len().min(panicked + EXCERPT_LINES);
            let last = end.max(lines.len().saturating_sub(EXCERPT_LINES));
            excerpts.extend(lines[panicked..end].iter().cloned());
            if last > end {
                excerpts.push("…".to_owned());
            }
            excerpts.extend(lines[last..].iter().cloned());
        }
        excerpts
    }
}

impl Totals {
    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add_line(&mut self, line: &str) {
        self.failures.add_line(line);
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

    fn summary(&self) -> String {
        format!("{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_summed() {
        let mut totals = Totals::default();
        totals.add_line("running 2 tests");
        totals.add_line(
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.01s",
        );
        totals.add_line("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        assert_eq!(totals.summary(), "13 passed, 2 failed");
    }

    #[test]
    fn failed_test_is_excerpted_from_its_panic() {
        let mut totals = Totals::default();
        let noise = (0..100).map(|n| format!("noise {n}"));
        let said = ["running 2 tests", "", "failures:", "", "---- real::x stdout ----"];
        for line in said.map(str::to_owned).into_iter().chain(noise) {
            totals.add_line(&line);
        }
        for line in [
            "thread 'real::x' panicked at a.rs:1:1:",
            "no",
            "failures:",
            "    real::x",
        ] {
            totals.add_line(line);
        }
        let excerpts = totals.failures.excerpts();
        assert_eq!(
            excerpts,
            [
                "---- real::x stdout ----",
                "thread 'real::x' panicked at a.rs:1:1:",
                "no"
            ]
        );
    }

    /// The variables of a real Concourse are set by the person who runs the tests.
    #[test]
    fn every_variable_of_the_harness_is_set_in_every_tier_with_scenarios() {
        let mut folders = vec![paths::workspace_root().join("tests/harness/src")];
        let mut read = std::collections::BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(path).unwrap();
                let names = text.split("\"OSTLER_").skip(1);
                let names = names.filter_map(|rest| Some(format!("OSTLER_{}", rest.split_once('"')?.0)));
                read.extend(names.filter(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')));
            }
        }
        read.retain(|name| !name.starts_with("OSTLER_CONCOURSE_"));
        assert!(read.remove(KUBECONFIG_VARIABLE));
        assert!(read.remove(SECOND_KUBECONFIG_VARIABLE));
        assert!(read.remove(ARGO_CD_VARIABLE));
        for tier in [Tier::Embedded, Tier::Hostile, Tier::Real, Tier::Argocd] {
            let set = Dependency::of_tier(tier).iter().map(|d| d.variable().to_owned());
            assert_eq!(read, set.collect(), "{tier:?}");
        }
    }

    #[test]
    fn every_test_belongs_to_exactly_one_tier() {
        let pure = Tier::Pure.cargo_arguments();
        for tier in [Tier::Embedded, Tier::Hostile, Tier::Real] {
            let module = tier.module_prefix().unwrap();
            assert!(pure.windows(2).any(|pair| pair == ["--skip", module]));
            assert!(tier.cargo_arguments().contains(&module));
        }
        let with_ignored = |tier: &&Tier| tier.cargo_arguments().contains(&"--include-ignored");
        assert_eq!(
            Tier::value_variants()
                .iter()
                .filter(with_ignored)
                .collect::<Vec<_>>(),
            [&Tier::Real, &Tier::Argocd]
        );
    }

    /// A filter that matches no test would pass.
    #[test]
    fn modules_with_argo_cd_have_scenarios() {
        let folder = paths::workspace_root().join("tests/scenarios/tests/devops");
        for module in ARGO_CD_MODULES {
            let name = module
                .strip_prefix("devops::")
                .and_then(|name| name.strip_suffix("::real::"))
                .unwrap();
            let text = std::fs::read_to_string(folder.join(format!("{name}.rs"))).unwrap();
            assert!(text.contains("\nscenarios!("), "{name}");
        }
        assert!(!DEFAULT_TIERS.contains(&Tier::Argocd));
    }
}
