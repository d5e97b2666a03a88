//! The code that [`crate::plugin!`] expands to.

#[cfg(target_arch = "wasm32")]
use crate::MessageHandler;
pub use crate::bindings::exports::ostler::plugin::reconciler::{
    Descriptor, Failure, Guest, Outcome, ReconciledKind, Request,
};
pub use crate::bindings::handler::exports::ostler::plugin::messages::{
    Delivery, Disposition, Guest as Messages,
};
pub use crate::bindings::hooks::exports::ostler::plugin::lifecycle::Guest as Hooks;
use crate::outcome::to_json_bytes;
use crate::{Context, Error, KindSpec, Lifecycle, Object, Reconciler};

/// Exports reconcilers as a plugin, with the name and version of the crate.
///
/// A plugin with life-cycle hooks ([`Lifecycle`](crate::Lifecycle)) is `plugin!(A, B; lifecycle = Hooks)`, a plugin that
/// handles messages ([`MessageHandler`](crate::MessageHandler)) `plugin!(A, B; messages = Handler)`, and one that only
/// handles messages `plugin!(messages = Handler)`.
///
/// In a native build it expands to nothing, so that the crate can be tested.
#[macro_export]
macro_rules! plugin {
    (messages = $handler:path) => {
        $crate::plugin!(@export ; messages = $handler);
    };
    ($($reconciler:path),+ $(,)? $(; lifecycle = $hooks:path)? $(; messages = $handler:path)?) => {
        $crate::plugin!(@export $($reconciler),+ $(; lifecycle = $hooks)? $(; messages = $handler)?);
    };
    (@export $($reconciler:path),* $(; lifecycle = $hooks:path)? $(; messages = $handler:path)?) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, missing_docs)]
        mod __ostler_plugin {
            #[allow(unused_imports)]
            use super::*;
            use $crate::guest;

            struct Plugin;

            impl guest::Guest for Plugin {
                fn describe() -> guest::Descriptor {
                    guest::Descriptor {
                        name: env!("CARGO_PKG_NAME").into(),
                        version: env!("CARGO_PKG_VERSION").into(),
                        kinds: vec![$(guest::kind(&$reconciler)),*],
                        max_concurrent: None,
                    }
                }

                fn reconcile(request: guest::Request) -> Result<guest::Outcome, guest::Failure> {
                    guest::log_panics();
                    $(if guest::handles(&$reconciler, &request) {
                        return guest::run(&$reconciler, &request, guest::GuestCall::Reconcile);
                    })*
                    Err(guest::unknown(&request))
                }

                fn cleanup(request: guest::Request) -> Result<guest::Outcome, guest::Failure> {
                    guest::log_panics();
                    $(if guest::handles(&$reconciler, &request) {
                        return guest::run(&$reconciler, &request, guest::GuestCall::Cleanup);
                    })*
                    Err(guest::unknown(&request))
                }
            }

            $crate::bindings::export!(Plugin with_types_in $crate::bindings);

            $(
                impl guest::Hooks for Plugin {
                    fn initialize() -> Result<(), $crate::Error> {
                        guest::log_panics();
                        guest::initialize(&$hooks)
                    }

                    fn upgrade(object: Vec<u8>) -> Result<Option<Vec<u8>>, $crate::Error> {
                        guest::log_panics();
                        guest::upgrade(&$hooks, &object)
                    }
                }

                $crate::bindings::hooks::export_hooks!(Plugin with_types_in $crate::bindings::hooks);
            )?

            $(
                impl guest::Messages for Plugin {
                    fn handle(delivery: guest::Delivery) -> Result<guest::Disposition, $crate::Error> {
                        guest::log_panics();
                        guest::handle(&$handler, &delivery)
                    }
                }

                $crate::bindings::handler::export_handler!(Plugin with_types_in $crate::bindings::handler);
            )?
        }
    };
}

/// A whole object with its spec type.
pub trait Whole {
    type Spec: KindSpec;
}

impl<S: KindSpec> Whole for Object<S> {
    type Spec = S;
}

/// The function of a reconciler to call.
#[derive(Clone, Copy)]
pub enum GuestCall {
    Reconcile,
    Cleanup,
}

pub fn kind<R: Reconciler>(_: &R) -> ReconciledKind {
    ReconciledKind {
        gvk: R::Spec::gvk(),
        finalizer: R::FINALIZER.map(Into::into),
        label_selector: R::LABEL_SELECTOR.map(Into::into),
        phase: R::PHASE,
    }
}

pub fn handles<R: Reconciler>(_: &R, request: &Request) -> bool {
    let gvk = &request.ref_.gvk;
    gvk.group == R::Spec::GROUP && gvk.kind == R::Spec::KIND
}

pub fn unknown(request: &Request) -> Failure {
    let message = [&request.ref_.gvk.kind, " is not a kind of this plugin."].concat();
    Failure::terminal("UnknownKind", message)
}

#[cfg(target_arch = "wasm32")]
pub fn run<R: Reconciler>(reconciler: &R, request: &Request, call: GuestCall) -> Result<Outcome, Failure> {
    call_with(reconciler, &Context { request }, call)
}

/// Parses the object and calls the reconciler.
pub fn call_with<R: Reconciler>(reconciler: &R, ctx: &Context, call: GuestCall) -> Result<Outcome, Failure> {
    let object: Object<R::Spec> = Object::read(&ctx.request.object)
        .map_err(|error| Failure::terminal("InvalidSpec", error.to_string()))?;
    match call {
        GuestCall::Reconcile => reconciler.reconcile(ctx, &object),
        GuestCall::Cleanup => reconciler.cleanup(ctx, &object),
    }
}

/// Builds the request for the context of a hook or a message handler, which have no reconciled object.
pub fn hook_request(object: Vec<u8>) -> Request {
    Request {
        object,
        ref_: crate::ObjectRef {
            gvk: crate::gvk("", "", ""),
            cluster: None,
            namespace: None,
            name: String::new(),
        },
        attempt: 0,
        causes: Vec::new(),
    }
}

#[cfg(target_arch = "wasm32")]
pub fn initialize<L: Lifecycle>(hooks: &L) -> Result<(), Error> {
    let request = hook_request(Vec::new());
    hooks.initialize(&Context { request: &request })
}

#[cfg(target_arch = "wasm32")]
pub fn upgrade<L: Lifecycle>(hooks: &L, object: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let request = hook_request(object.to_vec());
    upgrade_with(hooks, &Context { request: &request })
}

#[cfg(target_arch = "wasm32")]
pub fn handle<H: MessageHandler>(handler: &H, delivery: &Delivery) -> Result<Disposition, Error> {
    let request = hook_request(Vec::new());
    handler.handle(&Context { request: &request }, delivery)
}

/// Parses the object and calls the hook.
pub fn upgrade_with<L: Lifecycle>(hooks: &L, ctx: &Context) -> Result<Option<Vec<u8>>, Error> {
    let object =
        crate::slim::value(&ctx.request.object).map_err(|error| Error::Invalid(error.to_string()))?;
    let upgraded = hooks.upgrade(ctx, &object)?;
    Ok(upgraded.as_ref().map(to_json_bytes))
}

/// Reports the message and the location of a panic, which ends the instance. The host writes them into the condition.
#[cfg(target_arch = "wasm32")]
pub fn log_panics() {
    use crate::bindings::ostler::plugin::log;
    std::panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("panic");
        // A compiler that leaves locations out has line 0.
        let location = info.location().filter(|at| at.line() > 0);
        let location = location.map(|at| [at.file(), ":", &at.line().to_string()].concat());
        let fields = [("exception.location".to_owned(), location.unwrap_or_default())];
        log::write(log::Level::Error, message, &fields);
    }));
}
