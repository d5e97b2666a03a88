//! `memo`: a small scratch per object, kept across reconciles and reloads.

use super::Call;
use crate::bindings::{memo::Host, types::Error};

/// Bytes one object may keep, keys included.
const LIMIT: usize = 64 << 10;

impl Call {
    fn uid(&self) -> Box<str> {
        self.subject.as_ref().map(|s| s.object.uid.clone()).unwrap_or_default()
    }
}

impl Host for Call {
    async fn get(&mut self, key: String) -> Option<Vec<u8>> {
        let (_, services) = self.enter().ok()?;
        let memo = services.memo.lock().expect("lock");
        memo.get(&(self.uid(), key)).cloned()
    }

    async fn put(&mut self, key: String, value: Vec<u8>) -> Result<(), Error> {
        let (_, services) = self.enter()?;
        let uid = self.uid();
        let mut memo = services.memo.lock().expect("lock");
        let others = memo.iter().filter(|((u, k), _)| *u == uid && *k != key);
        let kept: usize = others.map(|((_, k), v)| k.len() + v.len()).sum();
        if kept + key.len() + value.len() > LIMIT {
            return Err(Error::Budget(format!("an object may keep {LIMIT} bytes in memo")));
        }
        memo.insert((uid, key), value);
        Ok(())
    }

    async fn remove(&mut self, key: String) {
        if let Ok((_, services)) = self.enter() {
            services.memo.lock().expect("lock").remove(&(self.uid(), key));
        }
    }
}
