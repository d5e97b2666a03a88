//! Freshness of an object before the first request of a leader term that may not be repeated.
//!
//! The cache of a new leader, or of a restarted host, may lag behind the status in which the leader before has recorded the
//! effect of a request. A component that is given the older version would send the request again. So the first such request
//! of an object in a term waits until the cache has caught up with the API server.

use std::sync::Arc;

use super::PluginCall;
use crate::contract::bindings::{http::Method, types::Error};

/// True for a method that is not idempotent: repeated, it may have another effect (RFC 9110, section 9.2.2; PATCH: RFC 5789).
pub(super) fn is_unrepeatable(method: Method) -> bool {
    matches!(method, Method::Post | Method::Patch)
}

impl PluginCall {
    /// Compares the version of the object that the component was given with the one in the API server. It costs one request
    /// per object and term. A checkpoint has compared them already.
    ///
    /// # Errors
    /// `conflict` if the versions differ. The reconcile is retried, and has the newer version once it is in the cache.
    pub(super) async fn ensure_fresh_object(&mut self) -> Result<(), Error> {
        if self.context.is_hook() {
            return Ok(());
        }
        let Some(target) = &self.context.target else {
            return Ok(());
        };
        let services = target.services.clone();
        // Without a term the fence refuses the request, and a plan sends none.
        let Some(term) = services.fence.term() else {
            return Ok(());
        };
        let fresh_term = self.effects.fresh_term.or(target.fresh_term);
        if fresh_term == Some(term) || services.upstreams.clients.is_dry_run() {
            return Ok(());
        }
        let seen = self.effects.written.as_ref().unwrap_or(&target.object);
        let (key, object) = (target.key.clone(), Arc::clone(seen));
        let api = self.target_api(&services)?;
        let live = api.writer.read_listed_version(&key).await?;
        let cached = (object.uid.to_string(), object.resource_version);
        if live.as_ref() != Some(&cached) {
            let found = live.map_or("it is gone".into(), |(_, version)| {
                format!("now it has {version}")
            });
            return Err(Error::Conflict(format!(
                "{key} was read in version {}, and {found}: a request that may not be repeated waits for the newest version",
                object.resource_version
            )));
        }
        self.effects.fresh_term = Some(term);
        Ok(())
    }
}
