//! Changes that a plan starts with: objects of files, and deletions.

use std::sync::Arc;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{
    PLAN_SYNC_TIMEOUT, PlanRequest, Planner,
    diff::LAST_APPLIED,
    merge::{set_field, three_way_patch},
};
use crate::{
    client::api::{ApiError, PatchType, ServedResource, parse_response},
    kube::{
        key::{Gvk, ObjectRef},
        scope::Projection,
    },
    plugin::Plugin,
    sandbox::services::SharedCache,
};

impl Planner {
    /// Applies the objects of the files to the overlay, as the server would accept them. Returns their references.
    pub(super) async fn apply_files(&self, plan_request: &PlanRequest) -> anyhow::Result<Vec<ObjectRef>> {
        let mut intended = Vec::new();
        for (file, object) in &plan_request.files {
            self.overlay.begin_run(file, None);
            let key = self.apply_file(plan_request, object.clone()).await;
            intended.push(key.with_context(|| file.clone())?);
            self.overlay.end_run(&[]);
        }
        Ok(intended)
    }

    async fn apply_file(&self, plan_request: &PlanRequest, mut object: Value) -> anyhow::Result<ObjectRef> {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        for (field, value) in [
            ("apiVersion", api_version),
            ("kind", kind),
            ("metadata.name", name),
        ] {
            if value.is_empty() {
                bail!("{field} is missing: every document must be a Kubernetes object");
            }
        }
        let gvk = Gvk::from_api_version(api_version, kind);
        let resource = self.cluster.discover_resource(&gvk).await?;
        let namespace = match (resource.namespaced, text("/metadata/namespace")) {
            (false, _) => String::new(),
            (true, "") => plan_request.default_namespace.clone(),
            (true, namespace) => namespace.to_owned(),
        };
        let key = ObjectRef::new(gvk, &namespace, name);
        if resource.namespaced {
            object["metadata"]["namespace"] = namespace.into();
        }
        set_field(&mut object, "status", None);
        for field in [
            "creationTimestamp",
            "generation",
            "managedFields",
            "resourceVersion",
            "uid",
        ] {
            set_field(&mut object["metadata"], field, None);
        }
        let written = self.kubectl_apply(&key, &resource, &object).await;
        written.with_context(|| key.to_string())?;
        Ok(key)
    }

    /// Writes an object as `kubectl apply` would: server-side if the live object was applied server-side, else by a
    /// three-way merge.
    async fn kubectl_apply(
        &self,
        key: &ObjectRef,
        resource: &ServedResource,
        object: &Value,
    ) -> Result<(), ApiError> {
        let path = resource.object(key);
        let body = |value: &Value| value.to_string().into_bytes();
        let live: Value = match self.cluster.get(&path).await {
            Ok(bytes) => parse_response(&bytes)?,
            Err(e) if e.code() == 404 => {
                let collection = resource.collection(&key.namespace);
                let path = format!("{collection}?fieldManager=kubectl-client-side-apply");
                return self.cluster.create(&path, body(object)).await.map(drop);
            }
            Err(e) => return Err(e),
        };
        let managers = live["metadata"]["managedFields"].as_array();
        let server_side = |m: &Value| m["manager"] == "kubectl" && m["operation"] == "Apply";
        if managers.into_iter().flatten().any(server_side) {
            let path = format!("{path}?fieldManager=kubectl&force=true");
            return self
                .cluster
                .patch(&path, PatchType::Apply, body(object))
                .await
                .map(drop);
        }
        let last = &live["metadata"]["annotations"][LAST_APPLIED];
        let last: Option<Value> = last.as_str().and_then(|text| serde_json::from_str(text).ok());
        let mut object = object.clone();
        if object["metadata"]["annotations"].is_null() {
            // kubectl would write its annotation here. The empty map keeps `three_way_patch` from removing the annotations as
            // a whole; only those of the last applied configuration are removed.
            object["metadata"]["annotations"] = json!({});
        }
        let patch = three_way_patch(last.as_ref(), &object, &live);
        let path = format!("{path}?fieldManager=kubectl-client-side-apply");
        self.cluster
            .patch(&path, PatchType::Merge, body(&patch))
            .await
            .map(drop)
    }

    /// Lists the kinds that the plugin of an object may write: dependents among them are deleted with the object.
    pub(super) async fn list_owned_kinds(&self, key: &ObjectRef, serving: &[Arc<Plugin>]) {
        let SharedCache {
            informers,
            namespaces,
            ..
        } = &*self.services.cache;
        let plugin = serving.iter().find(|p| p.kind(&key.gvk).is_some());
        for (group, kind) in plugin.into_iter().flat_map(|p| p.policy.grants.writable_kinds()) {
            let Ok(gvk) = self.cluster.discover_preferred(group, kind).await else {
                continue;
            };
            let scope = namespaces.list_scope(&gvk, &"".into(), &key.namespace, None, Projection::Full);
            if let Err(why) = informers.wait_synced(&scope, PLAN_SYNC_TIMEOUT).await {
                tracing::debug!(kind = %gvk, error = %why, "listing objects failed");
            }
        }
    }

    pub(super) async fn delete_object(&self, key: &ObjectRef) -> anyhow::Result<()> {
        let path = self.cluster.discover_resource(&key.gvk).await?.object(key);
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        self.overlay.begin_run("--delete", None);
        let deleted = self.cluster.delete(&path, options.to_string().into_bytes()).await;
        self.overlay.end_run(&[]);
        deleted.with_context(|| key.to_string())?;
        Ok(())
    }
}
