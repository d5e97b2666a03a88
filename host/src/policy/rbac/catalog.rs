//! The resources of an API server: names under which kinds are served.

use serde::Deserialize;

/// A resource that serves the objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiResource {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind of its objects.
    pub kind: String,
    /// Plural name, as in paths and RBAC rules.
    pub plural: String,
    /// True if its objects live in namespaces.
    pub namespaced: bool,
    /// True if it has a status subresource.
    pub has_status: bool,
}

impl ApiResource {
    /// The resource that a kind most likely has, as client-go guesses it: for a kind that is not served.
    pub fn guess(group: &str, kind: &str) -> Self {
        let singular = kind.to_ascii_lowercase();
        let plural = match singular.as_bytes() {
            [.., b's'] => format!("{singular}es"),
            [start @ .., b'y'] => format!("{}ies", String::from_utf8_lossy(start)),
            _ => format!("{singular}s"),
        };
        Self {
            group: group.to_owned(),
            kind: kind.to_owned(),
            plural,
            namespaced: true,
            has_status: true,
        }
    }
}

/// The resources of an API server, one for each kind.
#[derive(Clone, Debug, Default)]
pub struct ResourceCatalog(Vec<ApiResource>);

/// A response of the discovery API: the resources of one version of a group, subresources included.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceList {
    resources: Vec<ListedResource>,
}

#[derive(Deserialize)]
struct ListedResource {
    name: String,
    namespaced: bool,
    kind: String,
}

impl ResourceCatalog {
    /// Adds the resources of a discovery response (`/api/v1`, `/apis/GROUP/VERSION`).
    pub fn add_discovered(&mut self, group: &str, response: &[u8]) -> Result<(), serde_json::Error> {
        let list: ResourceList = serde_json::from_slice(response)?;
        for listed in list.resources.iter().filter(|r| !r.name.contains('/')) {
            let status = format!("{}/status", listed.name);
            self.add(ApiResource {
                group: group.to_owned(),
                kind: listed.kind.clone(),
                plural: listed.name.clone(),
                namespaced: listed.namespaced,
                has_status: list.resources.iter().any(|r| r.name == status),
            });
        }
        Ok(())
    }

    /// Adds a resource, unless its kind has one already.
    pub fn add(&mut self, resource: ApiResource) {
        if self.find(&resource.group, &resource.kind).is_none() {
            self.0.push(resource);
        }
    }

    /// Finds the resource of a kind.
    pub fn find(&self, group: &str, kind: &str) -> Option<&ApiResource> {
        self.0.iter().find(|r| r.group == group && r.kind == kind)
    }

    /// All resources.
    pub fn iter(&self) -> impl Iterator<Item = &ApiResource> {
        self.0.iter()
    }
}
