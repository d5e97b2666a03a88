//! Access to objects through the API server, as with kubectl.

use std::{sync::atomic::Ordering, time::Duration};

use kube::{
    api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use ostler::testing::key::Gvk;
use serde_json::Value;

use super::Lab;

/// Interval of repeats of a request that the API server throttles (429), as it does while it initializes the storage of a kind
/// whose definition has changed.
const THROTTLED_INTERVAL: Duration = Duration::from_millis(100);

async fn repeat_throttled<T, F: Future<Output = kube::Result<T>>>(send: impl Fn() -> F) -> kube::Result<T> {
    loop {
        match send().await {
            Err(kube::Error::Api(status)) if status.code == 429 => {
                tokio::time::sleep(THROTTLED_INTERVAL).await;
            }
            answer => return answer,
        }
    }
}

impl Lab {
    /// Returns the API of a kind. An empty namespace stands for cluster-scoped kinds.
    pub fn api(&self, gvk: &Gvk, namespace: &str) -> Api<DynamicObject> {
        let kube_gvk = GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind);
        let resource = match kube_gvk.kind.as_str() {
            // The kind is a plural already, which the other function cannot know.
            "GitCredentials" => ApiResource::from_gvk_with_plural(&kube_gvk, "gitcredentials"),
            _ => ApiResource::from_gvk(&kube_gvk),
        };
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }

    fn api_of(&self, object: &Value) -> (Api<DynamicObject>, String) {
        let text = |p: &str| object.pointer(p).and_then(Value::as_str).unwrap_or("");
        let gvk = Gvk::from_api_version(text("/apiVersion"), text("/kind"));
        (
            self.api(&gvk, text("/metadata/namespace")),
            text("/metadata/name").to_owned(),
        )
    }

    /// Applies an object, as `kubectl apply --server-side` does.
    pub async fn apply(&self, object: Value) -> Value {
        self.try_apply(object).await.expect("applied")
    }

    /// Applies an object and returns the server's error when it is refused.
    ///
    /// # Panics
    /// It is a Plugin of a name that other tests may use, on a server that they share, and the test has not locked them.
    pub async fn try_apply(&self, object: Value) -> Result<Value, kube::Error> {
        let (api, name) = self.api_of(&object);
        let is_own = self.embedded.is_some() || object["kind"] != "Plugin" || name.contains(&self.namespace);
        assert!(
            is_own || self.has_plugin_lock.load(Ordering::Relaxed),
            "Plugin {name} is in no namespace, and other tests share the server: call lock_plugin before"
        );
        let parameters = PatchParams::apply("test").force();
        let applied = api.patch(&name, &parameters, &Patch::Apply(&object)).await?;
        Ok(serde_json::to_value(applied).expect("JSON"))
    }

    /// Applies all documents of a YAML text.
    pub async fn apply_yaml(&self, yaml: &str) {
        for document in parse_documents(yaml) {
            self.apply(document).await;
        }
    }

    /// Reads an object of this test's namespace; `None` when it does not exist.
    pub async fn get(&self, gvk: &Gvk, name: &str) -> Option<Value> {
        let api = self.api(gvk, &self.namespace);
        let found = repeat_throttled(|| api.get_opt(name)).await.expect("a response");
        found.map(|object| serde_json::to_value(object).expect("JSON"))
    }

    /// Lists the objects of a kind in this test's namespace.
    pub async fn list(&self, gvk: &Gvk) -> Vec<Value> {
        let api = self.api(gvk, &self.namespace);
        let parameters = ListParams::default();
        let list = repeat_throttled(|| api.list(&parameters)).await.expect("a list");
        list.items
            .into_iter()
            .map(|o| serde_json::to_value(o).expect("JSON"))
            .collect()
    }

    /// Deletes an object, without waiting for its finalizers.
    pub async fn delete(&self, gvk: &Gvk, name: &str) {
        let api = self.api(gvk, &self.namespace);
        api.delete(name, &DeleteParams::default())
            .await
            .expect("deletion is accepted");
    }

    /// Deletes an object that may be gone already, because its owner was deleted before.
    pub async fn delete_if_present(&self, gvk: &Gvk, name: &str) {
        match self
            .api(gvk, &self.namespace)
            .delete(name, &DeleteParams::default())
            .await
        {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => panic!("deletion of {}/{name}: {error}", gvk.kind),
        }
    }

    /// Merge-patches an object.
    pub async fn patch(&self, gvk: &Gvk, name: &str, patch: Value) -> Value {
        let api = self.api(gvk, &self.namespace);
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("patched");
        serde_json::to_value(patched).expect("JSON")
    }
}

/// Parses the documents of a YAML text, without those that have only comments.
pub(super) fn parse_documents(yaml: &str) -> Vec<Value> {
    let documents = yaml.split("\n---").filter(|document| {
        let mut lines = document.lines();
        lines.any(|line| !line.trim().is_empty() && !line.starts_with('#'))
    });
    documents
        .map(|document| serde_saphyr::from_str(document).expect("YAML"))
        .collect()
}
