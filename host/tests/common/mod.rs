//! What the tests of upstreams share.

use std::{collections::HashMap, sync::Mutex};

use ostler::testing::{
    network::{Network, NetworkGrant, network},
    upstream::{Secret, SecretKey, SecretValue, Secrets},
};

/// Secrets by name, or by key where one has several; a change of a value is a change of its version.
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

impl Secrets for Vault {
    fn get(&self, key: &SecretKey) -> Option<SecretValue> {
        let vault = self.0.lock().unwrap();
        let (value, version) = vault.get(&key.name).or_else(|| vault.get(&key.key))?;
        Some(SecretValue {
            value: Secret::new(value.clone().into_bytes()),
            version: version.to_string(),
        })
    }
}

/// Lets connections to these addresses be made: the tests' servers are on this machine.
pub fn allowing(addresses: &str) -> Network {
    let here = Network::default();
    here.allow(NetworkGrant {
        allow: vec![network(addresses).unwrap()],
    });
    here
}
