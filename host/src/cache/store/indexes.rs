//! Indexes of a collection by the labels and fields that lists select by.
//!
//! A component chooses the paths of its field selectors, so that the number of indexes is bounded, and none is built
//! while the store is locked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::kube::{key::ObjectRef, object::KubeObject};

/// Maximum number of indexes of a collection. Lists by further terms search all objects.
const MAX_INDEXES: usize = 8;
/// Time without a list by its term after which an index may be replaced. Without it, terms in turn would rebuild
/// indexes all the time.
const MIN_IDLE_TIME: Duration = Duration::from_mins(1);

/// The label or field that an index is built on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum IndexTerm {
    Label(Box<str>),
    Field(Box<str>),
}

impl IndexTerm {
    fn value_of(&self, object: &KubeObject) -> Option<Box<str>> {
        match self {
            Self::Label(key) => object.labels.get(key).map(Into::into),
            Self::Field(path) => Some(object.field_text(path).into()),
        }
    }
}

/// Keys of the objects with each value of a term.
type KeysByValue = HashMap<Box<str>, BTreeSet<ObjectRef>>;

/// An object as it was when an index began to be built.
pub(super) type IndexSnapshot = Vec<(ObjectRef, Arc<KubeObject>)>;

/// An index that has been built and is not in its collection yet.
pub(super) struct BuiltIndex(KeysByValue);

impl BuiltIndex {
    /// Builds an index from a snapshot, without any lock.
    pub(super) fn build(term: &IndexTerm, snapshot: &IndexSnapshot) -> Self {
        let mut keys = KeysByValue::new();
        for (key, object) in snapshot {
            insert(&mut keys, term.value_of(object), key);
        }
        Self(keys)
    }
}

struct Index {
    term: IndexTerm,
    keys: KeysByValue,
    /// Milliseconds from the creation of the collection to the last list by this term.
    last_used: AtomicU64,
}

/// An index that is being built.
struct PendingIndex {
    id: u64,
    term: IndexTerm,
    /// Objects that have changed since the snapshot.
    changed: BTreeSet<ObjectRef>,
}

/// The indexes of a collection.
pub(super) struct Indexes {
    created: Instant,
    built: Vec<Index>,
    pending: Vec<PendingIndex>,
}

impl Default for Indexes {
    fn default() -> Self {
        Self {
            created: Instant::now(),
            built: Vec::new(),
            pending: Vec::new(),
        }
    }
}

impl Indexes {
    /// Number of indexes.
    pub(super) fn len(&self) -> usize {
        self.built.len()
    }

    /// The keys of the objects with each value of a term, if there is such an index.
    pub(super) fn get(&self, term: &IndexTerm) -> Option<&KeysByValue> {
        let index = self.built.iter().find(|index| index.term == *term)?;
        index
            .last_used
            .store(self.elapsed(Instant::now()), Ordering::Relaxed);
        Some(&index.keys)
    }

    /// Returns true if an index by this term would be built now.
    pub(super) fn has_room_for(&self, term: &IndexTerm, now: Instant) -> bool {
        let is_there =
            self.built.iter().any(|i| i.term == *term) || self.pending.iter().any(|p| p.term == *term);
        !is_there && (self.built.len() + self.pending.len() < MAX_INDEXES || self.find_idle(now).is_some())
    }

    /// Reserves the room for an index that will be built from a snapshot that is taken afterwards. Returns false if
    /// there is none.
    pub(super) fn reserve(&mut self, term: &IndexTerm, id: u64, now: Instant) -> bool {
        if !self.has_room_for(term, now) {
            return false;
        }
        if self.built.len() + self.pending.len() >= MAX_INDEXES
            && let Some(idle) = self.find_idle(now)
        {
            self.built.swap_remove(idle);
        }
        self.pending.push(PendingIndex {
            id,
            term: term.clone(),
            changed: BTreeSet::new(),
        });
        true
    }

    /// Adds an index that was built from a snapshot, after the changes since then.
    pub(super) fn complete(
        &mut self,
        id: u64,
        built: BuiltIndex,
        snapshot: &IndexSnapshot,
        objects: &BTreeMap<ObjectRef, Arc<KubeObject>>,
    ) {
        let Some(at) = self.pending.iter().position(|p| p.id == id) else {
            return;
        };
        let PendingIndex { term, changed, .. } = self.pending.swap_remove(at);
        let mut keys = built.0;
        for key in &changed {
            if let Ok(at) = snapshot.binary_search_by(|(k, _)| k.cmp(key)) {
                remove(&mut keys, term.value_of(&snapshot[at].1).as_deref(), key);
            }
            if let Some(object) = objects.get(key) {
                insert(&mut keys, term.value_of(object), key);
            }
        }
        let last_used = self.elapsed(Instant::now()).into();
        self.built.push(Index {
            term,
            keys,
            last_used,
        });
    }

    /// Updates the indexes for a changed object.
    pub(super) fn on_change(&mut self, key: &ObjectRef, old: Option<&KubeObject>, new: Option<&KubeObject>) {
        for pending in &mut self.pending {
            pending.changed.insert(key.clone());
        }
        let values = |object| values_of(&self.built, object);
        let (old, new) = (old.map(values), new.map(values));
        for (at, index) in self.built.iter_mut().enumerate() {
            let value = |values: &Option<Vec<Option<Box<str>>>>| values.as_ref().map(|v| v[at].clone());
            let (old, new) = (value(&old), value(&new));
            if old != new {
                remove(&mut index.keys, old.flatten().as_deref(), key);
                insert(&mut index.keys, new.flatten(), key);
            }
        }
    }

    /// The index that has not been used for the longest time, and for long enough to be replaced.
    fn find_idle(&self, now: Instant) -> Option<usize> {
        let last_used = |index: &Index| index.last_used.load(Ordering::Relaxed);
        let indexes = self.built.iter().enumerate();
        let (at, oldest) = indexes.min_by_key(|(_, index)| last_used(index))?;
        let idle_milliseconds = self.elapsed(now).saturating_sub(last_used(oldest));
        (u128::from(idle_milliseconds) >= MIN_IDLE_TIME.as_millis()).then_some(at)
    }

    fn elapsed(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.created).as_millis()).unwrap_or(u64::MAX)
    }
}

/// The value of each term in an object, which is parsed once for all of them.
fn values_of(indexes: &[Index], object: &KubeObject) -> Vec<Option<Box<str>>> {
    let paths: Vec<&str> = indexes
        .iter()
        .filter_map(|index| match &index.term {
            IndexTerm::Field(path) => Some(&**path),
            IndexTerm::Label(_) => None,
        })
        .collect();
    let mut texts = object.field_texts(&paths).into_iter();
    let value = |index: &Index| match &index.term {
        IndexTerm::Label(key) => object.labels.get(key).map(Into::into),
        IndexTerm::Field(_) => texts.next().map(Into::into),
    };
    indexes.iter().map(value).collect()
}

fn insert(keys: &mut KeysByValue, value: Option<Box<str>>, key: &ObjectRef) {
    if let Some(value) = value {
        keys.entry(value).or_default().insert(key.clone());
    }
}

fn remove(keys: &mut KeysByValue, value: Option<&str>, key: &ObjectRef) {
    let Some(value) = value else { return };
    if let Some(of_value) = keys.get_mut(value) {
        of_value.remove(key);
        if of_value.is_empty() {
            keys.remove(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::key::Gvk;

    fn field(path: &str) -> IndexTerm {
        IndexTerm::Field(path.into())
    }

    fn object(name: &str, value: &str) -> (ObjectRef, Arc<KubeObject>) {
        let json = format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"v":"{value}"}}}}"#);
        let (key, object) =
            KubeObject::parse(&Gvk::new("", "v1", "ConfigMap"), json.as_bytes()).expect("an object");
        (key, Arc::new(object))
    }

    #[test]
    fn index_completed_after_changes_equals_one_built_from_the_result() {
        let term = field("data.v");
        let snapshot: IndexSnapshot = ["a", "b", "c"].map(|name| object(name, "1")).into();
        let mut objects: BTreeMap<_, _> = snapshot.iter().cloned().collect();
        let mut indexes = Indexes::default();
        assert!(indexes.reserve(&term, 1, Instant::now()));
        assert!(!indexes.reserve(&term, 2, Instant::now()), "it is being built");
        let built = BuiltIndex::build(&term, &snapshot);
        // Meanwhile one object changes, one is deleted, and one is created and changes.
        for (name, value) in [("a", Some("2")), ("b", None), ("d", Some("1")), ("d", Some("3"))] {
            let (key, new) = object(name, value.unwrap_or_default());
            let new = value.map(|_| new);
            let old = match &new {
                Some(new) => objects.insert(key.clone(), new.clone()),
                None => objects.remove(&key),
            };
            indexes.on_change(&key, old.as_deref(), new.as_deref());
        }
        indexes.complete(1, built, &snapshot, &objects);
        let expected = BuiltIndex::build(&term, &objects.into_iter().collect());
        assert_eq!(indexes.get(&term), Some(&expected.0));
    }

    #[test]
    fn further_terms_have_no_index_until_another_one_is_idle() {
        let (mut indexes, objects) = (Indexes::default(), BTreeMap::new());
        let start = Instant::now();
        let add = |indexes: &mut Indexes, i: u64, now| {
            let term = field(&format!("data.v{i}"));
            let reserved = indexes.reserve(&term, i, now);
            indexes.complete(i, BuiltIndex::build(&term, &Vec::new()), &Vec::new(), &objects);
            reserved
        };
        for i in 0..200 {
            assert_eq!(add(&mut indexes, i, start), i < MAX_INDEXES as u64, "{i}");
        }
        assert_eq!(indexes.len(), MAX_INDEXES);
        // The first one is used again, so the second one makes room.
        std::thread::sleep(Duration::from_millis(2));
        assert!(indexes.get(&field("data.v0")).is_some());
        assert!(add(
            &mut indexes,
            200,
            start + MIN_IDLE_TIME + Duration::from_secs(1)
        ));
        assert_eq!(indexes.len(), MAX_INDEXES);
        assert!(indexes.get(&field("data.v0")).is_some() && indexes.get(&field("data.v200")).is_some());
    }
}
