//! Protection of an Upstream and its Secrets before the first request that changes something there.
//!
//! What the request makes is deleted by the cleanup of the object, which needs the Upstream. So the finalizer that keeps the
//! Upstream until then is there first: a namespace that is deleted at any time leaks nothing.

use tracing::warn;

use super::{Call, http::ResolvedUpstream};
use crate::{
    contract::bindings::types::Error,
    kube::{
        key::{Gvk, ObjectRef},
        scope::Projection,
        well_known::bookkeeping::UPSTREAM_PROTECTION,
    },
};

impl Call {
    /// Adds the protection finalizer to an Upstream and its Secrets, for an object that is cleaned up later. It costs a look
    /// into the cache once they have it. Fails if one of them is being deleted without it, since nothing could be cleaned up
    /// there. A host that may not patch them works without the protection.
    pub(super) async fn protect_upstream(&mut self, upstream: &ResolvedUpstream) -> Result<(), Error> {
        let Some(target) = &self.context.target else {
            return Ok(());
        };
        let services = &upstream.services;
        // A cleanup only takes away, and a plan changes nothing.
        if !target.is_finalized || target.object.is_deleting() || services.upstreams.clients.is_dry_run() {
            return Ok(());
        }
        let by = target.key.clone();
        let secrets = upstream.object.secret_names().into_iter();
        let secrets = secrets.map(|name| ObjectRef::new(Gvk::secret(), &upstream.key.namespace, &name));
        // The Upstream comes first: Secrets that no protected Upstream names are released.
        let keys: Vec<ObjectRef> = std::iter::once(upstream.key.clone()).chain(secrets).collect();
        for key in keys {
            let stored = services.cache.store.get(&key, Projection::Full);
            let is_settled = stored.is_none_or(|object| object.has_finalizer(UPSTREAM_PROTECTION));
            if is_settled || self.effects.unprotected.contains(&key) {
                continue;
            }
            let added = services
                .api
                .writer
                .add_finalizer(&key, &by, UPSTREAM_PROTECTION)
                .await;
            match added {
                Ok(Some(sent)) => self.effects.counts.api_writes += u64::from(sent),
                Ok(None) => {
                    return Err(Error::NotFound(format!(
                        "{key} is being deleted: nothing is changed by way of it any more"
                    )));
                }
                Err(e) if e.code() == 403 => {
                    warn!(object = %key, by = %by, error = %e, "setting the protection finalizer failed");
                    self.effects.unprotected.insert(key);
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}
