//! Parts shared by the CRDs of the host's own kinds.

use kube::CustomResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Condition in the status of an object, as in `metav1.Condition`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition in CamelCase.
    #[serde(rename = "type")]
    pub kind: String,
    /// Status of the condition: `True`, `False` or `Unknown`.
    pub status: String,
    /// Machine-readable reason for the last transition, in CamelCase.
    pub reason: String,
    /// Human-readable details of the last transition.
    #[serde(default)]
    pub message: String,
    /// Time at which the status last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Generation of the spec that this condition describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A CustomResourceDefinition as YAML, as it is checked in under `crds/`.
pub(crate) fn render_yaml<K: CustomResourceExt>() -> String {
    let mut crd = serde_json::to_value(K::crd()).unwrap_or_default();
    strip_unsigned_formats(&mut crd);
    serde_saphyr::to_string(&crd).unwrap_or_default()
}

/// Schema of an object whose fields the API server does not prune.
pub(crate) fn any_object_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Removes the unsigned integer formats, which API servers do not know.
fn strip_unsigned_formats(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let unsigned = |f: &Value| f.as_str().is_some_and(|f| f.starts_with("uint"));
            if fields.get("format").is_some_and(unsigned) {
                fields.remove("format");
            }
            fields.values_mut().for_each(strip_unsigned_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_unsigned_formats),
        _ => {}
    }
}

/// Fails if a file under `crds/` differs from the CRD generated from the types.
#[cfg(test)]
pub(crate) fn assert_crd_current(file: &str, yaml: &str) {
    let path = format!("{}/../crds/{file}", env!("CARGO_MANIFEST_DIR"));
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(checked_in, yaml, "run: cargo xtask crds");
}
