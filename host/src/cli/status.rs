//! `ostler status`: the status of a running host.

use clap::Args;

use super::{
    ask::Ask,
    table::{Shade, cell, join_reason, section, table},
};
use crate::{
    admin::status::{ComponentStatus, HostStatus, WatchStatus},
    plugin::{HookState, LoadState},
};

/// Arguments of `ostler status`.
#[derive(Args)]
pub struct StatusCommand {
    #[command(flatten)]
    ask: Ask,
}

impl StatusCommand {
    /// Queries the host and prints its status.
    pub async fn run(self) -> anyhow::Result<()> {
        let status: HostStatus = self.ask.get("/status", &[]).await?;
        self.ask.print_answer(&status, format_status)
    }
}

/// The status as text: counts first, then failures.
fn format_status(status: &HostStatus) -> String {
    let sections = [
        format_summary(status),
        format_plugins(status),
        format_objects(status),
        format_watches(status),
        format_not_ready(status),
        format_errors(status),
    ];
    sections.concat()
}

/// Numbers of all objects, and of those that are Ready.
fn count_objects(status: &HostStatus) -> (usize, usize) {
    let objects = status.objects.iter();
    objects.fold((0, 0), |(total, ready), o| (total + o.total, ready + o.ready))
}

fn format_summary(status: &HostStatus) -> String {
    let (total, ready) = count_objects(status);
    let mut out = format!("Ostler {}: {ready} of {total} objects Ready", status.version);
    for lease in &status.leases {
        let word = if lease.leads { "leads" } else { "stands by" };
        out.push_str(&format!(", {word} ({})", lease.name));
    }
    out.push('\n');
    if let Some(error) = &status.grants_error {
        out.push_str(&format!(
            "The grants file is invalid, the previous grants still apply: {error}\n"
        ));
    }
    out
}

fn format_plugins(status: &HostStatus) -> String {
    let plugins = status.plugins.iter().map(|p| {
        let shade = match p.state {
            LoadState::Serving => Shade::Good,
            LoadState::Refused | LoadState::Suspended | LoadState::Loading => Shade::Waiting,
            LoadState::RolledBack | LoadState::Failed => Shade::Bad,
        };
        let queue = status.queue.iter().find(|q| q.plugin == p.name);
        vec![
            cell(&p.name, Shade::Plain),
            cell(&p.version, Shade::Plain),
            cell(p.digest.get(..12).unwrap_or_default(), Shade::Faint),
            cell(p.state, shade),
            cell(format_canary(p), Shade::Plain),
            cell(queue.map_or(0, |q| q.due), Shade::Plain),
            cell(queue.map_or(0, |q| q.running), Shade::Plain),
            cell(format_problem(p), Shade::Bad),
        ]
    });
    let header = [
        "PLUGIN", "VERSION", "DIGEST", "STATE", "CANARY", "DUE", "RUNNING", "",
    ];
    optional_section("Plugins", &header, plugins.collect())
}

fn format_objects(status: &HostStatus) -> String {
    let objects = status.objects.iter().map(|o| {
        let shade = if o.ready == o.total {
            Shade::Good
        } else {
            Shade::Waiting
        };
        vec![
            cell(&o.kind, Shade::Plain),
            cell(format!("{}/{}", o.ready, o.total), shade),
        ]
    });
    optional_section("Objects", &["KIND", "READY"], objects.collect())
}

/// The watches that are not synced. A kind that is narrowed is watched in the namespaces where it is needed.
fn format_watches(status: &HostStatus) -> String {
    let is_pending = |w: &&WatchStatus| w.state != "synced" && w.state != "narrowed";
    let watches = status.watches.iter().filter(is_pending).map(|w| {
        let shade = if w.state == "failing" {
            Shade::Bad
        } else {
            Shade::Waiting
        };
        let namespace = match &*w.namespace {
            "" => "all",
            namespace => namespace,
        };
        vec![
            cell(&w.kind, Shade::Plain),
            cell(namespace, Shade::Plain),
            cell(&w.state, shade),
            cell(&w.message, Shade::Plain),
        ]
    });
    let header = ["KIND", "NAMESPACE", "STATE", ""];
    optional_section("Watches that are not synced", &header, watches.collect())
}

fn format_not_ready(status: &HostStatus) -> String {
    let not_ready = status.not_ready.iter().map(|o| {
        vec![
            cell(&o.namespace, Shade::Plain),
            cell(format!("{}/{}", o.kind, o.name), Shade::Waiting),
            cell(join_reason(&o.reason, &o.message), Shade::Plain),
        ]
    });
    let header = ["NAMESPACE", "OBJECT", "WHY"];
    let mut out = optional_section("Not Ready", &header, not_ready.collect());
    let (total, ready) = count_objects(status);
    let listed = status.not_ready.len();
    if total - ready > listed {
        out.push_str(&format!("and {} more\n", total - ready - listed));
    }
    out
}

fn format_errors(status: &HostStatus) -> String {
    let errors = status.errors.iter().map(|e| {
        vec![
            cell(&e.error.at, Shade::Faint),
            cell(&e.object, Shade::Plain),
            cell(join_reason(&e.error.reason, &e.error.message), Shade::Bad),
            cell(format!("×{}", e.error.count), Shade::Faint),
        ]
    });
    let header = ["AT", "OBJECT", "ERROR", "TIMES"];
    optional_section("Last errors", &header, errors.collect())
}

/// The canary build that serves a part of the objects.
fn format_canary(plugin: &ComponentStatus) -> String {
    let Some(canary) = &plugin.canary else {
        return String::new();
    };
    let short = canary.digest.get(..12).unwrap_or_default();
    match canary.state {
        LoadState::Serving => format!(
            "{short} for {}: {} objects, {} fail",
            canary.objects, canary.reconciled, canary.failing
        ),
        LoadState::Loading => LoadState::Loading.to_string(),
        state => format!("{short} {state}: {}", canary.message)
            .trim_start()
            .to_owned(),
    }
}

/// The problems of a plugin.
fn format_problem(plugin: &ComponentStatus) -> String {
    if plugin.message.is_empty() && plugin.trapping > 0 {
        return format!("{} objects trap", plugin.trapping);
    }
    let hooks = match &plugin.hooks {
        HookState::None | HookState::Done => return plugin.message.clone(),
        HookState::Pending => "pending",
        HookState::Failed(why) => why,
    };
    if plugin.message.is_empty() {
        format!("hooks: {hooks}")
    } else {
        format!("{}; hooks: {hooks}", plugin.message)
    }
}

fn optional_section(title: &str, header: &[&str], rows: Vec<Vec<comfy_table::Cell>>) -> String {
    if rows.is_empty() {
        String::new()
    } else {
        section(title, &table(header, rows))
    }
}
