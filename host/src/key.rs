//! How kinds and objects are named everywhere in the host.

use std::{
    cmp::Ordering,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    ops::Deref,
    sync::{Arc, LazyLock},
};

/// A Kubernetes kind: group (empty for the core group), version and kind. Cheap to clone: it is in every key.
#[derive(Clone, Debug, Eq, PartialOrd, Ord)]
pub struct Gvk(Arc<Names>);

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

impl Hash for Gvk {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Gvk {
    /// Names a kind.
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self(Arc::new(Names {
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
        Self::of(gvk, OWN.clone(), namespace.into(), name.into())
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
