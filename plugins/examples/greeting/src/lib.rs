//! The smallest correct plugin: a `Greeting` becomes a `ConfigMap`.

use ostler_sdk::prelude::*;

/// Whom to greet, and how.
#[ostler_sdk::resource(
    group = "examples.ostler.dev",
    version = "v1alpha1",
    kind = "Greeting",
    namespaced,
    category = "examples",
    doc = "A greeting, kept in a ConfigMap of the same name.",
    printcolumn(name = "Name", type = "string", json_path = ".spec.name")
)]
pub struct GreetingSpec {
    /// Whom to greet.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The word to greet with; "Hello" when there is none.
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
        // The ConfigMap goes with its owner; a farewell is all there is to say.
        ctx.event("Farewell", &format!("Goodbye, {}!", greeting.spec.name));
        Ok(Outcome::await_change())
    }
}

ostler_sdk::plugin!(Greeter);
