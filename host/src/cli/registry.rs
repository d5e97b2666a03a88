//! Arguments of commands that use a registry.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use crate::supply::{
    oci::{ComponentStore, OciReference, PullLimits, RegistryAuth},
    signature::PublicKey,
};

/// Connection to a registry.
#[derive(Args)]
pub struct RegistryCommand {
    /// File with registry credentials, as written by `docker login`. Defaults to config.json in $DOCKER_CONFIG or
    /// ~/.docker.
    #[arg(long, value_name = "FILE")]
    docker_config: Option<PathBuf>,
    /// Use plain HTTP for the registry. Registries on the loopback interface always use plain HTTP.
    #[arg(long)]
    plain_http: bool,
}

impl RegistryCommand {
    /// A store without cache, and the credentials for the reference's registry.
    pub fn open_store(&self, reference: &OciReference) -> anyhow::Result<(ComponentStore, RegistryAuth)> {
        let plain = self.plain_http.then(|| reference.registry().to_owned());
        let store = ComponentStore::new(None, PullLimits::default())
            .with_tags()
            .with_plain_http(plain);
        Ok((
            store,
            RegistryAuth::from_user_config(self.docker_config.as_deref(), reference)?,
        ))
    }
}

/// Reads a public key (PEM).
///
/// # Errors
/// There is no such file, or another one.
pub fn read_public_key(path: &Path) -> anyhow::Result<PublicKey> {
    PublicKey::from_pem(&read_text(path)?).with_context(|| format!("the key {}", path.display()))
}

/// The content of a key file.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading the key {}", path.display()))
}
