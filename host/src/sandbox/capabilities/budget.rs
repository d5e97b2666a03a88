//! The budget of a call: its use of the limits that count over all host calls of a reconcile.

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::{Duration, Instant},
};

use crate::contract::limits::{Limit, PluginLimits};

/// Use of the limits by one call. Counting is separate from reporting, so that it needs no services.
pub struct Budget {
    started: Instant,
    host_calls: u32,
    bytes: TransferredBytes,
    listed_objects: usize,
    /// Log lines written; shared with the streams that the component prints to.
    log_lines: Arc<AtomicU32>,
    /// Largest linear memory of the instances, in bytes. The engine sets it after the call.
    pub memory: usize,
    /// CPU time of the component. The engine sets it after the call.
    pub cpu_time: Duration,
}

/// Bytes that a component and the host have exchanged in host calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferredBytes {
    /// Bytes that the component has passed to the host.
    pub to_host: usize,
    /// Bytes that the host has returned to the component.
    pub from_host: usize,
}

/// A limit that a host call would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// The limit.
    pub limit: Limit,
    /// The limited resource, in the plural: `objects listed in one reconcile`.
    pub resource: &'static str,
}

/// Returns an error if the use of a limit is larger than the limit.
fn check_limit(used: usize, max: usize, limit: Limit, resource: &'static str) -> Result<(), Exceeded> {
    if used > max {
        Err(Exceeded { limit, resource })
    } else {
        Ok(())
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            host_calls: 0,
            bytes: TransferredBytes::default(),
            listed_objects: 0,
            log_lines: Arc::default(),
            memory: 0,
            cpu_time: Duration::ZERO,
        }
    }
}

impl Budget {
    /// Counts a host call.
    pub fn charge_host_call(&mut self, limits: &PluginLimits) -> Result<(), Exceeded> {
        self.host_calls = self.host_calls.saturating_add(1);
        let (used, max) = (self.host_calls as usize, limits.host_calls as usize);
        check_limit(used, max, Limit::HostCalls, "host calls in one reconcile")
    }

    /// Counts bytes that the component passes to the host.
    pub fn charge_bytes_to_host(&mut self, bytes: usize, limits: &PluginLimits) -> Result<(), Exceeded> {
        self.bytes.to_host = self.bytes.to_host.saturating_add(bytes);
        let resource = "bytes handed to the host in one reconcile";
        check_limit(
            self.bytes.to_host,
            limits.bytes_to_host,
            Limit::BytesToHost,
            resource,
        )
    }

    /// Counts bytes that the host returns to the component.
    pub fn charge_bytes_from_host(&mut self, bytes: usize, limits: &PluginLimits) -> Result<(), Exceeded> {
        self.bytes.from_host = self.bytes.from_host.saturating_add(bytes);
        let resource = "bytes given by the host in one reconcile";
        check_limit(
            self.bytes.from_host,
            limits.bytes_from_host,
            Limit::BytesFromHost,
            resource,
        )
    }

    /// Counts objects that a list returns.
    pub fn charge_listed_objects(&mut self, objects: usize, limits: &PluginLimits) -> Result<(), Exceeded> {
        self.listed_objects = self.listed_objects.saturating_add(objects);
        let (used, max) = (self.listed_objects, limits.listed_objects as usize);
        check_limit(used, max, Limit::ListedObjects, "objects listed in one reconcile")
    }

    /// Wall-clock time until the timeout of the call.
    pub fn remaining_time(&self, limits: &PluginLimits) -> Duration {
        limits.timeout.saturating_sub(self.started.elapsed())
    }

    /// Bytes exchanged so far.
    pub fn bytes(&self) -> TransferredBytes {
        self.bytes
    }

    /// The counter of log lines.
    pub fn log_lines(&self) -> &Arc<AtomicU32> {
        &self.log_lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_calls_beyond_the_limit_are_refused() {
        let limits = PluginLimits {
            host_calls: 2,
            ..PluginLimits::default()
        };
        let mut budget = Budget::default();
        assert_eq!(budget.charge_host_call(&limits), Ok(()));
        assert_eq!(budget.charge_host_call(&limits), Ok(()));
        let refused = budget.charge_host_call(&limits).expect_err("a third call");
        assert_eq!(refused.limit, Limit::HostCalls);
    }

    #[test]
    fn bytes_add_up_by_direction() {
        let limits = PluginLimits {
            bytes_to_host: 10,
            bytes_from_host: 5,
            ..PluginLimits::default()
        };
        let mut budget = Budget::default();
        assert_eq!(budget.charge_bytes_to_host(10, &limits), Ok(()));
        assert_eq!(budget.charge_bytes_from_host(5, &limits), Ok(()));
        let refused = budget
            .charge_bytes_to_host(1, &limits)
            .expect_err("an eleventh byte");
        assert_eq!(refused.limit, Limit::BytesToHost);
        // An overflow is refused, not wrapped.
        let refused = budget
            .charge_bytes_from_host(usize::MAX, &limits)
            .expect_err("too many");
        assert_eq!(refused.limit, Limit::BytesFromHost);
        let expected = TransferredBytes {
            to_host: 11,
            from_host: usize::MAX,
        };
        assert_eq!(budget.bytes(), expected);
    }

    #[test]
    fn listed_objects_add_up_over_pages() {
        let limits = PluginLimits {
            listed_objects: 500,
            ..PluginLimits::default()
        };
        let mut budget = Budget::default();
        assert_eq!(budget.charge_listed_objects(500, &limits), Ok(()));
        let refused = budget.charge_listed_objects(1, &limits).expect_err("one more");
        assert_eq!(refused.limit, Limit::ListedObjects);
    }
}
