//! Clients of upstreams: HTTP, and AMQP in [`broker`]. One client exists per `Upstream` object, version of its spec and values of its Secrets;
//! all components that name the Upstream share it.
//!
//! A request passes these layers from top to bottom, and its response passes them from bottom to top:
//!
//! ```text
//!  request                                                                           response
//!     │  dry run            ClientPool        `ostler plan`: writes are answered here     ▲
//!     │  coalescing         coalesce          `max-age`: one request serves many          │
//!     │  request policy     request_policy    method, path and headers are checked        │
//!     │  substitution       substitution      Secrets replace placeholders in the body    │
//!     │  time and in-flight client            timeout, bounded concurrency                │
//!     │  retries            client            safe requests, within the retry budget      │
//!     │  rate limit         rate_limit        rate, burst, `Retry-After` of the server    │
//!     │  circuit breaker    breaker           a failing server gets one trial at a time   │
//!     │  credentials        auth              the host's header, by a login if needed     │
//!     │  etag cache         conditional       `If-None-Match` out, the kept body for 304  │
//!     │  write fence        client::fence     unsafe methods only while leading           │
//!     ▼  TLS, addresses     tls, network      policy::network allows each address         │
//!  server ── body limit (response) ── health (health) ── redaction (redact) ──────────────┘
//! ```
//!
//! Secrets enter a request in two places only: `substitution` puts them into the body, and `auth` makes the credential
//! header that `UpstreamClient::send_with_retries` inserts.

mod answer;
mod attempt;
mod auth;
mod broker;
mod challenge;
mod client;
mod coalesce;
mod conditional;
mod decoded_text;
mod digest_key;
mod encoding;
mod grant;
mod health;
mod object;
mod rate_limit;
mod redact;
mod request_policy;
mod response_budget;
mod spec;
mod sse;
mod stream;
mod substitution;
mod tls;
mod transport_error;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

pub(crate) use self::{
    answer::{retry_after, root_cause},
    broker::{BrokerClient, BrokerConnections},
    challenge::Challenge,
    health::{HealthFact, HealthReport},
    transport_error::{TransportError, TransportErrorKind},
};
use self::{
    broker::BrokerClients,
    client::{ClientContext, ClientCounters, UpstreamClient},
    health::UpstreamHealth,
    rate_limit::RateLimiter,
};
pub use self::{
    broker::{
        DeadLetter, HandleResult, IncomingMessage, OutgoingMessage, QueuedMessage, SubscriptionKey,
        SubscriptionState, SubscriptionStats, Subscriptions,
    },
    digest_key::DigestKey,
    encoding::Encoding,
    object::{SecretUses, UpstreamObject},
    redact::{Redactor, SecretHistory},
    response_budget::{ResponseBudget, ResponseCharge},
    spec::{SecretKeySelector, Upstream, UpstreamSpec, crd_yaml},
    sse::ServerSentEvent,
    stream::{
        EventPattern, EventStreams, EventTail, StreamKey, StreamSource, StreamState, StreamStatus,
        StreamSubscription, TailQuery,
    },
    substitution::{RequestSecrets, SecretSource, Substitution, Username},
};
pub use crate::client::breaker::CircuitState;
use crate::{
    client::fence::{NotLeader, WriteFence},
    contract::{
        bindings::{http, types},
        memory_budget::BudgetExhausted,
    },
    kube::{key::Gvk, well_known::annotation},
    policy::{
        network::NetworkPolicy,
        origin::{Origin, OriginPattern},
    },
};

/// The kind of `Upstream` objects.
pub fn upstream_gvk() -> Gvk {
    // Kept, because interning takes a lock and each call of a component compares its reads with this kind.
    static UPSTREAM: LazyLock<Gvk> = LazyLock::new(|| Gvk::new("ostler.dev", "v1alpha1", "Upstream"));
    UPSTREAM.clone()
}

/// A secret value. `Debug` prints `***`, so that it cannot reach a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Wraps a value.
    pub fn new(value: Vec<u8>) -> Self {
        Self(value)
    }

    /// The bytes, for the request that carries them.
    pub(crate) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// The name of one key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamSecretKey {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// Key in its data.
    pub key: String,
}

impl std::fmt::Display for UpstreamSecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret {}/{} key `{}`", self.namespace, self.name, self.key)
    }
}

/// A source of secret values: the cache of Secrets, or a fixture in tests.
pub trait SecretStore: Send + Sync {
    /// The value of a key; `None` if the Secret or the key does not exist.
    fn get(&self, key: &UpstreamSecretKey) -> Option<Secret>;

    /// The origins that the owner of the Secret confines it to, as in its annotation; none for any.
    fn allowed_origins(&self, _key: &UpstreamSecretKey) -> Option<String> {
        None
    }
}

/// Checks that the owner of a Secret allows to send it to these origins.
fn check_secret_origins(
    secrets: &dyn SecretStore,
    key: &UpstreamSecretKey,
    origins: &[Origin],
) -> Result<(), SendError> {
    let Some(list) = secrets.allowed_origins(key) else {
        return Ok(());
    };
    let (namespace, name, annotation) = (&key.namespace, &key.name, annotation::ORIGINS);
    let allowed = OriginPattern::parse_list(&list).map_err(|e| {
        SendError::OriginNotAllowed(format!("Secret {namespace}/{name}: annotation {annotation}: {e}"))
    })?;
    match origins.iter().find(|o| !allowed.iter().any(|p| p.matches(o))) {
        None => Ok(()),
        Some(origin) => Err(SendError::OriginNotAllowed(format!(
            "Secret {namespace}/{name} may not be sent to {origin}: its annotation {annotation} does not list it"
        ))),
    }
}

/// Secret values read at one moment. A client is built from them and superseded when they differ, so both must be the
/// same read. Metadata of a Secret is not in them: an annotation would end connections, tokens and streams.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretSnapshot(Vec<(UpstreamSecretKey, Secret)>);

impl SecretStore for SecretSnapshot {
    fn get(&self, key: &UpstreamSecretKey) -> Option<Secret> {
        let found = self.0.iter().find(|(k, _)| k == key);
        found.map(|(_, value)| value.clone())
    }
}

/// A request of a component, checked by [`ClientPool::send_request`].
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    /// HTTP method.
    pub method: String,
    /// Path, and query if any; starts with `/`.
    pub path_and_query: String,
    /// Header names and values.
    pub headers: Vec<(String, String)>,
    /// Body, with placeholders.
    pub body: Option<Vec<u8>>,
    /// The secrets that replace the placeholders.
    pub substitutions: Vec<Substitution>,
    /// A timeout shorter than the Upstream's own.
    pub timeout: Option<Duration>,
    /// The budget of the response; none for requests of the host itself.
    pub budget: Option<ResponseBudget>,
}

impl UpstreamRequest {
    /// A GET without headers.
    fn get(path_and_query: &str) -> Self {
        Self {
            method: "GET".into(),
            path_and_query: path_and_query.to_owned(),
            headers: Vec::new(),
            body: None,
            substitutions: Vec::new(),
            timeout: None,
            budget: None,
        }
    }
}

/// A response with any HTTP status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamResponse {
    /// HTTP status.
    pub status: u16,
    /// Header names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body, with placeholders in place of secrets.
    pub body: Vec<u8>,
}

impl UpstreamResponse {
    /// The response to a request that could not be authenticated: HTTP 401.
    pub fn unauthorized(why: &str) -> Self {
        Self {
            status: 401,
            headers: vec![("content-type".into(), "text/plain; charset=utf-8".into())],
            body: format!("login refused: {why}").into_bytes(),
        }
    }
}

impl From<UpstreamResponse> for http::Response {
    fn from(r: UpstreamResponse) -> Self {
        let headers = r
            .headers
            .into_iter()
            .map(|(name, value)| http::Header { name, value });
        Self {
            status: r.status,
            headers: headers.collect(),
            body: r.body,
        }
    }
}

/// The reason for a missing response. It never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The request or the Upstream is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A Secret or a key of it is missing.
    #[error("{0}")]
    NotFound(String),
    /// The network policy does not allow the address.
    #[error("{0}")]
    NotAllowed(String),
    /// The owner of a Secret does not allow to send it to the upstream.
    #[error("{0}")]
    OriginNotAllowed(String),
    /// The broker does not permit the operation to the user.
    #[error("the broker refuses it: {0}")]
    Refused(String),
    /// The server does not accept the credentials.
    #[error("login refused: {0}")]
    LoginFailed(String),
    /// The connection failed, broke, or timed out.
    #[error("{0}")]
    Unavailable(String),
    /// A rate limit applies; the value is the wait in milliseconds.
    #[error("throttled for {0} ms")]
    Throttled(u64),
    /// A body exceeds its limit.
    #[error("{0}")]
    TooLarge(String),
    /// The responses exceed what the call may receive (`bytesFromHost`).
    #[error("the responses have more bytes than the call may receive")]
    ResponsesTooLarge,
    /// The host has no memory for the response.
    #[error(transparent)]
    Exhausted(BudgetExhausted),
    /// The host is not the leader; nothing was sent.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
}

impl SendError {
    /// Names the server in the reason of a failed connection: components show it to people, who must know what is down.
    #[must_use]
    pub fn at_server(self, upstream: &UpstreamObject) -> Self {
        match (self, upstream.origin()) {
            (Self::Unavailable(why), Ok(origin)) => Self::Unavailable(format!("{origin}: {why}")),
            (error, _) => error,
        }
    }
}

impl From<SendError> for types::Error {
    fn from(e: SendError) -> Self {
        let text = e.to_string();
        match e {
            SendError::Invalid(_) => Self::Invalid(text),
            SendError::NotFound(_) => Self::NotFound(text),
            SendError::LoginFailed(_)
            | SendError::NotAllowed(_)
            | SendError::OriginNotAllowed(_)
            | SendError::Refused(_) => Self::Denied(text),
            SendError::Unavailable(_) | SendError::Exhausted(_) | SendError::NotLeader(_) => {
                Self::Unavailable(text)
            }
            SendError::Throttled(ms) => Self::Throttled(ms),
            SendError::TooLarge(_) | SendError::ResponsesTooLarge => Self::LimitExceeded(text),
        }
    }
}

/// Age of the last use after which a client and its connections are dropped.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Age of the last use after which the substituted secrets of a deleted Upstream are forgotten.
const DELETED_RETENTION_PERIOD: Duration = Duration::from_secs(24 * 3600);

/// The pool of all clients.
pub struct ClientPool {
    /// Clients by namespace and name of the Upstream.
    clients: Mutex<HashMap<(String, String), PoolEntry>>,
    brokers: BrokerClients,
    digest_key: DigestKey,
    fence: WriteFence,
    network: NetworkPolicy,
    on_status_change: StatusListener,
    /// In a plan: answers the requests that are not sent.
    dry_run: Option<Arc<dyn DryRun>>,
}

/// Answers in place of upstreams, for a plan.
pub trait DryRun: Send + Sync {
    /// The host may connect to the Upstream and send credentials to it.
    fn may_connect(&self, upstream: &UpstreamObject) -> bool;

    /// Answers a request that is not sent.
    fn answer_request(&self, upstream: &UpstreamObject, request: &UpstreamRequest) -> UpstreamResponse;

    /// Records a message that is not published.
    fn record_message(&self, upstream: &UpstreamObject, message: &OutgoingMessage);

    /// Records that an Upstream that is not connected to is assumed to work.
    fn assume_health(&self, upstream: &UpstreamObject);
}

/// Called with namespace and name of an Upstream when its status may have to change.
type StatusListener = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Counters and state of one upstream's client, for metrics.
#[derive(Clone, Debug)]
pub struct ClientStats {
    /// Namespace and name of the Upstream.
    pub upstream: String,
    /// State of the circuit breaker.
    pub circuit: CircuitState,
    /// Number of repeated requests.
    pub retries: u64,
    /// Number of responses that the server confirmed by HTTP 304.
    pub confirmed: u64,
}

/// The inputs of a client. One that differs supersedes it.
#[derive(Clone, PartialEq, Eq)]
struct ClientVersion {
    uid: String,
    generation: i64,
    network: u64,
    secrets: SecretSnapshot,
}

impl ClientVersion {
    /// Reads the Secrets that an Upstream needs. Fails if one is missing, or must not be sent to its origins.
    fn resolve(
        upstream: &UpstreamObject,
        secrets: &dyn SecretStore,
        network: u64,
    ) -> Result<Self, SendError> {
        let mut secret_values = SecretSnapshot::default();
        let keys = upstream.secret_keys();
        let origins = match keys.as_slice() {
            [] => Vec::new(),
            _ => upstream.credential_origins().map_err(SendError::Invalid)?,
        };
        for key in keys {
            check_secret_origins(secrets, &key, &origins)?;
            let value = secrets.get(&key).ok_or_else(|| missing_secret(&key))?;
            secret_values.0.push((key, value));
        }
        Ok(Self {
            uid: upstream.uid.clone(),
            generation: upstream.generation,
            network,
            secrets: secret_values,
        })
    }
}

/// The settings of a rate limiter, and the server that it is for.
#[derive(Clone, PartialEq, Eq, Default)]
struct RateLimitScope {
    uid: String,
    url: String,
    requests_per_second: Option<u32>,
    burst: Option<u32>,
}

impl RateLimitScope {
    fn of(upstream: &UpstreamObject) -> Self {
        let limits = upstream.spec.limits.as_ref();
        Self {
            uid: upstream.uid.clone(),
            url: upstream.spec.url.clone(),
            requests_per_second: limits.and_then(|l| l.requests_per_second),
            burst: limits.and_then(|l| l.burst),
        }
    }
}

struct PoolEntry {
    version: Option<ClientVersion>,
    /// Kept over versions of the client: a rotated secret does not lift the limit.
    rate_limiter: (RateLimitScope, Arc<Mutex<RateLimiter>>),
    client: Arc<OnceLock<Result<Arc<UpstreamClient>, SendError>>>,
    last_used: Instant,
    /// The Upstream was deleted. Its secrets are remembered for a while: another of its name may be the same server.
    is_deleted: bool,
    secret_history: Arc<SecretHistory>,
    counters: Arc<ClientCounters>,
    /// Health known to the last client of this version: a client dropped as idle need not check it again.
    health: UpstreamHealth,
}

impl Default for PoolEntry {
    fn default() -> Self {
        Self {
            version: None,
            rate_limiter: (
                RateLimitScope::default(),
                Arc::new(Mutex::new(RateLimiter::new(None, None))),
            ),
            client: Arc::default(),
            last_used: Instant::now(),
            is_deleted: false,
            secret_history: Arc::default(),
            counters: Arc::default(),
            health: UpstreamHealth::default(),
        }
    }
}

impl Default for ClientPool {
    fn default() -> Self {
        Self {
            clients: Mutex::default(),
            brokers: BrokerClients::default(),
            digest_key: DigestKey::default(),
            fence: WriteFence::default(),
            network: NetworkPolicy::default(),
            on_status_change: Arc::new(|_, _| {}),
            dry_run: None,
        }
    }
}

impl ClientPool {
    /// Sends requests with unsafe methods only while this fence is open.
    pub fn with_fence(self, fence: WriteFence) -> Self {
        Self { fence, ..self }
    }

    /// Makes the digests of secrets with this key.
    pub fn with_digest_key(self, digest_key: DigestKey) -> Self {
        Self { digest_key, ..self }
    }

    /// Connects only to addresses that this policy allows.
    pub fn with_network(self, network: NetworkPolicy) -> Self {
        Self { network, ..self }
    }

    /// Calls the listener when the status of an Upstream may have to change.
    pub fn with_status_listener(self, news: impl Fn(&str, &str) + Send + Sync + 'static) -> Self {
        Self {
            on_status_change: Arc::new(news),
            ..self
        }
    }

    /// Sends only requests with safe methods to Upstreams that may be connected to. All others are checked and answered
    /// by `dry_run`.
    pub fn with_dry_run(self, dry_run: Arc<dyn DryRun>) -> Self {
        Self {
            dry_run: Some(dry_run),
            ..self
        }
    }

    /// True if requests that are not safe are only answered by a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run.is_some()
    }

    /// The dry run of an Upstream that must not be connected to.
    fn disconnected(&self, upstream: &UpstreamObject) -> Option<&dyn DryRun> {
        self.dry_run
            .as_deref()
            .filter(|dry_run| !dry_run.may_connect(upstream))
    }

    /// Sends one request with the upstream's credentials.
    pub async fn send_request(
        &self,
        upstream: &UpstreamObject,
        request: UpstreamRequest,
        secrets: &dyn SecretStore,
    ) -> Result<UpstreamResponse, SendError> {
        let client = self.client_for(upstream, secrets)?;
        if let Some(dry_run) = &self.dry_run {
            let is_safe = matches!(request.method.as_str(), "GET" | "HEAD" | "OPTIONS");
            if !is_safe || !dry_run.may_connect(upstream) {
                client.check_request(&request, secrets)?;
                return Ok(dry_run.answer_request(upstream, &request));
            }
        }
        let age = coalesce::parse_max_age(&request);
        let answer = client.send_request(request, secrets, &self.fence);
        match age {
            Some((key, age)) => client.coalescer.get_or_request(key, age, answer).await,
            None => answer.await,
        }
    }

    /// Reads an event stream to its end and returns its last events.
    pub async fn read_events(
        &self,
        upstream: &UpstreamObject,
        path: &str,
        query: &TailQuery,
        secrets: &dyn SecretStore,
    ) -> Result<EventTail, SendError> {
        let client = self.client_for(upstream, secrets)?;
        if let Some(dry_run) = self.disconnected(upstream) {
            let request = UpstreamRequest::get(path);
            client.check_request(&request, secrets)?;
            dry_run.answer_request(upstream, &request);
            return Ok(EventTail::default());
        }
        stream::read_tail(&client, path, query).await
    }

    /// Checks the health of an upstream: connects and logs in, unless requests have shown it already.
    pub(crate) async fn check_health(&self, upstream: &UpstreamObject, client: &UpstreamClient) {
        match self.disconnected(upstream) {
            Some(dry_run) => {
                dry_run.assume_health(upstream);
                client.assume_health();
            }
            None => client.check_health().await,
        }
    }

    /// The client of an upstream's event streams.
    pub fn stream_source(
        &self,
        upstream: &UpstreamObject,
        secrets: &dyn SecretStore,
    ) -> Result<StreamSource, SendError> {
        Ok(StreamSource::new(upstream, self.client_for(upstream, secrets)?))
    }

    /// The client for the current version of an Upstream and its Secrets. A superseded client is dropped with its
    /// connections; calls in flight finish on it.
    pub(crate) fn client_for(
        &self,
        upstream: &UpstreamObject,
        secrets: &dyn SecretStore,
    ) -> Result<Arc<UpstreamClient>, SendError> {
        let network = self.network.version();
        let version = ClientVersion::resolve(upstream, secrets, network)?;
        let secret_values = version.secrets.clone();
        let scope = RateLimitScope::of(upstream);
        let (cell, totals, health, secret_history, rate_limiter) = {
            let mut clients = self.clients.lock();
            let name = (upstream.namespace.clone(), upstream.name.clone());
            let entry = clients.entry(name).or_default();
            if entry.version.as_ref() != Some(&version) {
                (entry.version, entry.client, entry.health) =
                    (Some(version), Arc::default(), UpstreamHealth::default());
            }
            if entry.rate_limiter.0 != scope {
                let limiter = RateLimiter::new(scope.requests_per_second, scope.burst);
                entry.rate_limiter = (scope, Arc::new(Mutex::new(limiter)));
            }
            entry.last_used = Instant::now();
            entry.is_deleted = false;
            let history = entry.secret_history.clone();
            (
                entry.client.clone(),
                entry.counters.clone(),
                entry.health.clone(),
                history,
                entry.rate_limiter.1.clone(),
            )
        };
        // Outside the lock: building a client reads certificates, and other upstreams need not wait for that.
        let new = || {
            let (news, namespace, name) =
                (self.on_status_change.clone(), &upstream.namespace, &upstream.name);
            let (namespace, name) = (namespace.clone(), name.clone());
            let context = ClientContext {
                network: self.network.clone(),
                network_version: network,
                secrets: secret_values,
                rate_limiter,
                health,
                secret_history,
                counters: totals,
                on_status_change: Arc::new(move || news(&namespace, &name)),
            };
            UpstreamClient::new(upstream, context).map(Arc::new)
        };
        cell.get_or_init(new).clone()
    }

    /// Drops the client of a deleted Upstream. The secrets that were substituted for it are kept for a day, so that they
    /// are redacted when an Upstream of its name is created again.
    pub fn remove_client(&self, namespace: &str, name: &str) {
        self.close_broker(namespace, name);
        let mut clients = self.clients.lock();
        let key = (namespace.to_owned(), name.to_owned());
        match clients.get_mut(&key) {
            Some(entry) if !entry.secret_history.is_empty() => {
                *entry = PoolEntry {
                    secret_history: entry.secret_history.clone(),
                    is_deleted: true,
                    ..PoolEntry::default()
                };
            }
            _ => {
                clients.remove(&key);
            }
        }
    }

    /// Drops clients that were not used for ten minutes.
    pub fn drop_unused(&self) {
        self.drop_idle(IDLE_TIMEOUT);
    }

    /// Drops clients that were not used for this long, except those with open streams. The health they know is kept.
    pub fn drop_idle(&self, idle: Duration) {
        let mut clients = self.clients.lock();
        clients.retain(|_, e| !e.is_deleted || e.last_used.elapsed() < DELETED_RETENTION_PERIOD);
        for entry in clients.values_mut().filter(|e| e.last_used.elapsed() >= idle) {
            match entry.client.get() {
                Some(Ok(client)) if Arc::strong_count(client) == 1 => entry.health = client.health(),
                Some(Err(_)) => {}
                _ => continue,
            }
            entry.client = Arc::default();
        }
    }

    /// Counters and states of all clients.
    pub fn collect_stats(&self) -> Vec<ClientStats> {
        let clients = self.clients.lock();
        let traffic = clients.iter().filter_map(|((namespace, name), entry)| {
            let client = entry.client.get()?.as_ref().ok()?;
            Some(ClientStats {
                upstream: format!("{namespace}/{name}"),
                circuit: client.circuit_state(),
                retries: entry.counters.retries.load(Ordering::Relaxed),
                confirmed: entry.counters.confirmed.load(Ordering::Relaxed),
            })
        });
        let brokers = self
            .brokers
            .list()
            .into_iter()
            .map(|(upstream, client)| ClientStats {
                upstream,
                circuit: client.circuit_state(),
                retries: 0,
                confirmed: 0,
            });
        traffic.chain(brokers).collect()
    }

    /// The digest of a secret's value, by [`DigestKey::digest`].
    pub async fn digest_secret(&self, secret: &UpstreamSecretKey, value: &[u8]) -> Result<String, SendError> {
        self.digest_key.digest(secret, value).await
    }
}

fn missing_secret(key: &UpstreamSecretKey) -> SendError {
    SendError::NotFound(format!("{key} does not exist"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::network::NetworkGrant;

    #[test]
    fn idle_client_in_use_stays_and_health_survives_drop() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let network = NetworkPolicy::default();
        network.replace_grant(NetworkGrant {
            allow: vec!["127.0.0.1/32".parse().expect("a network")],
            ..NetworkGrant::default()
        });
        let clients = ClientPool::default().with_network(network);
        let mut upstream = UpstreamObject {
            uid: "u".into(),
            generation: 1,
            namespace: "n".into(),
            name: "ci".into(),
            spec: serde_json::from_value(json!({"url": "http://127.0.0.1:1"})).expect("a spec"),
        };
        let client = |upstream: &UpstreamObject| {
            clients
                .client_for(upstream, &SecretSnapshot::default())
                .expect("a client")
        };
        let first = client(&upstream);
        first.state.lock().health.record_reachable(Instant::now());
        clients.drop_idle(Duration::ZERO);
        assert!(Arc::ptr_eq(&first, &client(&upstream)), "it is in use");
        let (gone, report) = (Arc::downgrade(&first), first.health_report());
        drop(first);
        clients.drop_idle(Duration::ZERO);
        assert!(gone.upgrade().is_none());
        assert_eq!(client(&upstream).health_report(), report);
        assert!(!client(&upstream).needs_health_check(IDLE_TIMEOUT));
        upstream.generation = 2;
        assert!(
            client(&upstream).needs_health_check(IDLE_TIMEOUT),
            "another has to be looked at"
        );
    }
}
