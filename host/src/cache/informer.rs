//! Keeps the store as the API server is: list, watch, and list again when the watch fell behind.
//!
//! One informer per [`Scope`], started when somebody first reads from it, shared by all plugins, and let
//! go when nobody needs it any more. A wider one serves the reads of a narrower.

mod ingest;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::StreamExt;
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
};
use tracing::debug;

pub use self::ingest::Listener;
use self::ingest::{Intake, Seen};
use crate::{
    cache::store::{Origin, Store},
    client::api::{ApiError, As, Cluster, complain},
    kube::{
        key::ObjectRef,
        scope::{Form, Scope},
    },
};

/// Objects asked for in one page of a list.
const PAGE: usize = 500;

/// The server is asked to end a watch after so many seconds.
const TURN: u64 = 290;

/// A watch that has not ended by then never will: its connection has died without a word.
const DEAD: Duration = Duration::from_secs(TURN + 30);

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
            intake: Intake {
                store: self.store.clone(),
                listener: self.listener.clone(),
                scope: scope.clone(),
            },
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
        let (mut gone, mut untold) = (Vec::new(), Vec::new());
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
                untold.extend(self.store.close(scope));
                debug!(kind = %scope.gvk, namespace = %scope.namespace, "stopping unused watch");
            }
        }
        drop(running);
        for change in untold {
            (self.listener)(change, Origin::Listed);
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
    intake: Intake,
    synced: watch::Sender<Synced>,
}

/// The lines of a watch as they come.
struct Lines {
    body: http_body_util::BodyDataStream<Body>,
    buffer: Vec<u8>,
    /// How much of the buffer has been given.
    done: usize,
    /// How much of the buffer has no line's end.
    looked: usize,
    /// When it is given up.
    until: Instant,
}

impl Lines {
    fn new(body: Body) -> Self {
        Self {
            body: body.into_data_stream(),
            buffer: Vec::new(),
            done: 0,
            looked: 0,
            until: Instant::now() + DEAD,
        }
    }

    /// The next line. A connection that breaks, or is dead, is no fault: the next watch goes on from the last version.
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
            let next = tokio::time::timeout_at(self.until.into(), self.body.next());
            self.buffer.extend_from_slice(&next.await.ok()??.ok()?);
        }
    }
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
                        complain!(e, kind = %self.intake.scope.gvk, namespace = %self.intake.scope.namespace, error = %e, "watch interrupted");
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
        } = &self.intake.scope;
        self.cluster.query(gvk, namespace, selector.as_ref()).await
    }

    /// Lists everything, and drops what has gone while nobody watched. Gives the version to watch from.
    /// What fits one page comes as a page; more is streamed where the server does that, and paged elsewhere.
    async fn list(&self) -> Result<String, ApiError> {
        let path = self.path().await?;
        let mut seen = HashSet::new();
        let mut token = String::new();
        let mut streaming = true;
        let origin = match *self.synced.borrow() {
            Synced::Yes => Origin::Listed,
            _ => Origin::Initial,
        };
        loop {
            let page = self
                .cluster
                .page(&path, PAGE, &token, self.form(As::List), |item| {
                    seen.extend(self.intake.put(item, origin));
                });
            let (mut version, next) = page.await?;
            token = next;
            if !token.is_empty() {
                if !std::mem::take(&mut streaming) {
                    continue;
                }
                let mut streamed = HashSet::new();
                match self.stream(&path, origin, &mut streamed).await? {
                    Some(newest) => (version, seen) = (newest, streamed),
                    // Paged on from where it was: the first page counts.
                    None => continue,
                }
            }
            // A version that is no number orders nothing: no late answer is refused by it.
            let as_of = version.parse();
            self.intake.listed(
                &seen,
                as_of.clone().unwrap_or(u64::MAX),
                as_of.unwrap_or(0),
                origin,
            );
            debug!(kind = %self.intake.scope.gvk, namespace = %self.intake.scope.namespace, objects = seen.len(), "listed");
            return Ok(version);
        }
    }

    /// A streaming list (KEP-3157). None where the server does not have it.
    async fn stream(
        &self,
        path: &str,
        origin: Origin,
        seen: &mut HashSet<ObjectRef>,
    ) -> Result<Option<String>, ApiError> {
        let query = format!(
            "{path}watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds={TURN}"
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
            match self.intake.event(line, origin)? {
                Seen::Object(key, _) => seen.extend(key),
                Seen::Bookmark(version, true) => return Ok(Some(version)),
                Seen::Bookmark(..) => {}
                Seen::TooOld => break,
            }
        }
        Err(ApiError::Unreachable("the stream of the first list broke".into()))
    }

    fn form(&self, as_: As) -> Option<As> {
        (self.intake.scope.form == Form::Metadata).then_some(as_)
    }

    /// Watches from a version until the stream ends. Gives the version to go on from, none to list again.
    async fn watch(&self, from: &str) -> Result<Option<String>, ApiError> {
        let query = format!(
            "{}watch=true&allowWatchBookmarks=true&timeoutSeconds={TURN}&resourceVersion={from}",
            self.path().await?
        );
        let mut lines = match self.cluster.watch(&query, self.form(As::Object)).await {
            Ok(body) => Lines::new(body),
            Err(e) if e.code() == 410 => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut version = from.to_owned();
        while let Some(line) = lines.next().await {
            match self.intake.event(line, Origin::Watched)? {
                Seen::Object(_, newer) | Seen::Bookmark(newer, _) => version = newer,
                Seen::TooOld => return Ok(None),
            }
        }
        Ok(Some(version))
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

#[cfg(test)]
mod tests;
