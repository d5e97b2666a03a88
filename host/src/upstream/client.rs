//! The client of one upstream, for one version of its spec and Secrets.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use rustls::pki_types::ServerName;
use tokio::sync::{Notify, Semaphore};
use tokio_rustls::TlsConnector;

use super::{
    Gate, Request, Response, SecretKey, Secrets, SendError,
    answer::{Unread, asked_to_wait, cause, collected},
    attempt::Ticket,
    auth::{Credentials, Refusal},
    breaker::{Admission, Breaker, Circuit},
    coalesce::Shared,
    conditional::{Cache, Key},
    health::{Health, Report},
    masking::{Former, Masks},
    object::UpstreamObject,
    rate_limit::Pace,
    request_policy, tls,
    transport_error::{Fault, Kind},
};
use crate::policy::network::Network;

/// Longest wait for the rate limit inside a call. A longer one is returned as `throttled`, so that the call frees its
/// resources meanwhile.
const TURN: Duration = Duration::from_secs(1);

/// Retries of one request, and the delay before the first.
const RETRIES: u32 = 2;
const PAUSE: Duration = Duration::from_millis(50);

/// Counters of an upstream, over all versions of its client.
#[derive(Debug, Default)]
pub struct Totals {
    /// Requests repeated because the connection failed.
    pub retries: AtomicU64,
    /// Responses confirmed by HTTP 304 instead of sent again.
    pub confirmed: AtomicU64,
}

/// Dependencies of a client besides the Upstream and its Secrets.
pub struct Surroundings {
    /// Decides which addresses the client may connect to.
    pub network: Network,
    /// Version of the network policy when the client was built.
    pub network_version: u64,
    /// The Secret keys that the client is built from, with their versions.
    pub secrets: Vec<(SecretKey, String)>,
    /// Health known to the previous client.
    pub health: Health,
    /// Counters of the upstream.
    pub totals: Arc<Totals>,
    /// Called when the Upstream's status may have to change.
    pub news: Arc<dyn Fn() + Send + Sync>,
}

/// The client of one upstream: connections, credentials and limits.
pub struct Client {
    pub(super) http: reqwest::Client,
    pub(super) url: String,
    pub(super) credentials: Credentials,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    pub(super) in_flight: Arc<Semaphore>,
    /// Responses shared by concurrent requests.
    pub shared: Shared,
    request_bytes: usize,
    response_bytes: usize,
    pub(super) timeout: Duration,
    connect_timeout: Duration,
    pub(super) around: Surroundings,
    pub(super) state: Mutex<State>,
    /// Notifies the requests that wait for the end of a trial.
    pub(super) tried: Notify,
}

/// State shared by all requests.
pub(super) struct State {
    pub(super) breaker: Breaker,
    /// The last failure, as reported while the breaker is open.
    pub(super) failure: String,
    /// The last failure was one without a response, so that a successful connection disproves it.
    pub(super) unanswered: bool,
    pub(super) pace: Pace,
    cache: Cache,
    pub(super) health: Health,
    /// Failed health checks in a row.
    unhealthy: u32,
}

/// A checked request, with the secrets in its body.
struct Prepared<'a> {
    method: Method,
    path: &'a str,
    headers: HeaderMap,
    given: &'a [(String, String)],
    body: Option<Vec<u8>>,
    masks: Masks,
    cacheable: bool,
}

impl Client {
    /// Builds a client from the spec and the current values of the Secrets.
    pub fn new(
        upstream: &UpstreamObject,
        secrets: &dyn Secrets,
        mut around: Surroundings,
    ) -> Result<Self, SendError> {
        let spec = &upstream.spec;
        let url = spec.url.trim_end_matches('/').to_owned();
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
        around
            .network
            .check(&parsed)
            .map_err(|e| SendError::NotAllowed(e.to_string()))?;
        let seconds = |n: Option<u32>, default: u32| Duration::from_secs(n.unwrap_or(default).max(1).into());
        let timeout = seconds(spec.timeout_seconds, 30);
        let connect_timeout = seconds(spec.connect_timeout_seconds, 10).min(timeout);
        let tls = tls::config(upstream, secrets)?;
        let http = reqwest::Client::builder()
            // Redirects are not followed: they would carry the credentials elsewhere. The component gets the 3xx
            // response.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect_timeout)
            .pool_idle_timeout(Duration::from_secs(60))
            .dns_resolver(Arc::new(around.network.clone()))
            .use_preconfigured_tls(tls.clone())
            .build()
            .map_err(|e| SendError::Invalid(format!("the client: {}", cause(&e))))?;
        let limits = spec.limits.clone().unwrap_or_default();
        let bytes = |limit: Option<u32>| limit.unwrap_or(8 << 20) as usize;
        Ok(Self {
            http,
            credentials: Credentials::new(upstream, secrets, &around.network, timeout)?,
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            tls: (parsed.scheme() == "https").then(|| Arc::new(tls).into()),
            url,
            shared: Shared::default(),
            in_flight: Arc::new(Semaphore::new(limits.in_flight.unwrap_or(16).max(1) as usize)),
            request_bytes: bytes(limits.request_body_bytes),
            response_bytes: bytes(limits.response_body_bytes),
            timeout,
            connect_timeout,
            state: Mutex::new(State {
                breaker: Breaker::default(),
                failure: String::new(),
                unanswered: false,
                pace: Pace::new(limits.requests_per_second, limits.burst),
                cache: Cache::default(),
                health: std::mem::take(&mut around.health),
                unhealthy: 0,
            }),
            around,
            tried: Notify::new(),
        })
    }

    /// Sends a request; sends it again after a new login if the server rejects it with 401.
    pub async fn send(
        &self,
        request: Request,
        secrets: &dyn Secrets,
        former: &Former,
        gate: &Gate,
    ) -> Result<Response, SendError> {
        let prepared = self.prepare(&request, secrets, former)?;
        let timeout = request.timeout.map_or(self.timeout, |t| t.min(self.timeout));
        let waited = tokio::time::timeout(timeout, async {
            let _permit = self.in_flight.acquire().await;
            self.exchange(prepared, gate).await
        });
        let late = || Err(SendError::Unavailable(format!("no answer within {timeout:?}")));
        waited.await.unwrap_or_else(|_| late())
    }

    /// Checks that a request could be sent: its method, path and headers are allowed and its secrets exist.
    pub fn check(&self, request: &Request, secrets: &dyn Secrets, former: &Former) -> Result<(), SendError> {
        self.prepare(request, secrets, former).map(drop)
    }

    fn prepare<'a>(
        &self,
        request: &'a Request,
        secrets: &dyn Secrets,
        former: &Former,
    ) -> Result<Prepared<'a>, SendError> {
        request_policy::path(&request.path_and_query)?;
        request_policy::method(&request.method)?;
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
            request_policy::header(name, value)?;
            let invalid = |what: &str| SendError::Invalid(format!("header {name:?}: no {what}"));
            let name = HeaderName::try_from(name).map_err(|_| invalid("name"))?;
            headers.append(name, HeaderValue::from_str(value).map_err(|_| invalid("value"))?);
        }
        let value = |key: &SecretKey| secrets.get(key).map(|s| s.value.expose().to_vec());
        let mut masks = Masks::new(&request.substitutions, value, former)?;
        // The response may repeat secrets that were put into another request.
        masks.also(&Masks::all(former));
        let body = request.body.as_deref().map(|body| masks.fill(body));
        if body.as_ref().is_some_and(|b| b.len() > self.request_bytes) {
            return Err(SendError::TooLarge(format!(
                "the request's body has more than {} bytes",
                self.request_bytes
            )));
        }
        Ok(Prepared {
            cacheable: method == Method::GET && body.is_none() && request.substitutions.is_empty(),
            method,
            path: &request.path_and_query,
            headers,
            given: &request.headers,
            body,
            masks,
        })
    }

    /// Attempts the request until there is a response or no retry is left.
    async fn exchange(&self, request: Prepared<'_>, gate: &Gate) -> Result<Response, SendError> {
        self.state.lock().expect("lock").pace.earn();
        let safe = request.method.is_safe();
        let (mut stale, mut retries) = (None, 0);
        loop {
            let ticket = self.admitted().await?;
            let credential = self.credential(stale.as_ref(), &ticket).await;
            let credential = match credential {
                Ok(credential) => credential,
                Err(Refusal::Earlier(e)) => {
                    ticket.unsent();
                    return Err(e);
                }
                Err(e) => return Err(ticket.given_up(e.into())),
            };
            let mut masks = request.masks.clone();
            self.credentials.never_show(&mut masks);
            let mut headers = request.headers.clone();
            if let Some((name, value)) = &credential {
                // `insert` replaces a header of the same name that the component may have set; the redactor keeps the
                // credential out of the response.
                headers.insert(name, value.clone());
                masks.never_show(value.as_bytes());
            }
            let conditions = self.conditions(&request);
            let conditional = !conditions.is_empty();
            headers.extend(conditions);
            let url = format!("{}{}", self.url, request.path);
            let mut sending = self.http.request(request.method.clone(), url).headers(headers);
            if let Some(body) = &request.body {
                sending = sending.body(body.clone());
            }
            if !safe {
                gate.check()?;
            }
            let fault = match sending.send().await {
                Ok(response)
                    if response.status() == 401 && stale.is_none() && self.credentials.renewable() =>
                {
                    ticket.succeeded();
                    stale = credential.map(|(_, value)| value);
                    continue;
                }
                Ok(response) => match self.read(response, &request, &masks, conditional, ticket).await {
                    Ok(answer) => return answer,
                    Err(fault) => fault,
                },
                Err(e) => {
                    let fault = Fault::of(&e);
                    ticket.failed(&fault);
                    fault
                }
            };
            // A server may have acted on a request that was sent: from then on only safe methods are repeated.
            let repeatable = safe || (fault.unsent() && request.method.is_idempotent());
            let hopeless = matches!(fault.kind, Kind::Address | Kind::Tls);
            let again = repeatable && !hopeless && retries < RETRIES && {
                let mut state = self.state.lock().expect("lock");
                state.breaker.reopens().is_none() && state.pace.retry()
            };
            if !again {
                return Err(fault.error(""));
            }
            self.around.totals.retries.fetch_add(1, Ordering::Relaxed);
            let pause = PAUSE * (1 << retries);
            retries += 1;
            tokio::time::sleep(pause + pause * (crate::kube::time::unique() % 100) as u32 / 100).await;
        }
    }

    /// The credential header; records the result of a login in the health.
    pub(super) async fn credential(
        &self,
        stale: Option<&HeaderValue>,
        ticket: &Ticket<'_>,
    ) -> Result<Option<(HeaderName, HeaderValue)>, Refusal> {
        let credential = self.credentials.header(&self.http, stale).await;
        if self.credentials.renewable() {
            ticket.tell(|health| match &credential {
                Ok(_) => health.logged_in(Ok(()), Instant::now()),
                Err(Refusal::Fault(fault)) if fault.kind == Kind::Broken => false,
                Err(Refusal::Fault(fault)) => health.unreachable(fault.kind, &fault.text),
                Err(Refusal::Answer(e)) => health.logged_in(Err(e), Instant::now()),
                Err(Refusal::Earlier(_)) => false,
            });
        }
        credential
    }

    /// Waits for the rate limit, for `Retry-After` and for the circuit breaker.
    pub(super) async fn admitted(&self) -> Result<Ticket<'_>, SendError> {
        let now = Instant::now();
        let wait = self.state.lock().expect("lock").pace.take(now, TURN);
        if wait > TURN {
            return Err(SendError::Throttled(
                u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            ));
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        loop {
            let tried = self.tried.notified();
            tokio::pin!(tried);
            // Registered before the check, so that no end of a trial is missed.
            tried.as_mut().enable();
            let admission = {
                let mut state = self.state.lock().expect("lock");
                match state.breaker.admit(Instant::now()) {
                    Admission::Refused(_) => Err(format!("not asked for a moment: {}", state.failure)),
                    admission => Ok(admission),
                }
            };
            match admission {
                Ok(Admission::Wait) => tried.await,
                Ok(admission) => {
                    return Ok(Ticket::new(self, admission == Admission::Trial));
                }
                Err(why) => return Err(SendError::Unavailable(why)),
            }
        }
    }

    fn conditions(&self, request: &Prepared<'_>) -> Vec<(HeaderName, HeaderValue)> {
        let state = self.state.lock().expect("lock");
        if !request.cacheable || state.cache.is_empty() {
            return Vec::new();
        }
        let key = Key::new(request.path, request.given);
        key.map_or_else(Vec::new, |key| state.cache.conditions(&key))
    }

    /// Records the head of a response. Returns the wait that the server asks for.
    pub(super) fn answered(
        &self,
        response: &reqwest::Response,
        path: &str,
        ticket: &Ticket<'_>,
    ) -> Option<Duration> {
        let wait = asked_to_wait(response);
        if let Some(wait) = wait {
            self.state.lock().expect("lock").pace.pause(Instant::now(), wait);
        }
        let status = response.status().as_u16();
        let path = path.split('?').next().unwrap_or_default();
        ticket.tell(|health| match self.credentials.none() {
            true => health.reached(Instant::now()),
            false => health.answered(status, path, Instant::now()),
        });
        wait
    }

    /// Reads a response. `Err` is a transport error after which the request may be repeated.
    async fn read(
        &self,
        response: reqwest::Response,
        request: &Prepared<'_>,
        masks: &Masks,
        conditional: bool,
        ticket: Ticket<'_>,
    ) -> Result<Result<Response, SendError>, Fault> {
        let status = response.status().as_u16();
        let wait = self.answered(&response, request.path, &ticket);
        let shown = response
            .headers()
            .iter()
            .filter(|(name, _)| request_policy::shown(name.as_str()));
        let headers: Vec<(String, String)> = shown
            .map(|(name, value)| {
                (
                    name.as_str().to_owned(),
                    String::from_utf8_lossy(&masks.hide(value.as_bytes())).into_owned(),
                )
            })
            .collect();
        if status == 304 && conditional {
            ticket.succeeded();
            let key = Key::new(request.path, request.given);
            let mut state = self.state.lock().expect("lock");
            let confirmed = key.and_then(|key| state.cache.confirmed(&key, &headers));
            if let Some(confirmed) = confirmed {
                self.around.totals.confirmed.fetch_add(1, Ordering::Relaxed);
                return Ok(Ok(confirmed));
            }
            // The entry was evicted meanwhile: repeated without a condition, the server sends the whole response.
            return Err(Fault {
                kind: Kind::Broken,
                text: "the answer is not kept any more".into(),
            });
        }
        let validated = response.headers().contains_key(header::ETAG)
            || response.headers().contains_key(header::LAST_MODIFIED);
        let original = (request.cacheable && (validated || conditional)).then(|| response.headers().clone());
        let body = match collected(response, self.response_bytes).await {
            Ok(body) => masks.hide(&body),
            Err(Unread::TooLarge(e)) => {
                ticket.succeeded();
                return Ok(Err(e));
            }
            Err(Unread::Broken(fault)) => {
                ticket.failed(&fault);
                return Err(fault);
            }
        };
        let answer = Response {
            status,
            headers,
            body,
        };
        if let Some(original) = original
            && let Some(key) = Key::new(request.path, request.given)
        {
            self.state
                .lock()
                .expect("lock")
                .cache
                .take(key, &original, &answer);
        }
        ticket.answered(status, wait.is_some());
        Ok(Ok(answer))
    }

    /// Connects and logs in, unless requests have shown the health already.
    pub async fn probe(&self) {
        let admission = self.state.lock().expect("lock").breaker.admit(Instant::now());
        if matches!(admission, Admission::Refused(_) | Admission::Wait) {
            return;
        }
        let ticket = Ticket::new(self, admission == Admission::Trial);
        if let Err(fault) = self.connect().await {
            return ticket.failed(&fault);
        }
        ticket.tell(|health| health.reached(Instant::now()));
        if self.credentials.renewable() {
            let logging_in = tokio::time::timeout(self.timeout, self.credential(None, &ticket));
            let late = || Err(SendError::Unavailable("log-in: no answer in time".into()).into());
            match logging_in.await.unwrap_or_else(|_| late()) {
                Ok(_) => {}
                Err(Refusal::Earlier(_)) => return ticket.unsent(),
                Err(e) => {
                    ticket.given_up(e.into());
                    return;
                }
            }
        }
        // A connection does not disprove an earlier 5xx status: only a request can.
        let proves = !ticket.trial || self.state.lock().expect("lock").unanswered;
        if proves {
            ticket.succeeded();
        }
    }

    /// Opens a connection as requests do, including TLS, and closes it at once.
    async fn connect(&self) -> Result<(), Fault> {
        let network = &self.around.network;
        let connected = network.connect(&self.host, self.port, self.connect_timeout).await;
        let stream = connected.map_err(|e| Fault::connecting(&*e))?;
        let Some(tls) = &self.tls else { return Ok(()) };
        let fault = |text: String| Fault {
            kind: Kind::Tls,
            text,
        };
        let name = ServerName::try_from(self.host.clone()).map_err(|e| fault(format!("TLS: {e}")))?;
        match tokio::time::timeout(self.connect_timeout, tls.connect(name, stream)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(Fault::connecting(&e)),
            Err(_) => Err(fault("TLS: no answer in time".into())),
        }
    }

    /// The health as reported in the Upstream's status.
    pub fn report(&self) -> Report {
        let state = self.state.lock().expect("lock");
        let open = state.breaker.reopens().map(|_| &*state.failure);
        state.health.report(open, self.credentials.none())
    }

    /// The known health of the upstream.
    pub fn health(&self) -> Health {
        self.state.lock().expect("lock").health.clone()
    }

    /// The upstream should be checked without a request: its health is unknown or bad, or nothing was received for this
    /// long.
    pub fn wants_probe(&self, idle: Duration) -> bool {
        let state = self.state.lock().expect("lock");
        let open = state.breaker.reopens().is_some();
        state.health.unknown() || open || !state.health.good() || state.health.silent(Instant::now()) >= idle
    }

    /// The delay before the next health check: `idle` while the upstream is healthy, else growing from `soonest` to
    /// `latest`.
    pub fn next_look(&self, (soonest, latest, idle): (Duration, Duration, Duration)) -> Duration {
        let mut state = self.state.lock().expect("lock");
        let reopens = state.breaker.reopens();
        if state.health.good() && reopens.is_none() {
            state.unhealthy = 0;
            return idle;
        }
        let wait = soonest.saturating_mul(1 << state.unhealthy.min(16)).min(latest);
        state.unhealthy = state.unhealthy.saturating_add(1);
        let closed = |at: Instant| at.saturating_duration_since(Instant::now());
        wait.max(reopens.map_or(Duration::ZERO, closed))
    }

    /// State of the circuit breaker.
    pub fn circuit(&self) -> Circuit {
        self.state.lock().expect("lock").breaker.circuit(Instant::now())
    }
}
