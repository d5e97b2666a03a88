//! Objects that commands apply to a cluster and delete from it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::Value;

/// Field manager of the objects that commands apply.
pub const FIELD_MANAGER: &str = "ostler-install";
/// Interval between checks if a deleted object is gone.
const DELETION_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Limit of the time for the release of bindings and roles.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);
/// Reads the live version of an object.
pub async fn read_live(client: &Client, value: &Value) -> anyhow::Result<Option<DynamicObject>> {
    let object: DynamicObject = serde_json::from_value(value.clone())?;
    let types = object.types.clone().context("an object without a kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    let (namespace, name) = (object.namespace(), object.name_any());
    let live = api_of(client, &resource, namespace.as_deref())
        .get_opt(&name)
        .await;
    let shown = describe_object(&types.kind, namespace.as_deref(), &name);
    live.with_context(|| format!("reading {shown}"))
}

/// Applies objects in their order, prints the name of each, and returns the generation of the last one.
pub async fn apply_objects(client: &Client, objects: &[Value], force: bool) -> anyhow::Result<i64> {
    let mut generation = None;
    for value in objects {
        generation = apply_object(client, value, force).await?.metadata.generation;
    }
    Ok(generation.unwrap_or_default())
}

/// Applies an object, prints its name, and returns it.
async fn apply_object(client: &Client, value: &Value, force: bool) -> anyhow::Result<DynamicObject> {
    let mut params = PatchParams::apply(FIELD_MANAGER);
    params.force = force;
    let object: DynamicObject = serde_json::from_value(value.clone())?;
    let types = object.types.clone().context("an object without a kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    let api = api_of(client, &resource, object.namespace().as_deref());
    let name = object.name_any();
    let shown = describe_object(&types.kind, object.namespace().as_deref(), &name);
    match api.patch(&name, &params, &Patch::Apply(value)).await {
        Ok(applied) => {
            println!("{shown} applied");
            Ok(applied)
        }
        Err(kube::Error::Api(status)) if status.code == 409 => bail!(
            "applying {shown}: {}; --force-conflicts takes these fields over",
            status.message
        ),
        Err(e) => Err(e).with_context(|| format!("applying {shown}")),
    }
}

/// An object that a command has applied.
pub struct InstalledObject {
    /// Its resource.
    pub resource: ApiResource,
    /// Its namespace; none for cluster-scoped ones.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// Deletes objects.
pub async fn delete_objects(client: &Client, objects: &[InstalledObject]) -> anyhow::Result<()> {
    for object in objects {
        delete_object(
            client,
            &object.resource,
            object.namespace.as_deref(),
            &object.name,
        )
        .await?;
    }
    // The host keeps bindings and roles that objects need for their cleanup.
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    for object in objects {
        let InstalledObject {
            resource,
            namespace,
            name,
        } = object;
        let shown = describe_object(&resource.kind, namespace.as_deref(), name);
        let api = api_of(client, resource, namespace.as_deref());
        while let Some(left) = api
            .get_opt(name)
            .await
            .with_context(|| format!("reading {shown}"))?
        {
            if left.metadata.deletion_timestamp.is_none() {
                break;
            }
            if Instant::now() > deadline {
                println!("{shown} stays until the host releases it: `kubectl describe` names what needs it");
                break;
            }
            tokio::time::sleep(DELETION_POLL_INTERVAL).await;
        }
    }
    Ok(())
}

async fn delete_object(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
    name: &str,
) -> anyhow::Result<()> {
    let shown = describe_object(&resource.kind, namespace, name);
    match api_of(client, resource, namespace)
        .delete(name, &DeleteParams::default())
        .await
    {
        Ok(_) => println!("{shown} deleted"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(e) => return Err(e).with_context(|| format!("deleting {shown}")),
    }
    Ok(())
}

/// The API of a resource in a namespace, or in all.
pub fn api_of(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// Kind, namespace and name, for messages.
pub fn describe_object(kind: &str, namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
