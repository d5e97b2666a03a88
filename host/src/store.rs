//! The objects the host has seen, by kind, namespace and name: one copy for all plugins.
//!
//! Watches and the host's own writes both put objects in; whichever is newer
//! stays, so a write is readable at once and its echo in the watch is no change.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, RwLock},
};

use crate::{
    key::{Gvk, ObjectRef},
    object::Object,
    selector::Selector,
};

/// What a put or a removal changed.
#[derive(Debug)]
pub struct Change {
    /// The object.
    pub key: ObjectRef,
    /// As it was; none when it is new.
    pub old: Option<Arc<Object>>,
    /// As it is; none when it is gone.
    pub new: Option<Arc<Object>>,
}

/// What the store makes of an object it is given.
#[derive(Debug)]
pub enum Put {
    /// It is news.
    News(Change),
    /// It has it, or knows that it is gone.
    Known,
    /// It has a newer version already, from a write of the host's own: somebody else's version in between
    /// was never seen. What is kept now is given.
    Overtaken(Arc<Object>),
}

impl Put {
    /// The change, if it was one.
    pub fn news(self) -> Option<Change> {
        match self {
            Self::News(change) => Some(change),
            Self::Known | Self::Overtaken(_) => None,
        }
    }
}

type Name = (Arc<str>, Arc<str>);

/// Objects of one kind in one cluster, ordered by namespace and name.
#[derive(Default)]
struct Collection {
    objects: BTreeMap<Name, Arc<Object>>,
    /// Resource versions of deletions not long ago: a late echo of a write must not bring an object back.
    buried: HashMap<Box<str>, u64>,
}

/// The shared store.
#[derive(Default)]
pub struct Store {
    collections: RwLock<HashMap<(Arc<str>, Gvk), Collection>>,
}

/// More tombstones than this are not kept: echoes come within milliseconds.
const BURIED: usize = 4096;

impl Store {
    /// Takes an object in, unless the store has it in this or a newer version.
    pub fn put(&self, key: &ObjectRef, object: Object) -> Put {
        let mut collections = self.collections.write().expect("lock");
        let collection = collections
            .entry((key.cluster.clone(), key.gvk.clone()))
            .or_default();
        if collection.buried.contains_key(&object.uid) {
            return Put::Known;
        }
        let name = (key.namespace.clone(), key.name.clone());
        if let Some(old) = collection.objects.get(&name) {
            match object.resource_version.cmp(&old.resource_version) {
                Ordering::Less => return Put::Overtaken(old.clone()),
                Ordering::Equal => return Put::Known,
                Ordering::Greater => {}
            }
        }
        let new = Arc::new(object);
        let old = collection.objects.insert(name, new.clone());
        Put::News(Change {
            key: key.clone(),
            old,
            new: Some(new),
        })
    }

    /// Forgets an object. `uid` tells which: another of that name stays.
    pub fn remove(&self, key: &ObjectRef, uid: Option<&str>) -> Option<Change> {
        let mut collections = self.collections.write().expect("lock");
        let collection = collections.get_mut(&(key.cluster.clone(), key.gvk.clone()))?;
        let name = (key.namespace.clone(), key.name.clone());
        let there = collection.objects.get(&name)?;
        if uid.is_some_and(|uid| *uid != *there.uid) {
            return None;
        }
        let old = collection.objects.remove(&name)?;
        if collection.buried.len() >= BURIED {
            collection.buried.clear();
        }
        collection.buried.insert(old.uid.clone(), old.resource_version);
        Some(Change {
            key: key.clone(),
            old: Some(old),
            new: None,
        })
    }

    /// One object.
    pub fn get(&self, key: &ObjectRef) -> Option<Arc<Object>> {
        let collections = self.collections.read().expect("lock");
        collections
            .get(&(key.cluster.clone(), key.gvk.clone()))?
            .objects
            .get(&(key.namespace.clone(), key.name.clone()))
            .cloned()
    }

    /// Objects of a kind in order, after `after` (a namespace and name), at most `limit` of them.
    /// An empty namespace means all.
    pub fn list(
        &self,
        cluster: &Arc<str>,
        gvk: &Gvk,
        namespace: &str,
        selector: Option<&Selector>,
        after: Option<&Name>,
        limit: usize,
    ) -> Vec<(ObjectRef, Arc<Object>)> {
        let collections = self.collections.read().expect("lock");
        let Some(collection) = collections.get(&(cluster.clone(), gvk.clone())) else {
            return Vec::new();
        };
        let start = match after {
            Some(name) => Bound::Excluded(name.clone()),
            None => Bound::Included((Arc::from(namespace), Arc::from(""))),
        };
        collection
            .objects
            .range((start, Bound::Unbounded))
            .take_while(|((ns, _), _)| namespace.is_empty() || **ns == *namespace)
            .filter(|(_, object)| selector.is_none_or(|s| s.matches(&object.labels)))
            .take(limit)
            .map(|((namespace, name), object)| {
                let key = ObjectRef {
                    gvk: gvk.clone(),
                    cluster: cluster.clone(),
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                (key, object.clone())
            })
            .collect()
    }

    /// Number of objects and bytes of JSON kept.
    pub fn size(&self) -> (usize, usize) {
        let collections = self.collections.read().expect("lock");
        let objects = collections.values().flat_map(|c| c.objects.values());
        objects.fold((0, 0), |(n, bytes), o| (n + 1, bytes + o.json.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, uid: &str, version: u64) -> (ObjectRef, Object) {
        let json = format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"{uid}","resourceVersion":"{version}"}}}}"#
        );
        Object::parse(&Gvk::new("", "v1", "ConfigMap"), json.as_bytes()).unwrap()
    }

    fn put(store: &Store, name: &str, uid: &str, version: u64) -> Option<Change> {
        let (key, object) = object(name, uid, version);
        store.put(&key, object).news()
    }

    #[test]
    fn an_echo_is_no_change() {
        let store = Store::default();
        assert!(put(&store, "a", "1", 5).is_some());
        assert!(put(&store, "a", "1", 5).is_none());
        let (key, older) = object("a", "1", 4);
        assert!(matches!(store.put(&key, older), Put::Overtaken(_)));
        assert!(put(&store, "a", "1", 6).is_some());
    }

    #[test]
    fn what_is_deleted_stays_so_but_its_name_can_be_used_again() {
        let store = Store::default();
        put(&store, "a", "1", 5);
        let key = object("a", "1", 0).0;
        assert!(store.remove(&key, Some("other")).is_none());
        assert!(store.remove(&key, Some("1")).is_some());
        assert!(
            put(&store, "a", "1", 9).is_none(),
            "a late echo of the deleted one"
        );
        assert!(put(&store, "a", "2", 10).is_some());
    }

    #[test]
    fn lists_in_order_and_pages() {
        let store = Store::default();
        for (i, name) in ["c", "a", "b"].iter().enumerate() {
            put(&store, name, name, i as u64 + 1);
        }
        let gvk = Gvk::new("", "v1", "ConfigMap");
        let names = |after: Option<&Name>, limit| -> Vec<String> {
            let page = store.list(&"".into(), &gvk, "n", None, after, limit);
            page.iter().map(|(k, _)| k.name.to_string()).collect()
        };
        assert_eq!(names(None, 2), ["a", "b"]);
        assert_eq!(names(Some(&("n".into(), "b".into())), 2), ["c"]);
    }
}
