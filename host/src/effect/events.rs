//! Kubernetes Events: repetitions are counted and not written again, and the number of Events per object is limited.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    contract::limits::Limit,
    effect::writer::ApiWriter,
    kube::{key::ObjectRef, object::KubeObject, uid::Uid},
    observe::metrics::PluginMetrics,
};

/// Interval within which a repeated event is only counted.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// Burst of events about one object by one plugin, as in client-go.
const OBJECT_BURST: u32 = 25;
/// Interval at which one more event about the object is allowed.
const OBJECT_REFILL_INTERVAL: Duration = Duration::from_secs(300);
/// Period of the rate limit of a plugin.
const PLUGIN_RATE_PERIOD: Duration = Duration::from_secs(60);
/// Maximum length of a reason at the API server, in characters.
const MAX_REASON_CHARS: usize = 128;
/// Maximum length of a note, in characters.
const MAX_NOTE_CHARS: usize = 1000;
/// Maximum number of distinct events, and of objects with events, that are remembered.
const MAX_REMEMBERED: usize = 4096;

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Something worth knowing happened.
    Normal,
    /// Something went wrong.
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The content of an Event to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct EventDraft<'a> {
    /// Name of the plugin or component that reports it.
    pub component: &'a str,
    /// Type.
    pub event_type: EventType,
    /// Machine-readable reason in CamelCase.
    pub reason: &'a str,
    /// Human-readable text.
    pub note: &'a str,
}

/// The rate limit of the Events that a plugin emits.
#[derive(Clone, Copy)]
pub struct RateLimit<'a> {
    /// Maximum number of Events per minute.
    pub per_minute: u32,
    /// Metrics that count exceeded limits.
    pub metrics: Option<&'a PluginMetrics>,
}

/// Records Events.
pub struct EventRecorder {
    started: Instant,
    correlator: Mutex<Correlator>,
    rate_limited: AtomicU64,
    refused: AtomicU64,
}

impl Default for EventRecorder {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            correlator: Mutex::default(),
            rate_limited: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

/// The `involvedObject` of an Event.
fn build_reference(key: &ObjectRef, object: &KubeObject) -> Value {
    json!({
        "apiVersion": key.gvk.api_version(),
        "kind": &*key.gvk.kind,
        "namespace": &*key.namespace,
        "name": &*key.name,
        "uid": object.uid,
        "resourceVersion": object.resource_version.to_string(),
    })
}

impl EventRecorder {
    /// Records an Event about an object and returns true if it was sent. An Event is not state, so a failure is
    /// logged and the Event dropped. `limit` applies to what a plugin emits, not to the host's own Events.
    pub async fn record(
        &self,
        writer: &ApiWriter,
        key: &ObjectRef,
        object: &KubeObject,
        draft: EventDraft<'_>,
        limit: Option<RateLimit<'_>>,
    ) -> bool {
        let component = draft.component;
        let kind = draft.event_type.as_str();
        let note: String = draft.note.chars().take(MAX_NOTE_CHARS).collect();
        let reason: String = draft.reason.chars().take(MAX_REASON_CHARS).collect();
        let reason = &*reason;
        let source = EventSource {
            uid: object.uid.clone(),
            plugin: component.into(),
        };
        let content = EventContent {
            event_type: draft.event_type,
            reason: reason.into(),
            note: note.as_str().into(),
        };
        let verdict = self.correlator.lock().observe(
            source,
            content,
            limit.map(|limit| limit.per_minute),
            self.started.elapsed(),
        );
        let (id, count) = match verdict {
            Verdict::Write { id, count } => (id, count),
            Verdict::Repeated => return false,
            Verdict::PluginLimited => {
                self.rate_limited.fetch_add(1, Ordering::Relaxed);
                if let Some(metrics) = limit.and_then(|limit| limit.metrics) {
                    metrics.record_exceeded(Limit::EventsPerMinute);
                }
                return false;
            }
            Verdict::ObjectLimited => {
                self.rate_limited.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(object = %key, plugin = component, kind, reason, "event dropped, rate limit of this object exceeded: {note}");
                return false;
            }
        };
        tracing::info!(object = %key, plugin = component, kind, reason, note, "event");
        let namespace = if key.namespace.is_empty() {
            "default"
        } else {
            &key.namespace
        };
        // Names of roles and bindings may have a colon, those of Events may not.
        let name = format!("{}.{id:x}", key.name.replace(':', "-").to_ascii_lowercase());
        let now = crate::kube::time::now_rfc3339();
        let sent = if count > 1 {
            let patch = json!({"count": count, "lastTimestamp": now});
            writer.bump_event(namespace, &name, &patch).await
        } else {
            let event = json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": build_reference(key, object),
                "type": kind,
                "reason": reason,
                "message": note,
                "source": {"component": component},
                "reportingComponent": format!("ostler.dev/{component}"),
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            });
            writer.create_event(namespace, &event).await.map(drop)
        };
        if let Err(e) = &sent {
            self.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(object = %key, plugin = component, reason, error = %e, "writing event failed");
        }
        sent.is_ok()
    }

    /// Number of dropped Events, by cause.
    pub fn dropped(&self) -> [(&'static str, u64); 2] {
        [
            ("rate_limited", self.rate_limited.load(Ordering::Relaxed)),
            ("refused", self.refused.load(Ordering::Relaxed)),
        ]
    }
}

/// The object that an Event is about, and the plugin that reports it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventSource {
    uid: Uid,
    plugin: Box<str>,
}

/// The part of an Event that makes it a repetition of an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventContent {
    event_type: EventType,
    reason: Box<str>,
    note: Box<str>,
}

/// The decision about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Write it: a new one if `count` is 1, otherwise the new count of an earlier one.
    Write {
        /// Distinguishes it from other events about the same object.
        id: u64,
        /// Number of times it was observed.
        count: u64,
    },
    /// The same event was written within [`REPEAT_INTERVAL`].
    Repeated,
    /// The limit of the object is exceeded.
    ObjectLimited,
    /// The rate limit of the plugin is exceeded.
    PluginLimited,
}

/// Decides about events. Pure: time comes in with each call.
#[derive(Default)]
struct Correlator {
    known: HashMap<(EventSource, EventContent), KnownEvent>,
    objects: HashMap<EventSource, TokenBucket>,
    plugins: HashMap<Box<str>, TokenBucket>,
}

struct KnownEvent {
    id: u64,
    count: u64,
    /// Time of the last write; none if it was never written.
    written_at: Option<Duration>,
    last_observed: Duration,
}

/// A token bucket, represented by the time at which it will be full again.
struct TokenBucket {
    full_at: Duration,
}

impl TokenBucket {
    /// Takes a token if there is one.
    fn take_token(&mut self, now: Duration, refill: Duration, burst: u32) -> bool {
        let available = self.has_token(now, refill, burst);
        if available {
            self.full_at = self.full_at.max(now) + refill;
        }
        available
    }

    fn has_token(&self, now: Duration, refill: Duration, burst: u32) -> bool {
        self.full_at.max(now) + refill - now <= refill * burst
    }
}

impl Correlator {
    /// Decides about an event; `per_minute` is the rate limit of the plugin.
    fn observe(
        &mut self,
        source: EventSource,
        content: EventContent,
        per_minute: Option<u32>,
        now: Duration,
    ) -> Verdict {
        evict_older_half(&mut self.known, |k| k.last_observed);
        evict_older_half(&mut self.objects, |b| b.full_at);
        evict_older_half(&mut self.plugins, |b| b.full_at);
        let plugin = source.plugin.clone();
        let known = self
            .known
            .entry((source.clone(), content))
            .or_insert_with(|| KnownEvent {
                id: crate::kube::time::unique_id(),
                count: 0,
                written_at: None,
                last_observed: now,
            });
        known.last_observed = now;
        if known.written_at.is_some_and(|at| now - at < REPEAT_INTERVAL) {
            known.count += 1;
            return Verdict::Repeated;
        }
        let of_plugin = self.plugins.entry(plugin).or_insert(TokenBucket { full_at: now });
        let plugin_rate = per_minute.map(|rate| (PLUGIN_RATE_PERIOD / rate.max(1), rate));
        if let Some((refill, burst)) = plugin_rate
            && !of_plugin.has_token(now, refill, burst)
        {
            known.count += u64::from(known.written_at.is_some());
            return Verdict::PluginLimited;
        }
        let of_object = self.objects.entry(source).or_insert(TokenBucket { full_at: now });
        if !of_object.take_token(now, OBJECT_REFILL_INTERVAL, OBJECT_BURST) {
            // An event that was never written is counted from its first write.
            known.count += u64::from(known.written_at.is_some());
            return Verdict::ObjectLimited;
        }
        if let Some((refill, burst)) = plugin_rate {
            of_plugin.take_token(now, refill, burst);
        }
        known.count += 1;
        known.written_at = Some(now);
        Verdict::Write {
            id: known.id,
            count: known.count,
        }
    }
}

/// Removes the older half of the entries once there are [`MAX_REMEMBERED`].
fn evict_older_half<K: Eq + Hash, V>(map: &mut HashMap<K, V>, age: impl Fn(&V) -> Duration) {
    if map.len() < MAX_REMEMBERED {
        return;
    }
    let mut ages: Vec<_> = map.values().map(&age).collect();
    let middle = ages.len() / 2;
    let (_, median, _) = ages.select_nth_unstable(middle);
    let median = *median;
    let mut left = middle;
    map.retain(|_, value| {
        // Of many entries with the median age, only as many are kept as belong to the younger half.
        let keep = age(value) >= median && left > 0;
        left -= usize::from(keep);
        keep
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn observe(correlator: &mut Correlator, object: u8, note: u8, now: Duration) -> Verdict {
        correlator.observe(source(object, "p"), content(note), None, now)
    }

    fn source(object: impl ToString, plugin: &str) -> EventSource {
        EventSource {
            uid: Uid::from(&*object.to_string()),
            plugin: plugin.into(),
        }
    }

    fn content(note: impl ToString) -> EventContent {
        EventContent {
            event_type: EventType::Normal,
            reason: "R".into(),
            note: note.to_string().into(),
        }
    }

    #[test]
    fn repeated_event_is_counted_and_written_again_after_the_interval() {
        let mut c = Correlator::default();
        let Verdict::Write { id, count: 1 } = observe(&mut c, 0, 0, SECOND) else {
            panic!("the first is written")
        };
        for i in 2..10 {
            assert_eq!(observe(&mut c, 0, 0, i * SECOND), Verdict::Repeated);
        }
        assert_eq!(
            observe(&mut c, 0, 0, SECOND + REPEAT_INTERVAL),
            Verdict::Write { id, count: 10 }
        );
    }

    #[test]
    fn object_over_its_burst_leaves_other_objects_their_events() {
        let mut c = Correlator::default();
        let written = |c: &mut Correlator, object, now| {
            (0..100)
                .filter(|n| matches!(observe(c, object, *n, now), Verdict::Write { .. }))
                .count()
        };
        assert_eq!(written(&mut c, 0, SECOND), 25);
        assert_eq!(written(&mut c, 1, SECOND), 25);
        let refilled = SECOND + OBJECT_REFILL_INTERVAL;
        assert_eq!(written(&mut c, 0, refilled - Duration::from_millis(1)), 0);
        assert_eq!(written(&mut c, 0, refilled), 1);
    }

    #[test]
    fn plugin_over_its_rate_leaves_other_plugins_their_events() {
        let mut c = Correlator::default();
        let written = |c: &mut Correlator, plugin: &str, now| {
            let emit = |object: &u32| {
                let verdict = c.observe(source(object, plugin), content(format!("{now:?}")), Some(60), now);
                matches!(verdict, Verdict::Write { .. })
            };
            (0..100).filter(emit).count()
        };
        assert_eq!(written(&mut c, "a", SECOND), 60);
        assert_eq!(written(&mut c, "b", SECOND), 60);
        assert_eq!(written(&mut c, "a", 4 * SECOND), 3, "one in a second");
    }

    #[test]
    fn correlator_memory_is_bounded() {
        let mut c = Correlator::default();
        for i in 0..3 * MAX_REMEMBERED {
            c.observe(source(i, "p"), content("n"), None, SECOND);
        }
        assert!(c.known.len() <= MAX_REMEMBERED && c.objects.len() <= MAX_REMEMBERED);
        assert!(c.known.len() >= MAX_REMEMBERED / 2 - 1);
    }

    proptest! {
        /// In no span of time are more events written about one object than the burst and the refill, and none is
        /// dropped while there are tokens.
        #[test]
        fn object_limit_behaves_as_a_token_bucket(steps in prop::collection::vec((0..3u8, any::<u8>(), 0..200u64), 0..400)) {
            let mut c = Correlator::default();
            let mut now = Duration::ZERO;
            let mut tokens = [f64::from(OBJECT_BURST); 3];
            for (object, note, wait) in steps {
                let waited = Duration::from_secs(wait);
                now += waited;
                for t in &mut tokens {
                    *t = (*t + waited.as_secs_f64() / OBJECT_REFILL_INTERVAL.as_secs_f64()).min(f64::from(OBJECT_BURST));
                }
                let tokens = &mut tokens[usize::from(object)];
                match observe(&mut c, object, note, now) {
                    Verdict::Write { .. } => {
                        *tokens -= 1.0;
                        prop_assert!(*tokens > -1e-6, "written without a token");
                    }
                    Verdict::ObjectLimited => prop_assert!(*tokens < 1.0 + 1e-6, "held back with {tokens} tokens"),
                    Verdict::Repeated => {}
                    Verdict::PluginLimited => prop_assert!(false, "no rate was given"),
                }
            }
        }
    }
}
