//! Fixtures of the upstream tests.

use std::{collections::HashMap, sync::Mutex};

use ostler::testing::{
    network::{NetworkGrant, NetworkPolicy, parse_network},
    upstream::{Secret, SecretKey, SecretStore, SecretValue},
};

/// Secrets by name, or by key where one has several; each change of a value increases its version.
#[derive(Default)]
pub struct Vault(Mutex<HashMap<String, (String, u32)>>);

impl Vault {
    /// Sets a value.
    pub fn set(&self, name: &str, value: &str) {
        let mut vault = self.0.lock().unwrap();
        let version = vault.get(name).map_or(1, |(_, v)| v + 1);
        vault.insert(name.into(), (value.into(), version));
    }
}

impl SecretStore for Vault {
    fn get(&self, key: &SecretKey) -> Option<SecretValue> {
        let vault = self.0.lock().unwrap();
        let (value, version) = vault.get(&key.name).or_else(|| vault.get(&key.key))?;
        Some(SecretValue {
            value: Secret::new(value.clone().into_bytes()),
            version: version.to_string(),
        })
    }
}

/// Allows connections to these addresses: the tests' servers are on this machine.
pub fn allowing(addresses: &str) -> NetworkPolicy {
    let here = NetworkPolicy::default();
    here.replace_grant(NetworkGrant {
        allow: vec![parse_network(addresses).unwrap()],
    });
    here
}
