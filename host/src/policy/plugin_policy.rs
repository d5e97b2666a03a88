//! The policy of a plugin: its grants, configuration and limits.

use std::sync::Arc;

use super::grants::PluginGrants;
use crate::contract::limits::Limits;

/// What a plugin may do and is told, fixed when it was loaded.
pub struct Terms {
    /// The plugin's name.
    pub plugin: Arc<str>,
    /// What the administrator grants it.
    pub grants: PluginGrants,
    /// Its configuration, a JSON object.
    pub config: Vec<u8>,
    /// What one call may use.
    pub limits: Limits,
}

impl Terms {
    /// Whether nothing was agreed otherwise.
    pub fn same(&self, other: &Self) -> bool {
        self.plugin == other.plugin
            && self.grants == other.grants
            && self.config == other.config
            && self.limits == other.limits
    }
}
