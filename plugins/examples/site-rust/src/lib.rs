//! The example of provisioning that exists in four languages: a text, and a `Service` if it is public.

use ostler_sdk::{
    KindSpec as _,
    prelude::*,
    provision::{Dependency, Resource, StepTree, serial, step, when},
};

/// A text that may be public.
#[ostler_sdk::resource(
    group = "examples.ostler.dev",
    version = "v1alpha1",
    kind = "Site",
    namespaced,
    category = "examples",
    doc = "A text in a ConfigMap, with a Service if it is public.",
    printcolumn(name = "Public", type = "boolean", json_path = ".spec.public")
)]
pub struct SiteSpec {
    /// Text of the site.
    pub text: String,
    /// Makes it public, by a Service. The Service is deleted when it is unset.
    #[serde(default)]
    pub public: bool,
    /// Name of the Site in the same namespace that has to be Ready first. It is held while it is used.
    pub after: Option<String>,
}

/// Builds the steps of a site.
fn steps(site: &Site) -> StepTree<'_> {
    let spec = &site.spec;
    let metadata = json!({ "name": site.name(), "namespace": site.namespace() });
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
        "data": { "text": spec.text } });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": { "selector": { "app": site.name() }, "ports": [{ "port": 80 }] } });
    let after = spec.after.as_deref().unwrap_or_default();
    let other = Dependency::new(SiteSpec::reference(site.namespace(), after));
    serial(vec![
        when(
            !after.is_empty(),
            step("SiteReady", other.ready_when("Ready").held()),
        ),
        step("TextApplied", Resource::new(&site.metadata, map)),
        when(
            spec.public,
            step("ServiceApplied", Resource::new(&site.metadata, service)),
        ),
    ])
}

/// Reconciles sites.
pub struct Sites;

impl Reconciler for Sites {
    type Spec = SiteSpec;
    const FINALIZER: Option<&'static str> = Some("examples.ostler.dev/site");

    fn reconcile(&self, ctx: &Context, site: &Site) -> Result<Outcome, Failure> {
        steps(site).provision(ctx)
    }

    fn cleanup(&self, ctx: &Context, site: &Site) -> Result<Outcome, Failure> {
        steps(site).deprovision(ctx)
    }
}

ostler_sdk::plugin!(Sites);
