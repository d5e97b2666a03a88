//! The derive macros of ostler-sdk.
