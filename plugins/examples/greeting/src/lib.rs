//! The smallest correct plugin: writes a `Greeting` to a `ConfigMap`.

use ostler_sdk::prelude::*;

/// A name and the salutation for it.
#[ostler_sdk::resource(
    group = "examples.ostler.dev",
    version = "v1alpha1",
    kind = "Greeting",
    namespaced,
    category = "examples",
    doc = "A greeting, written to a ConfigMap of the same name.",
    printcolumn(name = "Name", type = "string", json_path = ".spec.name")
)]
pub struct GreetingSpec {
    /// Name to greet.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Salutation in front of the name; defaults to "Hello".
    pub salutation: Option<String>,
}

/// Reconciles greetings.
pub struct Greeter;

impl Reconciler for Greeter {
    type Spec = GreetingSpec;
    const FINALIZER: Option<&'static str> = Some("examples.ostler.dev/greeting");

    fn reconcile(&self, ctx: &Context, greeting: &Greeting) -> Result<Outcome, Failure> {
        let salutation = greeting.spec.salutation.as_deref().unwrap_or("Hello");
        let text = format!("{salutation}, {}!", greeting.spec.name);
        ctx.apply_owned(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": greeting.name(), "namespace": greeting.namespace() },
            "data": { "greeting": text },
        }))?;
        Ok(Outcome::await_change().with(Condition::new_true("Ready", "Greeted", text)))
    }

    fn cleanup(&self, ctx: &Context, greeting: &Greeting) -> Result<Outcome, Failure> {
        // The ConfigMap is deleted with its owner; only the farewell is left to do.
        ctx.event("Farewell", &format!("Goodbye, {}!", greeting.spec.name));
        Ok(Outcome::await_change())
    }
}

ostler_sdk::plugin!(Greeter);
