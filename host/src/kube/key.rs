//! How kinds and objects are named everywhere in the host.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::HashSet,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    ops::Deref,
    sync::{Arc, LazyLock, Mutex},
};

/// A Kubernetes kind: group (empty for the core group), version and kind. Cheap to clone: it is in every key.
#[derive(Clone, Debug, Eq)]
pub struct Gvk(Arc<Names>);

/// One of each name that many objects have, for all of them.
struct Shared<T> {
    all: HashSet<T>,
    /// With so many it is time to let those go that nobody has any more: a component may name what isn't there.
    sweep: usize,
}

static KINDS: LazyLock<Mutex<Shared<Arc<Names>>>> = LazyLock::new(Mutex::default);
static NAMESPACES: LazyLock<Mutex<Shared<Arc<str>>>> = LazyLock::new(Mutex::default);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self {
            all: HashSet::new(),
            sweep: 1024,
        }
    }
}

impl<T: ?Sized + Eq + Hash> Shared<Arc<T>> {
    /// The one that equals this.
    fn one(&mut self, name: impl Borrow<T> + Into<Arc<T>>) -> Arc<T> {
        if let Some(one) = self.all.get(name.borrow()) {
            return one.clone();
        }
        if self.all.len() >= self.sweep {
            self.all.retain(|one| Arc::strong_count(one) > 1);
            self.sweep = self.sweep.max(2 * self.all.len());
        }
        let one: Arc<T> = name.into();
        self.all.insert(one.clone());
        one
    }
}

/// The parts of a [`Gvk`].
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Names {
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// API version, for example `v1alpha1`.
    pub version: Box<str>,
    /// Kind, for example `Team`.
    pub kind: Box<str>,
}

impl Deref for Gvk {
    type Target = Names;
    fn deref(&self) -> &Names {
        &self.0
    }
}

impl PartialEq for Gvk {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Ord for Gvk {
    fn cmp(&self, other: &Self) -> Ordering {
        match Arc::ptr_eq(&self.0, &other.0) {
            true => Ordering::Equal,
            false => self.0.cmp(&other.0),
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
        self.0.hash(state);
    }
}

impl Gvk {
    /// Names a kind.
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self(KINDS.lock().expect("lock").one(Names {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        }))
    }

    /// `group/version`, or `version` alone for the core group, as in an object's `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// What is wrong with it as a name: it becomes part of a path at the API server. Names the field.
    pub fn check(&self) -> Result<(), String> {
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

    /// Whether it is that of Secrets.
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

/// Names one object: the key of the queue, the store and the dependency graph. There are many of each, and they are
/// looked up all the time: it is one pointer, and hashed once.
#[derive(Clone, Eq)]
pub struct ObjectRef(Arc<Identity>);

/// The parts of an [`ObjectRef`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Its kind.
    pub gvk: Gvk,
    /// The cluster it lives in; empty for the host's own.
    pub cluster: Arc<str>,
    /// Its namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    hash: u64,
}

impl Deref for ObjectRef {
    type Target = Identity;
    fn deref(&self) -> &Identity {
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
        // One for all of them.
        static OWN: LazyLock<Arc<str>> = LazyLock::new(|| "".into());
        let namespace = NAMESPACES.lock().expect("lock").one(namespace);
        Self::of(gvk, OWN.clone(), namespace, name.into())
    }

    /// Names an object of a cluster.
    pub fn of(gvk: Gvk, cluster: Arc<str>, namespace: Arc<str>, name: Arc<str>) -> Self {
        // Differs from process to process: nobody can name objects so that they collide.
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let hash = SEED.hash_one((&gvk, &cluster, &namespace, &name));
        Self(Arc::new(Identity {
            gvk,
            cluster,
            namespace,
            name,
            hash,
        }))
    }

    /// The same in another cluster.
    pub fn in_cluster(self, cluster: &Arc<str>) -> Self {
        if self.cluster == *cluster {
            return self;
        }
        let Identity {
            gvk, namespace, name, ..
        } = &*self.0;
        Self::of(gvk.clone(), cluster.clone(), namespace.clone(), name.clone())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_those_that_nobody_has_are_let_go() {
        let mut shared: Shared<Arc<str>> = Shared::default();
        let kept: Vec<Arc<str>> = (0..100).map(|i| shared.one(&*format!("kept-{i}"))).collect();
        for i in 0..10_000 {
            shared.one(&*format!("gone-{i}"));
        }
        assert!(shared.all.len() <= 1024, "{}", shared.all.len());
        assert!((0..100).all(|i| Arc::ptr_eq(&kept[i], &shared.one(&*format!("kept-{i}")))));
        let (a, b) = (Gvk::new("g", "v1", "K"), Gvk::new("g", "v1", "K"));
        assert!(Arc::ptr_eq(&a.0, &b.0));
        assert!(Gvk::new("g", "v1", "J") < a && a < Gvk::new("g", "v2", "A"));
    }
}
