//! The objects of one watch.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use super::Query;
use crate::kube::{key::ObjectRef, object::Object, scope::Scope};

/// What an index goes by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Term {
    Label(Box<str>),
    Field(Box<str>),
}

impl Term {
    fn value(&self, object: &Object) -> Option<Box<str>> {
        match self {
            Self::Label(key) => object.labels.get(key).map(Into::into),
            Self::Field(path) => Some(object.field(path).into()),
        }
    }
}

type Index = HashMap<Box<str>, BTreeSet<ObjectRef>>;

/// The objects of one watch, ordered by namespace and name.
pub(super) struct Collection {
    pub(super) scope: Scope,
    pub(super) objects: BTreeMap<ObjectRef, Arc<Object>>,
    /// Made when a list first asks by a label or a field, and kept up from then on.
    pub(super) indexes: HashMap<Term, Index>,
    /// Where labels decide what is in it, or another watch brings it, too: what is not any more. A late echo of a write,
    /// or a watch that is behind, must not bring it back.
    pub(super) left: Gone,
    /// Up to which version the last list was complete: what it did not have is gone, whatever a late answer says.
    pub(super) listed: u64,
}

/// What has gone not long ago: by uid, as of which version.
#[derive(Default)]
pub(super) struct Gone {
    young: HashMap<Box<str>, u64>,
    old: HashMap<Box<str>, u64>,
}

/// So many tombstones are kept at least, and twice as many at most: echoes come within milliseconds.
const BURIED: usize = 4096;

impl Gone {
    pub(super) fn add(&mut self, uid: &str, version: u64) {
        if self.young.len() >= BURIED {
            self.old = std::mem::take(&mut self.young);
        }
        let newest = self.young.entry(uid.into()).or_default();
        *newest = version.max(*newest);
    }

    /// Whether an object was gone at this version already.
    pub(super) fn has(&self, uid: &str, version: u64) -> bool {
        let at = |gone: &HashMap<Box<str>, u64>| gone.get(uid).is_some_and(|v| *v >= version);
        at(&self.young) || at(&self.old)
    }
}

impl Collection {
    pub(super) fn new(scope: Scope) -> Self {
        Self {
            scope,
            objects: BTreeMap::new(),
            indexes: HashMap::new(),
            left: Gone::default(),
            listed: 0,
        }
    }

    /// Takes a version of an object in, or takes the object out where its labels are not those of the scope any more;
    /// `latest` when no watch of the form has a newer one, `late` when the watch of this one may have been further.
    /// Gives whether it belongs here.
    pub(super) fn take(&mut self, key: &ObjectRef, object: &Arc<Object>, latest: bool, late: bool) -> bool {
        let version = object.resource_version;
        let there = self.get(key).map(|o| o.resource_version);
        let newer = there.is_none_or(|there| there < version);
        let gone = late && there.is_none() && version <= self.listed;
        if gone || self.left.has(&object.uid, version) {
            return false;
        }
        let here = self.scope.has(key, &object.labels);
        match here {
            true if newer && latest => self.insert(key, object),
            false if newer => drop(self.remove(key)),
            _ => {}
        }
        here
    }

    pub(super) fn get(&self, key: &ObjectRef) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    fn insert(&mut self, key: &ObjectRef, object: &Arc<Object>) {
        let old = self.objects.insert(key.clone(), object.clone());
        if let Some(old) = old {
            self.leave(key, &old);
        }
        for (term, index) in &mut self.indexes {
            enter(index, term, object, key);
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectRef) -> Option<Arc<Object>> {
        let object = self.objects.remove(key)?;
        self.leave(key, &object);
        Some(object)
    }

    /// Takes an object as it was out of the indexes.
    fn leave(&mut self, key: &ObjectRef, object: &Object) {
        for (term, index) in &mut self.indexes {
            let Some(value) = term.value(object) else {
                continue;
            };
            if let Some(keys) = index.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    index.remove(&value);
                }
            }
        }
    }

    pub(super) fn index(&mut self, term: Term) {
        let mut index = Index::new();
        for (key, object) in &self.objects {
            enter(&mut index, &term, object, key);
        }
        self.indexes.insert(term, index);
    }

    /// Objects in order, from the index where there is one for the query, else from all.
    pub(super) fn search<'a>(
        &'a self,
        query: &Query<'a>,
        term: Option<&(Term, &str)>,
    ) -> Box<dyn Iterator<Item = (&'a ObjectRef, &'a Arc<Object>)> + 'a> {
        let at = |namespace: Arc<str>, name: Arc<str>| {
            let Scope { gvk, cluster, .. } = &self.scope;
            ObjectRef::of(gvk.clone(), cluster.clone(), namespace, name)
        };
        let from = match query.after {
            Some((namespace, name)) => Bound::Excluded(at(namespace.clone(), name.clone())),
            None => Bound::Included(at(query.namespace.into(), "".into())),
        };
        let from = (from, Bound::Unbounded);
        let namespace = query.namespace;
        let here = move |key: &ObjectRef| namespace.is_empty() || *key.namespace == *namespace;
        if let Some((index, value)) = term.and_then(|(term, value)| Some((self.indexes.get(term)?, value))) {
            let keys = index.get(*value).into_iter();
            let keys = keys.flat_map(move |keys| keys.range(from.clone()));
            return Box::new(
                keys.take_while(move |key| here(key))
                    .filter_map(|key| self.objects.get_key_value(key)),
            );
        }
        Box::new(self.objects.range(from).take_while(move |(key, _)| here(key)))
    }
}

fn enter(index: &mut Index, term: &Term, object: &Object, key: &ObjectRef) {
    if let Some(value) = term.value(object) {
        index.entry(value).or_default().insert(key.clone());
    }
}
