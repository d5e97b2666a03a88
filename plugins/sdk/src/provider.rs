//! Service providers: a plugin that installs a service on other clusters for each object of its kind, with the cluster
//! requests of openmcp (`clusters.openmcp.cloud`).
//!
//! A [`DomainService`] consists of two functions, one that installs the service and one that removes it. [`ServiceProvider`]
//! makes a reconciler of it: it reads the configuration of the provider, requests the clusters, waits for them, and releases
//! them when the service is gone. Both functions get the clusters by the names of `Cluster` objects
//! ([`Clusters`]); neither sees a kubeconfig.
//!
//! ```
//! use ostler_sdk::prelude::*;
//! use ostler_sdk::provider::{
//!     Clusters, DomainService, AccessPermissions, PolicyRule, ProviderConfig, ProviderStatus, ServiceProvider, ServiceStatus,
//! };
//! use ostler_sdk::provision::{Provision, Resource};
//!
//! #[ostler_sdk::resource(group = "examples.dev", version = "v1", namespaced, status = CacheStatus)]
//! pub struct CacheSpec {
//!     size: u32,
//! }
//!
//! #[ostler_sdk::api]
//! #[derive(Default)]
//! pub struct CacheStatus {
//!     phase: Option<String>,
//!     provider: Option<ProviderStatus>,
//! }
//!
//! impl ServiceStatus for CacheStatus {
//!     fn provider(&self) -> Option<&ProviderStatus> {
//!         self.provider.as_ref()
//!     }
//! }
//!
//! #[ostler_sdk::resource(group = "examples.dev", version = "v1")]
//! pub struct CacheConfigSpec {
//!     poll_interval: Option<String>,
//! }
//!
//! impl ProviderConfig for CacheConfigSpec {
//!     fn poll_interval(&self) -> Option<&str> {
//!         self.poll_interval.as_deref()
//!     }
//! }
//!
//! struct Caches;
//!
//! fn settings<'a>(cache: &'a Cache, clusters: &'a Clusters) -> Result<Resource<'a>, Failure> {
//!     let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
//!         "metadata": { "name": cache.name(), "namespace": "caches" },
//!         "data": { "size": cache.spec.size.to_string() } });
//!     Ok(Resource::new(&cache.metadata, map).on_cluster(clusters.workload()?.name()))
//! }
//!
//! impl DomainService for Caches {
//!     type Spec = CacheSpec;
//!     type Config = CacheConfigSpec;
//!     const FINALIZER: &'static str = "examples.dev/cache";
//!
//!     fn create_or_update(
//!         &self,
//!         ctx: &Context,
//!         cache: &Cache,
//!         _config: &CacheConfigSpec,
//!         clusters: &Clusters,
//!     ) -> Result<Outcome, Failure> {
//!         settings(cache, clusters)?.provision(ctx)?;
//!         Ok(Outcome::await_change())
//!     }
//!
//!     fn delete(
//!         &self,
//!         ctx: &Context,
//!         cache: &Cache,
//!         _config: Option<&CacheConfigSpec>,
//!         clusters: &Clusters,
//!     ) -> Result<(), Failure> {
//!         settings(cache, clusters)?.deprovision(ctx)
//!     }
//! }
//!
//! const RULES: &[PolicyRule] = &[PolicyRule {
//!     api_groups: &[""],
//!     resources: &["configmaps"],
//!     verbs: &["get", "list", "watch", "patch", "delete"],
//! }];
//!
//! const PROVIDER: ServiceProvider<Caches> =
//!     ServiceProvider::new("cache", Caches).with_workload_cluster(&[AccessPermissions { namespace: None, rules: RULES }]);
//!
//! ostler_sdk::plugin!(PROVIDER);
//! # fn main() {}
//! ```

mod access;
mod owned;
mod status;

pub use access::{AccessPermissions, Clusters, PolicyRule, RequestRef, TargetCluster, build_stable_name};
pub use status::{ProviderStatus, ServiceStage, ServiceStatus};

use crate::provision::merge_failure;
use crate::{Context, Error, Failure, IN_CLUSTER, KindSpec, Next, Object, Outcome, Reconciler, duration};
use access::{AccessPlan, ClusterRole};

/// Key in the configuration of the plugin: name of the provider, and of its configuration object.
const NAME_KEY: &str = "providerName";
/// Key in the configuration of the plugin: namespace of the requests and of the `Cluster` objects.
const NAMESPACE_KEY: &str = "requestNamespace";

/// The spec of a provider's configuration: a cluster-scoped object with the name of the provider.
pub trait ProviderConfig: KindSpec {
    /// Interval in Go's syntax (`1m`) at which each object is reconciled besides its changes, and those of what it reads.
    /// None for no interval: drift of what is read is a change.
    fn poll_interval(&self) -> Option<&str>;
}

/// A service that a provider offers. Both functions are level-triggered, and may find any state that an interrupted call has
/// left.
pub trait DomainService {
    /// The spec of the kind that stands for the service. The kind is namespaced.
    type Spec: KindSpec<Status: ServiceStatus>;
    /// The spec of the provider's configuration.
    type Config: ProviderConfig;

    /// The finalizer (`domain/name`) of the kind.
    const FINALIZER: &'static str;

    /// Installs or updates the service. The clusters are granted.
    ///
    /// # Errors
    /// A [`Failure`] with its reason and resolution, [`Failure::wait`] while the installation takes its time.
    fn create_or_update(
        &self,
        ctx: &Context,
        object: &Object<Self::Spec>,
        config: &Self::Config,
        clusters: &Clusters,
    ) -> Result<Outcome, Failure>;

    /// Removes the service, and succeeds when nothing is left of it. It is called for each service whose installation has
    /// begun, also without a configuration: an administrator may have deleted that first.
    ///
    /// # Errors
    /// A [`Failure`] with its reason and resolution, [`Failure::wait`] while the removal takes its time.
    fn delete(
        &self,
        ctx: &Context,
        object: &Object<Self::Spec>,
        config: Option<&Self::Config>,
        clusters: &Clusters,
    ) -> Result<(), Failure>;
}

/// The reconciler of a [`DomainService`].
///
/// The name of the provider is `providerName` of the plugin's configuration, or else the one given here. The requests and
/// `Cluster` objects are in the namespace `requestNamespace` of the plugin's configuration, or else in that of the object. An
/// object keeps the namespace that it began with. They and the configuration are on the host's own cluster, the platform
/// cluster, also where the objects are on another one (`spec.cluster` of the `Plugin`).
pub struct ServiceProvider<D> {
    domain: D,
    name: &'static str,
    plan: AccessPlan,
}

impl<D> ServiceProvider<D> {
    /// Builds a provider that needs no clusters. The name is at most 21 characters long.
    #[must_use]
    pub const fn new(name: &'static str, domain: D) -> Self {
        Self {
            domain,
            name,
            plan: AccessPlan {
                mcp: None,
                workload: None,
            },
        }
    }

    /// Requests access to a control plane, for whose cluster another controller has made the `ClusterRequest`.
    #[must_use]
    pub const fn with_mcp_cluster(
        mut self,
        permissions: &'static [AccessPermissions],
        find: fn(&crate::ObjectMeta) -> RequestRef,
    ) -> Self {
        self.plan.mcp = Some((permissions, find));
        self
    }

    /// Requests a workload cluster, and access to it.
    #[must_use]
    pub const fn with_workload_cluster(mut self, permissions: &'static [AccessPermissions]) -> Self {
        self.plan.workload = Some(permissions);
        self
    }
}

/// The settings of a provider in the configuration of the plugin.
struct Settings {
    name: String,
    namespace: String,
}

impl<D: DomainService> ServiceProvider<D> {
    fn read_settings(&self, ctx: &Context, object: &Object<D::Spec>) -> Result<Settings, Failure> {
        let config: serde_json::Value = ctx.config()?;
        let text = |key, default: &str| config[key].as_str().unwrap_or(default).to_owned();
        Ok(Settings {
            name: text(NAME_KEY, self.name),
            namespace: text(NAMESPACE_KEY, object.namespace()),
        })
    }

    fn build_role<'a>(
        &self,
        object: &'a Object<D::Spec>,
        provider: &'a str,
        namespace: &'a str,
        role: &'static str,
    ) -> ClusterRole<'a> {
        ClusterRole {
            owner: &object.metadata,
            kind: D::Spec::KIND,
            group: D::Spec::GROUP,
            provider,
            namespace,
            role,
        }
    }

    /// Requests the clusters. None waits for the other.
    fn request_clusters(
        &self,
        ctx: &Context,
        object: &Object<D::Spec>,
        provider: &str,
        namespace: &str,
    ) -> Result<Clusters, Failure> {
        let role = |role| self.build_role(object, provider, namespace, role);
        let mcp = self.plan.mcp.map(|(permissions, find)| {
            role(access::MCP_ROLE).request_access(ctx, &find(&object.metadata), permissions)
        });
        let workload = self
            .plan
            .workload
            .map(|permissions| role(access::WORKLOAD_ROLE).request_cluster(ctx, permissions));
        match (mcp.transpose(), workload.transpose()) {
            (Ok(mcp), Ok(workload)) => Ok(Clusters { mcp, workload }),
            (Err(mut merged), Err(other)) => {
                merge_failure(&mut merged, other);
                Err(merged)
            }
            (Err(failure), _) | (_, Err(failure)) => Err(failure),
        }
    }

    /// Releases the clusters of both roles, also of one that an earlier version of the plugin has requested.
    fn release_clusters(
        &self,
        ctx: &Context,
        object: &Object<D::Spec>,
        provider: &str,
        namespace: &str,
    ) -> Result<(), Failure> {
        let release = |role| {
            self.build_role(object, provider, namespace, role)
                .release_access(ctx)
        };
        match (release(access::MCP_ROLE), release(access::WORKLOAD_ROLE)) {
            (Err(mut merged), Err(other)) => {
                merge_failure(&mut merged, other);
                Err(merged)
            }
            (Ok(()), result) | (result, Ok(())) => result,
        }
    }

    fn install(
        &self,
        ctx: &Context,
        object: &Object<D::Spec>,
        state: &mut ProviderStatus,
    ) -> Result<Outcome, Failure> {
        let settings = self.read_settings(ctx, object)?;
        let Some(config) = read_config::<D::Config>(ctx, &settings.name)? else {
            let message = [
                D::Config::KIND,
                " ",
                &settings.name,
                " does not exist. Create it to configure the provider.",
            ];
            return Err(Failure::wait("ConfigNotFound", message.concat()));
        };
        let interval = match config.spec.poll_interval().map(|text| (text, duration(text))) {
            Some((text, None)) => {
                let message = [
                    D::Config::KIND,
                    " ",
                    &settings.name,
                    ": the poll interval ",
                    text,
                    " is not a duration. Write it as 1m.",
                ];
                return Err(Failure::terminal("InvalidConfig", message.concat()));
            }
            Some((_, Some(milliseconds))) => milliseconds,
            None => 0,
        };
        // Before the first request, so that the cleanup finds it, whatever the configuration is then.
        if state.request_namespace.is_none() {
            state.request_namespace = Some(settings.namespace);
            state.provider_name = Some(settings.name);
            state.checkpoint(ctx)?;
        }
        let clusters =
            self.request_clusters(ctx, object, state.provider_name(), state.request_namespace())?;
        // Before the first write on a cluster: what may have been installed is removed, and nothing else is waited for.
        if state.stage != Some(ServiceStage::Installed) {
            state.stage = Some(ServiceStage::Installed);
            state.checkpoint(ctx)?;
        }
        let mut outcome = self
            .domain
            .create_or_update(ctx, object, &config.spec, &clusters)?;
        if interval > 0 && outcome.next == Next::AwaitChange {
            outcome.next = Next::Poll(Some(interval));
        }
        Ok(outcome)
    }

    fn uninstall(
        &self,
        ctx: &Context,
        object: &Object<D::Spec>,
        state: &mut ProviderStatus,
    ) -> Result<(), Failure> {
        // Nothing was requested.
        if state.request_namespace.is_none() {
            return Ok(());
        }
        if state.stage == Some(ServiceStage::Installed) {
            let settings = self.read_settings(ctx, object);
            let name = settings
                .as_ref()
                .map_or(state.provider_name(), |settings| &settings.name);
            let config = read_config_for_deletion::<D::Config>(ctx, name)?;
            let clusters =
                self.request_clusters(ctx, object, state.provider_name(), state.request_namespace())?;
            self.domain.delete(ctx, object, config.as_ref(), &clusters)?;
            // With the credentials the host could not do so any more.
            owned::release_owned(ctx, &object.metadata)?;
            // Before the access is revoked: a request that is missing from now on is not made again.
            state.stage = Some(ServiceStage::Removed);
            state.checkpoint(ctx)?;
        }
        self.release_clusters(ctx, object, state.provider_name(), state.request_namespace())
    }
}

/// Reads the configuration, which is on the host's own cluster like the requests.
fn read_config<C: ProviderConfig>(ctx: &Context, name: &str) -> Result<Option<Object<C>>, Error> {
    ctx.get_named(&C::reference("", name).on_cluster(IN_CLUSTER))
}

/// Reads the configuration for a deletion. One that is missing, invalid or not permitted does not block it; an outage does.
fn read_config_for_deletion<C: ProviderConfig>(ctx: &Context, name: &str) -> Result<Option<C>, Failure> {
    match read_config::<C>(ctx, name) {
        Ok(config) => Ok(config.map(|config| config.spec)),
        Err(
            error @ (Error::Unavailable(_)
            | Error::Throttled(_)
            | Error::LimitExceeded(_)
            | Error::Conflict(_)
            | Error::NotReady(_)),
        ) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

impl<D: DomainService> Reconciler for ServiceProvider<D> {
    type Spec = D::Spec;
    const FINALIZER: Option<&'static str> = Some(D::FINALIZER);
    const PHASE: bool = true;

    fn reconcile(&self, ctx: &Context, object: &Object<Self::Spec>) -> Result<Outcome, Failure> {
        let mut state = ProviderStatus::read(object);
        let mut result = self.install(ctx, object, &mut state);
        match &mut result {
            Ok(outcome) => state.keep_in(&mut outcome.status),
            Err(failure) => state.keep_in(&mut failure.status),
        }
        result
    }

    fn cleanup(&self, ctx: &Context, object: &Object<Self::Spec>) -> Result<Outcome, Failure> {
        let mut state = ProviderStatus::read(object);
        match self.uninstall(ctx, object, &mut state) {
            Ok(()) => Ok(Outcome::await_change()),
            Err(mut failure) => {
                state.keep_in(&mut failure.status);
                Err(failure)
            }
        }
    }
}
