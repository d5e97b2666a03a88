//! The Rust SDK for Ostler plugins.
//!
//! A plugin consists of a kind, whose spec is declared with [`macro@resource`], and of a function that reconciles it,
//! marked with [`macro@reconciler`]:
//!
//! ```
//! use ostler_sdk::prelude::*;
//!
//! /// A greeting.
//! #[ostler_sdk::resource(group = "examples.dev", version = "v1", namespaced)]
//! pub struct HelloSpec {
//!     /// The name to greet.
//!     name: String,
//! }
//!
//! /// Logs a greeting.
//! #[ostler_sdk::reconciler]
//! fn reconcile(ctx: &Context, hello: &Hello) -> Result<Outcome, Failure> {
//!     ctx.info(&format!("Hello {}", hello.spec.name));
//!     Ok(Outcome::await_change())
//! }
//! # fn main() {}
//! ```
//!
//! A plugin with a cleanup, several kinds or hooks has one type per kind that implements [`Reconciler`], and exports
//! them with [`plugin!`]:
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
//!         Ok(Outcome::await_change())
//!     }
//!
//!     fn cleanup(&self, ctx: &Context, hello: &Hello) -> Result<Outcome, Failure> {
//!         ctx.info(&format!("Goodbye {}", hello.spec.name));
//!         Ok(Outcome::await_change())
//!     }
//! }
//!
//! ostler_sdk::plugin!(Greeter);
//! # fn main() {}
//! ```
//!
//! A plugin also compiles natively, where [`mock::MockHost`] replaces the host, so its logic is tested with plain
//! `cargo test`:
//!
//! ```
//! # use ostler_sdk::prelude::*;
//! use ostler_sdk::{Next, mock::MockHost};
//! # #[ostler_sdk::resource(group = "examples.dev", version = "v1", namespaced)]
//! # pub struct HelloSpec { name: String }
//! # #[ostler_sdk::reconciler]
//! # fn reconcile(ctx: &Context, hello: &Hello) -> Result<Outcome, Failure> {
//! #     ctx.info(&format!("Hello {}", hello.spec.name));
//! #     Ok(Outcome::await_change())
//! # }
//!
//! let host = MockHost::new();
//! let hello = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"name": "World"}});
//! let outcome = host.reconcile(&reconcile, &hello).expect("an outcome");
//! assert_eq!(outcome.next, Next::AwaitChange);
//! assert_eq!(host.logs(), ["Hello World"]);
//! ```

// The attribute macros name this crate, also when they are used in it.
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
mod messaging;
#[cfg(not(target_arch = "wasm32"))]
pub mod mock;
mod object;
mod outcome;
pub mod provider;
pub mod provision;
mod reference;
mod slim;
mod time;

pub use bindings::exports::ostler::plugin::reconciler::{Failure, Next, Outcome, Request, Resolution};
pub use bindings::handler::exports::ostler::plugin::messages::{Delivery, Disposition};
pub use bindings::ostler::plugin::http::{DataMatch, Event, EventMatch, EventTail, Method};
pub use bindings::ostler::plugin::kubernetes::{
    ApplyOptions, CreateOptions, DeleteOptions, LogOptions, Preconditions, Projection, Propagation,
};
pub use bindings::ostler::plugin::log::Level;
pub use bindings::ostler::plugin::messaging::Message;
pub use bindings::ostler::plugin::types::{
    BasicCredentials, Condition, ConditionStatus, Encoding, Error, Gvk, HeaderValue, MessageHeader,
    MessageProperties, NotReady, ObjectRef, SecretKeyRef, SecretSource, Substitution, UpstreamRef, Username,
};
#[cfg(not(target_arch = "wasm32"))]
pub use capabilities::Capabilities;
pub use context::{Context, Selection, WrittenObject};
pub use http::{RequestBuilder, Response, Upstream};
pub use messaging::MessageHandler;
pub use object::{
    IN_CLUSTER, KindSpec, NoStatus, OWNER_UID_LABEL, Object, ObjectMeta, OwnerReference, from_value, gvk,
};
pub use ostler_sdk_macros::{api, reconciler, resource};
pub use outcome::{ResultExt, duration};
pub use reference::{LocalReference, NamespacedName, Reference, SecretKey};
pub use time::{from_rfc3339, rfc3339};

#[cfg(not(target_arch = "wasm32"))]
pub use schemars;
pub use serde;
pub use serde_json;

/// A reconciler of one kind. It keeps no state, since every call runs in a fresh instance.
pub trait Reconciler {
    /// The spec of the kind.
    type Spec: KindSpec;

    /// The finalizer (`domain/name`) of a kind whose [`Reconciler::cleanup`] must run before an object is deleted. The
    /// host adds and removes it.
    const FINALIZER: Option<&'static str> = None;

    /// A label selector that narrows the objects.
    const LABEL_SELECTOR: Option<&'static str> = None;

    /// Set to `true`, the host maintains `status.phase` with the values `Progressing`, `Ready` and `Terminating`. The status
    /// type then has the field, so that the CRD has it too.
    const PHASE: bool = false;

    /// Moves the observed state towards the desired state of the object. It is level-triggered: for the same state it has
    /// the same result, regardless of the number of calls.
    ///
    /// # Errors
    /// A [`Failure`] with its reason and resolution.
    fn reconcile(&self, ctx: &Context, object: &Object<Self::Spec>) -> Result<Outcome, Failure>;

    /// Undoes what `reconcile` did. [`Outcome::await_change`] releases the object.
    ///
    /// # Errors
    /// A [`Failure`]; the object stays.
    fn cleanup(&self, _ctx: &Context, _object: &Object<Self::Spec>) -> Result<Outcome, Failure> {
        Ok(Outcome::await_change())
    }
}

/// Hooks in the life cycle of a plugin, exported with `plugin!(…; lifecycle = …)`. Its objects wait until they have
/// succeeded.
pub trait Lifecycle {
    /// Prepares the plugin before the first reconcile, whenever a host becomes the leader or loads another build. It may
    /// run again at any time, so it must be idempotent. There is no reconciled object: references need a namespace.
    ///
    /// # Errors
    /// The hook is retried.
    fn initialize(&self, _ctx: &Context) -> Result<(), Error> {
        Ok(())
    }

    /// Upgrades an object that an earlier version stored; none if there is nothing to change. Only `metadata.labels` and
    /// `metadata.annotations` may differ.
    ///
    /// # Errors
    /// The hook is retried.
    fn upgrade(
        &self,
        _ctx: &Context,
        _object: &serde_json::Value,
    ) -> Result<Option<serde_json::Value>, Error> {
        Ok(None)
    }
}

/// The names that most plugins use.
pub mod prelude {
    pub use crate::{
        Condition, Context, Delivery, Disposition, Error, Failure, KindSpec, Lifecycle, Message,
        MessageHandler, Object, Outcome, Reconciler, ResultExt, gvk,
    };
    pub use serde_json::json;
}
