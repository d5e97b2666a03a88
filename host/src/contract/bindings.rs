//! The host's side of the plugin contract, generated from `wit/`.
//!
//! [`crate::sandbox::capabilities`] implements the imports, one file each;
//! [`crate::sandbox::engine`] calls the exports.
#![allow(missing_docs)] // documented in wit/

wasmtime::component::bindgen!({
    path: "../wit",
    world: "plugin",
    imports: { default: async },
    exports: { default: async },
    additional_derives: [PartialEq, serde::Serialize, serde::Deserialize],
});

/// The message handler, which not every plugin exports. It is called by its name, so only the types are used.
#[allow(dead_code)]
mod message_handler {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "message-handler",
        exports: { default: async },
        additional_derives: [PartialEq, serde::Serialize, serde::Deserialize],
        with: { "ostler:plugin/types@0.1.0": super::ostler::plugin::types },
    });
}

pub use self::message_handler::exports::ostler::plugin::messages;
pub use self::ostler::plugin::{
    cache, clock, config, events, http, kubernetes, log, messaging, metrics, permits, references, status,
    types,
};
pub use exports::ostler::plugin::reconciler;

impl types::ConditionStatus {
    /// The status as the API of Kubernetes has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}
