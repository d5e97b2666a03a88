//! The example of a service provider: a small service on a workload cluster for each `FooService` (`docs/providers.md`).

mod objects;

use ostler_sdk::{
    SecretKeyRef,
    prelude::*,
    provider::{
        AccessPermissions, Clusters, DomainService, PolicyRule, ProviderConfig, ProviderStatus,
        ServiceProvider, ServiceStatus,
    },
    provision::{Resource, StepTree, concurrent, serial, step},
    serde_json::Value,
};

use crate::objects::{ServiceInputs, namespace_name};

/// A service that answers each request with a text.
#[ostler_sdk::resource(
    group = "services.ostler.dev",
    version = "v1alpha1",
    kind = "FooService",
    namespaced,
    category = "services",
    status = FooServiceStatus,
    doc = "A service that answers each request with a text, on a workload cluster.",
    printcolumn(name = "Phase", type = "string", json_path = ".status.phase"),
    printcolumn(name = "Cluster", type = "string", json_path = ".status.cluster")
)]
pub struct FooServiceSpec {
    /// Text of the answers.
    #[schemars(length(min = 1))]
    pub text: String,
    /// Number of Pods. Defaults to 1.
    pub replicas: Option<u32>,
}

/// Observed state of a FooService.
#[ostler_sdk::api]
#[derive(Default)]
pub struct FooServiceStatus {
    /// `Progressing`, `Ready` or `Terminating`.
    pub phase: Option<String>,
    /// Namespace and name of the Cluster on which it is installed.
    pub cluster: Option<String>,
    /// Host name of the service on that cluster.
    pub host: Option<String>,
    /// State of the requests for the cluster.
    pub provider: Option<ProviderStatus>,
}

impl ServiceStatus for FooServiceStatus {
    fn provider(&self) -> Option<&ProviderStatus> {
        self.provider.as_ref()
    }
}

/// Configuration of the provider.
#[ostler_sdk::resource(
    group = "services.ostler.dev",
    version = "v1alpha1",
    kind = "FooServiceConfig",
    category = "services",
    doc = "Configuration of the provider of FooServices: the object named foo-service."
)]
pub struct FooServiceConfigSpec {
    /// Image of the service.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Interval at which each FooService is reconciled besides changes, in Go's syntax (1m). None without it.
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub poll_interval: Option<String>,
    /// Key of a Secret whose change restarts the Pods of all FooServices.
    pub restart_secret_ref: Option<RestartSecretRef>,
}

/// A key of a Secret.
#[ostler_sdk::api]
pub struct RestartSecretRef {
    /// Namespace of the Secret.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(min = 1))]
    pub key: String,
}

impl ProviderConfig for FooServiceConfigSpec {
    fn poll_interval(&self) -> Option<&str> {
        self.poll_interval.as_deref()
    }
}

/// Installs and removes the service.
pub struct FooServices;

impl DomainService for FooServices {
    type Spec = FooServiceSpec;
    type Config = FooServiceConfigSpec;
    const FINALIZER: &'static str = "services.ostler.dev/foo-service";

    fn create_or_update(
        &self,
        ctx: &Context,
        object: &FooService,
        config: &FooServiceConfigSpec,
        clusters: &Clusters,
    ) -> Result<Outcome, Failure> {
        let inputs = ServiceInputs {
            image: &config.image,
            secret_digest: read_digest(ctx, config)?,
        };
        let cluster = clusters.workload()?.name();
        let status = FooServiceStatus {
            cluster: Some(cluster.into()),
            host: Some(format!("{}.{}", object.name(), namespace_name(object))),
            ..FooServiceStatus::default()
        };
        match build_steps(object, &inputs, cluster).provision(ctx) {
            Ok(outcome) => Ok(outcome.status(&status)),
            Err(failure) => Err(failure.status(&status)),
        }
    }

    fn delete(
        &self,
        ctx: &Context,
        object: &FooService,
        _config: Option<&FooServiceConfigSpec>,
        clusters: &Clusters,
    ) -> Result<(), Failure> {
        let steps = build_steps(object, &ServiceInputs::default(), clusters.workload()?.name());
        steps.deprovision(ctx).map(|_| ())
    }
}

/// Reads the digest of the Secret that restarts the Pods. A change of its value causes a reconcile; a missing one is none.
fn read_digest(ctx: &Context, config: &FooServiceConfigSpec) -> Result<Option<String>, Failure> {
    let Some(secret) = &config.restart_secret_ref else {
        return Ok(None);
    };
    let reference = SecretKeyRef::new(&secret.name, &secret.key).in_namespace(&secret.namespace);
    match ctx.secret_digest_of(&reference) {
        Ok(digest) => Ok(digest),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn build_steps<'a>(object: &'a FooService, inputs: &ServiceInputs, cluster: &'a str) -> StepTree<'a> {
    let resource = |value: Value| Resource::new(&object.metadata, value).on_cluster(cluster);
    serial(vec![
        step("NamespaceCreated", resource(objects::build_namespace(object))),
        step("SettingsApplied", resource(objects::build_settings(object))),
        concurrent(vec![
            step(
                "DeploymentAvailable",
                resource(objects::build_deployment(object, inputs)).ready_when("Available"),
            ),
            step("ServiceApplied", resource(objects::build_service(object))),
        ]),
    ])
}

/// The least that the steps need.
const PERMISSIONS: &[AccessPermissions] = &[AccessPermissions {
    namespace: None,
    rules: &[
        PolicyRule {
            api_groups: &[""],
            resources: &["namespaces", "configmaps", "services"],
            verbs: &["get", "list", "watch", "create", "patch", "delete"],
        },
        PolicyRule {
            api_groups: &["apps"],
            resources: &["deployments"],
            verbs: &["get", "list", "watch", "create", "patch", "delete"],
        },
    ],
}];

/// The provider.
pub const PROVIDER: ServiceProvider<FooServices> =
    ServiceProvider::new("foo-service", FooServices).with_workload_cluster(PERMISSIONS);

ostler_sdk::plugin!(PROVIDER);
