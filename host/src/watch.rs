//! Keeps the store as the API server is: list, watch, and list again when the watch fell behind.
//!
//! One informer per (cluster, kind, namespace), started when somebody first
//! reads from it and shared by all plugins.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
};
use tracing::{debug, warn};

use crate::{
    cluster::{ApiError, Cluster, parse, status_error},
    key::{Gvk, ObjectRef},
    object::Object,
    store::{Change, Put, Store},
};

/// What one informer covers; an empty namespace means all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The kind.
    pub gvk: Gvk,
    /// The cluster; empty for the host's own.
    pub cluster: Arc<str>,
    /// The namespace; empty for all.
    pub namespace: Arc<str>,
}

/// Told of each change, in order per object. Must not block.
pub type Listener = Arc<dyn Fn(Change, Origin) + Send + Sync>;

/// Where a change came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The first list of an informer: it was there before.
    Initial,
    /// It happened while the informer watched.
    Watched,
}

/// Objects asked for in one page of a list.
const PAGE: usize = 500;

/// All informers.
pub struct Informers {
    cluster: Cluster,
    store: Arc<Store>,
    listener: Listener,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    scopes: HashMap<Scope, (watch::Receiver<Synced>, AbortHandle)>,
    tasks: JoinSet<()>,
}

/// How far an informer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Synced {
    /// The first list is not done.
    No,
    /// Its last attempt to list failed.
    Failed(String),
    /// The store has had everything at least once.
    Yes,
}

impl Informers {
    /// No informer runs yet.
    pub fn new(cluster: Cluster, store: Arc<Store>, listener: Listener) -> Self {
        Self {
            cluster,
            store,
            listener,
            running: Mutex::default(),
        }
    }

    /// Starts the informer of a scope unless it runs, and tells how far it is.
    pub fn ensure(&self, scope: &Scope) -> watch::Receiver<Synced> {
        let mut running = self.running.lock().expect("lock");
        if let Some((synced, _)) = running.scopes.get(scope) {
            return synced.clone();
        }
        let (sender, receiver) = watch::channel(Synced::No);
        let informer = Informer {
            cluster: self.cluster.clone(),
            store: self.store.clone(),
            listener: self.listener.clone(),
            scope: scope.clone(),
            synced: sender,
        };
        let task = running.tasks.spawn(informer.run());
        running.scopes.insert(scope.clone(), (receiver.clone(), task));
        receiver
    }

    /// Waits until a scope has been listed once. The error says why it hasn't been.
    pub async fn synced(&self, scope: &Scope, patience: Duration) -> Result<(), String> {
        let mut synced = self.ensure(scope);
        let waited = tokio::time::timeout(patience, synced.wait_for(|s| *s == Synced::Yes))
            .await
            .map(|w| w.is_ok());
        match waited {
            Ok(true) => Ok(()),
            Ok(false) => Err("the host is shutting down".into()),
            Err(_) => Err(match &*synced.borrow() {
                Synced::Failed(why) => why.clone(),
                _ => format!("listing {} takes longer than {patience:?}", scope.gvk),
            }),
        }
    }

    /// The scopes watched, with how far each is.
    pub fn scopes(&self) -> Vec<(Scope, Synced)> {
        let running = self.running.lock().expect("lock");
        let scopes = running.scopes.iter();
        scopes
            .map(|(scope, (synced, _))| (scope.clone(), synced.borrow().clone()))
            .collect()
    }
}

struct Informer {
    cluster: Cluster,
    store: Arc<Store>,
    listener: Listener,
    scope: Scope,
    synced: watch::Sender<Synced>,
}

#[derive(Deserialize)]
struct Page<'a> {
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Informer {
    /// Lists and watches until aborted; every fault is waited out with back-off.
    async fn run(self) {
        let mut failures = 0u32;
        let mut version: Option<String> = None;
        loop {
            let ended = match &version {
                None => self.list().await.map(Some),
                Some(from) => self.watch(from.clone()).await,
            };
            match ended {
                Ok(next) => {
                    if version.is_none() {
                        self.synced.send_replace(Synced::Yes);
                    }
                    version = next;
                    failures = 0;
                }
                Err(e) => {
                    if *self.synced.borrow() != Synced::Yes {
                        self.synced.send_replace(Synced::Failed(e.to_string()));
                    }
                    if failures == 0 || !matches!(e, ApiError::UnknownKind(_)) {
                        warn!(kind = %self.scope.gvk, namespace = %self.scope.namespace, "watch interrupted: {e}");
                    }
                    // Too old a version, or unknown why: a list is always right.
                    if matches!(e, ApiError::Status { .. } | ApiError::Garbage(_)) {
                        version = None;
                    }
                    tokio::time::sleep(backoff(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    /// Lists everything in pages, and drops what has gone while nobody watched. Gives the version to watch from.
    async fn list(&self) -> Result<String, ApiError> {
        let path = self
            .cluster
            .resource(&self.scope.gvk)
            .await?
            .collection(&self.scope.namespace);
        let mut seen = HashSet::new();
        let mut token = String::new();
        loop {
            let mut query = format!("{path}?limit={PAGE}");
            if !token.is_empty() {
                query.push_str("&continue=");
                query.extend(percent(&token));
            }
            let bytes = self.cluster.get(&query).await?;
            let page: Page = parse(&bytes)?;
            for item in page.items.iter().flatten() {
                if let Some(key) = self.put(item.get()) {
                    seen.insert(key);
                }
            }
            token = page.metadata.r#continue;
            if token.is_empty() {
                self.forget_all_but(&seen);
                debug!(kind = %self.scope.gvk, namespace = %self.scope.namespace, objects = seen.len(), "listed");
                return Ok(page.metadata.resource_version);
            }
        }
    }

    fn forget_all_but(&self, seen: &HashSet<ObjectRef>) {
        let Scope {
            gvk,
            cluster,
            namespace,
        } = &self.scope;
        for (key, _) in self.store.list(cluster, gvk, namespace, None, None, usize::MAX) {
            if !seen.contains(&key) {
                self.tell(self.store.remove(&key, None));
            }
        }
    }

    /// Watches from a version until the stream ends. Gives the version to go on from, none to list again.
    async fn watch(&self, mut version: String) -> Result<Option<String>, ApiError> {
        let path = self
            .cluster
            .resource(&self.scope.gvk)
            .await?
            .collection(&self.scope.namespace);
        let query = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion={version}"
        );
        let mut body = match self.cluster.watch(&query).await {
            Ok(body) => body.into_data_stream(),
            Err(e) if e.code() == 410 => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut buffer = Vec::new();
        while let Some(chunk) = body.next().await {
            // A connection that breaks is no fault: the next watch goes on from the last version.
            let Ok(chunk) = chunk else { break };
            buffer.extend_from_slice(&chunk);
            let mut done = 0;
            while let Some(end) = buffer[done..].iter().position(|b| *b == b'\n') {
                match self.event(&buffer[done..done + end])? {
                    Some(newer) => version = newer,
                    None => return Ok(None),
                }
                done += end + 1;
            }
            buffer.drain(..done);
        }
        Ok(Some(version))
    }

    /// Takes one event in. Gives its version, none when the watch has to start over.
    fn event(&self, line: &[u8]) -> Result<Option<String>, ApiError> {
        let event: Event = parse(line)?;
        let json = event.object.get();
        match event.r#type {
            "ERROR" => match status_error(0, None, json.as_bytes()) {
                e if e.code() == 410 => return Ok(None),
                e => return Err(e),
            },
            "DELETED" => {
                if let Ok((key, object)) = Object::parse(&self.scope.gvk, json.as_bytes()) {
                    let key = self.in_cluster(key);
                    self.tell(self.store.remove(&key, Some(&object.uid)));
                }
            }
            "ADDED" | "MODIFIED" => {
                self.put(json);
            }
            _ => {}
        }
        #[derive(Deserialize)]
        struct Versioned {
            metadata: PageMeta,
        }
        Ok(Some(
            parse::<Versioned>(json.as_bytes())?.metadata.resource_version,
        ))
    }

    fn tell(&self, change: Option<Change>) {
        let Some(change) = change else { return };
        let origin = match *self.synced.borrow() {
            Synced::Yes => Origin::Watched,
            _ => Origin::Initial,
        };
        (self.listener)(change, origin);
    }

    /// An object that can't be read is skipped and said so; its neighbours go on.
    fn put(&self, json: &str) -> Option<ObjectRef> {
        match Object::parse(&self.scope.gvk, json.as_bytes()) {
            Ok((key, object)) => {
                let key = self.in_cluster(key);
                let change = match self.store.put(&key, object) {
                    Put::News(change) => Some(change),
                    Put::Known => None,
                    Put::Overtaken(newer) => Some(Change {
                        key: key.clone(),
                        old: Some(newer.clone()),
                        new: Some(newer),
                    }),
                };
                self.tell(change);
                Some(key)
            }
            Err(e) => {
                warn!(kind = %self.scope.gvk, "skipped: {e}");
                None
            }
        }
    }

    fn in_cluster(&self, mut key: ObjectRef) -> ObjectRef {
        key.cluster = self.scope.cluster.clone();
        key
    }
}

/// 100 ms doubling to 10 s, with up to a quarter off so that informers don't come back in step.
fn backoff(failures: u32) -> Duration {
    let full = Duration::from_millis(100 << failures.min(7)).min(Duration::from_secs(10));
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.subsec_nanos());
    full - full / 4 * (nanos % 1000) / 1000
}

/// Continue tokens are opaque: everything but letters and digits is escaped.
fn percent(token: &str) -> impl Iterator<Item = char> + '_ {
    token.bytes().flat_map(|b| {
        let escaped = if b.is_ascii_alphanumeric() {
            vec![char::from(b)]
        } else {
            format!("%{b:02X}").chars().collect()
        };
        escaped.into_iter()
    })
}
