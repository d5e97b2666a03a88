//! `metrics`: counters and gauges of a plugin.

use super::Call;
use crate::{contract::bindings::metrics::Host, observe::metrics::HostCall};

impl Host for Call {
    async fn counter(&mut self, name: String, delta: u64) {
        if self.enter(HostCall::MetricsCounter).is_ok()
            && let Some(metrics) = &self.metrics
        {
            metrics.add_own(&name, delta, self.terms.limits.metric_series);
        }
    }

    async fn gauge(&mut self, name: String, value: f64) {
        if self.enter(HostCall::MetricsGauge).is_ok()
            && let Some(metrics) = &self.metrics
        {
            metrics.set_own(&name, value, self.terms.limits.metric_series);
        }
    }
}
