//! Statistics of the reconciles of each object, for `/objects`, `ostler status`, `ostler explain` and tests.
//!
//! Every reconcile updates them, and there is an entry per object: only what is not available elsewhere is kept. The
//! conditions of an object are read from the store.

use crate::sandbox::capabilities::EffectCounts;
use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZero,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    cache::store::Store,
    kube::{
        key::{Gvk, ObjectMap, ObjectRef},
        object::{KubeObject, Readiness},
        scope::Projection,
    },
    reconcile::durations::DurationHistogram,
};

/// Statistics of one object.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectStats {
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for cluster-scoped ones.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// True when it is Ready for its current generation.
    pub ready: bool,
    /// Reason of its Ready condition.
    pub reason: String,
    /// Message of its Ready condition.
    pub message: String,
    /// Milliseconds from when the host first received it until it was first Ready.
    pub ready_ms: Option<f64>,
    /// Number of reconciles.
    pub reconciles: u64,
    /// Number of reconciles that ended in a failure or a trap.
    pub failures: u64,
    /// Number of reconciles that began while another one of it was running. It must stay 0.
    pub overlaps: u64,
    /// See [`EffectCounts::api_writes`].
    pub api_writes: u64,
    /// See [`EffectCounts::upstream_reads`].
    pub upstream_reads: u64,
    /// See [`EffectCounts::upstream_writes`].
    pub upstream_writes: u64,
    /// The plugin that reconciles it.
    pub plugin: String,
    /// SHA-256 of the build that reconciled it last.
    pub plugin_digest: String,
    /// End of its last reconcile (RFC 3339).
    pub last_reconcile: Option<String>,
    /// Duration of its last reconcile in milliseconds.
    pub last_ms: Option<f64>,
    /// Its last errors, newest last.
    pub errors: Vec<RecordedError>,
}

/// An error of an object, once or several times in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    /// Time of the last occurrence (RFC 3339).
    pub at: String,
    /// Reason, as a CamelCase word.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Number of occurrences in a row.
    pub count: u32,
}

/// Number of objects, and of those that are Ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ObjectCounts {
    /// Number of objects.
    pub total: usize,
    /// Number of those that are Ready.
    pub ready: usize,
}

/// Limit of the errors kept per object.
const MAX_ERRORS: usize = 5;
/// Limit of the bytes kept of an error's message.
const MAX_MESSAGE_BYTES: usize = 1024;
/// Statistics of all objects.
pub struct ReconcileStats {
    store: Arc<Store>,
    began: Instant,
    objects: Mutex<ObjectEntries>,
    /// The builds that reconciled an object: most objects share one.
    builds: Mutex<Vec<Arc<Build>>>,
    /// Durations of reconciles.
    pub durations: DurationHistogram,
}

/// The entries, and their number by kind: metrics are scraped while there are many.
#[derive(Default)]
struct ObjectEntries {
    by_key: ObjectMap<Entry>,
    counts: BTreeMap<Gvk, ObjectCounts>,
}

impl ObjectEntries {
    /// Changes an entry, which is made if there is none.
    fn update<T>(
        &mut self,
        key: &ObjectRef,
        seen: impl Fn() -> u64,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> T {
        let Self { by_key, counts } = self;
        if let Some(entry) = by_key.get_mut(key) {
            return change_counted(counts, key, entry, change);
        }
        counts.entry(key.gvk.clone()).or_default().total += 1;
        let entry = by_key.entry(key.clone()).or_insert(Entry::new(seen()));
        change_counted(counts, key, entry, change)
    }

    fn remove(&mut self, key: &ObjectRef) {
        let Some(entry) = self.by_key.remove(key) else {
            return;
        };
        if let Some(counts) = self.counts.get_mut(&key.gvk) {
            counts.total -= 1;
            counts.ready -= usize::from(entry.ready);
            if counts.total == 0 {
                self.counts.remove(&key.gvk);
            }
        }
    }
}

/// Changes an entry, and the counts of its kind with it.
fn change_counted<T>(
    counts: &mut BTreeMap<Gvk, ObjectCounts>,
    key: &ObjectRef,
    entry: &mut Entry,
    change: impl FnOnce(&mut Entry) -> T,
) -> T {
    let was_ready = entry.ready;
    let result = change(entry);
    if entry.ready != was_ready
        && let Some(counts) = counts.get_mut(&key.gvk)
    {
        if entry.ready {
            counts.ready += 1;
        } else {
            counts.ready -= 1;
        }
    }
    result
}

/// Entry of an object. Times are small numbers, since there are many entries.
struct Entry {
    /// In microseconds after the stats was begun.
    seen: u64,
    /// Microseconds from then until it was first Ready.
    ready_after: Option<NonZero<u64>>,
    /// `metadata.resourceVersion` of the object that `ready` belongs to.
    version: u64,
    ready: bool,
    running: bool,
    reconciles: u32,
    failures: u32,
    overlaps: u32,
    api_writes: u32,
    upstream_reads: u32,
    upstream_writes: u32,
    /// Duration of the last reconcile in microseconds.
    took: u32,
    /// End of the last reconcile in seconds since the epoch.
    ended: Option<NonZero<u64>>,
    build: Option<Arc<Build>>,
    // Boxed because most objects have none.
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
    /// Creates empty statistics. The conditions of objects are read from this store.
    pub fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            began: Instant::now(),
            objects: Mutex::default(),
            builds: Mutex::default(),
            durations: DurationHistogram::default(),
        }
    }

    /// Records the version of an object that the host has received, or that it is gone. The time to Ready starts with the
    /// first.
    pub fn observe_change(&self, key: &ObjectRef, new: Option<&KubeObject>) {
        match new {
            Some(object) => self.observe_status(key, object),
            None => {
                let mut objects = self.objects.lock();
                // Its next reconcile, which releases what it held, forgets it.
                if objects.by_key.contains_key(key) {
                    objects.update(key, || 0, |entry| (entry.ready, entry.version) = (false, 0));
                }
            }
        }
    }

    /// Records the beginning of a reconcile by this build of a plugin.
    pub fn begin_reconcile(&self, key: &ObjectRef, plugin: &Arc<str>, digest: &str) {
        let same = self.update_entry(key, |entry| {
            entry.reconciles += 1;
            entry.overlaps += u32::from(entry.running);
            entry.running = true;
            let build = entry.build.as_ref();
            build.is_some_and(|b| *b.digest == *digest && b.plugin == *plugin)
        });
        if !same {
            let build = self.intern_build(plugin, digest);
            self.update_entry(key, |entry| entry.build = Some(build));
        }
    }

    fn intern_build(&self, plugin: &Arc<str>, digest: &str) -> Arc<Build> {
        let mut builds = self.builds.lock();
        if let Some(known) = builds
            .iter()
            .find(|b| *b.digest == *digest && b.plugin == *plugin)
        {
            return known.clone();
        }
        // Builds that no entry refers to are dropped.
        builds.retain(|b| Arc::strong_count(b) > 1);
        let build = Arc::new(Build {
            plugin: plugin.clone(),
            digest: digest.into(),
        });
        builds.push(build.clone());
        build
    }

    /// Records the end of a reconcile with its duration.
    pub fn end_reconcile(&self, key: &ObjectRef, failed: bool, whole: Duration) {
        self.update_entry(key, |entry| {
            entry.failures += u32::from(failed);
            entry.running = false;
            entry.took = to_micros(whole);
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            entry.ended = NonZero::new(now.map_or(0, |d| d.as_secs()));
        });
    }

    /// Records that a reconcile was abandoned without a result.
    pub fn abandon_reconcile(&self, key: &ObjectRef) {
        self.update_entry(key, |entry| entry.running = false);
    }

    /// Adds the requests of a reconcile. An object that has no statistics gets none by it: a write may concern one that is not known.
    pub fn add_counts(&self, key: &ObjectRef, counts: EffectCounts) {
        if counts == EffectCounts::default() {
            return;
        }
        let add = |to: &mut u32, n: u64| *to = to.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
        if let Some(entry) = self.objects.lock().by_key.get_mut(key) {
            add(&mut entry.api_writes, counts.api_writes);
            add(&mut entry.upstream_reads, counts.upstream_reads);
            add(&mut entry.upstream_writes, counts.upstream_writes);
        }
    }

    /// Records an error. A repetition of the last one is counted.
    pub fn record_error(&self, key: &ObjectRef, reason: &str, message: &str) {
        let message = truncate_message(message);
        let at = SystemTime::now();
        self.update_entry(key, |entry| {
            let errors = entry.errors.get_or_insert_default();
            if let Some(last) = errors.back_mut()
                && *last.reason == *reason
                && *last.message == *message
            {
                last.at = at;
                last.count = last.count.saturating_add(1);
                return;
            }
            if errors.len() >= MAX_ERRORS {
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

    /// Records whether an object is Ready. Its conditions are parsed once per version.
    pub fn observe_status(&self, key: &ObjectRef, object: &KubeObject) {
        let known = self.update_entry(key, |entry| entry.version == object.resource_version);
        if !known {
            let ready = object.readiness().ready;
            let now = self.elapsed_micros();
            self.update_entry(key, |entry| {
                entry.version = object.resource_version;
                entry.ready = ready;
                if ready && entry.ready_after.is_none() {
                    entry.ready_after = NonZero::new(now.saturating_sub(entry.seen).max(1));
                }
            });
        }
    }

    /// Removes the entry of an object that is gone.
    pub fn forget(&self, key: &ObjectRef) {
        self.objects.lock().remove(key);
    }

    /// Removes the entries of a kind that nothing reconciles any more.
    pub fn forget_kind(&self, gvk: &Gvk) {
        let mut objects = self.objects.lock();
        objects.by_key.retain(|key, _| key.gvk != *gvk);
        objects.counts.remove(gvk);
    }

    /// Statistics of all objects, in order of kind, namespace and name.
    pub fn all_objects(&self) -> Vec<ObjectStats> {
        self.keys().iter().filter_map(|key| self.object(key)).collect()
    }

    /// Statistics of one object.
    pub fn object(&self, key: &ObjectRef) -> Option<ObjectStats> {
        // The object is parsed before the lock is taken, which reconciles need.
        let object = self.store.get(key, Projection::Full);
        self.describe(key, object.as_deref())
    }

    /// Statistics of an object that was read from the store; none if it was not there.
    pub fn describe(&self, key: &ObjectRef, object: Option<&KubeObject>) -> Option<ObjectStats> {
        let readiness = object.map(KubeObject::readiness).unwrap_or_default();
        let objects = self.objects.lock();
        objects
            .by_key
            .get(key)
            .map(|entry| describe_object(key, entry, readiness))
    }

    /// The keys of all objects, in order of kind, namespace and name.
    pub fn keys(&self) -> Vec<ObjectRef> {
        let mut keys: Vec<_> = {
            let objects = self.objects.lock();
            objects.by_key.keys().cloned().collect()
        };
        keys.sort();
        keys
    }

    /// Number of objects of each kind.
    pub fn count_by_kind(&self) -> BTreeMap<Gvk, ObjectCounts> {
        self.objects.lock().counts.clone()
    }

    /// Statistics of objects that are not Ready, sorted, up to a limit.
    pub fn list_not_ready(&self, limit: usize) -> Vec<ObjectStats> {
        let mut keys: Vec<_> = {
            let objects = self.objects.lock();
            let not_ready = objects.by_key.iter().filter(|(_, entry)| !entry.ready);
            not_ready.map(|(key, _)| key.clone()).collect()
        };
        keys.sort();
        keys.iter()
            .take(limit)
            .filter_map(|key| self.object(key))
            .collect()
    }

    /// The last error of each object, newest first, up to a limit.
    pub fn list_errors(&self, limit: usize) -> Vec<(ObjectRef, RecordedError)> {
        let objects = self.objects.lock();
        let mut last: Vec<_> = objects
            .by_key
            .iter()
            .filter_map(|(key, entry)| Some((key, entry.errors.as_ref()?.back()?)))
            .collect();
        last.sort_by(|a, b| b.1.at.cmp(&a.1.at).then_with(|| a.0.cmp(b.0)));
        last.truncate(limit);
        last.into_iter()
            .map(|(key, kept)| (key.clone(), kept.describe()))
            .collect()
    }

    fn update_entry<T>(&self, key: &ObjectRef, change: impl FnOnce(&mut Entry) -> T) -> T {
        let mut objects = self.objects.lock();
        objects.update(key, || self.elapsed_micros(), change)
    }

    /// Microseconds since the creation of the statistics.
    fn elapsed_micros(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

fn describe_object(key: &ObjectRef, entry: &Entry, readiness: Readiness) -> ObjectStats {
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
            .map(LoggedError::describe)
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
    fn describe(&self) -> RecordedError {
        RecordedError {
            at: crate::kube::time::format_rfc3339(self.at),
            reason: self.reason.to_string(),
            message: self.message.to_string(),
            count: self.count,
        }
    }
}

fn to_micros(took: Duration) -> u32 {
    u32::try_from(took.as_micros()).unwrap_or(u32::MAX)
}

fn truncate_message(message: &str) -> &str {
    let mut end = message.len().min(MAX_MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cache::store::VersionSource, kube::scope::NamespaceScope};

    fn object(version: u64, ready: &str) -> (ObjectRef, KubeObject) {
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"{version}"}},
            "status":{{"conditions":[{{"type":"Ready","status":"{ready}","reason":"R","message":"m"}}]}}}}"#
        );
        KubeObject::parse(&Gvk::new("g", "v1", "Thing"), json.as_bytes()).expect("an object")
    }

    #[test]
    fn counts_follow_each_change_of_an_object() {
        let store = Arc::new(Store::default());
        let stats = ReconcileStats::new(store.clone());
        let (key, first) = object(1, "False");
        store.open_collection(&NamespaceScope::default().object_scope(&key, Projection::Full));
        let observe = |object: KubeObject| {
            store.put(&key, object, Projection::Full, VersionSource::Watch);
            stats.observe_change(&key, store.get(&key, Projection::Full).as_deref());
            stats.count_by_kind()[&key.gvk]
        };
        assert_eq!(observe(first), ObjectCounts { total: 1, ready: 0 });
        stats.begin_reconcile(&key, &"p".into(), "digest");
        assert_eq!(stats.list_not_ready(10).len(), 1);
        // Another writer's status counts at once as well.
        for (version, status, ready) in [(2, "True", 1), (3, "True", 1), (4, "False", 0), (5, "True", 1)] {
            assert_eq!(
                observe(object(version, status).1),
                ObjectCounts { total: 1, ready }
            );
        }
        let facts = stats.object(&key).expect("facts");
        assert!(facts.ready && facts.ready_ms.is_some());
        assert_eq!((&*facts.plugin, &*facts.plugin_digest), ("p", "digest"));
        stats.observe_change(&key, None);
        assert_eq!(
            stats.count_by_kind()[&key.gvk],
            ObjectCounts { total: 1, ready: 0 }
        );
        stats.forget(&key);
        stats.observe_change(&key, None);
        assert!(stats.count_by_kind().is_empty() && stats.keys().is_empty());
    }

    #[test]
    fn errors_are_limited_and_repetitions_counted() {
        let stats = ReconcileStats::new(Arc::default());
        let key = object(1, "False").0;
        for i in 0..MAX_ERRORS + 2 {
            for _ in 0..=i {
                stats.record_error(&key, "Failed", &format!("attempt {i}"));
            }
        }
        let errors = stats.object(&key).expect("facts").errors;
        assert_eq!(errors.len(), MAX_ERRORS);
        let last = errors.last().expect("the newest");
        assert_eq!((&*last.message, last.count), ("attempt 6", 7));
        assert_eq!(stats.list_errors(10)[0].1, *last);
    }

    #[test]
    fn entry_fits_in_80_bytes() {
        assert!(size_of::<Entry>() <= 80, "{} bytes", size_of::<Entry>());
    }
}
