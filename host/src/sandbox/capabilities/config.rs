//! `config`: the plugin's configuration.

use super::Call;
use crate::{contract::bindings::config::Host, observe::metrics::HostCall};

impl Host for Call {
    async fn get(&mut self) -> Vec<u8> {
        match self.begin_host_call(HostCall::ConfigGet) {
            Ok(_) => self
                .return_bytes(self.context.policy.config.clone())
                .unwrap_or_else(|_| b"{}".to_vec()),
            Err(_) => b"{}".to_vec(),
        }
    }
}
