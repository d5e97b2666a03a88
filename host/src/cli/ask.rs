//! What commands that ask a running host share: where it is, and how its answer is shown.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::{Serialize, de::DeserializeOwned};

/// Which host, and in what form.
#[derive(Args)]
pub struct Ask {
    /// The admin server of the host.
    #[arg(
        long,
        env = "OSTLER_ADMIN",
        default_value = "127.0.0.1:8081",
        value_name = "URL"
    )]
    admin: String,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
}

/// How an answer looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// An admin server that is slower than this has other troubles.
const PATIENCE: Duration = Duration::from_secs(30);

impl Ask {
    /// Asks the admin server.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<T> {
        let base = self.admin.trim_end_matches('/');
        let base = match base.contains("://") {
            true => base.to_owned(),
            false => format!("http://{base}"),
        };
        let url = reqwest::Url::parse_with_params(&format!("{base}{path}"), query)
            .with_context(|| format!("--admin {:?} is no URL", self.admin))?;
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?;
        let answer = client.get(url).send().await.map_err(|e| {
            let why = crate::upstream::cause(&e);
            anyhow::anyhow!(
                "no admin server at {base} ({why}). Does a host run there? One in a cluster is reached with \
                 `kubectl -n NAMESPACE port-forward deployment/ostler 8081`; one elsewhere with --admin URL or OSTLER_ADMIN"
            )
        })?;
        let status = answer.status();
        let body = answer.bytes().await.context("the admin server's answer")?;
        if status.is_success() {
            return serde_json::from_slice(&body)
                .with_context(|| format!("{base} does not answer as an Ostler admin server does"));
        }
        let message: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        match message.as_ref().and_then(|m| m["message"].as_str()) {
            Some(message) => bail!("{message}"),
            None => bail!("{base}{path}: HTTP {status}; is it an Ostler admin server?"),
        }
    }

    /// Prints an answer as JSON, or as it says itself.
    pub fn show<T: Serialize>(&self, answer: &T, table: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
        match self.output {
            Output::Json => println!("{}", serde_json::to_string_pretty(answer)?),
            Output::Table => print!("{}", table(answer)),
        }
        Ok(())
    }
}
