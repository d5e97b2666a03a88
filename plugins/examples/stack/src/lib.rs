//! The example of provisioning: an application of several objects, made in order and deleted in the reverse order
//! (`docs/provisioning.md`).

mod config;
mod objects;
mod steps;

use std::collections::BTreeMap;

use ostler_sdk::{
    SecretKey,
    prelude::*,
    provision::wait_for_foreground_deletion,
    serde_json::{Map, Value},
};

use crate::config::{StackConfig, StackInputs};

/// An application, the objects that it needs, and the applications that it uses.
#[ostler_sdk::resource(
    group = "examples.ostler.dev",
    version = "v1alpha1",
    kind = "Stack",
    namespaced,
    category = "examples",
    status = StackStatus,
    doc = "A Deployment with its settings, Service and Ingress, made in order and deleted in the reverse order.",
    printcolumn(name = "Phase", type = "string", json_path = ".status.phase"),
    printcolumn(name = "Image", type = "string", json_path = ".spec.image"),
    printcolumn(name = "Host", type = "string", json_path = ".spec.host")
)]
pub struct StackSpec {
    /// Image of the application.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Number of Pods. Defaults to `replicas` of the ConfigMap stack-defaults, else 1.
    pub replicas: Option<u32>,
    /// Port on which the application listens. Defaults to 8080.
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Settings in the environment of the application.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Key of a Secret in the environment of the application, in the variable of its name. A changed value restarts the Pods.
    pub secret: Option<SecretKey>,
    /// Host name that the application is exposed under. Its Ingress is removed when it is unset.
    pub host: Option<String>,
    /// Names of the Stacks in the same namespace that have to be Ready first. They are held while they are used.
    #[serde(default)]
    pub depends_on: Vec<String>,
    /// Helm chart that the application needs. It is uninstalled when it is unset.
    pub chart: Option<ChartSpec>,
    /// Registers the application on the cluster of the registry, once it is available. The entry is removed when it is unset.
    #[serde(default)]
    pub registered: bool,
}

/// A Helm chart.
#[ostler_sdk::api]
pub struct ChartSpec {
    /// URL of the repository: `https://…` or `oci://…`.
    pub repository: String,
    /// Name of the chart.
    pub name: String,
    /// Version of the chart.
    pub version: String,
    /// Values of the chart.
    #[serde(default)]
    pub values: Map<String, Value>,
}

/// Observed state of a Stack.
#[ostler_sdk::api]
#[derive(Default)]
pub struct StackStatus {
    /// `Progressing`, `Ready` or `Terminating`.
    pub phase: Option<String>,
    /// Objects that hold this Stack. It is deleted after them.
    pub used_by: Vec<String>,
}

/// Reconciles Stacks.
pub struct Stacks;

impl Reconciler for Stacks {
    type Spec = StackSpec;
    const FINALIZER: Option<&'static str> = Some("examples.ostler.dev/stack");
    const PHASE: bool = true;

    fn reconcile(&self, ctx: &Context, stack: &Stack) -> Result<Outcome, Failure> {
        let config: StackConfig = ctx.config()?;
        let inputs = StackInputs::read(ctx, stack, &config)?;
        let holders = ctx.list_holders(&stack.reference())?;
        let status = StackStatus {
            phase: None,
            used_by: holders
                .iter()
                .map(|holder| [&*holder.gvk.kind, "/", &holder.name].concat())
                .collect(),
        };
        let steps = steps::build(stack, &config, inputs)?;
        match steps.provision(ctx) {
            Ok(outcome) => Ok(outcome.status(&status)),
            Err(failure) => Err(failure.status(&status)),
        }
    }

    fn cleanup(&self, ctx: &Context, stack: &Stack) -> Result<Outcome, Failure> {
        let config: StackConfig = ctx.config()?;
        let steps = steps::build(stack, &config, StackInputs::default())?;
        wait_for_foreground_deletion(&stack.metadata).and_then(|()| steps.deprovision(ctx))
    }
}

/// Annotation with the version of the plugin's API that a Stack was written for.
pub const VERSION_ANNOTATION: &str = "examples.ostler.dev/stack-version";
/// The current version.
const CURRENT_VERSION: &str = "1";
/// Label of version 0 that has become an annotation.
pub const TEAM_KEY: &str = "examples.ostler.dev/team";

/// The hooks of the plugin.
pub struct Hooks;

impl Lifecycle for Hooks {
    /// Creates the defaults, which an administrator may edit: they are not overwritten.
    fn initialize(&self, ctx: &Context) -> Result<(), Error> {
        let config: StackConfig = ctx.config().map_err(|failure| Error::Invalid(failure.message))?;
        let Some(namespace) = &config.defaults_namespace else {
            return Ok(());
        };
        match ctx.create(&objects::build_defaults(namespace), false) {
            Ok(_) | Err(Error::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Moves the team of version 0 from a label to an annotation. The spec has the defaults of the CRD, so it stays.
    fn upgrade(&self, _: &Context, object: &Value) -> Result<Option<Value>, Error> {
        if object["metadata"]["annotations"][VERSION_ANNOTATION] == CURRENT_VERSION {
            return Ok(None);
        }
        let mut upgraded = object.clone();
        let metadata = &mut upgraded["metadata"];
        let labels = metadata.get_mut("labels").and_then(Value::as_object_mut);
        if let Some(team) = labels.and_then(|labels| labels.remove(TEAM_KEY)) {
            metadata["annotations"][TEAM_KEY] = team;
        }
        metadata["annotations"][VERSION_ANNOTATION] = CURRENT_VERSION.into();
        Ok(Some(upgraded))
    }
}

ostler_sdk::plugin!(Stacks; lifecycle = Hooks);
