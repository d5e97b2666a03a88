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

pub use self::ostler::plugin::{
    cache, clock, config, events, http, kubernetes, log, messaging, metrics, references, status, types,
};
pub use exports::ostler::plugin::reconciler;
