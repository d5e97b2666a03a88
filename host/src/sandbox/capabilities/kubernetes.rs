//! `kubernetes`: reads from the shared cache, writes with the plugin's field manager.

mod checks;
mod insertion;
mod lists;
mod logs;
mod owned;
mod patch;
mod projection;
mod reads;

use std::{hash::Hash, sync::Arc};

use serde_json::Value;
use tracing::{Span, field::Empty, instrument};

use self::{
    insertion::redact_error,
    patch::{check_patched_status, check_subresource, is_applied, meets_preconditions},
    projection::{cache_projection, project_fields},
};
use super::{
    PluginCall, ReferenceDisplay, context::parse_gvk, http::deny_digest_key, protection::ConnectionUsage,
};
use crate::{
    client::{access_review::ObjectAccess, api::ApiError},
    cluster::cluster_gvk,
    contract::bindings::{
        kubernetes::{
            ApplyOptions, CreateOptions, DeleteOptions, GetOptions, Host, ListOptions, LogOptions, Page,
            Preconditions, Projection,
        },
        types::{self, ConditionStatus, Error},
    },
    effect::writer::{ApiWriter, WriteContext},
    kube::{
        hash::hash_to_u64,
        key::{Gvk, ObjectRef, is_path_segment},
        object::KubeObject,
        owned::is_owned,
        scope::Projection as CacheProjection,
        secret_view::{visible_json, visible_value},
        selector::{FieldSelector, LabelSelector},
        well_known::{bookkeeping, condition_type},
    },
    observe::metrics::{HostCall, Suppressed},
    policy::grants::{Access, GrantVerb},
    sandbox::services::{ClusterAccess, Services},
    schedule::dependencies::{List, ReadDependency},
    upstream::{Redactor, upstream_gvk},
};

/// Maximum number of objects in a page from the shared cache.
const MAX_PAGE_OBJECTS: usize = 500;

impl Host for PluginCall {
    #[instrument(name = "kubernetes.get", target = "spans", level = "trace", skip_all, fields(object = %ReferenceDisplay(&r)), err(Debug, level = "trace"))]
    async fn get(&mut self, r: types::ObjectRef, options: GetOptions) -> Result<Option<Vec<u8>>, Error> {
        let (target, services) = self.begin_host_call(HostCall::KubernetesGet)?;
        let by = target.key.clone();
        let key = self.context.parse_reference(&r)?;
        let projection = cache_projection(&options.projection);
        if key.gvk.is_secret() && projection == CacheProjection::Metadata {
            self.context.check_grant(&Access::SecretMetadata {
                namespace: &key.namespace,
                cluster: &key.cluster,
            })?;
        } else {
            self.context.check_verb(GrantVerb::Get, &key)?;
        }
        let access = self
            .access_cluster(&services, &key.cluster, ConnectionUsage::Reads)
            .await?;
        let object = if options.live {
            check_scope(&access.api.writer, &key.gvk, &key.namespace).await?;
            // A dependency reports when the object changes, so the account's right to read it is reviewed first.
            self.check_get(&access, &key).await?;
            // The edge comes before the request: a change while the response is on its way wakes the object.
            self.record_read(self.dependency_on(&access, &key, projection))?;
            let account = self.context.service_account_on(&access);
            let live = access.api.writer.read_uncached(account, &key, &by).await;
            live.map_err(|e| self.map_api_error(&access, e))?
        } else {
            self.check_get(&access, &key).await?;
            self.read_object(&services, &access, &key, projection).await?
        };
        let json = object.map(|object| self.project(&key.gvk, &object, &options.projection));
        json.map(|json| self.return_bytes(json)).transpose()
    }

    #[instrument(name = "kubernetes.list", target = "spans", level = "trace", skip_all, fields(kind = gvk.kind, namespace = options.namespace.as_deref()), err(Debug, level = "trace"))]
    async fn list(&mut self, gvk: types::Gvk, options: ListOptions) -> Result<Page, Error> {
        let (_, services) = self.begin_host_call(HostCall::KubernetesList)?;
        let cluster = self.context.parse_cluster(options.cluster.as_deref())?;
        let gvk = parse_gvk(&gvk)?;
        let namespace = options.namespace.as_deref().unwrap_or("");
        if !is_path_segment(namespace) {
            return Err(Error::Invalid(format!("namespace `{namespace}` is not a name")));
        }
        self.context.check_grant(&Access::Kubernetes {
            verb: GrantVerb::List,
            gvk: &gvk,
            namespace,
            cluster: &cluster,
        })?;
        let access = self
            .access_cluster(&services, &cluster, ConnectionUsage::Reads)
            .await?;
        if options.live {
            check_scope(&access.api.writer, &gvk, namespace).await?;
        }
        let (selector, fields) = parse_selectors(&gvk, &options)?;
        let limit = match options.limit {
            None | Some(0) => MAX_PAGE_OBJECTS,
            Some(limit) => MAX_PAGE_OBJECTS.min(limit as usize),
        };
        let namespaces = &access.cache.namespaces;
        if namespaces.is_confined() && namespace.is_empty() {
            let resource = access.api.writer.discover_resource(&gvk).await?;
            namespaces.record_scope(&gvk, resource.namespaced);
        }
        let lists = namespaces
            .namespaces_for(&gvk, namespace)
            .into_iter()
            .map(|namespace| List {
                gvk: gvk.clone(),
                cluster: cluster.clone(),
                namespace,
                labels: selector.clone(),
                fields: fields.clone(),
                // The fields of a field selector may be anywhere in the object.
                projection: fields.as_ref().map_or_else(
                    || cache_projection(&options.projection),
                    |_| CacheProjection::Full,
                ),
            });
        let lists: Vec<List> = lists.collect();
        let token = options.continue_token.as_deref();
        let (objects, continue_token) = if options.live {
            self.list_live(&access, lists, limit, token).await?
        } else {
            self.list_cached(&access, lists, limit, token).await?
        };
        let charged = self
            .budget
            .charge_listed_objects(objects.len(), self.context.limits());
        charged.map_err(|e| self.context.report_exceeded(e))?;
        let mut items = Vec::with_capacity(objects.len());
        for (_, object) in &objects {
            let item = self.project(&gvk, object, &options.projection);
            items.push(self.return_bytes(item)?);
        }
        Ok(Page {
            items,
            continue_token,
        })
    }

    #[instrument(name = "kubernetes.require-ready", target = "spans", level = "trace", skip_all, fields(object = %ReferenceDisplay(&r)), err(Debug, level = "trace"))]
    async fn require_ready(&mut self, r: types::ObjectRef) -> Result<Vec<u8>, Error> {
        let (_, services) = self.begin_host_call(HostCall::KubernetesRequireReady)?;
        self.get_with_condition(&services, r, None).await
    }

    #[instrument(name = "kubernetes.require-condition", target = "spans", level = "trace", skip_all, fields(object = %ReferenceDisplay(&r), condition = kind), err(Debug, level = "trace"))]
    async fn require_condition(
        &mut self,
        r: types::ObjectRef,
        kind: String,
        status: ConditionStatus,
    ) -> Result<Vec<u8>, Error> {
        let (_, services) = self.begin_host_call(HostCall::KubernetesRequireCondition)?;
        if kind.is_empty() {
            return Err(Error::Invalid(
                "the type of the required condition is empty".into(),
            ));
        }
        self.get_with_condition(&services, r, Some((kind, status))).await
    }

    #[instrument(name = "kubernetes.apply", target = "spans", level = "trace", skip_all, fields(object = Empty, sent = Empty), err(Debug, level = "trace"))]
    async fn apply(&mut self, object: Vec<u8>, options: ApplyOptions) -> Result<Vec<u8>, Error> {
        let (target, services) = self.begin_host_call(HostCall::KubernetesApply)?;
        let by = target.key.clone();
        let request_digest =
            hash_to_u64(|hasher| (&object, options.owned, options.force, &target.object.uid).hash(hasher));
        let cluster = self.context.parse_cluster(options.cluster.as_deref())?;
        self.context
            .check_remote_options(&cluster, options.owned, &options.substitutions)?;
        let is_owned_elsewhere = options.owned && !self.context.is_target_cluster(&cluster);
        let usage = ConnectionUsage::of_write(is_owned_elsewhere);
        self.charge_bytes_to_host(object.len())?;
        // The digest has no secrets in it: with substitutions the object is compared below.
        let known = services
            .find_access(&cluster)
            .filter(|_| options.substitutions.is_empty());
        if let Some(known) = known
            && let Some((key, live)) = known.api.writer.unchanged_since_last_apply(&by, request_digest)
        {
            self.context.check_verb(GrantVerb::Apply, &key)?;
            if names_secrets(&key.gvk) {
                self.context.check_named_secrets(&key, &live.to_value(), None)?;
            }
            let access = match cluster.is_empty() {
                true => known,
                false => self.access_cluster(&services, &cluster, usage).await?,
            };
            self.check_patch(&access, &key).await?;
            Span::current().record("object", tracing::field::display(&key));
            self.record_written_object(key.clone(), None, options.owned)?;
            if is_owned_elsewhere {
                Box::pin(self.list_as_owned(&services, &key)).await?;
            }
            // From here on a change wakes the object. One from before it is seen now.
            if access.api.writer.is_cached_version(&key, live.resource_version) {
                self.record_apply(key.clone(), false, options.owned)?;
                let written = key.gvk.is_secret().then(|| serde_json::from_slice(&object).ok());
                return self.return_object(&key.gvk, &live, written.flatten().as_ref());
            }
        }
        // In a box: most calls end above, and would move the state of the request around with them.
        Box::pin(self.send_apply(&services, &by, object, &cluster, options, request_digest)).await
    }

    #[instrument(name = "kubernetes.create", target = "spans", level = "trace", skip_all, fields(object = Empty), err(Debug, level = "trace"))]
    async fn create(&mut self, object: Vec<u8>, options: CreateOptions) -> Result<Vec<u8>, Error> {
        let (by, services) = self
            .begin_host_call(HostCall::KubernetesCreate)
            .map(|(s, services)| (s.key.clone(), services))?;
        let cluster = self.context.parse_cluster(options.cluster.as_deref())?;
        self.context
            .check_remote_options(&cluster, options.owned, &options.substitutions)?;
        self.charge_bytes_to_host(object.len())?;
        let is_owned_elsewhere = options.owned && !self.context.is_target_cluster(&cluster);
        let usage = ConnectionUsage::of_write(is_owned_elsewhere);
        let (key, mut object) =
            self.context
                .prepare_object(object, &cluster, options.owned, GrantVerb::Create)?;
        self.context.check_insertion(&key, &options.substitutions)?;
        self.context.check_named_secrets(&key, &object, None)?;
        let access = self.access_cluster(&services, &cluster, usage).await?;
        check_scope(&access.api.writer, &key.gvk, &key.namespace).await?;
        Span::current().record("object", tracing::field::display(&key));
        let labelled = KubeObject::parse(&key.gvk, object.to_string().as_bytes()).ok();
        let (mut template, mut redactor) = (None, None);
        if !options.substitutions.is_empty() {
            let filled = self
                .insert_secrets(&services, &key, object, options.substitutions)
                .await?;
            object = filled.object;
            (template, redactor) = (Some(filled.template), Some(filled.redactor));
        }
        let labelled = labelled.as_ref().map(|(_, object)| object);
        self.record_written_object(key.clone(), labelled, options.owned)?;
        if is_owned_elsewhere {
            Box::pin(self.list_as_owned(&services, &key)).await?;
        }
        let written = access
            .api
            .writer
            .create(self.context.write_context(&access, &by), &key, &object)
            .await;
        let written = written.map_err(|e| self.map_write_error(&access, e, redactor.as_ref()))?;
        self.effects.record_write(&key, written.sent);
        self.return_object(&key.gvk, &written.object, template.as_ref().or(Some(&object)))
    }

    #[instrument(name = "kubernetes.patch", target = "spans", level = "trace", skip_all, fields(object = %ReferenceDisplay(&r), sent = Empty), err(Debug, level = "trace"))]
    async fn patch(
        &mut self,
        r: types::ObjectRef,
        patch: Vec<u8>,
        preconditions: Preconditions,
    ) -> Result<Vec<u8>, Error> {
        let (target, services) = self.begin_host_call(HostCall::KubernetesPatch)?;
        let by = target.key.clone();
        self.charge_bytes_to_host(patch.len())?;
        let key = self.context.parse_reference(&r)?;
        self.context.check_verb(GrantVerb::Patch, &key)?;
        let patch = self.context.check_merge_patch(&by, &key, &patch)?;
        let access = self
            .access_cluster(&services, &key.cluster, ConnectionUsage::Changes)
            .await?;
        check_scope(&access.api.writer, &key.gvk, &key.namespace).await?;
        let resource = access.api.writer.discover_resource(&key.gvk).await?;
        check_patched_status(&patch, resource.has_status())?;
        self.check_patch(&access, &key).await?;
        // A patch that would leave the cached object unchanged is not sent.
        if let Some(live) = self.get_patched(&services, &access, &key).await?
            && meets_preconditions(&live, &preconditions)
            && is_applied(&patch, &live.to_value())
        {
            Span::current().record("sent", false);
            self.effects.record_write(&key, false);
            return self.return_object(&key.gvk, &live, None);
        }
        let patched = self
            .send_patch(&access, &by, &key, "", &patch, &preconditions)
            .await?;
        Span::current().record("sent", true);
        Ok(patched)
    }

    #[instrument(name = "kubernetes.patch-subresource", target = "spans", level = "trace", skip_all, fields(object = %ReferenceDisplay(&r), subresource), err(Debug, level = "trace"))]
    async fn patch_subresource(
        &mut self,
        r: types::ObjectRef,
        subresource: String,
        patch: Vec<u8>,
        preconditions: Preconditions,
    ) -> Result<Vec<u8>, Error> {
        let (target, services) = self.begin_host_call(HostCall::KubernetesPatchSubresource)?;
        let by = target.key.clone();
        self.charge_bytes_to_host(patch.len())?;
        let key = self.context.parse_reference(&r)?;
        check_subresource(&subresource)?;
        self.context.check_grant(&Access::Subresource {
            verb: GrantVerb::Patch,
            gvk: &key.gvk,
            subresource: &subresource,
            namespace: &key.namespace,
            cluster: &key.cluster,
        })?;
        let patch = self.context.check_merge_patch(&by, &key, &patch)?;
        let access = self
            .access_cluster(&services, &key.cluster, ConnectionUsage::Changes)
            .await?;
        check_scope(&access.api.writer, &key.gvk, &key.namespace).await?;
        let resource = access.api.writer.discover_resource(&key.gvk).await?;
        if !resource.has_subresource(&subresource) {
            return Err(Error::Unsupported(format!(
                "patch-subresource: the API server has no {}/{subresource} with the form of the object",
                resource.plural
            )));
        }
        // No cached object is returned, so that the API server alone authorizes it.
        self.send_patch(&access, &by, &key, &subresource, &patch, &preconditions)
            .await
    }

    #[instrument(name = "kubernetes.delete", target = "spans", level = "trace", skip_all, fields(object = %ReferenceDisplay(&r)), err(Debug, level = "trace"))]
    async fn delete(&mut self, r: types::ObjectRef, options: DeleteOptions) -> Result<(), Error> {
        let (target, services) = self.begin_host_call(HostCall::KubernetesDelete)?;
        let by = target.key.clone();
        let key = self.context.parse_reference(&r)?;
        self.context.check_verb(GrantVerb::Delete, &key)?;
        deny_digest_key(&key.gvk, &key.name)?;
        let access = self
            .access_cluster(&services, &key.cluster, ConnectionUsage::Reads)
            .await?;
        check_scope(&access.api.writer, &key.gvk, &key.namespace).await?;
        let live = access.cache.store.get(&key, CacheProjection::Full);
        self.record_written_object(
            key.clone(),
            live.as_deref(),
            live.as_deref().is_some_and(is_owned),
        )?;
        let context = self.context.write_context(&access, &by);
        let deleted = access
            .api
            .writer
            .delete(context, &key, options.propagation, &options.preconditions);
        let existed = deleted.await.map_err(|e| self.map_api_error(&access, e))?;
        self.effects.record_write(&key, true);
        // One with finalizers stays listed until it is gone.
        let is_gone = !existed
            || services
                .cache
                .store
                .get(&key, CacheProjection::Metadata)
                .is_none();
        if is_gone {
            self.unlist_owned(&services, &access, &key).await?;
        }
        Ok(())
    }

    #[instrument(name = "kubernetes.read-log", target = "spans", level = "trace", skip_all, fields(object = %ReferenceDisplay(&pod)), err(Debug, level = "trace"))]
    async fn read_log(&mut self, pod: types::ObjectRef, options: LogOptions) -> Result<String, Error> {
        let (_, services) = self.begin_host_call(HostCall::KubernetesReadLog)?;
        let key = self.context.parse_reference(&pod)?;
        self.context.check_log_request(&key, &options)?;
        self.read_log_tail(&services, &key, &options).await
    }
}

impl PluginCall {
    /// Applies an object that differs from the last apply: checks it, inserts secrets, and sends it unless the cached object has all
    /// of it.
    async fn send_apply(
        &mut self,
        services: &Arc<Services>,
        by: &ObjectRef,
        object: Vec<u8>,
        cluster: &Arc<str>,
        options: ApplyOptions,
        mut request_digest: u64,
    ) -> Result<Vec<u8>, Error> {
        let is_owned_elsewhere = options.owned && !self.context.is_target_cluster(cluster);
        let usage = ConnectionUsage::of_write(is_owned_elsewhere);
        let (key, mut object) =
            self.context
                .prepare_object(object, cluster, options.owned, GrantVerb::Apply)?;
        self.context.check_insertion(&key, &options.substitutions)?;
        Span::current().record("object", tracing::field::display(&key));
        let access = self.access_cluster(services, cluster, usage).await?;
        check_scope(&access.api.writer, &key.gvk, &key.namespace).await?;
        self.check_patch(&access, &key).await?;
        // The cached object decides whether the apply changes anything and has to be sent. An owned one without the label of
        // owned objects is not cached: the apply that adds the label is sent. Where the fields of other managers are checked,
        // the object is read whatever its labels are.
        let live = match options.owned && !names_secrets(&key.gvk) {
            true => {
                self.drop_wide_reads(&key);
                self.read_owned(services, &key, CacheProjection::Full).await?
            }
            false => self.get_cached(services, &key, CacheProjection::Full).await?,
        };
        let mut live_version = None;
        if names_secrets(&key.gvk) {
            let before = live.as_ref().map(|live| live.to_value());
            self.context.check_named_secrets(&key, &object, before.as_ref())?;
            // The check is about the fields of other managers as well, so it holds for this version only.
            live_version = live.as_ref().map(|live| live.resource_version);
        }
        if is_owned_elsewhere {
            let required = self.take_over(services, &access, &key, live.as_ref()).await?;
            live_version = live_version.or(required);
        }
        let (mut template, mut redactor, mut sent_digest) = (None, None, None);
        if !options.substitutions.is_empty() {
            let filled = self
                .insert_secrets(services, &key, object, options.substitutions)
                .await?;
            object = filled.object;
            (template, redactor) = (Some(filled.template), Some(filled.redactor));
            sent_digest = Some(filled.digest);
            request_digest = hash_to_u64(|hasher| (request_digest, filled.digest).hash(hasher));
        }
        let writer = WriteContext {
            request_digest,
            sent_digest,
            live_version,
            ..self.context.write_context(&access, by)
        };
        let apply = access.api.writer.apply(writer, &key, &object, options.force);
        let written = apply
            .await
            .map_err(|e| self.map_write_error(&access, e, redactor.as_ref()))?;
        self.record_apply(key.clone(), written.sent, options.owned)?;
        self.return_object(&key.gvk, &written.object, template.as_ref().or(Some(&object)))
    }
}

/// Refuses a namespace for a cluster-scoped kind. The path of the request has no namespace, so a grant for that namespace
/// would otherwise cover the object.
pub(super) async fn check_scope(writer: &ApiWriter, gvk: &Gvk, namespace: &str) -> Result<(), Error> {
    let resource = writer.discover_resource(gvk).await?;
    if resource.namespaced || namespace.is_empty() {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{} is cluster-scoped: leave the namespace `{namespace}` out",
        gvk.kind
    )))
}

/// Objects of this kind name Secrets that the host sends somewhere.
fn names_secrets(gvk: &Gvk) -> bool {
    gvk.is_same_kind(&upstream_gvk()) || gvk.is_same_kind(&cluster_gvk())
}

impl PluginCall {
    /// Records an apply, and counts one that was unnecessary and therefore not sent.
    fn record_apply(&mut self, key: ObjectRef, sent: bool, is_owned: bool) -> Result<(), Error> {
        Span::current().record("sent", sent);
        if !sent && let Some(metrics) = &self.context.metrics {
            metrics.record_suppressed(Suppressed::Apply);
        }
        self.effects.record_write(&key, sent);
        self.record_written_object(key, None, is_owned)
    }

    /// Records an object that the call writes as read, so that a change by another writer wakes the reconciled object. It
    /// comes before the request: a change while the response is on its way counts, and a limit of watches must not fail
    /// the call after the write.
    ///
    /// An object of a list that the call has read has its watch already. One of its own would be that of the whole kind, or of
    /// its owned objects.
    fn record_written_object(
        &mut self,
        key: ObjectRef,
        written: Option<&KubeObject>,
        is_owned: bool,
    ) -> Result<(), Error> {
        if written.is_some_and(|written| self.is_listed(&key, written)) {
            return Ok(());
        }
        if is_owned {
            self.drop_wide_reads(&key);
            return self.record_read(ReadDependency::Owned(key, CacheProjection::Full));
        }
        self.record_read(ReadDependency::Object(key, CacheProjection::Full))
    }

    /// Returns whether an object belongs to a list that the call has read.
    fn is_listed(&self, key: &ObjectRef, object: &KubeObject) -> bool {
        self.effects.reads.iter().any(|read| match read {
            ReadDependency::List(list) => list.covers(key, object),
            ReadDependency::Object(..) | ReadDependency::Owned(..) => false,
        })
    }

    /// Returns the cached object that the call patches. It is recorded as [`Self::record_written_object`] does.
    async fn get_patched(
        &mut self,
        services: &Services,
        access: &ClusterAccess,
        key: &ObjectRef,
    ) -> Result<Option<Arc<KubeObject>>, Error> {
        let live = access.cache.store.get(key, CacheProjection::Full);
        match live.filter(|live| self.is_listed(key, live)) {
            Some(live) => Ok(Some(live)),
            None => {
                self.read_object(services, access, key, CacheProjection::Full)
                    .await
            }
        }
    }

    /// Returns an object with a condition of this status, or one that is ready if none is given. It is recorded as a
    /// dependency.
    async fn get_with_condition(
        &mut self,
        services: &Services,
        r: types::ObjectRef,
        required: Option<(String, ConditionStatus)>,
    ) -> Result<Vec<u8>, Error> {
        let key = self.context.parse_reference(&r)?;
        self.context.check_verb(GrantVerb::Get, &key)?;
        let access = self
            .access_cluster(services, &key.cluster, ConnectionUsage::Reads)
            .await?;
        self.check_get(&access, &key).await?;
        let object = self
            .read_object(services, &access, &key, CacheProjection::Full)
            .await?;
        let check = |object: &Arc<KubeObject>| match &required {
            None => object.check_ready(&key.gvk),
            Some((kind, status)) => object.check_condition(kind, status.as_str()),
        };
        let state = object.as_ref().map(check).unwrap_or_default();
        match object {
            Some(object) if state.ready => self.return_object(&key.gvk, &object, None),
            object => {
                let ready = || (condition_type::READY.to_owned(), ConditionStatus::True);
                let (condition, status) = required.unwrap_or_else(ready);
                Err(Error::NotReady(types::NotReady {
                    ref_: r,
                    condition,
                    status,
                    exists: object.is_some(),
                    reason: state.reason,
                    message: state.message,
                }))
            }
        }
    }

    /// Charges and returns an object as the plugin may read it. `written` is the object that it has just written.
    fn return_object(
        &mut self,
        gvk: &Gvk,
        object: &KubeObject,
        written: Option<&Value>,
    ) -> Result<Vec<u8>, Error> {
        let shows_values = self.context.policy.grants.shows_secret_values();
        self.return_bytes(visible_json(gvk, object, shows_values, written))
    }

    /// The projected fields of an object as the plugin may read it.
    fn project(&self, gvk: &Gvk, object: &KubeObject, projection: &Projection) -> Vec<u8> {
        let shows_values = self.context.policy.grants.shows_secret_values();
        match projection {
            Projection::Full => visible_json(gvk, object, shows_values, None),
            projection => project_fields(&visible_value(gvk, object, shows_values), projection),
        }
    }

    /// Converts the error of a write, without the secrets that were inserted into the object.
    fn map_write_error(&mut self, access: &ClusterAccess, e: ApiError, redactor: Option<&Redactor>) -> Error {
        let error = self.map_api_error(access, e);
        match redactor {
            Some(redactor) => redact_error(error, redactor),
            None => error,
        }
    }

    /// Checks the access of the service account to read one object.
    async fn check_get(&mut self, access: &ClusterAccess, key: &ObjectRef) -> Result<(), Error> {
        self.check_object_access(access, "get", key).await
    }

    /// Checks the access of the service account to write one object. The API server does not check a write that is
    /// unnecessary and therefore not sent, but its response has the object.
    async fn check_patch(&mut self, access: &ClusterAccess, key: &ObjectRef) -> Result<(), Error> {
        self.check_object_access(access, "patch", key).await
    }

    /// Checks the access of the service account to one object.
    pub(super) async fn check_object_access(
        &mut self,
        access: &ClusterAccess,
        verb: &'static str,
        key: &ObjectRef,
    ) -> Result<(), Error> {
        let read = ObjectAccess::to_object(verb, key);
        self.check_rbac(access, &[read]).await
    }
}

/// Returns true for the path of a field with values of a Secret.
fn is_secret_value(path: &str) -> bool {
    matches!(path.split('.').next(), Some("data" | "stringData"))
}

/// Returns true for an annotation with which the host marks a write.
fn is_mark(name: &str) -> bool {
    name.starts_with(bookkeeping::APPLIED) || name.starts_with(bookkeeping::SUBSTITUTED)
}

/// The label and field selectors of a list; none for an empty one.
fn parse_selectors(
    gvk: &Gvk,
    options: &ListOptions,
) -> Result<(Option<LabelSelector>, Option<FieldSelector>), Error> {
    let labels = options.label_selector.as_deref().filter(|text| !text.is_empty());
    let labels = labels.map(LabelSelector::parse);
    let labels = labels
        .transpose()
        .map_err(|e| Error::Invalid(format!("label-selector: {e}")))?;
    let fields = options.field_selector.as_deref().filter(|text| !text.is_empty());
    let fields = fields.map(FieldSelector::parse);
    let fields = fields
        .transpose()
        .map_err(|e| Error::Invalid(format!("field-selector: {e}")))?;
    if gvk.is_secret() && fields.iter().flat_map(FieldSelector::paths).any(is_secret_value) {
        return Err(Error::Invalid(
            "field-selector: the values of a Secret cannot be selected".into(),
        ));
    }
    Ok((labels, fields))
}
