//! The Rust SDK for Ostler plugins.
