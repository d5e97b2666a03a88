//! Kubernetes Events: the same one again is counted, not repeated, and one object does not have too many.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    contract::limits::Limit,
    effect::writer::Effects,
    kube::{key::ObjectRef, object::Object},
    observe::metrics::PluginMetrics,
};

/// The same event within this time is only counted.
const QUIET: Duration = Duration::from_secs(60);
/// Events about one object by one plugin that may be written at once, as in client-go.
const BURST: u32 = 25;
/// After this long one more may be.
const REFILL: Duration = Duration::from_secs(300);
const MINUTE: Duration = Duration::from_secs(60);
/// The API server takes no longer reason.
const REASON: usize = 128;
/// Distinct events, and objects with events, that are remembered.
const REMEMBERED: usize = 4096;

/// Writes Events.
pub struct Recorder {
    started: Instant,
    correlator: Mutex<Correlator>,
    limited: AtomicU64,
    refused: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            correlator: Mutex::default(),
            limited: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

impl Recorder {
    /// Records an event about an object; gives whether something was sent. A failure is logged and the
    /// event dropped: an Event is news, not state. What a plugin emits has a rate, so many in a minute.
    #[allow(clippy::too_many_arguments)]
    pub async fn record(
        &self,
        effects: &Effects,
        component: &str,
        key: &ObjectRef,
        object: &Object,
        warning: bool,
        reason: &str,
        note: &str,
        rate: Option<(u32, Option<&PluginMetrics>)>,
    ) -> bool {
        let kind = if warning { "Warning" } else { "Normal" };
        let note: String = note.chars().take(1000).collect();
        let reason: String = reason.chars().take(REASON).collect();
        let reason = &*reason;
        let subject = (object.uid.clone(), component.into());
        let news = (warning, reason.into(), note.as_str().into());
        let verdict = self.correlator.lock().expect("lock").observe(
            subject,
            news,
            rate.map(|(rate, _)| rate),
            self.started.elapsed(),
        );
        let (id, count) = match verdict {
            Verdict::Write { id, count } => (id, count),
            Verdict::Quiet => return false,
            Verdict::TooFast => {
                self.limited.fetch_add(1, Ordering::Relaxed);
                if let Some(metrics) = rate.and_then(|(_, metrics)| metrics) {
                    metrics.exceeded(Limit::EventsPerMinute);
                }
                return false;
            }
            Verdict::Limited => {
                self.limited.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(object = %key, plugin = component, kind, reason, note, "event rate limit exceeded, dropping event");
                return false;
            }
        };
        tracing::info!(object = %key, plugin = component, kind, reason, note, "event");
        let namespace = if key.namespace.is_empty() {
            "default"
        } else {
            &key.namespace
        };
        let name = format!("{}.{id:x}", key.name);
        let now = crate::kube::time::now_rfc3339();
        let sent = if count > 1 {
            let patch = json!({"count": count, "lastTimestamp": now});
            effects.event_again(namespace, &name, &patch).await
        } else {
            let event = json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "apiVersion": key.gvk.api_version(),
                    "kind": &*key.gvk.kind,
                    "namespace": &*key.namespace,
                    "name": &*key.name,
                    "uid": &*object.uid,
                    "resourceVersion": object.resource_version.to_string(),
                },
                "type": kind,
                "reason": reason,
                "message": note,
                "source": {"component": component},
                "reportingComponent": format!("ostler.dev/{component}"),
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            });
            effects.event(namespace, &event).await.map(drop)
        };
        if let Err(e) = &sent {
            self.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(object = %key, plugin = component, reason, error = %e, "writing event failed");
        }
        sent.is_ok()
    }

    /// Events dropped so far, by why.
    pub fn dropped(&self) -> [(&'static str, u64); 2] {
        [
            ("rate_limited", self.limited.load(Ordering::Relaxed)),
            ("refused", self.refused.load(Ordering::Relaxed)),
        ]
    }
}

/// About what, and by whom: the object's uid and the plugin.
type Subject = (Box<str>, Box<str>);
/// What: warning or not, reason and note.
type News = (bool, Box<str>, Box<str>);

/// What is to be done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Write it: a new one, or, if it was seen before, so many times by now.
    Write {
        /// Tells it from others about the same object.
        id: u64,
        /// How often it was seen.
        count: u64,
    },
    /// It was written a moment ago.
    Quiet,
    /// Too many about this object.
    Limited,
    /// Too many of this plugin.
    TooFast,
}

/// Decides about events. Pure: time comes in with each.
#[derive(Default)]
struct Correlator {
    known: HashMap<(Subject, News), Known>,
    buckets: HashMap<Subject, Bucket>,
    plugins: HashMap<Box<str>, Bucket>,
}

struct Known {
    id: u64,
    count: u64,
    /// When it was written; none when it was not.
    written: Option<Duration>,
    seen: Duration,
}

/// A token bucket in one number: when it will be full again.
struct Bucket {
    full_at: Duration,
}

impl Bucket {
    /// Takes a token, if there is one.
    fn take(&mut self, now: Duration, refill: Duration, burst: u32) -> bool {
        let has = self.has(now, refill, burst);
        if has {
            self.full_at = self.full_at.max(now) + refill;
        }
        has
    }

    fn has(&self, now: Duration, refill: Duration, burst: u32) -> bool {
        self.full_at.max(now) + refill - now <= refill * burst
    }
}

impl Correlator {
    /// `rate` is how many of a plugin may be written in a minute.
    fn observe(&mut self, subject: Subject, news: News, rate: Option<u32>, now: Duration) -> Verdict {
        bound(&mut self.known, |k| k.seen);
        bound(&mut self.buckets, |b| b.full_at);
        bound(&mut self.plugins, |b| b.full_at);
        let plugin = subject.1.clone();
        let known = self
            .known
            .entry((subject.clone(), news))
            .or_insert_with(|| Known {
                id: crate::kube::time::unique(),
                count: 0,
                written: None,
                seen: now,
            });
        known.seen = now;
        if known.written.is_some_and(|at| now - at < QUIET) {
            known.count += 1;
            return Verdict::Quiet;
        }
        let all = self.plugins.entry(plugin).or_insert(Bucket { full_at: now });
        let pace = rate.map(|rate| (MINUTE / rate.max(1), rate));
        if let Some((refill, burst)) = pace
            && !all.has(now, refill, burst)
        {
            known.count += u64::from(known.written.is_some());
            return Verdict::TooFast;
        }
        let bucket = self.buckets.entry(subject).or_insert(Bucket { full_at: now });
        if !bucket.take(now, REFILL, BURST) {
            // One that was never written is counted from when it is.
            known.count += u64::from(known.written.is_some());
            return Verdict::Limited;
        }
        if let Some((refill, burst)) = pace {
            all.take(now, refill, burst);
        }
        known.count += 1;
        known.written = Some(now);
        Verdict::Write {
            id: known.id,
            count: known.count,
        }
    }
}

/// Forgets the older half when there is too much to remember.
fn bound<K: Eq + Hash, V>(map: &mut HashMap<K, V>, age: impl Fn(&V) -> Duration) {
    if map.len() < REMEMBERED {
        return;
    }
    let mut ages: Vec<_> = map.values().map(&age).collect();
    let middle = ages.len() / 2;
    let (_, median, _) = ages.select_nth_unstable(middle);
    let median = *median;
    let mut left = middle;
    map.retain(|_, value| {
        // Where many are of one age, as many go as must.
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
        let subject = (object.to_string().into(), "p".into());
        correlator.observe(subject, (false, "R".into(), note.to_string().into()), None, now)
    }

    #[test]
    fn the_same_again_is_counted_and_written_after_a_while() {
        let mut c = Correlator::default();
        let Verdict::Write { id, count: 1 } = observe(&mut c, 0, 0, SECOND) else {
            panic!("the first is written")
        };
        for i in 2..10 {
            assert_eq!(observe(&mut c, 0, 0, i * SECOND), Verdict::Quiet);
        }
        assert_eq!(
            observe(&mut c, 0, 0, SECOND + QUIET),
            Verdict::Write { id, count: 10 }
        );
    }

    #[test]
    fn one_object_that_talks_too_much_does_not_silence_another() {
        let mut c = Correlator::default();
        let written = |c: &mut Correlator, object, now| {
            (0..100)
                .filter(|n| matches!(observe(c, object, *n, now), Verdict::Write { .. }))
                .count()
        };
        assert_eq!(written(&mut c, 0, SECOND), 25);
        assert_eq!(written(&mut c, 1, SECOND), 25);
        assert_eq!(written(&mut c, 0, SECOND + REFILL - Duration::from_millis(1)), 0);
        assert_eq!(written(&mut c, 0, SECOND + REFILL), 1);
    }

    #[test]
    fn one_plugin_that_talks_too_much_does_not_silence_another() {
        let mut c = Correlator::default();
        let written = |c: &mut Correlator, plugin: &str, now| {
            let emit = |object: &u32| {
                let subject = (object.to_string().into(), plugin.into());
                let news = (false, "R".into(), format!("{now:?}").into());
                matches!(c.observe(subject, news, Some(60), now), Verdict::Write { .. })
            };
            (0..100).filter(emit).count()
        };
        assert_eq!(written(&mut c, "a", SECOND), 60);
        assert_eq!(written(&mut c, "b", SECOND), 60);
        assert_eq!(written(&mut c, "a", 4 * SECOND), 3, "one in a second");
    }

    #[test]
    fn memory_is_bounded() {
        let mut c = Correlator::default();
        for i in 0..3 * REMEMBERED {
            let subject = (i.to_string().into(), "p".into());
            c.observe(subject, (false, "R".into(), "n".into()), None, SECOND);
        }
        assert!(c.known.len() <= REMEMBERED && c.buckets.len() <= REMEMBERED);
        assert!(c.known.len() >= REMEMBERED / 2 - 1);
    }

    proptest! {
        /// However events come: in no span of time are more written about one object than the burst and what was
        /// refilled, and none is held back while there is room.
        #[test]
        fn a_token_bucket_per_object(steps in prop::collection::vec((0..3u8, any::<u8>(), 0..200u64), 0..400)) {
            let mut c = Correlator::default();
            let mut now = Duration::ZERO;
            let mut tokens = [f64::from(BURST); 3];
            for (object, note, wait) in steps {
                let waited = Duration::from_secs(wait);
                now += waited;
                for t in &mut tokens {
                    *t = (*t + waited.as_secs_f64() / REFILL.as_secs_f64()).min(f64::from(BURST));
                }
                let tokens = &mut tokens[usize::from(object)];
                match observe(&mut c, object, note, now) {
                    Verdict::Write { .. } => {
                        *tokens -= 1.0;
                        prop_assert!(*tokens > -1e-6, "written without a token");
                    }
                    Verdict::Limited => prop_assert!(*tokens < 1.0 + 1e-6, "held back with {tokens} tokens"),
                    Verdict::Quiet => {}
                    Verdict::TooFast => prop_assert!(false, "no rate was given"),
                }
            }
        }
    }
}
