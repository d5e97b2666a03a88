//! Builds from `Plugin` objects: their configuration, and the checks on the component they name.

use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    LoadError, Plugin, Registry, load,
    spec::{PluginObject, PluginSpec},
};
use crate::{
    contract::limits::Limits,
    kube::{hash::encode_hex, object::Object, well_known::plugin_reason},
    policy::grants::Grants,
    sandbox::engine::Engine,
};

/// The configuration in a spec, in the form of a file beside a component.
pub fn config_of_spec(spec: &PluginSpec) -> String {
    json!(spec.config.clone().unwrap_or_default()).to_string()
}

impl PluginSpec {
    /// Parses the spec of a stored object and checks its grants. The error names the field.
    pub fn parse(object: &Object) -> Result<Self, LoadError> {
        let invalid = |e: String| LoadError::new(plugin_reason::INVALID_SPEC, e);
        let read: PluginObject =
            serde_json::from_slice(&object.json.text()).map_err(|e| invalid(e.to_string()))?;
        let checked = read.spec.grant().check_fields();
        checked.map_err(|e| invalid(format!("spec: {e}")))?;
        Ok(read.spec)
    }
}

/// Makes a build of a component with the configuration and policy of a `Plugin` object. A component that has been
/// compiled is not compiled a second time.
pub async fn load_for_object(
    engine: &Arc<Engine>,
    registry: &Registry,
    name: &str,
    spec: &PluginSpec,
    wasm: Vec<u8>,
    limits: &Limits,
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

impl Plugin {
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
