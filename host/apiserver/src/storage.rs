//! Object storage: objects by resource and name, one revision counter, and a bounded history per resource.
//!
//! Objects are immutable once stored and shared by reference, so that a list or a hundred watches cost no copies.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{mpsc, watch};

pub use crate::object::{GroupResource, ObjectWrite, StoredKey, StoredObject};

/// Reason for a refused write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteRefused {
    /// Another write came first, or the object has been deleted.
    Changed,
    /// An object of this name exists.
    Exists,
    /// The namespace doesn't exist.
    NoNamespace,
    /// The namespace is being deleted.
    NamespaceTerminating,
}

/// The requested revision is older than the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Oldest revision that can be requested.
    pub oldest: u64,
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<StoredKey, Arc<StoredObject>>,
    history: VecDeque<Arc<ObjectWrite>>,
    /// Changes at or before this revision are no longer in the history.
    compacted: u64,
    signal: watch::Sender<u64>,
}

impl Table {
    fn new(compacted: u64) -> Self {
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            compacted,
            signal: watch::Sender::new(0),
        }
    }
}

#[derive(Debug)]
struct Data {
    revision: u64,
    tables: HashMap<GroupResource, Table>,
    by_uid: HashMap<String, (GroupResource, StoredKey)>,
    dependents: HashMap<String, HashSet<(GroupResource, StoredKey)>>,
    /// The latest compaction, which also holds for tables created after it.
    compacted: u64,
}

/// Notification of a write to the garbage collector.
pub type WriteNotice = (GroupResource, Arc<ObjectWrite>);

/// All objects.
#[derive(Debug)]
pub struct Storage {
    data: Mutex<Data>,
    history: usize,
    written: mpsc::UnboundedSender<WriteNotice>,
}

impl Storage {
    /// An empty storage that keeps `history` changes per resource and reports every write to the receiver.
    pub fn new(history: usize) -> (Self, mpsc::UnboundedReceiver<WriteNotice>) {
        let (written, receiver) = mpsc::unbounded_channel();
        let data = Data {
            revision: 1,
            tables: HashMap::new(),
            by_uid: HashMap::new(),
            dependents: HashMap::new(),
            compacted: 0,
        };
        (
            Self {
                data: Mutex::new(data),
                history: history.max(1),
                written,
            },
            receiver,
        )
    }

    /// Takes the objects of another storage in place of its own. They are shared, so they cost no copies. The history begins after
    /// them.
    pub fn restore(&self, other: &Self) {
        let other = other.lock();
        let mut data = self.lock();
        let restore_table = |(resource, table): (&GroupResource, &Table)| {
            let mut restored = Table::new(other.revision);
            restored.objects.clone_from(&table.objects);
            (resource.clone(), restored)
        };
        *data = Data {
            revision: other.revision,
            tables: other.tables.iter().map(restore_table).collect(),
            by_uid: other.by_uid.clone(),
            dependents: other.dependents.clone(),
            compacted: other.revision,
        };
    }

    // Every critical section leaves the data consistent, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current revision.
    pub fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// One object.
    pub fn get(&self, resource: &GroupResource, key: &StoredKey) -> Option<Arc<StoredObject>> {
        self.lock().tables.get(resource)?.objects.get(key).cloned()
    }

    /// The object with this uid, and its resource.
    pub fn find_by_uid(&self, uid: &str) -> Option<(GroupResource, Arc<StoredObject>)> {
        let data = self.lock();
        let (resource, key) = data.by_uid.get(uid)?;
        Some((
            resource.clone(),
            data.tables.get(resource)?.objects.get(key)?.clone(),
        ))
    }

    /// Objects whose owner references name this uid.
    pub fn list_dependents(&self, uid: &str) -> Vec<(GroupResource, Arc<StoredObject>)> {
        let data = self.lock();
        let known = data.dependents.get(uid).into_iter().flatten();
        known
            .filter_map(|(resource, key)| {
                Some((
                    resource.clone(),
                    data.tables.get(resource)?.objects.get(key)?.clone(),
                ))
            })
            .collect()
    }

    /// All objects in a namespace.
    pub fn list_namespace(&self, namespace: &str) -> Vec<(GroupResource, Arc<StoredObject>)> {
        let data = self.lock();
        let all = data.tables.iter();
        all.flat_map(|(resource, table)| {
            iter_range(table, Some(namespace)).map(|(_, object)| (resource.clone(), object.clone()))
        })
        .collect()
    }

    /// The objects of a resource in key order, and the revision of that state.
    pub fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> (Vec<Arc<StoredObject>>, u64) {
        let data = self.lock();
        let objects = data.tables.get(resource).map(|table| {
            iter_range(table, namespace)
                .map(|(_, object)| object.clone())
                .collect()
        });
        (objects.unwrap_or_default(), data.revision)
    }

    /// The objects at an earlier revision: the current state with later changes undone.
    pub fn list_at(
        &self,
        resource: &GroupResource,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<StoredObject>>, Compacted> {
        let data = self.lock();
        let Some(table) = data.tables.get(resource) else {
            return if revision < data.compacted {
                Err(Compacted {
                    oldest: data.compacted,
                })
            } else {
                Ok(Vec::new())
            };
        };
        if revision < table.compacted {
            return Err(Compacted {
                oldest: table.compacted,
            });
        }
        let mut objects: BTreeMap<StoredKey, Arc<StoredObject>> = iter_range(table, namespace)
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        for change in table
            .history
            .iter()
            .rev()
            .take_while(|change| change.revision > revision)
        {
            let key = change.object.key();
            if namespace.is_some_and(|namespace| namespace != key.namespace) {
                continue;
            }
            match &change.previous {
                Some(previous) => objects.insert(key, previous.clone()),
                None => objects.remove(&key),
            };
        }
        Ok(objects.into_values().collect())
    }

    /// The changes of a resource after `revision`, and the current revision.
    pub fn changes_since(
        &self,
        resource: &GroupResource,
        revision: u64,
    ) -> Result<(Vec<Arc<ObjectWrite>>, u64), Compacted> {
        let data = self.lock();
        let Some(table) = data.tables.get(resource) else {
            return if revision < data.compacted {
                Err(Compacted {
                    oldest: data.compacted,
                })
            } else {
                Ok((Vec::new(), data.revision))
            };
        };
        if revision < table.compacted {
            return Err(Compacted {
                oldest: table.compacted,
            });
        }
        let start = table
            .history
            .partition_point(|change| change.revision <= revision);
        Ok((table.history.range(start..).cloned().collect(), data.revision))
    }

    /// A receiver that wakes at every change of a resource.
    pub fn subscribe(&self, resource: &GroupResource) -> watch::Receiver<u64> {
        let mut data = self.lock();
        let compacted = data.compacted;
        data.tables
            .entry(resource.clone())
            .or_insert_with(|| Table::new(compacted))
            .signal
            .subscribe()
    }

    /// Wakes the receivers of a resource without a change of an object.
    pub fn wake_receivers(&self, resource: &GroupResource) {
        if let Some(table) = self.lock().tables.get(resource) {
            table.signal.send_modify(|_| {});
        }
    }

    /// Changes how the objects of a resource read, without a new version of them.
    pub fn rewrite_objects(&self, resource: &GroupResource, rewrite: impl Fn(&mut Value)) {
        let mut data = self.lock();
        let Some(table) = data.tables.get_mut(resource) else {
            return;
        };
        for object in table.objects.values_mut() {
            let mut value = object.value.clone();
            rewrite(&mut value);
            if value != object.value {
                *object = StoredObject::new(value, object.revision);
            }
        }
    }

    /// Stores a new object.
    pub fn create(
        &self,
        resource: &GroupResource,
        key: StoredKey,
        value: Value,
    ) -> Result<Arc<StoredObject>, WriteRefused> {
        let mut data = self.lock();
        check_free(&data, resource, &key)?;
        Ok(self.commit_write(&mut data, resource, key, Some(value), None, false))
    }

    /// Checks that [`Storage::create`] would store an object now.
    pub fn check_create(&self, resource: &GroupResource, key: &StoredKey) -> Result<(), WriteRefused> {
        check_free(&self.lock(), resource, key)
    }
    /// Replaces an object that is still at `previous`.
    pub fn update(
        &self,
        resource: &GroupResource,
        previous: &Arc<StoredObject>,
        value: Value,
    ) -> Result<Arc<StoredObject>, WriteRefused> {
        self.replace_object(resource, previous, Some(value), false)
    }

    /// Removes an object that is still at `previous`; returns its last state.
    pub fn remove(
        &self,
        resource: &GroupResource,
        previous: &Arc<StoredObject>,
    ) -> Result<Arc<StoredObject>, WriteRefused> {
        self.replace_object(resource, previous, None, true)
    }

    /// Removes an object that is still at `previous`, with a last state that watchers receive.
    pub fn remove_with_state(
        &self,
        resource: &GroupResource,
        previous: &Arc<StoredObject>,
        last: Value,
    ) -> Result<Arc<StoredObject>, WriteRefused> {
        self.replace_object(resource, previous, Some(last), true)
    }

    fn replace_object(
        &self,
        resource: &GroupResource,
        previous: &Arc<StoredObject>,
        value: Option<Value>,
        deleted: bool,
    ) -> Result<Arc<StoredObject>, WriteRefused> {
        let mut data = self.lock();
        let key = previous.key();
        let current = data
            .tables
            .get(resource)
            .and_then(|table| table.objects.get(&key));
        if current.is_none_or(|current| current.revision != previous.revision) {
            return Err(WriteRefused::Changed);
        }
        Ok(self.commit_write(&mut data, resource, key, value, Some(previous.clone()), deleted))
    }

    fn commit_write(
        &self,
        data: &mut Data,
        resource: &GroupResource,
        key: StoredKey,
        value: Option<Value>,
        previous: Option<Arc<StoredObject>>,
        deleted: bool,
    ) -> Arc<StoredObject> {
        data.revision += 1;
        let revision = data.revision;
        let value = value
            .or_else(|| previous.as_ref().map(|previous| previous.value.clone()))
            .unwrap_or_default();
        let object = StoredObject::new(value, revision);
        if let Some(previous) = &previous {
            for owner in owner_uids(&previous.value) {
                if let Some(dependents) = data.dependents.get_mut(owner) {
                    dependents.remove(&(resource.clone(), key.clone()));
                    if dependents.is_empty() {
                        data.dependents.remove(owner);
                    }
                }
            }
        }
        if deleted {
            data.by_uid.remove(object.uid());
        } else {
            data.by_uid
                .insert(object.uid().to_owned(), (resource.clone(), key.clone()));
            for owner in owner_uids(&object.value) {
                data.dependents
                    .entry(owner.to_owned())
                    .or_default()
                    .insert((resource.clone(), key.clone()));
            }
        }
        let compacted = data.compacted;
        let table = data
            .tables
            .entry(resource.clone())
            .or_insert_with(|| Table::new(compacted));
        if deleted {
            table.objects.remove(&key);
        } else {
            table.objects.insert(key, object.clone());
        }
        let change = Arc::new(ObjectWrite {
            revision,
            object: object.clone(),
            previous,
            deleted,
        });
        table.history.push_back(change.clone());
        if table.history.len() > self.history
            && let Some(forgotten) = table.history.pop_front()
        {
            table.compacted = forgotten.revision;
        }
        table.signal.send_replace(revision);
        // The collector has ended with the server: the notification has no receiver then.
        let _ = self.written.send((resource.clone(), change));
        object
    }

    /// Forgets all history: watches and page tokens from earlier revisions are answered 410.
    pub fn compact(&self) {
        let mut data = self.lock();
        // A revision that only the compaction has, so that even the newest one handed out is too old.
        data.revision += 1;
        let revision = data.revision;
        data.compacted = revision;
        for table in data.tables.values_mut() {
            table.history.clear();
            table.compacted = revision;
            table.signal.send_replace(revision);
        }
    }
}

fn check_free(data: &Data, resource: &GroupResource, key: &StoredKey) -> Result<(), WriteRefused> {
    if !key.namespace.is_empty() {
        let namespaces = data.tables.get(&GroupResource::new("", "namespaces"));
        match namespaces.and_then(|table| table.objects.get(&StoredKey::new("", &key.namespace))) {
            None => return Err(WriteRefused::NoNamespace),
            Some(namespace) if namespace.is_terminating() => {
                return Err(WriteRefused::NamespaceTerminating);
            }
            Some(_) => {}
        }
    }
    let table = data.tables.get(resource);
    if table.is_some_and(|table| table.objects.contains_key(key)) {
        return Err(WriteRefused::Exists);
    }
    Ok(())
}

fn iter_range<'a>(
    table: &'a Table,
    namespace: Option<&'a str>,
) -> impl Iterator<Item = (&'a StoredKey, &'a Arc<StoredObject>)> {
    let start = match namespace {
        Some(namespace) => Bound::Included(StoredKey::new(namespace, "")),
        None => Bound::Unbounded,
    };
    table
        .objects
        .range((start, Bound::Unbounded))
        .take_while(move |(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace))
}

fn owner_uids(value: &Value) -> impl Iterator<Item = &str> {
    value["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|owner| owner["uid"].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str) -> Value {
        json!({"metadata": {"name": name, "uid": name}})
    }

    #[test]
    fn writes_are_checked_numbered_and_kept_in_history() {
        let (storage, mut written) = Storage::new(2);
        let things = GroupResource::new("g", "things");
        let a = storage
            .create(&things, StoredKey::new("", "a"), object("a"))
            .unwrap();
        assert_eq!(
            storage
                .create(&things, StoredKey::new("", "a"), object("a"))
                .unwrap_err(),
            WriteRefused::Exists
        );
        assert_eq!(
            storage
                .create(&things, StoredKey::new("nope", "a"), object("a"))
                .unwrap_err(),
            WriteRefused::NoNamespace
        );
        let newer = storage.update(&things, &a, object("a")).unwrap();
        assert_eq!(
            storage.update(&things, &a, object("a")).unwrap_err(),
            WriteRefused::Changed
        );
        let (changes, now) = storage.changes_since(&things, a.revision).unwrap();
        assert_eq!((changes.len(), now), (1, newer.revision));
        storage
            .create(&things, StoredKey::new("", "b"), object("b"))
            .unwrap();
        let then = storage.list_at(&things, None, newer.revision).unwrap();
        assert_eq!(then.len(), 1);
        storage.remove(&things, &newer).unwrap();
        assert_eq!(storage.list(&things, None).0.len(), 1);
        assert!(
            storage.changes_since(&things, a.revision).is_err(),
            "two changes are kept"
        );
        assert!(storage.list_at(&things, None, a.revision).is_err());
        assert_eq!(std::iter::from_fn(|| written.try_recv().ok()).count(), 4);
        let now = storage.revision();
        storage.compact();
        assert!(storage.changes_since(&things, now).is_err());
        assert!(
            storage
                .changes_since(&GroupResource::new("g", "others"), now)
                .is_err()
        );
        assert!(storage.changes_since(&things, storage.revision()).is_ok());
    }
}
