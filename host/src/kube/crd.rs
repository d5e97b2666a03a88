//! What the CRDs of the host's own kinds have in common.

use kube::CustomResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One aspect of how it is.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Why, in a word.
    pub reason: String,
    /// Why, for people.
    #[serde(default)]
    pub message: String,
    /// Since when the status is what it is.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// The generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A CRD as YAML, as it is checked in under `crds/`.
pub(crate) fn yaml<K: CustomResourceExt>() -> String {
    let mut crd = serde_json::to_value(K::crd()).unwrap_or_default();
    without_unsigned(&mut crd);
    serde_saphyr::to_string(&crd).unwrap_or_default()
}

/// An object of which the API server keeps whatever is in it.
pub(crate) fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Formats that API servers don't know say nothing there.
fn without_unsigned(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let unsigned = |f: &Value| f.as_str().is_some_and(|f| f.starts_with("uint"));
            if fields.get("format").is_some_and(unsigned) {
                fields.remove("format");
            }
            fields.values_mut().for_each(without_unsigned);
        }
        Value::Array(items) => items.iter_mut().for_each(without_unsigned),
        _ => {}
    }
}

/// Fails where a file under `crds/` is not what the types say.
#[cfg(test)]
pub(crate) fn assert_current(file: &str, yaml: &str) {
    let path = format!("{}/../crds/{file}", env!("CARGO_MANIFEST_DIR"));
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(checked_in, yaml, "run: cargo xtask crds");
}
