//! Access of commands to objects at the API server, with the rights of their user.

use std::fmt::Debug;

use anyhow::Context;
use kube::{
    Api, Resource,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use serde::de::DeserializeOwned;

use crate::kube::key::Gvk;

/// The API of a kind as the host names it (`Team.v1alpha1.concourse-ci.org`), in a namespace unless that is empty.
///
/// # Errors
/// The text is no kind, or the API server does not serve it.
pub async fn find_api(
    client: &kube::Client,
    kind: &str,
    namespace: &str,
) -> anyhow::Result<Api<DynamicObject>> {
    let gvk = Gvk::parse(kind).with_context(|| format!("{kind} is no kind"))?;
    let gvk = GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind);
    let (resource, _) = kube::discovery::pinned_kind(client, &gvk).await?;
    let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
    Ok(api_of(client, &resource, namespace))
}

/// The API of a resource in a namespace, or in all.
pub fn api_of(client: &kube::Client, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// All objects of a kind; none where the API server does not serve it.
///
/// # Errors
/// The list failed.
pub async fn list_served<K>(client: &kube::Client) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    match Api::<K>::all(client.clone()).list(&ListParams::default()).await {
        Ok(listed) => Ok(listed.items),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(e) => Err(e).with_context(|| format!("listing objects of kind {}", K::kind(&()))),
    }
}
