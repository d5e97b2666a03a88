//! The Rust SDK for Ostler plugins.
//!
//! A plugin is a kind (its spec is declared with [`macro@resource`]) and a function that reconciles it, marked with
//! [`macro@reconciler`]:
//!
//! ```
//! use ostler_sdk::prelude::*;
//!
//! /// A greeting.
//! #[ostler_sdk::resource(group = "examples.dev", version = "v1", namespaced)]
//! pub struct HelloSpec {
//!     /// Whom to greet.
//!     name: String,
//! }
//!
//! /// Says hello.
//! #[ostler_sdk::reconciler]
//! fn reconcile(ctx: &Context, hello: &Hello) -> Result<Outcome, Failure> {
//!     ctx.info(&format!("Hello {}", hello.spec.name));
//!     Ok(Outcome::settled())
//! }
//! # fn main() {}
//! ```
//!
//! What has something to clean up, several kinds or hooks is a type for each kind that implements [`Reconciler`], and
//! [`plugin!`] exports them:
//!
//! ```
//! # use ostler_sdk::prelude::*;
//! # #[ostler_sdk::resource(group = "examples.dev", version = "v1", namespaced)]
//! # pub struct HelloSpec { name: String }
//! struct Greeter;
//!
//! impl Reconciler for Greeter {
//!     type Spec = HelloSpec;
//!     const FINALIZER: Option<&'static str> = Some("examples.dev/hello");
//!
//!     fn reconcile(&self, ctx: &Context, hello: &Hello) -> Result<Outcome, Failure> {
//!         ctx.info(&format!("Hello {}", hello.spec.name));
//!         Ok(Outcome::settled())
//!     }
//!
//!     fn cleanup(&self, ctx: &Context, hello: &Hello) -> Result<Outcome, Failure> {
//!         ctx.info(&format!("Goodbye {}", hello.spec.name));
//!         Ok(Outcome::settled())
//!     }
//! }
//!
//! ostler_sdk::plugin!(Greeter);
//! # fn main() {}
//! ```
//!
//! Everything else compiles natively too, where [`mock::Host`] stands in for
//! the host, so the logic of a plugin is tested with plain `cargo test`.

// Lets the attribute macros name this crate from within.
extern crate self as ostler_sdk;

pub mod bindings;
mod capabilities;
mod context;
#[cfg(not(target_arch = "wasm32"))]
pub mod crd;
#[doc(hidden)]
pub mod guest;
mod http;
#[cfg(target_arch = "wasm32")]
mod memory;
#[cfg(not(target_arch = "wasm32"))]
pub mod mock;
mod object;
mod outcome;
mod slim;
mod time;

pub use bindings::exports::ostler::plugin::reconciler::{Failure, Next, Outcome, Request, Resolution};
pub use bindings::ostler::plugin::http::{Encoding, Event, EventMatch, EventTail, Substitution};
pub use bindings::ostler::plugin::kubernetes::DeleteOptions;
pub use bindings::ostler::plugin::log::Level;
pub use bindings::ostler::plugin::types::{Condition, Error, Gvk, NotReady, ObjectRef, TriState};
#[cfg(not(target_arch = "wasm32"))]
pub use capabilities::Capabilities;
pub use context::{Context, Selection, Written};
pub use http::{RequestBuilder, Response, Upstream};
pub use object::{NoStatus, Object, ObjectMeta, OwnerReference, Raw, Resource, gvk};
pub use ostler_sdk_macros::{api, reconciler, resource};
pub use outcome::{ResultExt, duration};
pub use time::{from_rfc3339, rfc3339};

#[cfg(not(target_arch = "wasm32"))]
pub use schemars;
pub use serde;
pub use serde_json;

/// A reconciler of one kind. It keeps no state: a fresh instance runs each call.
pub trait Reconciler {
    /// The spec of the kind.
    type Spec: Resource;

    /// Set (`domain/name`) when [`Reconciler::cleanup`] must run before an
    /// object can go; the host adds and removes it.
    const FINALIZER: Option<&'static str> = None;

    /// Narrows the objects by their labels.
    const LABEL_SELECTOR: Option<&'static str> = None;

    /// Whether the host keeps `status.phase`: `Progressing`, `Ready` or `Terminating`. The status type has
    /// the field then, so that the CRD does.
    const PHASE: bool = false;

    /// Brings the world closer to what the object asks for. Level-triggered:
    /// it must give the same for the same world, however often it runs.
    ///
    /// # Errors
    /// What is in the way, and how to go on ([`Failure`]).
    fn reconcile(&self, ctx: &Context, object: &Object<Self::Spec>) -> Result<Outcome, Failure>;

    /// Undoes what `reconcile` did. A settled outcome lets the object go.
    ///
    /// # Errors
    /// What keeps the object from going.
    fn cleanup(&self, _ctx: &Context, _object: &Object<Self::Spec>) -> Result<Outcome, Failure> {
        Ok(Outcome::settled())
    }
}

/// Hooks in the life of a plugin, exported with `plugin!(…; lifecycle = …)`. Until they have succeeded its objects
/// wait.
pub trait Lifecycle {
    /// Runs before the first reconcile, whenever a host begins to lead or loads another build. It may run
    /// again at any time, so it must be idempotent. There is no object: namespaces are to be named.
    ///
    /// # Errors
    /// What is in the way; it is tried again.
    fn initialize(&self, _ctx: &Context) -> Result<(), Error> {
        Ok(())
    }

    /// Upgrades an object stored by a version before; none when there is nothing to do. Only
    /// `metadata.labels` and `metadata.annotations` may differ.
    ///
    /// # Errors
    /// What is in the way; it is tried again.
    fn upgrade(
        &self,
        _ctx: &Context,
        _object: &serde_json::Value,
    ) -> Result<Option<serde_json::Value>, Error> {
        Ok(None)
    }
}

/// What a plugin usually needs.
pub mod prelude {
    pub use crate::{
        Condition, Context, Error, Failure, Lifecycle, Object, Outcome, Reconciler, Resource, ResultExt, gvk,
    };
    pub use serde_json::json;
}
