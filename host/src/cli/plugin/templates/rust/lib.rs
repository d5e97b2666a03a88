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

<<without finalizer>>
/// Applies the desired ConfigMap; the host sends it only if it differs from the live one.
<<without messages>>
#[ostler_sdk::reconciler]
<<with messages>>
#[ostler_sdk::reconciler(messages = handle)]
<<end>>
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
<<with finalizer>>
/// Reconciles <<kind>> objects. The ConfigMap is not owned, so that Kubernetes does not delete it with its object: the
/// cleanup does.
pub struct <<kind>>Reconciler;

impl Reconciler for <<kind>>Reconciler {
    type Spec = <<kind>>Spec;
    const FINALIZER: Option<&'static str> = Some("<<group>>/<<singular>>");

    /// Applies the desired ConfigMap; the host sends it only if it differs from the live one.
    fn reconcile(&self, ctx: &Context, object: &<<kind>>) -> Result<Outcome, Failure> {
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": object.name(), "namespace": object.namespace() },
            "data": { "message": object.spec.message },
        });
        ctx.apply(&map, false)?;
        let status = <<kind>>Status {
            config_map: Some(object.name().into()),
        };
        let applied = format!("message applied: {}", object.spec.message);
        Ok(Outcome::await_change()
            .status(&status)
            .with(Condition::new_true("Ready", "Applied", applied)))
    }

    /// Deletes what `reconcile` has made outside of the object. It may run more than once, until it has succeeded.
    fn cleanup(&self, ctx: &Context, object: &<<kind>>) -> Result<Outcome, Failure> {
        let map = gvk("", "v1", "ConfigMap").named(object.namespace(), object.name());
        ctx.delete(&map)?;
        Ok(Outcome::await_change())
    }
}

<<without messages>>
ostler_sdk::plugin!(<<kind>>Reconciler);
<<with messages>>
ostler_sdk::plugin!(<<kind>>Reconciler; messages = handle);
<<end>>
<<end>>
<<with messages>>

/// A message that asks for a <<kind>>.
#[ostler_sdk::api]
pub struct <<kind>>Request {
    /// Name of the <<kind>>.
    pub name: String,
    /// Its message.
    pub message: String,
}

/// Creates the <<kind>> that a message asks for. A message may be delivered more than once: the second time, the object
/// is there.
pub fn handle(ctx: &Context, delivery: &Delivery) -> Result<Disposition, Error> {
    let request: <<kind>>Request = match delivery.json() {
        Ok(request) => request,
        Err(error) => return Ok(Disposition::Reject(error.to_string())),
    };
    let object = json!({
        "apiVersion": "<<group>>/<<version>>",
        "kind": "<<kind>>",
        "metadata": { "name": request.name, "namespace": delivery.broker.namespace },
        "spec": { "message": request.message },
    });
    match ctx.create(&object, false) {
        Ok(_) | Err(Error::Conflict(_)) => Ok(Disposition::Ack),
        Err(error) => Err(error),
    }
}
<<end>>
