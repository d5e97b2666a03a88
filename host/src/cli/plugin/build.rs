//! `ostler plugin build`: the component of a project folder.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use ostler_builder::{BuildOptions, BuiltComponent, progress::BuildStep};
use serde_json::json;

use super::{crds, format_kilobytes, project};
use crate::{cli::ask::OutputFormat, contract::inspection};

/// Arguments of `ostler plugin build`.
#[derive(Args)]
#[command(after_help = "Exit codes:\n  0  built\n  1  error\n  2  invalid arguments")]
pub struct PluginBuildCommand {
    /// Directory of the plugin project.
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// File to write the component to. Defaults to target/NAME.wasm.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Install missing build tools with the package manager of the system.
    #[arg(long)]
    install: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

impl PluginBuildCommand {
    /// Builds the component and prints the result.
    pub async fn run(self) -> anyhow::Result<()> {
        let options = BuildOptions {
            out: self.out,
            install: self.install,
            quick: false,
        };
        let built = build_with_crds(&self.folder, options).await?;
        for warning in &built.warnings {
            eprintln!("{warning}");
        }
        match self.output {
            OutputFormat::Json => println!(
                "{}",
                json!({
                    "name": built.name,
                    "path": built.path,
                    "bytes": built.bytes,
                    "changed": built.changed,
                    "warnings": built.warnings,
                })
            ),
            OutputFormat::Table => {
                let note = if built.changed { "" } else { " (unchanged)" };
                println!(
                    "{:>9}  {}{note}",
                    format_kilobytes(built.bytes),
                    built.path.display()
                );
            }
        }
        Ok(())
    }
}

/// Builds the component of a folder as [`build`] does, with the CRDs of its types, which are written first if they have changed.
pub async fn build_with_crds(folder: &Path, options: BuildOptions) -> anyhow::Result<BuiltComponent> {
    // First, because the compiler's errors are those that an author knows.
    let built = build(folder, options.clone()).await?;
    let step = BuildStep::new("Generating CRDs");
    let changed = crds::update(folder).await?;
    step.finish(crds::summarize_changes(&changed));
    if changed.is_empty() {
        return Ok(built);
    }
    build(folder, options).await
}

/// Builds the component of a folder and checks that this host can run it.
pub async fn build(folder: &Path, options: BuildOptions) -> anyhow::Result<BuiltComponent> {
    ostler_builder::detect_language(folder)?;
    project::read_asks(folder)?;
    let owned = folder.to_owned();
    let built = tokio::task::spawn_blocking(move || {
        let step = BuildStep::new("Building");
        let built = ostler_builder::build_plugin(&owned, &options, &mut |what| step.set_status(what))?;
        step.finish(&built.name);
        anyhow::Ok(built)
    })
    .await??;
    let wasm = std::fs::read(&built.path).with_context(|| format!("reading {}", built.path.display()))?;
    inspection::inspect(&wasm).with_context(|| built.path.display().to_string())?;
    Ok(built)
}
