//! Protection of Upstreams, Clusters and their Secrets: they stay until the last object is gone that needs them for its
//! cleanup.
//!
//! A namespace is deleted with all its objects at once, and an Upstream, a Cluster or a Secret has no finalizer of its own.
//! Without protection they would be gone first, and what their users have created there would stay. So an Upstream or a
//! Cluster that is used for objects with a finalizer gets a finalizer itself, and so does each Secret it names, like
//! `kubernetes.io/pvc-protection`. Both survive a restart in the middle of a deletion.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tracing::info;

use super::{Controller, JITTER_PERCENT, ReconcileOutcome, add_jitter, name_objects};
use crate::{
    cache::store::Query,
    client::api::{ApiError, warn_api_error},
    cluster::{ClusterObject, cluster_gvk, cluster_object},
    effect::events::{EventDraft, EventType},
    kube::{
        key::{Gvk, ObjectRef, cluster_name},
        object::Object,
        owned::list_owned,
        scope::Projection,
        well_known::{annotation, bookkeeping, error_reason, event_reason},
    },
    plugin::{self, LoadState, Plugin},
    policy::grants::PluginGrants,
    schedule::{dependencies::Dependency, dispatcher::Cause, queue::Priority},
    upstream::{UpstreamObject, upstream_gvk},
};

/// Maximum number of users that a message names.
const MAX_NAMED_USERS: usize = 5;
/// Interval of checks whether a deleted Upstream or Cluster still has users.
pub(super) const RELEASE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after the start in which the plugins are listed.
const LOADING_GRACE: Duration = Duration::from_secs(10);

/// A connection that objects need for their cleanup.
enum Protected {
    Upstream(Box<UpstreamObject>),
    Cluster(ClusterObject),
}

impl Protected {
    /// Parses an Upstream or a Cluster; the error names the field.
    fn parse(gvk: &Gvk, object: &Object) -> Result<Self, String> {
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

    /// The grants of a plugin may cover it.
    fn is_granted(&self, grants: &PluginGrants) -> bool {
        let granted = grants.granted();
        match self {
            Self::Upstream(_) => {
                !(granted.upstreams.is_empty()
                    && granted.messages.is_empty()
                    && grants.subscriptions().is_empty())
            }
            Self::Cluster(_) => granted.kubernetes.iter().any(|g| !g.clusters.is_empty()),
        }
    }

    /// The Secrets that it names.
    fn secret_names(&self) -> BTreeSet<String> {
        match self {
            Self::Upstream(upstream) => upstream.secret_names().into_iter().collect(),
            Self::Cluster(cluster) => BTreeSet::from([cluster.spec.kubeconfig_secret_ref.name.clone()]),
        }
    }
}

/// The finalizer of an Upstream or a Cluster, and of its Secrets.
fn protection_finalizer(gvk: &Gvk) -> &'static str {
    if *gvk == cluster_gvk() {
        bookkeeping::CLUSTER_PROTECTION
    } else {
        bookkeeping::UPSTREAM_PROTECTION
    }
}

impl Controller {
    /// Queues the Upstreams and Clusters that a call for an object with a finalizer has used, unless they are protected
    /// already.
    pub(super) fn request_protection(&self, reads: &[Dependency]) {
        let protected = [upstream_gvk(), cluster_gvk()];
        for read in reads {
            let Dependency::Object(key, _) = read else {
                continue;
            };
            if protected.contains(&key.gvk)
                && let Some(object) = self.services.cache.store.get(key, Projection::Full)
                && !object.is_deleting()
                && !is_protected(&key.gvk, &object)
            {
                self.services
                    .dispatcher
                    .enqueue(key, Priority::Normal, Cause::UpstreamStatus);
            }
        }
    }

    /// Adds the finalizer to an Upstream or a Cluster that has users and to the Secrets it names, and removes it from the
    /// Secrets that none of its kind names any more.
    pub(super) async fn protect_connection(&self, key: &ObjectRef, object: &Object) {
        let Ok(protected) = Protected::parse(&key.gvk, object) else {
            return;
        };
        if !is_protected(&key.gvk, object) {
            let users = self.list_users(key, &protected).await;
            if users.is_ok_and(|users| users.is_empty()) {
                return;
            }
        }
        self.set_protection(key, key, object, true).await;
        for name in protected.secret_names() {
            let secret = ObjectRef::new(Gvk::secret(), &key.namespace, &name);
            if let Some(stored) = self.services.cache.store.get(&secret, Projection::Full)
                && !stored.is_deleting()
            {
                self.set_protection(key, &secret, &stored, true).await;
            }
        }
        self.release_secrets(key, None).await;
    }

    /// Reconciles an Upstream or a Cluster that is being deleted: waits for its users, then releases its Secrets and removes
    /// its finalizer.
    pub(super) async fn release_connection(&self, key: &ObjectRef, object: &Arc<Object>) -> ReconcileOutcome {
        if !is_protected(&key.gvk, object) {
            return self.reconcile_unowned(key).await;
        }
        let forced = object.annotation(annotation::FORCE_DELETE) == Some("true");
        if !forced && let Ok(protected) = Protected::parse(&key.gvk, object) {
            let again = self.services.dispatcher.now() + add_jitter(RELEASE_INTERVAL, JITTER_PERCENT);
            if self.is_loading() {
                return ReconcileOutcome::wait(again, Cause::Retry);
            }
            match self.list_users(key, &protected).await {
                Ok(users) if users.is_empty() => {}
                Ok(users) => {
                    self.report_users(key, object, &users).await;
                    return ReconcileOutcome::wait(again, Cause::Retry);
                }
                Err(why) => {
                    self.stats.record_error(key, error_reason::USERS_UNKNOWN, &why);
                    return ReconcileOutcome::retry();
                }
            }
        }
        self.release_secrets(key, Some(key)).await;
        if !self.set_protection(key, key, object, false).await {
            return ReconcileOutcome::retry();
        }
        info!(object = %key, forced, "protection released");
        self.reconcile_unowned(key).await
    }

    /// True while plugins may still be loaded after the start, whose objects are not known yet.
    pub(super) fn is_loading(&self) -> bool {
        let reports = self.registry.reports();
        self.stats.uptime() < LOADING_GRACE || reports.iter().any(|report| report.state == LoadState::Loading)
    }

    /// The objects that need an Upstream or a Cluster for their cleanup. An object that has not been reconciled in this
    /// process, or failed before it came to its Upstream or Cluster, counts if it may use this one.
    async fn list_users(&self, key: &ObjectRef, protected: &Protected) -> Result<Vec<ObjectRef>, String> {
        let mut users = Vec::new();
        for plugin in self.registry.serving() {
            let grants = &plugin.policy.grants;
            if matches!(protected, Protected::Cluster(_)) && is_home_of(&plugin, key) {
                users.push(ObjectRef::new(plugin::kind(), "", plugin.name()));
                continue;
            }
            // What a plugin with another home cluster cannot use does not wait for that cluster.
            if let Some(namespace) = grants.home_namespace()
                && !(protected.allows_namespace(namespace) && protected.is_granted(grants))
            {
                continue;
            }
            if matches!(protected, Protected::Cluster(_)) && !plugin.policy.grants.has_clusters() {
                continue;
            }
            let (finalized, _) = self.list_finalized(&plugin).await?;
            let found = finalized.into_iter().filter(|(user, object)| {
                let namespace = grants.home_namespace().unwrap_or(&user.namespace);
                protected.allows_namespace(namespace) && self.may_need(user, object, key)
            });
            users.extend(found.map(|(user, _)| user));
        }
        Ok(users)
    }

    fn may_need(&self, user: &ObjectRef, object: &Object, upstream: &ObjectRef) -> bool {
        if upstream.gvk == cluster_gvk() {
            let cluster = cluster_name(&upstream.namespace, &upstream.name);
            if list_owned(object).iter().any(|owned| owned.cluster == cluster) {
                return true;
            }
        }
        let reads = self.services.dispatcher.reads(user);
        let mut upstreams = reads
            .iter()
            .filter_map(|read| match read {
                Dependency::Object(key, _) if key.gvk == upstream.gvk => Some(key),
                _ => None,
            })
            .peekable();
        if upstreams.peek().is_some() {
            return upstreams.any(|key| key == upstream);
        }
        let is_reconciled = self.stats.object(user).is_some_and(|stats| stats.reconciles > 0);
        !(is_reconciled && object.readiness().ready)
    }

    /// Removes the finalizer from the Secrets of a namespace that no Upstream, or Cluster, names, apart from the one that is
    /// being released.
    async fn release_secrets(&self, key: &ObjectRef, released: Option<&ObjectRef>) {
        let store = &self.services.cache.store;
        let scope = |gvk: &Gvk| {
            let key = ObjectRef::new(gvk.clone(), &key.namespace, "");
            self.services
                .cache
                .namespaces
                .object_scope(&key, Projection::Full)
        };
        let query = Query {
            namespace: &key.namespace,
            ..Query::default()
        };
        let upstreams = store.list(&scope(&key.gvk), &query);
        let named: BTreeSet<String> = upstreams
            .iter()
            .filter(|(other, object)| Some(other) != released && is_protected(&key.gvk, object))
            .filter_map(|(_, object)| Protected::parse(&key.gvk, object).ok())
            .flat_map(|protected| protected.secret_names())
            .collect();
        let secrets = store.list(&scope(&Gvk::secret()), &query);
        for (secret, object) in secrets {
            let forced = object.annotation(annotation::FORCE_DELETE) == Some("true");
            if is_protected(&key.gvk, &object) && (forced || !named.contains(&*secret.name)) {
                self.set_protection(key, &secret, &object, false).await;
            } else if is_protected(&key.gvk, &object) && object.is_deleting() {
                self.report_users(&secret, &object, std::slice::from_ref(key))
                    .await;
            }
        }
    }

    /// Adds or removes the finalizer of an object. Returns false if that failed, which is logged: a host that may not
    /// patch Secrets works without the protection.
    async fn set_protection(&self, by: &ObjectRef, key: &ObjectRef, object: &Object, on: bool) -> bool {
        let finalizer = protection_finalizer(&by.gvk);
        if object.has_finalizer(finalizer) == on {
            return true;
        }
        let writer = &self.services.api.writer;
        match writer.set_finalizer(key, by, finalizer, on).await {
            Ok(sent) => {
                self.stats.add_counts(by, super::count_writes(u64::from(sent)));
                true
            }
            Err(e) => {
                self.report_protection_failure(key, by, &e);
                false
            }
        }
    }

    /// Logs and records that the finalizer of an object could not be added or removed, for the object for which that was tried.
    pub(super) fn report_protection_failure(&self, key: &ObjectRef, by: &ObjectRef, error: &ApiError) {
        warn_api_error!(error, object = %key, by = %by, error = %error, "setting the protection finalizer failed");
        self.stats
            .record_error(by, error_reason::PROTECTION_FAILED, &format!("{key}: {error}"));
    }

    /// Records an Event that names the objects for which a deleted one is kept.
    pub(super) async fn report_users(&self, key: &ObjectRef, object: &Arc<Object>, users: &[ObjectRef]) {
        let note = format!(
            "Needed by {} for cleanup, and deleted after that; {}=true deletes it at once",
            name_objects(users.iter(), MAX_NAMED_USERS),
            annotation::FORCE_DELETE
        );
        let draft = EventDraft {
            component: "ostler",
            event_type: EventType::Warning,
            reason: event_reason::DELETION_BLOCKED,
            note: &note,
        };
        let api = &self.services.api;
        api.recorder.record(&api.writer, key, object, draft, None).await;
    }
}

/// A `Cluster` describes the home cluster of a plugin.
fn is_home_of(plugin: &Plugin, cluster: &ObjectRef) -> bool {
    cluster_object(plugin.home_cluster()).as_ref() == Some(cluster)
}

/// An object of this kind, or one of its Secrets, has the finalizer.
fn is_protected(gvk: &Gvk, object: &Object) -> bool {
    object.has_finalizer(protection_finalizer(gvk))
}
