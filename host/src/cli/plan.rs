//! `ostler plan`: what reconciling would change.

use std::{
    io::{Read, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{config, grants, table::colours};
use crate::{
    host::Settings,
    plan::{Report, Wish, plan},
    sandbox::engine::Cache,
};

/// Arguments of `ostler plan`.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 when nothing would change, 1 when something would, 2 on an error.")]
pub struct Plan {
    /// Objects to plan, for example team/platform; without any, all objects of the plugins.
    #[arg(value_name = "KIND/NAME")]
    objects: Vec<String>,
    /// File or directory of objects as they would be (`-` for the standard input); may be given more than once.
    #[arg(short, long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Plan the deletion of the objects: what their cleanup does.
    #[arg(long, requires = "objects", conflicts_with = "files")]
    delete: bool,
    /// Namespace of the objects; all are looked at without it, where none is named.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Component to plan with in place of the one of its name; may be given more than once. Without objects, all of
    /// its kinds are planned.
    #[arg(long = "plugin", value_name = "FILE")]
    builds: Vec<PathBuf>,
    /// Directory of components and their configurations.
    #[arg(long, default_value = "plugins")]
    plugins: PathBuf,
    /// File that says what each plugin may do; without it none may do anything.
    #[arg(long)]
    grants: Option<PathBuf>,
    /// Network (10.96.0.0/12) or address (127.0.0.1) that upstreams may have, though it is not public, besides what the
    /// grants allow; may be given more than once.
    #[arg(long = "allow-network", value_parser = crate::policy::network::parse_network)]
    networks: Vec<ipnet::IpNet>,
    /// Plan with only those Plugin objects that have these labels (`team=ci`), as the host that follows only these.
    #[arg(long, value_parser = crate::kube::selector::Selector::parse)]
    plugin_selector: Option<crate::kube::selector::Selector>,
    /// Registry (`HOST:PORT`) that is spoken to in plain HTTP; may be given more than once. Those on this machine are
    /// anyway.
    #[arg(long = "plain-http-registry")]
    plain_http: Vec<String>,
    /// Directory for compiled code, which only this user may be able to write to.
    #[arg(long)]
    cache: Option<PathBuf>,
    /// Kubeconfig of the cluster; without it `$KUBECONFIG`, `~/.kube/config`, or the pod's service account.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// How the plan looks.
    #[arg(short, long, value_enum, default_value = "diff")]
    output: Output,
}

/// How a plan looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Diff,
    /// For programs.
    Json,
}

impl Plan {
    /// Makes the plan and prints it.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let config = config(self.kubeconfig).await?;
        let mut files = Vec::new();
        for path in &self.files {
            read(path, &mut files)?;
        }
        let wish = Wish {
            objects: self.objects,
            default_namespace: self
                .namespace
                .clone()
                .unwrap_or_else(|| config.default_namespace.clone()),
            namespace: self.namespace,
            files,
            builds: self.builds,
            delete: self.delete,
        };
        let settings = Settings {
            plugins: self.plugins,
            plugin_selector: self.plugin_selector,
            plain_http: self.plain_http,
            grants: grants(self.grants.as_deref())?,
            network: self.networks,
            workers: 1,
            cache: self.cache.map(|directory| Cache {
                directory,
                compiler: std::env::current_exe().ok(),
            }),
            ..Settings::default()
        };
        let report = plan(kube::Client::try_from(config)?, settings, &wish).await?;
        let text = match self.output {
            Output::Json => serde_json::to_string_pretty(&report)? + "\n",
            Output::Diff => painted(&report),
        };
        match std::io::stdout().write_all(text.as_bytes()) {
            // Who has read enough of it.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
        Ok(ExitCode::from(u8::from(report.changed())))
    }
}

/// The text, in colours on a terminal.
fn painted(report: &Report) -> String {
    let text = report.text();
    if !colours() {
        return text;
    }
    let paint = |line: &str| {
        let colour = match line.as_bytes().first() {
            _ if line.starts_with("--- ") || line.starts_with("+++ ") => "1",
            Some(b'+') => "32",
            Some(b'-') => "31",
            Some(b'@') => "36",
            Some(b'#') => "2",
            _ => return format!("{line}\n"),
        };
        format!("\x1b[{colour}m{line}\x1b[0m\n")
    };
    text.lines().map(paint).collect()
}

/// Reads the objects of a file, or of all files of a directory.
fn read(path: &std::path::Path, objects: &mut Vec<(String, Value)>) -> anyhow::Result<()> {
    let name = path.display().to_string();
    if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(|| name.clone())?;
        let mut paths: Vec<_> = entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
        paths.retain(|p| {
            p.extension()
                .is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e == *known))
        });
        paths.sort();
        anyhow::ensure!(!paths.is_empty(), "{name}: no .yaml, .yml or .json file is in it");
        return paths.iter().try_for_each(|path| read(path, objects));
    }
    let text = match &*name {
        "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("the standard input")?;
            text
        }
        _ => std::fs::read_to_string(path).with_context(|| name.clone())?,
    };
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
    for document in documents {
        match document {
            Value::Null => {}
            Value::Object(list) if list.get("kind").is_some_and(|kind| kind == "List") => {
                let items = list.get("items").and_then(Value::as_array);
                objects.extend(
                    items
                        .into_iter()
                        .flatten()
                        .map(|item| (name.clone(), item.clone())),
                );
            }
            object => objects.push((name.clone(), object)),
        }
    }
    Ok(())
}
