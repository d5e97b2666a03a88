//! `config`: the plugin's configuration.

use super::PluginCall;
use crate::{contract::bindings::config::Host, observe::metrics::HostCall};

impl Host for PluginCall {
    async fn get(&mut self) -> Vec<u8> {
        match self.begin_host_call(HostCall::ConfigGet) {
            Ok(_) => self
                .return_bytes(self.context.policy.config.clone())
                .unwrap_or_else(|_| b"{}".to_vec()),
            Err(_) => b"{}".to_vec(),
        }
    }
}
