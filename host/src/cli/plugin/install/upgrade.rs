//! The upgrade of an installed plugin: the signatures that it requires, the objects that only it can clean up, and the order in
//! which the former build loses its rights.

use std::collections::BTreeSet;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PartialObjectMeta},
};
use serde_json::Value;

use crate::{
    cli::{
        apply::{describe_object, read_live},
        object_api::api_of,
    },
    kube::key::Gvk,
    plugin::{
        PluginKind,
        spec::{KeyName, VerifySpec},
    },
    policy::{grants::Permissions, rbac::ResourceCatalog},
    supply::signature::{PublicKey, SignaturePolicy},
};

/// Maximum number of objects that an error names.
const MAX_NAMED_OBJECTS: usize = 3;

/// Reads the signature policy of an installed plugin, with the keys in ConfigMaps and Secrets.
pub async fn read_signature_policy(client: &Client, verify: &VerifySpec) -> anyhow::Result<SignaturePolicy> {
    let mut keys = Vec::new();
    for (i, pem) in verify.keys.iter().enumerate() {
        keys.push(PublicKey::from_pem(pem).with_context(|| format!("spec.verify.keys[{i}]"))?);
    }
    for (i, source) in verify.keys_from.iter().enumerate() {
        let pem = match (&source.config_map_key_ref, &source.secret_key_ref) {
            (Some(name), None) => read_config_map_key(client, name).await?,
            (None, Some(name)) => read_secret_key(client, name).await?,
            _ => {
                bail!("spec.verify.keysFrom[{i}]: exactly one of configMapKeyRef and secretKeyRef is needed")
            }
        };
        keys.push(PublicKey::from_pem(&pem).with_context(|| format!("spec.verify.keysFrom[{i}]"))?);
    }
    if keys.is_empty() {
        bail!("spec.verify: keys or keysFrom is needed");
    }
    Ok(verify.build_policy(keys))
}

async fn read_config_map_key(client: &Client, name: &KeyName) -> anyhow::Result<String> {
    let shown = describe_object("ConfigMap", Some(&name.namespace), &name.name);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &name.namespace);
    let map = api
        .get(&name.name)
        .await
        .with_context(|| format!("reading {shown}"))?;
    let value = map.data.unwrap_or_default().remove(&name.key);
    value.with_context(|| format!("{shown} has no key `{}`", name.key))
}

async fn read_secret_key(client: &Client, name: &KeyName) -> anyhow::Result<String> {
    let shown = describe_object("Secret", Some(&name.namespace), &name.name);
    let api: Api<Secret> = Api::namespaced(client.clone(), &name.namespace);
    let secret = api
        .get(&name.name)
        .await
        .with_context(|| format!("reading {shown}"))?;
    let value = secret.data.unwrap_or_default().remove(&name.key);
    let value = value.with_context(|| format!("{shown} has no key `{}`", name.key))?;
    // The bytes of a Secret are in no error.
    String::from_utf8(value.0).map_err(|_| anyhow::anyhow!("{shown}: `{}` is no PEM", name.key))
}

/// Checks that no object with a finalizer of the plugin is in a namespace that an upgrade takes from it: nothing would remove the
/// finalizer any more.
pub async fn check_finalizers(
    client: &Client,
    kinds: &[PluginKind],
    catalog: &ResourceCatalog,
    former: &Permissions,
    grants: &Permissions,
) -> anyhow::Result<()> {
    for kind in kinds {
        let Some(finalizer) = kind.finalizer.as_deref() else {
            continue;
        };
        let Some(resource) = catalog.find(&kind.gvk.group, &kind.gvk.kind) else {
            continue;
        };
        let (before, now) = (
            list_namespaces(former, &kind.gvk),
            list_namespaces(grants, &kind.gvk),
        );
        if !resource.namespaced || now.contains("*") || before.is_subset(&now) {
            continue;
        }
        let gvk = GroupVersionKind::gvk(&kind.gvk.group, &kind.gvk.version, &kind.gvk.kind);
        let types = ApiResource::from_gvk_with_plural(&gvk, &resource.plural);
        let left: Vec<Option<&str>> = match before.contains("*") {
            true => vec![None],
            false => before
                .difference(&now)
                .map(|namespace| Some(*namespace))
                .collect(),
        };
        let mut found = Vec::new();
        for namespace in left {
            let listed = api_of(client, &types, namespace)
                .list_metadata(&ListParams::default())
                .await;
            let listed = listed.with_context(|| format!("listing objects of kind {}", kind.gvk.kind))?;
            let is_left = |object: &&PartialObjectMeta<DynamicObject>| {
                let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
                object.finalizers().iter().any(|f| f == finalizer) && !now.contains(namespace)
            };
            let names =
                listed.items.iter().filter(is_left).map(|object| {
                    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
                });
            found.extend(names);
        }
        if !found.is_empty() {
            let named = &found[..found.len().min(MAX_NAMED_OBJECTS)];
            let more = if named.len() < found.len() { ", …" } else { "" };
            bail!(
                "nothing was changed: {} objects of kind {} are in namespaces that the plugin would lose ({}{more}), and only \
                 the plugin removes their finalizer {finalizer}: delete them first, or keep the namespaces with --namespace",
                found.len(),
                kind.gvk.kind,
                named.join(", ")
            );
        }
    }
    Ok(())
}

/// The namespaces in which permissions let a kind be reconciled.
fn list_namespaces<'a>(permissions: &'a Permissions, gvk: &Gvk) -> BTreeSet<&'a str> {
    let covering = permissions.reconciles.iter().filter(|entry| entry.covers(gvk));
    covering
        .flat_map(|entry| &entry.namespaces)
        .map(String::as_str)
        .collect()
}

/// Lines of the places where the account of an installed plugin has no role yet. The permissions of a plugin that reconciles no
/// kind do not show them.
pub async fn find_new_roles(client: &Client, plugin: &str, objects: &[Value]) -> anyhow::Result<Vec<String>> {
    let name = format!("ostler:{plugin}");
    let mut lines = Vec::new();
    for object in objects {
        let is_role = matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"));
        if !is_role || object["metadata"]["name"] != *name || read_live(client, object).await?.is_some() {
            continue;
        }
        lines.push(match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("have a role in namespace {namespace}"),
            None => "have a role in all namespaces".to_owned(),
        });
    }
    Ok(lines)
}

/// Adds the rules and subjects of the live roles and bindings to those of an installation: the former build keeps its rights
/// until the new one serves.
pub async fn add_live_rights(client: &Client, objects: &[Value]) -> anyhow::Result<Vec<Value>> {
    let mut merged = Vec::new();
    for object in objects {
        let mut object = object.clone();
        for field in ["rules", "subjects"] {
            if object[field].is_null() {
                continue;
            }
            if let Some(live) = read_live(client, &object).await? {
                add_items(&mut object[field], &live.data[field]);
            }
        }
        merged.push(object);
    }
    Ok(merged)
}

/// Adds the items of a list that another one does not have. The API server sets the group of a subject.
fn add_items(list: &mut Value, live: &Value) {
    let (Value::Array(list), Value::Array(live)) = (list, live) else {
        return;
    };
    for item in live {
        let mut item = item.clone();
        if item["apiGroup"] == ""
            && let Some(fields) = item.as_object_mut()
        {
            fields.remove("apiGroup");
        }
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_and_subjects_of_the_former_build_are_kept_once() {
        let rule = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
        let mut rules = json!([rule("pods")]);
        add_items(&mut rules, &json!([rule("secrets"), rule("pods")]));
        assert_eq!(rules, json!([rule("pods"), rule("secrets")]));
        let account =
            |namespace: &str| json!({"kind": "ServiceAccount", "name": "p", "namespace": namespace});
        let mut subjects = json!([account("ostler-system")]);
        let mut live = account("ci");
        live["apiGroup"] = "".into();
        add_items(&mut subjects, &json!([live]));
        assert_eq!(subjects, json!([account("ostler-system"), account("ci")]));
        add_items(&mut subjects, &Value::Null);
        assert_eq!(subjects.as_array().map(Vec::len), Some(2));
    }
}
