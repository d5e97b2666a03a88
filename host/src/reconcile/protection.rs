//! Protection of Upstreams, Clusters and their Secrets: they stay until the last object is gone that needs them for its
//! cleanup.
//!
//! A namespace is deleted with all its objects at once, and an Upstream, a Cluster or a Secret has no finalizer of its own.
//! Without protection they would be gone first, and what their users have created there would stay. So an Upstream or a
//! Cluster that is used for objects with a finalizer gets a finalizer itself, and so does each Secret it names, like
//! `kubernetes.io/pvc-protection`. The call that uses it first sets them and records the use in the metadata of the object
//! (`sandbox/capabilities/protection.rs`); here the record is kept current, and what nobody needs any more is released.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::json;
use tracing::info;

use super::{Controller, ReconcileOutcome, finalized::list_finalized, name_objects, run::ReconcileRun};
use crate::{
    cache::{informer::SYNC_TIMEOUT, store::ListQuery},
    client::api::{ApiError, warn_api_error},
    cluster::{ClusterObject, cluster_gvk},
    effect::events::{EventDraft, EventType},
    kube::{
        key::{Gvk, ObjectRef, cluster_name},
        object::KubeObject,
        protection::{
            Protection, UserKind, format_used, is_user_of, list_used, parse_used, protection_finalizer,
        },
        scope::Projection,
        uid::Uid,
        well_known::{annotation, bookkeeping, error_reason, event_reason},
    },
    plugin::{self, PluginKind},
    schedule::dispatcher::Cause,
    upstream::{UpstreamObject, upstream_gvk},
};

/// Maximum number of users that a message names.
const MAX_NAMED_USERS: usize = 5;
/// Interval of checks whether a deleted Upstream or Cluster still has users. That the last one is gone queues it, too.
pub(super) const RELEASE_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of checks whether the plugins that may have users are loaded.
const LOADING_INTERVAL: Duration = Duration::from_secs(1);

/// A connection that objects need for their cleanup.
enum Protected {
    Upstream(Box<UpstreamObject>),
    Cluster(ClusterObject),
}

impl Protected {
    /// Parses an Upstream or a Cluster; the error names the field.
    fn parse(gvk: &Gvk, object: &KubeObject) -> Result<Self, String> {
        if *gvk == cluster_gvk() {
            return ClusterObject::from_object(object).map(Self::Cluster);
        }
        UpstreamObject::from_object(object)
            .map(Box::new)
            .map(Self::Upstream)
    }

    /// Objects of this namespace may use it.
    fn allows_namespace(&self, namespace: &str) -> bool {
        match self {
            Self::Upstream(upstream) => upstream.allows_namespace(namespace),
            Self::Cluster(cluster) => cluster.allows_namespace(namespace),
        }
    }

    /// Returns true if an object may use it. An object of another home cluster uses it from the namespace of that `Cluster`.
    fn allows_user(&self, user: &ObjectRef) -> bool {
        let home = user.cluster.split_once('/').map(|(namespace, _)| namespace);
        self.allows_namespace(home.unwrap_or(&user.namespace))
    }

    /// The Secrets that it names.
    fn secret_names(&self) -> BTreeSet<String> {
        match self {
            Self::Upstream(upstream) => upstream.secret_names().into_iter().collect(),
            Self::Cluster(cluster) => BTreeSet::from([cluster.spec.kubeconfig_secret_ref.name.clone()]),
        }
    }
}

/// Returns true if a plugin reconciles the objects of a kind, in whichever version.
fn is_same_kind(reconciled: &PluginKind, user: &UserKind) -> bool {
    reconciled.gvk.is_same_kind(&user.gvk) && reconciled.cluster == user.cluster
}

/// Protection of one Upstream or Cluster, and of the Secrets that it names.
pub(super) struct ConnectionProtection<'a> {
    controller: &'a Controller,
    key: &'a ObjectRef,
    object: &'a Arc<KubeObject>,
}

impl ConnectionProtection<'_> {
    /// Keeps the record of a protected Upstream or Cluster current: it has the finalizer while it has users, and so have the
    /// Secrets that it names. Those that it names no more are released.
    pub async fn protect(&self) {
        let (controller, key, object) = (self.controller, self.key, self.object);
        let Ok(protected) = Protected::parse(&key.gvk, object) else {
            return;
        };
        let finalizer = protection_finalizer(&key.gvk);
        let is_protected = object.has_finalizer(finalizer);
        let mut users = Vec::new();
        if !is_protected {
            // It is a home cluster, or somebody has overwritten its metadata, or it was created again.
            users = self.controller.services.connection_users.list_users(key);
            let is_home = key.gvk == cluster_gvk()
                && self
                    .find_plugins_at_home()
                    .await
                    .is_ok_and(|plugins| !plugins.is_empty());
            if users.is_empty() && !is_home {
                return;
            }
        }
        let record = Protection::of(object, finalizer);
        let is_adopted = record.has_former_users
            // Another host may have users that this one does not know.
            && !self.controller.settings.shares_cluster
            && !self.controller.registry.is_loading()
            && self
                .find_former_users(&protected)
                .await
                .is_ok_and(|users| users.is_empty());
        let named = protected.secret_names();
        let add = |record: &mut Protection| {
            users.iter().for_each(|user| record.insert_user(user));
            record.secrets.extend(named.iter().cloned());
            record.has_former_users &= !is_adopted;
        };
        if !self.change_record(&add).await {
            return;
        }
        for name in &named {
            let secret = ObjectRef::new(Gvk::secret(), &key.namespace, name);
            let Some(stored) = self
                .controller
                .services
                .cache
                .store
                .get(&secret, Projection::Full)
            else {
                continue;
            };
            if !stored.is_deleting() {
                if !stored.has_finalizer(finalizer) {
                    self.set_finalizer(&secret, true).await;
                }
            } else if stored.annotation(annotation::FORCE_DELETE) == Some("true") {
                self.release_secret(name).await;
            } else if stored.has_finalizer(finalizer) {
                controller
                    .report_users(&secret, &stored, std::slice::from_ref(key))
                    .await;
            }
        }
        let mut released = BTreeSet::new();
        for name in record.secrets.difference(&named) {
            if self.release_secret(name).await {
                released.insert(name.clone());
            }
        }
        if !released.is_empty() {
            let remove = |record: &mut Protection| record.secrets.retain(|name| !released.contains(name));
            self.change_record(&remove).await;
        }
    }

    /// Reconciles an Upstream or a Cluster that is being deleted: waits for its users, then releases its Secrets and removes
    /// its finalizer.
    pub async fn release(&self) -> ReconcileOutcome {
        let (controller, key, object) = (self.controller, self.key, self.object);
        let finalizer = protection_finalizer(&key.gvk);
        if !object.has_finalizer(finalizer) {
            return controller.reconcile_unowned(key).await;
        }
        let record = Protection::of(object, finalizer);
        let protected = Protected::parse(&key.gvk, object).ok();
        let forced = object.annotation(annotation::FORCE_DELETE) == Some("true");
        if !forced {
            if record.has_former_users && self.controller.settings.shares_cluster {
                return ReconcileOutcome::leave_unread();
            }
            let wait = |interval| ReconcileOutcome::wait(controller.time_after(interval), Cause::Retry);
            if self.controller.registry.is_loading() && (record.has_former_users || key.gvk == cluster_gvk())
            {
                return wait(LOADING_INTERVAL);
            }
            match self.find_users(&record, protected.as_ref()).await {
                Ok(users) if users.is_empty() => {}
                Ok(users) => {
                    controller.report_users(key, object, &users).await;
                    return wait(RELEASE_INTERVAL);
                }
                Err(why) => {
                    self.controller
                        .stats
                        .record_error(key, error_reason::USERS_UNKNOWN, &why);
                    let note =
                        format!("Not deleted, since the objects that may need it can't be listed: {why}");
                    controller.report_blocked(key, object, &note).await;
                    return ReconcileOutcome::retry();
                }
            }
        }
        let mut names = record.secrets;
        names.extend(protected.iter().flat_map(Protected::secret_names));
        for name in &names {
            if !self.release_secret(name).await {
                return ReconcileOutcome::retry();
            }
        }
        if !self.set_finalizer(key, false).await {
            return ReconcileOutcome::retry();
        }
        info!(object = %key, forced, "protection released");
        controller.reconcile_unowned(key).await
    }

    /// The objects that need an Upstream or a Cluster for their cleanup.
    ///
    /// # Errors
    /// A kind of users cannot be listed: the error says which, and why.
    async fn find_users(
        &self,
        record: &Protection,
        protected: Option<&Protected>,
    ) -> Result<Vec<ObjectRef>, String> {
        let (services, key) = (&self.controller.services, self.key);
        let is_user = |object: &KubeObject| !object.finalizers().is_empty() && is_user_of(object, key);
        let is_allowed = |user: &ObjectRef| protected.is_none_or(|protected| protected.allows_user(user));
        let plugins = self.controller.registry.serving();
        let mut users = Vec::new();
        for kind in &record.users {
            let mut reconciled = plugins.iter().flat_map(|plugin| &plugin.kinds);
            if let Some(reconciled) = reconciled.find(|reconciled| is_same_kind(reconciled, kind)) {
                self.sync_users(&reconciled.gvk, kind).await?;
                continue;
            }
            // Whoever may edit the Upstream may write any kind into its annotation, which must not make the host watch that.
            let found = self.search_users(kind, is_user).await?;
            users.extend(found.into_iter().filter(is_allowed));
            if users.len() >= MAX_NAMED_USERS {
                return Ok(users);
            }
        }
        let mut cached = services.connection_users.list_users(key);
        cached.retain(|user| {
            let stored = services.cache.store.get(user, Projection::Metadata);
            stored.is_some_and(|stored| is_user(&stored))
                && record.users.iter().any(|kind| kind.contains(user))
                && is_allowed(user)
        });
        users.extend(cached);
        users.extend(services.connection_users.list_claims(key));
        if key.gvk == cluster_gvk() {
            users.extend(self.find_plugins_at_home().await?);
        }
        if let Some(protected) = protected.filter(|_| record.has_former_users) {
            users.extend(self.find_former_users(protected).await?);
        }
        users.sort();
        users.dedup();
        Ok(users)
    }

    /// Waits until the objects of a kind that a plugin reconciles, in the version `gvk`, are in the cache and its index.
    async fn sync_users(&self, gvk: &Gvk, kind: &UserKind) -> Result<(), String> {
        let Some(cache) = self.controller.services.find_cache(&kind.cluster) else {
            return Err(format!("Cluster {} is not connected", kind.cluster));
        };
        for namespace in cache.namespaces.namespaces_for(gvk, &kind.namespace) {
            // Of full objects: while their watch has not listed them, that of the metadata reports no change to the index.
            let scope = cache
                .namespaces
                .list_scope(gvk, &kind.cluster, &namespace, None, Projection::Full);
            let synced = cache.informers.wait_synced(&scope, SYNC_TIMEOUT).await;
            synced.map_err(|why| format!("{gvk} in namespace {:?}: {why}", &*scope.namespace))?;
        }
        Ok(())
    }

    /// Searches the objects of a kind on the API server, page by page, up to the first page with such an object.
    async fn search_users(
        &self,
        kind: &UserKind,
        is_user: impl Fn(&KubeObject) -> bool,
    ) -> Result<Vec<ObjectRef>, String> {
        let (Some(api), Some(cache)) = (
            self.controller.services.find_api(&kind.cluster),
            self.controller.services.find_cache(&kind.cluster),
        ) else {
            return Err(format!("Cluster {} is not connected", kind.cluster));
        };
        let describe = |e: ApiError| format!("{}: {e}", kind.gvk);
        let Some(gvk) = api.writer.find_served(&kind.gvk).await.map_err(describe)? else {
            // The kind was removed, and all its objects with it.
            return Ok(Vec::new());
        };
        for namespace in cache.namespaces.namespaces_for(&gvk, &kind.namespace) {
            let mut token = String::new();
            loop {
                let page = api.writer.list_metadata_page(&gvk, &namespace, &token).await;
                let (objects, next) = page.map_err(describe)?;
                let users = objects.into_iter().filter(|(_, object)| is_user(object));
                let users: Vec<ObjectRef> = users.map(|(user, _)| user).collect();
                if !users.is_empty() {
                    return Ok(users);
                }
                if next.is_empty() {
                    break;
                }
                token = next;
            }
        }
        Ok(Vec::new())
    }

    /// The plugins whose objects live in a cluster, also those that are not loaded.
    async fn find_plugins_at_home(&self) -> Result<Vec<ObjectRef>, String> {
        let name = cluster_name(&self.key.namespace, &self.key.name);
        let gvk = plugin::kind();
        let services = &self.controller.services;
        let serving = services.wait_kind_synced(&gvk, "", SYNC_TIMEOUT).await?;
        let objects = services
            .cache
            .store
            .list(&serving, &ListQuery::default())
            .into_iter();
        let is_at_home = |object: &KubeObject| {
            object.has_finalizer(bookkeeping::PLUGIN_FINALIZER) && object.field_text("spec.cluster") == *name
        };
        let objects = objects
            .filter(|(_, object)| is_at_home(object))
            .map(|(key, _)| key);
        let loaded = self.controller.registry.serving().into_iter();
        let loaded = loaded
            .filter(|plugin| *plugin.home_cluster() == name)
            .map(|plugin| ObjectRef::new(gvk.clone(), "", plugin.name()));
        Ok(objects.chain(loaded).collect())
    }

    /// The objects for which a former version of the host may have protected an Upstream or a Cluster, and which have not used it
    /// since. An object lists what it uses from its next request on; until it is Ready it may not have come to that. A plugin
    /// that does not serve stands for all its objects.
    async fn find_former_users(&self, protected: &Protected) -> Result<Vec<ObjectRef>, String> {
        let key = self.key;
        let mut users = Vec::new();
        let serving = self.controller.registry.serving();
        for report in self.controller.registry.reports() {
            if serving.iter().all(|plugin| **plugin.name() != *report.name) {
                users.push(ObjectRef::new(plugin::kind(), "", &report.name));
            }
        }
        for plugin in serving {
            let (finalized, _) =
                list_finalized(&self.controller.services, plugin.home_cluster(), &plugin.kinds).await?;
            let found = finalized.into_iter().filter(|(user, object)| {
                let reads = self.controller.services.dispatcher.reads(user);
                let has_read = reads.iter().any(|read| read.object() == Some(key));
                let is_reconciled = self
                    .controller
                    .stats
                    .object(user)
                    .is_some_and(|stats| stats.reconciles > 0);
                let is_no_user = is_reconciled && object.readiness().ready && !has_read;
                !is_user_of(object, key) && !is_no_user && protected.allows_user(user)
            });
            users.extend(found.map(|(user, _)| user));
        }
        Ok(users)
    }

    /// Removes the finalizer of a Secret of an Upstream or a Cluster, unless another one of its kind is protected with it. Returns
    /// false if that failed, which is logged.
    async fn release_secret(&self, name: &str) -> bool {
        let by = self.key;
        let any = ObjectRef::new(by.gvk.clone(), &by.namespace, "");
        let cache = &self.controller.services.cache;
        let scope = cache.namespaces.object_scope(&any, Projection::Full);
        let finalizer = protection_finalizer(&by.gvk);
        let secret = ObjectRef::new(Gvk::secret(), &by.namespace, name);
        let stored = cache.store.get(&secret, Projection::Full);
        let forced = stored.is_some_and(|stored| stored.annotation(annotation::FORCE_DELETE) == Some("true"));
        let query = ListQuery {
            namespace: &by.namespace,
            ..ListQuery::default()
        };
        let needs = |(other, object): &(ObjectRef, Arc<KubeObject>)| {
            if other == by || !object.has_finalizer(finalizer) {
                return false;
            }
            let record = Protection::of(object, finalizer);
            let names = || Protected::parse(&by.gvk, object).map(|protected| protected.secret_names());
            record.secrets.contains(name)
                || (record.has_former_users && names().is_ok_and(|names| names.contains(name)))
        };
        if !forced && cache.store.list(&scope, &query).iter().any(needs) {
            return true;
        }
        self.set_finalizer(&secret, false).await
    }

    /// Changes the record of an Upstream or a Cluster, and adds its finalizer, where the version in the cache differs. Returns
    /// false if it is gone, or if that failed, which is logged: a host that may not patch them works without the protection.
    async fn change_record(&self, change: &(impl Fn(&mut Protection) + Sync)) -> bool {
        let (key, object) = (self.key, self.object);
        let finalizer = protection_finalizer(&key.gvk);
        let before = Protection::of(object, finalizer);
        let mut after = before.clone();
        change(&mut after);
        if object.has_finalizer(finalizer) && after == before {
            return true;
        }
        let writer = &self.controller.services.api.writer;
        match writer.change_protection(key, key, finalizer, change).await {
            Ok(Some(sent)) => {
                self.controller
                    .stats
                    .add_counts(key, super::count_writes(u64::from(sent)));
                true
            }
            Ok(None) => false,
            Err(e) => {
                self.controller.report_protection_failure(key, key, &e);
                false
            }
        }
    }

    /// Adds or removes the finalizer of an Upstream or a Cluster, or of one of its Secrets, as the API server has it. Returns
    /// false if that failed, which is logged.
    async fn set_finalizer(&self, key: &ObjectRef, on: bool) -> bool {
        let by = self.key;
        let writer = &self.controller.services.api.writer;
        let finalizer = protection_finalizer(&by.gvk);
        match writer.set_finalizer(key, by, finalizer, on).await {
            Ok(sent) => {
                self.controller
                    .stats
                    .add_counts(by, super::count_writes(u64::from(sent)));
                true
            }
            Err(e) => {
                self.controller.report_protection_failure(key, by, &e);
                false
            }
        }
    }
}

impl ReconcileRun<'_> {
    /// Remembers what the annotation of an object lists as used, in case that it is overwritten.
    pub(super) fn remember_used(&self, object: &KubeObject) {
        let Some(text) = object.annotation(bookkeeping::USED_CONNECTIONS) else {
            return;
        };
        self.controller.update_state(self.key(), |state| {
            let is_known = |known: &(Uid, Box<str>)| known.0 == object.uid && *known.1 == *text;
            if !state.used_connections.as_deref().is_some_and(is_known) {
                state.used_connections = Some(Box::new((object.uid.clone(), text.into())));
            }
        });
    }

    /// Writes the annotation of the object again that lists what it uses, if somebody has overwritten it in the life of this
    /// process.
    pub(super) async fn restore_used(&mut self) -> Result<(), ReconcileOutcome> {
        let (controller, key, object) = (self.controller, self.key(), &self.object);
        let text = object
            .annotation(bookkeeping::USED_CONNECTIONS)
            .unwrap_or_default();
        let known = {
            let states = controller.states.lock();
            let known = states
                .get(key)
                .and_then(|state| state.used_connections.as_deref());
            let known = known.filter(|known| known.0 == object.uid && *known.1 != *text);
            known.map(|known| known.1.clone())
        };
        let Some(known) = known else {
            return Ok(());
        };
        let listed = list_used(object);
        let mut used = parse_used(&known);
        used.extend(listed.iter().cloned());
        if used == listed {
            return Ok(());
        }
        let annotations = json!({bookkeeping::USED_CONNECTIONS: format_used(&used)});
        let written = match controller.find_api(key) {
            Ok(api) => {
                api.writer
                    .patch_metadata(None, key, object, json!({"annotations": annotations}))
                    .await
            }
            Err(e) => Err(e),
        };
        self.object = written.map_err(|e| {
            if e.code() != 409 {
                controller.report_protection_failure(key, key, &e);
            }
            controller.retry_request(&e)
        })?;
        Ok(())
    }
}

impl Controller {
    /// Returns the protection of an Upstream or a Cluster.
    pub(super) fn protection_of<'a>(
        &'a self,
        key: &'a ObjectRef,
        object: &'a Arc<KubeObject>,
    ) -> ConnectionProtection<'a> {
        ConnectionProtection {
            controller: self,
            key,
            object,
        }
    }

    /// Removes the kinds of a plugin from the records of Upstreams and Clusters: none of its objects has its finalizer any more,
    /// and when its roles are gone with it, the host may not list them. Returns false if that failed, which is logged.
    pub(super) async fn forget_user_kinds(&self, kinds: &[PluginKind]) -> bool {
        let is_of_plugin = |user: &UserKind| kinds.iter().any(|kind| is_same_kind(kind, user));
        let forget = |record: &mut Protection| record.users.retain(|user| !is_of_plugin(user));
        let cache = &self.services.cache;
        let mut is_done = true;
        for gvk in [upstream_gvk(), cluster_gvk()] {
            for scope in cache.namespaces.kind_scopes(&gvk, None, Projection::Full) {
                for (key, object) in cache.store.list(&scope, &ListQuery::default()) {
                    if object.has_finalizer(protection_finalizer(&gvk)) {
                        is_done &= self.protection_of(&key, &object).change_record(&forget).await;
                    }
                }
            }
        }
        is_done
    }

    /// Logs and records that the finalizer of an object could not be added or removed, for the object for which that was tried.
    pub(super) fn report_protection_failure(&self, key: &ObjectRef, by: &ObjectRef, error: &ApiError) {
        warn_api_error!(error, object = %key, by = %by, error = %error, "setting the protection finalizer failed");
        self.stats
            .record_error(by, error_reason::PROTECTION_FAILED, &format!("{key}: {error}"));
    }

    /// Records an Event that names the objects for which a deleted one is kept.
    pub(super) async fn report_users(&self, key: &ObjectRef, object: &Arc<KubeObject>, users: &[ObjectRef]) {
        let note = format!(
            "Needed by {} for cleanup, and deleted after that; {}=true deletes it at once",
            name_objects(users.iter(), MAX_NAMED_USERS),
            annotation::FORCE_DELETE
        );
        self.report_blocked(key, object, &note).await;
    }

    async fn report_blocked(&self, key: &ObjectRef, object: &Arc<KubeObject>, note: &str) {
        let draft = EventDraft {
            component: "ostler",
            event_type: EventType::Warning,
            reason: event_reason::DELETION_BLOCKED,
            note,
        };
        let api = &self.services.api;
        api.recorder.record(&api.writer, key, object, draft, None).await;
    }
}
