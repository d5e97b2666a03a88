//! The objects the host has seen, by kind, namespace and name: one copy for all plugins.
//!
//! Watches and the host's own writes both put objects in; whichever is newer
//! stays, so a write is readable at once and its echo in the watch is no change.
//! A watch shows every version, a list only the last: what was in between when a list shows an own write
//! before a watch does nobody can tell, and is told as overtaken.
//!
//! Each watch has a collection. Where two overlap, both have the object (it is shared, not copied), and
//! a change is told once.

mod collection;

use std::{
    cmp::Ordering,
    collections::HashMap,
    sync::{Arc, RwLock},
};

use self::collection::{Collection, Gone, Term};

use crate::kube::{
    key::{Gvk, ObjectRef},
    object::{Labels, Object, Vocabulary},
    scope::{Form, Scope},
    selector::{FieldSelector, Selector},
};

/// How the host hears of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The first list of an informer: it was there before.
    Initial,
    /// A later list of an informer, which shows how it is and not what has become of it meanwhile.
    Listed,
    /// It happened while the informer watched.
    Watched,
    /// The answer to a request of the host's own.
    Answered,
}

impl Origin {
    /// Whether versions in between may never be shown.
    pub fn skips(self) -> bool {
        matches!(self, Self::Initial | Self::Listed)
    }
}

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

impl Change {
    /// Whether the one that was there before is gone: what is there now, if anything, is another of its name.
    pub fn replaced(&self) -> bool {
        let same = |old: &Arc<Object>| self.new.as_ref().is_some_and(|new| new.uid == old.uid);
        self.old.as_ref().is_some_and(|old| !same(old))
    }
}

/// What the store makes of an object it is given.
#[derive(Debug)]
pub enum Put {
    /// It is news.
    News(Change),
    /// It has it, or knows that it is gone.
    Known,
    /// It has a newer version already, or this one, from a write of the host's own: somebody else's version in
    /// between was never seen. What is kept now is given.
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

/// All collections of one kind in one cluster.
#[derive(Default)]
struct Kind {
    collections: Vec<Collection>,
    /// Deleted: a late echo of a write must not bring an object back.
    buried: Gone,
    /// Versions that are here from answers, and that no watch has shown yet.
    awaited: HashMap<ObjectRef, u64>,
    /// What objects of the kind have in common.
    vocabulary: Vocabulary,
}

/// The shared store.
#[derive(Default)]
pub struct Store {
    kinds: RwLock<HashMap<(Arc<str>, Gvk), Kind>>,
}

/// Collections smaller than this are searched faster than indexed.
const INDEXED: usize = 64;

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

    /// Whether a version of an object is in a watch of the whole objects that has it, or ought to.
    fn whole(&self, key: &ObjectRef, labels: &Labels) -> bool {
        let mut whole = self.collections.iter().filter(|c| c.scope.form == Form::Whole);
        whole.any(|c| c.scope.has(key, labels))
    }

    /// What the metadata says and a watch of the whole objects, which is closed, did not.
    fn untold(&self, closed: &Collection) -> Vec<Change> {
        let metadata = || self.collections.iter().filter(|c| c.scope.form == Form::Metadata);
        let elsewhere = |key: &ObjectRef, o: &Object| self.whole(key, &o.labels);
        let mut untold = HashMap::new();
        for (key, new) in metadata().flat_map(|c| &c.objects) {
            let old = closed.get(key);
            let told = old.is_some_and(|old| old.resource_version >= new.resource_version);
            if closed.scope.has(key, &new.labels) && !told && !elsewhere(key, new) {
                let (old, new, key) = (old.cloned(), Some(new.clone()), key.clone());
                untold.insert(key.clone(), Change { key, old, new });
            }
        }
        for (key, old) in &closed.objects {
            let gone = metadata().any(|c| c.scope.has(key, &old.labels) && c.get(key).is_none());
            if gone && !elsewhere(key, old) {
                let (old, new, key) = (Some(old.clone()), None, key.clone());
                untold.insert(key.clone(), Change { key, old, new });
            }
        }
        untold.into_values().collect()
    }

    /// A version is heard of that is the latest, or that the store has. Gives whether others before it may have been
    /// overtaken by an own write.
    fn heard(&mut self, key: &ObjectRef, version: u64, known: bool, origin: Origin) -> bool {
        if origin == Origin::Answered {
            if !known {
                self.awaited.insert(key.clone(), version);
            }
            return false;
        }
        let shown = self.awaited.get(key).is_some_and(|awaited| *awaited <= version);
        if shown {
            self.awaited.remove(key);
        }
        shown && known && origin.skips()
    }
}

impl Store {
    /// Makes room for what a watch will bring.
    pub fn open(&self, scope: &Scope) {
        let mut kinds = self.kinds.write().expect("lock");
        let kind = kinds.entry(id(&scope.cluster, &scope.gvk)).or_default();
        if kind.collections.iter().all(|c| c.scope != *scope) {
            kind.collections.push(Collection::new(scope.clone()));
        }
    }

    /// Forgets what a watch brought. Gives what it was to tell who reads metadata, and has not.
    pub fn close(&self, scope: &Scope) -> Vec<Change> {
        let mut kinds = self.kinds.write().expect("lock");
        let id = id(&scope.cluster, &scope.gvk);
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
        let awaited = std::mem::take(&mut kind.awaited).into_iter();
        let still = awaited.filter(|(key, _)| kind.latest(key, Form::Whole).is_some());
        kind.awaited = still.collect();
        match scope.form {
            Form::Whole => kind.untold(&closed),
            Form::Metadata => Vec::new(),
        }
    }

    /// A watch has listed all of its scope, as of a version.
    pub fn listed(&self, scope: &Scope, version: u64) {
        let mut kinds = self.kinds.write().expect("lock");
        let kind = kinds.get_mut(&id(&scope.cluster, &scope.gvk));
        let collections = kind.into_iter().flat_map(|kind| &mut kind.collections);
        for collection in collections.filter(|c| c.scope == *scope) {
            collection.listed = version;
        }
    }

    /// Takes an object in, wherever it belongs, unless the store has it in this or a newer version.
    pub fn put(&self, key: &ObjectRef, mut object: Object, form: Form, origin: Origin) -> Put {
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
        if kind.buried.has(&object.uid, version) {
            return Put::Known;
        }
        let latest = kind.latest(key, form);
        // The watch of the whole objects tells, where there is one.
        let whole = form == Form::Metadata && kind.whole(key, &object.labels);
        let newest = latest.as_ref().is_none_or(|l| l.resource_version <= version);
        let mut kept = latest.is_some();
        for collection in kind.of(form) {
            kept |= collection.take(key, &object, newest, origin == Origin::Answered);
        }
        if form == Form::Whole && kept {
            // Who is told of it may list the metadata.
            for collection in kind.of(Form::Metadata) {
                collection.take(key, &object, true, true);
            }
        }
        if whole {
            return Put::Known;
        }
        match latest {
            Some(latest) => match version.cmp(&latest.resource_version) {
                Ordering::Less => Put::Overtaken(latest),
                Ordering::Equal if kind.heard(key, version, true, origin) => Put::Overtaken(latest),
                Ordering::Equal => Put::Known,
                Ordering::Greater => {
                    kind.heard(key, version, false, origin);
                    Put::News(Change {
                        key: key.clone(),
                        old: Some(latest),
                        new: Some(object),
                    })
                }
            },
            None if kept => {
                kind.heard(key, version, false, origin);
                Put::News(Change {
                    key: key.clone(),
                    old: None,
                    new: Some(object),
                })
            }
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
        let gone = |o: &&Arc<Object>| *o.uid == *uid && o.resource_version <= version;
        for collection in kind.of(scope.form).filter(|c| all || c.scope == *scope) {
            if collection.get(key).filter(gone).is_some() {
                old = collection.remove(key).or(old);
            }
            if !all || scope.form == Form::Metadata {
                collection.left.add(uid, version);
            }
        }
        if scope.form == Form::Whole && all && old.is_some() {
            // Who is told that it is gone may list the metadata.
            for collection in kind.of(Form::Metadata) {
                if collection.get(key).filter(gone).is_some() {
                    collection.remove(key);
                }
            }
        }
        // The watch of the whole objects tells, where there is one: it has done so, or will. Of an object that
        // it never had it won't.
        let none = Labels::default();
        let labels = old.as_ref().map_or(&none, |o| &o.labels);
        if scope.form == Form::Metadata && kind.whole(key, labels) {
            // It may have listed anew a little earlier than this one.
            let told = old
                .as_ref()
                .is_some_and(|o| kind.buried.has(uid, o.resource_version));
            if told || kind.latest(key, Form::Whole).is_some() {
                return None;
            }
        } else if all {
            kind.buried.add(uid, version);
        }
        // It goes on elsewhere.
        if kind.latest(key, scope.form).is_some() {
            return None;
        }
        kind.awaited.remove(key);
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
