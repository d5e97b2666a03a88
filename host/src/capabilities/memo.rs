//! `memo`: a small scratch per object, kept across reconciles and reloads.

use super::Call;
use crate::{
    bindings::{memo::Host, types::Error},
    memo::LIMIT,
};

impl Host for Call {
    async fn get(&mut self, key: String) -> Option<Vec<u8>> {
        let (subject, services) = self.enter().ok()?;
        services.memo.get(&subject.key, &subject.object.uid, &key)
    }

    async fn put(&mut self, key: String, value: Vec<u8>) -> Result<(), Error> {
        let (subject, services) = self.enter()?;
        if services.memo.put(&subject.key, &subject.object.uid, key, value) {
            return Ok(());
        }
        Err(Error::Budget(format!("an object may keep {LIMIT} bytes in memo")))
    }

    async fn remove(&mut self, key: String) {
        if let Ok((subject, services)) = self.enter() {
            services.memo.remove(&subject.key, &key);
        }
    }
}
