//! `references`: holds, which keep an object from being deleted while another one uses it.

use tracing::instrument;

use super::{PluginCall, ReferenceDisplay, context::check_own_cluster, kubernetes::check_scope};
use crate::{
    client::api::ApiError,
    contract::{
        bindings::{references::Host, types},
        limits::Limit,
    },
    effect::writer::ApiWriter,
    kube::{
        key::ObjectRef,
        object::KubeObject,
        references::{HoldsFull, find_cycle, insert_hold, is_held_by, list_held, list_holders},
        scope::Projection,
        well_known::{condition_type, object_reason},
    },
    observe::metrics::HostCall,
    policy::grants::{Access, GrantVerb},
};
use types::Error;

/// The error of a hold that would close a circle. Objects in the namespaces of neither the holder nor the held object are
/// not named: the plugin may have no access to them.
fn cycle_error(holder: &ObjectRef, held: &ObjectRef, path: &[ObjectRef]) -> Error {
    let is_known = |object: &ObjectRef| {
        object == held || object.namespace == holder.namespace || object.namespace == held.namespace
    };
    let mut names: Vec<String> = path
        .iter()
        .map(|object| {
            if is_known(object) {
                object.to_string()
            } else {
                "…".to_owned()
            }
        })
        .collect();
    names.dedup_by(|a, b| a == b && a == "…");
    Error::Invalid(format!(
        "holding {held} would close a circle in which nothing could be deleted: {holder} → {}",
        names.join(" → ")
    ))
}

/// Finds the cycle in which two objects hold each other, as the API server has them.
async fn find_live_cycle(
    writer: &ApiWriter,
    holder: &ObjectRef,
    held: &ObjectRef,
    max_holds: u32,
) -> Result<Option<Vec<ObjectRef>>, ApiError> {
    let bytes = match writer.get_bytes(held).await {
        Ok(bytes) => bytes,
        Err(e) if e.code() == 404 => return Ok(None),
        Err(e) => return Err(e),
    };
    let object = KubeObject::parse(&held.gvk, &bytes).map(|(_, object)| object);
    let back = object.is_ok_and(|object| list_held(&object, max_holds).contains(holder));
    Ok(back.then(|| vec![held.clone(), holder.clone()]))
}

impl Host for PluginCall {
    #[instrument(name = "references.hold", target = "spans", level = "trace", skip_all, fields(object = %ReferenceDisplay(&r)), err(Debug, level = "trace"))]
    async fn hold(&mut self, r: types::ObjectRef) -> Result<(), Error> {
        self.context.deny_in_hook("references.hold")?;
        let max_holds = self.limits().holds;
        let (target, services) = self.begin_host_call(HostCall::ReferencesHold)?;
        let (holder, uid) = (target.key.clone(), target.object.uid.clone());
        let held_before = services.cache.store.get(&holder, Projection::Metadata);
        let mut held = list_held(held_before.as_deref().unwrap_or(&target.object), max_holds);
        let key = self.context.parse_reference(&r)?;
        for cluster in [&holder.cluster, &key.cluster] {
            check_own_cluster("holds", cluster)?;
        }
        self.context.check_grant(&Access::Kubernetes {
            verb: GrantVerb::Hold,
            gvk: &key.gvk,
            namespace: &key.namespace,
            cluster: "",
        })?;
        if !self.effects.holds.contains(&key) && self.effects.holds.len() >= self.limits().holds as usize {
            return Err(self.limit_exceeded(Limit::Holds, "objects held by one"));
        }
        check_scope(&services.api.writer, &key.gvk, &key.namespace).await?;
        self.check_object_access(&services.home(), "get", &key).await?;
        let Some(object) = self.get_cached(&services, &key, Projection::Metadata).await? else {
            return Err(Error::NotFound(format!("{key} does not exist: it can't be held")));
        };
        let held_by = |o: &_| {
            services
                .cache
                .store
                .get(o, Projection::Metadata)
                .map(|o| list_held(&o, max_holds))
                .unwrap_or_default()
        };
        if let Some(way) = find_cycle(&holder, &key, held_by) {
            return Err(cycle_error(&holder, &key, &way));
        }
        if !is_held_by(&object, &uid) {
            if object.is_deleting() {
                return Err(Error::NotReady(types::NotReady {
                    ref_: r,
                    condition: condition_type::READY.into(),
                    status: types::ConditionStatus::True,
                    exists: true,
                    reason: object_reason::DELETING.into(),
                    message: format!("{key} is being deleted: it can't be held any more"),
                }));
            }
            // The holder is written first: after a crash in between, its list of holds leads to the finalizer to remove.
            let is_new = insert_hold(&mut held, &key, max_holds).map_err(|HoldsFull| {
                let what = "objects held by one, those of reconciles that failed since included";
                self.limit_exceeded(Limit::Holds, what)
            })?;
            if is_new {
                services.api.writer.set_holds(&holder, &uid, &held).await?;
                self.effects.counts.api_writes += 1;
                // The other object may have begun to hold this one since the first check. Both have written their holds
                // by now, so at least the later of the two finds the cycle, in the API server and not in a cache that lags.
                if let Some(way) = find_live_cycle(&services.api.writer, &holder, &key, max_holds).await? {
                    held.remove(&key);
                    services.api.writer.set_holds(&holder, &uid, &held).await?;
                    return Err(cycle_error(&holder, &key, &way));
                }
            }
            let sent = services
                .api
                .writer
                .set_hold_finalizer(&key, &holder, &uid, true)
                .await?;
            self.effects.counts.api_writes += u64::from(sent);
        }
        self.effects.holds.insert(key);
        Ok(())
    }

    #[instrument(name = "references.list-holders", target = "spans", level = "trace", skip_all, fields(object = %ReferenceDisplay(&r)), err(Debug, level = "trace"))]
    async fn list_holders(&mut self, r: types::ObjectRef) -> Result<Vec<types::ObjectRef>, Error> {
        let (_, services) = self.begin_host_call(HostCall::ReferencesListHolders)?;
        let key = self.context.parse_reference(&r)?;
        check_own_cluster("holds", &key.cluster)?;
        self.context.check_grant(&Access::Kubernetes {
            verb: GrantVerb::Get,
            gvk: &key.gvk,
            namespace: &key.namespace,
            cluster: "",
        })?;
        check_scope(&services.api.writer, &key.gvk, &key.namespace).await?;
        self.check_object_access(&services.home(), "get", &key).await?;
        let object = self.get_cached(&services, &key, Projection::Metadata).await?;
        let mut found: Vec<_> = object
            .iter()
            .flat_map(|object| list_holders(object))
            .filter_map(|holder| holder.object)
            .collect();
        found.sort_by(|a, b| (&a.gvk.kind, &a.namespace, &a.name).cmp(&(&b.gvk.kind, &b.namespace, &b.name)));
        self.charge_bytes_from_host(found.iter().map(|holder| holder.to_string().len()).sum())?;
        let references = found.iter().map(|holder| self.context.reference_to(holder));
        Ok(references.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::key::Gvk;

    #[test]
    fn cycle_names_no_object_of_another_namespace() {
        let object = |namespace: &str, name: &str| ObjectRef::new(Gvk::new("g", "v1", "A"), namespace, name);
        let (holder, held) = (object("ours", "holder"), object("theirs", "held"));
        let way = [
            held.clone(),
            object("theirs", "b"),
            object("secret-project", "c"),
            object("other-project", "d"),
            object("ours", "e"),
            holder.clone(),
        ];
        let Error::Invalid(text) = cycle_error(&holder, &held, &way) else {
            panic!("an invalid argument")
        };
        assert!(
            text.ends_with("A/ours/holder → A/theirs/held → A/theirs/b → … → A/ours/e → A/ours/holder"),
            "{text}"
        );
    }
}
