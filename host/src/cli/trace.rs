//! `ostler trace`: the host calls of an object's reconciles, live.

use std::time::Duration;

use clap::Args;
use http::Method;

use super::{
    ask::{ObjectArguments, OutputFormat},
    connection::HostAddress,
    table::{Shade, shade_text},
};
use crate::recording::trace::TraceLine;

/// Arguments of `ostler trace`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  the host ended, or --count reconciles were shown\n  1  object or host not found"
)]
pub struct TraceCommand {
    #[command(flatten)]
    object: ObjectArguments,
    /// Number of reconciles after which to end. Without it, the command runs until it is interrupted.
    #[arg(long)]
    count: Option<usize>,
    #[command(flatten)]
    server: HostAddress,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

impl TraceCommand {
    /// Follows the reconciles and prints them.
    pub async fn run(self) -> anyhow::Result<()> {
        let query = self.object.query()?;
        let mut lines = self
            .server
            .connect()
            .await?
            .open_lines(Method::GET, "/trace", &query)
            .await?;
        eprintln!(
            "following {}; the next reconcile is shown as it happens",
            self.object.object
        );
        let mut left = self.count.unwrap_or(usize::MAX);
        while left > 0
            && let Some(line) = lines.next_line::<TraceLine>().await?
        {
            left -= usize::from(matches!(line, TraceLine::End { .. }));
            match self.output {
                OutputFormat::Json => println!("{}", serde_json::to_string(&line)?),
                OutputFormat::Table => println!("{}", format_line(&line)),
            }
        }
        Ok(())
    }
}

/// A line as text.
fn format_line(line: &TraceLine) -> String {
    match line {
        TraceLine::Start {
            reconcile,
            object,
            plugin,
            version,
            digest,
            function,
            attempt,
            causes,
            at,
        } => {
            let digest = digest.get(..12).unwrap_or(digest);
            let attempt = match attempt {
                0 => String::new(),
                n => format!(", after {n} failures"),
            };
            format!(
                "{} {function} {object} {}",
                shade_text(at, Shade::Faint),
                shade_text(
                    &format!(
                        "({plugin} {version} {digest}, reconcile {reconcile}, woken by {}{attempt})",
                        causes.join(", ")
                    ),
                    Shade::Faint
                )
            )
        }
        TraceLine::Call {
            number,
            function,
            at_microseconds,
            took_microseconds,
            arguments,
            result,
            ..
        } => {
            let shade = if result.starts_with("error") {
                Shade::Bad
            } else {
                Shade::Plain
            };
            let arrow = if result.is_empty() { "" } else { " → " };
            format!(
                "{number:>4} {} {} {function} {arguments}{arrow}{}",
                shade_text(
                    &format!("{:>9}", format_milliseconds(*at_microseconds)),
                    Shade::Faint
                ),
                format_args!("{:>9}", format_milliseconds(*took_microseconds)),
                shade_text(result, shade)
            )
        }
        TraceLine::End {
            ended,
            took_microseconds,
            cpu_microseconds,
            calls,
            ..
        } => {
            format!(
                "     {ended} {}",
                shade_text(
                    &format!(
                        "({calls} host call{}, took {}, computed {})",
                        if *calls == 1 { "" } else { "s" },
                        format_milliseconds(*took_microseconds),
                        format_milliseconds(*cpu_microseconds)
                    ),
                    Shade::Faint
                )
            )
        }
        TraceLine::Lost { lines } => shade_text(
            &format!("     {lines} lines were dropped: the reader was too slow"),
            Shade::Bad,
        ),
    }
}

fn format_milliseconds(micros: u64) -> String {
    format!("{:.2} ms", Duration::from_micros(micros).as_secs_f64() * 1000.0)
}
