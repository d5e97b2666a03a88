//! Fixtures of the upstream tests.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use ostler::testing::{
    network::{NetworkGrant, NetworkPolicy, parse_network},
    upstream::{Secret, SecretStore, UpstreamSecretKey},
};

/// Timeout of a wait. Generous, because a slow machine is not a failure.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until `holds` returns true. Panics after [`WAIT_TIMEOUT`] with what `describe` returns.
pub async fn wait_until(holds: impl Fn() -> bool, describe: impl FnOnce() -> String) {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > WAIT_TIMEOUT {
            panic!("timed out after {WAIT_TIMEOUT:?} waiting for {}", describe());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Secrets by name, or by key where one has several.
#[derive(Default)]
pub struct Vault(Mutex<HashMap<String, String>>);

impl Vault {
    /// Sets a value.
    pub fn set(&self, name: &str, value: &str) {
        self.0.lock().unwrap().insert(name.into(), value.into());
    }
}

impl SecretStore for Vault {
    fn get(&self, key: &UpstreamSecretKey) -> Option<Secret> {
        let vault = self.0.lock().unwrap();
        let value = vault.get(&key.name).or_else(|| vault.get(&key.key))?;
        Some(Secret::new(value.clone().into_bytes()))
    }
}

/// Allows connections to these addresses: the tests' servers are on this machine.
pub fn allowing(addresses: &str) -> NetworkPolicy {
    let here = NetworkPolicy::default();
    here.replace_grant(NetworkGrant {
        allow: vec![parse_network(addresses).unwrap()],
        ..NetworkGrant::default()
    });
    here
}
