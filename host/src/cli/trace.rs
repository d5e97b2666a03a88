//! `ostler trace`: what an object's reconciles do, as they do it.

use std::time::Duration;

use clap::Args;
use reqwest::Method;

use super::{
    ask::{Ask, Object, Output},
    table::{Shade, shaded},
};
use crate::recording::trace::Line;

/// Arguments of `ostler trace`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  the host ended, or --count reconciles were shown\n  1  object or host not found"
)]
pub struct Trace {
    #[command(flatten)]
    object: Object,
    /// Number of reconciles after which to end. Without it, the command runs until it is interrupted.
    #[arg(long)]
    count: Option<usize>,
    #[command(flatten)]
    ask: Ask,
}

impl Trace {
    /// Follows, and prints.
    pub async fn run(self) -> anyhow::Result<()> {
        let query = self.object.query()?;
        let mut lines = self.ask.server.lines(Method::GET, "/trace", &query).await?;
        eprintln!(
            "following {}; the next reconcile is shown as it happens",
            self.object.object
        );
        let mut left = self.count.unwrap_or(usize::MAX);
        while left > 0
            && let Some(line) = lines.next::<Line>().await?
        {
            left -= usize::from(matches!(line, Line::End { .. }));
            match self.ask.output {
                Output::Json => println!("{}", serde_json::to_string(&line)?),
                Output::Table => println!("{}", text(&line)),
            }
        }
        Ok(())
    }
}

/// A line for people.
fn text(line: &Line) -> String {
    match line {
        Line::Start {
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
                shaded(at, Shade::Faint),
                shaded(
                    &format!(
                        "({plugin} {version} {digest}, reconcile {reconcile}, woken by {}{attempt})",
                        causes.join(", ")
                    ),
                    Shade::Faint
                )
            )
        }
        Line::Call {
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
            let arrow = if result.is_empty() { "" } else { " → " };
            format!(
                "{number:>4} {} {} {function} {arguments}{arrow}{}",
                shaded(&format!("{:>9}", milliseconds(*at_microseconds)), Shade::Faint),
                format_args!("{:>9}", milliseconds(*took_microseconds)),
                shaded(result, shade)
            )
        }
        Line::End {
            ended,
            took_microseconds,
            cpu_microseconds,
            calls,
            ..
        } => {
            format!(
                "     {ended} {}",
                shaded(
                    &format!(
                        "({calls} host call{}, took {}, computed {})",
                        if *calls == 1 { "" } else { "s" },
                        milliseconds(*took_microseconds),
                        milliseconds(*cpu_microseconds)
                    ),
                    Shade::Faint
                )
            )
        }
        Line::Lost { lines } => shaded(
            &format!("     {lines} lines are missing: they came too fast"),
            Shade::Bad,
        ),
    }
}

fn milliseconds(micros: u64) -> String {
    format!("{:.2} ms", Duration::from_micros(micros).as_secs_f64() * 1000.0)
}
