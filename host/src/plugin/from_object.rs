//! Builds from `Plugin` objects: their configuration, and the checks on the component they name.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    LoadError, Plugin, PluginRegistry, load,
    spec::{PluginObject, PluginSpec, RolledBack},
};
use crate::{
    contract::limits::PluginLimits,
    kube::{hash::encode_hex, object::KubeObject, well_known::plugin_reason},
    policy::grants::Grants,
    sandbox::engine::Engine,
};

/// The configuration in a spec, in the form of a file beside a component.
pub fn config_of_spec(spec: &PluginSpec) -> String {
    json!(spec.config.clone().unwrap_or_default()).to_string()
}

impl PluginSpec {
    /// Parses the spec of a stored object and checks its grants. The error names the field.
    pub fn parse(object: &KubeObject) -> Result<Self, LoadError> {
        let invalid = |e: String| LoadError::new(plugin_reason::INVALID_SPEC, e);
        let read: PluginObject =
            serde_json::from_slice(&object.json.text()).map_err(|e| invalid(e.to_string()))?;
        let checked = read.spec.grant().check_fields();
        checked.map_err(|e| invalid(format!("spec: {e}")))?;
        Ok(read.spec)
    }
}

/// The rollback that the status of a stored `Plugin` object records. The spec need not be valid.
pub fn recorded_rollback(object: &KubeObject) -> Option<RolledBack> {
    #[derive(Deserialize)]
    struct StatusOnly {
        status: Option<RollbackOnly>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct RollbackOnly {
        rolled_back: Option<RolledBack>,
    }
    let read: StatusOnly = serde_json::from_slice(&object.json.text()).ok()?;
    read.status?.rolled_back
}

/// Makes a build of a component with the configuration and policy of a `Plugin` object. A component that has been
/// compiled is not compiled a second time.
pub async fn load_for_object(
    engine: &Arc<Engine>,
    registry: &PluginRegistry,
    name: &str,
    spec: &PluginSpec,
    wasm: Vec<u8>,
    limits: &PluginLimits,
) -> Result<Plugin, LoadError> {
    let config = config_of_spec(spec);
    let grants = Grants::from_object(name, spec.grant());
    let plugin = match registry.find_compiled(&encode_hex(&Sha256::digest(&wasm))) {
        Some(build) => build.reconfigure(Some(&config), &grants, limits)?,
        None => load(engine, wasm, Some(&config), &grants, limits).await?,
    };
    Ok(Plugin {
        suspended: spec.suspend,
        ..plugin
    })
}

impl RolledBack {
    /// The record of a rollback of a build to the previous one, whose source is a reference that a registry resolves, or a
    /// file.
    pub(super) fn of_build(plugin: &Plugin, message: &str, previous: Option<&Plugin>) -> Self {
        let pulled = previous.filter(|previous| previous.source.contains("@sha256:"));
        Self {
            digest: plugin.digest.clone(),
            config_digest: Some(plugin.config_digest()),
            previous_source: pulled.map(|previous| previous.source.clone()),
            message: message.into(),
        }
    }

    /// True for a build of the recorded component with the recorded configuration.
    pub(super) fn names_build(&self, plugin: &Plugin) -> bool {
        let config = self.config_digest.as_ref();
        self.digest == plugin.digest && config.is_none_or(|recorded| *recorded == plugin.config_digest())
    }
}

impl Plugin {
    /// SHA-256 digest of the configuration.
    fn config_digest(&self) -> String {
        encode_hex(&Sha256::digest(&self.policy.config))
    }

    /// Checks that a file has the name of its plugin: the entry in the grants file is found by that name, which a component
    /// declares itself.
    pub fn check_file_name(&self, file: &str) -> Result<(), LoadError> {
        if file.strip_suffix(".wasm") == Some(&**self.name()) {
            return Ok(());
        }
        let why = format!(
            "{file} declares the name {name}, by which the grants are found: rename it to {name}.wasm",
            name = self.name()
        );
        Err(LoadError::new(plugin_reason::NAME_MISMATCH, why))
    }

    /// Checks that the `Plugin` object of this name may govern the build: it needs a manifest and the same name.
    pub fn check_object_name(&self, name: &str) -> Result<(), LoadError> {
        if self.manifest.is_none() {
            let why = "the component has no manifest, so that it is unknown what it asks for. Write a plugin.yaml, and \
                       build it with `ostler plugin build`";
            return Err(LoadError::new(plugin_reason::MANIFEST_MISSING, why.into()));
        }
        if **self.name() != *name {
            let why = format!(
                "the component says it is the plugin {}: a Plugin object has the name of its plugin",
                self.name()
            );
            return Err(LoadError::new(plugin_reason::NAME_MISMATCH, why));
        }
        Ok(())
    }
}
