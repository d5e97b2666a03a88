//! Names of kinds and objects, as the whole host uses them.

use std::{
    cmp::Ordering,
    collections::HashMap,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    ops::Deref,
    sync::{Arc, LazyLock},
};

use hashbrown::{Equivalent, HashSet};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

/// A Kubernetes kind: group (empty for the core group), version and kind. Cheap to clone, since it is part of every
/// key. Interned, so that equal kinds are one allocation for as long as there are any: they are compared and hashed by its
/// address.
#[derive(Clone, Debug, Eq)]
pub struct Gvk(Arc<GvkParts>);

/// An interner: one shared copy of each name that many objects have.
struct Interner<T: ?Sized> {
    /// Hashed with a random seed, so that names cannot be chosen to collide.
    interned: HashSet<Arc<T>, RandomState>,
    /// Size at which unused names are dropped. Components may name kinds and namespaces that do not exist, so the
    /// set would otherwise grow without bound.
    sweep_at: usize,
}

static KINDS: LazyLock<Mutex<Interner<GvkParts>>> = LazyLock::new(Mutex::default);
static NAMESPACED_KINDS: LazyLock<Mutex<Interner<NamespacedKind>>> = LazyLock::new(Mutex::default);
static NAMESPACES: LazyLock<Mutex<Interner<str>>> = LazyLock::new(Mutex::default);
/// Shared, so that no reference allocates its own empty string.
static EMPTY_NAME: LazyLock<Arc<str>> = LazyLock::new(|| intern_name(""));

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self {
            interned: HashSet::default(),
            sweep_at: 1024,
        }
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T> {
    /// Returns the shared copy of what `parts` name, which is made on first use.
    fn intern<Q: ?Sized + Hash + Equivalent<Arc<T>>>(
        &mut self,
        parts: &Q,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        if let Some(shared) = self.interned.get(parts) {
            return shared.clone();
        }
        if self.interned.len() >= self.sweep_at {
            self.interned.retain(|shared| Arc::strong_count(shared) > 1);
            self.sweep_at = self.sweep_at.max(2 * self.interned.len());
        }
        let shared = make();
        self.interned.insert(shared.clone());
        shared
    }
}

/// The shared copy of the name of a namespace or cluster.
fn intern_name(name: &str) -> Arc<str> {
    NAMESPACES.lock().intern(name, || name.into())
}

/// The parts of a [`Gvk`].
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GvkParts {
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// API version, for example `v1alpha1`.
    pub version: Box<str>,
    /// Kind, for example `Team`.
    pub kind: Box<str>,
}

/// Borrowed [`GvkParts`]; they have the same hash.
#[derive(Hash)]
struct GvkNames<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

impl Equivalent<Arc<GvkParts>> for GvkNames<'_> {
    fn equivalent(&self, parts: &Arc<GvkParts>) -> bool {
        *parts.group == *self.group && *parts.version == *self.version && *parts.kind == *self.kind
    }
}

impl Deref for Gvk {
    type Target = GvkParts;
    fn deref(&self) -> &GvkParts {
        &self.0
    }
}

impl PartialEq for Gvk {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Ord for Gvk {
    fn cmp(&self, other: &Self) -> Ordering {
        if self == other {
            Ordering::Equal
        } else {
            self.0.cmp(&other.0)
        }
    }
}

impl PartialOrd for Gvk {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Gvk {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl Gvk {
    /// Names a kind.
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        let names = GvkNames { group, version, kind };
        let make = || {
            Arc::new(GvkParts {
                group: group.into(),
                version: version.into(),
                kind: kind.into(),
            })
        };
        Self(KINDS.lock().intern(&names, make))
    }

    /// `group/version`, or `version` alone for the core group, as in an object's `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Parses the form that [`Gvk`] is displayed in; none if a part is not a name.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let (kind, version, group) = (parts.next()?, parts.next()?, parts.next().unwrap_or(""));
        let gvk = Self::new(group, version, kind);
        gvk.validate().ok().map(|()| gvk)
    }

    /// The kind is the same, in whichever version.
    pub fn is_same_kind(&self, other: &Self) -> bool {
        self.group == other.group && self.kind == other.kind
    }

    /// Checks that all parts are valid names, since they become part of a path at the API server. The error names
    /// the field.
    pub fn validate(&self) -> Result<(), String> {
        let plain = |text: &str, more: &[u8]| {
            let mut bytes = text.bytes();
            bytes.all(|b| b.is_ascii_alphanumeric() || more.contains(&b))
        };
        let group = plain(&self.group, b"-.") && !self.group.starts_with('.') && !self.group.contains("..");
        for (field, value, valid) in [
            ("group", &self.group, group),
            (
                "version",
                &self.version,
                !self.version.is_empty() && plain(&self.version, b""),
            ),
            (
                "kind",
                &self.kind,
                !self.kind.is_empty() && plain(&self.kind, b""),
            ),
        ] {
            if !valid {
                return Err(format!("{field} {value:?} is not a name"));
            }
        }
        Ok(())
    }

    /// The kind `Secret` of the core group.
    pub fn secret() -> Self {
        Self::new("", "v1", "Secret")
    }

    /// Returns true for the kind `Secret` of the core group.
    pub fn is_secret(&self) -> bool {
        self.group.is_empty() && *self.kind == *"Secret"
    }

    /// The inverse of [`Gvk::api_version`].
    pub fn from_api_version(api_version: &str, kind: &str) -> Self {
        match api_version.split_once('/') {
            Some((group, version)) => Self::new(group, version, kind),
            None => Self::new("", api_version, kind),
        }
    }
}

impl fmt::Display for Gvk {
    /// `Team.v1alpha1.concourse-ci.org`, the form kubectl takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.version)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// A map by kinds of clusters; the name of the host's own is empty. It is looked up by [`ClusterKindRef`]: a copy of the key would
/// change reference counts, which all processors share.
pub type ClusterKindMap<V> = hashbrown::HashMap<(Arc<str>, Gvk), V>;

/// A borrowed key of a [`ClusterKindMap`].
#[derive(Hash)]
pub struct ClusterKindRef<'a>(pub &'a str, pub &'a Gvk);

impl Equivalent<(Arc<str>, Gvk)> for ClusterKindRef<'_> {
    fn equivalent(&self, (cluster, gvk): &(Arc<str>, Gvk)) -> bool {
        gvk == self.1 && **cluster == *self.0
    }
}

/// A map by objects. Their keys have a hash of their own, which is random per process: names can't be chosen to collide, so that
/// a hasher that is only fast will do.
pub type ObjectMap<V> = HashMap<ObjectRef, V, FxBuildHasher>;

/// The name of one object: the key of the queue, the store and the dependency graph. It is one pointer and is hashed
/// once, because there are many of them and they are looked up all the time.
#[derive(Clone, Eq)]
pub struct ObjectRef(Arc<ObjectRefParts>);

/// The parts of an [`ObjectRef`].
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRefParts {
    /// Interned, because the objects of a kind and a namespace are many.
    namespaced_kind: Arc<NamespacedKind>,
    /// Its name.
    pub name: Arc<str>,
    hash: u64,
}

/// A kind in a namespace of a cluster: the parts that the references of all its objects share.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedKind {
    /// The kind.
    pub gvk: Gvk,
    /// The cluster; empty for the host's own.
    pub cluster: Arc<str>,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
}

/// A borrowed [`NamespacedKind`]; it has the same hash.
#[derive(Hash)]
struct NamespacedKindNames<'a> {
    gvk: &'a Gvk,
    cluster: &'a str,
    namespace: &'a str,
}

impl Equivalent<Arc<NamespacedKind>> for NamespacedKindNames<'_> {
    fn equivalent(&self, parts: &Arc<NamespacedKind>) -> bool {
        parts.gvk == *self.gvk && *parts.cluster == *self.cluster && *parts.namespace == *self.namespace
    }
}

impl NamespacedKindNames<'_> {
    /// The shared copy.
    fn intern(self) -> Arc<NamespacedKind> {
        let make = || {
            Arc::new(NamespacedKind {
                gvk: self.gvk.clone(),
                cluster: intern_name(self.cluster),
                namespace: intern_name(self.namespace),
            })
        };
        NAMESPACED_KINDS.lock().intern(&self, make)
    }
}

impl Deref for ObjectRefParts {
    type Target = NamespacedKind;
    fn deref(&self) -> &NamespacedKind {
        &self.namespaced_kind
    }
}

impl Deref for ObjectRef {
    type Target = ObjectRefParts;
    fn deref(&self) -> &ObjectRefParts {
        &self.0
    }
}

impl PartialEq for ObjectRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.hash == other.hash && self.0 == other.0)
    }
}

impl Hash for ObjectRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Ord for ObjectRef {
    fn cmp(&self, other: &Self) -> Ordering {
        // Declared in this order: kind, cluster, namespace, name.
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for ObjectRef {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl ObjectRef {
    /// Names an object of the host's own cluster; an empty namespace means cluster-scoped.
    pub fn new(gvk: Gvk, namespace: &str, name: &str) -> Self {
        Self::new_in_cluster(&gvk, "", namespace, name.into())
    }

    /// Its hash, which is random per process.
    pub fn hash_value(&self) -> u64 {
        self.0.hash
    }

    /// The object is the same, in whichever served version of its kind it is named.
    pub fn is_same_object(&self, other: &Self) -> bool {
        self.gvk.is_same_kind(&other.gvk)
            && self.cluster == other.cluster
            && self.namespace == other.namespace
            && self.name == other.name
    }

    /// Names an object of a cluster.
    pub fn new_in_cluster(gvk: &Gvk, cluster: &str, namespace: &str, name: Arc<str>) -> Self {
        // Random per process, so that names cannot be chosen to collide.
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let namespaced_kind = NamespacedKindNames {
            gvk,
            cluster,
            namespace,
        }
        .intern();
        let hash = SEED.hash_one((Arc::as_ptr(&namespaced_kind), &name));
        Self(Arc::new(ObjectRefParts {
            namespaced_kind,
            name,
            hash,
        }))
    }

    /// The object is in the host's own cluster.
    pub fn is_home(&self) -> bool {
        self.cluster.is_empty()
    }

    /// Names the object of the same kind, namespace and name in another cluster.
    pub fn with_cluster(self, cluster: &str) -> Self {
        if *self.cluster == *cluster {
            return self;
        }
        Self::new_in_cluster(&self.gvk, cluster, &self.namespace, self.name.clone())
    }
}

impl fmt::Display for ObjectRef {
    /// `Team/demo/platform`: kind, namespace and name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.gvk.kind)?;
        if !self.cluster.is_empty() {
            write!(f, "{}:", self.cluster)?;
        }
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// The name of the host's own cluster in references, grants and inventories, where none stands for another one: the home
/// cluster of a plugin. Names of other clusters have a slash, so that it is none of theirs.
pub const IN_CLUSTER: &str = "in-cluster";

/// The shared name of the host's own cluster in keys.
pub fn own_cluster() -> Arc<str> {
    EMPTY_NAME.clone()
}

/// The namespace of a scope of all namespaces.
pub fn all_namespaces() -> Arc<str> {
    EMPTY_NAME.clone()
}

/// The name of another cluster in keys: namespace and name of its `Cluster` object. All keys of a cluster share one copy.
pub fn cluster_name(namespace: &str, name: &str) -> Arc<str> {
    intern_name(&format!("{namespace}/{name}"))
}

/// The kind of `Cluster` objects.
pub fn cluster_gvk() -> Gvk {
    // Kept, because interning takes a lock.
    static CLUSTER: LazyLock<Gvk> = LazyLock::new(|| Gvk::new("ostler.dev", "v1alpha1", "Cluster"));
    CLUSTER.clone()
}

/// The `Cluster` object that describes a cluster of keys; none for the host's own.
pub fn cluster_object(cluster: &str) -> Option<ObjectRef> {
    let (namespace, name) = cluster.split_once('/')?;
    Some(ObjectRef::new(cluster_gvk(), namespace, name))
}

/// The name of a cluster for messages and annotations: [`IN_CLUSTER`] for the host's own.
pub fn display_cluster(cluster: &str) -> &str {
    match cluster {
        "" => IN_CLUSTER,
        cluster => cluster,
    }
}

/// Parses the form in which [`display_cluster`] names a cluster; none if a part is not a name.
pub fn parse_cluster(text: &str) -> Option<Arc<str>> {
    if text == IN_CLUSTER {
        return Some(own_cluster());
    }
    let (namespace, name) = text.split_once('/')?;
    // They become parts of paths at the API server.
    let is_name = |text: &str| !text.is_empty() && is_path_segment(text);
    (is_name(namespace) && is_name(name)).then(|| cluster_name(namespace, name))
}

/// Returns true for a text that is at most one segment of a URL path, so that it can't lead to another object.
pub fn is_path_segment(text: &str) -> bool {
    let is_forbidden =
        |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | '\\' | '?' | '#' | '%');
    !text.contains(is_forbidden) && text != "." && text != ".."
}

/// Returns true for a DNS label (RFC 1123): at most 63 letters a-z, digits and dashes, with none of these at an end.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large clusters have millions of keys, and most hosts know one cluster.
    #[test]
    fn key_of_the_home_cluster_allocates_no_cluster_name() {
        let gvk = Gvk::new("", "v1", "Pod");
        let (a, b) = (
            ObjectRef::new(gvk.clone(), "n", "a"),
            ObjectRef::new(gvk, "n", "b"),
        );
        assert!(Arc::ptr_eq(&a.cluster, &b.cluster) && Arc::ptr_eq(&a.namespace, &b.namespace));
        assert_eq!((size_of::<ObjectRef>(), size_of::<ObjectRefParts>()), (8, 32));
    }

    #[test]
    fn interner_shares_equal_names_and_drops_unused_ones() {
        let mut interner = Interner::default();
        let intern = |interner: &mut Interner<str>, name: &str| interner.intern(name, || name.into());
        let kept: Vec<Arc<str>> = (0..100)
            .map(|i| intern(&mut interner, &format!("kept-{i}")))
            .collect();
        for i in 0..10_000 {
            intern(&mut interner, &format!("gone-{i}"));
        }
        let size = interner.interned.len();
        assert!(size <= 1024, "{size}");
        assert!((0..100).all(|i| Arc::ptr_eq(&kept[i], &intern(&mut interner, &format!("kept-{i}")))));
        let (a, b) = (Gvk::new("g", "v1", "K"), Gvk::new("g", "v1", "K"));
        assert!(Arc::ptr_eq(&a.0, &b.0));
        assert!(Gvk::new("g", "v1", "J") < a && a < Gvk::new("g", "v2", "A"));
    }

    #[test]
    fn dns_label_has_small_letters_digits_and_inner_dashes() {
        for text in ["a", "process-1", "0", &"a".repeat(63)] {
            assert!(is_dns_label(text), "{text}");
        }
        for text in [
            "",
            "-a",
            "a-",
            "A",
            "a.b",
            "a&follow=true",
            "a b",
            "a/b",
            "a%26b",
            &"a".repeat(64),
        ] {
            assert!(!is_dns_label(text), "{text}");
        }
    }
}
