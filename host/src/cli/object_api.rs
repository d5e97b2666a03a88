//! Access of commands to objects at the API server, with the rights of their user.

use anyhow::Context;
use kube::{Api, api::DynamicObject, core::GroupVersionKind};

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
    Ok(match namespace {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    })
}
