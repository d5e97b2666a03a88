//! Parts shared by the CRDs of the host's own kinds.

use kube::CustomResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One aspect of the object's state.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, for example Ready.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Machine-readable reason for the status, in CamelCase.
    pub reason: String,
    /// Human-readable explanation of the status.
    #[serde(default)]
    pub message: String,
    /// Time of the last change of the status.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Generation of the spec that the condition was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Renders a CRD as YAML, as it is checked in under `crds/`.
pub(crate) fn render_yaml<K: CustomResourceExt>() -> String {
    let mut crd = serde_json::to_value(K::crd()).unwrap_or_default();
    strip_unsigned_formats(&mut crd);
    serde_saphyr::to_string(&crd).unwrap_or_default()
}

/// The schema of an object whose unknown fields the API server preserves.
pub(crate) fn any_object_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Removes the `uint…` formats: API servers do not know them and ignore them.
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

/// Fails when a file under `crds/` differs from the YAML rendered from the types.
#[cfg(test)]
pub(crate) fn assert_crd_current(file: &str, yaml: &str) {
    let path = format!("{}/../crds/{file}", env!("CARGO_MANIFEST_DIR"));
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(checked_in, yaml, "run: cargo xtask crds");
}
