//! The cache of each object, which plugins use through the interface `cache` of the contract.
//!
//! It lives as long as the object: another object of the same name has another uid and starts with an empty cache.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::kube::key::ObjectRef;

/// The caches of all objects.
#[derive(Default)]
pub struct ObjectCache(Mutex<HashMap<ObjectRef, Entry>>);

/// The cache of one object.
#[derive(Default)]
struct Entry {
    /// The uid of the object, which distinguishes it from another object of the same name.
    uid: Box<str>,
    values: BTreeMap<String, Vec<u8>>,
}

impl ObjectCache {
    /// Returns the value of a key.
    pub fn get(&self, object: &ObjectRef, uid: &str, key: &str) -> Option<Vec<u8>> {
        let entries = self.0.lock();
        let entry = entries.get(object).filter(|entry| *entry.uid == *uid)?;
        entry.values.get(key).cloned()
    }

    /// Removes the caches of all objects.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// Sets the value of a key. Returns false if the object would then cache more than `max_bytes`, keys included.
    pub fn set(&self, object: &ObjectRef, uid: &str, key: String, value: Vec<u8>, max_bytes: usize) -> bool {
        let mut entries = self.0.lock();
        let entry = entries.entry(object.clone()).or_default();
        if *entry.uid != *uid {
            *entry = Entry {
                uid: uid.into(),
                values: BTreeMap::new(),
            };
        }
        let others = entry.values.iter().filter(|(k, _)| **k != key);
        let other_bytes: usize = others.map(|(k, v)| k.len() + v.len()).sum();
        if other_bytes + key.len() + value.len() > max_bytes {
            return false;
        }
        entry.values.insert(key, value);
        true
    }

    /// Removes a key of an object.
    pub fn delete(&self, object: &ObjectRef, key: &str) {
        if let Some(entry) = self.0.lock().get_mut(object) {
            entry.values.remove(key);
        }
    }

    /// Removes the cache of an object.
    pub fn forget(&self, object: &ObjectRef) {
        self.0.lock().remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::key::Gvk;

    #[test]
    fn cached_value_ends_with_object_and_is_limited() {
        let cache = ObjectCache::default();
        let object = ObjectRef::new(Gvk::new("", "v1", "ConfigMap"), "n", "a");
        assert!(cache.set(&object, "1", "k".into(), vec![1; 60_000], 64 << 10));
        assert!(!cache.set(&object, "1", "l".into(), vec![1; 60_000], 64 << 10));
        assert_eq!(cache.get(&object, "2", "k"), None, "another object of that name");
        assert_eq!(cache.get(&object, "1", "k").map(|v| v.len()), Some(60_000));
        cache.forget(&object);
        assert_eq!(cache.get(&object, "1", "k"), None);
    }
}
