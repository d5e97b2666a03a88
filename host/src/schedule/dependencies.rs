//! The dependency graph: edges from reconciled objects to the objects and lists they read. A change wakes along them.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use rustc_hash::FxBuildHasher;

use crate::{
    kube::{
        key::{ClusterKindMap, ClusterKindRef, Gvk, ObjectMap, ObjectRef},
        object::KubeObject,
        scope::{NamespaceScope, Projection, Scope},
        selector::{FieldSelector, LabelSelector, NAME_PATH},
    },
    schedule::small_set::SmallSet,
};

/// An object or list that a reconcile read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReadDependency {
    /// One object, which need not exist.
    Object(ObjectRef, Projection),
    /// One object that the host has written as owned, reported by the watch of the owned objects of its kind.
    Owned(ObjectRef, Projection),
    /// The objects of a list, including those that will join it.
    List(Box<List>),
}

/// The edges that a read of one object may have.
const OBJECT_EDGES: [fn(&ObjectRef) -> ReadDependency; 4] = [
    |key| ReadDependency::Object(key.clone(), Projection::Full),
    |key| ReadDependency::Object(key.clone(), Projection::Metadata),
    |key| ReadDependency::Owned(key.clone(), Projection::Full),
    |key| ReadDependency::Owned(key.clone(), Projection::Metadata),
];

/// A list that a reconcile read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct List {
    /// The kind.
    pub gvk: Gvk,
    /// The cluster; empty for the host's own.
    pub cluster: Arc<str>,
    /// The namespace; empty for all.
    pub namespace: Arc<str>,
    /// Label selector; none for all.
    pub labels: Option<LabelSelector>,
    /// Field selector; none for all.
    pub fields: Option<FieldSelector>,
    /// The part of each object that was read.
    pub projection: Projection,
}

impl List {
    fn matches(&self, namespace: &str, object: &KubeObject, fields: &HashMap<&str, String>) -> bool {
        let text = |path: &str| fields.get(path).map_or("", String::as_str);
        (self.namespace.is_empty() || *self.namespace == *namespace)
            && self.labels.as_ref().is_none_or(|s| s.matches(&object.labels))
            && self.fields.as_ref().is_none_or(|s| s.matches_texts(text))
    }

    /// Returns whether an object belongs to the list, and its watch reports every change of it.
    pub fn covers(&self, key: &ObjectRef, object: &KubeObject) -> bool {
        self.gvk == key.gvk
            && self.cluster == key.cluster
            && self.projection == Projection::Full
            && (self.namespace.is_empty() || self.namespace == key.namespace)
            && self.labels.as_ref().is_none_or(|s| s.matches(&object.labels))
            && self.fields.as_ref().is_none_or(|s| object.is_selected_by(s))
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().flat_map(FieldSelector::paths)
    }

    /// The bucket of the list.
    fn bucket(&self) -> Bucket {
        let name = self.fields.as_ref().and_then(FieldSelector::required_name);
        let label = || self.labels.as_ref().and_then(LabelSelector::equality_term);
        let field = || self.fields.as_ref().and_then(FieldSelector::equality_term);
        // A name selects least: lists of one object each, which share a label, are not compared with every change.
        let term = match (name, label()) {
            (Some(name), _) => Some(Term::Field(NAME_PATH.into(), name.into())),
            (None, Some((key, value))) => Some(Term::Label(key.into(), value.into())),
            (None, None) => field().map(|(path, value)| Term::Field(path.into(), value.into())),
        };
        Bucket {
            namespace: self.namespace.clone(),
            term,
        }
    }
}

impl ReadDependency {
    /// The cluster; empty for the host's own.
    pub fn cluster(&self) -> &Arc<str> {
        match self {
            Self::Object(key, _) | Self::Owned(key, _) => &key.cluster,
            Self::List(list) => &list.cluster,
        }
    }

    /// The object that was read by its name; none for a list.
    pub fn object(&self) -> Option<&ObjectRef> {
        match self {
            Self::Object(key, _) | Self::Owned(key, _) => Some(key),
            Self::List(_) => None,
        }
    }

    /// The scope of the watch that reports its changes.
    pub fn scope(&self, namespaces: &NamespaceScope) -> Scope {
        namespaces.widen(self.read_scope())
    }

    /// The scope that is read.
    fn read_scope(&self) -> Scope {
        match self {
            Self::Object(key, projection) => Scope::of_object(key, *projection),
            Self::Owned(key, projection) => Scope::of_owned(key, *projection),
            Self::List(list) => Scope {
                gvk: list.gvk.clone(),
                cluster: list.cluster.clone(),
                namespace: list.namespace.clone(),
                selector: list.labels.clone(),
                projection: list.projection,
            },
        }
    }
}

/// A label or field, and the value that a list requires of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Term {
    Label(Box<str>, Box<str>),
    Field(Box<str>, Box<str>),
}

/// A bucket of lists: those of one namespace that require the same value.
///
/// A change looks only into the buckets that its object can be in, not through all lists of its kind:
///
/// ```text
/// namespace "a", no term       → lists of all objects in "a"
/// namespace "a", label app=web → lists in "a" that select app=web
/// namespace "",  field spec.x=1 → lists of all namespaces that select spec.x=1
/// namespace "a", field metadata.name=b → lists in "a" of the object b, whatever else they select
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Bucket {
    namespace: Arc<str>,
    term: Option<Term>,
}

/// The lists of one kind.
struct Lists<K> {
    buckets: HashMap<Bucket, HashMap<List, SmallSet<K>>>,
    /// Field paths of all lists, with the number of comparisons by each.
    paths: HashMap<Box<str>, usize>,
}

/// The edges, from dependants to their dependencies and back.
pub struct DependencyGraph<K> {
    namespaces: NamespaceScope,
    reads: HashMap<K, SmallSet<ReadDependency>, FxBuildHasher>,
    objects: ObjectMap<SmallSet<K>>,
    lists: ClusterKindMap<Lists<K>>,
    /// Number of edges that read each scope. The watches that serve them are computed when they are asked for, since RBAC may
    /// refuse one of all namespaces later.
    scopes: HashMap<Scope, usize>,
}

impl<K: Clone + Eq + Hash> DependencyGraph<K> {
    /// Creates a graph without edges.
    pub fn new(namespaces: NamespaceScope) -> Self {
        Self {
            namespaces,
            reads: HashMap::default(),
            objects: ObjectMap::default(),
            lists: ClusterKindMap::new(),
            scopes: HashMap::new(),
        }
    }

    /// Adds one edge.
    pub fn add_edge(&mut self, dependant: &K, dependency: &ReadDependency) {
        let known = self.reads.get(dependant);
        if known.is_some_and(|reads| reads.contains(dependency)) {
            return;
        }
        let reads = self.reads.entry(dependant.clone()).or_default();
        reads.insert(dependency.clone());
        *self.scopes.entry(dependency.read_scope()).or_default() += 1;
        let dependants = match dependency {
            ReadDependency::Object(key, _) | ReadDependency::Owned(key, _) => {
                self.objects.entry(key.clone()).or_default()
            }
            ReadDependency::List(list) => {
                let kind = self
                    .lists
                    .entry((list.cluster.clone(), list.gvk.clone()))
                    .or_default();
                let lists = kind.buckets.entry(list.bucket()).or_default();
                if !lists.contains_key(list) {
                    for path in list.paths() {
                        *kind.paths.entry(path.into()).or_default() += 1;
                    }
                }
                lists.entry((**list).clone()).or_default()
            }
        };
        dependants.insert(dependant.clone());
    }

    /// Replaces the dependencies of a dependant.
    pub fn replace_edges(&mut self, dependant: &K, dependencies: impl IntoIterator<Item = ReadDependency>) {
        let new: SmallSet<ReadDependency> = dependencies.into_iter().collect();
        let old = self.reads.get(dependant).into_iter().flatten();
        let stale: Vec<ReadDependency> = old.filter(|d| !new.contains(*d)).cloned().collect();
        for dependency in &stale {
            self.remove_edge(dependant, dependency);
        }
        for dependency in &new {
            self.add_edge(dependant, dependency);
        }
        // The newer keys are more likely those of the cache, whose comparison is one of addresses.
        if let Some(reads) = self.reads.get_mut(dependant) {
            *reads = new;
        }
    }

    /// Removes a dependant with all its edges.
    pub fn remove_dependant(&mut self, dependant: &K) {
        let reads = self.reads.get(dependant).cloned();
        for dependency in reads.iter().flatten() {
            self.remove_edge(dependant, dependency);
        }
    }

    /// Removes one edge, and the maps that it leaves empty.
    fn remove_edge(&mut self, dependant: &K, dependency: &ReadDependency) {
        let Some(reads) = self.reads.get_mut(dependant) else {
            return;
        };
        if !reads.remove(dependency) {
            return;
        }
        // An object that was read in full and as metadata, or before and after it was owned, has several edges and one dependant.
        let still_read = dependency
            .object()
            .is_some_and(|key| OBJECT_EDGES.iter().any(|edge| reads.contains(&edge(key))));
        if reads.is_empty() {
            self.reads.remove(dependant);
        }
        let scope = dependency.read_scope();
        if let Some(count) = self.scopes.get_mut(&scope) {
            *count -= 1;
            if *count == 0 {
                self.scopes.remove(&scope);
            }
        }
        match dependency {
            ReadDependency::Object(key, _) | ReadDependency::Owned(key, _) => {
                if !still_read {
                    remove_from_set(&mut self.objects, key, dependant);
                }
            }
            ReadDependency::List(list) => {
                let id = ClusterKindRef(&list.cluster, &list.gvk);
                let Some(kind) = self.lists.get_mut(&id) else {
                    return;
                };
                kind.remove_list(dependant, list);
                if kind.buckets.is_empty() {
                    self.lists.remove(&id);
                }
            }
        }
    }

    /// Finds the dependants of a changed object: those that read it, and those with a list that its old or new version
    /// belongs to.
    pub fn find_dependants(
        &self,
        changed: &ObjectRef,
        old: Option<&KubeObject>,
        new: Option<&KubeObject>,
    ) -> Vec<K> {
        let mut found: HashSet<&K> = self.objects.get(changed).into_iter().flatten().collect();
        if let Some(kind) = self.lists.get(&ClusterKindRef(&changed.cluster, &changed.gvk)) {
            for object in [old, new].into_iter().flatten() {
                kind.collect_dependants(&changed.namespace, object, &mut found);
            }
        }
        found.into_iter().cloned().collect()
    }

    /// Returns true if a dependant reads an object itself, not just a list with it.
    pub fn has_readers(&self, key: &ObjectRef) -> bool {
        self.objects.contains_key(key)
    }

    /// The dependencies of a dependant.
    pub fn reads(&self, dependant: &K) -> impl Iterator<Item = &ReadDependency> {
        self.reads.get(dependant).into_iter().flatten()
    }

    /// The scopes of the watches that the edges need.
    pub fn scopes(&self) -> HashSet<Scope> {
        let scopes = self.scopes.keys().cloned();
        scopes.map(|scope| self.namespaces.widen(scope)).collect()
    }

    /// Number of edges.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.reads.values().map(SmallSet::len).sum()
    }

    /// Returns true if there is no edge.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }
}

impl<K> Default for Lists<K> {
    fn default() -> Self {
        Self {
            buckets: HashMap::new(),
            paths: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Lists<K> {
    fn remove_list(&mut self, dependant: &K, list: &List) {
        let bucket = list.bucket();
        let Some(lists) = self.buckets.get_mut(&bucket) else {
            return;
        };
        let was_there = lists.contains_key(list);
        remove_from_set(lists, list, dependant);
        if was_there && !lists.contains_key(list) {
            for path in list.paths() {
                if let Some(count) = self.paths.get_mut(path) {
                    *count -= 1;
                    if *count == 0 {
                        self.paths.remove(path);
                    }
                }
            }
        }
        if lists.is_empty() {
            self.buckets.remove(&bucket);
        }
    }

    /// Collects the dependants with a list that this version of an object belongs to.
    fn collect_dependants<'a>(
        &'a self,
        namespace: &Arc<str>,
        object: &KubeObject,
        found: &mut HashSet<&'a K>,
    ) {
        // The object is parsed once for all lists.
        let paths: Vec<&str> = self.paths.keys().map(|path| &**path).collect();
        let fields: HashMap<&str, String> = paths.iter().copied().zip(object.field_texts(&paths)).collect();
        let labels = object
            .labels
            .iter()
            .map(|(k, v)| Some(Term::Label(k.into(), v.into())));
        let values = fields.iter();
        let values = values.map(|(path, text)| Some(Term::Field((*path).into(), text.as_str().into())));
        for term in std::iter::once(None).chain(labels).chain(values) {
            for namespace_of_list in [namespace.clone(), "".into()] {
                let bucket = Bucket {
                    namespace: namespace_of_list,
                    term: term.clone(),
                };
                let lists = self.buckets.get(&bucket);
                for (list, dependants) in lists.into_iter().flatten() {
                    if list.matches(namespace, object, &fields) {
                        found.extend(dependants);
                    }
                }
            }
        }
    }
}

/// Removes a value from a set in a map, and the set if it becomes empty.
fn remove_from_set<A: Eq + Hash, B: Eq + Hash, S: BuildHasher>(
    map: &mut HashMap<A, SmallSet<B>, S>,
    key: &A,
    value: &B,
) {
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
    fn version(i: u8, (label, field): (u8, u8)) -> KubeObject {
        let json =
            format!(r#"{{"metadata":{{"name":"{i}","labels":{{"x":"{label}"}}}},"spec":{{"y":"{field}"}}}}"#);
        KubeObject::parse(&Gvk::new("", "v1", "ConfigMap"), json.as_bytes())
            .expect("an object")
            .1
    }

    fn dependency() -> impl Strategy<Value = ReadDependency> {
        let projection = prop_oneof![Just(Projection::Full), Just(Projection::Metadata)];
        let namespace = prop_oneof![Just(""), Just("a"), Just("b")];
        let labels = prop_oneof![
            Just(String::new()),
            (0..3u8).prop_map(|l| format!("x={l}")),
            (0..3u8).prop_map(|l| format!("x!={l}")),
            Just("x in (0,1)".to_owned()),
        ];
        let fields = prop_oneof![
            (0..3u8).prop_map(|f| format!("spec.y={f}")),
            (0..6u8).prop_map(|i| format!("metadata.name={i}")),
            (0..3u8, 0..6u8).prop_map(|(f, i)| format!("spec.y={f},metadata.name={i}")),
        ];
        let list = (namespace, labels, prop::option::of(fields), projection.clone());
        let list = list.prop_map(|(namespace, labels, fields, projection)| {
            ReadDependency::List(Box::new(List {
                gvk: Gvk::new("", "v1", "ConfigMap"),
                cluster: "".into(),
                namespace: namespace.into(),
                labels: Some(LabelSelector::parse(&labels).expect("a selector"))
                    .filter(|_| !labels.is_empty()),
                fields: fields.map(|text| FieldSelector::parse(&text).expect("a selector")),
                projection,
            }))
        });
        prop_oneof![
            (0..6u8, projection.clone())
                .prop_map(|(i, projection)| ReadDependency::Object(object(i), projection)),
            (0..6u8, projection).prop_map(|(i, projection)| ReadDependency::Owned(object(i), projection)),
            list
        ]
    }

    /// A list of objects with the label `x=1`.
    fn labelled_list(fields: &str) -> List {
        List {
            gvk: Gvk::new("", "v1", "ConfigMap"),
            cluster: "".into(),
            namespace: "a".into(),
            labels: Some(LabelSelector::parse("x=1").expect("a selector")),
            fields: Some(FieldSelector::parse(fields).expect("a selector")),
            projection: Projection::Full,
        }
    }

    /// Thousands of lists of one object each may share a label.
    #[test]
    fn lists_of_one_object_each_are_in_buckets_of_their_names() {
        let bucket = |fields: &str| labelled_list(fields).bucket().term;
        assert_eq!(
            bucket("spec.y=1,metadata.name=2"),
            Some(Term::Field("metadata.name".into(), "2".into()))
        );
        for fields in ["spec.y=1", "metadata.name!=2"] {
            assert_eq!(
                bucket(fields),
                Some(Term::Label("x".into(), "1".into())),
                "{fields}"
            );
        }
    }

    #[test]
    fn list_covers_the_objects_that_its_watch_reports() {
        let list = labelled_list("metadata.name=2");
        let covers = |list: &List, i, label| list.covers(&object(i), &version(i, (label, 0)));
        assert!(covers(&list, 2, 1));
        assert!(!covers(&list, 4, 1), "another name");
        assert!(!covers(&list, 2, 2), "another label");
        let elsewhere = |change: fn(&mut List)| {
            let mut list = list.clone();
            change(&mut list);
            covers(&list, 2, 1)
        };
        assert!(elsewhere(|list| list.namespace = "".into()));
        assert!(!elsewhere(|list| list.namespace = "b".into()));
        assert!(!elsewhere(|list| list.cluster = "fleet/east".into()));
        assert!(!elsewhere(|list| list.gvk = Gvk::new("", "v1", "Secret")));
        // Changes of the status would not be reported.
        assert!(!elsewhere(|list| list.projection = Projection::Metadata));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, ReadDependency),
        Replace(u8, Vec<ReadDependency>),
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
        /// The graph finds what a plain search through all edges finds, and is empty after all removals.
        #[test]
        fn graph_agrees_with_a_plain_search(steps in prop::collection::vec(step(), 0..40), changed in 0..6u8, old in prop::option::of((0..3u8, 0..3u8)), new in prop::option::of((0..3u8, 0..3u8))) {
            let mut graph = DependencyGraph::new(NamespaceScope::default());
            let mut model: HashMap<u8, HashSet<ReadDependency>> = HashMap::new();
            for step in steps {
                match step {
                    Step::Add(k, d) => { graph.add_edge(&k, &d); model.entry(k).or_default().insert(d); }
                    Step::Replace(k, d) => { graph.replace_edges(&k, d.clone()); model.insert(k, d.into_iter().collect()); }
                    Step::Drop(k) => { graph.remove_dependant(&k); model.remove(&k); }
                }
            }
            let (old, new) = (old.map(|o| version(changed, o)), new.map(|n| version(changed, n)));
            let concerns = |d: &ReadDependency| match d {
                ReadDependency::Object(o, _) | ReadDependency::Owned(o, _) => *o == object(changed),
                ReadDependency::List(l) => [&old, &new].into_iter().flatten().any(|o| {
                    let fields = l.paths().map(|path| (path, o.field_text(path))).collect();
                    l.matches(&object(changed).namespace, o, &fields)
                }),
            };
            let mut expected: Vec<u8> = model.iter().filter(|(_, d)| d.iter().any(concerns)).map(|(k, _)| *k).collect();
            let mut found = graph.find_dependants(&object(changed), old.as_ref(), new.as_ref());
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(graph.len(), model.values().map(HashSet::len).sum::<usize>());
            let needed: HashSet<Scope> = model.values().flatten().map(|d| d.scope(&NamespaceScope::default())).collect();
            prop_assert_eq!(graph.scopes(), needed);
            for k in 0..5 { graph.remove_dependant(&k); }
            prop_assert!(graph.is_empty() && graph.objects.is_empty() && graph.lists.is_empty() && graph.scopes.is_empty());
        }
    }
}
