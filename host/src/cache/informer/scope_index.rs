//! The scopes that informers run for: the one that serves a read, the wider one that replaces many, those in use.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::kube::{
    key::{ClusterKindMap, ClusterKindRef},
    scope::{NamespaceScope, Projection, Scope},
};

/// Maximum number of watches of one kind and namespace that differ by label selector, and of watches of one kind that
/// differ by namespace. Beyond it a wider watch serves further reads, so that a list per object is not a watch per
/// object.
const MAX_NARROW_WATCHES: usize = 8;

/// Maximum number of label selectors that take the place of a watch which nobody needs without one. It is well below the number
/// that leads to the wider watch, so that the two do not alternate.
const MAX_REPLACING_WATCHES: usize = MAX_NARROW_WATCHES / 2;

/// Progress of an informer, as far as the choice between informers needs it.
pub(super) trait InformerProgress {
    /// Returns true if its objects have been listed.
    fn is_synced(&self) -> bool;

    /// Returns true if the server refused its list.
    fn is_refused(&self) -> bool;

    /// Returns true if its first list has neither ended nor failed.
    fn is_listing(&self) -> bool;
}

/// The scopes of one kind by namespace, each with a value.
type NamespaceScopes<T> = HashMap<Arc<str>, Vec<(Scope, T)>>;

/// Scopes by cluster, kind and namespace, each with a value.
pub(super) struct ScopeIndex<T> {
    kinds: ClusterKindMap<NamespaceScopes<T>>,
}

impl<T> Default for ScopeIndex<T> {
    fn default() -> Self {
        Self {
            kinds: ClusterKindMap::new(),
        }
    }
}

fn kind_of(scope: &Scope) -> ClusterKindRef<'_> {
    ClusterKindRef(&scope.cluster, &scope.gvk)
}

/// Returns true for a scope without a label selector that covers one with a selector.
fn covers_selected(wide: &Scope, scope: &Scope) -> bool {
    wide.selector.is_none() && scope.selector.is_some() && wide.covers(scope)
}

impl<T> ScopeIndex<T> {
    /// Adds a scope that is not in the index.
    pub(super) fn insert(&mut self, scope: Scope, value: T) {
        let kind = (scope.cluster.clone(), scope.gvk.clone());
        let kind = self.kinds.entry(kind).or_default();
        kind.entry(scope.namespace.clone())
            .or_default()
            .push((scope, value));
    }

    pub(super) fn get(&self, scope: &Scope) -> Option<&T> {
        let namespace = self.kinds.get(&kind_of(scope))?.get(&scope.namespace)?;
        namespace.iter().find(|(s, _)| s == scope).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, scope: &Scope) -> Option<&mut T> {
        let namespace = self.kinds.get_mut(&kind_of(scope))?.get_mut(&scope.namespace)?;
        namespace
            .iter_mut()
            .find(|(s, _)| s == scope)
            .map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, scope: &Scope) -> Option<T> {
        let id = kind_of(scope);
        let kind = self.kinds.get_mut(&id)?;
        let namespace = kind.get_mut(&scope.namespace)?;
        let at = namespace.iter().position(|(s, _)| s == scope)?;
        let (_, value) = namespace.swap_remove(at);
        if namespace.is_empty() {
            kind.remove(&scope.namespace);
        }
        if kind.is_empty() {
            self.kinds.remove(&id);
        }
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Scope, &T)> {
        let entries = self.kinds.values().flat_map(HashMap::values).flatten();
        entries.map(|(scope, value)| (scope, value))
    }

    /// Copies the index with other values.
    pub(super) fn map<U>(&self, value: impl Fn(&T) -> U) -> ScopeIndex<U> {
        let mut mapped = ScopeIndex::default();
        for (scope, old) in self.iter() {
            mapped.insert(scope.clone(), value(old));
        }
        mapped
    }

    /// Returns true if the index has a scope with a label selector that one without covers.
    pub(super) fn has_covered(&self, wide: &Scope) -> bool {
        let kind = self.kinds.get(&kind_of(wide)).into_iter();
        let mut scopes = kind.flat_map(HashMap::values).flatten();
        scopes.any(|(scope, _)| covers_selected(wide, scope))
    }

    /// The scopes that cover a scope, itself included.
    fn covering<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = (&'a Scope, &'a T)> {
        let kind = self.kinds.get(&kind_of(scope));
        let everywhere = (!scope.namespace.is_empty()).then_some("");
        let namespaces = std::iter::once(&*scope.namespace).chain(everywhere);
        let entries = namespaces
            .filter_map(move |namespace| kind?.get(namespace))
            .flatten();
        entries
            .filter(|(wide, _)| wide.covers(scope))
            .map(|(wide, value)| (wide, value))
    }
}

impl<T: InformerProgress> ScopeIndex<T> {
    /// The scope that serves a read: its own if synced, else a synced one that covers it, else its own if it is there.
    /// For metadata a scope of full objects is preferred, because its informer is the one that reports changes.
    pub(super) fn find_serving<'a>(&'a self, scope: &'a Scope) -> Option<(&'a Scope, &'a T)> {
        let own = || self.covering(scope).find(|(s, _)| *s == scope);
        if scope.projection == Projection::Full
            && let Some(own) = own().filter(|(_, value)| value.is_synced())
        {
            return Some(own);
        }
        let synced = self.covering(scope).filter(|(_, value)| value.is_synced());
        synced.min_by_key(|(s, _)| s.projection).or_else(own)
    }

    /// A scope that covers a read and whose first list is on its way, so that the read needs no watch of its own.
    pub(super) fn find_listing<'a>(&'a self, scope: &'a Scope) -> Option<(&'a Scope, &'a T)> {
        self.covering(scope).find(|(_, value)| value.is_listing())
    }

    /// The scope to watch for a read that no informer serves: a wider one if there are many narrow ones already. Where the
    /// server refuses the widest, it is the next narrower: a service account may often list in its namespaces only. Secrets,
    /// and the namespaces of a confined host, are never watched beyond one namespace.
    pub(super) fn widen(&self, scope: &Scope, namespaces: &NamespaceScope) -> Scope {
        let Some(kind) = self.kinds.get(&kind_of(scope)) else {
            return scope.clone();
        };
        let others = kind.keys().filter(|n| !n.is_empty() && **n != scope.namespace);
        let has_many_namespaces = namespaces.may_watch_all(&scope.gvk)
            && !scope.namespace.is_empty()
            && others.count() >= MAX_NARROW_WATCHES;
        let everywhere = has_many_namespaces.then(|| Arc::from(""));
        let mut wider = everywhere
            .into_iter()
            .chain([scope.namespace.clone()])
            .map(|namespace| {
                let mut wide = scope.clone();
                wide.namespace = namespace;
                let selected = kind.get(&wide.namespace).into_iter().flatten();
                let selected = selected.filter(|(s, _)| s.selector.is_some() && *s != wide);
                if wide.selector.is_some() && selected.count() >= MAX_NARROW_WATCHES {
                    wide.selector = None;
                }
                wide
            });
        let is_refused = |wide: &Scope| self.get(wide).is_some_and(InformerProgress::is_refused);
        wider
            .find(|wide| !is_refused(wide))
            .unwrap_or_else(|| scope.clone())
    }

    /// The scopes that serve at least one of the `needed` ones. Where one that is in use covers others, it serves their
    /// readers too.
    pub(super) fn find_in_use(&self, needed: &[Scope]) -> HashSet<Scope> {
        // Those that are needed themselves, and those that serve a read without an informer of its own.
        let mut wide: HashSet<&Scope> = HashSet::new();
        for scope in needed {
            match self.get(scope) {
                Some(own) => wide.extend(own.is_synced().then_some(scope)),
                None => wide.extend(
                    self.find_serving(scope)
                        .or_else(|| self.find_pending(scope))
                        .map(|(s, _)| s),
                ),
            }
        }
        let serving = |scope: &Scope| {
            let in_use = self.covering(scope).filter(|(s, _)| wide.contains(*s));
            let others = in_use.filter(|(s, value)| *s != scope && value.is_synced());
            let breadth = |s: &Scope| (!s.namespace.is_empty(), s.selector.is_some(), s.projection);
            let found = others.min_by_key(|(s, _)| breadth(s));
            let found = found
                .or_else(|| self.find_serving(scope))
                .or_else(|| self.find_pending(scope));
            found.map(|(s, _)| s.clone())
        };
        needed.iter().filter_map(serving).collect()
    }

    /// Returns true for a scope with a label selector that one in use without serves as well: [`Self::find_replacing`] brings it back
    /// when nobody needs the wider one. A scope that is still listing is not covered: it may be about to take its place.
    pub(super) fn is_covered(&self, scope: &Scope, in_use: &HashSet<Scope>) -> bool {
        let is_synced = |scope: &Scope| self.get(scope).is_some_and(InformerProgress::is_synced);
        let mut wider = self
            .covering(scope)
            .filter(|(wide, _)| covers_selected(wide, scope));
        is_synced(scope) && wider.any(|(wide, value)| value.is_synced() && in_use.contains(wide))
    }

    /// The scopes to watch instead of wider ones without a label selector, which serve them and which nobody needs: what was read
    /// of the whole kind is read no more, or has got the label of owned objects.
    pub(super) fn find_replacing(&self, needed: &[Scope]) -> Vec<Scope> {
        let needed: HashSet<&Scope> = needed.iter().collect();
        let mut readers: HashMap<&Scope, Vec<&Scope>> = HashMap::new();
        for scope in needed.iter().copied().filter(|scope| scope.selector.is_some()) {
            if self.get(scope).is_some() {
                continue;
            }
            let mut unselected = self.covering(scope).filter(|(wide, _)| wide.selector.is_none());
            if let Some((wide, _)) = unselected.next() {
                readers.entry(wide).or_default().push(scope);
            }
        }
        let is_needed = |wide: &Scope| {
            let mut unselected = needed.iter().filter(|other| other.selector.is_none());
            unselected.any(|other| wide.covers(other))
        };
        readers.retain(|wide, scopes| scopes.len() <= MAX_REPLACING_WATCHES && !is_needed(wide));
        readers.into_values().flatten().cloned().collect()
    }

    /// A scope that will serve a read once it is synced.
    fn find_pending<'a>(&'a self, scope: &'a Scope) -> Option<(&'a Scope, &'a T)> {
        self.covering(scope).find(|(_, value)| !value.is_refused())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::{key::Gvk, selector::LabelSelector};

    #[derive(Clone, Copy, PartialEq)]
    enum State {
        Pending,
        Synced,
        Refused,
    }

    impl InformerProgress for State {
        fn is_synced(&self) -> bool {
            *self == Self::Synced
        }

        fn is_refused(&self) -> bool {
            *self == Self::Refused
        }

        fn is_listing(&self) -> bool {
            *self == Self::Pending
        }
    }

    fn scope_of(kind: &str, namespace: &str, selector: &str) -> Scope {
        Scope {
            gvk: Gvk::new("", "v1", kind),
            cluster: "".into(),
            namespace: namespace.into(),
            selector: Some(selector)
                .filter(|s| !s.is_empty())
                .map(|s| LabelSelector::parse(s).expect("a selector")),
            projection: Projection::Full,
        }
    }

    fn scope(namespace: &str, selector: &str) -> Scope {
        scope_of("Pod", namespace, selector)
    }

    /// Starts an informer for each scope that none serves, as reads do. Returns the index.
    fn read_all(
        scopes: impl IntoIterator<Item = Scope>,
        namespaces: &NamespaceScope,
        state: State,
    ) -> ScopeIndex<State> {
        let mut index = ScopeIndex::default();
        for scope in scopes {
            if index
                .find_serving(&scope)
                .or_else(|| index.find_listing(&scope))
                .is_none()
            {
                let wide = index.widen(&scope, namespaces);
                if index.get(&wide).is_none() {
                    index.insert(wide, state);
                }
            }
        }
        index
    }

    #[test]
    fn many_selectors_of_one_namespace_share_one_wider_watch() {
        let everywhere = NamespaceScope::default();
        for state in [State::Synced, State::Pending] {
            let selectors = (0..2000).map(|i| scope("a", &format!("x={i}")));
            let index = read_all(selectors, &everywhere, state);
            assert_eq!(index.iter().count(), MAX_NARROW_WATCHES + 1);
            assert!(index.get(&scope("a", "")).is_some());
        }
    }

    #[test]
    fn many_namespaces_share_one_watch_unless_the_host_is_confined_or_secrets_are_read() {
        let everywhere = NamespaceScope::default();
        let confined = NamespaceScope::new(&["a".into()]);
        let namespaces = |kind: &'static str| (0..100).map(move |i| scope_of(kind, &format!("n{i}"), "x=1"));
        let index = read_all(namespaces("Pod"), &everywhere, State::Synced);
        assert_eq!(index.iter().count(), MAX_NARROW_WATCHES + 1);
        assert!(index.get(&scope("", "x=1")).is_some());
        assert_eq!(
            read_all(namespaces("Pod"), &confined, State::Synced)
                .iter()
                .count(),
            100
        );
        assert_eq!(
            read_all(namespaces("Secret"), &everywhere, State::Synced)
                .iter()
                .count(),
            100
        );
        let selectors = (0..100).map(|i| scope(&format!("n{i}"), &format!("x={i}")));
        assert_eq!(
            read_all(selectors, &everywhere, State::Synced).iter().count(),
            2 * MAX_NARROW_WATCHES + 1
        );
    }

    #[test]
    fn refused_wider_watch_leaves_the_narrow_ones() {
        let everywhere = NamespaceScope::default();
        let mut index = read_all(
            (0..8).map(|i| scope("a", &format!("x={i}"))),
            &everywhere,
            State::Synced,
        );
        assert_eq!(index.widen(&scope("a", "x=9"), &everywhere), scope("a", ""));
        index.insert(scope("a", ""), State::Refused);
        assert_eq!(index.widen(&scope("a", "x=9"), &everywhere), scope("a", "x=9"));
    }

    #[test]
    fn refused_watch_of_all_namespaces_leaves_one_per_namespace() {
        let everywhere = NamespaceScope::default();
        let mut index = ScopeIndex::default();
        for i in 0..MAX_NARROW_WATCHES {
            index.insert(scope(&format!("n{i}"), ""), State::Synced);
        }
        index.insert(scope("", "x=1"), State::Refused);
        for i in 0..100 {
            let read = scope("n", &format!("x={i}"));
            if index.find_serving(&read).is_none() {
                let wide = index.widen(&read, &everywhere);
                let state = if wide.namespace.is_empty() {
                    State::Refused
                } else {
                    State::Synced
                };
                if index.get(&wide).is_none() {
                    index.insert(wide, state);
                }
            }
        }
        let in_namespace = index.iter().filter(|(s, _)| *s.namespace == *"n");
        assert!(in_namespace.count() <= MAX_NARROW_WATCHES + 1);
        assert!(index.get(&scope("n", "")).is_some());
    }

    #[test]
    fn readers_of_narrow_watches_move_to_the_wider_one_that_others_need() {
        let everywhere = NamespaceScope::default();
        let needed: Vec<Scope> = (0..20).map(|i| scope("a", &format!("x={i}"))).collect();
        let index = read_all(needed.clone(), &everywhere, State::Synced);
        assert_eq!(index.find_in_use(&needed), [scope("a", "")].into());
        for scope in &needed[..MAX_NARROW_WATCHES] {
            assert!(index.is_covered(scope, &index.find_in_use(&needed)), "{scope:?}");
        }
        // With few readers left, their own watches serve them.
        assert_eq!(
            index.find_in_use(&needed[..2]),
            needed[..2].iter().cloned().collect()
        );
    }

    #[test]
    fn watch_of_a_kind_that_serves_few_selectors_alone_is_replaced() {
        let mut index = ScopeIndex::default();
        index.insert(scope("", ""), State::Synced);
        let few = [scope("a", "x"), scope("b", "x")];
        let replacing = |index: &ScopeIndex<State>, needed: &[Scope]| {
            HashSet::<Scope>::from_iter(index.find_replacing(needed))
        };
        assert_eq!(replacing(&index, &few), few.clone().into());
        // Somebody reads more of the kind, in all namespaces or in another one.
        for other in [scope("", ""), scope("c", "")] {
            let needed = [few[0].clone(), other];
            assert_eq!(index.find_replacing(&needed), []);
        }
        let many: Vec<Scope> = (0..MAX_NARROW_WATCHES)
            .map(|i| scope("a", &format!("x={i}")))
            .collect();
        assert_eq!(index.find_replacing(&many), []);
        // The wide watch serves it until its own has listed.
        index.insert(few[0].clone(), State::Pending);
        assert!(!index.is_covered(&few[0], &index.find_in_use(&few[..1])));
        index.remove(&few[0]);
        // With its own watch none is replaced any more, and the wide one is in use no longer.
        index.insert(few[0].clone(), State::Synced);
        assert_eq!(index.find_replacing(&few[..1]), []);
        assert_eq!(index.find_in_use(&few[..1]), [few[0].clone()].into());
    }

    #[test]
    fn removed_scopes_leave_nothing_behind() {
        let mut index = ScopeIndex::default();
        index.insert(scope("a", "x=1"), State::Synced);
        assert!(index.remove(&scope("a", "x=2")).is_none());
        assert!(index.remove(&scope("a", "x=1")).is_some());
        assert!(index.kinds.is_empty());
    }
}
