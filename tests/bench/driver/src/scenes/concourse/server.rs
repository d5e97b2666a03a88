//! The Concourse simulator in a process of its own, and its counters.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result};
use serde::Deserialize;
use tokio::process::Command;

use crate::process::SubjectProcess;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Counters of requests.
#[derive(Deserialize)]
pub struct SimulatorCounters {
    reads: u64,
    /// Writes, without logins.
    pub writes: u64,
    /// Requests for a token.
    pub logins: u64,
    /// Triggered builds.
    pub triggers: u64,
    /// Requests by method and route.
    pub routes: BTreeMap<String, u64>,
}

impl SimulatorCounters {
    /// Returns the number of all requests.
    pub fn total_requests(&self) -> u64 {
        self.reads + self.writes + self.logins
    }
}

/// A running simulator.
pub struct SimulatorServer {
    process: SubjectProcess,
    url: String,
    http: reqwest::Client,
}

impl SimulatorServer {
    /// Starts a simulator.
    pub async fn start(program: &Path, folder: &Path) -> Result<Self> {
        let url_file = folder.join("concourse.url");
        // Left by the previous subject.
        let _ = std::fs::remove_file(&url_file);
        let mut command = Command::new(program);
        command.arg("--url-file").arg(&url_file);
        let mut process =
            SubjectProcess::spawn("concourse-simulator", command, &folder.join("concourse.log"))?;
        let wait = async {
            loop {
                match std::fs::read_to_string(&url_file) {
                    Ok(url) if !url.is_empty() => return anyhow::Ok(url),
                    _ => process.check_running()?,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let url = tokio::time::timeout(START_TIMEOUT, wait)
            .await
            .context("the simulator does not start")??;
        Ok(Self {
            process,
            url,
            http: reqwest::Client::new(),
        })
    }

    /// Returns its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn counters_url(&self) -> String {
        format!("{}/_sim/counters", self.url)
    }

    /// Fetches the counters since the last reset.
    pub async fn fetch_counters(&self) -> Result<SimulatorCounters> {
        let answer = self.http.get(self.counters_url()).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Resets the counters.
    pub async fn reset_counters(&self) -> Result<()> {
        let answer = self.http.delete(self.counters_url()).send().await?;
        answer.error_for_status().map(drop).map_err(Into::into)
    }

    /// Terminates the simulator.
    pub async fn terminate(self) -> Result<()> {
        self.process.terminate().await
    }
}
