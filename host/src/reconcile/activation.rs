//! Activation of a build: its kinds are watched, and everything it reconciles is queued.

use std::{collections::BTreeSet, sync::Arc};

use tracing::{info, warn};

use crate::{
    cache::store::Query,
    kube::scope::Projection,
    plugin::Plugin,
    sandbox::services::Services,
    schedule::{dispatcher::Cause, queue::Priority},
};

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
    dispatcher.assign_kinds(plugin.name(), &kinds, scopes, concurrent);
    // The objects of a plugin with hooks are held until these have succeeded: see `lifecycle`.
    if plugin.suspended || !plugin.lifecycle {
        dispatcher.set_paused(plugin.name(), plugin.suspended);
    }
    requeue_objects(services, plugin, cause);
    if plugin.policy.grants.holdable_kinds().next().is_some() {
        tokio::spawn(watch_holdable(services.clone(), plugin.clone()));
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

/// Watches the metadata of the kinds that a plugin may hold: an object that is deleted after its holder is gone must
/// not wait forever.
async fn watch_holdable(services: Arc<Services>, plugin: Arc<Plugin>) {
    for (group, kind) in plugin.policy.grants.holdable_kinds() {
        let gvk = match services.api.writer.discover_preferred(group, kind).await {
            Ok(gvk) => gvk,
            Err(e) => {
                warn!(
                    plugin = &**plugin.name(),
                    kind,
                    group,
                    error = %e,
                    "watching held objects failed"
                );
                continue;
            }
        };
        for scope in services
            .cache
            .namespaces
            .kind_scopes(&gvk, None, Projection::Metadata)
        {
            services.dispatcher.add_scope(plugin.name(), scope.clone());
            services.cache.informers.ensure_informer(&scope);
        }
    }
}

/// Queues all objects of the plugin's kinds.
pub(crate) fn requeue_objects(services: &Services, plugin: &Plugin, cause: Cause) {
    for scope in plugin
        .kinds
        .iter()
        .flat_map(|k| k.scopes(&services.cache.namespaces))
    {
        let (serving, _) = services.cache.informers.ensure_informer(&scope);
        let query = Query {
            namespace: &scope.namespace,
            labels: scope.selector.as_ref(),
            ..Query::default()
        };
        for (key, _) in services.cache.store.list(&serving, &query) {
            services.dispatcher.enqueue(&key, Priority::Low, cause.clone());
        }
    }
}
