//! The API client: discovery, raw requests and their errors. Objects stay bytes.
//!
//! kube's client does the hard part of talking to an API server (kubeconfig, TLS, exec plugins, token refresh).

mod bounds;
mod discovery;
mod error;
mod interceptor;
mod list;
mod target;
mod warnings;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use kube::{Client, client::Body};
use prometheus_client::metrics::counter::Counter;

pub(crate) use self::error::warn_api_error;
pub use self::{
    bounds::ResponseBounds,
    discovery::ServedResource,
    error::{ApiError, parse_response, status_error},
    interceptor::{CollectionOverlay, Interceptor, WriteRequest, WriteResponse},
    list::ListPage,
    target::{ApiTarget, is_dry_run},
};
use self::{
    bounds::collect_body, discovery::DiscoveryCache, error::find_root_cause, warnings::LoggedWarnings,
};
use crate::{
    client::{
        connection::LongRunning,
        fence::WriteFence,
        gate::{AdmittedRequest, RequestGate},
    },
    kube::key::Gvk,
    observe::metrics::RestClient,
    policy::grants::ServiceAccount,
};

/// Time within which the API server must answer. A connection that died silently must not keep an object in flight for
/// ever. Nor must one that broke before its first use: hyper's pool then leaves its request waiting for another
/// connection to come free, which may never happen. The API server itself ends requests after a minute.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of requests that the API server passes to a kubelet, which it waits for longer itself.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(5);

/// The content type of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// JSON merge patch (RFC 7386).
    Merge,
    /// Strategic merge patch, which adds to sets and removes from them without the other values. Built-in kinds only.
    Strategic,
    /// Server-side apply.
    Apply,
}

/// The form of a metadata-only response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataForm {
    /// `PartialObjectMetadata`, or a watch of them.
    Object,
    /// `PartialObjectMetadataList`.
    List,
}

impl MetadataForm {
    fn accept_header(self) -> (&'static str, &'static str) {
        let value = match self {
            Self::Object => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            Self::List => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        };
        ("accept", value)
    }
}

/// A client of one cluster's API server.
#[derive(Clone)]
pub struct ApiClient {
    /// Shared by all clones, since the credentials of another cluster are replaced while informers use it.
    client: Arc<ArcSwap<Client>>,
    /// Request metrics, and the host name that they are labelled with.
    metrics: Option<(RestClient, Arc<str>)>,
    discovered: Arc<DiscoveryCache>,
    fence: WriteFence,
    /// User that requests impersonate; none for the host itself.
    user: Option<Arc<str>>,
    /// Bounds the requests to another cluster; none for the host's own.
    gate: Option<Arc<RequestGate>>,
    /// True while the last request got no answer, so that an outage is logged once and not per object.
    unavailable: Arc<AtomicBool>,
    warnings: Arc<LoggedWarnings>,
    interceptor: Option<Arc<dyn Interceptor>>,
    request_timeout: Duration,
    bounds: ResponseBounds,
}

impl ApiClient {
    /// Creates a client that sends through kube's client.
    pub fn new(client: Client) -> Self {
        Self {
            client: Arc::new(ArcSwap::from_pointee(client)),
            metrics: None,
            discovered: Arc::default(),
            fence: WriteFence::default(),
            user: None,
            gate: None,
            unavailable: Arc::default(),
            warnings: Arc::default(),
            interceptor: None,
            request_timeout: REQUEST_TIMEOUT,
            bounds: ResponseBounds::NONE,
        }
    }

    /// Counts requests in these metrics, labelled with the server's host name.
    pub fn with_metrics(self, metrics: RestClient, host: &str) -> Self {
        Self {
            metrics: Some((metrics, host.into())),
            ..self
        }
    }

    /// The counter of the events of watches of a kind. Without metrics it is one that nobody reads.
    pub fn watch_events(&self, gvk: &Gvk) -> Counter {
        let metrics = self.metrics.as_ref();
        metrics.map_or_else(Counter::default, |(metrics, host)| {
            metrics.watch_events(gvk, host)
        })
    }

    /// Sends writes only while this fence is open.
    pub fn with_fence(self, fence: WriteFence) -> Self {
        Self { fence, ..self }
    }

    /// Impersonates this user unless a request acts as a service account.
    pub fn with_user(self, user: Option<Arc<str>>) -> Self {
        Self { user, ..self }
    }

    /// Sends requests through this gate.
    pub fn with_gate(self, gate: Arc<RequestGate>) -> Self {
        Self {
            gate: Some(gate),
            ..self
        }
    }

    /// Waits for a response no longer than this.
    pub fn with_request_timeout(self, request_timeout: Duration) -> Self {
        Self {
            request_timeout,
            ..self
        }
    }

    /// Refuses responses that are larger.
    pub fn with_bounds(self, bounds: ResponseBounds) -> Self {
        Self { bounds, ..self }
    }

    /// The maximum sizes of responses.
    pub fn bounds(&self) -> ResponseBounds {
        self.bounds
    }

    /// Replaces the connections and credentials of this client and of all its clones. Watches go on with the old ones until
    /// they end.
    pub fn replace_client(&self, client: Client) {
        self.client.store(Arc::new(client));
    }

    /// Returns a client whose requests impersonate a service account. Its groups are not sent: the API server adds
    /// those of every service account, and so the host needs no right to impersonate groups.
    pub fn acting_as(&self, account: Option<&ServiceAccount>) -> Self {
        Self {
            user: account.map_or_else(|| self.user.clone(), |account| Some(account.user_name().into())),
            ..self.clone()
        }
    }

    /// Sends all writes to an interceptor, and lets reads see its state.
    pub fn with_interceptor(self, interceptor: Arc<dyn Interceptor>) -> Self {
        Self {
            interceptor: Some(interceptor),
            ..self
        }
    }

    /// GETs a path (with its query).
    pub async fn get(&self, path: &str) -> Result<Bytes, ApiError> {
        self.get_as(path, None).await
    }

    /// GETs a path, restricted to metadata if a form is given.
    pub async fn get_as(&self, path: &str, form: Option<MetadataForm>) -> Result<Bytes, ApiError> {
        self.get_within(path, form, self.bounds.response_bytes).await
    }

    /// GETs a path, as long as the response is not larger than this.
    async fn get_within(
        &self,
        path: &str,
        form: Option<MetadataForm>,
        max_bytes: usize,
    ) -> Result<Bytes, ApiError> {
        if let Some(response) = self.interceptor.as_ref().and_then(|i| i.intercept_get(path)) {
            return response;
        }
        let header = form.map(MetadataForm::accept_header);
        self.send("GET", path, header, Vec::new(), max_bytes).await
    }

    /// GETs a path for which the API server asks a kubelet, as long as the response is not larger than this many bytes. A kubelet
    /// that hangs says nothing about the API server: it is no outage of that, and opens no circuit.
    ///
    /// # Errors
    /// As of any request; HTTP 504 if the kubelet does not answer.
    pub async fn get_from_kubelet(&self, path: &str, max_bytes: usize) -> Result<Bytes, ApiError> {
        let request = async {
            let response = self.send_request("GET", path, None, Vec::new(), None).await?;
            collect_body(response.into_body(), max_bytes).await
        };
        let timeout = self.request_timeout.min(KUBELET_TIMEOUT);
        let response = Box::pin(tokio::time::timeout(timeout, request)).await;
        response.unwrap_or_else(|_| {
            Err(ApiError::Status {
                code: 504,
                reason: String::new(),
                message: format!("the kubelet has not answered within {timeout:?}"),
                fields: Vec::new(),
                retry_after: None,
            })
        })
    }

    /// GETs a path from the server even if an interceptor has it.
    pub(crate) async fn get_uncached(&self, path: &str) -> Result<Bytes, ApiError> {
        self.send("GET", path, None, Vec::new(), self.bounds.response_bytes)
            .await
    }

    /// Opens a watch; the body is JSON lines.
    pub async fn watch(&self, path: &str, form: Option<MetadataForm>) -> Result<Body, ApiError> {
        if self.interceptor.is_some() {
            if path.contains("sendInitialEvents") {
                // A streaming list would bypass the interceptor, so it is refused; pages pass through it.
                return Err(status_error(400, None, b""));
            }
            // With an interceptor (`ostler plan`) the cluster is a frozen snapshot; the interceptor reports its own
            // changes, so this watch never yields.
            std::future::pending::<()>().await;
        }
        let header = form.map(MetadataForm::accept_header);
        let admitted = self.gate.as_ref().map(|gate| gate.admit_watch()).transpose()?;
        let response = self
            .with_timeout(self.send_request("GET", path, header, Vec::new(), Some(LongRunning)))
            .await;
        report_result(admitted, &response);
        Ok(response?.into_body())
    }

    /// POSTs a new object.
    pub async fn create(&self, path: &str, object: Vec<u8>) -> Result<Bytes, ApiError> {
        self.write("POST", path, "application/json", object).await
    }

    /// Patches an object or a subresource.
    pub async fn patch(&self, path: &str, patch: PatchType, body: Vec<u8>) -> Result<Bytes, ApiError> {
        let content_type = match patch {
            PatchType::Merge => "application/merge-patch+json",
            PatchType::Strategic => "application/strategic-merge-patch+json",
            PatchType::Apply => "application/apply-patch+yaml",
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
        let Some(interceptor) = &self.interceptor else {
            let header = Some(("content-type", content_type));
            return self
                .send(method, path, header, body, self.bounds.response_bytes)
                .await;
        };
        let request = WriteRequest {
            method,
            path,
            content_type,
            body: &body,
        };
        interceptor.intercept_write(self, request).await
    }

    /// Sends a write as a dry run. The options of a deletion must contain `dryRun` themselves, because the server
    /// ignores the query then.
    pub(crate) async fn dry_run(&self, write: WriteRequest<'_>) -> Result<Bytes, ApiError> {
        let WriteRequest {
            method,
            path,
            content_type,
            body,
        } = write;
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}dryRun=All");
        let header = Some(("content-type", content_type));
        self.send(method, &path, header, body.to_vec(), self.bounds.response_bytes)
            .await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        header: Option<(&str, &str)>,
        body: Vec<u8>,
        max_bytes: usize,
    ) -> Result<Bytes, ApiError> {
        let admitted = match &self.gate {
            Some(gate) => Some(gate.admit_request().await?),
            None => None,
        };
        // In a box: the state of an exchange is large, and part of that of everything that may send one, which mostly does not.
        let response = Box::pin(self.with_timeout(async {
            let response = self.send_request(method, path, header, body, None).await?;
            collect_body(response.into_body(), max_bytes).await
        }));
        let response = response.await;
        report_result(admitted, &response);
        let response = response?;
        if let Some(interceptor) = &self.interceptor {
            interceptor.observe_response(path, &response);
        }
        Ok(response)
    }

    async fn send_request(
        &self,
        method: &str,
        path: &str,
        header: Option<(&str, &str)>,
        body: Vec<u8>,
        long_running: Option<LongRunning>,
    ) -> Result<http::Response<Body>, ApiError> {
        let mut request = http::Request::builder().method(method).uri(path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        if let Some(user) = &self.user {
            request = request.header("impersonate-user", &**user);
        }
        if method != "GET" && !is_dry_run(method, path, &body) {
            self.fence.check_open()?;
        }
        if let Some(mark) = long_running {
            request = request.extension(mark);
        }
        let request = request
            .body(Body::from(body))
            .map_err(|e| ApiError::InvalidResponse(format!("{path}: {e}")))?;
        let started = Instant::now();
        let client = self.client.load_full();
        let response = client.send(request).await;
        if let Some((metrics, host)) = &self.metrics {
            let code = response.as_ref().ok().map(|r| r.status().as_u16());
            metrics.record_response(method, code, host, started.elapsed());
        }
        let response = response.map_err(|e| ApiError::Unreachable(find_root_cause(&e)));
        self.log_availability(response.as_ref().err());
        let response = response?;
        if response.status().is_success() {
            self.warnings.log_new(path, response.headers());
            return Ok(response);
        }
        let code = response.status().as_u16();
        let retry_after = response
            .headers()
            .get("retry-after")
            .and_then(|v| v.to_str().ok()?.parse::<u64>().ok())
            .map(|seconds| seconds.saturating_mul(1000));
        let body = collect_body(response.into_body(), self.bounds.response_bytes).await;
        let body = body.unwrap_or_default();
        self.discovered.forget_stale(path, code, &body, Instant::now());
        Err(status_error(code, retry_after, &body))
    }

    async fn with_timeout<T>(
        &self,
        request: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let response = tokio::time::timeout(self.request_timeout, request).await;
        response.unwrap_or_else(|_| {
            let timed_out = ApiError::Unreachable(format!("no answer within {:?}", self.request_timeout));
            self.log_availability(Some(&timed_out));
            Err(timed_out)
        })
    }

    /// Logs the beginning and the end of an outage of the API server.
    fn log_availability(&self, error: Option<&ApiError>) {
        let server = self.metrics.as_ref().map(|(_, host)| &**host);
        // The host's own has no label.
        let server = server.filter(|name| !name.is_empty());
        let was_unavailable = self.unavailable.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(e) if !was_unavailable => tracing::warn!(server, "{e}"),
            None if was_unavailable => tracing::info!(server, "the API server is reachable again"),
            _ => {}
        }
    }
}

/// Reports the result of a request to the gate that admitted it.
fn report_result<T>(admitted: Option<AdmittedRequest<'_>>, response: &Result<T, ApiError>) {
    if let Some(admitted) = admitted {
        admitted.finish(response.as_ref().err());
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn silent_server_fails_requests_after_the_timeout() {
        let silent = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
        });
        let cluster = ApiClient {
            request_timeout: Duration::from_millis(10),
            ..ApiClient::new(Client::new(silent, "default"))
        };
        for error in [
            cluster.get("/api/v1").await.expect_err("no answer"),
            cluster.watch("/api/v1/pods", None).await.expect_err("no answer"),
            cluster
                .patch("/x", PatchType::Merge, Vec::new())
                .await
                .expect_err("no answer"),
        ] {
            assert!(error.to_string().contains("no answer within 10ms"), "{error}");
        }
    }

    #[tokio::test]
    async fn kubelet_that_is_silent_is_no_outage_of_the_api_server() {
        let silent = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
        });
        let cluster = ApiClient {
            request_timeout: Duration::from_millis(10),
            ..ApiClient::new(Client::new(silent, "default"))
        };
        let error = cluster
            .get_from_kubelet("/x/log", 1)
            .await
            .expect_err("no answer");
        assert_eq!(error.code(), 504);
        assert_eq!(error.to_string(), "the kubelet has not answered within 10ms");
        assert!(!cluster.unavailable.load(Ordering::Relaxed));
    }

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn outage_and_recovery_are_each_logged_once() {
        let lines = LogBuffer::default();
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
            std::future::ready(if fails.load(Ordering::Relaxed) {
                Err(std::io::Error::other("connection refused"))
            } else {
                Ok(http::Response::new(Body::empty()))
            })
        });
        let cluster = ApiClient::new(Client::new(service, "default"));
        for (down, said) in [(true, 1), (true, 1), (true, 1), (false, 2), (false, 2), (true, 3)] {
            away.store(down, Ordering::Relaxed);
            let answer = cluster.patch("/x", PatchType::Merge, Vec::new()).await;
            if let Err(e) = &answer {
                warn_api_error!(e, object = "x", "not written: {e}");
            }
            assert_eq!(answer.is_err(), down);
            let text = String::from_utf8(lines.0.lock().clone()).expect("text");
            assert_eq!(text.lines().count(), said, "{text}");
        }
    }
}
