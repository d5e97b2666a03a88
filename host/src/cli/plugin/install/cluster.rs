//! The cluster's side of the installation of a plugin: discovery, the Plugin object, and what is not needed any more.

use std::collections::BTreeSet;

use anyhow::{Context, bail};
use http::Request;
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::Value;

use crate::{
    cli::apply::{FIELD_MANAGER, InstalledObject, describe_object, read_live},
    kube::well_known::bookkeeping,
    plugin::spec::PluginObject,
    policy::rbac::ResourceCatalog,
};

/// Kinds of the objects that an installation labels, in the order in which they are deleted: a binding before its role.
const LABELLED_KINDS: [(&str, &str); 5] = [
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("", "ServiceAccount"),
];

/// Reads the `Plugin` object of an installed plugin.
pub async fn read_plugin(client: &Client, name: &str) -> anyhow::Result<Option<PluginObject>> {
    let api: Api<PluginObject> = Api::all(client.clone());
    let object = api.get_opt(name).await;
    object.with_context(|| format!("reading Plugin {name}"))
}

/// Checks that a host is installed: the kind `Plugin` is served, and its namespace exists.
///
/// # Errors
/// There is none, or the API server does not answer. The error names the remedy.
pub async fn check_host(client: &Client, namespace: &str) -> anyhow::Result<()> {
    const VERSION: &str = "ostler.dev/v1alpha1";
    let is_absent = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 404);
    match client.list_api_group_resources(VERSION).await {
        Err(e) if is_absent(&e) => bail!(
            "no host is installed in this cluster: its API server does not serve the kind Plugin of {VERSION}. Install the host first; \
             --dry-run prints the objects of the plugin without one"
        ),
        served => drop(served.context("discovering the kind Plugin")?),
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match namespaces.get_metadata(namespace).await {
        Err(e) if is_absent(&e) => bail!(
            "no host is installed in namespace {namespace}, which does not exist: --host-namespace names that of the host"
        ),
        // Whoever may not read it finds out with the first object.
        _ => Ok(()),
    }
}

/// The resources of an API server.
pub struct Discovery {
    /// Those that were found.
    pub catalog: ResourceCatalog,
    /// Versions of groups that could not be discovered, each with its error: those of aggregated API servers that are down.
    pub unavailable: Vec<String>,
}

/// Discovers the resources of groups, or of all groups. The version that the server prefers comes first, but it does not serve
/// each kind of its group. Only the failure of the core group is an error.
pub async fn discover_catalog(
    client: &Client,
    groups: Option<&BTreeSet<String>>,
) -> anyhow::Result<Discovery> {
    let mut catalog = ResourceCatalog::default();
    let mut unavailable = Vec::new();
    let served = client
        .list_api_groups()
        .await
        .context("discovering the API groups")?;
    let served = served.groups.into_iter().flat_map(|group| {
        let preferred = group.preferred_version.map(|version| version.group_version);
        let all = group.versions.into_iter().map(|version| version.group_version);
        let others: Vec<String> = all
            .filter(|version| Some(version) != preferred.as_ref())
            .collect();
        let name = group.name;
        preferred
            .into_iter()
            .chain(others)
            .map(move |version| (name.clone(), version))
    });
    let core = (String::new(), "v1".to_owned());
    for (group, group_version) in std::iter::once(core).chain(served) {
        if groups.is_some_and(|groups| !groups.contains(&group)) {
            continue;
        }
        let prefix = if group.is_empty() { "/api" } else { "/apis" };
        let path = format!("{prefix}/{group_version}");
        let request = Request::get(&path).body(Vec::new())?;
        let discovered = match client.request_text(request).await {
            Ok(response) => catalog
                .add_discovered(&group, response.as_bytes())
                .map_err(|e| e.to_string()),
            // The API server answers for an aggregated one that it does not reach.
            Err(kube::Error::Api(status)) => Err(format!("HTTP {}: {}", status.code, status.message)),
            Err(e) => return Err(e).with_context(|| format!("discovering {path}")),
        };
        match discovered {
            Ok(()) => {}
            Err(why) if group.is_empty() => bail!("discovering {path}: {why}"),
            Err(why) => unavailable.push(format!("{group_version} ({why})")),
        }
    }
    Ok(Discovery { catalog, unavailable })
}

/// Checks that the labelled objects do not exist yet, or are the plugin's own. The uninstallation deletes them, and a service
/// account that others use would get the rights of the plugin.
pub async fn check_ownership(client: &Client, plugin: &str, objects: &[Value]) -> anyhow::Result<()> {
    for value in objects {
        let object: DynamicObject = serde_json::from_value(value.clone())?;
        if !object.labels().contains_key(bookkeeping::PLUGIN_LABEL) {
            continue;
        }
        let Some(live) = read_live(client, value).await? else {
            continue;
        };
        let kind = object.types.as_ref().map_or("", |types| &types.kind);
        let shown = describe_object(kind, object.namespace().as_deref(), &object.name_any());
        if live.labels().get(bookkeeping::PLUGIN_LABEL).map(String::as_str) != Some(plugin) {
            bail!(
                "{shown} exists, and is not of the plugin {plugin}: nothing was changed; delete it, or label it {}={plugin} if \
                 nothing else uses it",
                bookkeeping::PLUGIN_LABEL
            );
        }
    }
    Ok(())
}

/// Finds the labelled objects of a plugin that are not among those to keep, if an installation has applied them: the manifests of
/// `deploy/` have the label, too, for plugins without a Plugin object.
pub async fn find_obsolete(
    client: &Client,
    plugin: &str,
    keep: &[Value],
) -> anyhow::Result<Vec<InstalledObject>> {
    let mut obsolete = Vec::new();
    let kept: BTreeSet<(String, String, String)> = keep.iter().map(object_key).collect();
    let labelled = ListParams::default().labels(&format!("{}={plugin}", bookkeeping::PLUGIN_LABEL));
    for (group, kind) in LABELLED_KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let found = all.list(&labelled).await;
        for object in found.with_context(|| format!("listing objects of kind {kind}"))? {
            let (namespace, name) = (object.namespace(), object.name_any());
            let key = (
                kind.to_owned(),
                namespace.clone().unwrap_or_default(),
                name.clone(),
            );
            let is_installed = |fields: &ManagedFieldsEntry| fields.manager.as_deref() == Some(FIELD_MANAGER);
            if !kept.contains(&key) && object.managed_fields().iter().any(is_installed) {
                obsolete.push(InstalledObject {
                    resource: resource.clone(),
                    namespace,
                    name,
                });
            }
        }
    }
    Ok(obsolete)
}

/// Deletes a Plugin. Returns false where there is none.
pub async fn delete_plugin(client: &Client, name: &str) -> anyhow::Result<bool> {
    let api: Api<PluginObject> = Api::all(client.clone());
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(e) => Err(e).with_context(|| format!("deleting Plugin {name}")),
    }
}

/// Kind, namespace and name of an object.
fn object_key(object: &Value) -> (String, String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    (
        text(&object["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"]),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::cli::apply::delete_objects;

    /// A client of an API server with these objects, by their paths.
    fn client_of(objects: Value) -> Client {
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let found = objects.get(request.uri().path()).cloned();
            async move {
                let missing = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "not found", "reason": "NotFound", "code": 404});
                let status = if found.is_some() { 200 } else { 404 };
                let body = found.unwrap_or(missing).to_string();
                let response = http::Response::builder().status(status);
                Ok::<_, std::io::Error>(response.body(axum::body::Body::from(body)).expect("a response"))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn only_objects_that_an_installation_has_applied_are_deleted() {
        let account = |name: &str, manager: &str| {
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "ci",
                "managedFields": [{"manager": manager, "operation": "Apply"}]}})
        };
        let accounts = json!([
            account("installed", FIELD_MANAGER),
            account("kept", FIELD_MANAGER),
            account("by-hand", "kubectl-client-side-apply"),
        ]);
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let (record, listed) = (deleted.clone(), accounts.clone());
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let path = request.uri().path().to_owned();
            if request.method() == http::Method::DELETE {
                record.lock().push(path.clone());
            }
            let items = if path.ends_with("/serviceaccounts") {
                listed.clone()
            } else {
                json!([])
            };
            async move {
                let body = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
                let response = http::Response::builder().status(200);
                Ok::<_, std::io::Error>(
                    response
                        .body(axum::body::Body::from(body.to_string()))
                        .expect("a response"),
                )
            }
        });
        let client = Client::new(service, "default");
        let obsolete = find_obsolete(&client, "argo", &[accounts[1].clone()])
            .await
            .expect("found");
        delete_objects(&client, &obsolete).await.expect("deleted");
        assert_eq!(
            *deleted.lock(),
            ["/api/v1/namespaces/ci/serviceaccounts/installed"]
        );
    }

    #[tokio::test]
    async fn kind_of_a_version_that_is_not_preferred_is_discovered() {
        let version = |version: &str| json!({"groupVersion": format!("g.org/{version}"), "version": version});
        let group = json!({"name": "g.org", "versions": [version("v1"), version("v1alpha2")],
            "preferredVersion": version("v1")});
        let resources = |version: &str, names: Value| json!({"kind": "APIResourceList", "groupVersion": version, "resources": names});
        let resource = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get"]});
        let client = client_of(json!({
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
            "/api/v1": resources("v1", json!([])),
            "/apis/g.org/v1": resources("g.org/v1", json!([resource("routes", "Route", true)])),
            "/apis/g.org/v1alpha2": resources("g.org/v1alpha2", json!([
                resource("routes", "Route", false), resource("meshes", "Mesh", false)])),
        }));
        let groups = BTreeSet::from(["g.org".to_owned()]);
        let discovery = discover_catalog(&client, Some(&groups))
            .await
            .expect("discovered");
        let catalog = discovery.catalog;
        assert!(catalog.find("g.org", "Route").expect("preferred").namespaced);
        assert_eq!(
            catalog.find("g.org", "Mesh").expect("discovered").plural,
            "meshes"
        );
    }

    #[tokio::test]
    async fn aggregated_api_that_is_down_is_left_out_and_named() {
        let group = |name: &str| {
            let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
            json!({"name": name, "versions": [version], "preferredVersion": version})
        };
        let pods = json!([{"name": "pods", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["get"]}]);
        let core = json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": pods});
        // Nothing answers for the group of the aggregated server.
        let groups = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group("metrics.k8s.io")]});
        let discovery = discover_catalog(&client_of(json!({"/apis": groups, "/api/v1": core})), None)
            .await
            .expect("discovered");
        assert!(discovery.catalog.find("", "Pod").is_some());
        assert!(
            discovery.unavailable[0].starts_with("metrics.k8s.io/v1 (HTTP "),
            "{:?}",
            discovery.unavailable
        );
        let without_core = discover_catalog(&client_of(json!({"/apis": groups})), None).await;
        assert!(without_core.is_err_and(|e| e.to_string().contains("/api/v1")));
    }

    #[tokio::test]
    async fn service_account_of_others_is_not_taken_over() {
        let account = |labels: Value| {
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "argo", "namespace": "ci", "labels": labels}})
        };
        let own = account(json!({"ostler.dev/plugin-name": "argo"}));
        for (live, is_refused) in [
            (None, false),
            (Some(own.clone()), false),
            (Some(account(json!({}))), true),
            (Some(account(json!({"ostler.dev/plugin-name": "other"}))), true),
        ] {
            let mut objects = json!({});
            if let Some(live) = live {
                objects["/api/v1/namespaces/ci/serviceaccounts/argo"] = live;
            }
            let checked =
                check_ownership(&client_of(objects.clone()), "argo", std::slice::from_ref(&own)).await;
            assert_eq!(checked.is_err(), is_refused, "{objects} {checked:?}");
        }
    }
}
