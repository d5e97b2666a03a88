use ostler_sdk::{Condition, Outcome, api};

/// A reference to another object, in the same namespace unless the reference names one.
#[api]
pub struct Reference {
    /// Name of the object.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Namespace of the object; defaults to the namespace of the referring object.
    #[schemars(length(min = 1))]
    pub namespace: Option<String>,
}

impl Reference {
    /// The namespace of the referenced object, given the namespace of the referring one.
    #[must_use]
    pub fn namespace_or<'a>(&'a self, own_namespace: &'a str) -> &'a str {
        let namespace = self.namespace.as_deref();
        namespace
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or(own_namespace)
    }
}

/// A key of a Secret in the object's own namespace.
#[api]
pub struct SecretKey {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// Decides what happens to the records at the provider when an object is deleted.
#[api]
#[derive(Copy, Default)]
pub enum ReclaimPolicy {
    /// The record and its mark are deleted, too.
    #[default]
    Delete,
    /// The record and its mark stay.
    Orphan,
}

/// The outcome for a suspended object, which is reached without any request.
#[must_use]
pub fn suspended_outcome() -> Outcome {
    let message = "Not reconciled while spec.suspend is true.";
    Outcome::await_change().with(Condition::new_false("Ready", "Suspended", message))
}
