//! `ostler plan`: shows what reconciling would change.

use std::{
    io::{Read, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{
    kubeconfig::{KubeContext, load_kubeconfig},
    read_grants,
    session::DevSession,
    table::supports_colours,
};
use crate::{
    client::{api::ApiClient, connection::connect},
    host::HostSettings,
    plan::{PlanReport, PlanRequest, plan},
    policy::{network::loopback_networks, rbac::HOST_NAMESPACE},
    sandbox::engine::CompileCache,
    upstream::DigestKey,
};

/// Arguments of `ostler plan`.
#[derive(Args)]
#[command(after_help = "Exit codes:\n  0  nothing would change\n  1  something would change\n  2  error")]
pub struct PlanCommand {
    /// Objects to plan, such as team/platform. Defaults to all objects of the plugins.
    #[arg(value_name = "KIND/NAME")]
    objects: Vec<String>,
    /// File or directory with the desired objects (`-` for standard input). May be repeated.
    #[arg(short, long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Plan the deletion of the objects, including their cleanup.
    #[arg(long, requires = "objects", conflicts_with = "files")]
    delete: bool,
    /// Send requests and credentials to Upstreams whose URL, TLS settings or authentication the plan changes. Without it,
    /// their responses are guesses, so that files of others can be planned.
    #[arg(long)]
    trust_files: bool,
    /// Namespace of the objects. Defaults to all namespaces.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Component that replaces the plugin of the same name. May be repeated. Without objects, all objects of its kinds are
    /// planned.
    #[arg(long = "plugin", value_name = "FILE")]
    builds: Vec<PathBuf>,
    /// Directory of components and their configurations. Defaults to `plugins`; in the folder of a project for which `ostler plugin
    /// dev` runs, the plan is by default about that: its cluster, its component and its permissions.
    #[arg(long, value_name = "DIRECTORY")]
    plugin_dir: Option<PathBuf>,
    /// File with the permissions of each plugin. Without it, plugins from the plugin directory are denied everything.
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Allow upstreams on this private network (10.96.0.0/12) or address (127.0.0.1), in addition to those that the
    /// grants allow. May be repeated.
    #[arg(long = "allow-network", value_name = "CIDR", value_parser = crate::policy::network::parse_network)]
    networks: Vec<ipnet::IpNet>,
    /// Label selector (`team=ci`) of the Plugin objects to plan with, as for `ostler run`.
    #[arg(long, value_name = "SELECTOR", value_parser = crate::kube::selector::LabelSelector::parse)]
    plugin_selector: Option<crate::kube::selector::LabelSelector>,
    /// Use plain HTTP for this registry (`HOST:PORT`). May be repeated. Registries on the loopback interface always use
    /// plain HTTP.
    #[arg(long = "plain-http-registry", value_name = "HOST:PORT")]
    plain_http: Vec<String>,
    /// Directory for compiled components. Only this user may have write access to it.
    #[arg(long, value_name = "DIRECTORY")]
    cache_dir: Option<PathBuf>,
    #[command(flatten)]
    context: KubeContext,
    /// Namespace of the running host. The plan reads the key of digests there, so that only secrets that changed show as
    /// changes. Defaults to `ostler-system`, or to the namespace of the kubeconfig if only that has the key, as with `ostler
    /// dev`.
    #[arg(long, value_name = "NAMESPACE")]
    host_namespace: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "diff")]
    output: Output,
}

/// Output format of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Human-readable diff.
    Diff,
    /// JSON for programs.
    Json,
}

impl PlanCommand {
    /// Computes the plan and prints it.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let session = match self.context.is_named() || self.plugin_dir.is_some() {
            true => None,
            false => DevSession::find(),
        };
        let config = match &session {
            Some(session) => load_kubeconfig(Some(session.kubeconfig.clone())).await?,
            None => self.context.load().await?,
        };
        let mut files = Vec::new();
        for path in &self.files {
            read_objects(path, &mut files)?;
        }
        let plan_request = PlanRequest {
            objects: self.objects,
            default_namespace: self
                .namespace
                .clone()
                .unwrap_or_else(|| config.default_namespace.clone()),
            namespace: self.namespace,
            files,
            builds: self.builds,
            delete: self.delete,
            trust_files: self.trust_files,
        };
        let kubeconfig_namespace = config.default_namespace.clone();
        let client = connect(config)?;
        let own_namespace = match self.host_namespace {
            Some(namespace) => namespace,
            None => {
                let candidates = [HOST_NAMESPACE, &kubeconfig_namespace];
                let reader = ApiClient::new(client.clone());
                DigestKey::find_namespace(&reader, &candidates).await.to_owned()
            }
        };
        let mut network = self.networks;
        let (mut plugins, mut grants) = (self.plugin_dir, self.grants);
        if let Some(session) = session {
            plugins = Some(session.plugins);
            grants = grants.or(Some(session.grants));
            network.extend(loopback_networks());
        }
        let settings = HostSettings {
            plugins: plugins.unwrap_or_else(|| "plugins".into()),
            plugin_selector: self.plugin_selector,
            own_namespace: Some(own_namespace),
            plain_http: self.plain_http,
            grants: read_grants(grants.as_deref())?,
            network,
            workers: 1,
            cache: self.cache_dir.map(|directory| CompileCache {
                directory,
                compiler: std::env::current_exe().ok(),
            }),
            ..HostSettings::default()
        };
        let report = plan(client, settings, &plan_request).await?;
        let text = match self.output {
            Output::Json => serde_json::to_string_pretty(&report)? + "\n",
            Output::Diff => render_report(&report),
        };
        match std::io::stdout().write_all(text.as_bytes()) {
            // The reader closed the pipe, as `head` does.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
        Ok(ExitCode::from(u8::from(report.has_changes())))
    }
}

/// Renders the report as text, with colours on a terminal.
fn render_report(report: &PlanReport) -> String {
    let text = report.text();
    if !supports_colours() {
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

/// Reads the objects of a file, or of all files in a directory.
fn read_objects(path: &std::path::Path, objects: &mut Vec<(String, Value)>) -> anyhow::Result<()> {
    let name = path.display().to_string();
    if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(|| name.clone())?;
        let mut paths: Vec<_> = entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
        paths.retain(|p| {
            p.extension()
                .is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e == *known))
        });
        paths.sort();
        anyhow::ensure!(
            !paths.is_empty(),
            "{name}: the directory has no .yaml, .yml or .json file"
        );
        return paths.iter().try_for_each(|path| read_objects(path, objects));
    }
    let text = match &*name {
        "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("reading standard input")?;
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
