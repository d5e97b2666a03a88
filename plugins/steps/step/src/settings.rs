//! The configuration of the plugin.

use ostler_sdk::api;

/// The configuration of the plugin.
#[api]
pub struct StepSettings {
    /// Image of the shim.
    pub shim_image: String,
    /// Name of the Secret with the key of the artifacts, in the namespace of each Step that has inputs or outputs.
    #[serde(default = "default_key_secret")]
    pub key_secret: String,
    /// Time between two reads of the log of a process that runs; `0s` for none.
    #[serde(default = "default_log_interval")]
    pub log_interval: String,
    /// Maximum number of pods at a time whose process has not ended, of all Steps together; none for no limit.
    pub max_pods: Option<u32>,
}

fn default_log_interval() -> String {
    "30s".into()
}

fn default_key_secret() -> String {
    "steps-artifact-key".into()
}
