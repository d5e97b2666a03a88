//! What happened to each object, counted: for `/objects`, `ostler status` and tests.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{key::ObjectRef, object::Readiness};

/// Counts of one reconcile, added to those of its object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes sent to the API server, events included.
    pub api_writes: u64,
    /// Requests to upstreams that only read (GET, HEAD).
    pub upstream_reads: u64,
    /// All other requests to upstreams; log-ins are the host's own and not counted.
    pub upstream_writes: u64,
}

/// One object's facts.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
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
    #[serde(skip)]
    seen: Instant,
    #[serde(skip)]
    running: bool,
}

/// The facts of all objects.
#[derive(Default)]
pub struct Ledger {
    objects: Mutex<HashMap<ObjectRef, Facts>>,
    /// Duration of the last reconciles, in microseconds: the guest's call and all of it.
    overhead: Mutex<Vec<(u64, u64)>>,
}

/// Durations kept for percentiles.
const SAMPLES: usize = 100_000;

impl Ledger {
    /// The host sees an object: its time to Ready counts from here.
    pub fn seen(&self, key: &ObjectRef) {
        self.with(key, |_| {});
    }

    /// A reconcile begins.
    pub fn reconciled(&self, key: &ObjectRef, plugin: &str, digest: &str) {
        self.with(key, |facts| {
            facts.reconciles += 1;
            facts.overlaps += u64::from(facts.running);
            facts.running = true;
            plugin.clone_into(&mut facts.plugin);
            digest.clone_into(&mut facts.plugin_digest);
        });
    }

    /// A reconcile has ended.
    pub fn ended(&self, key: &ObjectRef, failed: bool) {
        self.with(key, |facts| {
            facts.failures += u64::from(failed);
            facts.running = false;
        });
    }

    /// What a reconcile cost.
    pub fn count(&self, key: &ObjectRef, counts: Counts) {
        self.with(key, |facts| {
            facts.api_writes += counts.api_writes;
            facts.upstream_reads += counts.upstream_reads;
            facts.upstream_writes += counts.upstream_writes;
        });
    }

    /// What the object says of itself now.
    pub fn readiness(&self, key: &ObjectRef, readiness: Readiness) {
        self.with(key, |facts| {
            if readiness.ready && facts.ready_ms.is_none() {
                facts.ready_ms = Some(facts.seen.elapsed().as_micros() as f64 / 1000.0);
            }
            facts.ready = readiness.ready;
            facts.reason = readiness.reason;
            facts.message = readiness.message;
        });
    }

    /// The object is gone.
    pub fn forget(&self, key: &ObjectRef) {
        self.objects.lock().expect("lock").remove(key);
    }

    /// How long a reconcile took: the component's call, and everything.
    pub fn took(&self, call: Duration, whole: Duration) {
        let mut samples = self.overhead.lock().expect("lock");
        if samples.len() < SAMPLES {
            samples.push((call.as_micros() as u64, whole.as_micros() as u64));
        }
    }

    /// (call, whole) durations in microseconds of the first reconciles, without the very first `after`.
    pub fn durations(&self, after: usize) -> Vec<(u64, u64)> {
        let samples = self.overhead.lock().expect("lock");
        samples.get(after..).unwrap_or_default().to_vec()
    }

    /// The facts of all objects, in order of kind, namespace and name.
    pub fn all(&self) -> Vec<Facts> {
        let objects = self.objects.lock().expect("lock");
        let mut all: Vec<_> = objects.iter().collect();
        all.sort_by(|a, b| a.0.cmp(b.0));
        all.into_iter().map(|(_, facts)| facts.clone()).collect()
    }

    /// The facts of one object.
    pub fn of(&self, key: &ObjectRef) -> Option<Facts> {
        self.objects.lock().expect("lock").get(key).cloned()
    }

    fn with(&self, key: &ObjectRef, change: impl FnOnce(&mut Facts)) {
        let mut objects = self.objects.lock().expect("lock");
        let facts = objects.entry(key.clone()).or_insert_with(|| Facts {
            kind: key.gvk.kind.to_string(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            ready: false,
            reason: String::new(),
            message: String::new(),
            ready_ms: None,
            reconciles: 0,
            failures: 0,
            overlaps: 0,
            api_writes: 0,
            upstream_reads: 0,
            upstream_writes: 0,
            plugin: String::new(),
            plugin_digest: String::new(),
            seen: Instant::now(),
            running: false,
        });
        change(facts);
    }
}
