//! Identity and states of a plugin in the registry.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Identity of a slot of the registry: every `Plugin` object and every component file has one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotId {
    /// The `Plugin` object of this name.
    Object(String),
    /// A component file of the plugin directory, such as `greeting.wasm`.
    File(String),
}

impl SlotId {
    /// The slot of a `Plugin` object.
    pub fn object(name: impl Into<String>) -> Self {
        Self::Object(name.into())
    }

    /// The slot of a component file.
    pub fn file(name: impl Into<String>) -> Self {
        Self::File(name.into())
    }

    /// The name that is shown until a build has been loaded and has given its own.
    pub fn provisional_name(&self) -> &str {
        match self {
            Self::Object(name) => name,
            Self::File(name) => name.trim_end_matches(".wasm"),
        }
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(name) => write!(f, "Plugin/{name}"),
            Self::File(name) => f.write_str(name),
        }
    }
}

/// State of the newest build of a plugin, or of its canary. `/plugins`, `/status` and `ostler status` show the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LoadState {
    /// No build has been loaded yet.
    #[default]
    Loading,
    /// The newest build reconciles.
    Serving,
    /// The newest build is loaded, and its objects wait while `spec.suspend` is set.
    Suspended,
    /// The newest build was refused; the one before it reconciles.
    Refused,
    /// The newest build did worse than the one before it, which reconciles again.
    RolledBack,
    /// The newest build was refused, and there is none before it: nothing reconciles.
    Failed,
}

impl LoadState {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "Loading",
            Self::Serving => "Serving",
            Self::Suspended => "Suspended",
            Self::Refused => "Refused",
            Self::RolledBack => "RolledBack",
            Self::Failed => "Failed",
        }
    }
}

impl fmt::Display for LoadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Progress of a plugin's life-cycle hook `initialize`. Its objects wait while that is `Pending` or `Failed`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "message")]
pub enum HookState {
    /// The build has no hooks.
    #[default]
    None,
    /// It has not succeeded yet in this leader term.
    Pending,
    /// It has succeeded in this leader term.
    Done,
    /// The last attempt failed with this message; it is retried with a backoff.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn load_state_name_equals_its_json() {
        for state in [
            LoadState::Loading,
            LoadState::Serving,
            LoadState::Suspended,
            LoadState::Refused,
            LoadState::RolledBack,
            LoadState::Failed,
        ] {
            assert_eq!(json!(state), state.name());
        }
    }

    #[test]
    fn hook_state_in_json_has_state_and_message() {
        assert_eq!(json!(HookState::Pending), json!({"state": "Pending"}));
        let failed = json!({"state": "Failed", "message": "initialize: denied"});
        assert_eq!(json!(HookState::Failed("initialize: denied".into())), failed);
    }
}
