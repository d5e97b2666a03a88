//! The objects of one watch.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
};

use super::{
    ListQuery,
    indexes::{IndexTerm, Indexes},
};
use crate::kube::{
    key::{ObjectMap, ObjectRef},
    object::KubeObject,
    scope::Scope,
    uid::Uid,
};

/// The objects of one watch, ordered by namespace and name.
pub(super) struct Collection {
    pub(super) scope: Scope,
    pub(super) objects: BTreeMap<ObjectRef, Arc<KubeObject>>,
    /// The same objects: each reconcile looks up two or three, which takes a dozen comparisons in order, most of them with a
    /// cache miss.
    by_key: ObjectMap<Arc<KubeObject>>,
    /// Bytes of the JSON of the objects: counted as they change, since metrics are scraped while there are many.
    pub(super) bytes: usize,
    /// Indexes, each built when a list first selects by its term and maintained from then on.
    pub(super) indexes: Indexes,
    /// Objects that left the scope, for collections with a label selector or with another source of objects beside
    /// their own watch. A late echo of a write, or a watch that lags, must not bring one back.
    pub(super) departed: Tombstones,
    /// Version up to which the last list was complete: an object it did not contain is gone, whatever a late response
    /// shows.
    pub(super) listed_version: u64,
}

/// Relation of a version to the newest one in any collection of the same projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recency {
    /// No collection has a newer version.
    Newest,
    /// It is the newest version, whose content has changed with the schema of its kind.
    Restated,
    /// Another collection has a newer version.
    Superseded,
}

/// The way in which a version reached a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// From an informer of this projection.
    Informer,
    /// From a write response or from a watch of full objects: the list of this collection may already have been
    /// newer.
    OutOfBand,
}

/// Recently deleted objects: their uids, with the version as of which each was gone.
#[derive(Default)]
pub(super) struct Tombstones {
    young: HashMap<Uid, u64>,
    old: HashMap<Uid, u64>,
}

/// Minimum number of tombstones kept; the maximum is twice as many. Echoes come within milliseconds.
const MIN_TOMBSTONES: usize = 4096;

impl Tombstones {
    pub(super) fn insert(&mut self, uid: &Uid, version: u64) {
        // Objects of metrics.k8s.io have no UID: one tombstone would be that of all of them.
        if uid.is_empty() {
            return;
        }
        if self.young.len() >= MIN_TOMBSTONES {
            self.old = std::mem::take(&mut self.young);
        }
        let newest = self.young.entry(uid.clone()).or_default();
        *newest = version.max(*newest);
    }

    /// Returns true if an object was gone at this version already.
    pub(super) fn contains(&self, uid: &Uid, version: u64) -> bool {
        let covers = |buried: &HashMap<Uid, u64>| buried.get(uid).is_some_and(|v| *v >= version);
        covers(&self.young) || covers(&self.old)
    }
}

impl Collection {
    pub(super) fn new(scope: Scope) -> Self {
        Self {
            scope,
            objects: BTreeMap::new(),
            by_key: ObjectMap::default(),
            bytes: 0,
            indexes: Indexes::default(),
            departed: Tombstones::default(),
            listed_version: 0,
        }
    }

    /// Inserts a version of an object, or removes the object if its labels have left the scope. Returns true if the
    /// object belongs to the collection.
    pub(super) fn put(
        &mut self,
        key: &ObjectRef,
        object: &Arc<KubeObject>,
        recency: Recency,
        delivery: Delivery,
    ) -> bool {
        let version = object.resource_version;
        let cached = self.get(key).map(|o| o.resource_version);
        // Without a version (metrics.k8s.io) the states of an object are ordered as they arrive.
        let is_newer = cached.is_none_or(|cached| {
            cached < version || version == 0 || (cached == version && recency == Recency::Restated)
        });
        let unlisted = delivery == Delivery::OutOfBand && cached.is_none() && version <= self.listed_version;
        if unlisted || self.departed.contains(&object.uid, version) {
            return false;
        }
        let in_scope = self.scope.contains(key, &object.labels);
        if !in_scope && is_newer {
            self.remove(key);
        } else if in_scope && is_newer && recency != Recency::Superseded {
            self.insert(key, object);
        }
        in_scope
    }

    pub(super) fn get(&self, key: &ObjectRef) -> Option<&Arc<KubeObject>> {
        self.by_key.get(key)
    }

    /// The object with the cached copy of its key, which all collections share.
    pub(super) fn get_key_value(&self, key: &ObjectRef) -> Option<(&ObjectRef, &Arc<KubeObject>)> {
        self.by_key.get_key_value(key)
    }

    fn insert(&mut self, key: &ObjectRef, object: &Arc<KubeObject>) {
        self.objects.insert(key.clone(), object.clone());
        let old = self.by_key.insert(key.clone(), object.clone());
        self.bytes += object.json.len();
        self.bytes -= old.as_ref().map_or(0, |old| old.json.len());
        self.indexes.on_change(key, old.as_deref(), Some(object));
    }

    pub(super) fn remove(&mut self, key: &ObjectRef) -> Option<Arc<KubeObject>> {
        let object = self.by_key.remove(key)?;
        self.objects.remove(key);
        self.bytes -= object.json.len();
        self.indexes.on_change(key, Some(&object), None);
        Some(object)
    }

    /// Iterates over candidates for a query in order: the object that it names, from the index of its term if there is one,
    /// otherwise over all objects.
    pub(super) fn search<'a>(
        &'a self,
        query: &ListQuery<'a>,
        term: Option<&(IndexTerm, &str)>,
    ) -> Box<dyn Iterator<Item = (&'a ObjectRef, &'a Arc<KubeObject>)> + 'a> {
        let at = |namespace: &str, name: Arc<str>| {
            let Scope { gvk, cluster, .. } = &self.scope;
            ObjectRef::new_in_cluster(gvk, cluster, namespace, name)
        };
        let from = match query.after {
            Some(after) => Bound::Excluded(at(&after.namespace, after.name.clone())),
            None => Bound::Included(at(query.namespace, "".into())),
        };
        let from = (from, Bound::Unbounded);
        let namespace = query.namespace;
        let here = move |key: &ObjectRef| namespace.is_empty() || *key.namespace == *namespace;
        if let Some(name) = query.name() {
            let named = at(namespace, name.into());
            let is_next = match query.after {
                Some(after) => (&after.namespace, &after.name) < (&named.namespace, &named.name),
                None => true,
            };
            let found = self.get_key_value(&named).filter(|_| is_next);
            return Box::new(found.into_iter());
        }
        if let Some((index, value)) = term.and_then(|(term, value)| Some((self.indexes.get(term)?, value))) {
            let keys = index.get(*value).into_iter();
            let keys = keys.flat_map(move |keys| keys.range(from.clone()));
            return Box::new(
                keys.take_while(move |key| here(key))
                    .filter_map(|key| self.get_key_value(key)),
            );
        }
        Box::new(self.objects.range(from).take_while(move |(key, _)| here(key)))
    }
}
