//! What becomes of a component that a `Plugin` object names.

use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    Plugin, Refusal, Registry, load,
    spec::{PluginObject, PluginSpec},
};
use crate::{
    contract::limits::Limits,
    kube::{hash::encode_hex, object::Object},
    policy::grants::Grants,
    sandbox::engine::Engine,
};

/// Its configuration, as a file beside a component would have it.
pub fn configuration(spec: &PluginSpec) -> String {
    json!(spec.config.clone().unwrap_or_default()).to_string()
}

impl PluginSpec {
    /// What a `Plugin` object says; the error names the field.
    pub fn read(object: &Object) -> Result<Self, Refusal> {
        let invalid = |e: String| Refusal::new("SpecInvalid", e);
        let read: PluginObject =
            serde_json::from_slice(&object.json.text()).map_err(|e| invalid(e.to_string()))?;
        let checked = read.spec.grant().check();
        checked.map_err(|e| invalid(format!("spec: {e}")))?;
        Ok(read.spec)
    }
}

/// A build of this component, agreed as the spec of the object of this name says. What is compiled already is not
/// compiled again.
pub async fn governed(
    engine: &Arc<Engine>,
    registry: &Registry,
    name: &str,
    spec: &PluginSpec,
    wasm: Vec<u8>,
    limits: &Limits,
) -> Result<Plugin, Refusal> {
    let config = configuration(spec);
    let grants = Grants::of_object(name, spec.grant());
    let plugin = match registry.compiled(&encode_hex(&Sha256::digest(&wasm))) {
        Some(build) => build.agreed(Some(&config), &grants, limits)?,
        None => load(engine, wasm, Some(&config), &grants, limits).await?,
    };
    plugin.fits(name)?;
    Ok(Plugin {
        suspended: spec.suspended,
        ..plugin
    })
}

impl Plugin {
    /// Whether the object of this name may govern it; the error says why not.
    pub fn fits(&self, name: &str) -> Result<(), Refusal> {
        if self.manifest.is_none() {
            let why = "the component has no manifest: nobody knows what it asks for. Write a plugin.yaml, and build it \
                       with `ostler plugin build`";
            return Err(Refusal::new("ManifestMissing", why.into()));
        }
        if **self.name() != *name {
            let why = format!(
                "the component says it is the plugin {}: a Plugin object has the name of its plugin",
                self.name()
            );
            return Err(Refusal::new("NameDiffers", why));
        }
        Ok(())
    }
}
