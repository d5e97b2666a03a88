//! The cache of each object, which plugins use through the interface `cache` of the contract.
//!
//! It lives as long as the object: another object of the same name has another uid and starts with an empty cache. All
//! objects of a kind together have a limit, beyond which others of the kind lose theirs: a cache may be empty at any time.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::kube::{
    key::{Gvk, ObjectMap, ObjectRef},
    uid::Uid,
};

/// Maximum bytes that all objects of a kind cache together.
const MAX_KIND_BYTES: usize = 32 << 20;

/// The caches of all objects, by kind: those of one kind must not evict those of another.
#[derive(Default)]
pub struct ObjectCache(Mutex<HashMap<Gvk, KindCache>>);

/// The caches of the objects of one kind.
#[derive(Default)]
struct KindCache {
    entries: ObjectMap<Entry>,
    bytes: usize,
}

/// The cache of one object.
#[derive(Default)]
struct Entry {
    /// The uid of the object, which distinguishes it from another object of the same name.
    uid: Uid,
    values: BTreeMap<String, Vec<u8>>,
}

impl ObjectCache {
    /// Returns the value of a key.
    pub fn get(&self, object: &ObjectRef, uid: &Uid, key: &str) -> Option<Vec<u8>> {
        let kinds = self.0.lock();
        let entry = kinds.get(&object.gvk)?.entries.get(object);
        entry.filter(|entry| entry.uid == *uid)?.values.get(key).cloned()
    }

    /// Removes the caches of all objects.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// Sets the value of a key. Returns false if the object would then cache more than `max_bytes`, keys included.
    pub fn set(&self, object: &ObjectRef, uid: &Uid, key: String, value: Vec<u8>, max_bytes: usize) -> bool {
        let mut kinds = self.0.lock();
        let kind = kinds.entry(object.gvk.clone()).or_default();
        let entry = kind.entries.entry(object.clone()).or_default();
        if entry.uid != *uid {
            kind.bytes -= entry.bytes();
            *entry = Entry {
                uid: uid.clone(),
                values: BTreeMap::new(),
            };
        }
        let before = entry.bytes();
        let replaced = entry.values.get(&key).map_or(0, |value| key.len() + value.len());
        let after = before - replaced + key.len() + value.len();
        if after > max_bytes {
            return false;
        }
        entry.values.insert(key, value);
        kind.bytes = kind.bytes - before + after;
        kind.evict_others(object);
        true
    }

    /// Removes a key of an object.
    pub fn delete(&self, object: &ObjectRef, key: &str) {
        let mut kinds = self.0.lock();
        let Some(kind) = kinds.get_mut(&object.gvk) else {
            return;
        };
        if let Some(entry) = kind.entries.get_mut(object)
            && let Some(value) = entry.values.remove(key)
        {
            kind.bytes -= key.len() + value.len();
        }
    }

    /// Removes the cache of an object.
    pub fn forget(&self, object: &ObjectRef) {
        if let Some(kind) = self.0.lock().get_mut(&object.gvk) {
            kind.remove(object);
        }
    }
}

impl KindCache {
    fn remove(&mut self, object: &ObjectRef) {
        if let Some(entry) = self.entries.remove(object) {
            self.bytes -= entry.bytes();
        }
    }

    /// Removes the caches of other objects until the kind is within its limit.
    fn evict_others(&mut self, keep: &ObjectRef) {
        while self.bytes > MAX_KIND_BYTES {
            let Some(other) = self.entries.keys().find(|key| *key != keep).cloned() else {
                break;
            };
            self.remove(&other);
        }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        self.values.iter().map(|(k, v)| k.len() + v.len()).sum()
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
        assert!(cache.set(&object, &"1".into(), "k".into(), vec![1; 60_000], 64 << 10));
        assert!(!cache.set(&object, &"1".into(), "l".into(), vec![1; 60_000], 64 << 10));
        assert_eq!(
            cache.get(&object, &"2".into(), "k"),
            None,
            "another object of that name"
        );
        assert_eq!(
            cache.get(&object, &"1".into(), "k").map(|v| v.len()),
            Some(60_000)
        );
        cache.forget(&object);
        assert_eq!(cache.get(&object, &"1".into(), "k"), None);
    }

    #[test]
    fn caches_of_a_kind_are_bounded_and_leave_other_kinds_alone() {
        let cache = ObjectCache::default();
        let other = ObjectRef::new(Gvk::new("", "v1", "Secret"), "n", "a");
        assert!(cache.set(&other, &"1".into(), "k".into(), vec![1; 60_000], 64 << 10));
        for i in 0..1000 {
            let object = ObjectRef::new(Gvk::new("", "v1", "ConfigMap"), "n", &format!("m-{i}"));
            assert!(cache.set(&object, &"1".into(), "k".into(), vec![1; 60_000], 64 << 10));
            assert!(cache.get(&object, &"1".into(), "k").is_some());
            let kinds = cache.0.lock();
            let kind = &kinds[&object.gvk];
            let bytes: usize = kind.entries.values().map(Entry::bytes).sum();
            assert!(
                bytes == kind.bytes && bytes <= MAX_KIND_BYTES,
                "{bytes} {}",
                kind.bytes
            );
        }
        assert!(cache.get(&other, &"1".into(), "k").is_some());
    }
}
