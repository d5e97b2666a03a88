//! `cache`: a small cache per object that survives reconciles and reloads.

use tracing::instrument;

use super::Call;
use crate::{
    contract::{
        bindings::{cache::Host, types::Error},
        limits::Limit,
    },
    observe::metrics::HostCall,
};

impl Host for Call {
    #[instrument(name = "cache.get", target = "spans", level = "trace", skip_all)]
    async fn get(&mut self, key: String) -> Option<Vec<u8>> {
        let (subject, services) = self.enter(HostCall::CacheGet).ok()?;
        let value = services
            .object_cache
            .get(&subject.key, &subject.object.uid, &key)?;
        self.given(value).ok()
    }

    #[instrument(
        name = "cache.set",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), Error> {
        let (subject, services) = self.enter(HostCall::CacheSet)?;
        let (object, uid) = (subject.key.clone(), subject.object.uid.clone());
        self.takes(key.len() + value.len())?;
        let limit = self.terms.limits.cache_bytes;
        if services.object_cache.set(&object, &uid, key, value, limit) {
            Ok(())
        } else {
            Err(self.exceeded(Limit::CacheBytes, "cached bytes of one object"))
        }
    }

    #[instrument(name = "cache.delete", target = "spans", level = "trace", skip_all)]
    async fn delete(&mut self, key: String) {
        if let Ok((subject, services)) = self.enter(HostCall::CacheDelete) {
            services.object_cache.delete(&subject.key, &key);
        }
    }
}
