//! `ostler top`: plugins by what they use.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use clap::Args;
use http::Method;
use serde::Serialize;

use super::{
    ask::{AnswerFormat, Ask},
    connection::HostClient,
    table::{Shade, cell, format_seconds, table},
};
use crate::{observe::metrics::definitions, recording::trace::format_size};

/// Arguments of `ostler top`.
#[derive(Args)]
pub struct TopCommand {
    /// Time over which rates are measured.
    #[arg(long, default_value = "2s", value_parser = super::parse_duration)]
    interval: Duration,
    /// Print the use again after each interval, until interrupted.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    ask: Ask,
}

impl TopCommand {
    /// Reads the metrics of the host twice, and prints the difference.
    pub async fn run(self) -> anyhow::Result<()> {
        let host = self.ask.server.connect().await?;
        let mut before = Reading::fetch(&host).await?;
        loop {
            tokio::time::sleep(self.interval).await;
            let after = Reading::fetch(&host).await?;
            let used = compare_readings(&before, &after);
            self.ask.print_answer(&used, |used| {
                format_use(used, self.ask.output == AnswerFormat::Wide)
            })?;
            if !self.watch {
                return Ok(());
            }
            println!();
            before = after;
        }
    }
}

/// The counters of plugins at a time, by plugin and name of the metric.
struct Reading {
    at: Instant,
    counters: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Reading {
    async fn fetch(host: &HostClient) -> anyhow::Result<Self> {
        let text = host.fetch_text(Method::GET, "/metrics", &[]).await?;
        Ok(Self::parse(&text, Instant::now()))
    }

    /// Reads the samples with a label `plugin` or `controller`. Those with further labels are added up.
    fn parse(text: &str, at: Instant) -> Self {
        let mut counters: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, rest)) = line.split_once('{') else {
                continue;
            };
            let Some((labels, value)) = rest.rsplit_once("} ") else {
                continue;
            };
            let label = |key: &str| {
                let parts = labels.split("\",").map(|part| part.trim_end_matches('"'));
                let mut parts = parts.filter_map(|part| part.split_once("=\""));
                parts.find_map(|(name, value)| (name == key).then_some(value))
            };
            let (Some(plugin), Ok(value)) = (
                label("plugin").or(label("controller")),
                value.trim().parse::<f64>(),
            ) else {
                continue;
            };
            let counters = counters.entry(plugin.to_owned()).or_default();
            *counters.entry(name.to_owned()).or_default() += value;
        }
        Self { at, counters }
    }
}

/// The use of a plugin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PluginUse {
    plugin: String,
    reconciles_per_second: f64,
    errors_per_second: f64,
    /// Share of a core that its code used, in thousandths.
    cpu_millicores: f64,
    /// Mean duration of a call, of those in the interval or of all if there were none.
    call_seconds: f64,
    /// Mean memory of a call at its end, likewise.
    memory_bytes: f64,
    host_calls_per_second: f64,
    /// Reconciles since the host has started.
    reconciles: f64,
    /// Failed ones among them.
    errors: f64,
}

/// The use of each plugin between two readings, most CPU time first.
fn compare_readings(before: &Reading, after: &Reading) -> Vec<PluginUse> {
    let seconds = after.at.duration_since(before.at).as_secs_f64().max(0.001);
    let mut used: Vec<PluginUse> = Vec::new();
    // The host's own reconcilers have no component.
    let is_plugin =
        |counters: &BTreeMap<String, f64>| counters.contains_key(definitions::COMPONENT_INFO.name);
    for (plugin, now) in after.counters.iter().filter(|(_, now)| is_plugin(now)) {
        let total = |name: &str| now.get(name).copied().unwrap_or_default();
        let then = |name: &str| {
            before
                .counters
                .get(plugin)
                .and_then(|then| then.get(name))
                .copied()
        };
        // After a restart of the host, counters begin again.
        let change = |name: &str| (total(name) - then(name).unwrap_or_default()).max(0.0);
        let mean = |name: &str| {
            let (sum, count) = (format!("{name}_sum"), format!("{name}_count"));
            match (change(&count), total(&count)) {
                (0.0, 0.0) => 0.0,
                (0.0, count) => total(&sum) / count,
                (count, _) => change(&sum) / count,
            }
        };
        let counter = |name: &str| format!("{name}_total");
        let reconciles = counter(definitions::RECONCILES.name);
        let errors = counter(definitions::RECONCILE_ERRORS.name);
        used.push(PluginUse {
            plugin: plugin.clone(),
            reconciles_per_second: change(&reconciles) / seconds,
            errors_per_second: change(&errors) / seconds,
            cpu_millicores: change(&counter(definitions::CPU_SECONDS.name)) / seconds * 1000.0,
            call_seconds: mean(definitions::CALL_SECONDS.name),
            memory_bytes: mean(definitions::MEMORY_BYTES.name),
            host_calls_per_second: change(&counter(definitions::HOST_CALLS.name)) / seconds,
            reconciles: total(&reconciles),
            errors: total(&errors),
        });
    }
    used.sort_by(|a, b| b.cpu_millicores.total_cmp(&a.cpu_millicores));
    used
}

fn format_use(used: &[PluginUse], wide: bool) -> String {
    let mut header = vec![
        "PLUGIN",
        "RECONCILES/S",
        "ERRORS/S",
        "CPU",
        "CALL",
        "MEMORY",
        "HOST CALLS/S",
    ];
    if wide {
        header.extend(["RECONCILES", "ERRORS"]);
    }
    let rows = used.iter().map(|used| {
        let errors = if used.errors_per_second > 0.0 {
            Shade::Bad
        } else {
            Shade::Plain
        };
        let mut cells = vec![
            cell(&used.plugin, Shade::Plain),
            cell(format!("{:.1}", used.reconciles_per_second), Shade::Plain),
            cell(format!("{:.1}", used.errors_per_second), errors),
            cell(format!("{:.0}m", used.cpu_millicores), Shade::Plain),
            cell(format_seconds(used.call_seconds), Shade::Plain),
            cell(format_size(used.memory_bytes as usize), Shade::Plain),
            cell(format!("{:.1}", used.host_calls_per_second), Shade::Plain),
        ];
        if wide {
            cells.push(cell(used.reconciles, Shade::Plain));
            cells.push(cell(used.errors, Shade::Plain));
        }
        cells
    });
    table(&header, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_the_difference_of_two_readings_by_time() {
        let [info, reconciles, errors, cpu, memory, calls] = [
            definitions::COMPONENT_INFO.name,
            definitions::RECONCILES.name,
            definitions::RECONCILE_ERRORS.name,
            definitions::CPU_SECONDS.name,
            definitions::MEMORY_BYTES.name,
            definitions::HOST_CALLS.name,
        ];
        let text = |succeeded: u32, failed: u32, seconds: f64, count: u32, sum: f64| {
            format!(
                "# TYPE {reconciles} counter\n\
                 {info}{{plugin=\"a\",version=\"1\",digest=\"c0ffee\"}} 1\n\
                 {info}{{plugin=\"b\",version=\"1\",digest=\"c0ffee\"}} 1\n\
                 {reconciles}_total{{controller=\"upstreams\",result=\"success\"}} 5\n\
                 {reconciles}_total{{controller=\"a\",result=\"success\"}} {succeeded}\n\
                 {reconciles}_total{{controller=\"a\",result=\"error\"}} {failed}\n\
                 {errors}_total{{controller=\"a\"}} {failed}\n\
                 {cpu}_total{{plugin=\"a\"}} {seconds}\n\
                 {memory}_sum{{plugin=\"a\"}} {sum}\n\
                 {memory}_count{{plugin=\"a\"}} {count}\n\
                 {calls}_total{{plugin=\"a\",call=\"kubernetes.get\"}} {count}\n\
                 {calls}_total{{plugin=\"b\",call=\"kubernetes.get\"}} 7\n\
                 other_total 3\n"
            )
        };
        let began = Instant::now();
        let before = Reading::parse(&text(10, 1, 1.0, 4, 400.0), began);
        let after = Reading::parse(&text(16, 3, 1.5, 6, 800.0), began + Duration::from_secs(2));
        let used = compare_readings(&before, &after);
        let names: Vec<_> = used.iter().map(|used| &*used.plugin).collect();
        assert_eq!(names, ["a", "b"]);
        let a = &used[0];
        assert_eq!(
            (a.reconciles_per_second, a.errors_per_second, a.cpu_millicores),
            (4.0, 1.0, 250.0)
        );
        assert_eq!((a.memory_bytes, a.host_calls_per_second), (200.0, 1.0));
        assert_eq!((a.reconciles, a.errors), (19.0, 3.0));
        let table = format_use(&used, true);
        for words in ["250m", "200 B", "19"] {
            assert!(table.contains(words), "{words} in\n{table}");
        }
        let idle = compare_readings(&after, &Reading::parse(&text(16, 3, 1.5, 6, 800.0), after.at));
        assert!(
            (idle[0].memory_bytes - 800.0 / 6.0).abs() < 0.01,
            "the mean of all calls"
        );
    }
}
