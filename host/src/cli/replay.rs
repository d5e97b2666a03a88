//! `ostler replay`: replay of a recording, with the same build or another.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::Args;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{
    ask::OutputFormat,
    session::DevSession,
    table::{Shade, shade_text},
};
use crate::{
    contract::inspection,
    kube::hash::encode_hex,
    recording::format::Recording,
    replay::{Difference, Replayed, replay},
    sandbox::engine::Engine,
};

/// Arguments of `ostler replay`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  all host calls and the outcome match the recording\n  1  something differs\n  2  the recording cannot be replayed"
)]
pub struct ReplayCommand {
    /// Recording, as written by `ostler record`.
    file: PathBuf,
    /// Component to run. Without it, the recorded build is looked up in --plugin-dir.
    #[arg(long, value_name = "WASM")]
    plugin: Option<PathBuf>,
    /// Directory of components. Defaults to `plugins`, or in the folder of a project to that of the running `ostler plugin dev`.
    #[arg(long, value_name = "DIRECTORY")]
    plugin_dir: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

/// The machine-readable result.
#[derive(Serialize)]
struct ReplayOutput<'a> {
    recording: &'a str,
    object: &'a str,
    digest: &'a str,
    #[serde(flatten)]
    replayed: &'a Replayed,
}

impl ReplayCommand {
    /// Replays and prints the differences.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let is_same = self.replay().await.map_err(anyhow::Error::msg)?;
        Ok(ExitCode::from(u8::from(!is_same)))
    }

    async fn replay(&self) -> Result<bool, String> {
        let file = self.file.display().to_string();
        let text = std::fs::read_to_string(&self.file).map_err(|e| format!("{file}: {e}"))?;
        let recording = Arc::new(Recording::parse(&text, &file)?);
        let (name, wasm) = self.find_component(&recording)?;
        let digest = encode_hex(&Sha256::digest(&wasm));
        let inspection = inspection::inspect(&wasm).map_err(|e| format!("{name}: {e}"))?;
        let limits = recording.limits().map_err(|e| format!("{file}: {e}"))?;
        let engine = Engine::new(2, limits.memory, None, None).map_err(|e| format!("the engine: {e:#}"))?;
        let compiled = engine.compile(&wasm, inspection.wasi);
        let compiled = compiled.map_err(|e| format!("{name}: does not compile: {e:#}"))?;
        let replayed = replay(&engine, &compiled, recording.clone())
            .await
            .map_err(|e| format!("{file}: {e}"))?;
        match self.output {
            OutputFormat::Table => print!("{}", format_result(&recording, &digest, &replayed)),
            OutputFormat::Json => {
                let output = ReplayOutput {
                    recording: &recording.metadata.name,
                    object: &recording.object,
                    digest: &digest,
                    replayed: &replayed,
                };
                println!(
                    "{}",
                    serde_json::to_string_pretty(&output).map_err(|e| e.to_string())?
                );
            }
        }
        Ok(replayed.same)
    }

    /// The component to run, and its name.
    fn find_component(&self, recording: &Recording) -> Result<(String, Vec<u8>), String> {
        let read = |path: &Path| {
            let name = path.display().to_string();
            let wasm = std::fs::read(path).map_err(|e| format!("{name}: {e}"))?;
            Ok::<_, String>((name, wasm))
        };
        if let Some(path) = &self.plugin {
            return read(path);
        }
        let session = || DevSession::find().map(|session| session.plugins);
        let directory = self.plugin_dir.clone().or_else(session);
        let directory = directory.unwrap_or_else(|| "plugins".into());
        let folder = directory.display();
        let entries = std::fs::read_dir(&directory).map_err(|e| {
            format!("--plugin-dir {folder}: {e}; set it to the folder with the components, or name one with --plugin")
        })?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "wasm") {
                let (name, wasm) = read(&path)?;
                if encode_hex(&Sha256::digest(&wasm)) == recording.plugin.digest {
                    return Ok((name, wasm));
                }
            }
        }
        let plugin = &recording.plugin;
        Err(format!(
            "the recorded build ({} {}, SHA-256 {}) is not in {folder}: set --plugin-dir to its folder, or name \
             another build with --plugin",
            plugin.name, plugin.version, plugin.digest
        ))
    }
}

/// The human-readable result.
fn format_result(recording: &Recording, digest: &str, replayed: &Replayed) -> String {
    let build = if digest == recording.plugin.digest {
        "the same build".to_owned()
    } else {
        format!("build {}", digest.get(..12).unwrap_or_default())
    };
    let mut out = format!(
        "{} of {} by {} {}, recorded {}, replayed with {build}: {} of {} host calls\n",
        recording.function,
        recording.object,
        recording.plugin.name,
        recording.plugin.version,
        recording.metadata.creation_timestamp,
        replayed.calls,
        replayed.recorded,
    );
    for difference in &replayed.differences {
        let shade = match difference {
            Difference::Diverged { .. } => Shade::Bad,
            other if other.affects_others() => Shade::Waiting,
            _ => Shade::Faint,
        };
        out.push_str(&format!("  {}\n", shade_text(&difference.to_string(), shade)));
    }
    let went_on = |d: &Difference| matches!(d, Difference::Arguments { .. });
    if replayed.differences.iter().any(went_on) {
        let note = "  (calls with other arguments were answered as recorded)";
        out.push_str(&format!("{}\n", shade_text(note, Shade::Faint)));
    }
    let verdict = if replayed.same {
        shade_text(&format!("same: {}", recording.ended), Shade::Good)
    } else {
        shade_text(&format!("differs: {}", replayed.ended), Shade::Bad)
    };
    out.push_str(&verdict);
    out.push('\n');
    out
}
