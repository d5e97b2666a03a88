//! `cache`: a small cache per object that survives reconciles and reloads.

use tracing::instrument;

use super::PluginCall;
use crate::{
    contract::{
        bindings::{cache::Host, types::Error},
        limits::Limit,
    },
    observe::metrics::HostCall,
};

impl Host for PluginCall {
    #[instrument(name = "cache.get", target = "spans", level = "trace", skip_all)]
    async fn get(&mut self, key: String) -> Option<Vec<u8>> {
        let (target, services) = self.begin_host_call(HostCall::CacheGet).ok()?;
        let value = services.object_cache.get(&target.key, &target.object.uid, &key)?;
        self.return_bytes(value).ok()
    }

    #[instrument(
        name = "cache.set",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), Error> {
        let (target, services) = self.begin_host_call(HostCall::CacheSet)?;
        let (object, uid) = (target.key.clone(), target.object.uid.clone());
        self.charge_bytes_to_host(key.len() + value.len())?;
        let limit = self.limits().cache_bytes;
        if services.object_cache.set(&object, &uid, key, value, limit) {
            Ok(())
        } else {
            Err(self.limit_exceeded(Limit::CacheBytes, "cached bytes of one object"))
        }
    }

    #[instrument(name = "cache.delete", target = "spans", level = "trace", skip_all)]
    async fn delete(&mut self, key: String) {
        if let Ok((target, services)) = self.begin_host_call(HostCall::CacheDelete) {
            services.object_cache.delete(&target.key, &key);
        }
    }
}
