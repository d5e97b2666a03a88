//! A real Prometheus on loopback, which scrapes hosts and evaluates rules.

use std::{
    fs,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::wait_for;

/// Interval of scrapes and of evaluations.
const INTERVAL: &str = "500ms";

/// A Prometheus, ended when dropped.
pub struct Prometheus {
    process: Child,
    address: SocketAddr,
    client: reqwest::Client,
    folder: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus with these groups of rules (YAML), and nothing to scrape.
    pub async fn start(rules: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        write("rules.yaml", rules);
        write("targets.json", "[]");
        write(
            "prometheus.yaml",
            &format!(
                "global: {{scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}, evaluation_interval: {INTERVAL}}}\n\
                 rule_files: [rules.yaml]\n\
                 scrape_configs: [{{job_name: ostler, file_sd_configs: [{{files: [targets.json]}}]}}]\n"
            ),
        );
        let process = Command::new(find_program("prometheus"))
            .args([
                "--config.file=prometheus.yaml",
                "--web.listen-address=127.0.0.1:0",
            ])
            .arg("--storage.tsdb.path=data")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log")).expect("a log"))
            .process_group(0)
            .spawn()
            .expect("Prometheus starts");
        let id = process.id();
        let log = || fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        let address = wait_for(
            async || find_listener(id),
            || format!("Prometheus listens:\n{}", log()),
        )
        .await;
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        // It listens before its API answers: 503 until its storage is open.
        let ready = format!("http://{address}/-/ready");
        wait_for(
            async || {
                let answer = client.get(&ready).send().await.ok()?;
                answer.status().is_success().then_some(())
            },
            || format!("Prometheus is ready:\n{}", log()),
        )
        .await;
        Self {
            process,
            address,
            client,
            folder,
        }
    }

    /// Sets the admin servers (`HOST:PORT`) that are scraped, each with the namespace and the pod that it stands for.
    pub fn set_targets(&self, targets: &[(&str, &str, &str)]) {
        let groups: Vec<Value> = targets
            .iter()
            .map(|(address, namespace, pod)| json!({"targets": [address], "labels": {"namespace": namespace, "pod": pod}}))
            .collect();
        // Renamed, so that no half of it is read.
        let [partial, whole] = ["targets.partial", "targets.json"].map(|name| self.folder.path().join(name));
        fs::write(&partial, json!(groups).to_string()).expect("written");
        fs::rename(partial, whole).expect("renamed");
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let url = format!("http://{}/api/v1/{path}", self.address);
        let answer = self.client.get(url).query(query).send().await.expect("an answer");
        let answer: Value = answer.json().await.expect("JSON");
        assert_eq!(answer["status"], "success", "{path} {query:?}: {answer}");
        answer["data"].clone()
    }

    /// Evaluates an expression. Returns its series.
    pub async fn query(&self, expression: &str) -> Vec<Value> {
        let data = self.get("query", &[("query", expression)]).await;
        data["result"].as_array().cloned().unwrap_or_default()
    }

    /// Returns the alerts that fire, each with its labels and annotations.
    pub async fn list_firing(&self) -> Vec<Value> {
        let data = self.get("alerts", &[]).await;
        let alerts = data["alerts"].as_array().cloned().unwrap_or_default();
        alerts
            .into_iter()
            .filter(|alert| alert["state"] == "firing")
            .collect()
    }

    /// Returns the rules whose evaluation failed, each with its error.
    pub async fn list_failed_rules(&self) -> Vec<String> {
        let data = self.get("rules", &[]).await;
        let groups = data["groups"].as_array().cloned().unwrap_or_default();
        let rules = groups
            .iter()
            .flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default());
        rules
            .filter(|rule| rule["health"] == "err")
            .map(|rule| format!("{}: {}", rule["name"], rule["lastError"]))
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a program of Debian's package: of the folder that `cargo xtask test` sets, or of the `PATH`.
pub fn find_program(name: &str) -> PathBuf {
    std::env::var_os("OSTLER_TEST_PROMETHEUS")
        .map_or_else(|| name.into(), |folder| Path::new(&folder).join(name))
}

/// Finds the address at which a process listens: it does not say which port the kernel has chosen.
fn find_listener(process: u32) -> Option<SocketAddr> {
    let open = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let links: Vec<PathBuf> = open
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    // Number, local address, remote address, state (0A: listening), four columns, inode.
    let listeners = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = fields.get(1)?.split_once(':')?;
        let inode = fields.get(9)?;
        (*fields.get(3)? == "0A").then(|| (format!("socket:[{inode}]"), port.to_owned()))
    });
    let mut own = listeners.filter(|(link, _)| links.iter().any(|open| open.as_os_str() == link.as_str()));
    let (_, port) = own.next()?;
    Some(([127, 0, 0, 1], u16::from_str_radix(&port, 16).ok()?).into())
}
