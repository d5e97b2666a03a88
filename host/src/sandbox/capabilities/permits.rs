//! `permits`: semaphores, which bound how many objects of a plugin do something at a time.

use tracing::instrument;

use super::PluginCall;
use crate::{
    contract::bindings::{permits::Host, types::Error},
    kube::key::is_dns_label,
    observe::metrics::HostCall,
    schedule::permits::PermitRequest,
};

impl Host for PluginCall {
    #[instrument(
        name = "permits.acquire",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn acquire(&mut self, pool: String, limit: u32, held: bool) -> Result<bool, Error> {
        self.context.deny_in_hook("permits.acquire")?;
        let (target, services) = self.begin_host_call(HostCall::PermitsAcquire)?;
        let (object, created) = (
            target.key.clone(),
            target.object.field_text("metadata.creationTimestamp"),
        );
        if !is_dns_label(&pool) {
            return Err(Error::Invalid(format!(
                "{pool:?} is no name of a pool: it must be a DNS label"
            )));
        }
        let plugin = self.context.policy.plugin.clone();
        // The objects that may hold permits are known once all are listed.
        for scope in services.dispatcher.kind_scopes(&plugin, &object.gvk) {
            let timeout = self.sync_timeout(&scope.cluster);
            let synced = services.wait_synced(&scope, timeout).await;
            synced.map_err(Error::Unavailable)?;
        }
        let request = PermitRequest {
            plugin: &plugin,
            pool: &pool,
            object: &object,
            created: &created,
            limit,
            is_held: held,
            // A plan has no term.
            term: services.fence.term().unwrap_or_default(),
        };
        let granted = services.dispatcher.acquire_permit(&request);
        let granted = granted.map_err(|e| Error::LimitExceeded(e.to_string()))?;
        self.effects.pools.insert(pool.into());
        Ok(granted)
    }

    #[instrument(name = "permits.release", target = "spans", level = "trace", skip_all)]
    async fn release(&mut self, pool: String) {
        let plugin = self.context.policy.plugin.clone();
        if let Ok((target, services)) = self.begin_host_call(HostCall::PermitsRelease) {
            services.dispatcher.release_permit(&plugin, &pool, &target.key);
            self.effects.pools.remove(&*pool);
        }
    }
}
