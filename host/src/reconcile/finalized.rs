//! Objects with the finalizer of a plugin: they need it for their cleanup.

use std::{sync::Arc, time::Duration};

use tracing::debug;

use crate::{
    cache::store::ListQuery,
    cluster::cluster_object,
    kube::{
        key::ObjectRef,
        object::KubeObject,
        scope::{Projection, Scope},
    },
    plugin::PluginKind,
    sandbox::services::Services,
    schedule::dependencies::{List, ReadDependency},
};

/// Limit of the time for the list of a kind whose plugin is being deleted.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of that time on another cluster.
const CLUSTER_SYNC_TIMEOUT: Duration = Duration::from_secs(3);

/// The objects with the finalizers of these kinds, of a plugin with this home cluster, and the lists that were read to find them.
pub(super) async fn list_finalized(
    services: &Services,
    home: &str,
    kinds: &[PluginKind],
) -> Result<(Vec<(ObjectRef, Arc<KubeObject>)>, Vec<ReadDependency>), String> {
    let (mut left, mut reads) = (Vec::new(), Vec::new());
    if let Some(cluster) = cluster_object(home) {
        let connection = services.clusters.find(home);
        if !connection.is_some_and(|connection| connection.is_verified()) {
            return Err(format!(
                "Cluster {}/{} is not connected",
                cluster.namespace, cluster.name
            ));
        }
        reads.push(ReadDependency::Object(cluster, Projection::Full));
    }
    for kind in kinds {
        let Some(finalizer) = kind.finalizer.as_deref() else {
            continue;
        };
        let Some(api) = services.find_api(&kind.cluster) else {
            return Err(format!("Cluster {} is not connected", kind.cluster));
        };
        let served = api.writer.find_served(&kind.gvk).await;
        let Some(gvk) = served.map_err(|e| format!("{}: {e}", kind.gvk))? else {
            // Its CRD was deleted, and all objects with it.
            continue;
        };
        let kind = &PluginKind { gvk, ..kind.clone() };
        // All objects of the kind: one that the selector leaves out may have the finalizer from before its labels changed.
        let (scopes, timeout) = match &*kind.cluster {
            "" => (find_listable_scopes(services, kind).await, SYNC_TIMEOUT),
            _ => (kind.all_scopes(&services.cache.namespaces), CLUSTER_SYNC_TIMEOUT),
        };
        for scope in scopes {
            let serving = services.wait_synced(&scope, timeout).await?;
            let query = ListQuery {
                namespace: &scope.namespace,
                ..ListQuery::default()
            };
            let found = services.cache.store.list(&serving, &query);
            left.extend(found.into_iter().filter(|(_, o)| o.has_finalizer(finalizer)));
            reads.push(ReadDependency::List(Box::new(List {
                gvk: scope.gvk,
                cluster: scope.cluster,
                namespace: scope.namespace,
                labels: None,
                fields: None,
                projection: Projection::Full,
            })));
        }
    }
    Ok((left, reads))
}

/// The scopes of all objects of a kind, also of those that the selector leaves out: one may have the finalizer from before
/// its labels changed. Where the host may not list all of them, as with roles in the namespaces of the plugin only, they
/// are those of the namespaces that its grants name: it has no finalizer elsewhere unless the grants were narrowed.
async fn find_listable_scopes(services: &Services, kind: &PluginKind) -> Vec<Scope> {
    let namespaces = &services.cache.namespaces;
    let all = namespaces.kind_scopes(&kind.gvk, None, Projection::Full);
    let Some(granted) = &kind.namespaces else {
        return all;
    };
    let granted = namespaces
        .narrow_to(granted)
        .named_scopes(&kind.gvk, None, Projection::Full);
    let writer = &services.api.writer;
    let mut listable = Vec::new();
    for scope in all {
        if granted.contains(&scope) {
            continue;
        }
        let page = writer
            .list_page(None, &kind.gvk, &scope.namespace, None, 1, "")
            .await;
        // Any other error may pass, and is reported by the list itself.
        if page.is_err_and(|e| e.code() == 403) {
            debug!(kind = %kind.gvk, namespace = %scope.namespace, "listing denied, looking in granted namespaces only");
        } else {
            listable.push(scope);
        }
    }
    let uncovered = granted
        .into_iter()
        .filter(|scope| !listable.iter().any(|wide| wide.covers(scope)));
    let uncovered: Vec<Scope> = uncovered.collect();
    listable.extend(uncovered);
    listable
}
