//! Objects that commands apply to a cluster and delete from it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::Value;

use super::object_api::api_of;

/// Field manager of the objects that commands apply.
pub const FIELD_MANAGER: &str = "ostler-install";
/// Interval between checks if a deleted object is gone.
const DELETION_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Limit of the time for the release of bindings and roles.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

/// The place of an object in a cluster.
struct Located {
    api: Api<DynamicObject>,
    name: String,
    /// Kind, namespace and name, for messages.
    shown: String,
}

fn locate_object(client: &Client, value: &Value) -> anyhow::Result<Located> {
    let object: DynamicObject = serde_json::from_value(value.clone())?;
    let types = object.types.as_ref().context("an object without a kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let (namespace, name) = (object.namespace(), object.name_any());
    Ok(Located {
        api: api_of(client, &resource, namespace.as_deref()),
        shown: describe_object(&types.kind, namespace.as_deref(), &name),
        name,
    })
}

/// Reads the live version of an object; none where its kind is not served, too.
pub async fn read_live(client: &Client, value: &Value) -> anyhow::Result<Option<DynamicObject>> {
    let Located { api, name, shown } = locate_object(client, value)?;
    match api.get(&name).await {
        Ok(live) => Ok(Some(live)),
        // For a group that is not served the API server has a text without a reason, which `get_opt` does not know.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(e) => Err(e).with_context(|| format!("reading {shown}")),
    }
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
    let Located { api, name, shown } = locate_object(client, value)?;
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

/// Kind, namespace and name, for messages.
pub fn describe_object(kind: &str, namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
