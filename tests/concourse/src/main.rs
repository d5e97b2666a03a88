//! The simulator as a program: prints its URL and runs until SIGTERM or SIGINT.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use concourse_simulator::{ConcourseSimulator, SimulatorOptions};
use tokio::signal::unix::{SignalKind, signal};

/// A Concourse simulator.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// An admin, as name:password; more than one may be given.
    #[arg(long, value_name = "NAME:PASSWORD", value_parser = parse_user, default_value = "test:test", hide_default_value = true)]
    user: Vec<(String, String)>,
    /// File to write the URL to, in addition to standard output.
    #[arg(long, value_name = "FILE")]
    url_file: Option<PathBuf>,
    /// Lifetime of tokens, such as 24h, 30m, 10s or 500ms.
    #[arg(long, value_parser = parse_duration, default_value = "24h")]
    token_lifetime: Duration,
    /// Interval of the clock that advances builds and workers. With 0s only /_sim/step does.
    #[arg(long, value_parser = parse_duration, default_value = "250ms")]
    clock: Duration,
}

fn parse_user(text: &str) -> anyhow::Result<(String, String)> {
    let (name, password) = text.split_once(':').context("expected NAME:PASSWORD")?;
    Ok((name.to_owned(), password.to_owned()))
}

fn parse_duration(text: &str) -> anyhow::Result<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end]
        .parse()
        .context("expected a number and a unit, such as 250ms")?;
    let milliseconds = match &text[end..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => bail!("expected a unit: ms, s, m or h"),
    };
    number
        .checked_mul(milliseconds)
        .map(Duration::from_millis)
        .context("the duration is too long")
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let simulator = ConcourseSimulator::start(SimulatorOptions {
        listen: arguments.listen,
        users: arguments
            .user
            .into_iter()
            .map(|(name, password)| (name, password, true))
            .collect(),
        tokens: Vec::new(),
        token_lifetime: arguments.token_lifetime,
        clock: Some(arguments.clock).filter(|c| !c.is_zero()),
    })
    .await?;
    if let Some(file) = &arguments.url_file {
        std::fs::write(file, simulator.url()).with_context(|| format!("writing {}", file.display()))?;
    }
    let mut out = std::io::stdout();
    writeln!(out, "{}", simulator.url())?;
    out.flush()?;
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    simulator.stop().await;
    Ok(())
}
