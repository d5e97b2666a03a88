//! Arguments and the HTTP client of commands that query a running host.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use reqwest::Method;
use serde::{Serialize, de::DeserializeOwned};

use crate::kube::well_known::environment;

/// Address of the host and output format.
#[derive(Args)]
pub struct Ask {
    #[command(flatten)]
    pub server: Server,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
}

/// Address of the host.
#[derive(Args)]
pub struct Server {
    /// URL of the host's admin server.
    #[arg(
        long,
        env = environment::OSTLER_ADMIN,
        default_value = "127.0.0.1:8081",
        value_name = "URL"
    )]
    admin: String,
}

/// Identity of an object.
#[derive(Args)]
pub struct Object {
    /// Object, such as `team/platform`, or `Team.concourse-ci.org/platform` if several groups have the kind.
    #[arg(value_name = "KIND/NAME")]
    pub object: String,
    /// Namespace of the object. Required if the name is ambiguous.
    #[arg(short, long)]
    pub namespace: Option<String>,
}

impl Object {
    /// Query parameters for the admin server.
    pub fn query(&self) -> anyhow::Result<Vec<(&str, &str)>> {
        query(&self.object, self.namespace.as_deref())
    }
}

/// Query parameters for KIND/NAME and a namespace.
pub fn query<'a>(object: &'a str, namespace: Option<&'a str>) -> anyhow::Result<Vec<(&'a str, &'a str)>> {
    let (kind, name) = object
        .split_once('/')
        .filter(|(kind, name)| !kind.is_empty() && !name.is_empty())
        .with_context(|| format!("{object:?}: KIND/NAME is needed, for example team/platform"))?;
    let mut query = vec![("kind", kind), ("name", name)];
    query.extend(namespace.map(|n| ("namespace", n)));
    Ok(query)
}

/// Output format of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Human-readable text.
    Table,
    /// JSON for programs.
    Json,
}

/// Timeout of a request to the admin server, which answers from memory.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

impl Ask {
    /// Queries the admin server.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<T> {
        self.server.get(path, query).await
    }

    /// Prints a response as JSON or as text.
    pub fn print_answer<T: Serialize>(
        &self,
        answer: &T,
        table: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        match self.output {
            Output::Json => println!("{}", serde_json::to_string_pretty(answer)?),
            Output::Table => print!("{}", table(answer)),
        }
        Ok(())
    }
}

impl Server {
    /// Sends a GET request and parses the response.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<T> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(REQUEST_TIMEOUT)
            .build()?;
        let answer = self.send(&client, Method::GET, path, query).await?;
        let body = answer.bytes().await.context("the admin server's answer")?;
        serde_json::from_slice(&body).with_context(|| format!("{} is not an Ostler admin server", self.admin))
    }

    /// Opens a stream of JSON lines.
    pub async fn open_lines(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<Lines> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(REQUEST_TIMEOUT)
            .build()?;
        Ok(Lines {
            answer: self.send(&client, method, path, query).await?,
            begun: Vec::new(),
        })
    }

    async fn send(
        &self,
        client: &reqwest::Client,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<reqwest::Response> {
        let base = self.admin.trim_end_matches('/');
        let base = if base.contains("://") {
            base.to_owned()
        } else {
            format!("http://{base}")
        };
        let url = reqwest::Url::parse_with_params(&format!("{base}{path}"), query)
            .with_context(|| format!("--admin {:?} is no URL", self.admin))?;
        let answer = client.request(method, url).send().await.map_err(|e| {
            let why = crate::upstream::root_cause(&e);
            anyhow::anyhow!(
                "no admin server at {base} ({why}). Does a host run there? One in a cluster is reached with \
                 `kubectl -n NAMESPACE port-forward deployment/ostler 8081`; one elsewhere with --admin URL or OSTLER_ADMIN"
            )
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.bytes().await.context("the admin server's answer")?;
        let message: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        match message.as_ref().and_then(|m| m["message"].as_str()) {
            Some(message) => bail!("{message}"),
            None => bail!("{base}{path}: HTTP {status}; is it an Ostler admin server?"),
        }
    }
}

/// JSON lines of a streamed response.
pub struct Lines {
    answer: reqwest::Response,
    begun: Vec<u8>,
}

impl Lines {
    /// The next non-empty line; `None` at the end.
    pub async fn next_line<T: DeserializeOwned>(&mut self) -> anyhow::Result<Option<T>> {
        loop {
            if let Some(end) = self.begun.iter().position(|b| *b == b'\n') {
                let rest = self.begun.split_off(end + 1);
                let line = std::mem::replace(&mut self.begun, rest);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Ok(Some(
                    serde_json::from_slice(&line).context("the admin server's line")?,
                ));
            }
            match self.answer.chunk().await.context("the admin server's answer")? {
                Some(chunk) => self.begun.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}
