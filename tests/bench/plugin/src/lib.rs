//! The bench's operator as an Ostler plugin: a `Sample` becomes a `ConfigMap` of its name.

use ostler_sdk::prelude::*;

/// What the ConfigMap is to have.
#[ostler_sdk::resource(
    group = "bench.ostler.dev",
    version = "v1",
    kind = "Sample",
    namespaced,
    doc = "A sample, kept in a ConfigMap of the same name."
)]
pub struct SampleSpec {
    /// Goes into the ConfigMap as it is.
    pub text: String,
    /// A ConfigMap whose `value` goes into the ConfigMap too.
    pub config: Option<String>,
}

/// Reconciles samples.
pub struct Sampler;

impl Reconciler for Sampler {
    type Spec = SampleSpec;

    fn reconcile(&self, ctx: &Context, sample: &Sample) -> Result<Outcome, Failure> {
        let mut data = json!({ "text": sample.spec.text });
        if let Some(config) = &sample.spec.config {
            let reference = gvk("", "v1", "ConfigMap").named(sample.namespace(), config);
            let Some(config) = ctx.get_json(&reference)? else {
                return Err(Failure::wait("NoConfig", "The ConfigMap does not exist"));
            };
            data["value"] = config["data"]["value"].clone();
        }
        ctx.apply_owned(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": sample.name(), "namespace": sample.namespace() },
            "data": data,
        }))?;
        Ok(Outcome::await_change().with(Condition::new_true("Ready", "Applied", "The ConfigMap is there")))
    }
}

ostler_sdk::plugin!(Sampler);
