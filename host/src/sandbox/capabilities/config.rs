//! `config`: the plugin's configuration.

use super::Call;
use crate::{contract::bindings::config::Host, observe::metrics::HostCall};

impl Host for Call {
    async fn get(&mut self) -> Vec<u8> {
        match self.enter(HostCall::ConfigGet) {
            Ok(_) => self
                .given(self.terms.config.clone())
                .unwrap_or_else(|_| b"{}".to_vec()),
            Err(_) => b"{}".to_vec(),
        }
    }
}
