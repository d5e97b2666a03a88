//! The shared cache: one copy of each object for all plugins, by kind, namespace and name.
//!
//! Informers and the responses to the host's own writes both put objects in, and the newer version wins. So a write
//! is readable at once, and its echo in the watch is not a change. A watch delivers every version, a list only the
//! latest: if a relist delivers our own write before the watch does, foreign versions in between may have been
//! skipped. Such a put is reported as [`Put::Superseded`], so that dependants wake.
//!
//! Each watch has a collection. Where two scopes overlap, both collections hold the object (shared, not copied), and
//! a change is reported once.

mod collection;
mod indexes;

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{self, AtomicU64},
    },
    time::Instant,
};

use parking_lot::RwLock;

use self::{
    collection::{Collection, Delivery, Recency, Tombstones},
    indexes::{BuiltIndex, IndexSnapshot, IndexTerm},
};
use crate::kube::{
    key::{ClusterKindMap, ClusterKindRef, ObjectRef},
    object::{Dictionary, KubeObject, Labels},
    scope::{Projection, Scope},
    selector::{FieldSelector, LabelSelector},
    uid::Uid,
};

/// The source from which a version of an object reached the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionSource {
    /// The first list of an informer: the object existed before.
    InitialList,
    /// A later list of an informer. It shows the latest version and none of those in between.
    Relist,
    /// An event of a watch, which delivers every version.
    Watch,
    /// The response to a request of the host's own.
    WriteResponse,
}

impl VersionSource {
    /// Returns true if versions in between may never be delivered.
    pub fn skips_versions(self) -> bool {
        matches!(self, Self::InitialList | Self::Relist)
    }
}

/// The change that a put or a removal made.
#[derive(Debug)]
pub struct ObjectChange {
    /// The object.
    pub key: ObjectRef,
    /// The previous version; none for a new object.
    pub old: Option<Arc<KubeObject>>,
    /// The current version; none for a deleted object.
    pub new: Option<Arc<KubeObject>>,
}

impl ObjectChange {
    /// Returns true if the previous object was deleted: the current one, if any, only has the same name.
    pub fn is_replacement(&self) -> bool {
        let same = |old: &Arc<KubeObject>| self.new.as_ref().is_some_and(|new| new.uid == old.uid);
        self.old.as_ref().is_some_and(|old| !same(old))
    }
}

/// The outcome of putting an object into the store.
#[derive(Debug)]
pub enum Put {
    /// The object is new or newer than the cached version.
    Changed(ObjectChange),
    /// The version was cached already, or the object is known to be deleted.
    Unchanged,
    /// A newer version is cached already, or this one from a write of the host's own. A foreign version in between
    /// may never have been seen. Contains the cached object.
    Superseded(Arc<KubeObject>),
    /// No watch covers the object, so it is not cached.
    Unwatched(Arc<KubeObject>),
}

/// The filter and page of a list within a scope.
#[derive(Clone, Debug, Default)]
pub struct ListQuery<'a> {
    /// The namespace; empty for all of the scope.
    pub namespace: &'a str,
    /// Label selector; none for all.
    pub labels: Option<&'a LabelSelector>,
    /// Field selector; none for all.
    pub fields: Option<&'a FieldSelector>,
    /// Only objects after this one, in order of namespace and name.
    pub after: Option<&'a ListKey>,
    /// Maximum number of objects; none for all.
    pub limit: Option<usize>,
}

impl<'a> ListQuery<'a> {
    /// The name that the objects must have in the query's namespace.
    fn name(&self) -> Option<&'a str> {
        let fields = self.fields.filter(|_| !self.namespace.is_empty());
        fields.and_then(FieldSelector::required_name)
    }
}

/// Namespace and name of an object, in the order of lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListKey {
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

/// Number and size of the cached objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSize {
    /// Number of objects.
    pub objects: usize,
    /// Bytes of their JSON, uncompressed.
    pub bytes: usize,
    /// Number of indexes.
    pub indexes: usize,
}

/// All collections of one kind in one cluster.
#[derive(Default)]
struct Kind {
    collections: Vec<Collection>,
    /// Deleted objects: a late echo of a write must not bring one back.
    tombstones: Tombstones,
    /// Versions cached from write responses whose echo no watch has delivered yet.
    pending_echoes: HashMap<ObjectRef, u64>,
    /// Compression dictionary of the kind.
    dictionary: Dictionary,
}

/// The shared store.
#[derive(Default)]
pub struct Store {
    kinds: RwLock<ClusterKindMap<Kind>>,
    /// Number of the next index that is built.
    next_index: AtomicU64,
}

/// Minimum size of a collection that is indexed: smaller ones are scanned faster.
const MIN_INDEXED_OBJECTS: usize = 64;

/// Relation of an arriving version to the cached one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Novelty {
    /// It is newer than the cached version.
    New,
    /// It is the cached version.
    Cached,
}

impl Kind {
    fn collections_of(&mut self, projection: Projection) -> impl Iterator<Item = &mut Collection> {
        self.collections
            .iter_mut()
            .filter(move |c| c.scope.projection == projection)
    }

    /// The newest version in any collection of this projection.
    fn latest(&self, key: &ObjectRef, projection: Projection) -> Option<Arc<KubeObject>> {
        let of_form = self
            .collections
            .iter()
            .filter(|c| c.scope.projection == projection);
        let found = of_form.filter_map(|c| c.get(key));
        found.max_by_key(|o| o.resource_version).cloned()
    }

    /// The cached copy of a key, which all collections share.
    fn cached_key(&self, key: &ObjectRef) -> Option<&ObjectRef> {
        let found = self.collections.iter().find_map(|c| c.get_key_value(key));
        found.map(|(key, _)| key)
    }

    /// Returns true if a watch of full objects covers an object with these labels.
    fn is_watched_in_full(&self, key: &ObjectRef, labels: &Labels) -> bool {
        let mut full = self
            .collections
            .iter()
            .filter(|c| c.scope.projection == Projection::Full);
        full.any(|c| c.scope.contains(key, labels))
    }

    /// The changes that the metadata collections show and a closed watch of full objects has not reported. That
    /// watch was the one to report them, so they would be lost with it.
    fn undelivered_changes(&self, closed: &Collection) -> Vec<ObjectChange> {
        let metadata = || {
            self.collections
                .iter()
                .filter(|c| c.scope.projection == Projection::Metadata)
        };
        let covered = |key: &ObjectRef, o: &KubeObject| self.is_watched_in_full(key, &o.labels);
        let mut undelivered = HashMap::new();
        for (key, new) in metadata().flat_map(|c| &c.objects) {
            let old = closed.get(key);
            let delivered = old.is_some_and(|old| old.resource_version >= new.resource_version);
            if closed.scope.contains(key, &new.labels) && !delivered && !covered(key, new) {
                let (old, new, key) = (old.cloned(), Some(new.clone()), key.clone());
                undelivered.insert(key.clone(), ObjectChange { key, old, new });
            }
        }
        for (key, old) in &closed.objects {
            let deleted = metadata().any(|c| c.scope.contains(key, &old.labels) && c.get(key).is_none());
            if deleted && !covered(key, old) {
                let (old, new, key) = (Some(old.clone()), None, key.clone());
                undelivered.insert(key.clone(), ObjectChange { key, old, new });
            }
        }
        undelivered.into_values().collect()
    }

    /// Records a version that is the newest or the cached one, so that the echo of our own write is recognized.
    /// Returns true if our own write may have hidden foreign versions before it.
    fn observe(&mut self, key: &ObjectRef, version: u64, novelty: Novelty, source: VersionSource) -> bool {
        if source == VersionSource::WriteResponse {
            if novelty == Novelty::New {
                self.pending_echoes.insert(key.clone(), version);
            }
            return false;
        }
        let echoed = self
            .pending_echoes
            .get(key)
            .is_some_and(|pending| *pending <= version);
        if echoed {
            self.pending_echoes.remove(key);
        }
        echoed && novelty == Novelty::Cached && source.skips_versions()
    }
}

/// Compares the versions of two states of an object. States without a resourceVersion (those of metrics.k8s.io, which
/// are computed for each list) are ordered as they arrive, so that a different one is newer.
fn order_versions(arriving: &KubeObject, cached: &KubeObject) -> Ordering {
    if arriving.resource_version == 0 && arriving.intent != cached.intent {
        return Ordering::Greater;
    }
    arriving.resource_version.cmp(&cached.resource_version)
}

impl Store {
    /// Creates the collection that a watch will fill.
    pub fn open_collection(&self, scope: &Scope) {
        let mut kinds = self.kinds.write();
        let id = (scope.cluster.clone(), scope.gvk.clone());
        let kind = kinds.entry(id).or_default();
        if kind.collections.iter().all(|c| c.scope != *scope) {
            kind.collections.push(Collection::new(scope.clone()));
        }
    }

    /// Drops the collection of a watch. Returns the changes that this watch still had to report to readers of the
    /// metadata.
    pub fn close_collection(&self, scope: &Scope) -> Vec<ObjectChange> {
        let mut kinds = self.kinds.write();
        let id = ClusterKindRef(&scope.cluster, &scope.gvk);
        let Some(kind) = kinds.get_mut(&id) else {
            return Vec::new();
        };
        let Some(at) = kind.collections.iter().position(|c| c.scope == *scope) else {
            return Vec::new();
        };
        let closed = kind.collections.swap_remove(at);
        if kind.collections.is_empty() {
            kinds.remove(&id);
            return Vec::new();
        }
        let pending = std::mem::take(&mut kind.pending_echoes).into_iter();
        let still_cached = pending.filter(|(key, _)| kind.latest(key, Projection::Full).is_some());
        kind.pending_echoes = still_cached.collect();
        match scope.projection {
            Projection::Full => kind.undelivered_changes(&closed),
            Projection::Metadata => Vec::new(),
        }
    }

    /// Drops the objects of a watch that goes on.
    pub fn clear_collection(&self, scope: &Scope) {
        if let Some(collection) = find_collection_mut(&mut self.kinds.write(), scope) {
            *collection = Collection::new(scope.clone());
        }
    }

    /// Number of the cached objects of a watch, and bytes of their JSON.
    pub fn collection_size(&self, scope: &Scope) -> (usize, usize) {
        let kinds = self.kinds.read();
        let collection = find_collection(&kinds, scope);
        collection.map_or((0, 0), |collection| (collection.objects.len(), collection.bytes))
    }

    /// Records the version up to which the list of a watch was complete.
    pub fn complete_list(&self, scope: &Scope, version: u64) {
        let mut kinds = self.kinds.write();
        let kind = kinds.get_mut(&ClusterKindRef(&scope.cluster, &scope.gvk));
        let collections = kind.into_iter().flat_map(|kind| &mut kind.collections);
        for collection in collections.filter(|c| c.scope == *scope) {
            collection.listed_version = version;
        }
    }

    /// Puts an object into every collection that covers it, unless this or a newer version is cached.
    pub fn put(
        &self,
        key: &ObjectRef,
        mut object: KubeObject,
        projection: Projection,
        source: VersionSource,
    ) -> Put {
        let restated = self.find_restated(key, &object, projection, source);
        let sample = self.compress(key, &mut object, projection, restated.is_some());
        let object = Arc::new(object);
        let mut kinds = self.kinds.write();
        let Some(kind) = kinds.get_mut(&ClusterKindRef(&key.cluster, &key.gvk)) else {
            return Put::Unwatched(object);
        };
        if let Some(sample) = sample {
            kind.dictionary.train(&sample);
        }
        let key = &kind.cached_key(key).unwrap_or(key).clone();
        let version = object.resource_version;
        if kind.tombstones.contains(&object.uid, version) {
            return Put::Unchanged;
        }
        let latest = kind.latest(key, projection);
        // A watch of full objects reports the change if there is one.
        let reported_in_full =
            projection == Projection::Metadata && kind.is_watched_in_full(key, &object.labels);
        let order = latest.as_ref().map(|latest| match &restated {
            Some(restated) if Arc::ptr_eq(restated, latest) => Ordering::Greater,
            _ => order_versions(&object, latest),
        });
        let recency = match order {
            Some(Ordering::Less) => Recency::Superseded,
            Some(Ordering::Greater) if restated.is_some() => Recency::Restated,
            _ => Recency::Newest,
        };
        let delivery = match source {
            VersionSource::WriteResponse => Delivery::OutOfBand,
            _ => Delivery::Informer,
        };
        let mut covered = latest.is_some();
        for collection in kind.collections_of(projection) {
            covered |= collection.put(key, &object, recency, delivery);
        }
        if projection == Projection::Full && covered {
            // Also update the metadata-only collections: the reconciler that this wakes may read from them.
            let recency = match recency {
                Recency::Restated => Recency::Restated,
                Recency::Newest | Recency::Superseded => Recency::Newest,
            };
            for collection in kind.collections_of(Projection::Metadata) {
                collection.put(key, &object, recency, Delivery::OutOfBand);
            }
        }
        if reported_in_full {
            return Put::Unchanged;
        }
        match latest.zip(order) {
            Some((latest, Ordering::Less)) => Put::Superseded(latest),
            Some((latest, Ordering::Equal)) => {
                if kind.observe(key, version, Novelty::Cached, source) {
                    Put::Superseded(latest)
                } else {
                    Put::Unchanged
                }
            }
            Some((latest, Ordering::Greater)) => {
                kind.observe(key, version, Novelty::New, source);
                Put::Changed(ObjectChange {
                    key: key.clone(),
                    old: Some(latest),
                    new: Some(object),
                })
            }
            None if covered => {
                kind.observe(key, version, Novelty::New, source);
                Put::Changed(ObjectChange {
                    key: key.clone(),
                    old: None,
                    new: Some(object),
                })
            }
            None => Put::Unwatched(object),
        }
    }

    /// Records that a watch of full objects has delivered a version which its collection holds: that of a write of the host's own, or one
    /// that another watch has delivered. Returns false for any other version, which has to be put.
    pub fn confirm_version(&self, scope: &Scope, key: &ObjectRef, uid: &Uid, version: u64) -> bool {
        let mut kinds = self.kinds.write();
        let Some(kind) = kinds.get_mut(&ClusterKindRef(&key.cluster, &key.gvk)) else {
            return false;
        };
        let own = kind.collections.iter().find(|c| c.scope == *scope);
        let cached = own.and_then(|collection| collection.get(key));
        // Without a version (metrics.k8s.io) different states look the same.
        let is_cached =
            version != 0 && cached.is_some_and(|o| o.resource_version == version && o.uid == *uid);
        if is_cached {
            kind.observe(key, version, Novelty::Cached, VersionSource::Watch);
        }
        is_cached
    }

    /// Returns the cached object of which a relist shows the same version with another content: the schema of its kind has changed,
    /// and the former one hid fields that it did not know, or had other defaults. Runs before the write lock is taken.
    fn find_restated(
        &self,
        key: &ObjectRef,
        object: &KubeObject,
        projection: Projection,
        source: VersionSource,
    ) -> Option<Arc<KubeObject>> {
        if source != VersionSource::Relist {
            return None;
        }
        let cached = {
            let kinds = self.kinds.read();
            let kind = kinds.get(&ClusterKindRef(&key.cluster, &key.gvk))?;
            kind.latest(key, projection)?
        };
        let is_restated =
            cached.resource_version == object.resource_version && cached.json.text() != object.json.text();
        is_restated.then_some(cached)
    }

    /// Compresses an object that is likely to be cached. Runs before the write lock is taken, so that readers do not
    /// wait for it. Returns the plain text of an object that the dictionary should be trained with.
    fn compress(
        &self,
        key: &ObjectRef,
        object: &mut KubeObject,
        projection: Projection,
        restated: bool,
    ) -> Option<Box<[u8]>> {
        // A dictionary outlives its samples, so no Secret may become one.
        if key.gvk.is_secret() {
            return None;
        }
        let dictionary = {
            let kinds = self.kinds.read();
            let kind = kinds.get(&ClusterKindRef(&key.cluster, &key.gvk))?;
            let is_cached = |o: Arc<KubeObject>| o.resource_version >= object.resource_version;
            if !restated && kind.latest(key, projection).is_some_and(is_cached) {
                return None;
            }
            kind.dictionary.clone()
        };
        object.json.compress(&dictionary)
    }

    /// Removes an object that left the scope of a watch as of a version. Only the object with this `uid` is removed;
    /// a later one of the same name stays. With a label selector the object may still be in other scopes.
    pub fn remove(&self, scope: &Scope, key: &ObjectRef, uid: &Uid, version: u64) -> Option<ObjectChange> {
        let mut kinds = self.kinds.write();
        let kind = kinds.get_mut(&ClusterKindRef(&key.cluster, &key.gvk))?;
        // Without a selector, leaving the scope means deletion.
        let deleted = scope.selector.is_none();
        let mut old = None;
        let is_gone = |o: &&Arc<KubeObject>| o.uid == *uid && o.resource_version <= version;
        for collection in kind
            .collections_of(scope.projection)
            .filter(|c| deleted || c.scope == *scope)
        {
            if collection.get(key).filter(is_gone).is_some() {
                old = collection.remove(key).or(old);
            }
            if !deleted || scope.projection == Projection::Metadata {
                collection.departed.insert(uid, version);
            }
        }
        if scope.projection == Projection::Full && deleted && old.is_some() {
            // Also update the metadata-only collections: the reconciler that this wakes may read from them.
            for collection in kind.collections_of(Projection::Metadata) {
                if collection.get(key).filter(is_gone).is_some() {
                    collection.remove(key);
                }
            }
        }
        // A watch of full objects that covers the object has reported the deletion or will do so, unless it never
        // had the object.
        let none = Labels::default();
        let labels = old.as_ref().map_or(&none, |o| &o.labels);
        if scope.projection == Projection::Metadata && kind.is_watched_in_full(key, labels) {
            // Its relist may have come a little earlier than this one.
            let reported = old
                .as_ref()
                .is_some_and(|o| kind.tombstones.contains(uid, o.resource_version));
            if reported || kind.latest(key, Projection::Full).is_some() {
                return None;
            }
        } else if deleted {
            kind.tombstones.insert(uid, version);
        }
        // Another scope still has the object.
        if kind.latest(key, scope.projection).is_some() {
            return None;
        }
        kind.pending_echoes.remove(key);
        Some(ObjectChange {
            key: key.clone(),
            old: Some(old?),
            new: None,
        })
    }

    /// Removes exactly this object from all collections, because the API server has confirmed its deletion.
    pub fn remove_deleted(&self, key: &ObjectRef, uid: &Uid) -> Option<ObjectChange> {
        let mut kinds = self.kinds.write();
        let kind = kinds.get_mut(&ClusterKindRef(&key.cluster, &key.gvk))?;
        // Late events of any version must not bring it back: a uid is never used again.
        kind.tombstones.insert(uid, u64::MAX);
        let mut old = None;
        for projection in [Projection::Metadata, Projection::Full] {
            for collection in kind.collections_of(projection) {
                if collection.get(key).is_some_and(|o| o.uid == *uid) {
                    old = collection.remove(key).or(old);
                }
            }
        }
        let old = Some(old?);
        kind.pending_echoes.remove(key);
        let key = key.clone();
        Some(ObjectChange { key, old, new: None })
    }

    /// Returns one object: in full if any watch has it so, otherwise in this projection.
    pub fn get(&self, key: &ObjectRef, projection: Projection) -> Option<Arc<KubeObject>> {
        let kinds = self.kinds.read();
        let kind = kinds.get(&ClusterKindRef(&key.cluster, &key.gvk))?;
        let full = kind.latest(key, Projection::Full);
        full.or_else(|| kind.latest(key, projection))
    }

    /// Replaces a key by the cached copy of it, so that all users share one allocation.
    pub fn share_key(&self, key: ObjectRef) -> ObjectRef {
        let kinds = self.kinds.read();
        let kind = kinds.get(&ClusterKindRef(&key.cluster, &key.gvk));
        kind.and_then(|kind| kind.cached_key(&key))
            .cloned()
            .unwrap_or(key)
    }

    /// Lists objects of a watched scope, in order of namespace and name.
    pub fn list(&self, scope: &Scope, query: &ListQuery<'_>) -> Vec<(ObjectRef, Arc<KubeObject>)> {
        let label = query.labels.and_then(LabelSelector::equality_term);
        let field = || query.fields.and_then(FieldSelector::equality_term);
        let term = match label {
            // Namespace and name are the key of one object, which needs no index.
            _ if query.name().is_some() => None,
            Some((key, value)) => Some((IndexTerm::Label(key.into()), value)),
            None => field().map(|(path, value)| (IndexTerm::Field(path.into()), value)),
        };
        if let Some((term, _)) = &term {
            self.ensure_index(scope, term);
        }
        let kinds = self.kinds.read();
        let Some(collection) = find_collection(&kinds, scope) else {
            return Vec::new();
        };
        let found = collection.search(query, term.as_ref());
        found
            .filter(|(_, object)| query.labels.is_none_or(|s| s.matches(&object.labels)))
            .filter(|(_, object)| query.fields.is_none_or(|s| object.is_selected_by(s)))
            .take(query.limit.unwrap_or(usize::MAX))
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect()
    }

    /// The keys of all cached objects of a scope in their order, whichever watches have them. The first list of a watch reports no
    /// object that another one has cached before.
    pub fn cached_keys(&self, scope: &Scope) -> BTreeSet<ObjectRef> {
        let kinds = self.kinds.read();
        let kind = kinds.get(&ClusterKindRef(&scope.cluster, &scope.gvk));
        let collections = kind.into_iter().flat_map(|kind| &kind.collections);
        let full = collections.filter(|c| c.scope.projection == Projection::Full);
        let objects = full.flat_map(|collection| &collection.objects);
        let within = objects.filter(|(key, object)| scope.contains(key, &object.labels));
        within.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the first object of a namespace in a watched scope that satisfies a condition.
    pub fn find(
        &self,
        scope: &Scope,
        namespace: &str,
        holds: impl Fn(&KubeObject) -> bool,
    ) -> Option<ObjectRef> {
        let query = ListQuery {
            namespace,
            ..ListQuery::default()
        };
        let kinds = self.kinds.read();
        let mut found = find_collection(&kinds, scope)?.search(&query, None);
        found
            .find(|(_, object)| holds(object))
            .map(|(key, _)| key.clone())
    }

    /// Builds the index of a term unless the collection is small, has it or has no room for it. The store is locked only
    /// to take a snapshot of the objects and to add the index.
    fn ensure_index(&self, scope: &Scope, term: &IndexTerm) {
        let now = Instant::now();
        let is_missing = find_collection(&self.kinds.read(), scope).is_some_and(|collection| {
            collection.objects.len() >= MIN_INDEXED_OBJECTS && collection.indexes.has_room_for(term, now)
        });
        if !is_missing {
            return;
        }
        let id = self.next_index.fetch_add(1, atomic::Ordering::Relaxed);
        let reserved = find_collection_mut(&mut self.kinds.write(), scope)
            .is_some_and(|collection| collection.indexes.reserve(term, id, now));
        if !reserved {
            return;
        }
        let snapshot: IndexSnapshot = {
            let kinds = self.kinds.read();
            let objects = find_collection(&kinds, scope)
                .into_iter()
                .flat_map(|c| &c.objects);
            objects
                .map(|(key, object)| (key.clone(), object.clone()))
                .collect()
        };
        let built = BuiltIndex::build(term, &snapshot);
        if let Some(collection) = find_collection_mut(&mut self.kinds.write(), scope) {
            collection
                .indexes
                .complete(id, built, &snapshot, &collection.objects);
        }
    }

    /// Number and size of the cached objects.
    pub fn size(&self) -> StoreSize {
        let kinds = self.kinds.read();
        let collections = kinds.values().flat_map(|k| &k.collections);
        let mut size = StoreSize::default();
        for collection in collections {
            size.indexes += collection.indexes.len();
            size.objects += collection.objects.len();
            size.bytes += collection.bytes;
        }
        size
    }
}

fn find_collection<'a>(kinds: &'a ClusterKindMap<Kind>, scope: &Scope) -> Option<&'a Collection> {
    let kind = kinds.get(&ClusterKindRef(&scope.cluster, &scope.gvk))?;
    kind.collections.iter().find(|c| c.scope == *scope)
}

fn find_collection_mut<'a>(kinds: &'a mut ClusterKindMap<Kind>, scope: &Scope) -> Option<&'a mut Collection> {
    let kind = kinds.get_mut(&ClusterKindRef(&scope.cluster, &scope.gvk))?;
    kind.collections.iter_mut().find(|c| c.scope == *scope)
}

#[cfg(test)]
mod tests;
