//! Clients of upstreams: one per `Upstream` object and version of its Secrets, shared by everybody who names it.
//!
//! ```text
//! request → rules (path, headers) → secrets into the body → credentials → the wire → masks → answer
//! ```

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
    kube::{hash::encode_hex, key::Gvk},
    policy::network::Network,
};

/// The kind.
pub fn kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Upstream")
}

/// A secret value. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes a value in.
    pub fn new(value: Vec<u8>) -> Self {
        Self(value)
    }

    /// The value, for the wire only.
    fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Names a key of a Secret.
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

/// A secret with the version it was read in.
#[derive(Clone, Debug)]
pub struct SecretValue {
    /// The value.
    pub value: Secret,
    /// The Secret's resourceVersion.
    pub version: String,
}

/// Where secrets come from.
pub trait Secrets: Send + Sync {
    /// A key's value; none when the Secret or the key isn't there.
    fn get(&self, key: &SecretKey) -> Option<SecretValue>;
}

/// Secrets as they were at one moment: what is made of them and the versions it goes by are the same.
struct Snapshot(Vec<(SecretKey, SecretValue)>);

impl Secrets for Snapshot {
    fn get(&self, key: &SecretKey) -> Option<SecretValue> {
        let found = self.0.iter().find(|(k, _)| k == key);
        found.map(|(_, value)| value.clone())
    }
}

/// A request of a component, checked by [`Clients::send`].
#[derive(Clone, Debug)]
pub struct Request {
    /// HTTP method.
    pub method: String,
    /// Path, and query if any; starts with `/`.
    pub path_and_query: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// Body, with placeholders.
    pub body: Option<Vec<u8>>,
    /// What the placeholders stand for.
    pub substitutions: Vec<Substitution>,
    /// Shorter than the upstream's own, if given.
    pub timeout: Option<Duration>,
}

/// An answer, any HTTP status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// Body, with placeholders in place of secrets.
    pub body: Vec<u8>,
}

impl Response {
    /// The answer to a request that could not be authenticated.
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

/// Why there is no answer. Never has a secret in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The request or the Upstream is wrong.
    #[error("{0}")]
    Invalid(String),
    /// A Secret or a key of it is missing.
    #[error("{0}")]
    NotFound(String),
    /// The administrator does not allow the address.
    #[error("{0}")]
    NotAllowed(String),
    /// The credentials are not accepted.
    #[error("log-in refused: {0}")]
    LoginFailed(String),
    /// No connection, no answer in time, or a broken one.
    #[error("{0}")]
    Unavailable(String),
    /// Too much at once; milliseconds to wait.
    #[error("throttled for {0} ms")]
    Throttled(u64),
    /// More bytes than allowed.
    #[error("{0}")]
    TooLarge(String),
    /// Not sent.
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

/// A client that nobody used for this long is dropped, with its connections.
const IDLE: Duration = Duration::from_secs(600);

/// All clients.
pub struct Clients {
    /// By namespace and name.
    clients: Mutex<HashMap<(String, String), Entry>>,
    /// Values that placeholders stood for before: an answer may still have them after a rotation.
    former: Former,
    /// Digests of secrets are keyed: nobody can try values against them.
    salt: [u8; 32],
    gate: Gate,
    network: Network,
    news: News,
    /// In a plan, who takes requests that may change something.
    instead: Option<Instead>,
}

/// Answers in place of an upstream.
type Instead = Arc<dyn Fn(&UpstreamObject, &Request) -> Response + Send + Sync>;

/// Told when the status of an Upstream (namespace and name) may have to say something else.
type News = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// How it is with one upstream's client, for metrics.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Namespace and name.
    pub upstream: String,
    /// Where its breaker is.
    pub circuit: Circuit,
    /// Requests repeated so far.
    pub retries: u64,
    /// Answers confirmed so far.
    pub confirmed: u64,
}

struct Entry {
    /// Uid and generation of the Upstream, versions of its Secrets and of what is allowed.
    version: String,
    client: Arc<OnceLock<Result<Arc<Client>, SendError>>>,
    used: Instant,
    totals: Arc<Totals>,
    /// What the last client of this version knew: the status need not be found out anew.
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
    /// The same, with all that is not only read going through this gate.
    pub fn gated(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// The same, with connections only to what is allowed here.
    pub fn within(self, network: Network) -> Self {
        Self { network, ..self }
    }

    /// The same, telling when the status of an Upstream may have to say something else.
    pub fn telling(self, news: impl Fn(&str, &str) + Send + Sync + 'static) -> Self {
        Self {
            news: Arc::new(news),
            ..self
        }
    }

    /// The same for a plan: what may change something is checked, answered by this, and not sent.
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

    /// Reads an event stream through and gives its end.
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

    /// What an event stream of an upstream is opened with.
    pub fn source(&self, upstream: &UpstreamObject, secrets: &dyn Secrets) -> Result<Source, SendError> {
        Ok(Source::new(upstream, self.client(upstream, secrets)?))
    }

    /// The client of an upstream, as it and its Secrets are now. One that is superseded is dropped, with its
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
        // Outside the lock: making a client reads certificates, and the others need not wait for that.
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

    /// Drops the client of an upstream that is gone.
    pub fn forget(&self, namespace: &str, name: &str) {
        let mut clients = self.clients.lock().expect("lock");
        clients.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Drops clients that nobody has used for a while.
    pub fn sweep(&self) {
        self.drop_idle(IDLE);
    }

    /// Drops clients that nobody has used for this long, but for those whose streams are open. What they knew stays.
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

    /// How it is with all clients.
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

    /// A digest that changes when a value does and tells nothing about it. Keyed for this process: after a
    /// restart all digests are others.
    pub fn digest(&self, value: &[u8]) -> String {
        // HMAC's construction: inner and outer hash, both keyed.
        let inner = Sha256::new()
            .chain_update(self.salt)
            .chain_update(value)
            .finalize();
        encode_hex(
            &Sha256::new()
                .chain_update(inner)
                .chain_update(self.salt)
                .finalize()[..16],
        )
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
    fn a_client_in_use_is_not_dropped_and_what_one_knew_stays() {
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
