//! Protection of rights: the RoleBindings of the host and of plugins stay until nothing of their namespace needs them for its
//! cleanup, and so do the Roles that they refer to.
//!
//! A namespace is deleted with all its objects at once. Without protection, its bindings would be gone first, and no cleanup would be
//! allowed any more: the objects would stay for ever. So a binding gets a finalizer before the first object gets one that needs
//! it. The API server lets a change of finalizers alone through without the checks against escalation.
//!
//! Released are the bindings of plugins first, and last those by which the host itself writes finalizers.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::rbac::v1::RoleBinding;
use tracing::{info, warn};

use super::{Controller, ReconcileOutcome};
use crate::{
    cache::{informer::SYNC_TIMEOUT, store::ListQuery},
    cluster::cluster_gvk,
    kube::{
        key::{Gvk, ObjectRef},
        object::KubeObject,
        scope::Projection,
        well_known::{
            annotation::FORCE_DELETE,
            bookkeeping::{CLUSTER_PROTECTION, PLUGIN_LABEL, RIGHTS_PROTECTION, UPSTREAM_PROTECTION},
            plugin_reason,
        },
    },
    plugin::Plugin,
    schedule::{dispatcher::Cause, queue::Work},
    upstream::upstream_gvk,
};

/// Interval of checks whether a binding that is being deleted is still needed.
const RELEASE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks whether a binding has become unneeded. From then on it can be deleted without a host.
const REVIEW_INTERVAL: Duration = Duration::from_secs(60);

/// Returns the kind `RoleBinding`.
pub fn role_binding_gvk() -> Gvk {
    Gvk::new("rbac.authorization.k8s.io", "v1", "RoleBinding")
}

/// A RoleBinding, as far as it is about the host and its plugins.
struct Binding {
    /// User names of its subjects that are service accounts.
    users: Vec<String>,
    /// The Role of its namespace that it refers to; none for a ClusterRole.
    role: Option<ObjectRef>,
    /// The plugin that it was installed for, by its label.
    plugin: Option<String>,
}

impl Binding {
    fn parse(key: &ObjectRef, object: &KubeObject) -> Option<Self> {
        let binding: RoleBinding = serde_json::from_slice(&object.json.text()).ok()?;
        let role = (binding.role_ref.kind == "Role").then(|| {
            let gvk = Gvk::new(&key.gvk.group, &key.gvk.version, "Role");
            ObjectRef::new(gvk, &key.namespace, &binding.role_ref.name)
        });
        let subjects = binding.subjects.unwrap_or_default();
        let accounts = subjects
            .into_iter()
            .filter(|subject| subject.kind == "ServiceAccount");
        let users = accounts.map(|account| {
            let namespace = account.namespace.unwrap_or_default();
            format!("system:serviceaccount:{namespace}:{}", account.name)
        });
        Some(Self {
            users: users.collect(),
            role,
            plugin: binding
                .metadata
                .labels
                .and_then(|mut labels| labels.remove(PLUGIN_LABEL)),
        })
    }

    fn names(&self, user: &str) -> bool {
        self.users.iter().any(|own| own == user)
    }

    /// The rights of a plugin are in it: those of its service account, or those of the host for it.
    fn is_about(&self, plugin: &Plugin, host: &str) -> bool {
        if self.names(host)
            && self
                .plugin
                .as_deref()
                .is_none_or(|label| label == &**plugin.name())
        {
            return true;
        }
        let account = plugin.policy.grants.service_account();
        account.is_some_and(|account| self.names(&account.user_name()))
    }

    /// By it the host may write the finalizers of other bindings: it is the one of a ClusterRole, as installed.
    fn frees_others(&self, host: &str) -> bool {
        self.names(host) && self.role.is_none()
    }

    /// The other was installed for the same plugin, or this one for no particular one.
    fn goes_after(&self, other: &Self) -> bool {
        self.plugin.is_none() || self.plugin == other.plugin
    }
}

/// Protection of the RoleBindings that are needed for the cleanup of objects.
pub(super) struct RightsProtection<'a> {
    controller: &'a Controller,
}

impl<'a> RightsProtection<'a> {
    pub fn new(controller: &'a Controller) -> Self {
        Self { controller }
    }

    /// Adds the finalizer to the bindings that a plugin and the host need for the cleanup of an object. A host that may not do so
    /// works without: then a namespace is deleted after its objects only.
    pub async fn protect(&self, plugin: &Plugin, key: &ObjectRef) -> Result<(), ReconcileOutcome> {
        if key.namespace.is_empty() || !key.is_home() {
            return Ok(());
        }
        let Ok(bindings) = self.list_bindings(&key.namespace).await else {
            return Ok(());
        };
        let host = self.find_own_user(key).await?;
        for (of, object) in bindings {
            let is_settled = object.has_finalizer(RIGHTS_PROTECTION) || object.is_deleting();
            if !is_settled
                && let Some(binding) = Binding::parse(&of, &object)
                && binding.is_about(plugin, &host)
            {
                self.set_finalizer(&of, &binding, key, true).await?;
            }
        }
        Ok(())
    }

    /// Reconciles a RoleBinding: it has the finalizer while it is needed. Returns none when it is gone.
    pub async fn reconcile(&self, work: &Work<ObjectRef, Cause>) -> Option<ReconcileOutcome> {
        let key = &work.key;
        let Some(object) = self.controller.services.cache.store.get(key, Projection::Full) else {
            return self.controller.forget_object(key).await;
        };
        let Some(binding) = Binding::parse(key, &object) else {
            return Some(ReconcileOutcome::settled());
        };
        let is_protected = object.has_finalizer(RIGHTS_PROTECTION);
        let is_deleting = object.is_deleting();
        let again = |interval| ReconcileOutcome::wait(self.controller.time_after(interval), Cause::Poll);
        if is_protected && self.controller.registry.is_loading() {
            return Some(again(RELEASE_INTERVAL));
        }
        let user = match self.find_user(key, &object, &binding).await {
            Ok(user) => user,
            Err(end) => return Some(end),
        };
        let changed = match (&user, is_protected) {
            (None, false) => return Some(ReconcileOutcome::settled()),
            (Some(_), false) if is_deleting => return Some(ReconcileOutcome::settled()),
            (Some(user), true) if is_deleting => {
                self.controller
                    .report_users(key, &object, std::slice::from_ref(user))
                    .await;
                return Some(again(RELEASE_INTERVAL));
            }
            (Some(_), true) => return Some(again(REVIEW_INTERVAL)),
            // It may have been protected a moment ago, for an object that gets its finalizer after that.
            (None, true) if !is_deleting && !work.causes.contains(&Cause::Poll) => {
                return Some(again(REVIEW_INTERVAL));
            }
            (Some(user), false) => self.set_finalizer(key, &binding, user, true).await,
            (None, true) => self.set_finalizer(key, &binding, key, false).await,
        };
        Some(match changed {
            Ok(()) if user.is_some() => again(REVIEW_INTERVAL),
            Ok(()) => {
                info!(object = %key, "protection released");
                ReconcileOutcome::settled()
            }
            Err(end) => end,
        })
    }

    /// Returns an object that needs a binding for its cleanup, or for the release of what it has protected.
    async fn find_user(
        &self,
        key: &ObjectRef,
        object: &KubeObject,
        binding: &Binding,
    ) -> Result<Option<ObjectRef>, ReconcileOutcome> {
        let is_protected = object.has_finalizer(RIGHTS_PROTECTION);
        if object.annotation(FORCE_DELETE) == Some("true") {
            return Ok(None);
        }
        let host = self.find_own_user(key).await?;
        let serving = self.controller.registry.serving();
        let mut is_ours = binding.names(&host);
        for plugin in serving.iter().filter(|plugin| binding.is_about(plugin, &host)) {
            is_ours = true;
            if let Some(user) = self.find_finalized(plugin, &key.namespace).await {
                return Ok(Some(user));
            }
        }
        // Its objects are not known while it does not serve. One without grants has no use for rights.
        let is_unknown = |name: &String| {
            let is_served = serving.iter().any(|plugin| **plugin.name() == **name);
            let reports = self.controller.registry.reports();
            !is_served
                && reports
                    .iter()
                    .any(|report| report.name == *name && report.reason != plugin_reason::KINDS_NOT_GRANTED)
        };
        if is_protected && let Some(plugin) = binding.plugin.as_ref().filter(|name| is_unknown(name)) {
            return Ok(Some(ObjectRef::new(crate::plugin::kind(), "", plugin)));
        }
        if !is_ours {
            return Ok(None);
        }
        if let Some(user) = self.find_releasing(&key.namespace).await {
            return Ok(Some(user));
        }
        if !(is_protected && binding.frees_others(&host)) {
            return Ok(None);
        }
        let bindings = self.list_bindings(&key.namespace).await.unwrap_or_default();
        let other = bindings.into_iter().find(|(of, object)| {
            let is_freed = |other: Binding| !other.frees_others(&host) && binding.goes_after(&other);
            of != key
                && object.has_finalizer(RIGHTS_PROTECTION)
                && Binding::parse(of, object).is_some_and(is_freed)
        });
        Ok(other.map(|(of, _)| of))
    }

    /// Returns an object of a namespace with the finalizer of a plugin.
    async fn find_finalized(&self, plugin: &Plugin, namespace: &str) -> Option<ObjectRef> {
        let is_here =
            |kind: &&crate::plugin::PluginKind| kind.cluster.is_empty() && kind.is_granted_in(namespace);
        for kind in plugin.kinds.iter().filter(is_here) {
            let Some(finalizer) = kind.finalizer.as_deref() else {
                continue;
            };
            let holds = |object: &KubeObject| object.has_finalizer(finalizer);
            match self.find_object(&kind.gvk, namespace, holds).await {
                Ok(None) => {}
                Ok(found) => return found,
                // There may be one.
                Err(_) => return Some(ObjectRef::new(kind.gvk.clone(), namespace, "")),
            }
        }
        None
    }

    /// Returns an Upstream, Cluster or Secret of a namespace that is being deleted, and whose protection the host has to release.
    async fn find_releasing(&self, namespace: &str) -> Option<ObjectRef> {
        let kinds = [
            (upstream_gvk(), UPSTREAM_PROTECTION),
            (cluster_gvk(), CLUSTER_PROTECTION),
            (Gvk::secret(), UPSTREAM_PROTECTION),
            (Gvk::secret(), CLUSTER_PROTECTION),
        ];
        for (gvk, finalizer) in kinds {
            let holds = |object: &KubeObject| object.is_deleting() && object.has_finalizer(finalizer);
            // Without the CRDs there are none.
            if let Ok(Some(found)) = self.find_object(&gvk, namespace, holds).await {
                return Some(found);
            }
        }
        None
    }

    /// Returns the first object of a kind in a namespace that satisfies a condition.
    async fn find_object(
        &self,
        gvk: &Gvk,
        namespace: &str,
        holds: impl Fn(&KubeObject) -> bool,
    ) -> Result<Option<ObjectRef>, String> {
        let services = &self.controller.services;
        let serving = services.wait_kind_synced(gvk, namespace, SYNC_TIMEOUT).await?;
        Ok(services.cache.store.find(&serving, namespace, holds))
    }

    /// Lists the bindings of a namespace.
    async fn list_bindings(&self, namespace: &str) -> Result<Vec<(ObjectRef, Arc<KubeObject>)>, String> {
        let services = &self.controller.services;
        let serving = services
            .wait_kind_synced(&role_binding_gvk(), namespace, SYNC_TIMEOUT)
            .await?;
        let query = ListQuery {
            namespace,
            ..ListQuery::default()
        };
        Ok(services.cache.store.list(&serving, &query))
    }

    async fn find_own_user(&self, key: &ObjectRef) -> Result<Arc<str>, ReconcileOutcome> {
        self.controller
            .services
            .api
            .reviewer
            .own_user()
            .await
            .map_err(|e| {
                self.controller.report_protection_failure(key, key, &e);
                self.controller.retry_request(&e)
            })
    }

    /// Adds or removes the finalizer of a binding, and before that of the Role that it refers to, unless another protected binding
    /// does so, too.
    async fn set_finalizer(
        &self,
        key: &ObjectRef,
        binding: &Binding,
        by: &ObjectRef,
        on: bool,
    ) -> Result<(), ReconcileOutcome> {
        let mut role = binding.role.clone();
        if !on && role.is_some() {
            let bindings = self.list_bindings(&key.namespace).await.unwrap_or_default();
            let shares = |(of, object): &(ObjectRef, Arc<KubeObject>)| {
                of != key
                    && object.has_finalizer(RIGHTS_PROTECTION)
                    && Binding::parse(of, object).is_some_and(|other| other.role == role)
            };
            if bindings.iter().any(shares) {
                role = None;
            }
        }
        for object in role.iter().chain([key]) {
            let writer = &self.controller.services.api.writer;
            match writer
                .set_rights_finalizer(object, by, RIGHTS_PROTECTION, on)
                .await
            {
                Ok(sent) => self
                    .controller
                    .stats
                    .add_counts(by, super::count_writes(u64::from(sent))),
                Err(e) if on && e.code() == 403 => {
                    warn!(object = %object, by = %by, error = %e, "setting the protection finalizer failed");
                    return Ok(());
                }
                Err(e) => {
                    self.controller.report_protection_failure(object, by, &e);
                    return Err(self.controller.retry_request(&e));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(json: &str) -> (ObjectRef, Binding) {
        let (key, object) = KubeObject::parse(&role_binding_gvk(), json.as_bytes()).expect("an object");
        let parsed = Binding::parse(&key, &object).expect("a binding");
        (key, parsed)
    }

    #[test]
    fn binding_names_its_service_accounts_and_its_role() {
        let (key, binding) = binding(
            r#"{"metadata": {"name": "ostler:a", "namespace": "ci", "uid": "u", "resourceVersion": "1",
                "labels": {"ostler.dev/plugin-name": "a"}},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "system", "name": "ostler"},
                {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}]}"#,
        );
        assert!(binding.names("system:serviceaccount:system:ostler"));
        assert!(!binding.names("jane") && !binding.names(""));
        assert_eq!(binding.plugin.as_deref(), Some("a"));
        let role = binding.role.expect("a Role");
        assert_eq!(
            (&*role.gvk.kind, &*role.namespace, &*role.name),
            ("Role", "ci", "r")
        );
        assert_eq!(&*key.namespace, "ci");
    }

    #[test]
    fn binding_of_a_cluster_role_refers_to_no_role_of_its_namespace() {
        let (_, binding) = binding(
            r#"{"metadata": {"name": "b", "namespace": "ci", "uid": "u", "resourceVersion": "1"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}}"#,
        );
        assert_eq!(binding.role, None);
        assert_eq!((binding.users.len(), binding.plugin), (0, None));
    }
}
