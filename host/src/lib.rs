//! The Ostler operator host: reconcilers as WebAssembly components.
