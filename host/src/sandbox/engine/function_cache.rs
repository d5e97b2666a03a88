//! The function cache: machine code of single functions, for builds that differ in few of them.
//!
//! An interpreter or a runtime is most of a component in Python, JavaScript or Go, and the same in each build of a plugin. Only
//! sessions of authors have it: it keeps the code of all builds, and trusts the compiler of this process.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use wasmtime::{CacheStore, Config};

/// Maximum number of bytes of code. A component in Python has 60 MB.
const MAX_CODE_BYTES: usize = 512 << 20;

/// Code of functions, shared by the clones.
#[derive(Clone, Debug, Default)]
pub struct FunctionCache(Arc<FunctionStore>);

impl FunctionCache {
    /// Makes an engine look functions up before it compiles them.
    pub(super) fn enable(&self, config: &mut Config) -> wasmtime::Result<()> {
        config.enable_incremental_compilation(self.0.clone()).map(drop)
    }
}

/// Machine code by the digest of its function and settings, which the compiler computes.
#[derive(Debug, Default)]
struct FunctionStore(Mutex<FunctionCode>);

#[derive(Debug, Default)]
struct FunctionCode {
    by_digest: HashMap<Box<[u8]>, Box<[u8]>>,
    bytes: usize,
}

impl CacheStore for FunctionStore {
    fn get(&self, digest: &[u8]) -> Option<Cow<'_, [u8]>> {
        let code = self.0.lock().by_digest.get(digest)?.to_vec();
        Some(Cow::Owned(code))
    }

    fn insert(&self, digest: &[u8], code: Vec<u8>) -> bool {
        let mut functions = self.0.lock();
        if functions.bytes + code.len() > MAX_CODE_BYTES {
            // The next build fills it again.
            *functions = FunctionCode::default();
        }
        functions.bytes += code.len();
        let before = functions.by_digest.insert(digest.into(), code.into());
        functions.bytes -= before.map_or(0, |before| before.len());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_by_its_digest_and_counted_once() {
        let cache = FunctionStore::default();
        assert!(cache.get(b"a").is_none());
        assert!(
            cache.insert(b"a", vec![1, 2]) && cache.insert(b"a", vec![3, 4]) && cache.insert(b"b", vec![5])
        );
        assert_eq!(cache.get(b"a").as_deref(), Some(&[3, 4][..]));
        assert_eq!(cache.0.lock().bytes, 3);
        cache.0.lock().bytes = MAX_CODE_BYTES;
        assert!(cache.insert(b"c", vec![6]));
        assert!(cache.get(b"a").is_none() && cache.get(b"c").is_some());
    }
}
