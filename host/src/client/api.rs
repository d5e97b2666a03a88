//! The API server, as bytes: discovery, raw requests and their errors.
//!
//! kube's client brings what is hard about talking to an API server (kubeconfig,
//! TLS, exec plugins, token refresh); objects stay bytes from here on.

mod discovery;
mod error;
mod interceptor;
mod list;
mod target;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use kube::{Client, client::Body};

pub(crate) use self::error::complain;
use self::error::innermost;
pub use self::{
    discovery::Resource,
    error::{ApiError, parse, status_error},
    interceptor::{Collected, Layer, Write, Written},
    target::{Target, dry},
};
use crate::{
    client::fence::Gate, kube::key::Gvk, observe::metrics::RestClient, policy::grants::ServiceAccount,
};

/// How a write is counted and told apart in the server's logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// RFC 7386.
    Merge,
    /// Server-side apply.
    Apply,
}

/// Which metadata-only answer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    /// `PartialObjectMetadata`, or a watch of them.
    Object,
    /// `PartialObjectMetadataList`.
    List,
}

impl As {
    fn accept(self) -> &'static str {
        match self {
            Self::Object => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            Self::List => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        }
    }
}

/// One cluster's API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// Counts requests, to the host of this name.
    counted: Option<(RestClient, Arc<str>)>,
    resources: Arc<Mutex<HashMap<Gvk, Resource>>>,
    gate: Gate,
    /// Whom requests are made as; none for the host itself.
    user: Option<Arc<str>>,
    /// No answer to the last request: said once, not for every object.
    away: Arc<AtomicBool>,
    /// What lies over it.
    layer: Option<Arc<dyn Layer>>,
    /// How long an answer may take.
    patience: Duration,
}

impl Cluster {
    /// Talks through this client.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            counted: None,
            resources: Arc::default(),
            gate: Gate::default(),
            user: None,
            away: Arc::default(),
            layer: None,
            patience: PATIENCE,
        }
    }

    /// From now on requests are counted, as those to this host.
    pub fn counted(self, rest: RestClient, host: &str) -> Self {
        Self {
            counted: Some((rest, host.into())),
            ..self
        }
    }

    /// The same, with every write going through this gate.
    pub fn gated(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// The same, with requests made as a service account. Its groups are not named: the API server gives it those
    /// of every service account, and the host needs no right to impersonate groups.
    pub fn acting(&self, account: Option<&ServiceAccount>) -> Self {
        Self {
            user: account.map(|account| account.user_name().into()),
            ..self.clone()
        }
    }

    /// The same with this over it: it has the writes, and reads see it.
    pub fn under(self, layer: Arc<dyn Layer>) -> Self {
        Self {
            layer: Some(layer),
            ..self
        }
    }

    /// GETs a path (with its query).
    pub async fn get(&self, path: &str) -> Result<Bytes, ApiError> {
        self.get_as(path, None).await
    }

    /// The same of metadata alone, where asked for.
    pub async fn get_as(&self, path: &str, form: Option<As>) -> Result<Bytes, ApiError> {
        if let Some(known) = self.layer.as_ref().and_then(|layer| layer.read(path)) {
            return known;
        }
        self.send("GET", path, form.map(|f| ("accept", f.accept())), Vec::new())
            .await
    }

    /// GETs a path as it is at the server, whatever lies over it.
    pub(crate) async fn live(&self, path: &str) -> Result<Bytes, ApiError> {
        self.send("GET", path, None, Vec::new()).await
    }

    /// Opens a watch; the body is JSON lines.
    pub async fn watch(&self, path: &str, form: Option<As>) -> Result<Body, ApiError> {
        if self.layer.is_some() {
            if path.contains("sendInitialEvents") {
                // A streamed list knows nothing of what lies over it: pages do.
                return Err(status_error(400, None, b""));
            }
            // It lies over the world as it was listed: what it changes itself it tells itself.
            std::future::pending::<()>().await;
        }
        let header = form.map(|f| ("accept", f.accept()));
        let response = self
            .in_time(self.respond("GET", path, header, Vec::new()))
            .await?;
        Ok(response.into_body())
    }

    /// POSTs a new object.
    pub async fn create(&self, path: &str, object: Vec<u8>) -> Result<Bytes, ApiError> {
        self.write("POST", path, "application/json", object).await
    }

    /// Patches an object or a subresource.
    pub async fn patch(&self, path: &str, patch: Patch, body: Vec<u8>) -> Result<Bytes, ApiError> {
        let content_type = match patch {
            Patch::Merge => "application/merge-patch+json",
            Patch::Apply => "application/apply-patch+yaml",
        };
        self.write("PATCH", path, content_type, body).await
    }

    /// Deletes an object, with `DeleteOptions` as the body.
    pub async fn delete(&self, path: &str, options: Vec<u8>) -> Result<Bytes, ApiError> {
        self.write("DELETE", path, "application/json", options).await
    }

    async fn write(
        &self,
        method: &'static str,
        path: &str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<Bytes, ApiError> {
        let Some(layer) = &self.layer else {
            return self
                .send(method, path, Some(("content-type", content_type)), body)
                .await;
        };
        let write = Write {
            method,
            path,
            content_type,
            body: &body,
        };
        layer.write(self, write).await
    }

    /// Asks what would come of a write. The options of a deletion say themselves that it is none.
    pub(crate) async fn dry_run(&self, write: Write<'_>) -> Result<Bytes, ApiError> {
        let Write {
            method,
            path,
            content_type,
            body,
        } = write;
        let more = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{more}dryRun=All");
        self.send(method, &path, Some(("content-type", content_type)), body.to_vec())
            .await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        header: Option<(&str, &str)>,
        body: Vec<u8>,
    ) -> Result<Bytes, ApiError> {
        let answer = self.in_time(async {
            let response = self.respond(method, path, header, body).await?;
            let body = response.into_body().collect().await;
            Ok(body.map_err(|e| ApiError::Unreachable(e.to_string()))?.to_bytes())
        });
        let answer = answer.await?;
        if let Some(layer) = &self.layer {
            layer.passes(path, &answer);
        }
        Ok(answer)
    }

    async fn respond(
        &self,
        method: &str,
        path: &str,
        header: Option<(&str, &str)>,
        body: Vec<u8>,
    ) -> Result<http::Response<Body>, ApiError> {
        let mut request = http::Request::builder().method(method).uri(path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        if let Some(user) = &self.user {
            request = request.header("impersonate-user", &**user);
        }
        if method != "GET" && !dry(method, path, &body) {
            self.gate.check()?;
        }
        let request = request
            .body(Body::from(body))
            .map_err(|e| ApiError::Garbage(format!("{path}: {e}")))?;
        let started = Instant::now();
        let response = self.client.send(request).await;
        if let Some((rest, host)) = &self.counted {
            let code = response.as_ref().ok().map(|r| r.status().as_u16());
            rest.answered(method, code, host, started.elapsed());
        }
        let response = response.map_err(|e| ApiError::Unreachable(innermost(&e)));
        self.told(response.as_ref().err());
        let response = response?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        let retry_after = response
            .headers()
            .get("retry-after")
            .and_then(|v| v.to_str().ok()?.parse::<u64>().ok())
            .map(|seconds| seconds.saturating_mul(1000));
        let body = response.into_body().collect().await.map(|b| b.to_bytes());
        Err(status_error(code, retry_after, &body.unwrap_or_default()))
    }
}

/// A connection that has died without a word must not keep an object in flight for ever. Nor must one that broke before
/// it was ever used: hyper's pool then lets its request wait until another's comes free, which may be never. The API
/// server itself ends what takes it longer than a minute.
const PATIENCE: Duration = Duration::from_secs(30);

impl Cluster {
    async fn in_time<T>(&self, request: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        let answered = tokio::time::timeout(self.patience, request).await;
        answered.unwrap_or_else(|_| {
            let silent = ApiError::Unreachable(format!("no answer within {:?}", self.patience));
            self.told(Some(&silent));
            Err(silent)
        })
    }

    /// Says when the server goes away and when it is back.
    fn told(&self, error: Option<&ApiError>) {
        let was = self.away.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(e) if !was => tracing::warn!(error = %e, "API server unavailable"),
            None if was => tracing::info!("API server available again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_never_answers_is_not_waited_for_for_ever() {
        let silent = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
        });
        let cluster = Cluster {
            patience: Duration::from_millis(10),
            ..Cluster::new(Client::new(silent, "default"))
        };
        for error in [
            cluster.get("/api/v1").await.expect_err("no answer"),
            cluster.watch("/api/v1/pods", None).await.expect_err("no answer"),
            cluster
                .patch("/x", Patch::Merge, Vec::new())
                .await
                .expect_err("no answer"),
        ] {
            assert!(error.to_string().contains("no answer within 10ms"), "{error}");
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("lock").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_outage_is_said_once_and_so_is_its_end() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let _quiet = tracing::subscriber::set_default(log);
        let away = Arc::new(AtomicBool::new(true));
        let fails = away.clone();
        let service = tower::service_fn(move |_: http::Request<Body>| {
            std::future::ready(match fails.load(Ordering::Relaxed) {
                true => Err(std::io::Error::other("connection refused")),
                false => Ok(http::Response::new(Body::empty())),
            })
        });
        let cluster = Cluster::new(Client::new(service, "default"));
        for (down, said) in [(true, 1), (true, 1), (true, 1), (false, 2), (false, 2), (true, 3)] {
            away.store(down, Ordering::Relaxed);
            let answer = cluster.patch("/x", Patch::Merge, Vec::new()).await;
            if let Err(e) = &answer {
                complain!(e, object = "x", "not written: {e}");
            }
            assert_eq!(answer.is_err(), down);
            let text = String::from_utf8(lines.0.lock().expect("lock").clone()).expect("text");
            assert_eq!(text.lines().count(), said, "{text}");
        }
    }
}
