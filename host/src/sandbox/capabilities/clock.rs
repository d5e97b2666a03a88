//! `clock`: the time, and the time that is left for the call.

use std::time::{SystemTime, UNIX_EPOCH};

use super::PluginCall;
use crate::{contract::bindings::clock::Host, observe::metrics::HostCall};

impl Host for PluginCall {
    async fn now(&mut self) -> u64 {
        if self.begin_host_call(HostCall::ClockNow).is_err() {
            return 0;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    async fn remaining(&mut self) -> u64 {
        let Ok((_, services)) = self.begin_host_call(HostCall::ClockRemaining) else {
            return 0;
        };
        if services.fence.is_draining() {
            return 0;
        }
        u64::try_from(self.remaining_time().as_millis()).unwrap_or(u64::MAX)
    }
}
