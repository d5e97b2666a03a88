//! Informers keep the store equal to the API server: list, watch, and relist when the watch expired.
//!
//! One informer per [`Scope`] runs from the first read on, is shared by all plugins, and is stopped when it is no
//! longer needed. An informer of a wider scope serves reads of a narrower one, and replaces many of them: see
//! `scope_index.rs`.
//!
//! # Recovery
//!
//! A watch that ends is resumed from the last resourceVersion, and so is one without an event or bookmark for
//! [`IDLE_TIMEOUT`]: its connection died without a word. If the server answers `410 Gone`, the version is too old to
//! resume from, and the informer lists again. So it does when the server ends a watch of a custom resource before its timeout,
//! which is how it discards the former schema of a CRD that has changed. Other errors are retried with backoff, from the same version while the
//! server is overloaded or cannot be reached: see `retry.rs`. An informer that panics is restarted.

mod ingest;
mod json_lines;
mod retry;
mod scope_index;

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt;
use ostler_readiness::is_built_in_group;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinSet},
};
use tracing::{debug, error, warn};

pub use self::ingest::ChangeHandler;
pub use self::retry::RETRY_BACKOFF;
use self::{
    ingest::{Ingest, WatchEvent},
    json_lines::JsonLines,
    retry::Retry,
    scope_index::{InformerProgress, ScopeIndex},
};
use crate::{
    cache::store::{Store, VersionSource},
    client::api::{ApiClient, ApiError, MetadataForm, ResponseBounds, warn_api_error},
    kube::{
        backoff::Backoff,
        key::ObjectRef,
        scope::{NamespaceScope, Projection, Scope},
    },
};

/// Number of objects requested per page of a list.
const LIST_PAGE_SIZE: usize = 500;

/// Seconds after which the server is asked to end a watch.
const WATCH_TIMEOUT_SECONDS: u64 = 290;

/// Minimum duration of a watch that the server has ended because of its timeout. It ends those of a custom resource earlier when
/// the CRD changes: they have shown objects by the former schema until then, without the fields and defaults of the new one, and a
/// watch that is resumed does not repeat these objects.
const MIN_COMPLETE_WATCH_DURATION: Duration = Duration::from_secs(WATCH_TIMEOUT_SECONDS - 5);

/// Seconds after which the server is asked to end a streaming list, which may take longer than a watch should last.
const STREAM_LIST_TIMEOUT_SECONDS: u64 = 3600;

/// Time without an event or bookmark after which the connection of a watch counts as dead. API servers send a bookmark
/// about once a minute; one that sends none has its idle watches resumed, which costs one request.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// All informers of a cluster.
pub struct Informers {
    client: ApiClient,
    store: Arc<Store>,
    handler: ChangeHandler,
    namespaces: NamespaceScope,
    backoff: Backoff,
    idle_timeout: Duration,
    running: Mutex<Running>,
    /// Notified when the server refuses a list for the first time.
    refused: Arc<Notify>,
    /// Notified when the first list of an informer completes that was started beside those of label selectors.
    covered: Arc<Notify>,
}

#[derive(Default)]
struct Running {
    scopes: ScopeIndex<InformerHandle>,
    /// Number of informers that the reads of each plugin have started.
    started: HashMap<Arc<str>, u32>,
    tasks: JoinSet<()>,
    /// No informer is started any more.
    is_closed: bool,
}

struct InformerHandle {
    synced: watch::Receiver<SyncState>,
    interruption: Arc<Mutex<Option<String>>>,
    task: AbortHandle,
    /// Time since which no reader needs it.
    unneeded_since: Option<Instant>,
    /// The plugin whose read started it; none for the host itself.
    started_by: Option<Arc<str>>,
}

impl InformerHandle {
    fn state(&self) -> SyncState {
        let synced = self.synced.borrow().clone();
        match self.interruption.lock().clone() {
            Some(why) if synced == SyncState::Synced => SyncState::Interrupted(why),
            _ => synced,
        }
    }
}

impl InformerProgress for InformerHandle {
    fn is_synced(&self) -> bool {
        *self.synced.borrow() == SyncState::Synced
    }

    fn is_refused(&self) -> bool {
        matches!(*self.synced.borrow(), SyncState::Refused(_))
    }

    fn is_listing(&self) -> bool {
        *self.synced.borrow() == SyncState::Pending
    }
}

/// Progress of informers at one moment.
#[derive(Clone, Copy)]
struct ProgressSnapshot {
    synced: bool,
    refused: bool,
    listing: bool,
}

impl InformerProgress for ProgressSnapshot {
    fn is_synced(&self) -> bool {
        self.synced
    }

    fn is_refused(&self) -> bool {
        self.refused
    }

    fn is_listing(&self) -> bool {
        self.listing
    }
}

/// Longest wait for the first list of a scope on the host's own cluster, unless the caller has a reason for another one.
pub const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// A plugin that reads, and the number of informers that its reads may start.
#[derive(Clone, Copy, Debug)]
pub struct InformerReader<'a> {
    /// Name of the plugin.
    pub plugin: &'a Arc<str>,
    /// Maximum number of informers that it has started and that run.
    pub max_watches: u32,
}

/// The error of a read that would start more watches than its plugin may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plugin has started as many watches as it may have")]
pub struct TooManyWatches;

/// The error of a read whose informer is not synced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// Its plugin has started too many watches.
    #[error(transparent)]
    TooManyWatches(#[from] TooManyWatches),
    /// The list failed or takes too long, with the reason.
    #[error("{0}")]
    NotSynced(String),
}

/// The informer that serves a read: the scope to read from, and the progress of its first list.
pub type ServingInformer = (Scope, watch::Receiver<SyncState>);

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
    /// The same, and the watch fails now: the store has what was seen last. [`Informers::scopes`] reports it; the first list stays
    /// completed.
    Interrupted(String),
}

impl SyncState {
    /// The first list has completed.
    pub fn is_synced(&self) -> bool {
        matches!(self, Self::Synced | Self::Interrupted(_))
    }
}

impl Informers {
    /// Creates the set of informers; none runs yet.
    pub fn new(client: ApiClient, store: Arc<Store>, handler: ChangeHandler) -> Self {
        Self {
            client,
            store,
            handler,
            namespaces: NamespaceScope::default(),
            backoff: RETRY_BACKOFF,
            idle_timeout: IDLE_TIMEOUT,
            running: Mutex::default(),
            refused: Arc::default(),
            covered: Arc::default(),
        }
    }

    /// Widens watches no further than a host that is confined to these namespaces may.
    pub fn with_namespaces(self, namespaces: NamespaceScope) -> Self {
        Self { namespaces, ..self }
    }

    /// Retries failed lists and watches with another backoff than client-go's.
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Resumes watches without an event or bookmark after another time than [`IDLE_TIMEOUT`].
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout, ..self }
    }

    /// Returns the informer that serves a scope: a synced one that covers it, or its own, which is started unless
    /// it runs.
    pub fn ensure_informer(&self, scope: &Scope) -> ServingInformer {
        let mut running = self.running.lock();
        if running.is_closed {
            return closed_informer(scope);
        }
        match running.find(scope, &self.namespaces) {
            Ok(serving) => serving,
            Err(wide) => self.start(&mut running, wide, None),
        }
    }

    /// Returns the informer that serves a read of a plugin.
    ///
    /// # Errors
    /// The read would start one more informer than the plugin may have.
    pub fn ensure_informer_for(
        &self,
        scope: &Scope,
        reader: InformerReader<'_>,
    ) -> Result<ServingInformer, TooManyWatches> {
        let mut running = self.running.lock();
        if running.is_closed {
            return Ok(closed_informer(scope));
        }
        match running.find(scope, &self.namespaces) {
            Ok(serving) => Ok(serving),
            Err(_) if running.count_started(reader.plugin) >= reader.max_watches => Err(TooManyWatches),
            Err(wide) => Ok(self.start(&mut running, wide, Some(reader.plugin))),
        }
    }

    /// Starts an informer for a read of a plugin unless one serves it, now or once it is synced.
    ///
    /// # Errors
    /// As of [`Self::ensure_informer_for`].
    pub fn ensure_served(&self, scope: &Scope, reader: InformerReader<'_>) -> Result<(), TooManyWatches> {
        // Most objects read what they have read before, for which nothing is copied.
        if self.running.lock().find_covering(scope).is_some() {
            return Ok(());
        }
        self.ensure_informer_for(scope, reader).map(drop)
    }

    /// Returns true if an informer that runs serves a scope, now or once it is synced.
    pub fn serves(&self, scope: &Scope) -> bool {
        self.running.lock().find(scope, &self.namespaces).is_ok()
    }

    /// Checks that the reads of a plugin may start `pending` more informers.
    ///
    /// # Errors
    /// These are more than the plugin may have.
    pub fn check_limit(&self, reader: InformerReader<'_>, pending: u32) -> Result<(), TooManyWatches> {
        let started = self.count_started(reader.plugin);
        if started.saturating_add(pending) > reader.max_watches {
            return Err(TooManyWatches);
        }
        Ok(())
    }

    /// Number of running informers that the reads of a plugin have started.
    pub fn count_started(&self, plugin: &str) -> u32 {
        self.running.lock().count_started(plugin)
    }

    fn start(&self, running: &mut Running, scope: Scope, plugin: Option<&Arc<str>>) -> ServingInformer {
        let (sender, synced) = watch::channel(SyncState::Pending);
        let interruption = Arc::default();
        self.store.open_collection(&scope);
        let informer = Informer {
            client: self.client.clone(),
            ingest: Ingest {
                store: self.store.clone(),
                handler: self.handler.clone(),
                scope: scope.clone(),
            },
            synced: sender,
            interruption: Arc::clone(&interruption),
            refused: self.refused.clone(),
            covered: running.scopes.has_covered(&scope).then(|| self.covered.clone()),
            namespaces: self.namespaces.clone(),
            backoff: self.backoff,
            idle_timeout: self.idle_timeout,
        };
        let handle = InformerHandle {
            synced: synced.clone(),
            interruption,
            task: running.tasks.spawn(informer.run_and_restart()),
            unneeded_since: None,
            started_by: plugin.cloned(),
        };
        if let Some(plugin) = plugin {
            *running.started.entry(plugin.clone()).or_default() += 1;
        }
        running.scopes.insert(scope.clone(), handle);
        (scope, synced)
    }

    /// Waits until a scope has been listed once and returns the scope to read it from. The error is the reason why
    /// the list has not completed within `timeout`, or the refusal of the server, without a wait.
    pub async fn wait_synced(&self, scope: &Scope, timeout: Duration) -> Result<Scope, String> {
        let synced = self.wait_for_informer(scope, timeout, || Ok(self.ensure_informer(scope)));
        synced.await.map_err(|e| e.to_string())
    }

    /// Waits for the read of a plugin as [`Informers::wait_synced`] does.
    pub async fn wait_synced_for(
        &self,
        scope: &Scope,
        reader: InformerReader<'_>,
        timeout: Duration,
    ) -> Result<Scope, SyncError> {
        self.wait_for_informer(scope, timeout, || self.ensure_informer_for(scope, reader))
            .await
    }

    async fn wait_for_informer(
        &self,
        scope: &Scope,
        timeout: Duration,
        ensure: impl Fn() -> Result<ServingInformer, TooManyWatches>,
    ) -> Result<Scope, SyncError> {
        let deadline = Instant::now() + timeout;
        loop {
            let (serving, mut synced) = ensure()?;
            let is_decided = |s: &SyncState| s.is_synced() || matches!(s, SyncState::Refused(_));
            let waited = tokio::time::timeout_at(deadline.into(), synced.wait_for(is_decided)).await;
            if let Ok(Err(_)) = waited.map(|state| state.map(drop)) {
                return Err(SyncError::NotSynced("the host is shutting down".into()));
            }
            let state = synced.borrow().clone();
            return match state {
                SyncState::Synced | SyncState::Interrupted(_) => Ok(serving),
                // The host may watch the scope itself even if it may not watch a wider one.
                SyncState::Refused(_) if serving != *scope => continue,
                SyncState::Refused(why) | SyncState::Failed(why) => Err(SyncError::NotSynced(why)),
                SyncState::Pending => Err(SyncError::NotSynced(format!(
                    "listing {} takes longer than {timeout:?}",
                    scope.gvk
                ))),
            };
        }
    }

    /// Stops the informers that none of the `needed` scopes has used for `idle_timeout`, and returns their scopes. Those of
    /// label selectors that one without a selector covers are stopped at once: it delivers each event that they do. One of a whole
    /// kind that serves a few label selectors alone is replaced by one for each of them. A scope that became needed meanwhile
    /// may lose its informer: ensure the needed scopes again afterwards.
    pub fn stop_unneeded(&self, needed: &[Scope], idle_timeout: Duration) -> Vec<Scope> {
        let snapshot = self.running.lock().scopes.map(|handle| ProgressSnapshot {
            synced: handle.is_synced(),
            refused: handle.is_refused(),
            listing: handle.is_listing(),
        });
        // Reads of all plugins wait for the lock, so the comparison is made without it.
        let in_use = snapshot.find_in_use(needed);
        let replacing = snapshot.find_replacing(needed);
        let mut running = self.running.lock();
        if running.is_closed {
            return Vec::new();
        }
        for scope in replacing {
            if running.scopes.get(&scope).is_none() {
                self.start(&mut running, scope, None);
            }
        }
        // Results of ended tasks are kept until they are joined.
        while running.tasks.try_join_next().is_some() {}
        let (mut stopped, mut undelivered) = (Vec::new(), Vec::new());
        for (scope, _) in snapshot.iter() {
            let Some(handle) = running.scopes.get_mut(scope) else {
                continue;
            };
            if in_use.contains(scope) {
                handle.unneeded_since = None;
                continue;
            }
            let unneeded_since = *handle.unneeded_since.get_or_insert_with(Instant::now);
            if snapshot.is_covered(scope, &in_use) || unneeded_since.elapsed() >= idle_timeout {
                stopped.push(scope.clone());
            }
        }
        for scope in &stopped {
            if let Some(handle) = running.remove(scope) {
                handle.task.abort();
                undelivered.extend(self.store.close_collection(scope));
                debug!(kind = %scope.gvk, namespace = %scope.namespace, "stopping unused watch");
            }
        }
        drop(running);
        for change in undelivered {
            (self.handler)(change, VersionSource::Relist);
        }
        stopped
    }

    /// Stops all informers for good, and drops what they have cached. That is no change to its readers.
    pub fn close(&self) {
        let mut running = self.running.lock();
        running.is_closed = true;
        running.tasks.abort_all();
        let scopes: Vec<Scope> = running.scopes.iter().map(|(scope, _)| scope.clone()).collect();
        for scope in &scopes {
            running.remove(scope);
            self.store.close_collection(scope);
        }
    }

    /// Waits until the server has refused a list. If it was a wider one than needed, ensure the needed scopes again:
    /// narrower ones take its place.
    pub async fn wait_refused(&self) {
        self.refused.notified().await;
    }

    /// Waits until an informer that was started beside those of label selectors has listed what they watch: stop the unneeded ones.
    pub async fn wait_covered(&self) {
        self.covered.notified().await;
    }

    /// The watched scopes, each with the progress of its first list, and what interrupts its watch.
    pub fn scopes(&self) -> Vec<(Scope, SyncState)> {
        let running = self.running.lock();
        let scopes = running.scopes.iter();
        scopes
            .map(|(scope, handle)| (scope.clone(), handle.state()))
            .collect()
    }
}

/// The informer of a closed set: it has nothing.
fn closed_informer(scope: &Scope) -> ServingInformer {
    let closed = SyncState::Refused("the connection to the cluster was closed".into());
    (scope.clone(), watch::channel(closed).1)
}

impl Running {
    /// The informer of the scope itself or of a wider one that serves a scope, or will do so once it is synced.
    fn find_covering<'a>(&'a self, scope: &'a Scope) -> Option<(&'a Scope, &'a InformerHandle)> {
        let serving = self.scopes.find_serving(scope);
        serving.or_else(|| self.scopes.find_listing(scope))
    }

    /// The informer that serves a scope. The error is the scope to start one for.
    fn find(&self, scope: &Scope, namespaces: &NamespaceScope) -> Result<ServingInformer, Scope> {
        let serving = |(scope, handle): (&Scope, &InformerHandle)| (scope.clone(), handle.synced.clone());
        if let Some(found) = self.find_covering(scope) {
            return Ok(serving(found));
        }
        let wide = self.scopes.widen(scope, namespaces);
        self.scopes
            .get(&wide)
            .map(|h| (wide.clone(), h.synced.clone()))
            .ok_or(wide)
    }

    fn count_started(&self, plugin: &str) -> u32 {
        self.started.get(plugin).copied().unwrap_or(0)
    }

    fn remove(&mut self, scope: &Scope) -> Option<InformerHandle> {
        let handle = self.scopes.remove(scope)?;
        if let Some(plugin) = &handle.started_by
            && let Some(count) = self.started.get_mut(plugin)
        {
            *count -= 1;
            if *count == 0 {
                self.started.remove(plugin);
            }
        }
        Some(handle)
    }
}

struct Informer {
    client: ApiClient,
    ingest: Ingest,
    synced: watch::Sender<SyncState>,
    /// Why the watch of a completed list fails; none while it is open.
    interruption: Arc<Mutex<Option<String>>>,
    refused: Arc<Notify>,
    /// Notified when the first list completes; none if the informer was started without those of label selectors beside it.
    covered: Option<Arc<Notify>>,
    namespaces: NamespaceScope,
    backoff: Backoff,
    idle_timeout: Duration,
}

/// The state of an informer's list-and-watch loop.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// There is no resourceVersion to resume from, or it expired (`410 Gone`): list everything.
    Listing,
    /// Watch from this resourceVersion.
    Watching { version: String },
}

impl Informer {
    /// Runs until aborted. A panic is a bug of the host; without a restart its readers would read a frozen cache.
    async fn run_and_restart(self) {
        let mut panics = 0;
        loop {
            if AssertUnwindSafe(self.run()).catch_unwind().await.is_err() {
                let scope = &self.ingest.scope;
                error!(kind = %scope.gvk, namespace = %scope.namespace, "informer panicked, which is a bug of the host: restarting it");
                self.ingest.report_all();
            }
            panics += 1;
            tokio::time::sleep(self.backoff.delay(panics)).await;
        }
    }

    /// Lists and watches until aborted. Every error is retried with backoff.
    async fn run(&self) {
        let mut retry = Retry::new(self.backoff);
        let mut state = State::Listing;
        loop {
            let started = Instant::now();
            let result = match &state {
                State::Listing => self.list().await.map(|version| State::Watching { version }),
                State::Watching { version } => self.watch(version).await,
            };
            if state == State::Listing && result.is_ok() {
                let before = self.synced.send_replace(SyncState::Synced);
                if let Some(covered) = self.covered.as_ref().filter(|_| before != SyncState::Synced) {
                    covered.notify_one();
                }
                self.interruption.lock().take();
            }
            let (next, delay) = retry.advance(state, &result, started.elapsed(), Instant::now());
            if let Err(error) = &result {
                self.report_failure(error, retry.is_first());
                if let ApiError::TooLarge(_) = error {
                    // What it has cached so far is incomplete, and the next list would add to it.
                    self.synced.send_replace(SyncState::Failed(error.to_string()));
                    self.ingest.store.clear_collection(&self.ingest.scope);
                }
            }
            state = next;
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
        }
    }

    /// Makes a failure visible to readers that wait for the first list, in the status of the host, and in the log. A kind that is not served is
    /// logged once.
    fn report_failure(&self, error: &ApiError, is_first: bool) {
        *self.interruption.lock() = Some(error.to_string());
        if *self.synced.borrow() != SyncState::Synced {
            let refused = matches!(error.code(), 401 | 403 | 404 | 405);
            let state = if refused {
                SyncState::Refused
            } else {
                SyncState::Failed
            };
            let scope = &self.ingest.scope;
            if error.code() == 403 && scope.namespace.is_empty() && scope.selector.is_none() {
                self.namespaces.record_forbidden(&scope.gvk);
            }
            let before = self.synced.send_replace(state(error.to_string()));
            if refused && !matches!(before, SyncState::Refused(_)) {
                self.refused.notify_one();
            }
        }
        if is_first || !matches!(error, ApiError::UnknownKind(..)) {
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
    /// lists and does not end the stream early, and paged otherwise.
    async fn list(&self) -> Result<String, ApiError> {
        let query = self.collection_query().await?;
        let mut seen = HashSet::new();
        let mut token = String::new();
        let mut may_stream = true;
        let bounds = self.client.bounds();
        let (mut pages, mut bytes) = (0, 0);
        let source = match *self.synced.borrow() {
            SyncState::Synced => VersionSource::Relist,
            _ => VersionSource::InitialList,
        };
        loop {
            let form = self.metadata_form(MetadataForm::List);
            let page = self
                .client
                .list_page(&query, LIST_PAGE_SIZE, &token, form, |item| {
                    seen.extend(self.ingest.apply_object(item, source));
                });
            let page = page.await?;
            (pages, bytes) = (pages + 1, bytes + page.bytes);
            bounds.check_pages(pages)?;
            bounds.check_objects(seen.len(), bytes)?;
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

    /// Requests a streaming list (KEP-3157). Returns none if the server does not support it, or has ended it early: it ends the stream of a
    /// reader that lags behind the events, which come on top of the objects, and a second attempt would begin with all objects again.
    async fn stream_list(
        &self,
        query: &str,
        source: VersionSource,
        seen: &mut HashSet<ObjectRef>,
    ) -> Result<Option<String>, ApiError> {
        let query = format!(
            "{query}watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds={STREAM_LIST_TIMEOUT_SECONDS}"
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
        let bounds = self.client.bounds();
        let mut bytes = 0;
        let mut lines = JsonLines::new(body, self.idle_timeout, bounds);
        while let Some(line) = lines.next_line().await? {
            bytes += line.len();
            match self.ingest.apply_event(line, source)? {
                WatchEvent::Object { key, .. } => {
                    seen.extend(key);
                    bounds.check_objects(seen.len(), bytes)?;
                }
                WatchEvent::Bookmark {
                    version,
                    ends_initial_events: true,
                } => return Ok(Some(version)),
                WatchEvent::Bookmark { .. } => {}
                WatchEvent::Expired => break,
            }
        }
        debug!(kind = %self.ingest.scope.gvk, namespace = %self.ingest.scope.namespace, objects = seen.len(), "the server has ended the streaming list, going on by page");
        Ok(None)
    }

    /// Checks the cached objects, which a watch adds to for as long as it runs.
    fn check_cached_objects(&self) -> Result<(), ApiError> {
        let bounds = self.client.bounds();
        if bounds == ResponseBounds::NONE {
            return Ok(());
        }
        let (objects, bytes) = self.ingest.store.collection_size(&self.ingest.scope);
        bounds.check_objects(objects, bytes)
    }

    fn metadata_form(&self, form: MetadataForm) -> Option<MetadataForm> {
        (self.ingest.scope.projection == Projection::Metadata).then_some(form)
    }

    /// Watches from a version until the stream ends. Returns the state to go on from, which is [`State::Listing`]
    /// after `410 Gone` and after a possible change of the schema.
    async fn watch(&self, from: &str) -> Result<State, ApiError> {
        let query = format!(
            "{}watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_TIMEOUT_SECONDS}&resourceVersion={from}",
            self.collection_query().await?
        );
        let form = self.metadata_form(MetadataForm::Object);
        let mut lines = match self.client.watch(&query, form).await {
            Ok(body) => JsonLines::new(body, self.idle_timeout, self.client.bounds()),
            Err(e) if e.is_gone() => return Ok(State::Listing),
            Err(e) => return Err(e),
        };
        let opened = Instant::now();
        self.interruption.lock().take();
        let events = self.client.watch_events(&self.ingest.scope.gvk);
        let mut version = from.to_owned();
        while let Some(line) = lines.next_line().await? {
            match self.ingest.apply_event(line, VersionSource::Watch)? {
                WatchEvent::Object { version: newer, .. } => {
                    events.inc();
                    version = newer;
                    self.check_cached_objects()?;
                }
                WatchEvent::Bookmark { version: newer, .. } => version = newer,
                WatchEvent::Expired => return Ok(State::Listing),
            }
        }
        if opened.elapsed() < MIN_COMPLETE_WATCH_DURATION && !is_built_in_group(&self.ingest.scope.gvk.group)
        {
            debug!(kind = %self.ingest.scope.gvk, namespace = %self.ingest.scope.namespace, "the server has ended the watch, its CRD may have changed: listing again");
            return Ok(State::Listing);
        }
        Ok(State::Watching { version })
    }
}

#[cfg(test)]
mod tests;
