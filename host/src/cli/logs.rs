//! `ostler logs`: the recent log lines of an object or a plugin, or those of the pods that an object owns.

use anyhow::{Context, bail};
use clap::Args;
use http::Method;

use super::{
    ask::{self, OutputFormat},
    completion::{namespace_completer, object_completer, plugin_completer},
    connection::HostAddress,
    pod_logs::{LineSelection, print_pod_logs},
    table::{Shade, shade_text},
};
use crate::{
    admin::explain::ObjectExplanation,
    observe::log_ring::{LogLevel, LogLine},
};

/// Arguments of `ostler logs`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  the lines were shown\n  1  object, plugin or host not found\n  2  invalid arguments"
)]
pub struct LogsCommand {
    /// Object, such as `team/platform`, or `Team.concourse-ci.org/platform` if several groups have the kind.
    #[arg(
        value_name = "KIND/NAME",
        required_unless_present = "plugin",
        conflicts_with = "plugin",
        add = object_completer()
    )]
    object: Option<String>,
    /// Namespace of the object. Required if the name is ambiguous.
    #[arg(short, long, conflicts_with = "plugin", add = namespace_completer())]
    namespace: Option<String>,
    /// Plugin whose lines to show, of all its objects.
    #[arg(long, value_name = "NAME", add = plugin_completer())]
    plugin: Option<String>,
    /// Show further lines as they are written, until interrupted.
    #[arg(short, long)]
    follow: bool,
    /// Maximum number of stored lines; the newest are shown. Defaults to all.
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
    /// Lowest level.
    #[arg(long, value_enum, default_value = "info")]
    level: LogLevel,
    /// Show the logs of the containers of the pods that the object owns instead, such as that of a Step. They are read from the
    /// cluster, with the rights of its user.
    #[arg(long, conflicts_with_all = ["plugin", "level"])]
    pods: bool,
    #[command(flatten)]
    server: HostAddress,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

impl LogsCommand {
    /// Queries the host and prints the lines.
    pub async fn run(self) -> anyhow::Result<()> {
        if self.pods {
            return self.print_pods().await;
        }
        let level = self.level.as_str().to_lowercase();
        let tail = self.tail.map(|lines| lines.to_string());
        let mut query = match (&self.object, &self.plugin) {
            (Some(object), _) => ask::query(object, self.namespace.as_deref())?,
            (None, Some(plugin)) => vec![("plugin", &**plugin)],
            (None, None) => bail!("KIND/NAME or --plugin NAME is needed"),
        };
        query.push(("level", &level));
        query.extend(tail.as_deref().map(|tail| ("tail", tail)));
        if self.follow {
            query.push(("follow", "true"));
        }
        let mut lines = self
            .server
            .connect()
            .await?
            .open_lines(Method::GET, "/logs", &query)
            .await?;
        let mut shown = 0_usize;
        while let Some(line) = lines.next_line::<LogLine>().await? {
            shown += 1;
            match self.output {
                OutputFormat::Json => println!("{}", serde_json::to_string(&line)?),
                OutputFormat::Table => println!("{}", format_line(&line, self.plugin.is_some())),
            }
        }
        if shown == 0 && !self.follow {
            eprintln!("no lines are stored at level {level} or above");
        }
        Ok(())
    }

    /// Prints the logs of the pods that the object owns. The host knows its kind and namespace.
    async fn print_pods(self) -> anyhow::Result<()> {
        let object = self.object.context("--pods needs KIND/NAME")?;
        let query = ask::query(&object, self.namespace.as_deref())?;
        let explained: ObjectExplanation = self.server.connect().await?.get("/explain", &query).await?;
        let selection = LineSelection {
            tail: self.tail,
            follow: self.follow,
            output: self.output,
        };
        print_pod_logs(&self.server.cluster, &explained, &selection).await
    }
}

/// Formats a line. Of a plugin the object is shown, which for an object is known.
fn format_line(line: &LogLine, shows_object: bool) -> String {
    let shade = match line.level {
        LogLevel::Error => Shade::Bad,
        LogLevel::Warn => Shade::Waiting,
        LogLevel::Info => Shade::Plain,
        LogLevel::Debug | LogLevel::Trace => Shade::Faint,
    };
    let mut text = format!(
        "{} {} ",
        shade_text(&line.at, Shade::Faint),
        shade_text(&format!("{:<5}", line.level.as_str()), shade)
    );
    if shows_object && !line.object.is_empty() {
        text.push_str(&format!("{} ", line.object));
    }
    text.push_str(&line.message);
    for frame in line.stack.lines() {
        text.push_str(&format!("\n    {}", shade_text(frame, Shade::Faint)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_time_level_object_message_and_stack() {
        let line = LogLine {
            at: "2026-11-21T08:00:00Z".into(),
            level: LogLevel::Warn,
            plugin: "p".into(),
            object: "Thing/n/a".into(),
            reconcile: "00000001".into(),
            message: "it is odd".into(),
            stack: "at f\nat g".into(),
        };
        let text = format_line(&line, true);
        assert_eq!(
            text,
            "2026-11-21T08:00:00Z WARN  Thing/n/a it is odd\n    at f\n    at g"
        );
        assert!(!format_line(&line, false).contains("Thing"));
    }
}
