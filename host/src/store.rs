//! The objects the host has seen, by kind, namespace and name: one copy for all plugins.
//!
//! Watches and the host's own writes both put objects in; whichever is newer
//! stays, so a write is readable at once and its echo in the watch is no change.
//!
//! Each watch has a collection. Where two overlap, both have the object (it is shared, not copied), and
//! a change is told once.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::{Arc, RwLock},
};

use crate::{
    key::{Gvk, ObjectRef},
    object::{Labels, Object, Vocabulary},
    scope::{Form, Scope},
    selector::{FieldSelector, Selector},
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
    /// No watch covers it: it is not kept.
    Stray(Arc<Object>),
}

/// Which objects of a scope are asked for.
#[derive(Clone, Debug, Default)]
pub struct Query<'a> {
    /// The namespace; empty for all of the scope.
    pub namespace: &'a str,
    /// By label.
    pub labels: Option<&'a Selector>,
    /// By field.
    pub fields: Option<&'a FieldSelector>,
    /// Only what comes after this namespace and name.
    pub after: Option<&'a Name>,
    /// So many at most; none for all.
    pub limit: Option<usize>,
}

/// Namespace and name.
pub type Name = (Arc<str>, Arc<str>);

/// What an index goes by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Term {
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
struct Collection {
    scope: Scope,
    objects: BTreeMap<ObjectRef, Arc<Object>>,
    /// Made when a list first asks by a label or a field, and kept up from then on.
    indexes: HashMap<Term, Index>,
    /// Where labels decide what is in it: what is not any more, as of which version. A late echo of a write must not
    /// bring it back.
    left: HashMap<Box<str>, u64>,
}

/// All collections of one kind in one cluster.
#[derive(Default)]
struct Kind {
    collections: Vec<Collection>,
    /// Resource versions of deletions not long ago: a late echo of a write must not bring an object back.
    buried: HashMap<Box<str>, u64>,
    /// What objects of the kind have in common.
    vocabulary: Vocabulary,
}

/// The shared store.
#[derive(Default)]
pub struct Store {
    kinds: RwLock<HashMap<(Arc<str>, Gvk), Kind>>,
}

/// More tombstones than this are not kept: echoes come within milliseconds.
const BURIED: usize = 4096;

/// Collections smaller than this are searched faster than indexed.
const INDEXED: usize = 64;

impl Collection {
    fn get(&self, key: &ObjectRef) -> Option<&Arc<Object>> {
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

    fn remove(&mut self, key: &ObjectRef) -> Option<Arc<Object>> {
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

    fn index(&mut self, term: Term) {
        let mut index = Index::new();
        for (key, object) in &self.objects {
            enter(&mut index, &term, object, key);
        }
        self.indexes.insert(term, index);
    }

    /// Objects in order, from the index where there is one for the query, else from all.
    fn search<'a>(
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

impl Kind {
    fn of(&mut self, form: Form) -> impl Iterator<Item = &mut Collection> {
        self.collections.iter_mut().filter(move |c| c.scope.form == form)
    }

    /// The newest that any watch of this form has.
    fn latest(&self, key: &ObjectRef, form: Form) -> Option<Arc<Object>> {
        let of_form = self.collections.iter().filter(|c| c.scope.form == form);
        let found = of_form.filter_map(|c| c.get(key));
        found.max_by_key(|o| o.resource_version).cloned()
    }

    /// The name as it is kept: one for all who have it.
    fn named(&self, key: &ObjectRef) -> Option<&ObjectRef> {
        let found = self.collections.iter().find_map(|c| c.objects.get_key_value(key));
        found.map(|(key, _)| key)
    }

    fn bury(&mut self, uid: &str, version: u64) {
        if self.buried.len() >= BURIED {
            self.buried.clear();
        }
        let newest = self.buried.entry(uid.into()).or_default();
        *newest = version.max(*newest);
    }
}

impl Store {
    /// Makes room for what a watch will bring.
    pub fn open(&self, scope: &Scope) {
        let mut kinds = self.kinds.write().expect("lock");
        let kind = kinds.entry(id(&scope.cluster, &scope.gvk)).or_default();
        if kind.collections.iter().all(|c| c.scope != *scope) {
            kind.collections.push(Collection {
                scope: scope.clone(),
                objects: BTreeMap::new(),
                indexes: HashMap::new(),
                left: HashMap::new(),
            });
        }
    }

    /// Forgets what a watch brought. Nobody is told: nobody reads it.
    pub fn close(&self, scope: &Scope) {
        let mut kinds = self.kinds.write().expect("lock");
        let id = id(&scope.cluster, &scope.gvk);
        let Some(kind) = kinds.get_mut(&id) else { return };
        kind.collections.retain(|c| c.scope != *scope);
        if kind.collections.is_empty() {
            kinds.remove(&id);
        }
    }

    /// Takes an object in, wherever it belongs, unless the store has it in this or a newer version.
    pub fn put(&self, key: &ObjectRef, mut object: Object, form: Form) -> Put {
        let stranger = self.pack(key, &mut object, form);
        let object = Arc::new(object);
        let mut kinds = self.kinds.write().expect("lock");
        let Some(kind) = kinds.get_mut(&id(&key.cluster, &key.gvk)) else {
            return Put::Stray(object);
        };
        if let Some(stranger) = stranger {
            kind.vocabulary.meet(&stranger);
        }
        let key = &kind.named(key).unwrap_or(key).clone();
        let version = object.resource_version;
        if kind.buried.get(&object.uid).is_some_and(|v| *v >= version) {
            return Put::Known;
        }
        let latest = kind.latest(key, form);
        // The watch of the whole objects tells, where there is one.
        let whole = form == Form::Metadata && kind.of(Form::Whole).any(|c| c.scope.has(key, &object.labels));
        let mut kept = latest.is_some();
        for collection in kind.of(form) {
            let newer = collection.get(key).is_none_or(|o| o.resource_version < version);
            if collection.left.get(&object.uid).is_some_and(|v| *v >= version) {
                continue;
            }
            if collection.scope.has(key, &object.labels) {
                if newer && latest.as_ref().is_none_or(|l| l.resource_version <= version) {
                    collection.insert(key, &object);
                }
                kept = true;
            } else if newer {
                collection.remove(key);
            }
        }
        match latest {
            _ if whole => Put::Known,
            Some(latest) => match version.cmp(&latest.resource_version) {
                Ordering::Less => Put::Overtaken(latest),
                Ordering::Equal => Put::Known,
                Ordering::Greater => Put::News(Change {
                    key: key.clone(),
                    old: Some(latest),
                    new: Some(object),
                }),
            },
            None if kept => Put::News(Change {
                key: key.clone(),
                old: None,
                new: Some(object),
            }),
            None => Put::Stray(object),
        }
    }

    /// Packs what is likely to be kept, before others have to wait for it. Gives the text of a stranger.
    fn pack(&self, key: &ObjectRef, object: &mut Object, form: Form) -> Option<Box<[u8]>> {
        // Of what is secret nothing is to outlive it in a vocabulary.
        if key.gvk.is_secret() {
            return None;
        }
        let vocabulary = {
            let kinds = self.kinds.read().expect("lock");
            let kind = kinds.get(&id(&key.cluster, &key.gvk))?;
            let known = |o: Arc<Object>| o.resource_version >= object.resource_version;
            if kind.latest(key, form).is_some_and(known) {
                return None;
            }
            kind.vocabulary.clone()
        };
        object.json.pack(&vocabulary)
    }

    /// A watch says that an object is not in its scope any more, as of a version. `uid` tells which: another
    /// of that name stays. Where labels decide what is in the scope the object may go on elsewhere.
    pub fn remove(&self, scope: &Scope, key: &ObjectRef, uid: &str, version: u64) -> Option<Change> {
        let mut kinds = self.kinds.write().expect("lock");
        let kind = kinds.get_mut(&id(&key.cluster, &key.gvk))?;
        let all = scope.selector.is_none();
        let mut old = None;
        for collection in kind.of(scope.form).filter(|c| all || c.scope == *scope) {
            let there = collection.get(key);
            if there.is_some_and(|o| *o.uid == *uid && o.resource_version <= version) {
                old = collection.remove(key).or(old);
            }
            if !all {
                if collection.left.len() >= BURIED {
                    collection.left.clear();
                }
                collection.left.insert(uid.into(), version);
            }
        }
        // The watch of the whole objects tells, where there is one: it has done so, or will. Of an object that
        // it never had it won't.
        let none = Labels::default();
        let labels = old.as_ref().map_or(&none, |o| &o.labels);
        if scope.form == Form::Metadata && kind.of(Form::Whole).any(|c| c.scope.has(key, labels)) {
            // It may have listed anew a little earlier than this one.
            let gone = |o: &Arc<Object>| kind.buried.get(uid).is_some_and(|v| *v >= o.resource_version);
            let told = old.as_ref().is_some_and(gone);
            if told || kind.latest(key, Form::Whole).is_some() {
                return None;
            }
        } else if all {
            kind.bury(uid, version);
        }
        // It goes on elsewhere.
        if kind.latest(key, scope.form).is_some() {
            return None;
        }
        Some(Change {
            key: key.clone(),
            old: Some(old?),
            new: None,
        })
    }

    /// One object, as whole as any watch has it; at least in this form.
    pub fn get(&self, key: &ObjectRef, form: Form) -> Option<Arc<Object>> {
        let kinds = self.kinds.read().expect("lock");
        let kind = kinds.get(&id(&key.cluster, &key.gvk))?;
        let whole = kind.latest(key, Form::Whole);
        whole.or_else(|| kind.latest(key, form))
    }

    /// An object's name as it is kept here, so that everybody keeps the same one.
    pub fn named(&self, key: ObjectRef) -> ObjectRef {
        let kinds = self.kinds.read().expect("lock");
        let kind = kinds.get(&id(&key.cluster, &key.gvk));
        kind.and_then(|kind| kind.named(&key)).cloned().unwrap_or(key)
    }

    /// Objects of a scope that a watch has, in order of namespace and name.
    pub fn list(&self, scope: &Scope, query: &Query<'_>) -> Vec<(ObjectRef, Arc<Object>)> {
        let label = query.labels.and_then(Selector::equality);
        let field = || query.fields.and_then(FieldSelector::equality);
        let term = match label {
            Some((key, value)) => Some((Term::Label(key.into()), value)),
            None => field().map(|(path, value)| (Term::Field(path.into()), value)),
        };
        let id = id(&scope.cluster, &scope.gvk);
        let kinds = self.kinds.read().expect("lock");
        let find = |kinds: &HashMap<_, Kind>| {
            let collections = &kinds.get(&id)?.collections;
            collections.iter().position(|c| c.scope == *scope)
        };
        let Some(at) = find(&kinds) else {
            return Vec::new();
        };
        let collection = &kinds[&id].collections[at];
        let wanted = term.as_ref().filter(|(term, _)| {
            collection.objects.len() >= INDEXED && !collection.indexes.contains_key(term)
        });
        if let Some((term, _)) = wanted {
            drop(kinds);
            let mut kinds = self.kinds.write().expect("lock");
            if let Some(at) = find(&kinds)
                && let Some(kind) = kinds.get_mut(&id)
            {
                kind.collections[at].index(term.clone());
            }
            drop(kinds);
            return self.list(scope, query);
        }
        let found = collection.search(query, term.as_ref());
        found
            .filter(|(_, object)| query.labels.is_none_or(|s| s.matches(&object.labels)))
            .filter(|(_, object)| query.fields.is_none_or(|s| s.matches(object)))
            .take(query.limit.unwrap_or(usize::MAX))
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect()
    }

    /// Number of objects and bytes of JSON kept.
    pub fn size(&self) -> (usize, usize) {
        let kinds = self.kinds.read().expect("lock");
        let collections = kinds.values().flat_map(|k| &k.collections);
        let objects = collections.flat_map(|c| c.objects.values());
        objects.fold((0, 0), |(n, bytes), o| (n + 1, bytes + o.json.len()))
    }
}

fn id(cluster: &Arc<str>, gvk: &Gvk) -> (Arc<str>, Gvk) {
    (cluster.clone(), gvk.clone())
}

#[cfg(test)]
mod tests;
