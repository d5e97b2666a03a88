//! Who read what: the edges along which a change wakes.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::Arc,
};

use crate::{
    kube::{
        key::{Gvk, ObjectRef},
        object::Object,
        scope::{Form, Reach, Scope},
        selector::{FieldSelector, Selector},
    },
    schedule::small_set::Few,
};

/// Something a reconcile read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dependency {
    /// One object, whether it exists or not.
    Object(ObjectRef, Form),
    /// The objects of a list, those that would come into it included.
    List(Box<List>),
}

/// A list that a reconcile read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct List {
    /// The kind.
    pub gvk: Gvk,
    /// The cluster; empty for the host's own.
    pub cluster: Arc<str>,
    /// The namespace; empty for all.
    pub namespace: Arc<str>,
    /// By label; none for all.
    pub labels: Option<Selector>,
    /// By field; none for all.
    pub fields: Option<FieldSelector>,
    /// How much of each object was read.
    pub form: Form,
}

impl List {
    fn has(&self, namespace: &str, object: &Object) -> bool {
        (self.namespace.is_empty() || *self.namespace == *namespace)
            && self.labels.as_ref().is_none_or(|s| s.matches(&object.labels))
            && self.fields.as_ref().is_none_or(|s| s.matches(object))
    }

    /// The drawer of the list.
    fn drawer(&self) -> Drawer {
        let label = self.labels.as_ref().and_then(Selector::equality);
        let field = || self.fields.as_ref().and_then(FieldSelector::equality);
        let term = match label {
            Some((key, value)) => Some((Term::Label, key.into(), value.into())),
            None => field().map(|(path, value)| (Term::Field, path.into(), value.into())),
        };
        (self.namespace.clone(), term)
    }
}

impl Dependency {
    /// The watch that tells of it.
    pub fn scope(&self, reach: &Reach) -> Scope {
        match self {
            Self::Object(key, form) => reach.object(key, *form),
            Self::List(list) => reach.of(
                &list.gvk,
                &list.cluster,
                &list.namespace,
                list.labels.as_ref(),
                list.form,
            ),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Term {
    Label,
    Field,
}

/// Lists lie in drawers by namespace and by one value they ask for, so that a change looks into a few of
/// them and not through all lists of its kind.
type Drawer = (Arc<str>, Option<(Term, Box<str>, Box<str>)>);

/// The lists of one kind.
struct Lists<K> {
    drawers: HashMap<Drawer, HashMap<List, Few<K>>>,
    /// Paths that drawers go by, with the number of drawers.
    paths: HashMap<Box<str>, usize>,
}

/// The edges, from dependants to what they read and back.
pub struct Graph<K> {
    reach: Reach,
    reads: HashMap<K, Few<Dependency>>,
    objects: HashMap<ObjectRef, Few<K>>,
    lists: HashMap<(Arc<str>, Gvk), Lists<K>>,
    /// How many edges each watch is needed for.
    scopes: HashMap<Scope, usize>,
}

impl<K: Clone + Eq + Hash> Graph<K> {
    /// No edges yet.
    pub fn new(reach: Reach) -> Self {
        Self {
            reach,
            reads: HashMap::new(),
            objects: HashMap::new(),
            lists: HashMap::new(),
            scopes: HashMap::new(),
        }
    }

    /// Adds one edge.
    pub fn add(&mut self, dependant: &K, dependency: Dependency) {
        let reads = self.reads.entry(dependant.clone()).or_default();
        if !reads.insert(dependency.clone()) {
            return;
        }
        *self.scopes.entry(dependency.scope(&self.reach)).or_default() += 1;
        let dependants = match dependency {
            Dependency::Object(key, _) => self.objects.entry(key).or_default(),
            Dependency::List(list) => {
                let kind = self
                    .lists
                    .entry((list.cluster.clone(), list.gvk.clone()))
                    .or_default();
                let drawer = list.drawer();
                if !kind.drawers.contains_key(&drawer)
                    && let Some((Term::Field, path, _)) = &drawer.1
                {
                    *kind.paths.entry(path.clone()).or_default() += 1;
                }
                kind.drawers.entry(drawer).or_default().entry(*list).or_default()
            }
        };
        dependants.insert(dependant.clone());
    }

    /// From now on `dependant` depends on exactly these.
    pub fn replace(&mut self, dependant: &K, dependencies: impl IntoIterator<Item = Dependency>) {
        let new: Few<Dependency> = dependencies.into_iter().collect();
        let old = self.reads.get(dependant).into_iter().flatten();
        let stale: Vec<Dependency> = old.filter(|d| !new.contains(*d)).cloned().collect();
        for dependency in &stale {
            self.cut(dependant, dependency);
        }
        for dependency in &new {
            self.add(dependant, dependency.clone());
        }
    }

    /// Forgets a dependant.
    pub fn drop(&mut self, dependant: &K) {
        let reads = self.reads.get(dependant).cloned();
        for dependency in reads.iter().flatten() {
            self.cut(dependant, dependency);
        }
    }

    /// Removes one edge, and what has become empty by it.
    fn cut(&mut self, dependant: &K, dependency: &Dependency) {
        let Some(reads) = self.reads.get_mut(dependant) else {
            return;
        };
        if !reads.remove(dependency) {
            return;
        }
        // One object may be read whole and by its metadata: it is two edges and one dependant.
        let still = match dependency {
            Dependency::Object(key, _) => [Form::Whole, Form::Metadata]
                .iter()
                .any(|form| reads.contains(&Dependency::Object(key.clone(), *form))),
            Dependency::List(_) => false,
        };
        if reads.is_empty() {
            self.reads.remove(dependant);
        }
        let scope = dependency.scope(&self.reach);
        if let Some(count) = self.scopes.get_mut(&scope) {
            *count -= 1;
            if *count == 0 {
                self.scopes.remove(&scope);
            }
        }
        match dependency {
            Dependency::Object(key, _) if !still => remove(&mut self.objects, key, dependant),
            Dependency::Object(..) => {}
            Dependency::List(list) => {
                let id = (list.cluster.clone(), list.gvk.clone());
                let Some(kind) = self.lists.get_mut(&id) else {
                    return;
                };
                kind.cut(dependant, list);
                if kind.drawers.is_empty() {
                    self.lists.remove(&id);
                }
            }
        }
    }

    /// Whom a change of an object concerns: who read it, and who listed where it was or is.
    pub fn dependants(&self, changed: &ObjectRef, old: Option<&Object>, new: Option<&Object>) -> Vec<K> {
        let mut found: HashSet<&K> = self.objects.get(changed).into_iter().flatten().collect();
        if let Some(kind) = self.lists.get(&(changed.cluster.clone(), changed.gvk.clone())) {
            for object in [old, new].into_iter().flatten() {
                kind.collect(&changed.namespace, object, &mut found);
            }
        }
        found.into_iter().cloned().collect()
    }

    /// What a dependant read.
    pub fn reads(&self, dependant: &K) -> impl Iterator<Item = &Dependency> {
        self.reads.get(dependant).into_iter().flatten()
    }

    /// The watches that edges need.
    pub fn scopes(&self) -> impl Iterator<Item = &Scope> {
        self.scopes.keys()
    }

    /// Number of edges.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.reads.values().map(Few::len).sum()
    }

    /// True without any edge.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }
}

impl<K> Default for Lists<K> {
    fn default() -> Self {
        Self {
            drawers: HashMap::new(),
            paths: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Lists<K> {
    fn cut(&mut self, dependant: &K, list: &List) {
        let drawer = list.drawer();
        let Some(lists) = self.drawers.get_mut(&drawer) else {
            return;
        };
        remove(lists, list, dependant);
        if lists.is_empty() {
            self.drawers.remove(&drawer);
            if let Some((Term::Field, path, _)) = &drawer.1
                && let Some(count) = self.paths.get_mut(path)
            {
                *count -= 1;
                if *count == 0 {
                    self.paths.remove(path);
                }
            }
        }
    }

    /// Who listed an object as it is here.
    fn collect<'a>(&'a self, namespace: &Arc<str>, object: &Object, found: &mut HashSet<&'a K>) {
        let labels = object
            .labels
            .iter()
            .map(|(k, v)| Some((Term::Label, k.into(), v.into())));
        let fields = self.paths.keys();
        let fields = fields.map(|path| Some((Term::Field, path.clone(), object.field(path).into())));
        for term in std::iter::once(None).chain(labels).chain(fields) {
            for place in [namespace.clone(), "".into()] {
                let lists = self.drawers.get(&(place, term.clone()));
                for (list, dependants) in lists.into_iter().flatten() {
                    if list.has(namespace, object) {
                        found.extend(dependants);
                    }
                }
            }
        }
    }
}

/// Takes a value out of a set of a map, and the set when it was the last.
fn remove<A: Eq + Hash, B: Eq + Hash>(map: &mut HashMap<A, Few<B>>, key: &A, value: &B) {
    if let Some(set) = map.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(i: u8) -> ObjectRef {
        ObjectRef::new(
            Gvk::new("", "v1", "ConfigMap"),
            if i.is_multiple_of(2) { "a" } else { "b" },
            &i.to_string(),
        )
    }

    /// The object `i` with a label and a field.
    fn version(i: u8, (label, field): (u8, u8)) -> Object {
        let json =
            format!(r#"{{"metadata":{{"name":"{i}","labels":{{"x":"{label}"}}}},"spec":{{"y":"{field}"}}}}"#);
        Object::parse(&Gvk::new("", "v1", "ConfigMap"), json.as_bytes())
            .expect("an object")
            .1
    }

    fn dependency() -> impl Strategy<Value = Dependency> {
        let form = prop_oneof![Just(Form::Whole), Just(Form::Metadata)];
        let namespace = prop_oneof![Just(""), Just("a"), Just("b")];
        let labels = prop_oneof![
            Just(String::new()),
            (0..3u8).prop_map(|l| format!("x={l}")),
            (0..3u8).prop_map(|l| format!("x!={l}")),
            Just("x in (0,1)".to_owned()),
        ];
        let list = (namespace, labels, prop::option::of(0..3u8), form.clone());
        let list = list.prop_map(|(namespace, labels, field, form)| {
            Dependency::List(Box::new(List {
                gvk: Gvk::new("", "v1", "ConfigMap"),
                cluster: "".into(),
                namespace: namespace.into(),
                labels: Some(Selector::parse(&labels).expect("a selector")).filter(|_| !labels.is_empty()),
                fields: field.map(|f| FieldSelector::parse(&format!("spec.y={f}")).expect("a selector")),
                form,
            }))
        });
        prop_oneof![
            (0..6u8, form).prop_map(|(i, form)| Dependency::Object(object(i), form)),
            list
        ]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, Dependency),
        Replace(u8, Vec<Dependency>),
        Drop(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..5u8, dependency()).prop_map(|(k, d)| Step::Add(k, d)),
            (0..5u8, prop::collection::vec(dependency(), 0..5)).prop_map(|(k, d)| Step::Replace(k, d)),
            (0..5u8).prop_map(Step::Drop),
        ]
    }

    proptest! {
        /// The graph answers as a plain search through all edges does, and forgets what it is told to.
        #[test]
        fn agrees_with_a_plain_search(steps in prop::collection::vec(step(), 0..40), changed in 0..6u8, old in prop::option::of((0..3u8, 0..3u8)), new in prop::option::of((0..3u8, 0..3u8))) {
            let mut graph = Graph::new(Reach::default());
            let mut model: HashMap<u8, HashSet<Dependency>> = HashMap::new();
            for step in steps {
                match step {
                    Step::Add(k, d) => { graph.add(&k, d.clone()); model.entry(k).or_default().insert(d); }
                    Step::Replace(k, d) => { graph.replace(&k, d.clone()); model.insert(k, d.into_iter().collect()); }
                    Step::Drop(k) => { graph.drop(&k); model.remove(&k); }
                }
            }
            let (old, new) = (old.map(|o| version(changed, o)), new.map(|n| version(changed, n)));
            let concerns = |d: &Dependency| match d {
                Dependency::Object(o, _) => *o == object(changed),
                Dependency::List(l) => [&old, &new].into_iter().flatten().any(|o| l.has(&object(changed).namespace, o)),
            };
            let mut expected: Vec<u8> = model.iter().filter(|(_, d)| d.iter().any(concerns)).map(|(k, _)| *k).collect();
            let mut found = graph.dependants(&object(changed), old.as_ref(), new.as_ref());
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(graph.len(), model.values().map(HashSet::len).sum::<usize>());
            let needed: HashSet<Scope> = model.values().flatten().map(|d| d.scope(&Reach::default())).collect();
            prop_assert_eq!(graph.scopes().cloned().collect::<HashSet<_>>(), needed);
            for k in 0..5 { graph.drop(&k); }
            prop_assert!(graph.is_empty() && graph.objects.is_empty() && graph.lists.is_empty() && graph.scopes.is_empty());
        }
    }
}
