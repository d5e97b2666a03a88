//! The connections to other clusters: one client, set of informers and writer for each `Cluster`.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tracing::info;

use super::{
    ApiAccess, ClusterAccess, ClusterObject, SharedCache, cluster_gvk, kubeconfig::parse_kubeconfig,
    spec::Impersonation,
};
use crate::{
    cache::{
        informer::{ChangeHandler, Informers},
        store::Store,
    },
    client::{
        access_review::AccessReviewer,
        api::{ApiClient, ApiError, Interceptor, ResponseBounds, parse_response},
        connection::connect_within,
        fence::WriteFence,
        gate::RequestGate,
    },
    effect::{
        events::EventRecorder,
        writer::{ApiWriter, ChangeObserver},
    },
    kube::{
        backoff::Backoff,
        hash::hash_to_u64,
        key::{ObjectRef, cluster_name},
        object::KubeObject,
        scope::{NamespaceScope, Scope},
        well_known::annotation::ORIGINS,
    },
    observe::metrics::Metrics,
    policy::{
        network::NetworkPolicy,
        origin::{Origin, OriginPattern},
    },
    schedule::dispatcher::{Cause, Dispatcher},
    schedule::queue::Priority,
};

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds the interceptor of the requests to a cluster.
pub type InterceptorFactory = Box<dyn Fn(&Arc<str>) -> Arc<dyn Interceptor> + Send + Sync>;

/// What every connection is built of.
pub struct ConnectionParts {
    /// The store, which has the objects of all clusters.
    pub store: Arc<Store>,
    /// The dispatcher, which a change in any cluster wakes readers in.
    pub dispatcher: Arc<Dispatcher>,
    /// The handler of changes that informers see.
    pub on_change: ChangeHandler,
    /// The observer of changes that responses to writes show.
    pub observer: ChangeObserver,
    /// The interceptor of the requests to a cluster, in a plan.
    pub intercept: Option<InterceptorFactory>,
    /// The fence of the leader's writes.
    pub fence: WriteFence,
    /// The addresses that clusters may have.
    pub network: NetworkPolicy,
    /// Counters of requests.
    pub metrics: Arc<Metrics>,
    /// Backoff of lists and watches.
    pub watch_backoff: Backoff,
    /// Time after which a silent watch is resumed.
    pub watch_idle_timeout: Duration,
}

/// The reason why a cluster has no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterConnectError {
    /// The spec or the kubeconfig is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The Secret or its key does not exist.
    #[error("{0}")]
    SecretNotFound(String),
    /// The owner of the Secret does not allow to send it to the server.
    #[error("{0}")]
    OriginNotAllowed(String),
    /// The network policy does not allow the address.
    #[error("{0}")]
    AddressNotAllowed(String),
}

/// The connections to other clusters, by `namespace/name` of the `Cluster`.
#[derive(Default)]
pub struct ClusterPool {
    parts: Option<ConnectionParts>,
    connections: Mutex<HashMap<Arc<str>, Arc<Connection>>>,
}

/// The connection to one cluster.
pub struct Connection {
    /// The cluster, as its objects' keys name it.
    pub cluster: Arc<str>,
    /// The informers, the writer and the access reviews.
    pub access: ClusterAccess,
    client: ApiClient,
    gate: Arc<RequestGate>,
    /// Digest of what makes it another cluster: the uid of the Cluster, the server, and how it is used.
    identity: u64,
    /// Digest of the kubeconfig.
    credentials: Mutex<u64>,
    /// Health checks that failed in a row.
    failures: AtomicU32,
    /// A health check has succeeded.
    is_verified: AtomicBool,
}

impl ClusterPool {
    /// A pool that connects.
    pub fn new(parts: ConnectionParts) -> Self {
        Self {
            parts: Some(parts),
            connections: Mutex::default(),
        }
    }

    /// The connection of a cluster.
    pub fn find(&self, cluster: &str) -> Option<Arc<Connection>> {
        self.connections.lock().get(cluster).cloned()
    }

    /// All connections.
    pub fn list(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().values().cloned().collect()
    }

    /// Returns the connection for the current state of a Cluster and its Secret, which is made on first use. Other
    /// credentials replace those of the connection and end no watch; another server replaces the connection.
    pub fn connect(
        &self,
        cluster: &ClusterObject,
        secret: Option<&KubeObject>,
    ) -> Result<Arc<Connection>, ClusterConnectError> {
        let name = cluster_name(&cluster.namespace, &cluster.name);
        let connected = self.try_connect(&name, cluster, secret);
        if connected.is_err() {
            self.disconnect(&name);
        }
        connected
    }

    fn try_connect(
        &self,
        name: &Arc<str>,
        cluster: &ClusterObject,
        secret: Option<&KubeObject>,
    ) -> Result<Arc<Connection>, ClusterConnectError> {
        let Some(parts) = &self.parts else {
            return Err(ClusterConnectError::Invalid(
                "this host connects to no clusters".into(),
            ));
        };
        let selector = &cluster.spec.kubeconfig_secret_ref;
        let place = format!("Secret {}/{}", cluster.namespace, selector.name);
        let secret =
            secret.ok_or_else(|| ClusterConnectError::SecretNotFound(format!("{place} does not exist")))?;
        let text = secret.data_value(&selector.key).ok_or_else(|| {
            ClusterConnectError::SecretNotFound(format!("{place} has no key `{}`", selector.key))
        })?;
        let mut config = parse_kubeconfig(&text)
            .map_err(|why| ClusterConnectError::Invalid(format!("{place}, key `{}`: {why}", selector.key)))?;
        check_origin(&place, secret, &config)?;
        let host = config.cluster_url.host().unwrap_or_default();
        let allowed = parts.network.check_host(host);
        allowed.map_err(|e| ClusterConnectError::AddressNotAllowed(e.to_string()))?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let identity = hash_to_u64(|hasher| {
            let spec = &cluster.spec;
            (&cluster.uid, config.cluster_url.to_string(), &config.root_cert).hash(hasher);
            (
                &config.tls_server_name,
                config.accept_invalid_certs,
                &spec.impersonation,
            )
                .hash(hasher);
            (spec.requests_in_flight(), spec.request_timeout_seconds()).hash(hasher);
        });
        let credentials = hash_to_u64(|hasher| text.hash(hasher));
        let build_client = || {
            let client = connect_within(config, parts.network.clone());
            client.map_err(|e| ClusterConnectError::Invalid(format!("{place}, key `{}`: {e}", selector.key)))
        };
        if let Some(connection) = self.find(name).filter(|c| c.identity == identity) {
            let mut current = connection.credentials.lock();
            if *current != credentials {
                connection.client.replace_client(build_client()?);
                *current = credentials;
                info!(cluster = &**name, "credentials of the cluster replaced");
            }
            drop(current);
            return Ok(connection);
        }
        let client = build_client()?;
        self.disconnect(name);
        let connection = Arc::new(parts.build(name, cluster, client, (identity, credentials)));
        self.connections.lock().insert(name.clone(), connection.clone());
        info!(cluster = &**name, "connected to the cluster");
        Ok(connection)
    }

    /// Ends the connection to a cluster, and drops its cached objects.
    pub fn disconnect(&self, cluster: &str) {
        let removed = self.connections.lock().remove(cluster);
        if let Some(connection) = removed {
            connection.access.cache.informers.close();
            info!(cluster, "disconnected from the cluster");
        }
    }

    /// Ends all connections.
    pub fn disconnect_all(&self) {
        let removed = std::mem::take(&mut *self.connections.lock());
        for connection in removed.into_values() {
            connection.access.cache.informers.close();
        }
    }

    /// Starts those of the needed watches of a cluster that are missing.
    pub fn start_watches(&self, cluster: &str, needed: &[Scope]) {
        let Some(connection) = self.find(cluster) else {
            return;
        };
        for scope in needed.iter().filter(|scope| *scope.cluster == *cluster) {
            connection.access.cache.informers.ensure_informer(scope);
        }
    }

    /// Stops the watches that none of the needed scopes has used for a while, and starts those that are missing.
    pub fn sweep_watches(&self, needed: &[Scope], linger: Duration) {
        for connection in self.list() {
            let informers = &connection.access.cache.informers;
            let needed: Vec<Scope> = needed
                .iter()
                .filter(|scope| scope.cluster == connection.cluster)
                .cloned()
                .collect();
            informers.stop_unneeded(&needed, linger);
            for scope in &needed {
                informers.ensure_informer(scope);
            }
        }
    }
}

/// Checks that the owner of the Secret allows to send it to the server.
fn check_origin(place: &str, secret: &KubeObject, config: &kube::Config) -> Result<(), ClusterConnectError> {
    let Some(list) = secret.annotation(ORIGINS) else {
        return Ok(());
    };
    let refused = |why: String| ClusterConnectError::OriginNotAllowed(format!("{place}: {why}"));
    let allowed =
        OriginPattern::parse_list(list).map_err(|e| refused(format!("annotation {ORIGINS}: {e}")))?;
    let origin = Origin::of_url(&config.cluster_url.to_string()).map(|origin| {
        if config.accept_invalid_certs {
            origin.unverified()
        } else {
            origin
        }
    });
    match origin {
        Some(origin) if allowed.iter().any(|pattern| pattern.matches(&origin)) => Ok(()),
        _ => Err(refused(format!(
            "it may not be sent to {}: its annotation {ORIGINS} does not list it",
            config.cluster_url
        ))),
    }
}

impl ConnectionParts {
    fn build(
        &self,
        name: &Arc<str>,
        cluster: &ClusterObject,
        client: kube::Client,
        (identity, credentials): (u64, u64),
    ) -> Connection {
        let key = ObjectRef::new(cluster_gvk(), &cluster.namespace, &cluster.name);
        let dispatcher = self.dispatcher.clone();
        let gate = Arc::new(RequestGate::new(
            cluster.spec.requests_in_flight(),
            Arc::new(move || dispatcher.enqueue(&key, Priority::Normal, Cause::StatusStale)),
        ));
        let (user, acts_as_plugins) = match &cluster.spec.impersonation {
            None => (None, false),
            Some(Impersonation::User(user)) => (Some(user.name.as_str().into()), false),
            Some(Impersonation::PluginServiceAccount {}) => (None, true),
        };
        let timeout = Duration::from_secs(cluster.spec.request_timeout_seconds().into());
        // An access review is a POST that changes nothing, so its client has neither fence nor interceptor.
        let reviewing = ApiClient::new(client)
            .with_metrics(self.metrics.rest_client(), name)
            .with_user(user)
            .with_gate(gate.clone())
            .with_request_timeout(timeout)
            .with_bounds(ResponseBounds::OTHER_CLUSTER);
        let client = reviewing.clone().with_fence(self.fence.clone());
        let client = match &self.intercept {
            Some(intercept) => client.with_interceptor(intercept(name)),
            None => client,
        };
        let informers = Informers::new(client.clone(), self.store.clone(), self.on_change.clone())
            .with_backoff(self.watch_backoff)
            .with_idle_timeout(self.watch_idle_timeout);
        let writer =
            ApiWriter::new(client.clone(), self.store.clone(), self.dispatcher.clone()).in_cluster(name);
        let writer = writer.with_observer(self.observer.clone());
        Connection {
            cluster: name.clone(),
            access: ClusterAccess {
                cache: Arc::new(SharedCache {
                    store: self.store.clone(),
                    informers: Arc::new(informers),
                    namespaces: NamespaceScope::default(),
                }),
                api: Arc::new(ApiAccess {
                    cluster: name.clone(),
                    writer: Arc::new(writer),
                    reviewer: AccessReviewer::new(reviewing),
                    recorder: EventRecorder::default(),
                    acts_as_plugins,
                }),
            },
            client,
            gate,
            identity,
            credentials: Mutex::new(credentials),
            failures: AtomicU32::default(),
            is_verified: AtomicBool::default(),
        }
    }
}

impl Connection {
    /// The failure for which no request is sent to the cluster; none while it responds.
    pub fn outage(&self) -> Option<String> {
        self.gate.open_reason()
    }

    /// True from the first successful health check on. Calls do not use the connection before: those to a cluster that never
    /// responds would each wait for a timeout, and their plugin can run only so many at a time.
    pub fn is_verified(&self) -> bool {
        self.is_verified.load(Ordering::Relaxed)
    }

    /// Asks the cluster for its version, and whether it accepts the credentials. The error of the second is HTTP 401.
    pub async fn check_health(&self) -> Result<String, ApiError> {
        let checked = self.read_version().await;
        match &checked {
            Ok(_) => {
                self.failures.store(0, Ordering::Relaxed);
                self.is_verified.store(true, Ordering::Relaxed);
            }
            Err(_) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        checked
    }

    async fn read_version(&self) -> Result<String, ApiError> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        let version: Version = parse_response(&self.client.get("/version").await?)?;
        // Unlike the version, discovery is for authenticated users.
        self.client.get("/api").await?;
        Ok(version.git_version.chars().take(64).collect())
    }

    /// Health checks that failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, prelude::BASE64_STANDARD};
    use serde_json::json;

    use super::*;
    use crate::{kube::key::Gvk, schedule::queue::Queue};

    fn pool() -> ClusterPool {
        let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
        ClusterPool::new(ConnectionParts {
            store: Arc::default(),
            dispatcher: Arc::new(Dispatcher::new(queue, NamespaceScope::default())),
            on_change: Arc::new(|_, _| {}),
            observer: Arc::new(|_| {}),
            intercept: None,
            fence: WriteFence::default(),
            network: NetworkPolicy::default(),
            metrics: Arc::default(),
            watch_backoff: Backoff::new(Duration::ZERO, Duration::ZERO),
            watch_idle_timeout: Duration::from_secs(60),
        })
    }

    fn cluster(spec: serde_json::Value) -> ClusterObject {
        let json = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "east", "namespace": "fleet", "uid": "u", "resourceVersion": "1"}, "spec": spec});
        let (_, object) = KubeObject::parse(&cluster_gvk(), json.to_string().as_bytes()).expect("an object");
        ClusterObject::from_object(&object).expect("a Cluster")
    }

    fn plain() -> ClusterObject {
        cluster(json!({"kubeconfigSecretRef": {"name": "s"}}))
    }

    fn secret(server: &str, token: &str, origins: Option<&str>) -> KubeObject {
        let kubeconfig = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {{token: {token}}}}}]\n"
        );
        let annotations = origins.map_or(json!({}), |origins| json!({ORIGINS: origins}));
        let json = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s", "namespace": "fleet", "resourceVersion": "1", "annotations": annotations},
            "data": {"kubeconfig": BASE64_STANDARD.encode(kubeconfig)}});
        KubeObject::parse(&Gvk::secret(), json.to_string().as_bytes())
            .expect("an object")
            .1
    }

    const SERVER: &str = "https://east.example.com:6443";

    #[tokio::test]
    async fn other_credentials_keep_the_connection_and_another_server_or_use_replaces_it() {
        let pool = pool();
        let connect = |cluster: &ClusterObject, server: &str, token: &str| {
            let secret = secret(server, token, None);
            pool.connect(cluster, Some(&secret)).expect("connected")
        };
        let first = connect(&plain(), SERVER, "a");
        let is_first = |other: &Arc<Connection>| Arc::ptr_eq(&first, other);
        assert!(is_first(&connect(&plain(), SERVER, "a")), "nothing has changed");
        assert!(is_first(&connect(&plain(), SERVER, "b")), "the token was rotated");
        let shared = cluster(json!({"kubeconfigSecretRef": {"name": "s"}, "allowedNamespaces": ["x"]}));
        assert!(
            is_first(&connect(&shared, SERVER, "b")),
            "who may use it concerns no connection"
        );
        let acting =
            json!({"kubeconfigSecretRef": {"name": "s"}, "impersonation": {"user": {"name": "robot"}}});
        for (cluster, server) in [(plain(), "https://west.example.com"), (cluster(acting), SERVER)] {
            assert!(!is_first(&connect(&cluster, server, "b")));
            assert_eq!(pool.list().len(), 1);
        }
    }

    #[tokio::test]
    async fn unusable_kubeconfig_ends_the_connection() {
        let pool = pool();
        let refused = |secret: Option<KubeObject>| {
            let connected = pool.connect(&plain(), Some(&secret_of_east()));
            connected.expect("connected");
            let error = pool.connect(&plain(), secret.as_ref()).err().expect("refused");
            assert!(pool.find("fleet/east").is_none(), "{error}");
            error
        };
        assert!(matches!(refused(None), ClusterConnectError::SecretNotFound(_)));
        let internal = refused(Some(secret("https://10.0.0.1", "t", None)));
        assert!(
            matches!(internal, ClusterConnectError::AddressNotAllowed(_)),
            "{internal}"
        );
        let confined = refused(Some(secret(SERVER, "t", Some("https://west.example.com"))));
        assert!(
            matches!(confined, ClusterConnectError::OriginNotAllowed(_)),
            "{confined}"
        );
        let listed = secret(SERVER, "t", Some("https://east.example.com:6443"));
        assert!(pool.connect(&plain(), Some(&listed)).is_ok());
    }

    fn secret_of_east() -> KubeObject {
        secret(SERVER, "t", None)
    }
}
