//! Selection of the objects to plan.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use anyhow::bail;

use super::{PLAN_SYNC_TIMEOUT, PlanRequest, Planner};
use crate::{
    cache::store::ListQuery,
    client::api::ApiError,
    cluster::{ClusterObject, cluster_gvk},
    kube::{
        key::{Gvk, ObjectRef},
        scope::Projection,
    },
    plugin::{Plugin, PluginKind},
    sandbox::services::SharedCache,
    schedule::host_lane::HostLane,
    upstream,
};

impl Planner {
    /// Connects to the clusters that `Cluster` objects describe. Returns those that cannot be connected to, with the reason:
    /// what uses them waits.
    pub(super) async fn connect_clusters(&self) -> BTreeMap<ObjectRef, String> {
        let mut unconnected = BTreeMap::new();
        let SharedCache {
            informers,
            namespaces,
            store,
        } = &*self.services.cache;
        let kind = cluster_gvk();
        if self.cluster.discover_resource(&kind).await.is_err() {
            return unconnected;
        }
        for scope in namespaces.kind_scopes(&kind, None, Projection::Full) {
            let Ok(serving) = informers.wait_synced(&scope, PLAN_SYNC_TIMEOUT).await else {
                continue;
            };
            for (key, object) in store.list(&serving, &ListQuery::default()) {
                let connected = match ClusterObject::from_object(&object) {
                    Ok(cluster) => {
                        let secret = cluster.kubeconfig_secret();
                        let scope = namespaces.object_scope(&secret, Projection::Full);
                        let _ = informers.wait_synced(&scope, PLAN_SYNC_TIMEOUT).await;
                        let secret = store.get(&secret, Projection::Full);
                        match self.services.clusters.connect(&cluster, secret.as_deref()) {
                            // Calls use only a connection that has passed a check.
                            Ok(connection) => {
                                let checked = connection.check_health().await;
                                checked.map(drop).map_err(|e| e.to_string())
                            }
                            Err(e) => Err(e.to_string()),
                        }
                    }
                    Err(why) => Err(why),
                };
                if let Err(why) = connected {
                    unconnected.insert(key, why);
                }
            }
        }
        unconnected
    }

    /// Lists the kinds that the plugins reconcile, and assigns them to the queue's lanes.
    pub(super) async fn list_kinds(&self, notes: &mut Vec<String>) -> anyhow::Result<()> {
        let dispatcher = &self.services.dispatcher;
        let namespaces = &self.services.cache.namespaces;
        for plugin in self.controller.registry.serving() {
            let mut kinds = Vec::new();
            let home = plugin.home_cluster();
            let Some(api) = self.services.find_api(home) else {
                let name = plugin.name();
                notes.push(format!(
                    "the objects of {name} wait: its Cluster {home} is not connected"
                ));
                continue;
            };
            for kind in &plugin.kinds {
                match api.writer.discover_resource(&kind.gvk).await {
                    Ok(_) => kinds.push(kind),
                    Err(e @ ApiError::UnknownKind(..)) => notes.push(e.to_string()),
                    Err(e) => return Err(e.into()),
                }
            }
            let scopes: Vec<_> = kinds.iter().flat_map(|k| k.scopes(namespaces)).collect();
            for scope in &scopes {
                let synced = self.services.wait_synced(scope, PLAN_SYNC_TIMEOUT).await;
                synced.map_err(|why| anyhow::anyhow!("{} can't be listed: {why}", scope.gvk))?;
            }
            let kinds: Vec<Gvk> = kinds.into_iter().map(|k| k.gvk.clone()).collect();
            dispatcher.assign_cluster_kinds(plugin.name(), home, &kinds, scopes, 1);
            dispatcher.set_paused(plugin.name(), plugin.suspended);
            if plugin.suspended {
                notes.push(format!(
                    "the objects of {} wait: its Plugin is suspended",
                    plugin.name()
                ));
            }
        }
        // The host itself reconciles Upstreams, live and planned ones.
        if self
            .cluster
            .discover_resource(&upstream::upstream_gvk())
            .await
            .is_ok()
        {
            let scopes = namespaces.kind_scopes(&upstream::upstream_gvk(), None, Projection::Full);
            dispatcher.assign_kinds(
                &HostLane::Upstreams.name().into(),
                &[upstream::upstream_gvk()],
                scopes,
                1,
            );
        }
        Ok(())
    }

    /// The objects to reconcile first.
    pub(super) async fn select_objects(
        &self,
        plan_request: &PlanRequest,
        intended: &[ObjectRef],
        notes: &mut Vec<String>,
    ) -> anyhow::Result<Vec<ObjectRef>> {
        let serving = self.controller.registry.serving();
        let kinds: Vec<&PluginKind> = serving.iter().flat_map(|p| &p.kinds).collect();
        let ours = |key: &&ObjectRef| {
            kinds
                .iter()
                .any(|k| k.gvk == key.gvk && k.is_of_cluster(&key.cluster))
        };
        let mut chosen: Vec<ObjectRef> = intended.iter().filter(ours).cloned().collect();
        let foreign = chosen.len() < intended.len();
        for named in &plan_request.objects {
            let key = self.resolve_name(plan_request, named, &kinds).await?;
            if plan_request.delete && !key.is_home() {
                bail!("{key}: the deletion of an object of another home cluster can't be planned yet");
            }
            if plan_request.delete {
                self.list_owned_kinds(&key, &serving).await;
                self.delete_object(&key).await?;
            } else if self.services.cache.store.get(&key, Projection::Full).is_none() {
                bail!("{key} does not exist, or its plugin's label selector leaves it out");
            }
            chosen.push(key);
        }
        // Any object may read the objects that no plugin reconciles.
        if plan_request.objects.is_empty() && (foreign || intended.is_empty()) {
            if foreign {
                notes.push(
                    "the files have objects that no plugin reconciles: all objects are planned, as any may read these"
                        .into(),
                );
            }
            chosen.extend(self.select_all(plan_request, &serving).await);
        }
        Ok(chosen)
    }

    /// All objects that the plugins reconcile; with other builds, only those that these reconcile.
    async fn select_all(&self, plan_request: &PlanRequest, serving: &[Arc<Plugin>]) -> Vec<ObjectRef> {
        let built = |plugin: &&Arc<Plugin>| {
            plan_request.builds.is_empty()
                || plan_request
                    .builds
                    .iter()
                    .any(|b| *b == Path::new(&plugin.source))
        };
        let mut all = Vec::new();
        for kind in serving.iter().filter(built).flat_map(|p| &p.kinds) {
            for scope in kind.scopes(&self.services.cache.namespaces) {
                let Some(cache) = self.services.find_cache(&scope.cluster) else {
                    continue;
                };
                let (scope, _) = cache.informers.ensure_informer(&scope);
                let query = ListQuery {
                    namespace: plan_request.namespace.as_deref().unwrap_or_default(),
                    labels: kind.selector.as_ref(),
                    ..ListQuery::default()
                };
                let found = self.services.cache.store.list(&scope, &query);
                all.extend(found.into_iter().map(|(key, _)| key));
            }
        }
        all
    }

    /// Resolves `KIND/NAME` to an object.
    async fn resolve_name(
        &self,
        plan_request: &PlanRequest,
        named: &str,
        kinds: &[&PluginKind],
    ) -> anyhow::Result<ObjectRef> {
        let Some((kind, name)) = named
            .split_once('/')
            .filter(|(kind, name)| !kind.is_empty() && !name.is_empty())
        else {
            bail!("{named:?}: KIND/NAME is needed, for example team/platform");
        };
        for candidate in kinds {
            let gvk = &candidate.gvk;
            let Some(api) = self.services.find_api(&candidate.cluster) else {
                continue;
            };
            let Ok(resource) = api.writer.discover_resource(gvk).await else {
                continue;
            };
            let names = [&*gvk.kind, &resource.plural];
            let full = names.map(|name| format!("{name}.{}", gvk.group));
            let mut names = names.into_iter().chain(full.iter().map(|f| &**f));
            if !names.any(|name| name.eq_ignore_ascii_case(kind)) {
                continue;
            }
            let namespace = if resource.namespaced {
                &*plan_request.default_namespace
            } else {
                ""
            };
            return Ok(ObjectRef::new(gvk.clone(), namespace, name).with_cluster(&candidate.cluster));
        }
        let known: Vec<&str> = kinds.iter().map(|k| &*k.gvk.kind).collect();
        bail!(
            "{named:?}: no plugin here reconciles a kind of this name; they reconcile {}",
            known.join(", ")
        )
    }
}
