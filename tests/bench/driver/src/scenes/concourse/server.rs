//! The Concourse simulator, a process of its own, and what it counts.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result};
use serde::Deserialize;
use tokio::process::Command;

use crate::process::Process;

const PATIENCE: Duration = Duration::from_secs(30);

/// What it was asked.
#[derive(Deserialize)]
pub struct Counters {
    reads: u64,
    /// Without logins.
    pub writes: u64,
    /// Requests for a token.
    pub logins: u64,
    /// Builds that were begun.
    pub triggers: u64,
    /// By method and route.
    pub routes: BTreeMap<String, u64>,
}

impl Counters {
    /// All requests.
    pub fn all(&self) -> u64 {
        self.reads + self.writes + self.logins
    }
}

/// A simulator that runs.
pub struct Server {
    process: Process,
    url: String,
    http: reqwest::Client,
}

impl Server {
    /// Starts one.
    pub async fn start(program: &Path, folder: &Path) -> Result<Self> {
        let said = folder.join("concourse.url");
        // Left by the one before.
        let _ = std::fs::remove_file(&said);
        let mut command = Command::new(program);
        command.arg("--url-file").arg(&said);
        let mut process = Process::spawn("concourse-simulator", command, &folder.join("concourse.log"))?;
        let wait = async {
            loop {
                match std::fs::read_to_string(&said) {
                    Ok(url) if !url.is_empty() => return anyhow::Ok(url),
                    _ => process.still_runs()?,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let url = tokio::time::timeout(PATIENCE, wait)
            .await
            .context("the simulator does not come up")??;
        Ok(Self {
            process,
            url,
            http: reqwest::Client::new(),
        })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn counted(&self) -> String {
        format!("{}/_sim/counters", self.url)
    }

    /// What it was asked since the last reset.
    pub async fn counters(&self) -> Result<Counters> {
        let answer = self.http.get(self.counted()).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Counts from nothing again.
    pub async fn reset(&self) -> Result<()> {
        let answer = self.http.delete(self.counted()).send().await?;
        answer.error_for_status().map(drop).map_err(Into::into)
    }

    /// Ends it.
    pub async fn end(self) -> Result<()> {
        self.process.end().await
    }
}
