//! Informers keep the store equal to the API server: list, watch, and relist when the watch expired.
//!
//! One informer per [`Scope`] runs from the first read on, is shared by all plugins, and is stopped when it is no
//! longer needed. An informer of a wider scope serves reads of a narrower one.
//!
//! # Recovery
//!
//! A watch that ends is resumed from the last resourceVersion. If the server answers `410 Gone`, the version is too
//! old to resume from, and the informer lists again. Other errors are retried with backoff, from the same version while
//! the server is overloaded or cannot be reached: see `retry.rs`.

mod ingest;
mod retry;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt;
use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
};
use tracing::{debug, warn};

pub use self::ingest::ChangeHandler;
pub use self::retry::RETRY_BACKOFF;
use self::{
    ingest::{Ingest, WatchEvent},
    retry::Retry,
};
use crate::{
    cache::store::{Source, Store},
    client::api::{ApiClient, ApiError, MetadataForm, warn_api_error},
    kube::{
        backoff::Backoff,
        key::ObjectRef,
        scope::{Projection, Scope},
    },
};

/// Number of objects requested per page of a list.
const LIST_PAGE_SIZE: usize = 500;

/// Seconds after which the server is asked to end a watch.
const WATCH_TIMEOUT_SECONDS: u64 = 290;

/// Lifetime after which a watch is given up: its server should have ended it, so the connection is dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(WATCH_TIMEOUT_SECONDS + 30);

/// All informers of a cluster.
pub struct Informers {
    client: ApiClient,
    store: Arc<Store>,
    handler: ChangeHandler,
    backoff: Backoff,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    scopes: HashMap<Scope, InformerHandle>,
    tasks: JoinSet<()>,
}

struct InformerHandle {
    synced: watch::Receiver<SyncState>,
    task: AbortHandle,
    /// Time since which no reader needs it.
    unneeded_since: Option<Instant>,
}

impl InformerHandle {
    fn is_synced(&self) -> bool {
        *self.synced.borrow() == SyncState::Synced
    }
}

/// Progress of an informer's first list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncState {
    /// The first list has not completed.
    Pending,
    /// The last attempt to list failed, and may succeed by itself.
    Failed(String),
    /// The last attempt to list was refused: the kind is not served, or the host may not list it. That lasts until
    /// somebody installs the CRD or changes RBAC, so that readers need not wait for it.
    Refused(String),
    /// The store has held all objects of the scope at least once.
    Synced,
}

impl Informers {
    /// Creates the set of informers; none runs yet.
    pub fn new(client: ApiClient, store: Arc<Store>, handler: ChangeHandler) -> Self {
        Self {
            client,
            store,
            handler,
            backoff: RETRY_BACKOFF,
            running: Mutex::default(),
        }
    }

    /// Retries failed lists and watches with another backoff than client-go's.
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Returns the informer that serves a scope: a synced one that covers it, or its own, which is started unless
    /// it runs. The result is the scope to read from, and the progress of its first list.
    pub fn ensure_informer(&self, scope: &Scope) -> (Scope, watch::Receiver<SyncState>) {
        let mut running = self.running.lock();
        if let Some((covering, handle)) = running.covering_informer(scope) {
            return (covering.clone(), handle.synced.clone());
        }
        let (sender, synced) = watch::channel(SyncState::Pending);
        self.store.open_collection(scope);
        let informer = Informer {
            client: self.client.clone(),
            ingest: Ingest {
                store: self.store.clone(),
                handler: self.handler.clone(),
                scope: scope.clone(),
            },
            synced: sender,
            backoff: self.backoff,
        };
        let handle = InformerHandle {
            synced: synced.clone(),
            task: running.tasks.spawn(informer.run()),
            unneeded_since: None,
        };
        running.scopes.insert(scope.clone(), handle);
        (scope.clone(), synced)
    }

    /// Waits until a scope has been listed once and returns the scope to read it from. The error is the reason why
    /// the list has not completed within `timeout`, or the refusal of the server, without a wait.
    pub async fn wait_synced(&self, scope: &Scope, timeout: Duration) -> Result<Scope, String> {
        let (covering, mut synced) = self.ensure_informer(scope);
        let is_decided = |s: &SyncState| matches!(s, SyncState::Synced | SyncState::Refused(_));
        let waited = tokio::time::timeout(timeout, synced.wait_for(is_decided)).await;
        if let Ok(Err(_)) = waited.map(|state| state.map(drop)) {
            return Err("the host is shutting down".into());
        }
        let state = synced.borrow().clone();
        match state {
            SyncState::Synced => Ok(covering),
            SyncState::Refused(why) | SyncState::Failed(why) => Err(why),
            SyncState::Pending => Err(format!("listing {} takes longer than {timeout:?}", scope.gvk)),
        }
    }

    /// Stops the informers that none of the `needed` scopes has used for `idle_timeout`, and returns their scopes.
    pub fn stop_unneeded(&self, needed: &[Scope], idle_timeout: Duration) -> Vec<Scope> {
        let mut running = self.running.lock();
        let is_synced = |scope: &&Scope| running.scopes.get(*scope).is_some_and(InformerHandle::is_synced);
        // A needed informer also serves the scopes that it covers.
        let synced: Vec<&Scope> = needed.iter().filter(is_synced).collect();
        let serving = |scope: &Scope| match synced.iter().find(|w| **w != scope && w.covers(scope)) {
            Some(covering) => Some((*covering).clone()),
            None => running
                .covering_informer(scope)
                .map(|(covering, _)| covering.clone()),
        };
        let in_use: HashSet<Scope> = needed.iter().filter_map(serving).collect();
        let (mut stopped, mut undelivered) = (Vec::new(), Vec::new());
        for (scope, handle) in &mut running.scopes {
            if in_use.contains(scope) {
                handle.unneeded_since = None;
            } else if handle.unneeded_since.get_or_insert_with(Instant::now).elapsed() >= idle_timeout {
                stopped.push(scope.clone());
            }
        }
        for scope in &stopped {
            if let Some(handle) = running.scopes.remove(scope) {
                handle.task.abort();
                undelivered.extend(self.store.close_collection(scope));
                debug!(kind = %scope.gvk, namespace = %scope.namespace, "stopping unused watch");
            }
        }
        drop(running);
        for change in undelivered {
            (self.handler)(change, Source::Relist);
        }
        stopped
    }

    /// The watched scopes, each with the progress of its first list.
    pub fn scopes(&self) -> Vec<(Scope, SyncState)> {
        let running = self.running.lock();
        let scopes = running.scopes.iter();
        scopes
            .map(|(scope, handle)| (scope.clone(), handle.synced.borrow().clone()))
            .collect()
    }
}

impl Running {
    /// The informer that serves a scope: its own if synced, else a synced one that covers it, else its own if it
    /// runs. For metadata an informer of full objects is preferred, because that is the one that reports changes.
    fn covering_informer(&self, scope: &Scope) -> Option<(&Scope, &InformerHandle)> {
        let own = self.scopes.get_key_value(scope);
        if scope.projection == Projection::Full && own.is_some_and(|(_, handle)| handle.is_synced()) {
            return own;
        }
        let covering = self
            .scopes
            .iter()
            .filter(|(w, i)| w.covers(scope) && i.is_synced());
        covering.min_by_key(|(w, _)| w.projection).or(own)
    }
}

struct Informer {
    client: ApiClient,
    ingest: Ingest,
    synced: watch::Sender<SyncState>,
    backoff: Backoff,
}

/// The state of an informer's list-and-watch loop.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// There is no resourceVersion to resume from, or it expired (`410 Gone`): list everything.
    Listing,
    /// Watch from this resourceVersion.
    Watching { version: String },
}

/// The JSON lines of a watch response.
struct JsonLines {
    body: http_body_util::BodyDataStream<Body>,
    buffer: Vec<u8>,
    /// Length of the part of the buffer that has been returned.
    consumed: usize,
    /// Length of the part of the buffer that contains no further line end.
    scanned: usize,
    /// Time at which the connection is given up.
    deadline: Instant,
}

impl JsonLines {
    fn new(body: Body) -> Self {
        Self {
            body: body.into_data_stream(),
            buffer: Vec::new(),
            consumed: 0,
            scanned: 0,
            deadline: Instant::now() + IDLE_TIMEOUT,
        }
    }

    /// The next line. A broken or dead connection ends the stream without an error: the next watch resumes from the
    /// last version.
    async fn next_line(&mut self) -> Option<&[u8]> {
        loop {
            if let Some(end) = self.buffer[self.scanned..].iter().position(|b| *b == b'\n') {
                let line = self.consumed..self.scanned + end;
                self.consumed = line.end + 1;
                self.scanned = self.consumed;
                return Some(&self.buffer[line]);
            }
            self.buffer.drain(..std::mem::take(&mut self.consumed));
            self.scanned = self.buffer.len();
            let next = tokio::time::timeout_at(self.deadline.into(), self.body.next());
            self.buffer.extend_from_slice(&next.await.ok()??.ok()?);
        }
    }
}

impl Informer {
    /// Lists and watches until aborted. Every error is retried with backoff.
    async fn run(self) {
        let mut retry = Retry::new(self.backoff);
        let mut state = State::Listing;
        loop {
            let started = Instant::now();
            let result = match &state {
                State::Listing => self.list().await.map(|version| State::Watching { version }),
                State::Watching { version } => self.watch(version).await,
            };
            if state == State::Listing && result.is_ok() {
                self.synced.send_replace(SyncState::Synced);
            }
            let (next, delay) = retry.advance(state, &result, started.elapsed(), Instant::now());
            if let Err(error) = &result {
                self.report_failure(error, retry.is_first());
            }
            state = next;
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
        }
    }

    /// Makes a failure visible to readers that wait for the first list, and in the log. A kind that is not served is
    /// logged once.
    fn report_failure(&self, error: &ApiError, is_first: bool) {
        if *self.synced.borrow() != SyncState::Synced {
            let refused = matches!(error.code(), 401 | 403 | 404 | 405);
            let state = if refused {
                SyncState::Refused
            } else {
                SyncState::Failed
            };
            self.synced.send_replace(state(error.to_string()));
        }
        if is_first || !matches!(error, ApiError::UnknownKind(_)) {
            let scope = &self.ingest.scope;
            if error.code() == 405 {
                warn!(kind = %scope.gvk, namespace = %scope.namespace, "kind cannot be watched, polling it every minute: {error}");
                return;
            }
            warn_api_error!(error, kind = %scope.gvk, namespace = %scope.namespace, "watch interrupted: {error}");
        }
    }

    /// Path and beginning of the query of the collection.
    async fn collection_query(&self) -> Result<String, ApiError> {
        let Scope {
            gvk,
            namespace,
            selector,
            ..
        } = &self.ingest.scope;
        self.client
            .collection_query(gvk, namespace, selector.as_ref())
            .await
    }

    /// Lists all objects and removes those that were deleted while no watch ran. Returns the version to watch from.
    /// A list that fits one page is requested as a page. A longer one is streamed if the server supports streaming
    /// lists, and paged otherwise.
    async fn list(&self) -> Result<String, ApiError> {
        let query = self.collection_query().await?;
        let mut seen = HashSet::new();
        let mut token = String::new();
        let mut may_stream = true;
        let source = match *self.synced.borrow() {
            SyncState::Synced => Source::Relist,
            _ => Source::InitialList,
        };
        loop {
            let form = self.metadata_form(MetadataForm::List);
            let page = self
                .client
                .list_page(&query, LIST_PAGE_SIZE, &token, form, |item| {
                    seen.extend(self.ingest.apply_object(item, source));
                });
            let page = page.await?;
            let mut version = page.version;
            token = page.next_token;
            if !token.is_empty() {
                if !std::mem::take(&mut may_stream) {
                    continue;
                }
                let mut streamed = HashSet::new();
                match self.stream_list(&query, source, &mut streamed).await? {
                    Some(newest) => (version, seen) = (newest, streamed),
                    // Paging continues after the first page, which stays valid.
                    None => continue,
                }
            }
            self.ingest.complete_list(&seen, version.parse().ok(), source);
            debug!(kind = %self.ingest.scope.gvk, namespace = %self.ingest.scope.namespace, objects = seen.len(), "listed");
            return Ok(version);
        }
    }

    /// Requests a streaming list (KEP-3157). Returns none if the server does not support it.
    async fn stream_list(
        &self,
        query: &str,
        source: Source,
        seen: &mut HashSet<ObjectRef>,
    ) -> Result<Option<String>, ApiError> {
        let query = format!(
            "{query}watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds={WATCH_TIMEOUT_SECONDS}"
        );
        let form = self.metadata_form(MetadataForm::Object);
        let body = match self.client.watch(&query, form).await {
            Ok(body) => body,
            Err(ApiError::Status {
                code: 400 | 403 | 422,
                ..
            }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut lines = JsonLines::new(body);
        while let Some(line) = lines.next_line().await {
            match self.ingest.apply_event(line, source)? {
                WatchEvent::Object { key, .. } => seen.extend(key),
                WatchEvent::Bookmark {
                    version,
                    ends_initial_events: true,
                } => return Ok(Some(version)),
                WatchEvent::Bookmark { .. } => {}
                WatchEvent::Expired => break,
            }
        }
        Err(ApiError::Unreachable("the stream of the first list broke".into()))
    }

    fn metadata_form(&self, form: MetadataForm) -> Option<MetadataForm> {
        (self.ingest.scope.projection == Projection::Metadata).then_some(form)
    }

    /// Watches from a version until the stream ends. Returns the state to go on from, which is [`State::Listing`]
    /// after `410 Gone`.
    async fn watch(&self, from: &str) -> Result<State, ApiError> {
        let query = format!(
            "{}watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_TIMEOUT_SECONDS}&resourceVersion={from}",
            self.collection_query().await?
        );
        let form = self.metadata_form(MetadataForm::Object);
        let mut lines = match self.client.watch(&query, form).await {
            Ok(body) => JsonLines::new(body),
            Err(e) if e.is_gone() => return Ok(State::Listing),
            Err(e) => return Err(e),
        };
        let mut version = from.to_owned();
        while let Some(line) = lines.next_line().await {
            match self.ingest.apply_event(line, Source::Watch)? {
                WatchEvent::Object { version: newer, .. } | WatchEvent::Bookmark { version: newer, .. } => {
                    version = newer;
                }
                WatchEvent::Expired => return Ok(State::Listing),
            }
        }
        Ok(State::Watching { version })
    }
}

#[cfg(test)]
mod tests;
