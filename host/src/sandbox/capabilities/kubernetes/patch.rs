//! Merge patches of a component: their fields, their preconditions, whether they would change anything, and the request.

use serde_json::Value;

use crate::{
    contract::bindings::{kubernetes::Preconditions, types::Error},
    kube::{key::ObjectRef, object::KubeObject},
    sandbox::{capabilities::PluginCall, services::ClusterAccess},
};

impl PluginCall {
    /// Sends a merge patch of an object, or of its subresource of this name unless that is empty. Returns the object.
    pub(super) async fn send_patch(
        &mut self,
        access: &ClusterAccess,
        by: &ObjectRef,
        key: &ObjectRef,
        subresource: &str,
        patch: &Value,
        preconditions: &Preconditions,
    ) -> Result<Vec<u8>, Error> {
        let context = self.context.write_context(access, by);
        let writer = &access.api.writer;
        let patched = writer.patch_with_preconditions(context, key, subresource, patch, preconditions);
        let written = patched.await.map_err(|e| self.map_api_error(access, e))?;
        self.effects.record_write(key, true);
        self.return_object(&key.gvk, &written.object, None)
    }
}

/// Parses a merge patch. The metadata may change in labels and annotations alone: everything else belongs to the API
/// server, or to finalizers and owners that the host maintains.
pub(super) fn parse_patch(patch: &[u8]) -> Result<Value, Error> {
    let invalid = |what: &str| Error::Invalid(format!("patch: {what}"));
    let patch: Value = serde_json::from_slice(patch).map_err(|e| invalid(&e.to_string()))?;
    let Some(fields) = patch.as_object() else {
        return Err(invalid("a JSON object is expected"));
    };
    if let Some(field) = ["apiVersion", "kind"]
        .into_iter()
        .find(|f| fields.contains_key(*f))
    {
        return Err(invalid(&format!("{field} cannot be patched")));
    }
    if let Some(metadata) = fields.get("metadata") {
        let Some(metadata) = metadata.as_object() else {
            return Err(invalid("metadata is not an object"));
        };
        let other = metadata
            .keys()
            .find(|k| !matches!(k.as_str(), "labels" | "annotations"));
        if let Some(field) = other {
            return Err(invalid(&format!(
                "metadata.{field} cannot be patched, only labels and annotations can"
            )));
        }
    }
    Ok(patch)
}

/// Refuses a patch of the status of a kind with the status subresource: it belongs to the controller of the object, and the
/// API server would drop it. Without the subresource it is a field like any other, and a command to the controller may have
/// to clear a part of it in the same write (Argo CD's `operation` and `status.operationState`).
pub(super) fn check_patched_status(patch: &Value, has_subresource: bool) -> Result<(), Error> {
    if has_subresource && patch.get("status").is_some() {
        let message = "patch: status cannot be patched: the kind has the status subresource";
        return Err(Error::Invalid(message.into()));
    }
    Ok(())
}

/// Checks the name of a subresource, which becomes a part of the path. The status belongs to the controller of the object.
pub(super) fn check_subresource(name: &str) -> Result<(), Error> {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return Err(Error::Invalid(format!(
            "subresource {name:?} is not a name (a-z)"
        )));
    }
    if name == "status" {
        return Err(Error::Invalid(
            "subresource status cannot be patched: it belongs to the controller of the object".into(),
        ));
    }
    Ok(())
}

/// Returns whether a merge patch would leave a value unchanged.
pub(super) fn is_applied(patch: &Value, live: &Value) -> bool {
    let Value::Object(patch) = patch else {
        return patch == live;
    };
    // An object replaces a scalar or a list, even if it only removes fields.
    if !live.is_object() {
        return false;
    }
    patch.iter().all(|(key, value)| match (value, live.get(key)) {
        (Value::Null, found) => found.is_none(),
        (value, Some(live)) => is_applied(value, live),
        // RFC 7386 creates an object for a patch that is one, even if it only removes fields.
        (_, None) => false,
    })
}

/// Returns whether an object meets preconditions.
pub(super) fn meets_preconditions(object: &KubeObject, preconditions: &Preconditions) -> bool {
    let version = object.resource_version.to_string();
    preconditions.uid.as_ref().is_none_or(|uid| object.uid == **uid)
        && preconditions
            .resource_version
            .as_ref()
            .is_none_or(|required| *required == version)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patch_error(patch: &Value) -> String {
        match parse_patch(patch.to_string().as_bytes()) {
            Err(Error::Invalid(why)) => why,
            other => panic!("{patch}: {other:?}"),
        }
    }

    #[test]
    fn patch_of_identity_or_foreign_metadata_is_invalid() {
        for (patch, expected) in [
            (json!([]), "a JSON object is expected"),
            (json!({"kind": "Pod"}), "kind cannot be patched"),
            (json!({"metadata": null}), "metadata is not an object"),
            (
                json!({"metadata": {"finalizers": []}}),
                "metadata.finalizers cannot be patched",
            ),
            (
                json!({"metadata": {"ownerReferences": null}}),
                "metadata.ownerReferences",
            ),
            (json!({"metadata": {"uid": "1"}}), "metadata.uid"),
        ] {
            let error = patch_error(&patch);
            assert!(error.contains(expected), "{error}");
        }
        let labels =
            json!({"metadata": {"labels": {"a": null}, "annotations": {"b": "c"}}, "spec": {"x": 1}});
        assert_eq!(parse_patch(labels.to_string().as_bytes()), Ok(labels));
    }

    #[test]
    fn patch_of_status_is_invalid_beside_the_subresource_only() {
        let patch = json!({"operation": {"sync": {}}, "status": {"operationState": null}});
        assert_eq!(parse_patch(patch.to_string().as_bytes()), Ok(patch.clone()));
        assert_eq!(check_patched_status(&patch, false), Ok(()));
        assert!(matches!(
            check_patched_status(&patch, true),
            Err(Error::Invalid(_))
        ));
        assert_eq!(check_patched_status(&json!({"spec": {}}), true), Ok(()));
    }

    #[test]
    fn subresource_status_or_path_is_invalid() {
        assert_eq!(check_subresource("resize"), Ok(()));
        for name in ["", "status", "a/b", "..", "Resize", "resize?dryRun=All"] {
            assert!(
                matches!(check_subresource(name), Err(Error::Invalid(_))),
                "{name}"
            );
        }
    }

    #[test]
    fn patch_that_changes_nothing_is_recognized() {
        let live = json!({"spec": {"a": 1, "l": [1, 2]}, "metadata": {"labels": {"x": "y"}}});
        for patch in [
            json!({}),
            json!({"spec": {"a": 1}}),
            json!({"spec": {"b": null, "l": [1, 2]}}),
            json!({"metadata": {"labels": {"x": "y", "gone": null}}}),
        ] {
            assert!(is_applied(&patch, &live), "{patch}");
        }
        for patch in [
            json!({"spec": {"a": 2}}),
            json!({"spec": {"a": null}}),
            json!({"spec": {"l": [1]}}),
            json!({"spec": {"b": {}}}),
            json!({"spec": {"a": {"c": null}}}),
        ] {
            assert!(!is_applied(&patch, &live), "{patch}");
        }
    }
}
