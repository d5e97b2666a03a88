//! The test suite: which tests run, in which order, and again.

mod environment;
mod node;
mod report;
mod runner;
mod selection;

use std::{
    path::Path,
    process::{ExitCode, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use ostler_test_placement::Placement;

pub use self::environment::{KUBECONFIG_VARIABLE, SECOND_KUBECONFIG_VARIABLE};
use self::{
    environment::{
        ARGO_CD_VARIABLE, BROWSER_VARIABLE, COMPONENTS_VARIABLE, DEFINITIONS_VARIABLE, HELM_VARIABLE,
        HOST_VARIABLE, KUBECTL_VARIABLE, KUSTOMIZE_VARIABLE, NODE_KUBECONFIG_VARIABLE,
        NODE_REGISTRY_VARIABLE, Variables,
    },
    report::{Results, SuiteReport, TestOutput},
    selection::{TestSelection, Tier},
};
use crate::{
    argocd,
    cargo::{self, Lints, TestExecutable},
    chromium, cluster_tools,
    control_plane::{self, ControlPlane},
    definitions,
    image::{self, Profile},
    namespaces::NodeUnsupported,
    paths,
    progress::{print_result, print_status},
};

/// Options of `cargo xtask test`.
#[derive(Args)]
pub struct TestOptions {
    /// Tiers in full: pure, embedded, hostile, real, node, argocd or all; without any, what a change must pass. Then parts of test
    /// names: `embedded deletion::`.
    #[arg(value_name = "TIER|NAME")]
    words: Vec<String>,
    /// Run the selected tests this many times, to find those that fail by chance.
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Build with clippy and fail on its warnings; without names of tests, check the host without default features too.
    #[arg(long)]
    lint: bool,
    /// Show the output of tests that pass, too: what they measure.
    #[arg(long)]
    nocapture: bool,
    /// Run the host as it is shipped, optimized and without the development commands, in processes and in pods: for figures. Its build
    /// takes minutes.
    #[arg(long)]
    release: bool,
}

impl TestOptions {
    fn lints(&self) -> Lints {
        if self.lint { Lints::Clippy } else { Lints::Rustc }
    }
}

/// Threads of scenarios, which wait for time limits and for the servers they start.
const SCENARIO_THREADS: &str = "--test-threads=8";
/// Maximum number of failed scenarios that run again. More have a common cause.
const MAX_RERUNS: usize = 20;

/// Builds what the selected tests need, runs them, and prints the results.
pub fn run_suite(options: &TestOptions) -> Result<ExitCode> {
    let selection = TestSelection::parse(&options.words)?;
    let report = thread::scope(|scope| -> Result<SuiteReport> {
        // The Go build takes minutes and runs beside the Rust build.
        let control_plane = selection
            .needs_control_plane()
            .then(|| scope.spawn(control_plane::build_binary));
        let (mut variables, executables) = environment::prepare(&selection, options.lints())?;
        if options.release {
            let host = image::build_host_binary(paths::workspace_root(), Profile::Release)?;
            variables.insert(HOST_VARIABLE, host);
        }
        let executables = executables.into_iter().map(ListedExecutable::list);
        let mut suite = Suite {
            executables: executables.collect::<Result<_>>()?,
            selection: &selection,
            options,
            variables,
            report: SuiteReport::default(),
        };
        ensure!(
            suite.is_selected_any(),
            "no test of these tiers has {} in its name",
            selection.filters().join(" or ")
        );
        // One crate, and so one core, as pure tests have. Not for a part, of which it would be most of the time.
        let lints_production = options.lint && selection.is_unfiltered();
        let production = lints_production.then(|| scope.spawn(cargo::lint_production));
        suite.run_stage(&[Tier::Pure])?;
        if let Some(linting) = production {
            linting
                .join()
                .map_err(|_| anyhow!("the check of the host without default features panicked"))??;
        }
        suite.run_stage(&[Tier::Embedded, Tier::Hostile])?;
        if let Some(building) = control_plane {
            let binary = building
                .join()
                .map_err(|_| anyhow!("the build of the control plane panicked"))??;
            // Each has a control plane of its own: the CRDs of the real Argo CD have schemas.
            suite.run_on_control_plane(Tier::Real, &binary)?;
            suite.run_on_node(&binary)?;
            suite.run_on_control_plane(Tier::Argocd, &binary)?;
        }
        Ok(suite.report)
    })?;
    report.write_flaky(&paths::target_dir().join("flaky.json"))?;
    for line in report.lines() {
        print_result(&line);
    }
    Ok(if report.is_success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A test executable and its tests.
struct ListedExecutable {
    executable: TestExecutable,
    tests: Vec<String>,
}

impl ListedExecutable {
    fn list(executable: TestExecutable) -> Result<Self> {
        let output = executable
            .command()
            .args(["--list", "--format", "terse"])
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| executable.path.display().to_string())?;
        ensure!(
            output.status.success(),
            "{} --list: {}",
            executable.path.display(),
            output.status
        );
        let text = String::from_utf8(output.stdout)?;
        let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(Self {
            tests: tests.map(str::to_owned).collect(),
            executable,
        })
    }
}

/// A run of the suite.
struct Suite<'a> {
    selection: &'a TestSelection,
    options: &'a TestOptions,
    variables: Variables,
    executables: Vec<ListedExecutable>,
    report: SuiteReport,
}

impl Suite<'_> {
    fn is_selected_any(&self) -> bool {
        self.selection.is_unfiltered() || !self.select(Tier::value_variants()).is_empty()
    }

    /// Runs the tests of a tier on a control plane that it starts, or on the one of the environment.
    fn run_on_control_plane(&mut self, tier: Tier, binary: &Path) -> Result<()> {
        if self.select(&[tier]).is_empty() {
            return Ok(());
        }
        if tier == Tier::Argocd {
            // Not for the other tiers, which have the simulator.
            self.variables.insert(ARGO_CD_VARIABLE, argocd::build_programs()?);
        }
        if tier == Tier::Real {
            self.variables
                .insert(KUBECTL_VARIABLE, cluster_tools::build_kubectl()?);
            self.variables
                .insert(DEFINITIONS_VARIABLE, definitions::download_definitions()?.into());
        }
        // Set by a person who has started one by `cargo xtask control-plane`.
        if std::env::var_os(KUBECONFIG_VARIABLE).is_some() {
            return self.run_stage(&[tier]);
        }
        let mut running = ControlPlane::start(binary)?;
        self.variables.insert(KUBECONFIG_VARIABLE, running.kubeconfig());
        self.variables
            .insert(SECOND_KUBECONFIG_VARIABLE, running.start_second_cluster()?);
        self.run_stage(&[tier])
    }

    /// Runs the scenarios with containers on a node that it starts. Where none can run, they are left out, unless they are asked for.
    fn run_on_node(&mut self, control_plane: &Path) -> Result<()> {
        if self.select(&[Tier::Node]).is_empty() {
            return Ok(());
        }
        self.variables.insert(HELM_VARIABLE, cluster_tools::build_helm()?);
        self.variables
            .insert(KUSTOMIZE_VARIABLE, cluster_tools::build_kustomize()?);
        self.variables
            .insert(BROWSER_VARIABLE, chromium::find_or_fetch()?);
        let host = self.variables.get(HOST_VARIABLE);
        let (host, components) = host
            .zip(self.variables.get(COMPONENTS_VARIABLE))
            .context("the host and the components are not built")?;
        let mut node = match node::start_node(control_plane, host, components) {
            Err(error) if error.is::<NodeUnsupported>() && !self.selection.names(Tier::Node) => {
                self.report.add_omission(format!("node: {error}"));
                return Ok(());
            }
            started => started?,
        };
        self.variables
            .insert(NODE_KUBECONFIG_VARIABLE, node.kubeconfig()?);
        let registry = node.registry()?.to_string();
        self.variables.insert(NODE_REGISTRY_VARIABLE, registry.into());
        let failures = self.report.failure_count();
        self.run_stage(&[Tier::Node])?;
        if self.report.failure_count() > failures {
            for (program, lines) in node.log_tails() {
                print_status(&format!("── the end of the log of {program} ──\n{lines}"));
            }
        }
        if let Err(error) = node.check_running() {
            // Named beside the tests that failed, which may have failed for this.
            self.report.add_failure(TestOutput {
                test: "node".to_owned(),
                lines: format!("{error:#}").lines().map(str::to_owned).collect(),
            });
        }
        node.end()
    }

    /// Runs the selected tests of some tiers, beside each other where they may.
    fn run_stage(&mut self, tiers: &[Tier]) -> Result<()> {
        let selected = self.select(tiers);
        if selected.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = tiers.iter().filter_map(ValueEnum::to_possible_value).collect();
        let names: Vec<_> = names.iter().map(|name| name.get_name()).collect();
        let title = names.join(", ");
        for _ in 0..self.options.repeat {
            print_status(&format!("── {title} ──"));
            let began = Instant::now();
            let is_alone = |test: &str| Placement::parse(test).is_some_and(|place| place.alone);
            let threads = match tiers {
                // A real Argo CD has 300 MB, and each test has one of its own.
                [Tier::Argocd] => Some("--test-threads=1"),
                [Tier::Pure] => None,
                _ => Some(SCENARIO_THREADS),
            };
            // What runs alone comes last, for it may leave a server busy.
            for (alone, threads) in [(false, threads), (true, Some("--test-threads=1"))] {
                for (executable, tests) in &selected {
                    let tests = tests
                        .iter()
                        .map(String::as_str)
                        .filter(|test| is_alone(test) == alone);
                    self.run_tests(executable, &tests.collect::<Vec<_>>(), threads)?;
                }
            }
            if tiers == [Tier::Pure] && self.selection.is_unfiltered() {
                self.run_documentation_tests()?;
            }
            print_status(&format!("── {title} took {} s ──", began.elapsed().as_secs()));
        }
        Ok(())
    }

    /// Returns the selected tests of some tiers by executable.
    fn select(&self, tiers: &[Tier]) -> Vec<(TestExecutable, Vec<String>)> {
        let is_selected = |test: &&String| tiers.iter().any(|tier| self.selection.selects(test, *tier));
        let selected = self.executables.iter().map(|listed| {
            let tests: Vec<_> = listed.tests.iter().filter(is_selected).cloned().collect();
            (listed.executable.clone(), tests)
        });
        selected.filter(|(_, tests)| !tests.is_empty()).collect()
    }

    /// Runs tests of an executable. A scenario that fails runs again, alone.
    fn run_tests(
        &mut self,
        executable: &TestExecutable,
        tests: &[&str],
        threads: Option<&str>,
    ) -> Result<()> {
        if tests.is_empty() {
            return Ok(());
        }
        let (results, succeeded) = self.run_executable(executable, tests, threads, |_| {})?;
        let failures = self.add_results(results, succeeded, &executable.name);
        let reruns = failures.len() <= MAX_RERUNS;
        for failed in failures {
            // A pure test has nothing to wait for. When it fails by chance, its inputs are random, and it fails for some of them.
            if !reruns || Placement::parse(&failed.test).is_none() {
                self.report.add_failure(failed);
                continue;
            }
            print_status(&format!("── {} again, alone ──", failed.test));
            let mut lines = Vec::new();
            let alone = [failed.test.as_str()];
            let (_, passed) = self.run_executable(executable, &alone, Some("--test-threads=1"), |line| {
                lines.push(line.to_owned())
            })?;
            if passed {
                self.report.add_flaky(failed, lines);
            } else {
                self.report.add_failure(failed);
            }
        }
        Ok(())
    }

    fn run_executable(
        &self,
        executable: &TestExecutable,
        tests: &[&str],
        threads: Option<&str>,
        mut each: impl FnMut(&str),
    ) -> Result<(Results, bool)> {
        let mut command = executable.command();
        command
            .args(threads)
            .arg("--exact")
            .args(tests)
            .envs(&self.variables);
        // Scenarios on a real control plane and campaigns are ignored in a plain `cargo test`. Pure tests that are ignored are
        // measurements.
        if tests.iter().all(|test| Placement::parse(test).is_some()) {
            command.arg("--include-ignored");
        }
        if self.options.nocapture {
            command.arg("--nocapture");
        }
        let mut results = Results::default();
        let succeeded = runner::run_tests(command, |line| {
            results.add_line(line);
            each(line);
        })?;
        Ok((results, succeeded))
    }

    fn run_documentation_tests(&mut self) -> Result<()> {
        let mut command = cargo::cargo_command();
        command.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
        self.options.lints().add_to(&mut command);
        let mut results = Results::default();
        let succeeded = runner::run_tests(command, |line| results.add_line(line))?;
        for failed in self.add_results(results, succeeded, "documentation") {
            self.report.add_failure(failed);
        }
        Ok(())
    }

    /// Adds the results of an executable, and returns the tests of it that failed.
    fn add_results(&mut self, results: Results, succeeded: bool, name: &str) -> Vec<TestOutput> {
        self.report.add_passed(results.passed);
        // It crashed, or does not compile.
        if !succeeded && (results.failures.is_empty() || !results.is_complete) {
            self.report.add_failure(TestOutput {
                test: name.to_owned(),
                lines: vec!["it ended before its tests did: see above".to_owned()],
            });
        }
        results.failures
    }
}
