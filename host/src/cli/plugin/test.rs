//! `ostler plugin test`: checks that hold for every plugin, and the author's own tests.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;
use ostler_builder::{BuildOptions, Language, progress::BuildStep};
use serde::Serialize;
use tokio::process::Command;

use super::{
    build::build,
    crds,
    expectation::ConditionExpectation,
    format_kilobytes,
    project::{Document, Project},
    stage::{PluginStage, check_ready, wait_until},
};
use crate::{
    cli::{
        ask::OutputFormat,
        parse_duration,
        table::{Shade, cell, table},
    },
    kube::key::{Gvk, ObjectRef},
    schedule::{dispatcher::Cause, queue::Priority},
};

/// Number of polls in a row that find an object stalled and the host idle, before that counts as final: a change may be on
/// its way from the API server to the queue.
const FINAL_POLLS: u32 = 25;

/// Arguments of `ostler plugin test`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  all checks passed\n  1  a check failed or could not run\n  2  invalid arguments"
)]
pub struct PluginTestCommand {
    /// Directory of the plugin project.
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Skip the project's own tests (cargo test, node --test, unittest, go test).
    #[arg(long)]
    skip_native: bool,
    /// Kubeconfig of a cluster to test on. The plugin's CRDs are applied to it and stay; its samples are applied and deleted.
    /// Defaults to an embedded API server.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Configuration of the plugin.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Time that a sample may take to become Ready or to be deleted.
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    timeout: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

/// A check and its result.
#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    result: Verdict,
    /// Duration of the check.
    ms: f64,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// The checks so far. After a failure the others are skipped: they would fail for the same reason.
#[derive(Default)]
struct Checks(Vec<Check>);

impl Checks {
    async fn run_check<T>(
        &mut self,
        check: &'static str,
        made: impl Future<Output = anyhow::Result<(T, String)>>,
    ) -> Option<T> {
        if self.has_failed() {
            self.record_check(check, Verdict::Skipped, Instant::now(), String::new());
            return None;
        }
        let step = BuildStep::new(check);
        let began = Instant::now();
        match made.await {
            Ok((value, message)) => {
                step.finish(&message);
                self.record_check(check, Verdict::Passed, began, message);
                Some(value)
            }
            Err(e) => {
                drop(step);
                self.record_check(check, Verdict::Failed, began, format!("{e:#}"));
                None
            }
        }
    }

    fn record_check(&mut self, check: &'static str, result: Verdict, began: Instant, message: String) {
        let ms = began.elapsed().as_micros() as f64 / 1000.0;
        self.0.push(Check {
            check,
            result,
            ms,
            message,
        });
    }

    fn has_failed(&self) -> bool {
        self.0.iter().any(|c| c.result == Verdict::Failed)
    }

    fn format_check(&self) -> String {
        let rows = self.0.iter().map(|c| {
            let (word, shade) = match c.result {
                Verdict::Passed => ("passed", Shade::Good),
                Verdict::Failed => ("failed", Shade::Bad),
                Verdict::Skipped => ("skipped", Shade::Faint),
            };
            let took = format!("{:.1} s", c.ms / 1000.0);
            vec![
                cell(c.check, Shade::Plain),
                cell(word, shade),
                cell(took, Shade::Faint),
                cell(&c.message, Shade::Plain),
            ]
        });
        table(&["CHECK", "RESULT", "TOOK", ""], rows)
    }
}

impl PluginTestCommand {
    /// Runs the checks and prints their results.
    pub async fn run(self) -> anyhow::Result<()> {
        let project = Project::read_folder(&self.folder)?;
        let mut checks = Checks::default();
        self.check_project(&project, &mut checks).await;
        match self.output {
            OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&checks.0)?),
            OutputFormat::Table => print!("{}", checks.format_check()),
        }
        if let Some(failed) = checks.0.iter().find(|c| c.result == Verdict::Failed) {
            bail!("{}: {} failed", self.folder.display(), failed.check);
        }
        Ok(())
    }

    async fn check_project(&self, project: &Project, checks: &mut Checks) {
        if !self.skip_native {
            checks.run_check("native tests", run_native_tests(project)).await;
        }
        let built = checks
            .run_check("build", async {
                let built = build(&self.folder, BuildOptions::default()).await?;
                let size = format_kilobytes(built.bytes);
                let wasm = std::fs::read(&built.path)?;
                Ok(((built.name, wasm), size))
            })
            .await;
        let (name, wasm) = built.unwrap_or_default();
        let stage = checks
            .run_check("serves in a host", self.check_serving(project, &name, &wasm))
            .await;
        // Without a host the remaining checks are skipped.
        let stage = stage.as_ref();
        let on = || stage.context("no host");
        let kinds = checks
            .run_check("matches its CRDs", check_kinds(on(), project))
            .await;
        let kinds = kinds.unwrap_or_default();
        let keys = checks
            .run_check("samples are Ready", async {
                self.check_samples(on()?, project, &kinds).await
            })
            .await;
        let keys = keys.unwrap_or_default();
        checks
            .run_check("second reconcile writes nothing", async {
                self.check_idempotence(on()?, &keys).await
            })
            .await;
        checks
            .run_check("deleted samples are removed", async {
                self.check_deletion(on()?, project, &keys).await
            })
            .await;
    }

    async fn check_serving(
        &self,
        project: &Project,
        name: &str,
        wasm: &[u8],
    ) -> anyhow::Result<(PluginStage, String)> {
        let mut stage = PluginStage::prepare(self.kubeconfig.clone()).await?;
        stage.install_crds(&project.crds).await?;
        stage.start_host().await?;
        stage.serve_upstreams(project).await?;
        let report = stage
            .offer_build(project, name, self.config.as_deref(), wasm)
            .await?;
        // The name in the component takes precedence.
        if report.name != name {
            stage.write_grants(project, &report.name)?;
        }
        Ok((stage, format!("{} {}", report.name, report.version)))
    }

    /// Applies the samples and waits until those of the plugin's kinds are Ready.
    async fn check_samples(
        &self,
        stage: &PluginStage,
        project: &Project,
        kinds: &[Gvk],
    ) -> anyhow::Result<(Vec<ObjectRef>, String)> {
        let of_ours = |d: &&Document| kinds.contains(&d.gvk());
        let ours: Vec<_> = project.samples.iter().filter(of_ours).collect();
        if ours.is_empty() {
            bail!(
                "{}: there is no sample of the plugin's kinds",
                project.folder.join("samples").display()
            );
        }
        let expectations = ours.iter().map(|sample| ConditionExpectation::of_sample(sample));
        let expectations = expectations.collect::<anyhow::Result<Vec<_>>>()?;
        // Objects of other kinds come first: samples may refer to them.
        for other in project.samples.iter().filter(|d| !of_ours(d)) {
            stage.apply(other).await?;
        }
        let mut keys = Vec::new();
        for document in ours {
            keys.push(stage.apply(document).await?);
        }
        let mut failing = 0;
        for (key, expectation) in keys.iter().zip(&expectations) {
            self.wait_expected(stage, key, expectation, &keys).await?;
            failing += usize::from(*expectation != ConditionExpectation::default());
        }
        let message = match failing {
            0 => format!("{} of {}", keys.len(), keys.len()),
            _ => format!("{}, and {failing} as expected", keys.len() - failing),
        };
        Ok((keys, message))
    }

    /// Waits until a sample has the condition that is expected of it. It fails at once when the host is idle and each of the
    /// samples is Ready or stalled: no further reconcile will change the object.
    async fn wait_expected(
        &self,
        stage: &PluginStage,
        key: &ObjectRef,
        expectation: &ConditionExpectation,
        samples: &[ObjectRef],
    ) -> anyhow::Result<()> {
        let (mut last, mut is_met) = ("it does not exist".to_owned(), false);
        let mut final_polls = 0;
        let began = Instant::now();
        wait_until(self.timeout, async || {
            let Ok(Some(object)) = stage.get(key).await else {
                return false;
            };
            is_met = expectation.is_met(&object);
            last = check_ready(&object).1;
            // Only a change wakes an object that is stalled, and here nothing makes one.
            let is_final = ConditionExpectation::stalled().is_met(&object)
                && stage.is_idle()
                && are_final(stage, samples).await;
            final_polls = if is_final { final_polls + 1 } else { 0 };
            is_met || final_polls >= FINAL_POLLS
        })
        .await;
        if !is_met {
            let waited = if final_polls >= FINAL_POLLS {
                "and only a change of it, or of what it has read, wakes it".to_owned()
            } else {
                format!("after {:.1} s", began.elapsed().as_secs_f64())
            };
            bail!("{key} is not {expectation}, {waited}: {last}");
        }
        Ok(())
    }

    /// Reconciles everything again: without changes nothing may be written.
    async fn check_idempotence(
        &self,
        stage: &PluginStage,
        keys: &[ObjectRef],
    ) -> anyhow::Result<((), String)> {
        let host = stage.host()?;
        let facts = |key: &ObjectRef| {
            let facts = host.stats().object(key);
            facts.map_or((0, 0, 0), |f| (f.reconciles, f.api_writes, f.upstream_writes))
        };
        if !stage.wait_idle(self.timeout).await? {
            bail!("it does not become idle: does each reconcile write something different?");
        }
        for key in keys {
            let (reconciles, api, upstream) = facts(key);
            host.services()
                .dispatcher
                .enqueue(key, Priority::High, Cause::Manual);
            let done = async || facts(key).0 > reconciles && host.services().dispatcher.is_idle();
            if !wait_until(self.timeout, done).await {
                bail!("{key} is not reconciled again after {:?}", self.timeout);
            }
            let (_, api_now, upstream_now) = facts(key);
            let (api, upstream) = (api_now - api, upstream_now - upstream);
            if api + upstream > 0 {
                bail!(
                    "{key} was reconciled again with nothing changed, and {api} writes to the API server and \
                     {upstream} to upstreams were sent: what it applies must be the same each time"
                );
            }
        }
        Ok(((), "0 writes".into()))
    }

    /// Deletes the samples; they and their dependents must disappear.
    async fn check_deletion(
        &self,
        stage: &PluginStage,
        project: &Project,
        keys: &[ObjectRef],
    ) -> anyhow::Result<((), String)> {
        let mut uids = Vec::new();
        for key in keys {
            if let Some(object) = stage.get(key).await? {
                uids.push(object["metadata"]["uid"].clone());
            }
        }
        let owned = async |gvk: &Gvk| -> anyhow::Result<usize> {
            let objects = stage.list(gvk).await?;
            let owned = objects.iter().filter(|o| {
                let owners = o["metadata"]["ownerReferences"].as_array().into_iter().flatten();
                owners.into_iter().any(|owner| uids.contains(&owner["uid"]))
            });
            Ok(owned.count())
        };
        let written = written_kinds(stage, project).await;
        let mut children = 0;
        for gvk in &written {
            children += owned(gvk).await?;
        }
        for key in keys {
            stage.delete(key).await?;
        }
        for key in keys {
            let gone = async || matches!(stage.get(key).await, Ok(None));
            if !wait_until(self.timeout, gone).await {
                let object = stage.get(key).await?.unwrap_or_default();
                bail!(
                    "{key} is not gone after {:?}: finalizers {}, {}",
                    self.timeout,
                    object["metadata"]["finalizers"],
                    check_ready(&object).1
                );
            }
        }
        for gvk in &written {
            let gone = async || matches!(owned(gvk).await, Ok(0));
            if !wait_until(self.timeout, gone).await {
                bail!("objects of kind {gvk} that belong to the deleted samples are still there");
            }
        }
        let message = match children {
            0 => "they own nothing".into(),
            1 => "and an object of theirs".into(),
            n => format!("and {n} objects of theirs"),
        };
        Ok(((), message))
    }
}

/// Returns true if each of these objects is Ready or stalled.
async fn are_final(stage: &PluginStage, samples: &[ObjectRef]) -> bool {
    for key in samples {
        let Ok(Some(object)) = stage.get(key).await else {
            return false;
        };
        if !ConditionExpectation::default().is_met(&object)
            && !ConditionExpectation::stalled().is_met(&object)
        {
            return false;
        }
    }
    true
}

/// The kinds that the plugin requests to write.
async fn written_kinds(stage: &PluginStage, project: &Project) -> Vec<Gvk> {
    let mut kinds = Vec::new();
    for ask in project.asks["kubernetes"].as_array().into_iter().flatten() {
        let words = |field: &str| {
            let words = ask[field].as_array().into_iter().flatten();
            words
                .filter_map(|w| w.as_str())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        if !words("verbs").iter().any(|v| v == "apply" || v == "create") {
            continue;
        }
        let group = ask["group"].as_str().unwrap_or_default();
        for kind in words("kinds") {
            // A pattern, or an unknown kind.
            if let Ok(gvk) = stage.discover_preferred(group, &kind).await
                && stage.list(&gvk).await.is_ok()
            {
                kinds.push(gvk);
            }
        }
    }
    kinds
}

/// The kinds that the component declares; the CRDs must define them, with the fields of their types.
async fn check_kinds(
    stage: anyhow::Result<&PluginStage>,
    project: &Project,
) -> anyhow::Result<(Vec<Gvk>, String)> {
    let kinds = stage?.serving_kinds()?;
    project.check_kinds_defined(&kinds)?;
    let outdated = crds::find_outdated(&project.folder).await?;
    if !outdated.is_empty() {
        bail!(
            "crds/ differs from the types: {}: write it with `ostler plugin crds {}`",
            crds::summarize_changes(&outdated),
            project.folder.display()
        );
    }
    let names: Vec<_> = kinds.iter().map(ToString::to_string).collect();
    Ok((kinds, names.join(", ")))
}

/// Runs the author's own tests with the language's test runner.
async fn run_native_tests(project: &Project) -> anyhow::Result<((), String)> {
    let Some(command) = test_runner(&project.folder, project.language)? else {
        return Ok(((), "there are none".into()));
    };
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let mut words = vec![program.to_string_lossy()];
    let mut arguments = command.get_args().map(|argument| argument.to_string_lossy());
    while let Some(argument) = arguments.next() {
        // Settings that ostler adds.
        match &*argument {
            "--config" => drop(arguments.next()),
            "--quiet" => {}
            _ => words.push(argument),
        }
    }
    let words = words.join(" ");
    let output = Command::from(command)
        .current_dir(&project.folder)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("running `{words}`: is it installed?"))?;
    if output.status.success() {
        return Ok(((), words));
    }
    let log = [output.stdout, output.stderr].concat();
    bail!(
        "`{words}`: {}\n{}",
        output.status,
        String::from_utf8_lossy(&log).trim()
    )
}

/// The command that runs the tests of a folder; `None` without tests.
fn test_runner(folder: &Path, language: Language) -> anyhow::Result<Option<std::process::Command>> {
    ostler_builder::sdk::write_sdk(folder)?;
    Ok(match language {
        Language::Rust => {
            let mut command = ostler_builder::rust::test_command(folder)?;
            command.arg("--quiet");
            Some(command)
        }
        Language::JavaScript => ostler_builder::javascript::test_command(folder)?,
        Language::Python => ostler_builder::python::test_command(folder)?,
        Language::Go => Some(ostler_builder::go::test_command(folder)?),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn checks_after_a_failure_are_skipped() {
        let mut checks = Checks::default();
        assert_eq!(
            checks.run_check("one", async { Ok((1, "fine".into())) }).await,
            Some(1)
        );
        let failed = checks
            .run_check::<u8>("two", async { bail!("it does not hold") })
            .await;
        assert_eq!(failed, None);
        assert_eq!(
            checks.run_check("three", async { Ok((3, String::new())) }).await,
            None
        );
        let verdicts: Vec<_> = checks.0.iter().map(|c| c.result).collect();
        assert_eq!(verdicts, [Verdict::Passed, Verdict::Failed, Verdict::Skipped]);
        let text = checks.format_check();
        assert!(
            text.contains("it does not hold") && text.contains("skipped"),
            "{text}"
        );
    }

    #[test]
    fn ready_counts_for_the_current_generation_only() {
        let object = |observed: u8| {
            json!({"metadata": {"generation": 2}, "status": {"conditions": [
                {"type": "Ready", "status": "True", "reason": "R", "message": "m", "observedGeneration": observed}]}})
        };
        assert_eq!(check_ready(&object(2)), (true, "R: m".into()));
        assert!(!check_ready(&object(1)).0);
        assert!(!check_ready(&json!({})).0);
    }
}
