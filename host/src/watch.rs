//! Keeps the store as the API server is: list, watch, and list again when the watch fell behind.
//!
//! One informer per [`Scope`], started when somebody first reads from it, shared by all plugins, and let
//! go when nobody needs it any more. A wider one serves the reads of a narrower.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::StreamExt;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
};
use tracing::{debug, warn};

use crate::{
    cluster::{ApiError, As, Cluster, complain, parse, status_error},
    key::ObjectRef,
    object::Object,
    scope::{Form, Scope},
    store::{Change, Put, Query, Store},
};

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

/// A watch that ends before this without a word is not asked again at once.
const HASTY: Duration = Duration::from_secs(1);

/// All informers.
pub struct Informers {
    cluster: Cluster,
    store: Arc<Store>,
    listener: Listener,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    scopes: HashMap<Scope, Informing>,
    tasks: JoinSet<()>,
}

struct Informing {
    synced: watch::Receiver<Synced>,
    task: AbortHandle,
    /// Since when nobody has needed it.
    unneeded: Option<Instant>,
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

    /// The informer that serves a scope: one that covers it and has been synced, or its own, which is
    /// started unless it runs. Gives the scope to read from, and how far that is.
    pub fn ensure(&self, scope: &Scope) -> (Scope, watch::Receiver<Synced>) {
        let mut running = self.running.lock().expect("lock");
        if let Some((wider, informing)) = running.provider(scope) {
            return (wider.clone(), informing.synced.clone());
        }
        let (sender, synced) = watch::channel(Synced::No);
        self.store.open(scope);
        let informer = Informer {
            cluster: self.cluster.clone(),
            store: self.store.clone(),
            listener: self.listener.clone(),
            scope: scope.clone(),
            synced: sender,
        };
        let informing = Informing {
            synced: synced.clone(),
            task: running.tasks.spawn(informer.run()),
            unneeded: None,
        };
        running.scopes.insert(scope.clone(), informing);
        (scope.clone(), synced)
    }

    /// Waits until a scope has been listed once; gives the scope to read it from. The error says why it
    /// hasn't been.
    pub async fn synced(&self, scope: &Scope, patience: Duration) -> Result<Scope, String> {
        let (provider, mut synced) = self.ensure(scope);
        let waited = tokio::time::timeout(patience, synced.wait_for(|s| *s == Synced::Yes))
            .await
            .map(|w| w.is_ok());
        match waited {
            Ok(true) => Ok(provider),
            Ok(false) => Err("the host is shutting down".into()),
            Err(_) => Err(match &*synced.borrow() {
                Synced::Failed(why) => why.clone(),
                _ => format!("listing {} takes longer than {patience:?}", scope.gvk),
            }),
        }
    }

    /// Lets go what none of these scopes has needed for this long. Gives what was let go.
    pub fn retain(&self, needed: &[Scope], linger: Duration) -> Vec<Scope> {
        let mut running = self.running.lock().expect("lock");
        let synced = |scope: &&Scope| {
            let informing = running.scopes.get(*scope);
            informing.is_some_and(|i| *i.synced.borrow() == Synced::Yes)
        };
        // Who is needed anyway serves what it covers.
        let wide: Vec<&Scope> = needed.iter().filter(synced).collect();
        let server = |scope: &Scope| match wide.iter().find(|w| **w != scope && w.covers(scope)) {
            Some(wider) => Some((*wider).clone()),
            None => running.provider(scope).map(|(provider, _)| provider.clone()),
        };
        let serving: HashSet<Scope> = needed.iter().filter_map(server).collect();
        let mut gone = Vec::new();
        for (scope, informing) in &mut running.scopes {
            if serving.contains(scope) {
                informing.unneeded = None;
            } else if informing.unneeded.get_or_insert_with(Instant::now).elapsed() >= linger {
                gone.push(scope.clone());
            }
        }
        for scope in &gone {
            if let Some(informing) = running.scopes.remove(scope) {
                informing.task.abort();
                self.store.close(scope);
                debug!(kind = %scope.gvk, namespace = %scope.namespace, "nobody reads it: watch let go");
            }
        }
        gone
    }

    /// The scopes watched, with how far each is.
    pub fn scopes(&self) -> Vec<(Scope, Synced)> {
        let running = self.running.lock().expect("lock");
        let scopes = running.scopes.iter();
        scopes
            .map(|(scope, informing)| (scope.clone(), informing.synced.borrow().clone()))
            .collect()
    }
}

impl Running {
    /// The informer of a scope when it is synced; else one that covers it and is; else its own, if it runs.
    /// Of metadata an informer of the whole objects is asked first: it is the one that tells of changes.
    fn provider(&self, scope: &Scope) -> Option<(&Scope, &Informing)> {
        let own = self.scopes.get_key_value(scope);
        let synced = |i: &Informing| *i.synced.borrow() == Synced::Yes;
        if scope.form == Form::Whole && own.is_some_and(|(_, i)| synced(i)) {
            return own;
        }
        let covering = self.scopes.iter().filter(|(w, i)| w.covers(scope) && synced(i));
        covering.min_by_key(|(w, _)| w.form).or(own)
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
#[serde(rename_all = "camelCase")]
struct EventMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

/// What an event of a watch was.
enum Seen {
    /// About an object, with its version; the key where the object is there.
    Object(Option<ObjectRef>, String),
    /// So far everything was told; `true` at the end of a streaming list.
    Bookmark(String, bool),
    /// The version is not known any more.
    TooOld,
}

/// The lines of a watch as they come.
struct Lines {
    body: http_body_util::BodyDataStream<Body>,
    buffer: Vec<u8>,
    /// How much of the buffer has been given.
    done: usize,
    /// How much of the buffer has no line's end.
    looked: usize,
}

impl Lines {
    fn new(body: Body) -> Self {
        Self {
            body: body.into_data_stream(),
            buffer: Vec::new(),
            done: 0,
            looked: 0,
        }
    }

    /// The next line. A connection that breaks is no fault: the next watch goes on from the last version.
    async fn next(&mut self) -> Option<&[u8]> {
        loop {
            if let Some(end) = self.buffer[self.looked..].iter().position(|b| *b == b'\n') {
                let line = self.done..self.looked + end;
                self.done = line.end + 1;
                self.looked = self.done;
                return Some(&self.buffer[line]);
            }
            self.buffer.drain(..std::mem::take(&mut self.done));
            self.looked = self.buffer.len();
            self.buffer.extend_from_slice(&self.body.next().await?.ok()?);
        }
    }
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
            let began = Instant::now();
            let ended = match &version {
                None => self.list().await.map(Some),
                Some(from) => self.watch(from).await,
            };
            match ended {
                Ok(next) => {
                    // A server, or something before it, that ends every watch at once is not asked without end.
                    let hasty = version.is_some() && next == version && began.elapsed() < HASTY;
                    if version.is_none() {
                        self.synced.send_replace(Synced::Yes);
                    }
                    version = next;
                    failures = if hasty { failures + 1 } else { 0 };
                    if hasty {
                        tokio::time::sleep(backoff(failures)).await;
                    }
                }
                Err(e) => {
                    if *self.synced.borrow() != Synced::Yes {
                        self.synced.send_replace(Synced::Failed(e.to_string()));
                    }
                    if failures == 0 || !matches!(e, ApiError::UnknownKind(_)) {
                        complain!(e, kind = %self.scope.gvk, namespace = %self.scope.namespace, "watch interrupted: {e}");
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

    /// Path and query of the collection, to be gone on with.
    async fn path(&self) -> Result<String, ApiError> {
        let Scope {
            gvk,
            namespace,
            selector,
            ..
        } = &self.scope;
        self.cluster.query(gvk, namespace, selector.as_ref()).await
    }

    /// Lists everything, and drops what has gone while nobody watched. Gives the version to watch from.
    /// What fits one page comes as a page; more is streamed where the server does that, and paged elsewhere.
    async fn list(&self) -> Result<String, ApiError> {
        let path = self.path().await?;
        let mut seen = HashSet::new();
        let mut token = String::new();
        let mut streaming = true;
        loop {
            let page = self
                .cluster
                .page(&path, PAGE, &token, self.form(As::List), |item| {
                    seen.extend(self.put(item));
                });
            let (mut version, next) = page.await?;
            token = next;
            if !token.is_empty() {
                if !std::mem::take(&mut streaming) {
                    continue;
                }
                let mut streamed = HashSet::new();
                match self.stream(&path, &mut streamed).await? {
                    Some(newest) => (version, seen) = (newest, streamed),
                    // Paged on from where it was: the first page counts.
                    None => continue,
                }
            }
            self.forget_all_but(&seen, version.parse().unwrap_or(u64::MAX));
            debug!(kind = %self.scope.gvk, namespace = %self.scope.namespace, objects = seen.len(), "listed");
            return Ok(version);
        }
    }

    /// A streaming list (KEP-3157). None where the server does not have it.
    async fn stream(&self, path: &str, seen: &mut HashSet<ObjectRef>) -> Result<Option<String>, ApiError> {
        let query = format!(
            "{path}watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=290"
        );
        let body = match self.cluster.watch(&query, self.form(As::Object)).await {
            Ok(body) => body,
            Err(ApiError::Status {
                code: 400 | 403 | 422,
                ..
            }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut lines = Lines::new(body);
        while let Some(line) = lines.next().await {
            let seen_now = self.event(line)?;
            match seen_now {
                Seen::Object(key, _) => seen.extend(key),
                Seen::Bookmark(version, true) => return Ok(Some(version)),
                Seen::Bookmark(..) => {}
                Seen::TooOld => break,
            }
        }
        Err(ApiError::Unreachable("the stream of the first list broke".into()))
    }

    fn form(&self, as_: As) -> Option<As> {
        (self.scope.form == Form::Metadata).then_some(as_)
    }

    fn forget_all_but(&self, seen: &HashSet<ObjectRef>, version: u64) {
        for (key, object) in self.store.list(&self.scope, &Query::default()) {
            if !seen.contains(&key) {
                self.tell(self.store.remove(&self.scope, &key, &object.uid, version));
            }
        }
    }

    /// Watches from a version until the stream ends. Gives the version to go on from, none to list again.
    async fn watch(&self, from: &str) -> Result<Option<String>, ApiError> {
        let query = format!(
            "{}watch=true&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion={from}",
            self.path().await?
        );
        let mut lines = match self.cluster.watch(&query, self.form(As::Object)).await {
            Ok(body) => Lines::new(body),
            Err(e) if e.code() == 410 => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut version = from.to_owned();
        while let Some(line) = lines.next().await {
            match self.event(line)? {
                Seen::Object(_, newer) | Seen::Bookmark(newer, _) => version = newer,
                Seen::TooOld => return Ok(None),
            }
        }
        Ok(Some(version))
    }

    /// Takes one event in.
    fn event(&self, line: &[u8]) -> Result<Seen, ApiError> {
        let event: Event = parse(line)?;
        let json = event.object.get();
        #[derive(Deserialize)]
        struct Versioned {
            metadata: EventMeta,
        }
        let meta = |json: &str| parse::<Versioned>(json.as_bytes()).map(|v| v.metadata);
        match event.r#type {
            "ERROR" => match status_error(0, None, json.as_bytes()) {
                e if e.code() == 410 => Ok(Seen::TooOld),
                e => Err(e),
            },
            "DELETED" => {
                if let Ok((key, object)) = Object::parse(&self.scope.gvk, json.as_bytes()) {
                    let key = key.in_cluster(&self.scope.cluster);
                    let version = object.resource_version;
                    self.tell(self.store.remove(&self.scope, &key, &object.uid, version));
                }
                Ok(Seen::Object(None, meta(json)?.resource_version))
            }
            "BOOKMARK" => {
                let meta = meta(json)?;
                let end = meta.annotations.get("k8s.io/initial-events-end");
                Ok(Seen::Bookmark(
                    meta.resource_version,
                    end.is_some_and(|e| e == "true"),
                ))
            }
            _ => Ok(Seen::Object(self.put(json), meta(json)?.resource_version)),
        }
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
                let key = key.in_cluster(&self.scope.cluster);
                let change = match self.store.put(&key, object, self.scope.form) {
                    Put::News(change) => Some(change),
                    Put::Known | Put::Stray(_) => None,
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
}

/// 100 ms doubling to 10 s, with up to a quarter off so that informers don't come back in step.
fn backoff(failures: u32) -> Duration {
    let full = Duration::from_millis(100 << failures.min(7)).min(Duration::from_secs(10));
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.subsec_nanos());
    full - full / 4 * (nanos % 1000) / 1000
}
