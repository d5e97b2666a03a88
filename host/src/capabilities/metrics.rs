//! `metrics`: counters and gauges of a plugin.

use super::Call;
use crate::bindings::metrics::Host;

/// Series one host keeps: a plugin that makes up names must not fill the memory.
const SERIES: usize = 10_000;

impl Call {
    fn metric(&mut self, name: String, change: impl FnOnce(&mut f64)) {
        let Ok((_, services)) = self.enter() else { return };
        let mut letters = name.bytes();
        let valid = letters.next().is_some_and(|b| b.is_ascii_lowercase())
            && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        let mut metrics = services.metrics.lock().expect("lock");
        let key = (self.terms.plugin.clone(), name);
        if valid && (metrics.len() < SERIES || metrics.contains_key(&key)) {
            change(metrics.entry(key).or_default());
        }
    }
}

impl Host for Call {
    async fn counter(&mut self, name: String, delta: u64) {
        self.metric(name, |value| *value += delta as f64);
    }

    async fn gauge(&mut self, name: String, value: f64) {
        self.metric(name, |old| *old = value);
    }
}
