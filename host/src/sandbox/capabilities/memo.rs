//! `memo`: a small scratch per object, kept across reconciles and reloads.

use tracing::instrument;

use super::Call;
use crate::{
    contract::{
        bindings::{memo::Host, types::Error},
        limits::Limit,
    },
    observe::metrics::HostCall,
};

impl Host for Call {
    #[instrument(name = "memo.get", target = "spans", level = "trace", skip_all)]
    async fn get(&mut self, key: String) -> Option<Vec<u8>> {
        let (subject, services) = self.enter(HostCall::MemoGet).ok()?;
        let value = services.memo.get(&subject.key, &subject.object.uid, &key)?;
        self.given(value).ok()
    }

    #[instrument(
        name = "memo.put",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn put(&mut self, key: String, value: Vec<u8>) -> Result<(), Error> {
        let (subject, services) = self.enter(HostCall::MemoPut)?;
        let (object, uid) = (subject.key.clone(), subject.object.uid.clone());
        self.takes(key.len() + value.len())?;
        let most = self.terms.limits.memo_bytes;
        match services.memo.put(&object, &uid, key, value, most) {
            true => Ok(()),
            false => Err(self.exceeded(Limit::MemoBytes, "bytes of one object in memo")),
        }
    }

    #[instrument(name = "memo.remove", target = "spans", level = "trace", skip_all)]
    async fn remove(&mut self, key: String) {
        if let Ok((subject, services)) = self.enter(HostCall::MemoRemove) {
            services.memo.remove(&subject.key, &key);
        }
    }
}
