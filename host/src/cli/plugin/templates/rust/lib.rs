//! Each <<kind>> has a ConfigMap with its message.

use ostler_sdk::prelude::*;

/// What a <<kind>> asks for.
#[ostler_sdk::resource(
    group = "<<group>>",
    version = "<<version>>",
    kind = "<<kind>>",
    plural = "<<plural>>",
    namespaced,
    status = <<kind>>Status,
    doc = "A message, kept in a ConfigMap of the same name.",
    printcolumn(name = "Message", type = "string", json_path = ".spec.message"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status")
)]
pub struct <<kind>>Spec {
    /// What to say.
    #[schemars(length(min = 1))]
    pub message: String,
}

/// What is known of a <<kind>>.
#[ostler_sdk::api]
#[derive(Default)]
pub struct <<kind>>Status {
    /// The ConfigMap that has the message.
    pub config_map: Option<String>,
}

/// Reconciles them. It keeps no state: each call is a fresh instance.
pub struct Reconciles<<kind>>;

impl Reconciler for Reconciles<<kind>> {
    type Spec = <<kind>>Spec;

    fn reconcile(&self, ctx: &Context, object: &<<kind>>) -> Result<Outcome, Failure> {
        // Say what is wanted; the host sends it only when it differs from what is there.
        ctx.apply_owned(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": object.name(), "namespace": object.namespace() },
            "data": { "message": object.spec.message },
        }))?;
        let status = <<kind>>Status {
            config_map: Some(object.name().into()),
        };
        let said = format!("it says: {}", object.spec.message);
        Ok(Outcome::settled()
            .status(&status)
            .with(Condition::yes("Ready", "Said", said)))
    }
}

ostler_sdk::plugin!(Reconciles<<kind>>);
