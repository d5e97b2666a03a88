//! Scopes: the part of a cluster that one watch covers, and the part of each object that is kept.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use parking_lot::RwLock;

use crate::kube::{
    key::{self, Gvk, ObjectRef},
    object::Labels,
    owned::owned_selector,
    selector::LabelSelector,
};

/// The part of each object that is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Projection {
    /// The whole object without `managedFields`.
    Full,
    /// Metadata only, for kinds of which no plugin reads more.
    Metadata,
}

/// The coverage of one watch: objects of a kind in a cluster, by namespace and label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The kind.
    pub gvk: Gvk,
    /// The cluster; empty for the host's own.
    pub cluster: Arc<str>,
    /// The namespace; empty for all.
    pub namespace: Arc<str>,
    /// The labels; none for all.
    pub selector: Option<LabelSelector>,
    /// The part of each object that is kept.
    pub projection: Projection,
}

impl Scope {
    /// The scope of a read of one object.
    pub fn of_object(key: &ObjectRef, projection: Projection) -> Self {
        Self {
            gvk: key.gvk.clone(),
            cluster: key.cluster.clone(),
            namespace: key.namespace.clone(),
            selector: None,
            projection,
        }
    }

    /// The scope of a read of one owned object: the owned objects of its kind and namespace.
    pub fn of_owned(key: &ObjectRef, projection: Projection) -> Self {
        Self {
            selector: Some(owned_selector()),
            ..Self::of_object(key, projection)
        }
    }

    /// Returns true if this scope includes every object of `other`, and at least as much of each.
    pub fn covers(&self, other: &Self) -> bool {
        self.gvk == other.gvk
            && self.cluster == other.cluster
            && (self.namespace.is_empty() || self.namespace == other.namespace)
            && (self.selector.is_none() || self.selector == other.selector)
            && self.projection <= other.projection
    }

    /// Returns true if an object of the scope's kind and cluster belongs to the scope.
    pub fn contains(&self, key: &ObjectRef, labels: &Labels) -> bool {
        (self.namespace.is_empty() || self.namespace == key.namespace)
            && self.selector.as_ref().is_none_or(|s| s.matches(labels))
    }
}

/// The namespaces that the host is confined to, which decide the watch that serves a read.
#[derive(Clone, Debug, Default)]
pub struct NamespaceScope {
    /// Namespaces the host is confined to, in order; empty for all.
    pub namespaces: Vec<Arc<str>>,
    /// Kinds that discovery found to be cluster-scoped: their objects are in none of the namespaces. Shared by all
    /// clones.
    cluster_scoped: Arc<RwLock<HashSet<Gvk>>>,
    /// Kinds that RBAC does not allow to list in all namespaces at once. Shared by all clones.
    forbidden: Arc<RwLock<HashSet<Gvk>>>,
}

impl NamespaceScope {
    /// Confines the host to these namespaces; an empty list means all of them.
    pub fn new(namespaces: &[String]) -> Self {
        let names: BTreeSet<&str> = namespaces.iter().map(String::as_str).collect();
        Self {
            namespaces: names.into_iter().map(Into::into).collect(),
            cluster_scoped: Arc::default(),
            forbidden: Arc::default(),
        }
    }

    /// Returns true if the host may not watch all namespaces.
    pub fn is_confined(&self) -> bool {
        !self.namespaces.is_empty()
    }

    /// Records what discovery found of a kind. Returns true if that was not known.
    pub fn record_scope(&self, gvk: &Gvk, namespaced: bool) -> bool {
        if namespaced {
            self.cluster_scoped.write().remove(gvk)
        } else {
            self.cluster_scoped.write().insert(gvk.clone())
        }
    }

    /// Records that RBAC refuses a list of a kind in all namespaces (HTTP 403): from now on a read in one namespace is served by a
    /// watch of that namespace.
    pub fn record_forbidden(&self, gvk: &Gvk) {
        self.forbidden.write().insert(gvk.clone());
    }

    /// Returns true for the watch of all namespaces of a kind that RBAC allows in some only: the kind is watched in those that are
    /// read.
    pub fn is_narrowed(&self, scope: &Scope) -> bool {
        scope.cluster.is_empty() && scope.namespace.is_empty() && self.forbidden.read().contains(&scope.gvk)
    }

    /// Returns true if the host may watch a kind in all namespaces at once. Secrets it never does.
    pub fn may_watch_all(&self, gvk: &Gvk) -> bool {
        self.namespaces.is_empty() && !gvk.is_secret()
    }

    /// The namespaces to read for a namespace (empty: all): itself, or each namespace of a confined host. A
    /// cluster-scoped kind has none, so that it is read as a whole.
    pub fn namespaces_for(&self, gvk: &Gvk, namespace: &str) -> Vec<Arc<str>> {
        if self.is_confined() && namespace.is_empty() && !self.cluster_scoped.read().contains(gvk) {
            return self.namespaces.clone();
        }
        vec![namespace.into()]
    }

    /// The scopes that together cover all objects of a kind that the host may see.
    pub fn kind_scopes(
        &self,
        gvk: &Gvk,
        selector: Option<&LabelSelector>,
        projection: Projection,
    ) -> Vec<Scope> {
        let namespaces = self.namespaces_for(gvk, "");
        let scope = |namespace: &Arc<str>| self.list_scope(gvk, &"".into(), namespace, selector, projection);
        namespaces.iter().map(scope).collect()
    }

    /// Those of some namespaces that the host may see.
    pub fn intersect(&self, namespaces: &[Arc<str>]) -> Vec<Arc<str>> {
        let is_visible = |n: &&Arc<str>| self.namespaces.is_empty() || self.namespaces.contains(n);
        let visible: BTreeSet<_> = namespaces.iter().filter(is_visible).cloned().collect();
        visible.into_iter().collect()
    }

    /// Narrows the host's view to some namespaces.
    pub fn narrow_to(&self, namespaces: &[Arc<str>]) -> Self {
        Self {
            namespaces: self.intersect(namespaces),
            cluster_scoped: self.cluster_scoped.clone(),
            forbidden: self.forbidden.clone(),
        }
    }

    /// The scopes of a kind in each of these namespaces; none without namespaces.
    pub fn named_scopes(
        &self,
        gvk: &Gvk,
        selector: Option<&LabelSelector>,
        projection: Projection,
    ) -> Vec<Scope> {
        let scope = |namespace: &Arc<str>| self.list_scope(gvk, &"".into(), namespace, selector, projection);
        self.namespaces.iter().map(scope).collect()
    }

    /// The scope that serves a read of one object.
    pub fn object_scope(&self, key: &ObjectRef, projection: Projection) -> Scope {
        self.widen(Scope::of_object(key, projection))
    }

    /// The scope that serves a list in one namespace (empty: all). Secrets are never watched beyond the
    /// requested namespace, a confined host watches nothing cluster-wide, and in another cluster the credentials may
    /// be for some namespaces only.
    pub fn list_scope(
        &self,
        gvk: &Gvk,
        cluster: &Arc<str>,
        namespace: &str,
        selector: Option<&LabelSelector>,
        projection: Projection,
    ) -> Scope {
        self.widen(Scope {
            gvk: gvk.clone(),
            cluster: cluster.clone(),
            namespace: namespace.into(),
            selector: selector.cloned(),
            projection,
        })
    }

    /// The scope of the watch that serves reads of a scope: all namespaces, where that is possible and wanted.
    pub fn widen(&self, mut read: Scope) -> Scope {
        // A label selector makes the watch cheap enough to keep it per namespace.
        let is_narrow = read.gvk.is_secret()
            || self.is_confined()
            || read.selector.is_some()
            || !read.cluster.is_empty()
            || self.forbidden.read().contains(&read.gvk);
        if !is_narrow {
            read.namespace = key::all_namespaces();
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(namespace: &str, selector: Option<&str>, projection: Projection) -> Scope {
        Scope {
            gvk: Gvk::new("", "v1", "Pod"),
            cluster: "".into(),
            namespace: namespace.into(),
            selector: selector.map(|s| LabelSelector::parse(s).expect("a selector")),
            projection,
        }
    }

    #[test]
    fn cluster_scoped_kind_has_one_scope_on_a_confined_host() {
        let confined = NamespaceScope::new(&["a".into(), "b".into()]);
        let node = Gvk::new("", "v1", "Node");
        let namespaces = |gvk: &Gvk| -> Vec<Arc<str>> {
            let scopes = confined.kind_scopes(gvk, None, Projection::Full).into_iter();
            scopes.map(|scope| scope.namespace).collect()
        };
        assert_eq!(namespaces(&node), ["a".into(), "b".into()], "not discovered yet");
        assert!(confined.clone().record_scope(&node, false));
        assert_eq!(namespaces(&node), ["".into()]);
        assert_eq!(namespaces(&Gvk::new("", "v1", "Pod")), ["a".into(), "b".into()]);
        // Its CRD was made anew with another scope.
        assert!(confined.record_scope(&node, true) && !confined.record_scope(&node, true));
        assert_eq!(namespaces(&node), ["a".into(), "b".into()]);
    }

    #[test]
    fn kind_that_is_forbidden_in_all_namespaces_is_watched_in_those_that_are_read() {
        let (everywhere, pod) = (NamespaceScope::default(), Gvk::new("", "v1", "Pod"));
        let clone = everywhere.clone();
        let namespace_of = |gvk: &Gvk, namespace: &str| {
            let scope = clone.list_scope(gvk, &"".into(), namespace, None, Projection::Full);
            scope.namespace.to_string()
        };
        assert_eq!(namespace_of(&pod, "a"), "");
        everywhere.record_forbidden(&pod);
        assert_eq!((&*namespace_of(&pod, "a"), &*namespace_of(&pod, "")), ("a", ""));
        assert_eq!(namespace_of(&Gvk::new("", "v1", "Service"), "a"), "");
    }

    #[test]
    fn read_in_another_cluster_is_watched_in_its_namespace_only() {
        let pod = Gvk::new("", "v1", "Pod");
        let namespace_of = |cluster: &str| {
            let scopes = NamespaceScope::default();
            let scope = scopes.list_scope(&pod, &cluster.into(), "a", None, Projection::Full);
            (scope.cluster.to_string(), scope.namespace.to_string())
        };
        assert_eq!(namespace_of(""), (String::new(), String::new()));
        assert_eq!(namespace_of("fleet/east"), ("fleet/east".into(), "a".into()));
    }

    #[test]
    fn wide_scope_covers_narrow_one_and_not_the_reverse() {
        use Projection::{Full, Metadata};
        let all = scope("", None, Full);
        for (wide, narrow, covered) in [
            (&all, scope("a", None, Full), true),
            (&all, scope("a", Some("x=1"), Metadata), true),
            (&scope("a", None, Full), scope("b", None, Full), false),
            (&scope("a", None, Full), all.clone(), false),
            (&scope("", Some("x=1"), Full), scope("a", Some("x=1"), Full), true),
            (&scope("", Some("x=1"), Full), scope("", Some("x=2"), Full), false),
            (&scope("", Some("x=1"), Full), all.clone(), false),
            (&scope("", None, Metadata), all.clone(), false),
        ] {
            assert_eq!(wide.covers(&narrow), covered, "{wide:?} {narrow:?}");
        }
    }
}
