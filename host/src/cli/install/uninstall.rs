//! `ostler uninstall`: the host, its plugins and their rights, until the cluster is as it was before.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount},
        rbac::v1::ClusterRoleBinding,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    HOST_NAME, MANAGED_BY_LABEL, MANAGER,
    chart::{Release, list_all_objects},
    rollout::list_pods,
};
use crate::{
    cli::{
        apply::{FIELD_MANAGER, InstalledObject, delete_objects, read_live},
        kubeconfig::KubeContext,
        object_api::list_served,
        parse_duration,
        plugin::uninstall_plugin,
    },
    kube::{
        secret_view::DIGEST_KEY_SECRET,
        well_known::{annotation, bookkeeping},
    },
    plugin::spec::PluginObject,
    policy::rbac::{HOST_CLUSTER_ROLE, HOST_NAMESPACE, LEASE_NAME},
    reconcile::former_builds::KindFinalizer,
};

/// Maximum number of objects that an error names.
const MAX_NAMED_OBJECTS: usize = 5;
/// Interval between checks if the pods of the host are gone.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// What every namespace has by itself.
const AUTHORITY_CONFIG_MAP: &str = "kube-root-ca.crt";

/// Arguments of `ostler uninstall`.
#[derive(Args)]
#[command(
    after_help = "Objects that plugins reconcile, and their CustomResourceDefinitions, stay. Those that have the finalizer of a plugin are \
                  listed, and nothing is changed until they are gone, or let go with --orphan.\n\nExit codes: 0 uninstalled; 1 otherwise."
)]
pub struct HostUninstall {
    /// Namespace of the host.
    #[arg(short, long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    namespace: String,
    /// Remove the finalizers of plugins from objects without cleanup: what the objects stand for stays.
    #[arg(long)]
    orphan: bool,
    /// Time to wait for each plugin, and for the pods of the host, to end.
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    context: KubeContext,
}

impl HostUninstall {
    /// Deletes the plugins while the host can still clean up, then the host, and what it leaves.
    pub async fn run(self) -> anyhow::Result<()> {
        let client = self.context.connect().await?;
        let release = Release {
            namespace: &self.namespace,
            service: MANAGER,
        };
        let mut objects = list_all_objects(release)?;
        objects.reverse();
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &self.namespace);
        let deployment = deployments
            .get_opt(HOST_NAME)
            .await
            .context("reading the Deployment")?;
        check_manager(deployment.as_ref())?;
        let plugins = list_served::<PluginObject>(&client).await?;
        let shares = self.find_other_hosts(&client).await?;
        if !shares.is_empty() && !plugins.is_empty() {
            eprintln!(
                "the plugins stay, since other hosts may reconcile them: {}",
                shares.join(", ")
            );
        } else {
            self.delete_plugins(&client, &plugins).await?;
        }
        let host = list_live(&client, &objects, |kind| kind == "Deployment").await?;
        delete_objects(&client, &host).await?;
        self.wait_pods_gone(&client).await?;
        let is_shared = |kind: &str| matches!(kind, "ClusterRole" | "CustomResourceDefinition");
        let rest = list_live(&client, &objects, |kind| kind != "Deployment" && !is_shared(kind)).await?;
        delete_objects(&client, &rest).await?;
        self.delete_own_objects(&client).await?;
        if shares.is_empty() {
            let roles = list_live(&client, &objects, |kind| kind == "ClusterRole").await?;
            delete_objects(&client, &roles).await?;
            delete_unused_kinds(&client, &objects).await?;
        } else {
            println!(
                "ClusterRoles and CustomResourceDefinitions stay for other hosts: {}",
                shares.join(", ")
            );
        }
        self.delete_namespace(&client).await
    }

    /// Deletes all Plugins, unless objects need them for their cleanup.
    async fn delete_plugins(&self, client: &Client, plugins: &[PluginObject]) -> anyhow::Result<()> {
        let mut left = Vec::new();
        for plugin in plugins {
            left.extend(list_finalized_objects(client, plugin).await?);
        }
        if !left.is_empty() && !self.orphan {
            let named = &left[..left.len().min(MAX_NAMED_OBJECTS)];
            let more = if named.len() < left.len() { ", …" } else { "" };
            bail!(
                "nothing was changed: {} objects have a finalizer that only their plugin removes ({}{more}). Delete them first, or let \
                 them go without cleanup with --orphan",
                left.len(),
                named.join(", ")
            );
        }
        let api: Api<PluginObject> = Api::all(client.clone());
        for plugin in plugins {
            let name = plugin.name_any();
            if self.orphan {
                let orphaned = json!({"metadata": {"annotations": {annotation::DELETION_POLICY: "Orphan"}}});
                let parameters = PatchParams {
                    field_manager: Some(FIELD_MANAGER.into()),
                    ..PatchParams::default()
                };
                let patched = api.patch(&name, &parameters, &Patch::Merge(orphaned)).await;
                patched.with_context(|| format!("annotating Plugin {name}"))?;
            }
            uninstall_plugin(client, &name, self.timeout).await?;
        }
        Ok(())
    }

    /// Namespaces of other hosts, which are known by the bindings of their accounts.
    async fn find_other_hosts(&self, client: &Client) -> anyhow::Result<Vec<String>> {
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        let bindings = bindings
            .list(&ListParams::default())
            .await
            .context("listing ClusterRoleBindings")?;
        let hosts = bindings
            .items
            .into_iter()
            .filter(|binding| binding.role_ref.name == HOST_CLUSTER_ROLE);
        let accounts = hosts.flat_map(|binding| binding.subjects.unwrap_or_default());
        let namespaces = accounts.filter_map(|account| account.namespace);
        Ok(namespaces
            .filter(|namespace| *namespace != self.namespace)
            .collect())
    }

    async fn wait_pods_gone(&self, client: &Client) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let left = list_pods(client, &self.namespace).await?;
            let Some(pod) = left.first() else {
                return Ok(());
            };
            if Instant::now() > deadline {
                bail!(
                    "pod {} has not ended: repeat the command when it has",
                    pod.name_any()
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Deletes what the host has made for itself.
    async fn delete_own_objects(&self, client: &Client) -> anyhow::Result<()> {
        let own = [
            (ApiResource::erase::<Lease>(&()), LEASE_NAME),
            (ApiResource::erase::<Secret>(&()), DIGEST_KEY_SECRET),
        ];
        let own = own.map(|(resource, name)| InstalledObject {
            resource,
            namespace: Some(self.namespace.clone()),
            name: name.to_owned(),
        });
        delete_objects(client, &own).await
    }

    /// Deletes the namespace if an installation has made it and nothing of others is in it.
    async fn delete_namespace(&self, client: &Client) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let found = namespaces
            .get_opt(&self.namespace)
            .await
            .context("reading the Namespace")?;
        let is_own = |namespace: &Namespace| is_managed(namespace.labels().get(MANAGED_BY_LABEL));
        let Some(namespace) = found.filter(is_own) else {
            return Ok(());
        };
        let mut others = Vec::new();
        others.extend(list_names::<Pod>(client, &self.namespace).await?);
        others.extend(list_names::<Secret>(client, &self.namespace).await?);
        let config_maps = list_names::<ConfigMap>(client, &self.namespace).await?;
        others.extend(
            config_maps
                .into_iter()
                .filter(|name| !name.ends_with(AUTHORITY_CONFIG_MAP)),
        );
        let accounts = list_names::<ServiceAccount>(client, &self.namespace).await?;
        others.extend(accounts.into_iter().filter(|name| !name.ends_with(" default")));
        if let Some(first) = others.first() {
            println!("Namespace {} stays: {first} is in it", self.namespace);
            return Ok(());
        }
        let resource = ApiResource::erase::<Namespace>(&());
        let object = InstalledObject {
            resource,
            namespace: None,
            name: namespace.name_any(),
        };
        delete_objects(client, &[object]).await
    }
}

/// Refuses to delete the host of another manager.
fn check_manager(deployment: Option<&Deployment>) -> anyhow::Result<()> {
    let Some(deployment) = deployment else {
        return Ok(());
    };
    match deployment.labels().get(MANAGED_BY_LABEL).map(String::as_str) {
        Some(MANAGER) => Ok(()),
        Some("Helm") => bail!("nothing was changed, since the host is managed by Helm: use `helm uninstall`"),
        other => bail!(
            "nothing was changed, since the host is managed by {}: delete it with that",
            other.unwrap_or("somebody else")
        ),
    }
}

fn is_managed(label: Option<&String>) -> bool {
    label.is_some_and(|label| label == MANAGER)
}

/// Names the objects on this cluster that have a finalizer of the builds of a plugin.
async fn list_finalized_objects(client: &Client, plugin: &PluginObject) -> anyhow::Result<Vec<String>> {
    let recorded = plugin.annotations().get(bookkeeping::BUILD_FINALIZERS);
    let mut found = Vec::new();
    let recorded = KindFinalizer::parse_list(recorded.map(String::as_str).unwrap_or_default());
    for KindFinalizer { gvk, finalizer, .. } in recorded
        .into_iter()
        .filter(|recorded| recorded.cluster.is_empty())
    {
        let gvk = GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind);
        let Ok((resource, _)) = kube::discovery::pinned_kind(client, &gvk).await else {
            continue;
        };
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let listed = all.list_metadata(&ListParams::default()).await;
        for object in listed.with_context(|| format!("listing objects of kind {}", gvk.kind))? {
            if object.finalizers().iter().any(|own| **own == *finalizer) {
                let namespace = object.namespace().map(|n| n + "/").unwrap_or_default();
                found.push(format!("{} {namespace}{}", gvk.kind, object.name_any()));
            }
        }
    }
    Ok(found)
}

/// The objects of the chart that exist and that an installation has applied, of some kinds.
async fn list_live(
    client: &Client,
    objects: &[Value],
    is_wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<InstalledObject>> {
    let mut found = Vec::new();
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        if !is_wanted(kind) {
            continue;
        }
        let Some(live) = read_live(client, object).await? else {
            continue;
        };
        let Some(types) = live
            .types
            .as_ref()
            .filter(|_| is_managed(live.labels().get(MANAGED_BY_LABEL)))
        else {
            continue;
        };
        found.push(InstalledObject {
            resource: ApiResource::from_gvk(&GroupVersionKind::try_from(types)?),
            namespace: live.namespace(),
            name: live.name_any(),
        });
    }
    Ok(found)
}

/// Deletes the kinds of `ostler.dev` that have no objects: with a kind its objects are deleted, which are of users.
async fn delete_unused_kinds(client: &Client, objects: &[Value]) -> anyhow::Result<()> {
    let kinds = list_live(client, objects, |kind| kind == "CustomResourceDefinition").await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for kind in kinds {
        let Some(definition) = definitions.get_opt(&kind.name).await? else {
            continue;
        };
        let spec = &definition.spec;
        let version = spec
            .versions
            .iter()
            .find(|version| version.served)
            .map(|version| &*version.name);
        let gvk = GroupVersionKind::gvk(&spec.group, version.unwrap_or_default(), &spec.names.kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, &spec.names.plural);
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let used = all.list_metadata(&ListParams::default().limit(1)).await;
        match used
            .with_context(|| format!("listing {}", kind.name))?
            .items
            .first()
        {
            None => delete_objects(client, &[kind]).await?,
            Some(object) => println!(
                "CustomResourceDefinition {} stays: {} {} is of its kind",
                kind.name,
                spec.names.kind,
                object.name_any()
            ),
        }
    }
    Ok(())
}

/// Names the objects of a kind in a namespace, such as `Secret credentials`.
async fn list_names<K>(client: &Client, namespace: &str) -> anyhow::Result<Vec<String>>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let kind = K::kind(&());
    let listed = api.list_metadata(&ListParams::default()).await;
    let listed = listed.with_context(|| format!("listing objects of kind {kind}"))?;
    let names = listed
        .items
        .iter()
        .map(|object| format!("{kind} {}", object.name_any()));
    Ok(names.collect())
}
