//! HTTP clients of upstreams. One client exists per `Upstream` object, version of its spec and values of its Secrets;
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
//! header that `Client::send_with_retries` inserts.

mod answer;
mod attempt;
mod auth;
mod breaker;
mod client;
mod coalesce;
mod conditional;
mod grant;
mod health;
mod masking;
mod object;
mod rate_limit;
mod request_policy;
mod spec;
mod sse;
mod stream;
mod tls;
mod transport_error;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

pub(crate) use self::{
    answer::{asked_to_wait, cause},
    health::Report,
};
pub use self::{
    breaker::Circuit,
    masking::{Encoding, Former, Substitution},
    object::UpstreamObject,
    spec::{SecretKeySelector, Upstream, UpstreamSpec, crd_yaml},
    sse::Event,
    stream::{Interest, Pattern, Query, Source, StreamFacts, StreamKey, StreamState, Streams, Tail},
};
use self::{
    client::{Client, Surroundings, Totals},
    health::Health,
};
use crate::{
    client::fence::{Deposed, Gate},
    contract::bindings::{http, types},
    kube::{hash::hex, key::Gvk},
    policy::network::Network,
};

/// The kind of `Upstream` objects.
pub fn kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Upstream")
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
    fn expose(&self) -> &[u8] {
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
pub struct SecretKey {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// Key in its data.
    pub key: String,
}

impl std::fmt::Display for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret {}/{} key `{}`", self.namespace, self.name, self.key)
    }
}

/// A secret value with the resourceVersion it was read at.
#[derive(Clone, Debug)]
pub struct SecretValue {
    /// The value.
    pub value: Secret,
    /// The Secret's resourceVersion.
    pub version: String,
}

/// A source of secret values: the cache of Secrets, or a fixture in tests.
pub trait Secrets: Send + Sync {
    /// The value of a key; `None` if the Secret or the key does not exist.
    fn get(&self, key: &SecretKey) -> Option<SecretValue>;
}

/// Secret values read at one moment. A client is built from them and compared by their versions, so both must be the
/// same read.
struct Snapshot(Vec<(SecretKey, SecretValue)>);

impl Secrets for Snapshot {
    fn get(&self, key: &SecretKey) -> Option<SecretValue> {
        let found = self.0.iter().find(|(k, _)| k == key);
        found.map(|(_, value)| value.clone())
    }
}

/// A request of a component, checked by [`ClientPool::send_request`].
#[derive(Clone, Debug)]
pub struct Request {
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
}

/// A response with any HTTP status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Header names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body, with placeholders in place of secrets.
    pub body: Vec<u8>,
}

impl Response {
    /// The response to a request that could not be authenticated: HTTP 401.
    pub fn refused(why: &str) -> Self {
        Self {
            status: 401,
            headers: vec![("content-type".into(), "text/plain; charset=utf-8".into())],
            body: format!("log-in refused: {why}").into_bytes(),
        }
    }
}

impl From<Response> for http::Response {
    fn from(r: Response) -> Self {
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
    /// The server does not accept the credentials.
    #[error("log-in refused: {0}")]
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
    /// The host is not the leader; nothing was sent.
    #[error(transparent)]
    Deposed(#[from] Deposed),
}

impl From<SendError> for types::Error {
    fn from(e: SendError) -> Self {
        let text = e.to_string();
        match e {
            SendError::Invalid(_) => Self::Invalid(text),
            SendError::NotFound(_) => Self::NotFound(text),
            SendError::LoginFailed(_) | SendError::NotAllowed(_) => Self::Denied(text),
            SendError::Unavailable(_) | SendError::Deposed(_) => Self::Unavailable(text),
            SendError::Throttled(ms) => Self::Throttled(ms),
            SendError::TooLarge(_) => Self::Budget(text),
        }
    }
}

/// Age of the last use after which a client and its connections are dropped.
const IDLE: Duration = Duration::from_secs(600);

/// The pool of all clients.
pub struct Clients {
    /// Clients by namespace and name of the Upstream.
    clients: Mutex<HashMap<(String, String), Entry>>,
    /// Values that placeholders stood for before: a response may still contain them after a rotation.
    former: Former,
    /// The key of [`Self::keyed_digest`]: without it nobody can test guesses against a digest.
    salt: [u8; 32],
    gate: Gate,
    network: Network,
    news: News,
    /// In a plan: answers requests that may change something.
    instead: Option<Instead>,
}

/// A function that answers in place of an upstream.
type Instead = Arc<dyn Fn(&UpstreamObject, &Request) -> Response + Send + Sync>;

/// Called with namespace and name of an Upstream when its status may have to change.
type News = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Counters and state of one upstream's client, for metrics.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Namespace and name of the Upstream.
    pub upstream: String,
    /// State of the circuit breaker.
    pub circuit: Circuit,
    /// Number of repeated requests.
    pub retries: u64,
    /// Number of responses that the server confirmed by HTTP 304.
    pub confirmed: u64,
}

struct Entry {
    /// Uid and generation of the Upstream, versions of its Secrets and of the network policy.
    version: String,
    client: Arc<OnceLock<Result<Arc<Client>, SendError>>>,
    used: Instant,
    totals: Arc<Totals>,
    /// Health known to the last client of this version: a client dropped as idle need not check it again.
    health: Health,
}

impl Default for Clients {
    fn default() -> Self {
        use std::hash::{BuildHasher, RandomState};
        let mut salt = [0; 32];
        for chunk in salt.chunks_mut(8) {
            chunk.copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes());
        }
        Self {
            clients: Mutex::default(),
            former: Former::default(),
            salt,
            gate: Gate::default(),
            network: Network::default(),
            news: Arc::new(|_, _| {}),
            instead: None,
        }
    }
}

impl Clients {
    /// Sends requests with unsafe methods only while this fence is open.
    pub fn gated(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// Connects only to addresses that this policy allows.
    pub fn within(self, network: Network) -> Self {
        Self { network, ..self }
    }

    /// Calls the listener when the status of an Upstream may have to change.
    pub fn telling(self, news: impl Fn(&str, &str) + Send + Sync + 'static) -> Self {
        Self {
            news: Arc::new(news),
            ..self
        }
    }

    /// Intercepts requests with unsafe methods, for a plan: they are checked and answered by `respond`, and not sent.
    pub fn planning(
        self,
        instead: impl Fn(&UpstreamObject, &Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        Self {
            instead: Some(Arc::new(instead)),
            ..self
        }
    }

    /// Sends one request with the upstream's credentials.
    pub async fn send(
        &self,
        upstream: &UpstreamObject,
        request: Request,
        secrets: &dyn Secrets,
    ) -> Result<Response, SendError> {
        let client = self.client(upstream, secrets)?;
        if let Some(instead) = &self.instead
            && !matches!(request.method.as_str(), "GET" | "HEAD" | "OPTIONS")
        {
            client.check(&request, secrets, &self.former)?;
            return Ok(instead(upstream, &request));
        }
        let age = coalesce::max_age(&request);
        let answer = client.send(request, secrets, &self.former, &self.gate);
        match age {
            Some((key, age)) => client.shared.get(key, age, answer).await,
            None => answer.await,
        }
    }

    /// Reads an event stream to its end and returns its last events.
    pub async fn tail(
        &self,
        upstream: &UpstreamObject,
        path: &str,
        query: &Query,
        secrets: &dyn Secrets,
    ) -> Result<Tail, SendError> {
        let client = self.client(upstream, secrets)?;
        stream::tail(&client, path, query, &self.former).await
    }

    /// The client of an upstream's event streams.
    pub fn source(&self, upstream: &UpstreamObject, secrets: &dyn Secrets) -> Result<Source, SendError> {
        Ok(Source::new(upstream, self.client(upstream, secrets)?))
    }

    /// The client for the current version of an Upstream and its Secrets. A superseded client is dropped with its
    /// connections; calls in flight finish on it.
    pub(crate) fn client(
        &self,
        upstream: &UpstreamObject,
        secrets: &dyn Secrets,
    ) -> Result<Arc<Client>, SendError> {
        let network = self.network.version();
        let mut version = format!("{} {} {network}", upstream.uid, upstream.generation);
        let mut snapshot = Snapshot(Vec::new());
        for key in upstream.secret_keys() {
            let value = secrets.get(&key).ok_or_else(|| missing(&key))?;
            version.push_str(&format!(" {key}@{}", value.version));
            snapshot.0.push((key, value));
        }
        let (cell, totals, health) = {
            let mut clients = self.clients.lock().expect("lock");
            let name = (upstream.namespace.clone(), upstream.name.clone());
            let entry = clients.entry(name).or_insert_with(|| Entry {
                version: version.clone(),
                client: Arc::default(),
                used: Instant::now(),
                totals: Arc::default(),
                health: Health::default(),
            });
            if entry.version != version {
                (entry.version, entry.client, entry.health) = (version, Arc::default(), Health::default());
            }
            entry.used = Instant::now();
            (entry.client.clone(), entry.totals.clone(), entry.health.clone())
        };
        // Outside the lock: building a client reads certificates, and other upstreams need not wait for that.
        let new = || {
            let (news, namespace, name) = (self.news.clone(), &upstream.namespace, &upstream.name);
            let (namespace, name) = (namespace.clone(), name.clone());
            let around = Surroundings {
                network: self.network.clone(),
                network_version: network,
                secrets: snapshot
                    .0
                    .iter()
                    .map(|(k, v)| (k.clone(), v.version.clone()))
                    .collect(),
                health,
                totals,
                news: Arc::new(move || news(&namespace, &name)),
            };
            Client::new(upstream, &snapshot, around).map(Arc::new)
        };
        cell.get_or_init(new).clone()
    }

    /// Drops the client of a deleted Upstream.
    pub fn forget(&self, namespace: &str, name: &str) {
        let mut clients = self.clients.lock().expect("lock");
        clients.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Drops clients that were not used for ten minutes.
    pub fn sweep(&self) {
        self.drop_idle(IDLE);
    }

    /// Drops clients that were not used for this long, except those with open streams. The health they know is kept.
    pub fn drop_idle(&self, idle: Duration) {
        let mut clients = self.clients.lock().expect("lock");
        for entry in clients.values_mut().filter(|e| e.used.elapsed() >= idle) {
            match entry.client.get() {
                Some(Ok(client)) if Arc::strong_count(client) == 1 => entry.health = client.health(),
                Some(Err(_)) => {}
                _ => continue,
            }
            entry.client = Arc::default();
        }
    }

    /// Counters and states of all clients.
    pub fn traffic(&self) -> Vec<Traffic> {
        let clients = self.clients.lock().expect("lock");
        let traffic = clients.iter().filter_map(|((namespace, name), entry)| {
            let client = entry.client.get()?.as_ref().ok()?;
            Some(Traffic {
                upstream: format!("{namespace}/{name}"),
                circuit: client.circuit(),
                retries: entry.totals.retries.load(Ordering::Relaxed),
                confirmed: entry.totals.confirmed.load(Ordering::Relaxed),
            })
        });
        traffic.collect()
    }

    /// An HMAC-SHA256 of a value, truncated to 128 bits: it changes with the value and reveals nothing about it. The
    /// key is random and lives as long as the process, so digests differ after a restart.
    pub fn digest(&self, value: &[u8]) -> String {
        let inner = Sha256::new()
            .chain_update(self.salt)
            .chain_update(value)
            .finalize();
        hex(&Sha256::new()
            .chain_update(inner)
            .chain_update(self.salt)
            .finalize()[..16])
    }
}

fn missing(key: &SecretKey) -> SendError {
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
        let network = Network::default();
        network.allow(NetworkGrant {
            allow: vec!["127.0.0.1/32".parse().expect("a network")],
        });
        let clients = Clients::default().within(network);
        let mut upstream = UpstreamObject {
            uid: "u".into(),
            generation: 1,
            namespace: "n".into(),
            name: "ci".into(),
            spec: serde_json::from_value(json!({"url": "http://127.0.0.1:1"})).expect("a spec"),
        };
        let client =
            |upstream: &UpstreamObject| clients.client(upstream, &Snapshot(Vec::new())).expect("a client");
        let first = client(&upstream);
        first.state.lock().expect("lock").health.reached(Instant::now());
        clients.drop_idle(Duration::ZERO);
        assert!(Arc::ptr_eq(&first, &client(&upstream)), "it is in use");
        let (gone, report) = (Arc::downgrade(&first), first.report());
        drop(first);
        clients.drop_idle(Duration::ZERO);
        assert!(gone.upgrade().is_none());
        assert_eq!(client(&upstream).report(), report);
        assert!(!client(&upstream).wants_probe(IDLE));
        upstream.generation = 2;
        assert!(client(&upstream).wants_probe(IDLE), "another has to be looked at");
    }
}
