//! The demo.
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Options.
#[derive(Args)]
pub struct Options {
    /// Once.
    #[arg(long)]
    pub once: bool,
}
/// Run.
pub fn run(_options: &Options) -> Result<ExitCode> {
    anyhow::bail!("not yet")
}
