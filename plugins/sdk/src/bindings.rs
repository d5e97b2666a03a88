//! The plugin contract as Rust types, generated from `wit/`.
#![allow(unsafe_code, missing_docs, clippy::all)]

wit_bindgen::generate!({
    path: "wit",
    world: "plugin",
    generate_all,
    pub_export_macro: true,
    export_macro_name: "export",
    default_bindings_module: "ostler_sdk::bindings",
    additional_derives: [PartialEq],
});

/// The life-cycle hooks, which only some plugins export.
pub mod hooks {
    wit_bindgen::generate!({
        path: "wit",
        world: "lifecycle-hooks",
        with: { "ostler:plugin/types@0.1.0": crate::bindings::ostler::plugin::types },
        pub_export_macro: true,
        export_macro_name: "export_hooks",
        default_bindings_module: "ostler_sdk::bindings::hooks",
        additional_derives: [PartialEq],
    });
}

/// The message handler, which only some plugins export.
pub mod handler {
    wit_bindgen::generate!({
        path: "wit",
        world: "message-handler",
        with: { "ostler:plugin/types@0.1.0": crate::bindings::ostler::plugin::types },
        pub_export_macro: true,
        export_macro_name: "export_handler",
        default_bindings_module: "ostler_sdk::bindings::handler",
        additional_derives: [PartialEq],
    });
}
