//! `metrics`: counters and gauges of a plugin.

use super::PluginCall;
use crate::{contract::bindings::metrics::Host, observe::metrics::HostCall};

impl Host for PluginCall {
    async fn counter(&mut self, name: String, delta: u64) {
        if self.begin_host_call(HostCall::MetricsCounter).is_ok()
            && let Some(metrics) = &self.context.metrics
        {
            metrics.add_own(&name, delta, self.limits().metric_series);
        }
    }

    async fn gauge(&mut self, name: String, value: f64) {
        if self.begin_host_call(HostCall::MetricsGauge).is_ok()
            && let Some(metrics) = &self.context.metrics
        {
            metrics.set_own(&name, value, self.limits().metric_series);
        }
    }
}
