//! The configuration of the plugin.

use ostler_sdk::api;

/// The configuration of the plugin.
#[api]
pub struct Settings {
    /// Image of the shim.
    pub shim_image: String,
    /// Name of the Secret with the key of the artifacts, in the namespace of each Step that has inputs or outputs.
    #[serde(default = "default_key_secret")]
    pub key_secret: String,
}

fn default_key_secret() -> String {
    "steps-artifact-key".into()
}
