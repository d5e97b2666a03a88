//! `ostler record`: writes a reconcile, from beginning to end, to a file.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use http::Method;

use super::{
    ask::{OutputFormat, query},
    completion::{namespace_completer, object_completer},
    connection::HostAddress,
    table::{Shade, cell, table},
};
use crate::recording::{
    format::{Recording, RecordingSummary},
    trace::format_size,
};

/// Arguments of `ostler record`.
///
/// A recording is written to standard output or to a file. It contains the inputs and outputs of the component and no
/// secrets: the values of plugins that may read Secrets are not recorded.
#[derive(Args)]
#[command(after_help = "Exit codes:\n  0  recorded or listed\n  1  object or host not found")]
pub struct RecordCommand {
    /// Object, such as `team/platform`. Without it, the stored recordings are listed.
    #[arg(value_name = "KIND/NAME", add = object_completer())]
    object: Option<String>,
    /// Namespace of the object. Required if the name is ambiguous.
    #[arg(short, long, add = namespace_completer())]
    namespace: Option<String>,
    /// Take the latest stored recording instead of waiting for the next reconcile.
    #[arg(long, conflicts_with_all = ["now", "count"])]
    last: bool,
    /// Trigger a reconcile immediately.
    #[arg(long)]
    now: bool,
    /// Number of reconciles to record.
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// File to write the recording to. With --count above 1, `r.json` becomes `r-1.json`, `r-2.json` and so on.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    server: HostAddress,
    /// Output format of the list. A recording is always JSON.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

impl RecordCommand {
    /// Queries the host and writes the recordings.
    pub async fn run(self) -> anyhow::Result<()> {
        let Some(object) = &self.object else {
            return self.list_recordings().await;
        };
        let mut query = query(object, self.namespace.as_deref())?;
        if self.last {
            let recording: Recording = self.server.connect().await?.get("/recording", &query).await?;
            return self.write_recording(&recording, 1);
        }
        let count = self.count.to_string();
        query.push(("count", &count));
        let method = if self.now { Method::POST } else { Method::GET };
        let mut recordings = self
            .server
            .connect()
            .await?
            .open_lines(method, "/record", &query)
            .await?;
        if self.now {
            eprintln!("waiting for the reconcile of {object}")
        } else {
            eprintln!("waiting for the next reconcile of {object}; --now reconciles it at once")
        }
        for number in 1..=self.count {
            let Some(recording) = recordings.next_line().await? else {
                bail!("the host ended before {object} was reconciled {number} times");
            };
            self.write_recording(&recording, number)?;
        }
        Ok(())
    }

    async fn list_recordings(&self) -> anyhow::Result<()> {
        let kept: Vec<RecordingSummary> = self.server.connect().await?.get("/recordings", &[]).await?;
        match self.output {
            OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&kept)?),
            OutputFormat::Table if kept.is_empty() => {
                println!("nothing is recorded: no reconcile has failed")
            }
            OutputFormat::Table => print!("{}", format_list(&kept)),
        }
        Ok(())
    }

    fn write_recording(&self, recording: &Recording, number: usize) -> anyhow::Result<()> {
        let Some(file) = &self.file else {
            print!("{}", recording.to_text());
            return Ok(());
        };
        let file = match self.count {
            1 => file.clone(),
            _ => numbered_path(file, number),
        };
        std::fs::write(&file, recording.to_text()).with_context(|| format!("writing {}", file.display()))?;
        let calls = recording.calls.len();
        eprintln!(
            "{}: {} of {}, {calls} host calls: {}",
            file.display(),
            recording.function,
            recording.object,
            recording.ended
        );
        Ok(())
    }
}

/// The name of a numbered file: `r.json` → `r-2.json`.
fn numbered_path(file: &Path, number: usize) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let name = match file.extension() {
        Some(extension) => format!("{stem}-{number}.{}", extension.to_string_lossy()),
        None => format!("{stem}-{number}"),
    };
    file.with_file_name(name)
}

fn format_list(kept: &[RecordingSummary]) -> String {
    let rows = kept.iter().map(|r| {
        vec![
            cell(&r.at, Shade::Faint),
            cell(&r.object, Shade::Plain),
            cell(&r.plugin, Shade::Plain),
            cell(r.digest.get(..12).unwrap_or_default(), Shade::Faint),
            cell(r.calls, Shade::Plain),
            cell(format_size(r.bytes), Shade::Plain),
            cell(if r.replayable { "" } else { "no" }, Shade::Waiting),
            cell(&r.ended, Shade::Plain),
        ]
    });
    let header = [
        "AT", "OBJECT", "PLUGIN", "DIGEST", "CALLS", "SIZE", "REPLAY", "ENDED",
    ];
    table(&header, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_written_to_separate_files() {
        assert_eq!(numbered_path(Path::new("a/r.json"), 2), Path::new("a/r-2.json"));
        assert_eq!(numbered_path(Path::new("r"), 1), Path::new("r-1"));
    }
}
