//! Arguments and the HTTP client of commands that query a running host.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::{
    completion::{namespace_completer, object_completer},
    connection::{HostAddress, HostClient, root_cause},
};

/// Address of the host and output format.
#[derive(Args)]
pub struct Ask {
    #[command(flatten)]
    pub server: HostAddress,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: AnswerFormat,
}

/// Identity of an object.
#[derive(Args)]
pub struct ObjectArguments {
    /// Object, such as `team/platform`, or `Team.concourse-ci.org/platform` if several groups have the kind.
    #[arg(value_name = "KIND/NAME", add = object_completer())]
    pub object: String,
    /// Namespace of the object. Required if the name is ambiguous.
    #[arg(short, long, add = namespace_completer())]
    pub namespace: Option<String>,
}

impl ObjectArguments {
    /// Query parameters for the admin server.
    pub fn query(&self) -> anyhow::Result<Vec<(&str, &str)>> {
        query(&self.object, self.namespace.as_deref())
    }
}

/// Identities of objects in one namespace.
#[derive(Args)]
pub struct NamespaceArguments {
    /// Objects, such as `team/platform`. `plugin/greeting` stands for a plugin.
    #[arg(value_name = "KIND/NAME", required = true, add = object_completer())]
    pub objects: Vec<String>,
    /// Namespace of the objects. Required if a name is ambiguous.
    #[arg(short, long, add = namespace_completer())]
    pub namespace: Option<String>,
}

impl NamespaceArguments {
    /// Each object with its query parameters for the admin server.
    pub fn queries(&self) -> impl Iterator<Item = anyhow::Result<(&str, Vec<(&str, &str)>)>> {
        let namespace = self.namespace.as_deref();
        let objects = self.objects.iter();
        objects.map(move |object| Ok((&**object, query(object, namespace)?)))
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

/// Output format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AnswerFormat {
    /// Human-readable text.
    Table,
    /// Text with more columns, where there are more.
    Wide,
    /// JSON for programs.
    Json,
    /// YAML.
    Yaml,
}

impl AnswerFormat {
    /// Returns true for text that a human reads.
    pub fn is_text(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Output format of other commands. Streams have one JSON object per line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Human-readable text.
    Table,
    /// JSON for programs.
    Json,
}

/// Time until the admin server begins to answer, which it does from memory.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

impl Ask {
    /// Queries the admin server.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<T> {
        self.server.connect().await?.get(path, query).await
    }

    /// Prints a response as JSON or as text.
    pub fn print_answer<T: Serialize>(
        &self,
        answer: &T,
        table: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        match self.output {
            AnswerFormat::Json => println!("{}", serde_json::to_string_pretty(answer)?),
            AnswerFormat::Yaml => print!("{}", serde_saphyr::to_string(answer)?),
            AnswerFormat::Table | AnswerFormat::Wide => print!("{}", table(answer)),
        }
        Ok(())
    }
}

/// Time in which a further leader must be found for a command that goes on: leases last 15 s.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of looking for it.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

impl HostAddress {
    /// Sends a GET request and parses the response. A host that does not answer any more is looked for again, since there may be
    /// another leader.
    pub async fn get_again<T: DeserializeOwned>(
        &self,
        host: &mut HostClient,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<T> {
        let until = Instant::now() + RECONNECT_TIMEOUT;
        loop {
            let error = match host.get(path, query).await {
                Ok(answer) => return Ok(answer),
                // What the host says itself would be said again.
                Err(e) if e.is::<HostError>() => return Err(e),
                Err(e) => e,
            };
            if Instant::now() > until {
                return Err(error);
            }
            tokio::time::sleep(RECONNECT_INTERVAL).await;
            if let Ok(connected) = self.connect().await {
                *host = connected;
            }
        }
    }
}

/// An error that the host has answered with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct HostError(String);

impl HostClient {
    /// Sends a GET request and parses the response.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<T> {
        self.fetch(Method::GET, path, query).await
    }

    /// Sends a request and parses the response.
    pub async fn fetch<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<T> {
        let text = self.fetch_text(method, path, query).await?;
        serde_json::from_str(&text).with_context(|| format!("{} is not an Ostler admin server", self.place))
    }

    /// Sends a request and reads the response.
    pub async fn fetch_text(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let answer = self.send(method, path, query).await?;
        let body = answer.collect_bytes().await;
        let body = body.map_err(|e| explain_broken_answer(&self.place, &e))?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Opens a stream of JSON lines.
    pub async fn open_lines(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<Lines> {
        Ok(Lines {
            place: self.place.clone(),
            answer: self.send(method, path, query).await?,
            begun: Vec::new(),
        })
    }

    /// Sends a request, and returns the body of its successful response.
    async fn send(&self, method: Method, path: &str, query: &[(&str, &str)]) -> anyhow::Result<Body> {
        let place = &self.place;
        let mut parameters = form_urlencoded::Serializer::new(String::new());
        parameters.extend_pairs(query);
        let request = Request::builder()
            .method(method)
            .uri(format!("{path}?{}", parameters.finish()))
            .body(Body::empty())?;
        let sent = timeout(RESPONSE_TIMEOUT, self.client.send(request)).await;
        let sent = sent.map_err(|_| anyhow::anyhow!("{place} gives no answer"))?;
        let (head, body) = sent.map_err(|e| self.explain_failure(&e))?.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let body = body.collect_bytes().await;
        let body = body.map_err(|e| explain_broken_answer(&self.place, &e))?;
        let message: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        match message.as_ref().and_then(|m| m["message"].as_str()) {
            Some(message) => Err(HostError(message.to_owned()).into()),
            None => bail!(
                "{place}{path}: HTTP {}; is it an Ostler admin server?",
                head.status
            ),
        }
    }

    fn explain_failure(&self, error: &kube::Error) -> anyhow::Error {
        let (place, why) = (&self.place, root_cause(error));
        if self.default_namespace.is_some() {
            return anyhow::anyhow!("the leader, {place}, can't be reached: {why}");
        }
        anyhow::anyhow!(
            "no admin server at {place} ({why}). Does a host run there? One in a cluster is asked by `kubectl ostler`, one elsewhere \
             with --admin URL or OSTLER_ADMIN"
        )
    }
}

/// Explains an answer that ends before it is complete, as it does when the host ends.
fn explain_broken_answer(place: &str, error: &kube::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "{place} ended its answer before it was complete: {}",
        root_cause(error)
    )
}

/// JSON lines of a streamed response.
pub struct Lines {
    place: String,
    answer: Body,
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
            let Some(frame) = self.answer.frame().await else {
                return Ok(None);
            };
            let frame = frame.map_err(|e| explain_broken_answer(&self.place, &e))?;
            self.begun
                .extend_from_slice(frame.data_ref().map_or(&[], |chunk| chunk));
        }
    }
}
