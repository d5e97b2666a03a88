//! The scratch of each object: what `memo` of the contract keeps. Lives and dies with the object.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
};

use crate::kube::key::ObjectRef;

/// The scratch of all objects.
#[derive(Default)]
pub struct Memo(Mutex<HashMap<ObjectRef, Scratch>>);

#[derive(Default)]
struct Scratch {
    /// Whose it is: another object of that name starts anew.
    uid: Box<str>,
    values: BTreeMap<String, Vec<u8>>,
}

impl Memo {
    /// What an object keeps under a key.
    pub fn get(&self, object: &ObjectRef, uid: &str, key: &str) -> Option<Vec<u8>> {
        let memo = self.0.lock().expect("lock");
        let scratch = memo.get(object).filter(|s| *s.uid == *uid)?;
        scratch.values.get(key).cloned()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.0.lock().expect("lock").clear();
    }

    /// Keeps a value; `false` when that would be more than `most` bytes of the object, keys included.
    pub fn put(&self, object: &ObjectRef, uid: &str, key: String, value: Vec<u8>, most: usize) -> bool {
        let mut memo = self.0.lock().expect("lock");
        let scratch = memo.entry(object.clone()).or_default();
        if *scratch.uid != *uid {
            *scratch = Scratch {
                uid: uid.into(),
                values: BTreeMap::new(),
            };
        }
        let others = scratch.values.iter().filter(|(k, _)| **k != key);
        let kept: usize = others.map(|(k, v)| k.len() + v.len()).sum();
        if kept + key.len() + value.len() > most {
            return false;
        }
        scratch.values.insert(key, value);
        true
    }

    /// Forgets a key of an object.
    pub fn remove(&self, object: &ObjectRef, key: &str) {
        if let Some(scratch) = self.0.lock().expect("lock").get_mut(object) {
            scratch.values.remove(key);
        }
    }

    /// Forgets an object.
    pub fn forget(&self, object: &ObjectRef) {
        self.0.lock().expect("lock").remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::key::Gvk;

    #[test]
    fn lives_with_the_object_and_has_a_limit() {
        let memo = Memo::default();
        let object = ObjectRef::new(Gvk::new("", "v1", "ConfigMap"), "n", "a");
        assert!(memo.put(&object, "1", "k".into(), vec![1; 60_000], 64 << 10));
        assert!(!memo.put(&object, "1", "l".into(), vec![1; 60_000], 64 << 10));
        assert_eq!(memo.get(&object, "2", "k"), None, "another object of that name");
        assert_eq!(memo.get(&object, "1", "k").map(|v| v.len()), Some(60_000));
        memo.forget(&object);
        assert_eq!(memo.get(&object, "1", "k"), None);
    }
}
