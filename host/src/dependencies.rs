//! Who read what: the edges along which a change wakes.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::Arc,
};

use crate::{
    key::{Gvk, ObjectRef},
    object::Labels,
    selector::Selector,
};

/// Something a reconcile read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dependency {
    /// One object, whether it exists or not.
    Object(ObjectRef),
    /// All objects of a kind in a namespace (none: everywhere) that a selector selects (none: all).
    List {
        /// The kind.
        gvk: Gvk,
        /// The cluster; empty for the host's own.
        cluster: Arc<str>,
        /// The namespace.
        namespace: Option<Arc<str>>,
        /// The selector.
        selector: Option<Selector>,
    },
}

/// The edges, from dependants to what they read and back.
pub struct Graph<K> {
    reads: HashMap<K, HashSet<Dependency>>,
    objects: HashMap<ObjectRef, HashSet<K>>,
    lists: HashMap<(Arc<str>, Gvk), HashMap<Dependency, HashSet<K>>>,
}

impl<K> Default for Graph<K> {
    fn default() -> Self {
        Self {
            reads: HashMap::new(),
            objects: HashMap::new(),
            lists: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Graph<K> {
    /// Adds one edge.
    pub fn add(&mut self, dependant: &K, dependency: Dependency) {
        let reads = self.reads.entry(dependant.clone()).or_default();
        if !reads.insert(dependency.clone()) {
            return;
        }
        let dependants = match &dependency {
            Dependency::Object(key) => self.objects.entry(key.clone()).or_default(),
            Dependency::List { gvk, cluster, .. } => {
                let of_kind = self.lists.entry((cluster.clone(), gvk.clone())).or_default();
                of_kind.entry(dependency).or_default()
            }
        };
        dependants.insert(dependant.clone());
    }

    /// From now on `dependant` depends on exactly these.
    pub fn replace(&mut self, dependant: &K, dependencies: impl IntoIterator<Item = Dependency>) {
        let new: HashSet<Dependency> = dependencies.into_iter().collect();
        let old = self.reads.get(dependant).into_iter().flatten();
        let stale: Vec<Dependency> = old.filter(|d| !new.contains(*d)).cloned().collect();
        for dependency in &stale {
            self.cut(dependant, dependency);
        }
        for dependency in new {
            self.add(dependant, dependency);
        }
    }

    /// Forgets a dependant.
    pub fn drop(&mut self, dependant: &K) {
        for dependency in self.reads.remove(dependant).into_iter().flatten() {
            self.cut(dependant, &dependency);
        }
    }

    /// Removes one edge, and what has become empty by it.
    fn cut(&mut self, dependant: &K, dependency: &Dependency) {
        if let Some(reads) = self.reads.get_mut(dependant) {
            reads.remove(dependency);
            if reads.is_empty() {
                self.reads.remove(dependant);
            }
        }
        match dependency {
            Dependency::Object(key) => {
                if let Some(dependants) = self.objects.get_mut(key) {
                    dependants.remove(dependant);
                    if dependants.is_empty() {
                        self.objects.remove(key);
                    }
                }
            }
            Dependency::List { gvk, cluster, .. } => {
                let kind = (cluster.clone(), gvk.clone());
                let Some(of_kind) = self.lists.get_mut(&kind) else {
                    return;
                };
                if let Some(dependants) = of_kind.get_mut(dependency) {
                    dependants.remove(dependant);
                    if dependants.is_empty() {
                        of_kind.remove(dependency);
                    }
                }
                if of_kind.is_empty() {
                    self.lists.remove(&kind);
                }
            }
        }
    }

    /// Whom a change of an object concerns: who read it, and who listed where it was or is.
    pub fn dependants(&self, changed: &ObjectRef, old: Option<&Labels>, new: Option<&Labels>) -> Vec<K> {
        let mut found: HashSet<&K> = self.objects.get(changed).into_iter().flatten().collect();
        let kind = (changed.cluster.clone(), changed.gvk.clone());
        for (list, dependants) in self.lists.get(&kind).into_iter().flatten() {
            let Dependency::List {
                namespace, selector, ..
            } = list
            else {
                continue;
            };
            let here = namespace.as_ref().is_none_or(|n| *n == changed.namespace);
            let selects = |labels: &Labels| selector.as_ref().is_none_or(|s| s.matches(labels));
            if here && (old.is_some_and(selects) || new.is_some_and(selects)) {
                found.extend(dependants);
            }
        }
        found.into_iter().cloned().collect()
    }

    /// What a dependant read.
    pub fn reads(&self, dependant: &K) -> impl Iterator<Item = &Dependency> {
        self.reads.get(dependant).into_iter().flatten()
    }

    /// Number of edges.
    pub fn len(&self) -> usize {
        self.reads.values().map(HashSet::len).sum()
    }

    /// Whether there is no edge.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
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

    fn labels(i: u8) -> Labels {
        Labels::from([("x".into(), i.to_string().into())])
    }

    fn dependency() -> impl Strategy<Value = Dependency> {
        let list =
            (prop::option::of(prop::bool::ANY), prop::option::of(0..3u8)).prop_map(|(namespace, label)| {
                Dependency::List {
                    gvk: Gvk::new("", "v1", "ConfigMap"),
                    cluster: "".into(),
                    namespace: namespace.map(|b| if b { "a".into() } else { "b".into() }),
                    selector: label.map(|l| Selector::parse(&format!("x={l}")).expect("a selector")),
                }
            });
        prop_oneof![(0..6u8).prop_map(|i| Dependency::Object(object(i))), list]
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
        fn agrees_with_a_plain_search(steps in prop::collection::vec(step(), 0..40), changed in 0..6u8, old in prop::option::of(0..3u8), new in prop::option::of(0..3u8)) {
            let mut graph = Graph::default();
            let mut model: HashMap<u8, HashSet<Dependency>> = HashMap::new();
            for step in steps {
                match step {
                    Step::Add(k, d) => { graph.add(&k, d.clone()); model.entry(k).or_default().insert(d); }
                    Step::Replace(k, d) => { graph.replace(&k, d.clone()); model.insert(k, d.into_iter().collect()); }
                    Step::Drop(k) => { graph.drop(&k); model.remove(&k); }
                }
            }
            let (old, new) = (old.map(labels), new.map(labels));
            let concerns = |d: &Dependency| match d {
                Dependency::Object(o) => *o == object(changed),
                Dependency::List { namespace, selector, .. } => {
                    namespace.as_ref().is_none_or(|n| *n == object(changed).namespace)
                        && [&old, &new].into_iter().flatten().any(|l| selector.as_ref().is_none_or(|s| s.matches(l)))
                }
            };
            let mut expected: Vec<u8> = model.iter().filter(|(_, d)| d.iter().any(concerns)).map(|(k, _)| *k).collect();
            let mut found = graph.dependants(&object(changed), old.as_ref(), new.as_ref());
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(graph.len(), model.values().map(HashSet::len).sum::<usize>());
            for k in 0..5 { graph.drop(&k); }
            prop_assert!(graph.is_empty() && graph.objects.is_empty() && graph.lists.is_empty());
        }
    }
}
