//! The API server, as bytes: discovery, raw requests and their errors.
//!
//! kube's client brings what is hard about talking to an API server (kubeconfig,
//! TLS, exec plugins, token refresh); objects stay bytes from here on.

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
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    gate::{Deposed, Gate},
    grants::ServiceAccount,
    key::{Gvk, ObjectRef},
    metrics::RestClient,
    plan::{self, Overlay, Write},
    selector::Selector,
};

/// What the API server said no to, or why it could not be asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApiError {
    /// The server answered with a `Status`.
    #[error("{message}")]
    Status {
        /// HTTP status code.
        code: u16,
        /// Machine-readable reason, for example `Conflict`.
        reason: String,
        /// The server's own words.
        message: String,
        /// `Retry-After` in milliseconds, where the server gave one.
        retry_after: Option<u64>,
    },
    /// The kind is not served.
    #[error("the API server does not serve {0}: is its CRD installed?")]
    UnknownKind(Gvk),
    /// No answer.
    #[error("the API server can't be reached: {0}")]
    Unreachable(String),
    /// The answer made no sense.
    #[error("the API server's answer is not what was expected: {0}")]
    Garbage(String),
    /// Not sent.
    #[error(transparent)]
    Deposed(#[from] Deposed),
}

impl ApiError {
    /// The HTTP status code, 0 when there was no answer.
    pub fn code(&self) -> u16 {
        match self {
            Self::Status { code, .. } => *code,
            Self::UnknownKind(_) => 404,
            _ => 0,
        }
    }
}

/// Where a kind is served.
#[derive(Clone, Debug)]
pub struct Resource {
    /// `api/v1` or `apis/GROUP/VERSION`.
    prefix: String,
    /// Plural name, as in the path.
    pub plural: String,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether it has a status subresource.
    pub status: bool,
}

impl Resource {
    /// Path of the collection; an empty namespace means all of them.
    pub fn collection(&self, namespace: &str) -> String {
        if self.namespaced && !namespace.is_empty() {
            format!("/{}/namespaces/{namespace}/{}", self.prefix, self.plural)
        } else {
            format!("/{}/{}", self.prefix, self.plural)
        }
    }

    /// Path of one object.
    pub fn object(&self, object: &ObjectRef) -> String {
        format!("{}/{}", self.collection(&object.namespace), object.name)
    }
}

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
    /// In a plan, what would be otherwise.
    overlay: Option<Arc<Overlay>>,
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
            overlay: None,
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
            user: account.map(|account| account.user().into()),
            ..self.clone()
        }
    }

    /// The same for a plan: writes go into an overlay, and reads see it.
    pub fn planning(self, overlay: Arc<Overlay>) -> Self {
        Self {
            overlay: Some(overlay),
            ..self
        }
    }

    /// Where a kind is served. Asked once per kind; a kind that isn't served is asked for anew each time.
    pub async fn resource(&self, gvk: &Gvk) -> Result<Resource, ApiError> {
        if let Some(known) = self.resources.lock().expect("lock").get(gvk) {
            return Ok(known.clone());
        }
        #[derive(Deserialize)]
        struct List {
            resources: Vec<Item>,
        }
        #[derive(Deserialize)]
        struct Item {
            name: String,
            namespaced: bool,
            kind: String,
        }
        let prefix = if gvk.group.is_empty() {
            format!("api/{}", gvk.version)
        } else {
            format!("apis/{}/{}", gvk.group, gvk.version)
        };
        let list: List = match self.get(&format!("/{prefix}")).await {
            Ok(bytes) => parse(&bytes)?,
            Err(e) if e.code() == 404 => return Err(ApiError::UnknownKind(gvk.clone())),
            Err(e) => return Err(e),
        };
        let item = list
            .resources
            .iter()
            .find(|r| *r.kind == *gvk.kind && !r.name.contains('/'))
            .ok_or_else(|| ApiError::UnknownKind(gvk.clone()))?;
        let resource = Resource {
            prefix,
            plural: item.name.clone(),
            namespaced: item.namespaced,
            status: list
                .resources
                .iter()
                .any(|r| r.name == format!("{}/status", item.name)),
        };
        self.resources
            .lock()
            .expect("lock")
            .insert(gvk.clone(), resource.clone());
        Ok(resource)
    }

    /// GETs a path (with its query).
    pub async fn get(&self, path: &str) -> Result<Bytes, ApiError> {
        self.get_as(path, None).await
    }

    /// The same of metadata alone, where asked for.
    pub async fn get_as(&self, path: &str, form: Option<As>) -> Result<Bytes, ApiError> {
        if let Some(planned) = self.overlay.as_ref().and_then(|overlay| overlay.read(path)) {
            return planned;
        }
        self.send("GET", path, form.map(|f| ("accept", f.accept())), Vec::new())
            .await
    }

    /// GETs a path as it is at the server, whatever is planned.
    pub(crate) async fn live(&self, path: &str) -> Result<Bytes, ApiError> {
        self.send("GET", path, None, Vec::new()).await
    }

    /// Path and query of a collection, ending so that more of the query can follow.
    pub async fn query(
        &self,
        gvk: &Gvk,
        namespace: &str,
        labels: Option<&Selector>,
    ) -> Result<String, ApiError> {
        let mut path = format!("{}?", self.resource(gvk).await?.collection(namespace));
        if let Some(selector) = labels {
            path.push_str("labelSelector=");
            path.extend(percent(&selector.to_string()));
            path.push('&');
        }
        Ok(path)
    }

    /// One page of a list, item by item; `query` is of [`Cluster::query`]. Gives the list's version and the token
    /// of the next page, empty after the last.
    pub async fn page(
        &self,
        query: &str,
        limit: usize,
        token: &str,
        form: Option<As>,
        mut each: impl FnMut(&str),
    ) -> Result<(String, String), ApiError> {
        #[derive(Deserialize)]
        struct Page<'a> {
            metadata: Meta,
            #[serde(borrow, default)]
            items: Option<Vec<&'a RawValue>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            #[serde(default)]
            resource_version: String,
            #[serde(default)]
            r#continue: String,
        }
        let mut path = format!("{query}limit={limit}");
        if !token.is_empty() {
            path.push_str("&continue=");
            path.extend(percent(token));
        }
        let bytes = self.get_as(&path, form).await?;
        let page: Page = parse(&bytes)?;
        let planned = self.overlay.as_ref().and_then(|overlay| overlay.collected(query));
        for item in page.items.iter().flatten() {
            if planned.as_ref().is_none_or(|p| !p.hides(item.get())) {
                each(item.get());
            }
        }
        if page.metadata.r#continue.is_empty() {
            planned.iter().flat_map(|p| &p.objects).for_each(|o| each(o));
        }
        Ok((page.metadata.resource_version, page.metadata.r#continue))
    }

    /// The version of a kind that the server prefers.
    pub async fn preferred(&self, group: &str, kind: &str) -> Result<Gvk, ApiError> {
        if group.is_empty() {
            return Ok(Gvk::new("", "v1", kind));
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Group {
            preferred_version: Version,
        }
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let bytes = self.get(&format!("/apis/{group}")).await?;
        let found: Group = parse(&bytes)?;
        Ok(Gvk::new(group, &found.preferred_version.version, kind))
    }

    /// Opens a watch; the body is JSON lines.
    pub async fn watch(&self, path: &str, form: Option<As>) -> Result<Body, ApiError> {
        if self.overlay.is_some() {
            if path.contains("sendInitialEvents") {
                // A streamed list knows nothing of what is planned: pages do.
                return Err(status_error(400, None, b""));
            }
            // A plan is made for the world as it was listed: what it changes itself it tells itself.
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
        let Some(overlay) = &self.overlay else {
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
        overlay.write(self, write).await
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
        if let Some(overlay) = &self.overlay {
            overlay.passes(path, &answer);
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
        if method != "GET" && !plan::dry(method, path, &body) {
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

/// A connection that has died without a word must not keep an object in flight for ever. The API server itself ends
/// what takes it longer than a minute.
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
            Some(e) if !was => tracing::warn!("{e}"),
            None if was => tracing::info!("the API server answers again"),
            _ => {}
        }
    }
}

/// Warns, unless it is only that the API server is away, which is said once for all.
macro_rules! complain {
    ($error:expr, $($what:tt)*) => {
        match $error {
            $crate::cluster::ApiError::Unreachable(_) => tracing::debug!($($what)*),
            _ => tracing::warn!($($what)*),
        }
    };
}
pub(crate) use complain;

/// Reads a `Status` object, wherever it came from (an answer, or an ERROR event in a watch).
pub fn status_error(code: u16, retry_after: Option<u64>, body: &[u8]) -> ApiError {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        code: u16,
        reason: String,
        message: String,
    }
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    ApiError::Status {
        code: if code == 0 { status.code } else { code },
        message: if status.message.is_empty() {
            format!(
                "HTTP {code} {}",
                String::from_utf8_lossy(&body[..body.len().min(200)])
            )
        } else {
            status.message
        },
        reason: status.reason,
        retry_after,
    }
}

/// In a query: everything but letters and digits is escaped.
fn percent(text: &str) -> impl Iterator<Item = char> + '_ {
    text.bytes().flat_map(|b| {
        let escaped = if b.is_ascii_alphanumeric() {
            vec![char::from(b)]
        } else {
            format!("%{b:02X}").chars().collect()
        };
        escaped.into_iter()
    })
}

/// Parses an answer of the API server.
pub fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::Garbage(e.to_string()))
}

/// The cause a person can act on ("connection refused") is at the end of the chain.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
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
