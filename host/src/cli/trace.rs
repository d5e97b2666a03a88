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
    let faint = |text: &str| shade_text(text, Shade::Faint);
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
            let causes = causes.join(", ");
            let details =
                format!("({plugin} {version} {digest}, reconcile {reconcile}, woken by {causes}{attempt})");
            format!("{} {function} {object} {}", faint(at), faint(&details))
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
            let shade = match result.starts_with("error") {
                true => Shade::Bad,
                false => Shade::Plain,
            };
            let at = faint(&format!("{:>9}", format_milliseconds(*at_microseconds)));
            let took = format_milliseconds(*took_microseconds);
            let arrow = if result.is_empty() { "" } else { " → " };
            let result = shade_text(result, shade);
            format!("{number:>4} {at} {took:>9} {function} {arguments}{arrow}{result}")
        }
        TraceLine::End {
            ended,
            took_microseconds,
            cpu_microseconds,
            calls,
            ..
        } => {
            let plural = if *calls == 1 { "" } else { "s" };
            let took = format_milliseconds(*took_microseconds);
            let computed = format_milliseconds(*cpu_microseconds);
            let details = format!("({calls} host call{plural}, took {took}, computed {computed})");
            format!("     {ended} {}", faint(&details))
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
