//! Discovery of the resources under which kinds are served.

use serde::Deserialize;

use super::{ApiClient, ApiError, parse_response};
use crate::kube::key::{Gvk, ObjectRef};

/// The resource under which a kind is served.
#[derive(Clone, Debug)]
pub struct Resource {
    /// `api/v1` or `apis/GROUP/VERSION`.
    prefix: String,
    /// Plural name, as in the path.
    pub plural: String,
    /// True if objects live in namespaces.
    pub namespaced: bool,
    /// True if it has a status subresource.
    pub status: bool,
}

impl Resource {
    /// Path of the collection; an empty namespace means all of them.
    pub fn collection(&self, namespace: &str) -> String {
        if self.namespaced && !namespace.is_empty() {
            format!("/{}/namespaces/{namespace}/{}", self.prefix, self.plural)
        } else {
            format!("/{}/{}", self.prefix, self.plural)
        }
    }

    /// Path of one object.
    pub fn object(&self, object: &ObjectRef) -> String {
        format!("{}/{}", self.collection(&object.namespace), object.name)
    }
}

impl ApiClient {
    /// Discovers the resource of a kind. The result is cached; a kind that is not served is looked up again each
    /// time, because its CRD may be installed later.
    pub async fn discover_resource(&self, gvk: &Gvk) -> Result<Resource, ApiError> {
        if let Some(cached) = self.resources.lock().get(gvk) {
            return Ok(cached.clone());
        }
        #[derive(Deserialize)]
        struct List {
            resources: Vec<Item>,
        }
        #[derive(Deserialize)]
        struct Item {
            name: String,
            namespaced: bool,
            kind: String,
        }
        let prefix = if gvk.group.is_empty() {
            format!("api/{}", gvk.version)
        } else {
            format!("apis/{}/{}", gvk.group, gvk.version)
        };
        let list: List = match self.get(&format!("/{prefix}")).await {
            Ok(bytes) => parse_response(&bytes)?,
            Err(e) if e.code() == 404 => return Err(ApiError::UnknownKind(gvk.clone())),
            Err(e) => return Err(e),
        };
        let item = list
            .resources
            .iter()
            .find(|r| *r.kind == *gvk.kind && !r.name.contains('/'))
            .ok_or_else(|| ApiError::UnknownKind(gvk.clone()))?;
        let resource = Resource {
            prefix,
            plural: item.name.clone(),
            namespaced: item.namespaced,
            status: list
                .resources
                .iter()
                .any(|r| r.name == format!("{}/status", item.name)),
        };
        self.resources.lock().insert(gvk.clone(), resource.clone());
        Ok(resource)
    }

    /// Discovers the version of a kind that the server prefers.
    pub async fn discover_preferred(&self, group: &str, kind: &str) -> Result<Gvk, ApiError> {
        if group.is_empty() {
            return Ok(Gvk::new("", "v1", kind));
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Group {
            preferred_version: Version,
        }
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let bytes = self.get(&format!("/apis/{group}")).await?;
        let found: Group = parse_response(&bytes)?;
        Ok(Gvk::new(group, &found.preferred_version.version, kind))
    }
}
