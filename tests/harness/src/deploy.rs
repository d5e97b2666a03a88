//! The rights of plugins as `ostler plugin install` derives them, for the tests and for the manifests in `deploy/`.

use std::sync::Arc;

use ostler::testing::{
    engine::{CompileCache, Engine},
    grants::{Grants, ServiceAccount},
    limits::PluginLimits,
    plugin::{self, install::reconciled_kinds},
    rbac::{ApiResource, PluginRights, ResourceCatalog, RightsObjects, RightsRequest, rights_objects},
};
use serde_json::Value;

use crate::{compiled_dir, read_component, workspace_root};

/// The objects with the rights of components (`PACK/NAME`), as plugins of that name in these grants, for objects in a
/// namespace.
pub async fn render_rights(
    components: &[&str],
    grants: &Grants,
    namespace: &str,
    host: &ServiceAccount,
) -> Vec<Value> {
    let limits = PluginLimits::default();
    let cache = CompileCache {
        directory: compiled_dir(),
        compiler: None,
    };
    let engine = Arc::new(Engine::new(4, limits.memory, Some(cache), None).expect("an engine"));
    let (catalog, namespaces) = (read_catalog(), [namespace.to_owned()]);
    let mut objects: Vec<Value> = Vec::new();
    for component in components {
        let wasm = read_component(component);
        let build = plugin::load(&engine, wasm, None, &Grants::default(), &limits)
            .await
            .unwrap_or_else(|e| panic!("{component}: {e}"));
        let granted = grants.grants_for(build.name());
        let account = granted.service_account().expect("each plugin has an account");
        let rights = PluginRights::derive(RightsRequest {
            permissions: granted.granted(),
            reconciled: &reconciled_kinds(&build),
            handles_messages: build.messages,
            namespaces: &namespaces,
            catalog: &catalog,
        });
        objects.extend(rights_objects(&RightsObjects {
            plugin: build.name(),
            account,
            host,
            namespaces: &namespaces,
            rights: &rights,
        }));
    }
    objects
}

/// The resources of the CustomResourceDefinitions in `crds/`.
fn read_catalog() -> ResourceCatalog {
    let mut catalog = ResourceCatalog::default();
    for entry in std::fs::read_dir(workspace_root().join("crds")).expect("crds/") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a CRD");
        let crd: Value = serde_saphyr::from_str(&text).expect("YAML");
        let text = |value: &Value| value.as_str().expect("a word").to_owned();
        let spec = &crd["spec"];
        catalog.add(ApiResource {
            group: text(&spec["group"]),
            kind: text(&spec["names"]["kind"]),
            plural: text(&spec["names"]["plural"]),
            namespaced: spec["scope"] == "Namespaced",
            has_status: spec["versions"][0]["subresources"].get("status").is_some(),
        });
    }
    catalog
}
