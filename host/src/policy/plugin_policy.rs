//! The policy of a plugin: its grants, configuration and limits.

use std::sync::Arc;

use super::grants::PluginGrants;
use crate::contract::limits::PluginLimits;

/// The grants, configuration and limits of a plugin, fixed when it is loaded.
pub struct PluginPolicy {
    /// The plugin's name.
    pub plugin: Arc<str>,
    /// Permissions granted by the administrator.
    pub grants: PluginGrants,
    /// Its configuration, a JSON object.
    pub config: Vec<u8>,
    /// Limits of one call.
    pub limits: PluginLimits,
}

impl PluginPolicy {
    /// Both policies are the same.
    pub fn is_equivalent(&self, other: &Self) -> bool {
        self.plugin == other.plugin
            && self.grants == other.grants
            && self.config == other.config
            && self.limits == other.limits
    }
}
