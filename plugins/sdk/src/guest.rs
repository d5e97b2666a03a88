//! What [`crate::plugin!`] expands to.

pub use crate::bindings::exports::ostler::plugin::reconciler::{
    Descriptor, Failure, Guest, Outcome, ReconciledKind, Request,
};
pub use crate::bindings::hooks::exports::ostler::plugin::lifecycle::Guest as Hooks;
use crate::outcome::json;
use crate::{Context, Error, Lifecycle, Object, Reconciler, Resource};

/// Exports reconcilers as a plugin. Its name and version are the crate's. With hooks in its life
/// ([`Lifecycle`](crate::Lifecycle)): `plugin!(A, B; lifecycle = Hooks)`.
///
/// Natively it expands to nothing, so that the crate can be tested.
#[macro_export]
macro_rules! plugin {
    ($($reconciler:path),+ $(,)? $(; lifecycle = $hooks:path)?) => {
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
                        kinds: vec![$(guest::kind(&$reconciler)),+],
                        max_concurrent: 0,
                    }
                }

                fn reconcile(request: guest::Request) -> Result<guest::Outcome, guest::Failure> {
                    guest::log_panics();
                    $(if guest::handles(&$reconciler, &request) {
                        return guest::run(&$reconciler, &request, guest::Call::Reconcile);
                    })+
                    Err(guest::unknown(&request))
                }

                fn cleanup(request: guest::Request) -> Result<guest::Outcome, guest::Failure> {
                    guest::log_panics();
                    $(if guest::handles(&$reconciler, &request) {
                        return guest::run(&$reconciler, &request, guest::Call::Cleanup);
                    })+
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
        }
    };
}

/// A whole object, and what its spec is.
pub trait Whole {
    type Spec: Resource;
}

impl<S: Resource> Whole for Object<S> {
    type Spec = S;
}

/// Which of a reconciler's functions to run.
#[derive(Clone, Copy)]
pub enum Call {
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
    Failure::parked("UnknownKind", message)
}

#[cfg(target_arch = "wasm32")]
pub fn run<R: Reconciler>(reconciler: &R, request: &Request, call: Call) -> Result<Outcome, Failure> {
    call_with(reconciler, &Context { request }, call)
}

/// Reads the object and calls the reconciler.
pub fn call_with<R: Reconciler>(reconciler: &R, ctx: &Context, call: Call) -> Result<Outcome, Failure> {
    let object: Object<R::Spec> = Object::read(&ctx.request.object)
        .map_err(|error| Failure::parked("InvalidSpec", error.to_string()))?;
    match call {
        Call::Reconcile => reconciler.reconcile(ctx, &object),
        Call::Cleanup => reconciler.cleanup(ctx, &object),
    }
}

/// What a hook is called with, as the context of a reconcile has it.
pub fn of_hook(object: Vec<u8>) -> Request {
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
    let request = of_hook(Vec::new());
    hooks.initialize(&Context { request: &request })
}

#[cfg(target_arch = "wasm32")]
pub fn upgrade<L: Lifecycle>(hooks: &L, object: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let request = of_hook(object.to_vec());
    upgrade_with(hooks, &Context { request: &request })
}

/// Reads the object and calls the hook.
pub fn upgrade_with<L: Lifecycle>(hooks: &L, ctx: &Context) -> Result<Option<Vec<u8>>, Error> {
    let object =
        crate::slim::value(&ctx.request.object).map_err(|error| Error::Invalid(error.to_string()))?;
    let upgraded = hooks.upgrade(ctx, &object)?;
    Ok(upgraded.as_ref().map(json))
}

/// A panic ends the instance; what it says goes to the log first.
#[cfg(target_arch = "wasm32")]
pub fn log_panics() {
    use crate::bindings::ostler::plugin::log;
    std::panic::set_hook(Box::new(|info| {
        log::write(log::Level::Error, &info.to_string(), &[]);
    }));
}
