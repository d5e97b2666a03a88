//! An embedded Kubernetes API server: the real protocol, in memory.
//!
//! A request goes [`server`] → [`handler`] (with [`request`]) → [`api`] → [`storage`]; watches follow the storage's
//! history, the collector ([`garbage`]) follows its writes.
#![forbid(unsafe_code)]

mod allocation;
mod api;
mod apply;
mod builtin;
mod builtin_changes;
mod builtin_defaults;
mod builtin_table;
mod builtin_validation;
mod change;
mod checks;
mod collection;
mod conditions;
mod content;
mod control;
mod controllers;
mod crd;
mod crd_validation;
mod deletion;
mod discovery;
mod escalation;
mod faults;
mod fields;
mod garbage;
mod handler;
mod image_reference;
mod kind;
mod limits;
mod metadata;
mod names;
mod network_validation;
mod object;
mod openapi;
mod patch;
mod patch_operations;
mod pod;
mod pod_validation;
mod protobuf;
mod published;
mod quantity;
mod rbac;
mod registry;
mod request;
mod response;
mod review;
mod scale;
mod server;
mod service;
mod state;
mod status;
mod storage;
mod strategy;
mod table;
mod tls;
mod token;
mod watch;
mod workload_validation;
mod write;

pub use faults::{Effect, FaultInjector, Match, RequestAttributes, RequestFault, VerbCounters};
pub use server::{EmbeddedServer, ServerOptions};
