//! The composition of steps: order, precedence of failures, idempotence, interruption at any effect.

mod algebra;
mod helm;
mod resources;
mod table;

use ostler_sdk::{mock::MockHost, prelude::*, serde_json::Value};

/// A thing that is composed of steps.
#[ostler_sdk::resource(group = "g", version = "v1", kind = "Thing", namespaced)]
struct ThingSpec {}

/// A reconciler that calls a function, once for each test.
struct Call<F>(F);

impl<F: Fn(&Context, &Thing) -> Result<Outcome, Failure>> Reconciler for Call<F> {
    type Spec = ThingSpec;

    fn reconcile(&self, ctx: &Context, thing: &Thing) -> Result<Outcome, Failure> {
        (self.0)(ctx, thing)
    }
}

fn thing() -> Value {
    json!({ "metadata": { "name": "a", "namespace": "n", "uid": "u-1" }, "spec": {} })
}

fn call(
    host: &MockHost,
    run: impl Fn(&Context, &Thing) -> Result<Outcome, Failure>,
) -> Result<Outcome, Failure> {
    host.reconcile(&Call(run), &thing())
}
