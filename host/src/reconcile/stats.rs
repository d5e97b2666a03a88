//! What happened to each object, counted: for `/objects`, `ostler status`, `ostler explain` and tests.
//!
//! On the way of every reconcile, and one entry per object: only what can't be had elsewhere is kept. What an
//! object says of itself is in the store.

use crate::sandbox::capabilities::Counts;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    num::NonZero,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    cache::store::Store,
    kube::{
        key::{Gvk, ObjectRef},
        object::{Object, Readiness},
        scope::Projection,
    },
};

/// One object's facts.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectStats {
    /// Kind of the object.
    pub kind: String,
    /// Its namespace; empty for cluster-scoped ones.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is Ready for its current generation.
    pub ready: bool,
    /// Reason of its Ready condition.
    pub reason: String,
    /// Message of its Ready condition.
    pub message: String,
    /// Milliseconds from when the host first saw it until it was first Ready.
    pub ready_ms: Option<f64>,
    /// Reconciles so far.
    pub reconciles: u64,
    /// Reconciles that ended in a failure or a trap.
    pub failures: u64,
    /// Reconciles of it that began while another was running: must stay 0.
    pub overlaps: u64,
    /// See [`Counts::api_writes`].
    pub api_writes: u64,
    /// See [`Counts::upstream_reads`].
    pub upstream_reads: u64,
    /// See [`Counts::upstream_writes`].
    pub upstream_writes: u64,
    /// The plugin that reconciles it.
    pub plugin: String,
    /// The build of the plugin that reconciled it last (SHA-256).
    pub plugin_digest: String,
    /// When its last reconcile ended (RFC 3339).
    pub last_reconcile: Option<String>,
    /// How long that took, in milliseconds.
    pub last_ms: Option<f64>,
    /// Its last errors, newest last.
    pub errors: Vec<RecordedError>,
}

/// An error of an object, once or several times in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    /// When it happened last (RFC 3339).
    pub at: String,
    /// What it is, in a word.
    pub reason: String,
    /// What it is, for people.
    pub message: String,
    /// How often in a row.
    pub count: u32,
}

/// How many objects, and how many of them are Ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Objects {
    /// All of them.
    pub total: usize,
    /// Those that are Ready.
    pub ready: usize,
}

/// Errors kept per object.
const ERRORS: usize = 5;
/// Bytes kept of an error's message.
const MESSAGE: usize = 1024;
/// Durations kept for percentiles.
const SAMPLES: usize = 100_000;

/// The facts of all objects.
pub struct ReconcileStats {
    store: Arc<Store>,
    began: Instant,
    objects: Mutex<HashMap<ObjectRef, Entry>>,
    /// The builds that reconciled something: most objects share one.
    builds: Mutex<Vec<Arc<Build>>>,
    /// Duration of the first reconciles, in microseconds: the guest's call and all of it.
    overhead: Mutex<Vec<(u32, u32)>>,
}

/// What is kept per object: times as small numbers, for there are many entries.
struct Entry {
    /// In microseconds after the stats was begun.
    seen: u64,
    /// Microseconds from then until it was first Ready.
    ready_after: Option<NonZero<u64>>,
    /// Which version of the object `ready` is about.
    version: u64,
    ready: bool,
    running: bool,
    reconciles: u32,
    failures: u32,
    overlaps: u32,
    api_writes: u32,
    upstream_reads: u32,
    upstream_writes: u32,
    /// In microseconds.
    took: u32,
    /// In seconds since the epoch.
    ended: Option<NonZero<u64>>,
    build: Option<Arc<Build>>,
    // Most objects have none.
    #[allow(clippy::box_collection)]
    errors: Option<Box<VecDeque<LoggedError>>>,
}

#[derive(PartialEq, Eq)]
struct Build {
    plugin: Arc<str>,
    digest: Box<str>,
}

struct LoggedError {
    at: SystemTime,
    reason: Box<str>,
    message: Box<str>,
    count: u32,
}

impl ReconcileStats {
    /// No facts yet; what objects say of themselves is in this store.
    pub fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            began: Instant::now(),
            objects: Mutex::default(),
            builds: Mutex::default(),
            overhead: Mutex::default(),
        }
    }

    /// The host sees an object: its time to Ready counts from here.
    pub fn observe_object(&self, key: &ObjectRef) {
        self.with(key, |_| {});
    }

    /// A reconcile begins, by this build of a plugin.
    pub fn begin_reconcile(&self, key: &ObjectRef, plugin: &Arc<str>, digest: &str) {
        let same = self.with(key, |entry| {
            entry.reconciles += 1;
            entry.overlaps += u32::from(entry.running);
            entry.running = true;
            let build = entry.build.as_ref();
            build.is_some_and(|b| *b.digest == *digest && b.plugin == *plugin)
        });
        if !same {
            let build = self.build(plugin, digest);
            self.with(key, |entry| entry.build = Some(build));
        }
    }

    fn build(&self, plugin: &Arc<str>, digest: &str) -> Arc<Build> {
        let mut builds = self.builds.lock();
        // Builds nobody was reconciled by lately are of no interest.
        if let Some(known) = builds
            .iter()
            .find(|b| *b.digest == *digest && b.plugin == *plugin)
        {
            return known.clone();
        }
        builds.retain(|b| Arc::strong_count(b) > 1);
        let build = Arc::new(Build {
            plugin: plugin.clone(),
            digest: digest.into(),
        });
        builds.push(build.clone());
        build
    }

    /// A reconcile has ended: what it cost, and how long the component's call and all of it took.
    pub fn end_call(&self, key: &ObjectRef, failed: bool, call: Duration, whole: Duration) {
        self.end_reconcile(key, failed, whole);
        let mut samples = self.overhead.lock();
        if samples.len() < SAMPLES {
            samples.push((micros(call), micros(whole)));
        }
    }

    /// The same of one without a component.
    pub fn end_reconcile(&self, key: &ObjectRef, failed: bool, whole: Duration) {
        self.with(key, |entry| {
            entry.failures += u32::from(failed);
            entry.running = false;
            entry.took = micros(whole);
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            entry.ended = NonZero::new(now.map_or(0, |d| d.as_secs()));
        });
    }

    /// A reconcile was abandoned: it has not ended, and runs no more.
    pub fn abandon_reconcile(&self, key: &ObjectRef) {
        self.with(key, |entry| entry.running = false);
    }

    /// What a reconcile cost.
    pub fn add_counts(&self, key: &ObjectRef, counts: Counts) {
        if counts == Counts::default() {
            return;
        }
        let add = |to: &mut u32, n: u64| *to = to.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
        self.with(key, |entry| {
            add(&mut entry.api_writes, counts.api_writes);
            add(&mut entry.upstream_reads, counts.upstream_reads);
            add(&mut entry.upstream_writes, counts.upstream_writes);
        });
    }

    /// Something went wrong. The same again is counted.
    pub fn record_error(&self, key: &ObjectRef, reason: &str, message: &str) {
        let message = cut(message);
        let at = SystemTime::now();
        self.with(key, |entry| {
            let errors = entry.errors.get_or_insert_default();
            if let Some(last) = errors.back_mut()
                && *last.reason == *reason
                && *last.message == *message
            {
                last.at = at;
                last.count = last.count.saturating_add(1);
                return;
            }
            if errors.len() >= ERRORS {
                errors.pop_front();
            }
            errors.push_back(LoggedError {
                at,
                reason: reason.into(),
                message: message.into(),
                count: 1,
            });
        });
    }

    /// What the object says of itself now. Looked at once per version.
    pub fn observe_status(&self, key: &ObjectRef, object: &Object) {
        let known = self.with(key, |entry| entry.version == object.resource_version);
        if !known {
            let ready = object.readiness().ready;
            let now = self.now();
            self.with(key, |entry| {
                entry.version = object.resource_version;
                entry.ready = ready;
                if ready && entry.ready_after.is_none() {
                    entry.ready_after = NonZero::new(now.saturating_sub(entry.seen).max(1));
                }
            });
        }
    }

    /// The object is gone.
    pub fn forget(&self, key: &ObjectRef) {
        self.objects.lock().remove(key);
    }

    /// How many reconciles have ended whose durations are kept.
    pub fn count_reconciles(&self) -> usize {
        self.overhead.lock().len()
    }

    /// (call, whole) durations in microseconds of the first reconciles, without the very first `after`.
    pub fn list_durations(&self, after: usize) -> Vec<(u64, u64)> {
        let samples = self.overhead.lock();
        let after = samples.get(after..).unwrap_or_default();
        after
            .iter()
            .map(|(call, whole)| ((*call).into(), (*whole).into()))
            .collect()
    }

    /// The facts of all objects, in order of kind, namespace and name.
    pub fn all_objects(&self) -> Vec<ObjectStats> {
        self.keys().iter().filter_map(|key| self.object(key)).collect()
    }

    /// The facts of one object.
    pub fn object(&self, key: &ObjectRef) -> Option<ObjectStats> {
        // Parsed before the lock is taken: reconciles wait for that.
        let object = self.store.get(key, Projection::Full);
        let readiness = object.map(|o| o.readiness()).unwrap_or_default();
        let objects = self.objects.lock();
        objects.get(key).map(|entry| tell(key, entry, readiness))
    }

    /// All objects, in order of kind, namespace and name.
    pub fn keys(&self) -> Vec<ObjectRef> {
        let mut keys: Vec<_> = {
            let objects = self.objects.lock();
            objects.keys().cloned().collect()
        };
        keys.sort();
        keys
    }

    /// How many objects there are of each kind.
    pub fn count_by_kind(&self) -> BTreeMap<Gvk, Objects> {
        let mut kinds: BTreeMap<Gvk, Objects> = BTreeMap::new();
        for (key, ready) in self.readiness() {
            let objects = kinds.entry(key.gvk.clone()).or_default();
            objects.total += 1;
            objects.ready += usize::from(ready);
        }
        kinds
    }

    /// The facts of objects that are not Ready, in order, so many at most.
    pub fn list_not_ready(&self, limit: usize) -> Vec<ObjectStats> {
        let mut keys: Vec<_> = self.readiness().into_iter().filter(|(_, ready)| !ready).collect();
        keys.sort();
        keys.into_iter()
            .take(limit)
            .filter_map(|(key, _)| self.object(&key))
            .collect()
    }

    /// The last errors of all objects, newest first, so many at most.
    pub fn list_errors(&self, limit: usize) -> Vec<(ObjectRef, RecordedError)> {
        let objects = self.objects.lock();
        let mut last: Vec<_> = objects
            .iter()
            .filter_map(|(key, entry)| Some((key, entry.errors.as_ref()?.back()?)))
            .collect();
        last.sort_by(|a, b| b.1.at.cmp(&a.1.at).then_with(|| a.0.cmp(b.0)));
        last.truncate(limit);
        last.into_iter()
            .map(|(key, kept)| (key.clone(), kept.tell()))
            .collect()
    }

    /// Whether each object is Ready now. Only those that have changed since their last reconcile are parsed,
    /// and none while reconciles wait for the lock.
    fn readiness(&self) -> Vec<(ObjectRef, bool)> {
        let known: Vec<_> = {
            let objects = self.objects.lock();
            let known = |(key, entry): (&ObjectRef, &Entry)| (key.clone(), entry.version, entry.ready);
            objects.iter().map(known).collect()
        };
        let now = |(key, version, ready)| {
            let object = self.store.get(&key, Projection::Full);
            let ready = match object {
                Some(object) if object.resource_version == version => ready,
                Some(object) => object.readiness().ready,
                None => false,
            };
            (key, ready)
        };
        known.into_iter().map(now).collect()
    }

    fn with<T>(&self, key: &ObjectRef, change: impl FnOnce(&mut Entry) -> T) -> T {
        let mut objects = self.objects.lock();
        if let Some(entry) = objects.get_mut(key) {
            return change(entry);
        }
        change(
            objects
                .entry(key.clone())
                .or_insert_with(|| Entry::new(self.now())),
        )
    }

    /// Microseconds since it was begun.
    fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

fn tell(key: &ObjectRef, entry: &Entry, readiness: Readiness) -> ObjectStats {
    let ms = |micros: f64| micros / 1000.0;
    let at = |seconds: NonZero<u64>| {
        crate::kube::time::format_rfc3339(UNIX_EPOCH + Duration::from_secs(seconds.get()))
    };
    let build = entry.build.as_ref();
    ObjectStats {
        kind: key.gvk.kind.to_string(),
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        ready: readiness.ready,
        reason: readiness.reason,
        message: readiness.message,
        ready_ms: entry.ready_after.map(|after| ms(after.get() as f64)),
        reconciles: entry.reconciles.into(),
        failures: entry.failures.into(),
        overlaps: entry.overlaps.into(),
        api_writes: entry.api_writes.into(),
        upstream_reads: entry.upstream_reads.into(),
        upstream_writes: entry.upstream_writes.into(),
        plugin: build.map(|b| b.plugin.to_string()).unwrap_or_default(),
        plugin_digest: build.map(|b| b.digest.to_string()).unwrap_or_default(),
        last_reconcile: entry.ended.map(at),
        last_ms: entry.ended.map(|_| ms(entry.took.into())),
        errors: entry
            .errors
            .iter()
            .flat_map(|e| e.iter())
            .map(LoggedError::tell)
            .collect(),
    }
}

impl Entry {
    fn new(seen: u64) -> Self {
        Self {
            seen,
            ready_after: None,
            version: 0,
            ready: false,
            running: false,
            reconciles: 0,
            failures: 0,
            overlaps: 0,
            api_writes: 0,
            upstream_reads: 0,
            upstream_writes: 0,
            took: 0,
            ended: None,
            build: None,
            errors: None,
        }
    }
}

impl LoggedError {
    fn tell(&self) -> RecordedError {
        RecordedError {
            at: crate::kube::time::format_rfc3339(self.at),
            reason: self.reason.to_string(),
            message: self.message.to_string(),
            count: self.count,
        }
    }
}

fn micros(took: Duration) -> u32 {
    u32::try_from(took.as_micros()).unwrap_or(u32::MAX)
}

fn cut(message: &str) -> &str {
    let mut end = message.len().min(MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cache::store::Origin, kube::scope::NamespaceScope};

    fn object(version: u64, ready: &str) -> (ObjectRef, Object) {
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"{version}"}},
            "status":{{"conditions":[{{"type":"Ready","status":"{ready}","reason":"R","message":"m"}}]}}}}"#
        );
        Object::parse(&Gvk::new("g", "v1", "Thing"), json.as_bytes()).expect("an object")
    }

    #[test]
    fn readiness_is_what_the_store_says() {
        let store = Arc::new(Store::default());
        let stats = ReconcileStats::new(store.clone());
        let (key, first) = object(1, "False");
        store.open(&NamespaceScope::default().object(&key, Projection::Full));
        store.put(&key, first, Projection::Full, Source::Watch);
        stats.begin_reconcile(&key, &"p".into(), "digest");
        stats.observe_status(&key, &store.get(&key, Projection::Full).expect("there"));
        assert_eq!(stats.count_by_kind()[&key.gvk], Objects { total: 1, ready: 0 });
        assert_eq!(stats.list_not_ready(10).len(), 1);
        // Somebody else's status write, not looked at yet.
        store.put(&key, object(2, "True").1, Projection::Full, Source::Watch);
        assert_eq!(stats.count_by_kind()[&key.gvk], Objects { total: 1, ready: 1 });
        let facts = stats.object(&key).expect("facts");
        assert!(facts.ready && facts.ready_ms.is_none());
        stats.observe_status(&key, &store.get(&key, Projection::Full).expect("there"));
        assert!(stats.object(&key).expect("facts").ready_ms.is_some());
        assert_eq!((&*facts.plugin, &*facts.plugin_digest), ("p", "digest"));
    }

    #[test]
    fn the_last_errors_are_kept_and_the_same_again_is_counted() {
        let stats = ReconcileStats::new(Arc::default());
        let key = object(1, "False").0;
        for i in 0..ERRORS + 2 {
            for _ in 0..=i {
                stats.record_error(&key, "Failed", &format!("attempt {i}"));
            }
        }
        let errors = stats.object(&key).expect("facts").errors;
        assert_eq!(errors.len(), ERRORS);
        let last = errors.last().expect("the newest");
        assert_eq!((&*last.message, last.count), ("attempt 6", 7));
        assert_eq!(stats.list_errors(10)[0].1, *last);
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 80, "{} bytes", size_of::<Entry>());
    }
}
