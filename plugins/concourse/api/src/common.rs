use ostler_sdk::api;

/// Another object, in the same namespace unless it says otherwise.
#[api]
pub struct Reference {
    /// Name of the object.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Namespace of the object; that of the referring one when empty.
    #[schemars(length(min = 1))]
    pub namespace: Option<String>,
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

/// A key of a ConfigMap in the object's own namespace.
#[api]
pub struct ConfigMapKey {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the ConfigMap.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// What becomes of the thing in Concourse when its object is deleted.
#[api]
#[derive(Copy, Default)]
pub enum ReclaimPolicy {
    /// It is deleted too.
    #[default]
    Delete,
    /// It stays.
    Orphan,
}

/// A container image.
#[api]
pub struct ContainerImage {
    /// Repository of the image, without the tag.
    #[schemars(length(min = 1))]
    pub repository: String,
    /// Tag of the image; `latest` when there is none.
    pub tag: Option<String>,
}
