//! What begins when a build serves: its kinds are watched, and everything it reconciles is looked at.

use std::{collections::BTreeSet, sync::Arc};

use tracing::{info, warn};

use crate::{
    cache::store::Query,
    kube::scope::Projection,
    plugin::Plugin,
    sandbox::capabilities::Services,
    schedule::{dispatcher::Cause, queue::Priority},
};

/// New kinds are watched before anything else; then everything the plugin reconciles is looked at again.
/// One plugin has so many reconciles at the same time at most.
pub(crate) fn swapped(
    services: &Arc<Services>,
    most: u32,
    new: Option<&Arc<Plugin>>,
    before: Option<&Arc<Plugin>>,
) {
    let router = &services.dispatcher;
    if let Some(gone) = before.filter(|b| new.is_none_or(|n| n.name() != b.name())) {
        router.assign_kinds(gone.name(), &[], Vec::new(), 0);
        services.tapes.forget(gone.name());
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
        .flat_map(|k| k.scopes(&services.namespaces))
        .collect();
    let concurrent = [
        plugin.terms.grants.pace().concurrency.unwrap_or(0),
        plugin.max_concurrent,
        most,
    ];
    let concurrent = concurrent.into_iter().filter(|n| *n > 0).min().unwrap_or(0);
    let shown: BTreeSet<_> = plugin.terms.grants.secret_namespaces().collect();
    if !shown.is_empty() {
        let shown: Vec<_> = shown.into_iter().collect();
        let place = match shown.contains(&"*") {
            true => "every namespace".to_owned(),
            false => format!("the namespaces {}", shown.join(", ")),
        };
        warn!(
            "plugin {} is granted to read Secrets of {place} (secretsAreReadable): what is in them is no longer the \
             host's to keep",
            plugin.name()
        );
    }
    router.assign_kinds(plugin.name(), &kinds, scopes, concurrent);
    // What has hooks waits for them, and is let go by these.
    if plugin.suspended || !plugin.lifecycle {
        router.set_paused(plugin.name(), plugin.suspended);
    }
    requeue(services, plugin, cause);
    if plugin.terms.grants.holdable().next().is_some() {
        tokio::spawn(watch_holdable(services.clone(), plugin.clone()));
    }
    info!(plugin = &**plugin.name(), kinds = kinds.len(), "reconciling");
}

/// What a plugin may hold is watched by its metadata: an object that is deleted while its holder is long gone
/// must not wait for ever.
async fn watch_holdable(services: Arc<Services>, plugin: Arc<Plugin>) {
    for (group, kind) in plugin.terms.grants.holdable() {
        let gvk = match services.writer.discover_preferred(group, kind).await {
            Ok(gvk) => gvk,
            Err(e) => {
                warn!(
                    plugin = &**plugin.name(),
                    kind, group, "what is held of it is not followed: {e}"
                );
                continue;
            }
        };
        for scope in services.namespaces.kind_scopes(&gvk, None, Projection::Metadata) {
            services.dispatcher.add_scope(plugin.name(), scope.clone());
            services.informers.ensure_informer(&scope);
        }
    }
}

/// Queues everything a plugin reconciles, from now on or again.
pub(crate) fn requeue(services: &Services, plugin: &Plugin, cause: Cause) {
    for scope in plugin.kinds.iter().flat_map(|k| k.scopes(&services.namespaces)) {
        let (serving, _) = services.informers.ensure_informer(&scope);
        let query = Query {
            namespace: &scope.namespace,
            labels: scope.selector.as_ref(),
            ..Query::default()
        };
        for (key, _) in services.store.list(&serving, &query) {
            services.dispatcher.enqueue(&key, Priority::Low, cause.clone());
        }
    }
}
