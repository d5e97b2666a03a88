//! The message handler, which executes the steps in the body of a message.

use ostler_sdk::{
    Delivery, Disposition, Error, Gvk, MessageHandler, ObjectRef, prelude::*, serde_json::Value,
};

use crate::{ProbeStep, broker, message};

/// The body of a message.
#[ostler_sdk::api]
pub struct MessageSteps {
    /// Steps of the handler, in order.
    pub steps: Vec<ProbeStep>,
}

/// Executes the steps of a message, whose body is the JSON of [`MessageSteps`]: `{"steps": [{"do": "ensure", …}]}`. After
/// the last step the message is acknowledged; a body that is not such an object is rejected. The steps are
///
/// - `create` and `apply`: write `object`, whose namespace is the broker's unless it names one; an error of the host ends
///   the handler;
/// - `ensure`: creates `object`, and takes a conflict for an earlier delivery of the same message;
/// - `record`: applies the ConfigMap `name` with what the delivery has: `queue`, `exchange`, `routingKey`, `deliveryCount`,
///   and `messageId`, `type`, `contentType` and `userId` where they are set;
/// - `publish`: as in a Probe; without `name` to the broker of the delivery;
/// - `get`: reads the ConfigMap `name`, which a handler may not;
/// - `spin`: computes for `milliseconds`, so that a test has time between two effects;
/// - `retry`: ends with the disposition retry-after `milliseconds`; `reject`: with reject and the reason `body`;
/// - `fail`: ends with the error `unavailable`; `throttle`: with `throttled` for `milliseconds`; `trap`: with a panic.
///
/// A step with `times` is skipped once the message has been delivered that many times before.
pub struct MessageProber;

impl MessageHandler for MessageProber {
    fn handle(&self, ctx: &Context, delivery: &Delivery) -> Result<Disposition, Error> {
        let message: MessageSteps = match delivery.json() {
            Ok(message) => message,
            Err(error) => return Ok(Disposition::Reject(error.to_string())),
        };
        for step in &message.steps {
            if step.times.is_some_and(|times| delivery.delivery_count >= times) {
                continue;
            }
            if let Some(disposition) = run_step(ctx, delivery, step)? {
                return Ok(disposition);
            }
        }
        Ok(Disposition::Ack)
    }
}

/// Executes one step. Returns the disposition if it ends the handler.
fn run_step(ctx: &Context, delivery: &Delivery, step: &ProbeStep) -> Result<Option<Disposition>, Error> {
    let namespace = delivery.broker.namespace.as_deref().unwrap_or_default();
    let milliseconds = step.milliseconds.unwrap_or_default();
    let name = step.name.as_deref().unwrap_or_default();
    let object = || -> Result<Value, Error> {
        let text = step.object.as_deref().unwrap_or_default();
        let mut object: Value =
            ostler_sdk::serde_json::from_str(text).map_err(|e| Error::Invalid(e.to_string()))?;
        if object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = namespace.into();
        }
        Ok(object)
    };
    match &*step.r#do {
        "create" => {
            ctx.create(&object()?, false)?;
        }
        "ensure" => match ctx.create(&object()?, false) {
            Ok(_) | Err(Error::Conflict(_)) => {}
            Err(error) => return Err(error),
        },
        "apply" => {
            ctx.apply(&object()?, true)?;
        }
        "record" => {
            ctx.apply(&record(delivery, namespace, name), true)?;
        }
        "publish" => {
            let broker = match step.name {
                Some(_) => broker(step).in_namespace(namespace),
                None => delivery.broker.clone(),
            };
            ctx.publish(&broker, &message(step))?;
        }
        "get" => {
            let gvk = Gvk {
                group: String::new(),
                version: "v1".into(),
                kind: "ConfigMap".into(),
            };
            ctx.get_json(&ObjectRef {
                gvk,
                cluster: None,
                namespace: Some(namespace.into()),
                name: name.into(),
            })?;
        }
        "spin" => spin(ctx, milliseconds),
        "retry" => return Ok(Some(Disposition::RetryAfter(milliseconds))),
        "reject" => return Ok(Some(Disposition::Reject(step.body.clone().unwrap_or_default()))),
        "fail" => return Err(Error::Unavailable("requested by a step".into())),
        "throttle" => return Err(Error::Throttled(milliseconds)),
        "trap" => panic!("requested by a step"),
        other => return Ok(Some(Disposition::Reject(format!("no step is called `{other}`")))),
    }
    Ok(None)
}

/// Builds the ConfigMap of `record`.
fn record(delivery: &Delivery, namespace: &str, name: &str) -> Value {
    let properties = &delivery.properties;
    let mut data = json!({
        "queue": delivery.queue, "exchange": delivery.exchange, "routingKey": delivery.routing_key,
        "deliveryCount": delivery.delivery_count.to_string(),
    });
    for (key, value) in [
        ("messageId", &properties.message_id),
        ("type", &properties.type_),
        ("contentType", &properties.content_type),
        ("userId", &properties.user_id),
    ] {
        if let Some(value) = value {
            data[key] = value.as_str().into();
        }
    }
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data})
}

/// Computes for some milliseconds; a component cannot sleep. The clock is read about once a millisecond, because host
/// calls are counted.
fn spin(ctx: &Context, milliseconds: u64) {
    let end = ctx.now() + milliseconds;
    while ctx.now() < end {
        let mut sum = 0_u64;
        for n in 0..1_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(n));
        }
    }
}
