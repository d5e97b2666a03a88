//! Each <<kind>> has a ConfigMap with its message.

use ostler_sdk::prelude::*;

/// A message, kept in a ConfigMap of the same name.
#[ostler_sdk::resource(
    group = "<<group>>",
    version = "<<version>>",
    plural = "<<plural>>",
    namespaced,
    status = <<kind>>Status,
    printcolumn(name = "Message", type = "string", json_path = ".spec.message"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status")
)]
pub struct <<kind>>Spec {
    /// Text of the ConfigMap.
    #[schemars(length(min = 1))]
    pub message: String,
}

/// Observed state of a <<kind>>.
#[ostler_sdk::api]
#[derive(Default)]
pub struct <<kind>>Status {
    /// The ConfigMap that has the message.
    pub config_map: Option<String>,
}

/// Applies the desired ConfigMap; the host sends it only if it differs from the live one.
#[ostler_sdk::reconciler]
pub fn reconcile(ctx: &Context, object: &<<kind>>) -> Result<Outcome, Failure> {
    ctx.apply_owned(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": object.name(), "namespace": object.namespace() },
        "data": { "message": object.spec.message },
    }))?;
    let status = <<kind>>Status {
        config_map: Some(object.name().into()),
    };
    let applied = format!("message applied: {}", object.spec.message);
    Ok(Outcome::await_change()
        .status(&status)
        .with(Condition::new_true("Ready", "Applied", applied)))
}
