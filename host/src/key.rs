//! How kinds and objects are named everywhere in the host.

use std::{
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
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

/// Names one object: the key of the queue, the store and the dependency graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its kind.
    pub gvk: Gvk,
    /// The cluster it lives in; empty for the host's own.
    pub cluster: Arc<str>,
    /// Its namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl ObjectRef {
    /// Names an object of the host's own cluster; an empty namespace means cluster-scoped.
    pub fn new(gvk: Gvk, namespace: &str, name: &str) -> Self {
        Self {
            gvk,
            cluster: "".into(),
            namespace: namespace.into(),
            name: name.into(),
        }
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
