//! Activation of a build: its kinds are watched, and everything it reconciles is queued.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tracing::{info, warn};

use crate::{
    client::api::ApiError,
    cluster::cluster_object,
    kube::{
        backoff::Backoff,
        scope::{Projection, Scope},
    },
    plugin::Plugin,
    sandbox::services::Services,
    schedule::{dispatcher::Cause, queue::Priority},
};

/// Backoff of discovery requests for a build that serves.
const DISCOVERY_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_mins(1)).with_jitter(50);

/// Watches the kinds of a build that begins to serve, then queues everything it reconciles. A plugin has `most`
/// concurrent reconciles at most. Without a new build the plugin of the previous one is unloaded.
pub(crate) fn activate(
    services: &Arc<Services>,
    most: u32,
    new: Option<&Arc<Plugin>>,
    before: Option<&Arc<Plugin>>,
) {
    let dispatcher = &services.dispatcher;
    if let Some(gone) = before.filter(|b| new.is_none_or(|n| n.name() != b.name())) {
        dispatcher.assign_kinds(gone.name(), &[], Vec::new(), 0);
        services.recordings.forget_plugin(gone.name());
    }
    let Some(plugin) = new else { return };
    let same_build = before.is_some_and(|b| b.digest == plugin.digest);
    let cause = if same_build {
        Cause::ConfigChange
    } else {
        Cause::PluginChange
    };
    let kinds: Vec<_> = plugin.kinds.iter().map(|k| k.gvk.clone()).collect();
    let scopes: Vec<_> = plugin
        .kinds
        .iter()
        .flat_map(|k| k.scopes(&services.cache.namespaces))
        .collect();
    let limits = [
        plugin.policy.grants.reconcile().max_concurrent.unwrap_or(0),
        plugin.max_concurrent,
        most,
    ];
    let concurrent = limits.into_iter().filter(|n| *n > 0).min().unwrap_or(0);
    warn_readable_secrets(plugin);
    dispatcher.assign_cluster_kinds(plugin.name(), plugin.home_cluster(), &kinds, scopes, concurrent);
    // Its Cluster is protected from now on.
    if let Some(cluster) = cluster_object(plugin.home_cluster()) {
        dispatcher.enqueue(&cluster, Priority::Normal, Cause::ConfigChange);
    }
    // The objects of a plugin with hooks are held until these have succeeded: see `lifecycle`.
    if plugin.suspended || !plugin.lifecycle {
        dispatcher.set_paused(plugin.name(), plugin.suspended);
    }
    requeue_objects(services, plugin, cause);
    let activation = Activation {
        services: services.clone(),
        plugin: plugin.clone(),
        number: dispatcher.activation(plugin.name()),
    };
    if services.cache.namespaces.is_confined() && plugin.home_cluster().is_empty() {
        tokio::spawn(activation.clone().find_cluster_scoped());
    }
    for (group, kind) in plugin.policy.grants.holdable_kinds() {
        let (group, kind) = (group.to_owned(), kind.to_owned());
        tokio::spawn(activation.clone().watch_holdable(group, kind));
    }
    info!(plugin = &**plugin.name(), kinds = kinds.len(), "plugin activated");
}

fn warn_readable_secrets(plugin: &Plugin) {
    let namespaces: BTreeSet<_> = plugin.policy.grants.secret_namespaces().collect();
    if namespaces.is_empty() {
        return;
    }
    let names: Vec<_> = namespaces.into_iter().collect();
    warn!(
        plugin = &**plugin.name(),
        namespaces = names.join(","),
        "plugin may read Secrets"
    );
}

/// An activation of a build. Its tasks end when the plugin is activated again or unloaded.
#[derive(Clone)]
struct Activation {
    services: Arc<Services>,
    plugin: Arc<Plugin>,
    number: u64,
}

impl Activation {
    fn is_current(&self) -> bool {
        self.services.dispatcher.activation(self.plugin.name()) == self.number
    }

    /// Repeats a discovery until it succeeds or the activation has ended: a CRD may be installed later, and an API server
    /// that is busy meanwhile must not leave a kind without watches until the next activation.
    async fn discover<T, F: Future<Output = Result<T, ApiError>>>(
        &self,
        request: impl Fn() -> F,
    ) -> Option<T> {
        let mut failures = 0;
        loop {
            match request().await {
                Ok(found) => return self.is_current().then_some(found),
                Err(e) if failures == 0 => {
                    warn!(plugin = &**self.plugin.name(), error = %e, "discovery failed, trying again");
                }
                Err(_) => {}
            }
            failures += 1;
            tokio::time::sleep(DISCOVERY_BACKOFF.delay(failures)).await;
            if !self.is_current() {
                return None;
            }
        }
    }

    /// Replaces the watches of a confined host, one per namespace, by one for each kind that is cluster-scoped.
    async fn find_cluster_scoped(self) {
        let Self { services, plugin, .. } = &self;
        let namespaces = &services.cache.namespaces;
        for kind in &plugin.kinds {
            let discover = || services.api.writer.discover_resource(&kind.gvk);
            let Some(resource) = self.discover(discover).await else {
                return;
            };
            // Another plugin, or a read, may have found the scope of the kind before.
            namespaces.record_scope(&kind.gvk, resource.namespaced);
            let scopes = plugin.kinds.iter().flat_map(|k| k.scopes(namespaces));
            let scopes = scopes.collect();
            if services.dispatcher.replace_scopes(plugin.name(), scopes) {
                requeue_objects(services, plugin, Cause::Start);
            }
        }
    }

    /// Watches the metadata of a kind that a plugin may hold: an object that is deleted after its holder is gone must
    /// not wait forever.
    async fn watch_holdable(self, group: String, kind: String) {
        let Self { services, plugin, .. } = &self;
        let writer = &services.api.writer;
        let Some(gvk) = self.discover(|| writer.discover_preferred(&group, &kind)).await else {
            return;
        };
        let namespaces = &services.cache.namespaces;
        if namespaces.is_confined() {
            let Some(resource) = self.discover(|| writer.discover_resource(&gvk)).await else {
                return;
            };
            namespaces.record_scope(&gvk, resource.namespaced);
        }
        for scope in namespaces.kind_scopes(&gvk, None, Projection::Metadata) {
            services.dispatcher.add_scope(plugin.name(), scope.clone());
            services.cache.informers.ensure_informer(&scope);
        }
    }
}

/// Queues all objects of the plugin's kinds. Those of a cluster without a connection are queued by its first list.
pub(crate) fn requeue_objects(services: &Services, plugin: &Plugin, cause: Cause) {
    let scopes = plugin
        .kinds
        .iter()
        .flat_map(|k| k.scopes(&services.cache.namespaces));
    requeue_scopes(services, scopes, &cause);
}

/// Watches scopes, and queues all of their objects that are cached. The others are queued by the first list.
pub(crate) fn requeue_scopes(services: &Services, scopes: impl IntoIterator<Item = Scope>, cause: &Cause) {
    for scope in scopes {
        let Some(cache) = services.find_cache(&scope.cluster) else {
            continue;
        };
        cache.informers.ensure_informer(&scope);
        for key in services.cache.store.cached_keys(&scope) {
            services.dispatcher.enqueue(&key, Priority::Low, cause.clone());
        }
    }
}
