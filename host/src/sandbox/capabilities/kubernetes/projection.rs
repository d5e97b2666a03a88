//! Projections: the part of an object that a component reads.

use serde_json::{Map, Value, json};

use crate::{contract::bindings::kubernetes::Projection, kube::scope::Projection as CacheProjection};

/// Returns the projection of the shared cache that a read needs.
pub(super) fn cache_projection(projection: &Projection) -> CacheProjection {
    let is_metadata = |field: &String| field.split('.').next() == Some("metadata");
    match projection {
        Projection::Metadata => CacheProjection::Metadata,
        Projection::Fields(fields) if !fields.is_empty() && fields.iter().all(is_metadata) => {
            CacheProjection::Metadata
        }
        Projection::Full | Projection::Fields(_) => CacheProjection::Full,
    }
}

/// Returns the JSON of the projected fields, always with the identity of the object.
pub(super) fn project_fields(whole: &Value, projection: &Projection) -> Vec<u8> {
    let fields = match projection {
        Projection::Full => return whole.to_string().into_bytes(),
        Projection::Metadata => &["metadata".to_owned()][..],
        Projection::Fields(fields) => fields,
    };
    let mut part = json!({"apiVersion": whole["apiVersion"], "kind": whole["kind"], "metadata": {}});
    for identity in ["name", "namespace", "uid", "resourceVersion", "generation"] {
        if let Some(value) = whole["metadata"].get(identity) {
            part["metadata"][identity] = value.clone();
        }
    }
    for field in fields {
        copy_field(whole, &mut part, &field.split('.').collect::<Vec<_>>());
    }
    serde_json::to_vec(&part).unwrap_or_default()
}

/// Copies the field at a path from one object to another.
fn copy_field(from: &Value, to: &mut Value, path: &[&str]) {
    let [first, rest @ ..] = path else { return };
    let Some(value) = from.get(first) else { return };
    let Some(to) = to.as_object_mut() else { return };
    if rest.is_empty() {
        to.insert((*first).to_owned(), value.clone());
    } else {
        copy_field(
            value,
            to.entry(*first).or_insert_with(|| Value::Object(Map::new())),
            rest,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::{key::Gvk, object::KubeObject};

    #[test]
    fn metadata_projection_reads_only_metadata() {
        let json = br#"{"metadata":{"name":"x","labels":{"a":"b"}},"spec":{"s":1},"status":{"t":2}}"#;
        let (_, object) = KubeObject::parse(&Gvk::new("g", "v1", "Thing"), json).expect("an object");
        let read = |projection| -> Value {
            serde_json::from_slice(&project_fields(&object.to_value(), &projection)).expect("JSON")
        };
        let metadata = read(Projection::Metadata);
        assert_eq!(metadata["metadata"]["labels"]["a"], "b");
        assert!(
            metadata.get("spec").is_none() && metadata.get("status").is_none(),
            "{metadata}"
        );
        assert_eq!(metadata["kind"], "Thing");
        assert_eq!(cache_projection(&Projection::Metadata), CacheProjection::Metadata);
        let fields = Projection::Fields(vec!["spec".into(), "metadata.labels".into()]);
        assert_eq!(cache_projection(&fields), CacheProjection::Full);
        let part = read(fields);
        assert_eq!(
            (&part["spec"]["s"], &part["metadata"]["name"]),
            (&json!(1), &json!("x"))
        );
        assert_eq!(
            cache_projection(&Projection::Fields(vec!["metadata.labels".into()])),
            CacheProjection::Metadata
        );
        assert_eq!(
            cache_projection(&Projection::Fields(vec![])),
            CacheProjection::Full
        );
    }
}
