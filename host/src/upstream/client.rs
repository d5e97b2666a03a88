//! The client of one upstream, for one version of its spec and Secrets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use super::{
    Origin, ResponseBudget, ResponseCharge, SecretSnapshot, SecretStore, SendError, Substitution,
    UpstreamRequest, UpstreamResponse, UpstreamSecretKey, WriteFence,
    answer::{
        BodyError, IDENTITY_ENCODING, content_encoding, explain_encoded, read_body, retry_after, root_cause,
    },
    attempt::Attempt,
    auth::{CredentialError, UpstreamCredentials},
    check_secret_origins,
    coalesce::ResponseCoalescer,
    conditional::{CacheKey, EtagCache},
    health::{HealthReport, UpstreamHealth},
    object::UpstreamObject,
    rate_limit::{RateLimiter, RetryBudget},
    redact::{Redactor, SecretHistory},
    request_policy,
    spec::{MAX_BODY_BYTES, MAX_REQUESTS_IN_FLIGHT},
    substitution::RequestSecrets,
    tls,
    transport_error::{TransportError, TransportErrorKind},
};
use crate::{
    client::{breaker::CircuitState, circuit::Circuit},
    kube::backoff::Backoff,
    policy::network::NetworkPolicy,
};

/// Longest wait for the rate limit inside a call. A longer one is returned as `throttled`, so that the call frees its
/// resources meanwhile.
const MAX_TURN_WAIT: Duration = Duration::from_secs(1);
/// Limit of the time of each step of a health check, where the Upstream allows more: whoever checks others waits for it.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Retries of one request, and the delays before them.
const MAX_RETRIES: u32 = 2;
const RETRY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_millis(200)).with_jitter(50);

/// Counters of an upstream, over all versions of its client.
#[derive(Debug, Default)]
pub struct ClientCounters {
    /// Requests repeated because the connection failed.
    pub retries: AtomicU64,
    /// Responses confirmed by HTTP 304 instead of sent again.
    pub confirmed: AtomicU64,
}

/// Dependencies of a client besides the Upstream and its Secrets.
pub struct ClientContext {
    /// Decides which addresses the client may connect to.
    pub network: NetworkPolicy,
    /// Version of the network policy when the client was built.
    pub network_version: u64,
    /// The secrets that the client is built from.
    pub secrets: SecretSnapshot,
    /// The rate limit, which a new client for changed Secrets continues.
    pub rate_limiter: Arc<Mutex<RateLimiter>>,
    /// Health known to the previous client.
    pub health: UpstreamHealth,
    /// The secrets that were substituted in requests to the upstream, over all versions of its client.
    pub secret_history: Arc<SecretHistory>,
    /// Counters of the upstream.
    pub counters: Arc<ClientCounters>,
    /// Called when the Upstream's status may have to change.
    pub on_status_change: Arc<dyn Fn() + Send + Sync>,
}

/// The client of one upstream: connections, credentials and limits.
pub struct UpstreamClient {
    pub(super) http: reqwest::Client,
    pub(super) url: String,
    pub(super) credentials: UpstreamCredentials,
    /// The origin that substituted secrets are sent to.
    origin: Origin,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    pub(super) in_flight: Arc<Semaphore>,
    /// Responses shared by concurrent requests.
    pub coalescer: ResponseCoalescer,
    request_bytes: usize,
    response_bytes: usize,
    pub(super) timeout: Duration,
    connect_timeout: Duration,
    pub(super) context: ClientContext,
    /// Without responses for a while, requests fail at once.
    pub(super) circuit: Circuit,
    pub(super) state: Mutex<ClientState>,
}

/// State shared by all requests.
pub(super) struct ClientState {
    pub(super) retry_budget: RetryBudget,
    etag_cache: EtagCache,
    pub(super) health: UpstreamHealth,
    /// Failed health checks in a row.
    failed_checks: u32,
}

/// A checked request, with the secrets in its body.
struct PreparedRequest<'a> {
    method: Method,
    path: &'a str,
    headers: HeaderMap,
    component_headers: &'a [(String, String)],
    body: Option<Vec<u8>>,
    redactor: Redactor,
    cacheable: bool,
    budget: Option<&'a ResponseBudget>,
}

/// Sets a header, and removes those whose names a server may take for the same.
fn replace_header(headers: &mut HeaderMap, name: &HeaderName, value: HeaderValue) {
    let same = |other: &&HeaderName| {
        request_policy::normalize_header_name(other.as_str())
            == request_policy::normalize_header_name(name.as_str())
    };
    let aliases: Vec<_> = headers.keys().filter(same).cloned().collect();
    for alias in aliases {
        headers.remove(alias);
    }
    headers.insert(name, value);
}

/// The end of an attempt of a request that was sent.
enum AttemptEnd {
    /// A response arrived.
    Answered(UpstreamResponse),
    /// The server rejects this credential, which may be replaced.
    StaleCredential(HeaderValue),
    /// No whole response arrived: the request may be repeated, if its method allows it.
    Broken(TransportError),
}

impl UpstreamClient {
    /// Builds a client from the spec and the secrets of the context.
    pub fn new(upstream: &UpstreamObject, mut context: ClientContext) -> Result<Self, SendError> {
        let secrets = &context.secrets;
        let spec = &upstream.spec;
        let url = spec.url.trim_end_matches('/').to_owned();
        let origin = upstream.origin().map_err(SendError::Invalid)?;
        let parsed =
            reqwest::Url::parse(&url).map_err(|e| SendError::Invalid(format!("spec.url {url:?}: {e}")))?;
        let (Some(host), Some(port), "http" | "https", "", None) = (
            parsed.host_str(),
            parsed.port_or_known_default(),
            parsed.scheme(),
            parsed.username(),
            parsed.password(),
        ) else {
            return Err(SendError::Invalid(format!(
                "spec.url {:?}: an http(s) URL without credentials is needed for requests",
                parsed.host_str().unwrap_or_default()
            )));
        };
        context
            .network
            .check_url(&parsed)
            .map_err(|e| SendError::NotAllowed(e.to_string()))?;
        let seconds = |n: Option<u32>, default: u32| Duration::from_secs(n.unwrap_or(default).max(1).into());
        let timeout = seconds(spec.timeout_seconds, 30);
        let connect_timeout = seconds(spec.connect_timeout_seconds, 10).min(timeout);
        let tls = tls::build_config(upstream, secrets)?;
        let http = reqwest::Client::builder()
            // Redirects are not followed: they would carry the credentials elsewhere. The component gets the 3xx
            // response.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect_timeout)
            .pool_idle_timeout(Duration::from_secs(60))
            .dns_resolver(Arc::new(context.network.clone()))
            .tls_backend_preconfigured(tls.clone())
            .build()
            .map_err(|e| SendError::Invalid(format!("the client: {}", root_cause(&e))))?;
        let limits = spec.limits.clone().unwrap_or_default();
        let bytes = |limit: Option<u32>| limit.unwrap_or(8 << 20).min(MAX_BODY_BYTES) as usize;
        Ok(Self {
            http,
            credentials: UpstreamCredentials::new(upstream, secrets, &context.network, timeout)?,
            origin,
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            tls: (parsed.scheme() == "https").then(|| Arc::new(tls).into()),
            url,
            coalescer: ResponseCoalescer::default(),
            in_flight: Arc::new(Semaphore::new(
                limits
                    .requests_in_flight
                    .unwrap_or(16)
                    .clamp(1, MAX_REQUESTS_IN_FLIGHT) as usize,
            )),
            request_bytes: bytes(limits.request_body_bytes),
            response_bytes: bytes(limits.response_body_bytes),
            timeout,
            connect_timeout,
            circuit: Circuit::default(),
            state: Mutex::new(ClientState {
                retry_budget: RetryBudget::default(),
                etag_cache: EtagCache::default(),
                health: std::mem::take(&mut context.health),
                failed_checks: 0,
            }),
            context,
        })
    }

    /// Sends a request; sends it again after a new login if the server rejects it with 401.
    pub async fn send_request(
        &self,
        request: UpstreamRequest,
        secrets: &dyn SecretStore,
        fence: &WriteFence,
    ) -> Result<UpstreamResponse, SendError> {
        let prepared = self.prepare_request(&request, secrets)?;
        let timeout = request.timeout.map_or(self.timeout, |t| t.min(self.timeout));
        let waited = tokio::time::timeout(timeout, async {
            let _permit = self.in_flight.acquire().await;
            self.send_with_retries(prepared, fence).await
        });
        let late = || Err(SendError::Unavailable(format!("no answer within {timeout:?}")));
        waited.await.unwrap_or_else(|_| late())
    }

    /// Checks that a request could be sent: its method, path and headers are allowed and its secrets exist.
    pub fn check_request(
        &self,
        request: &UpstreamRequest,
        secrets: &dyn SecretStore,
    ) -> Result<(), SendError> {
        self.prepare_request(request, secrets).map(drop)
    }

    fn prepare_request<'a>(
        &self,
        request: &'a UpstreamRequest,
        secrets: &dyn SecretStore,
    ) -> Result<PreparedRequest<'a>, SendError> {
        request_policy::check_path(&request.path_and_query)?;
        request_policy::check_method(&request.method)?;
        let method = Method::from_bytes(request.method.as_bytes())
            .ok()
            .filter(|m| m.as_str().bytes().all(|b| b.is_ascii_uppercase()))
            .ok_or_else(|| {
                SendError::Invalid(format!(
                    "method {:?} is no HTTP method in upper case",
                    request.method
                ))
            })?;
        let mut headers = HeaderMap::new();
        for (name, value) in &request.headers {
            request_policy::check_header(name, value)?;
            let invalid = |what: &str| SendError::Invalid(format!("header {name:?}: no {what}"));
            let name = HeaderName::try_from(name).map_err(|_| invalid("name"))?;
            headers.append(name, HeaderValue::from_str(value).map_err(|_| invalid("value"))?);
        }
        for key in request.substitutions.iter().flat_map(Substitution::secret_keys) {
            check_secret_origins(secrets, key, std::slice::from_ref(&self.origin))?;
        }
        let value = |key: &UpstreamSecretKey| secrets.get(key).map(|s| s.expose().to_vec());
        // A response of an encoding cannot be searched for secrets; without this header a server may choose one.
        headers.insert(header::ACCEPT_ENCODING, IDENTITY_ENCODING);
        let request_secrets =
            RequestSecrets::resolve(&request.substitutions, value, &self.context.secret_history)?;
        let body = request.body.as_deref();
        let body = body.map(|body| request_secrets.fill_body(body, self.request_bytes));
        let body = body.transpose()?;
        Ok(PreparedRequest {
            cacheable: method == Method::GET && body.is_none() && request.substitutions.is_empty(),
            method,
            path: &request.path_and_query,
            headers,
            component_headers: &request.headers,
            body,
            redactor: request_secrets.redactor,
            budget: request.budget.as_ref(),
        })
    }

    /// Attempts the request until there is a response or no retry is left.
    async fn send_with_retries(
        &self,
        request: PreparedRequest<'_>,
        fence: &WriteFence,
    ) -> Result<UpstreamResponse, SendError> {
        self.state.lock().retry_budget.credit_request();
        let (mut stale, mut retries) = (None, 0);
        loop {
            let error = match self.attempt_request(&request, stale.as_ref(), fence).await? {
                AttemptEnd::Answered(response) => return Ok(response),
                AttemptEnd::StaleCredential(value) => {
                    stale = Some(value);
                    continue;
                }
                AttemptEnd::Broken(error) => error,
            };
            if retries == MAX_RETRIES || !self.may_repeat(&request, &error) {
                return Err(error.into_send_error(""));
            }
            self.context.counters.retries.fetch_add(1, Ordering::Relaxed);
            retries += 1;
            tokio::time::sleep(RETRY_BACKOFF.delay(retries)).await;
        }
    }

    /// Decides whether a request without a response is sent again, and takes it from the budget of retries. A server may have acted
    /// on a request that was sent: from then on only safe methods are repeated.
    fn may_repeat(&self, request: &PreparedRequest<'_>, error: &TransportError) -> bool {
        let is_hopeless = matches!(
            error.kind,
            TransportErrorKind::Address | TransportErrorKind::Tls | TransportErrorKind::NoTls
        );
        let is_repeatable = request.method.is_safe() || error.is_unsent() && request.method.is_idempotent();
        is_repeatable && !is_hopeless && {
            self.circuit.trial_at().is_none() && self.state.lock().retry_budget.withdraw_retry()
        }
    }

    /// Sends a request once, with the credential; `stale` is one that the server has rejected.
    async fn attempt_request(
        &self,
        request: &PreparedRequest<'_>,
        stale: Option<&HeaderValue>,
        fence: &WriteFence,
    ) -> Result<AttemptEnd, SendError> {
        let attempt = self.admit_request().await?;
        let credential = match self.resolve_credential(stale, &attempt).await {
            Ok(credential) => credential,
            Err(CredentialError::Cached(e)) => {
                attempt.mark_not_sent();
                return Err(e);
            }
            Err(e) => return Err(attempt.record_credential_error(e.into())),
        };
        let mut redactor = request.redactor.clone();
        self.credentials.add_to_redactor(&mut redactor);
        let mut headers = request.headers.clone();
        if let Some((name, value)) = &credential {
            // The component may have set a header of the same name, or of one that the server takes for the same; the
            // redactor keeps the credential out of the response.
            replace_header(&mut headers, name, value.clone());
            redactor.add_credential(value.as_bytes());
        }
        let conditions = self.conditional_headers(request);
        let conditional = !conditions.is_empty();
        headers.extend(conditions);
        let url = format!("{}{}", self.url, request.path);
        let mut sending = self.http.request(request.method.clone(), url).headers(headers);
        if let Some(body) = &request.body {
            sending = sending.body(body.clone());
        }
        if !request.method.is_safe() {
            fence.check_open()?;
        }
        let response = match sending.send().await {
            Ok(response) => response,
            Err(e) => {
                let error = TransportError::from_request(&e);
                attempt.record_transport_error(&error);
                return Ok(AttemptEnd::Broken(error));
            }
        };
        let sent = credential.map(|(_, value)| value);
        if response.status() == 401
            && stale.is_none()
            && self.credentials.can_replace(sent.as_ref())
            && let Some(sent) = sent
        {
            attempt.record_success();
            return Ok(AttemptEnd::StaleCredential(sent));
        }
        self.read_response(response, request, &redactor, conditional, attempt)
            .await
    }

    /// The credential header; records the result of a login in the health.
    pub(super) async fn resolve_credential(
        &self,
        stale: Option<&HeaderValue>,
        attempt: &Attempt<'_>,
    ) -> Result<Option<(HeaderName, HeaderValue)>, CredentialError> {
        let credential = self.credentials.resolve_header(&self.http, stale).await;
        if self.credentials.is_renewable() {
            attempt.update_health(|health| match &credential {
                Ok(_) => health.record_login(Ok(()), Instant::now()),
                Err(CredentialError::Transport(error)) if error.kind == TransportErrorKind::Broken => false,
                Err(CredentialError::Transport(error)) => health.record_unreachable(error.kind, &error.text),
                Err(CredentialError::Rejected(e)) => health.record_login(Err(e), Instant::now()),
                Err(CredentialError::Cached(_)) => false,
            });
        }
        credential
    }

    /// Waits for the rate limit, for `Retry-After` and for the circuit breaker.
    pub(super) async fn admit_request(&self) -> Result<Attempt<'_>, SendError> {
        let now = Instant::now();
        let wait = self.context.rate_limiter.lock().reserve_slot(now, MAX_TURN_WAIT);
        if wait > MAX_TURN_WAIT {
            return Err(SendError::Throttled(
                u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            ));
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        // The end of a trial changes the Upstream's status, which wakes the objects that read it.
        Attempt::start(self).map_err(SendError::Unavailable)
    }

    fn conditional_headers(&self, request: &PreparedRequest<'_>) -> Vec<(HeaderName, HeaderValue)> {
        let state = self.state.lock();
        if !request.cacheable || state.etag_cache.is_empty() {
            return Vec::new();
        }
        let key = CacheKey::new(request.path, request.component_headers);
        key.map_or_else(Vec::new, |key| state.etag_cache.conditional_headers(&key))
    }

    /// Records the head of a response. Returns the wait that the server asks for.
    pub(super) fn record_response(
        &self,
        response: &reqwest::Response,
        path: &str,
        attempt: &Attempt<'_>,
    ) -> Option<Duration> {
        let wait = retry_after(response);
        if let Some(wait) = wait {
            self.context.rate_limiter.lock().pause_for(Instant::now(), wait);
        }
        let status = response.status().as_u16();
        let path = path.split('?').next().unwrap_or_default();
        attempt.update_health(|health| {
            if self.credentials.is_anonymous() {
                health.record_reachable(Instant::now())
            } else {
                health.record_response(status, path, Instant::now())
            }
        });
        wait
    }

    /// Reads a response.
    async fn read_response(
        &self,
        response: reqwest::Response,
        request: &PreparedRequest<'_>,
        redactor: &Redactor,
        conditional: bool,
        mut attempt: Attempt<'_>,
    ) -> Result<AttemptEnd, SendError> {
        let status = response.status().as_u16();
        let wait = self.record_response(&response, request.path, &attempt);
        let shown = response
            .headers()
            .iter()
            .filter(|(name, _)| request_policy::is_visible_header(name.as_str()));
        let headers: Vec<(String, String)> = shown
            .map(|(name, value)| {
                (
                    name.as_str().to_owned(),
                    redactor.redact_text(&String::from_utf8_lossy(value.as_bytes())),
                )
            })
            .collect();
        if status == 304 && conditional {
            attempt.record_success();
            let key = CacheKey::new(request.path, request.component_headers);
            let mut state = self.state.lock();
            let confirmed = key.and_then(|key| state.etag_cache.revalidate_entry(&key, &headers));
            if let Some(confirmed) = confirmed {
                self.context.counters.confirmed.fetch_add(1, Ordering::Relaxed);
                return Ok(AttemptEnd::Answered(confirmed));
            }
            // The entry was evicted meanwhile: repeated without a condition, the server sends the whole response.
            return Ok(AttemptEnd::Broken(TransportError {
                kind: TransportErrorKind::Broken,
                text: "the answer is not kept any more".into(),
            }));
        }
        let validated = response.headers().contains_key(header::ETAG)
            || response.headers().contains_key(header::LAST_MODIFIED);
        let original = (request.cacheable && (validated || conditional)).then(|| response.headers().clone());
        let encoding = content_encoding(&response);
        attempt.budget = request.budget.cloned();
        let mut charge = request.budget.cloned().map(ResponseCharge::new);
        let body = match read_body(response, self.response_bytes, charge.as_mut()).await {
            Ok(body) if encoding.is_none() || body.is_empty() => redactor.redact_body(body).await,
            Ok(_) => {
                attempt.record_success();
                return Err(explain_encoded(&encoding.unwrap_or_default()));
            }
            Err(BodyError::TooLarge(e)) => {
                attempt.record_success();
                return Err(e);
            }
            Err(BodyError::Broken(error)) => {
                attempt.record_transport_error(&error);
                return Ok(AttemptEnd::Broken(error));
            }
        };
        let answer = UpstreamResponse {
            status,
            headers,
            body,
        };
        if let Some(original) = original
            && let Some(key) = CacheKey::new(request.path, request.component_headers)
        {
            self.state
                .lock()
                .etag_cache
                .store_response(key, &original, &answer);
        }
        attempt.record_status(status, wait.is_some());
        Ok(AttemptEnd::Answered(answer))
    }

    /// Connects and logs in, unless requests have shown the health already.
    pub async fn check_health(&self) {
        let Ok(attempt) = Attempt::start(self) else {
            return;
        };
        if let Err(error) = self.open_connection().await {
            return attempt.record_transport_error(&error);
        }
        attempt.update_health(|health| health.record_reachable(Instant::now()));
        if self.credentials.is_renewable() {
            let timeout = self.timeout.min(HEALTH_CHECK_TIMEOUT);
            let logging_in = tokio::time::timeout(timeout, self.resolve_credential(None, &attempt));
            let late = || Err(SendError::Unavailable("login: no answer in time".into()).into());
            match logging_in.await.unwrap_or_else(|_| late()) {
                Ok(_) => {}
                Err(CredentialError::Cached(_)) => return attempt.mark_not_sent(),
                Err(e) => {
                    attempt.record_credential_error(e.into());
                    return;
                }
            }
        }
        // A connection does not disprove an earlier 5xx status: only a request can.
        let proves = !attempt.is_trial() || self.circuit.is_unanswered();
        if proves {
            attempt.record_success();
        }
    }

    /// Takes the upstream for healthy without a connection, in a plan.
    pub(super) fn assume_health(&self) {
        let health = &mut self.state.lock().health;
        let now = Instant::now();
        health.record_reachable(now);
        if self.credentials.is_renewable() {
            health.record_login(Ok(()), now);
        }
    }

    /// Opens a connection as requests do, including TLS, and closes it at once.
    async fn open_connection(&self) -> Result<(), TransportError> {
        let network = &self.context.network;
        let timeout = self.connect_timeout.min(HEALTH_CHECK_TIMEOUT);
        let connected = network.open_connection(&self.host, self.port, timeout).await;
        let stream = connected.map_err(|e| TransportError::from_connect(&*e))?;
        let Some(tls) = &self.tls else { return Ok(()) };
        let error = |text: String| TransportError {
            kind: TransportErrorKind::Tls,
            text,
        };
        let name = ServerName::try_from(self.host.clone()).map_err(|e| error(format!("TLS: {e}")))?;
        match tokio::time::timeout(timeout, tls.connect(name, stream)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(TransportError::from_connect(&e)),
            Err(_) => Err(error("TLS: no answer in time".into())),
        }
    }

    /// The health as reported in the Upstream's status.
    pub fn health_report(&self) -> HealthReport {
        let open = self.circuit.open_reason();
        let health = &self.state.lock().health;
        health.to_report(open.as_deref(), self.credentials.is_anonymous())
    }

    /// The known health of the upstream.
    pub fn health(&self) -> UpstreamHealth {
        self.state.lock().health.clone()
    }

    /// The upstream should be checked without a request: its health is unknown or bad, or nothing was received for this
    /// long.
    pub fn needs_health_check(&self, idle: Duration) -> bool {
        let state = self.state.lock();
        let open = self.circuit.trial_at().is_some();
        state.health.is_unknown()
            || open
            || !state.health.is_healthy()
            || state.health.idle_time(Instant::now()) >= idle
    }

    /// The delay before the next health check: `idle` while the upstream is healthy, else growing from `soonest` to
    /// `latest`.
    pub fn next_health_check(&self, unhealthy: Backoff, idle: Duration) -> Duration {
        let mut state = self.state.lock();
        let reopens = self.circuit.trial_at();
        if state.health.is_healthy() && reopens.is_none() {
            state.failed_checks = 0;
            return idle;
        }
        state.failed_checks = state.failed_checks.saturating_add(1);
        let wait = unhealthy.delay(state.failed_checks);
        let closed = |at: Instant| at.saturating_duration_since(Instant::now());
        wait.max(reopens.map_or(Duration::ZERO, closed))
    }

    /// State of the circuit breaker.
    pub fn circuit_state(&self) -> CircuitState {
        self.circuit.state()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credential_header_replaces_aliases_of_component() {
        let mut headers = HeaderMap::new();
        for name in ["x-api-key", "x_api_key", "x.api_key", "x-api-keys"] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static("guest"));
        }
        replace_header(
            &mut headers,
            &HeaderName::from_static("x-api-key"),
            HeaderValue::from_static("host"),
        );
        let mut left: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        left.sort_unstable();
        assert_eq!(left, [("x-api-key", "host"), ("x-api-keys", "guest")]);
    }
}
