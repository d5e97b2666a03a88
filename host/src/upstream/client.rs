//! The client of one upstream, in one version of its spec and Secrets.

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
    Request, Response, SecretKey, Secrets, SendError, WriteFence,
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

/// Who has to wait longer for its turn is told to come back, so that it holds up nothing meanwhile.
const TURN: Duration = Duration::from_secs(1);

/// Repetitions of one request, and the pause before the first.
const RETRIES: u32 = 2;
const PAUSE: Duration = Duration::from_millis(50);

/// What is counted of an upstream, over all its clients.
#[derive(Debug, Default)]
pub struct Totals {
    /// Requests that were repeated because the connection failed.
    pub retries: AtomicU64,
    /// Answers that the server confirmed instead of sending them again.
    pub confirmed: AtomicU64,
}

/// What a client is given besides the Upstream and its Secrets.
pub struct Surroundings {
    /// Which addresses it may connect to.
    pub network: Network,
    /// What it was allowed when it was made.
    pub network_version: u64,
    /// The keys it is made of, in which versions.
    pub secrets: Vec<(SecretKey, String)>,
    /// What was known of the upstream before.
    pub health: Health,
    /// What it counts.
    pub totals: Arc<Totals>,
    /// Told when people should be.
    pub news: Arc<dyn Fn() + Send + Sync>,
}

/// One upstream's client: connections, credentials, limits.
pub struct Client {
    pub(super) http: reqwest::Client,
    pub(super) url: String,
    pub(super) credentials: Credentials,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    pub(super) in_flight: Arc<Semaphore>,
    /// Answers that may serve several.
    pub shared: Shared,
    request_bytes: usize,
    response_bytes: usize,
    pub(super) timeout: Duration,
    connect_timeout: Duration,
    pub(super) around: Surroundings,
    pub(super) state: Mutex<State>,
    /// A trial has ended.
    pub(super) tried: Notify,
}

/// What requests tell each other.
pub(super) struct State {
    pub(super) breaker: Breaker,
    /// The last failure: why it is open.
    pub(super) failure: String,
    /// Whether that was one without any answer, so that a connection disproves it.
    pub(super) unanswered: bool,
    pub(super) pace: Pace,
    cache: Cache,
    pub(super) health: Health,
    /// Checks in a row that found it not as it should be.
    unhealthy: u32,
}

/// A checked request.
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
    /// A client for the spec and the Secrets as they are.
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
            // A redirect would carry the credentials elsewhere: the component gets the 3xx as it is.
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

    /// Sends a request; once more after a fresh log-in when it is refused with 401.
    pub async fn send(
        &self,
        request: Request,
        secrets: &dyn Secrets,
        former: &Former,
        gate: &WriteFence,
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

    /// Whether a request could be sent: its path and headers may be, and what goes into its body is there.
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
        // What was put into another request may come back in the answer to this one.
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

    /// Attempts until there is an answer, or no more may be made.
    async fn exchange(&self, request: Prepared<'_>, gate: &WriteFence) -> Result<Response, SendError> {
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
                // The only one of its name, whatever the component has set; and never to be seen in an answer.
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
                gate.check_open()?;
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
            // What has left may have been acted upon: only what changes nothing is sent again then.
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
            tokio::time::sleep(pause + pause * (crate::kube::time::unique_id() % 100) as u32 / 100).await;
        }
    }

    /// The credentials as a header, with what a log-in came to made known.
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

    /// Waits for a turn: the rate, what the server asked for, and the breaker.
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
            // From here on no end of a trial is missed.
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

    /// An answer has begun: what its head tells. Gives how long the server asks to be left alone.
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

    /// Reads an answer. `Err` is a fault after which the request may be repeated.
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
            // It has made room for others meanwhile: without a condition it is sent whole.
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

    /// Connects and logs in, unless requests have told how it is.
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
        // A connection does not disprove that it answers badly: for that a request has to try.
        let proves = !ticket.trial || self.state.lock().expect("lock").unanswered;
        if proves {
            ticket.succeeded();
        }
    }

    /// A connection as requests have, TLS included; closed at once.
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

    /// How it is, for its status.
    pub fn report(&self) -> Report {
        let state = self.state.lock().expect("lock");
        let open = state.breaker.reopens().map(|_| &*state.failure);
        state.health.report(open, self.credentials.none())
    }

    /// What is known of the upstream.
    pub fn health(&self) -> Health {
        self.state.lock().expect("lock").health.clone()
    }

    /// Whether it should be looked at without a request that does: nothing is known, it is not as it should be, or
    /// nothing was heard for this long.
    pub fn wants_probe(&self, idle: Duration) -> bool {
        let state = self.state.lock().expect("lock");
        let open = state.breaker.reopens().is_some();
        state.health.unknown() || open || !state.health.good() || state.health.silent(Instant::now()) >= idle
    }

    /// When to look again: seldom while it is as it should be, and else soon, and ever less.
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

    /// Where its breaker is.
    pub fn circuit(&self) -> Circuit {
        self.state.lock().expect("lock").breaker.circuit(Instant::now())
    }
}
