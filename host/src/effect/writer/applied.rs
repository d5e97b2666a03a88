//! The last applies of one reconciled object, by which unchanged ones are recognized.

use std::collections::HashMap;

use crate::kube::key::{ObjectMap, ObjectRef};

/// Maximum size of the list form: most objects have one child, and a scan of a few is faster than hashing.
const MAX_LIST_LEN: usize = 8;

/// An apply and its result, as digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Digest of the component's request. If it and `version` are both unchanged, there is nothing to compare.
    pub request_digest: u64,
    /// Version of the live object that was found to contain the applied fields.
    pub version: u64,
    /// Digest of the fields sent: fields that are no longer sent must be removed.
    pub sent: u64,
    /// Digest of the same fields afterwards, as the server defaulted and normalized them.
    pub live: u64,
}

/// An apply, and whether it was repeated since the last [`AppliedObjects::drop_unused`].
#[derive(Debug)]
struct Entry {
    applied: Applied,
    used: bool,
}

/// The objects that one reconciled object has applied.
#[derive(Debug)]
pub struct AppliedObjects {
    objects: Objects,
}

#[derive(Debug)]
enum Objects {
    List(Vec<(ObjectRef, Entry)>),
    // Boxed because few objects have that many children, and there is an entry for each of them.
    Indexed(Box<IndexedObjects>),
}

/// Many objects, which are found by their name and by the last request.
#[derive(Debug)]
struct IndexedObjects {
    entries: ObjectMap<Entry>,
    by_request: HashMap<u64, ObjectRef>,
}

impl IndexedObjects {
    fn new(mut entries: ObjectMap<Entry>) -> Self {
        entries.shrink_to_fit();
        let by_request = entries
            .iter()
            .map(|(key, entry)| (entry.applied.request_digest, key.clone()));
        Self {
            by_request: by_request.collect(),
            entries,
        }
    }

    fn record(&mut self, key: &ObjectRef, entry: Entry) {
        let request_digest = entry.applied.request_digest;
        if let Some(last) = self.entries.insert(key.clone(), entry)
            && last.applied.request_digest != request_digest
        {
            self.forget_request(key, &last);
        }
        self.by_request.insert(request_digest, key.clone());
    }

    fn forget(&mut self, key: &ObjectRef) {
        if let Some(last) = self.entries.remove(key) {
            self.forget_request(key, &last);
        }
    }

    /// Forgets the request of an entry, unless another object was applied by the same one since.
    fn forget_request(&mut self, key: &ObjectRef, last: &Entry) {
        if self.by_request.get(&last.applied.request_digest) == Some(key) {
            self.by_request.remove(&last.applied.request_digest);
        }
    }
}

impl Default for AppliedObjects {
    fn default() -> Self {
        Self {
            objects: Objects::List(Vec::new()),
        }
    }
}

impl AppliedObjects {
    /// The last apply of an object.
    pub fn get(&self, key: &ObjectRef) -> Option<Applied> {
        let entry = match &self.objects {
            Objects::List(list) => list.iter().find(|(k, _)| k == key).map(|(_, entry)| entry),
            Objects::Indexed(indexed) => indexed.entries.get(key),
        };
        entry.map(|entry| entry.applied)
    }

    /// The object that was last applied by this request, which is being repeated.
    pub fn repeat_request(&mut self, request_digest: u64) -> Option<(&ObjectRef, Applied)> {
        let (key, entry) = match &mut self.objects {
            Objects::List(list) => {
                let found = list
                    .iter_mut()
                    .find(|(_, e)| e.applied.request_digest == request_digest)?;
                (&found.0, &mut found.1)
            }
            Objects::Indexed(indexed) => {
                let key = indexed.by_request.get(&request_digest)?;
                (key, indexed.entries.get_mut(key)?)
            }
        };
        entry.used = true;
        Some((key, entry.applied))
    }

    /// Records an apply.
    pub fn record(&mut self, key: &ObjectRef, applied: Applied) {
        let entry = Entry { applied, used: true };
        match &mut self.objects {
            Objects::List(list) => match list.iter().position(|(k, _)| k == key) {
                Some(at) => list[at].1 = entry,
                None if list.len() < MAX_LIST_LEN => {
                    list.reserve_exact(1);
                    list.push((key.clone(), entry));
                }
                None => {
                    let mut entries: ObjectMap<_> = list.drain(..).collect();
                    entries.insert(key.clone(), entry);
                    self.objects = Objects::Indexed(Box::new(IndexedObjects::new(entries)));
                }
            },
            Objects::Indexed(indexed) => indexed.record(key, entry),
        }
    }

    /// Forgets the apply of an object.
    pub fn forget(&mut self, key: &ObjectRef) {
        match &mut self.objects {
            Objects::List(list) => list.retain(|(k, _)| k != key),
            Objects::Indexed(indexed) => indexed.forget(key),
        }
    }

    /// Drops the applies that were not repeated since the last call: children under new names each time would add up.
    pub fn drop_unused(&mut self) {
        let keep = |entry: &mut Entry| std::mem::take(&mut entry.used);
        match &mut self.objects {
            Objects::List(list) => {
                list.retain_mut(|(_, entry)| keep(entry));
                list.shrink_to_fit();
            }
            Objects::Indexed(indexed) => {
                indexed.entries.retain(|_, entry| keep(entry));
                let entries = std::mem::take(&mut indexed.entries);
                if entries.len() <= MAX_LIST_LEN {
                    self.objects = Objects::List(entries.into_iter().collect());
                } else {
                    **indexed = IndexedObjects::new(entries);
                }
            }
        }
    }

    /// Number of objects.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        match &self.objects {
            Objects::List(list) => list.len(),
            Objects::Indexed(indexed) => indexed.entries.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kube::key::Gvk;

    fn child(i: u64) -> ObjectRef {
        ObjectRef::new(Gvk::new("", "v1", "ConfigMap"), "n", &format!("m-{i}"))
    }

    fn applied(request_digest: u64) -> Applied {
        Applied {
            request_digest,
            version: 1,
            sent: request_digest,
            live: 2,
        }
    }

    #[test]
    fn children_of_new_names_do_not_add_up() {
        for at_once in [1, 20] {
            let mut objects = AppliedObjects::default();
            for i in 0..10_000 {
                objects.record(&child(i), applied(i));
                if i % at_once == 0 {
                    objects.drop_unused();
                }
                assert!(objects.len() <= 2 * usize::try_from(at_once).expect("small") + 1);
            }
        }
    }

    #[test]
    fn repeated_request_keeps_its_object() {
        let mut objects = AppliedObjects::default();
        for i in 0..20 {
            objects.record(&child(i), applied(i));
        }
        objects.drop_unused();
        assert_eq!(objects.repeat_request(7), Some((&child(7), applied(7))));
        objects.record(&child(8), applied(108));
        assert_eq!(
            objects.repeat_request(8),
            None,
            "that request is not the last one"
        );
        objects.drop_unused();
        assert_eq!(objects.len(), 2);
        assert_eq!(objects.repeat_request(108), Some((&child(8), applied(108))));
    }

    proptest! {
        /// The same as a map, whichever form it has.
        #[test]
        fn any_sequence_behaves_like_a_map(steps in prop::collection::vec((0u8..4, 0u64..24, 0u64..30), 0..200)) {
            let mut objects = AppliedObjects::default();
            let mut model: HashMap<u64, (Applied, bool)> = HashMap::new();
            for (step, i, request) in steps {
                match step {
                    // Requests of different objects differ, since they name the object.
                    0 | 1 => {
                        let new = applied(request * 100 + i);
                        objects.record(&child(i), new);
                        model.insert(i, (new, true));
                    }
                    2 => {
                        let found = objects.repeat_request(request * 100 + i).map(|(key, applied)| (key.clone(), applied));
                        let expected = model.get_mut(&i).filter(|(a, _)| a.request_digest == request * 100 + i);
                        prop_assert_eq!(found.map(|(_, a)| a), expected.as_ref().map(|(a, _)| *a));
                        if let Some(entry) = expected {
                            entry.1 = true;
                        }
                    }
                    _ => {
                        objects.drop_unused();
                        model.retain(|_, (_, used)| std::mem::take(used));
                    }
                }
                prop_assert_eq!(objects.len(), model.len());
                for (i, (applied, _)) in &model {
                    prop_assert_eq!(objects.get(&child(*i)), Some(*applied));
                }
            }
        }
    }
}
