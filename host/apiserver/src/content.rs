//! Request bodies: type, identity, unknown fields and defaults.

use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::api::{FieldValidation, RequestHandler, WriteParameters};
use crate::object::metadata_text;
use crate::status::StatusError;

impl RequestHandler {
    /// Checks and completes an applied configuration.
    pub(crate) fn check_applied_config(
        &self,
        context: &WriteParameters<'_>,
        namespace: Option<&str>,
        name: &str,
        config: &Value,
    ) -> Result<Value, StatusError> {
        let given = metadata_text(config, "namespace");
        let mut config = config.clone();
        if context.manager.is_empty() {
            let cause = FieldError::required("fieldManager", "is required for apply patch");
            return Err(StatusError::invalid(
                crate::status::ErrorSubject {
                    group: "meta.k8s.io",
                    resource: "",
                    kind: "PatchOptions",
                    name: "",
                },
                vec![cause],
            ));
        }
        self.set_identity(context, namespace, Some(name), &mut config)?;
        if config["metadata"]
            .get("managedFields")
            .is_some_and(|fields| fields.as_array().is_none_or(|fields| !fields.is_empty()))
        {
            return Err(StatusError::bad_request("metadata.managedFields must be nil"));
        }
        let unknown = context.version.schema.prune(&mut config.clone());
        if let Some(field) = unknown.first() {
            return Err(StatusError::new(
                500,
                "",
                format!(
                    "failed to create typed patch object ({given}/{name}; {}, Kind={}): .{field}: field not declared in schema",
                    context.kind.api_version(&context.version.name),
                    context.kind.kind
                ),
            ));
        }
        Ok(config)
    }

    /// Prunes unknown fields as `fieldValidation` demands and applies defaults. Returns warnings.
    pub(crate) fn prepare_content(
        &self,
        context: &WriteParameters<'_>,
        object: &mut Value,
        whole: bool,
    ) -> Result<Vec<String>, StatusError> {
        let expected = context.kind.api_version(&context.version.name);
        if !object.is_object() {
            return Err(StatusError::bad_request("the body is not an object"));
        }
        if object["kind"].is_null() && whole {
            object["kind"] = context.kind.kind.as_str().into();
        }
        if object["apiVersion"].is_null() && whole {
            object["apiVersion"] = expected.as_str().into();
        }
        if object["apiVersion"] != expected.as_str() || object["kind"] != context.kind.kind.as_str() {
            let (found_version, found_kind) = (
                object["apiVersion"].as_str().unwrap_or_default(),
                object["kind"].as_str().unwrap_or_default(),
            );
            return Err(StatusError::bad_request(if found_version == expected {
                format!(
                    "{} in version \"{}\" cannot be handled as a {}: no kind \"{found_kind}\" is registered for version \"{expected}\"",
                    found_kind, context.version.name, context.kind.kind
                )
            } else {
                format!(
                    "the API version in the data ({found_version}) does not match the expected API version ({expected})"
                )
            }));
        }
        if !object["metadata"].is_object() {
            if !object["metadata"].is_null() {
                return Err(StatusError::bad_request(format!(
                    "{} in version \"{}\" cannot be handled as a {}: metadata is not an object",
                    context.kind.kind, context.version.name, context.kind.kind
                )));
            }
            object["metadata"] = json!({});
        }
        let unknown = context.version.schema.prune(object);
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|_, value| !value.is_null());
        }
        let unknown: Vec<String> = unknown
            .iter()
            .map(|field| format!("unknown field \"{field}\""))
            .collect();
        if context.validation == FieldValidation::Strict && !unknown.is_empty() {
            return Err(StatusError::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: strict decoding error: {}",
                context.kind.kind,
                context.version.name,
                context.kind.kind,
                unknown.join(", ")
            )));
        }
        context.version.schema.apply_defaults(object);
        Ok(if context.validation == FieldValidation::Warn {
            unknown
        } else {
            Vec::new()
        })
    }

    /// Completes name and namespace from the path; different ones in the body are an error.
    pub(crate) fn set_identity(
        &self,
        context: &WriteParameters<'_>,
        namespace: Option<&str>,
        name: Option<&str>,
        object: &mut Value,
    ) -> Result<(), StatusError> {
        let expected = context.kind.api_version(&context.version.name);
        if object["apiVersion"] != expected.as_str() || object["kind"] != context.kind.kind.as_str() {
            return Err(StatusError::bad_request(format!(
                "the object provided is {}, Kind={}, expected {expected}, Kind={}",
                object["apiVersion"].as_str().unwrap_or_default(),
                object["kind"].as_str().unwrap_or_default(),
                context.kind.kind
            )));
        }
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        let given = metadata_text(object, "namespace").to_owned();
        match namespace {
            Some(namespace) if given.is_empty() => object["metadata"]["namespace"] = namespace.into(),
            Some(namespace) if given != namespace => {
                return Err(StatusError::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            None if !given.is_empty() => {
                return Err(StatusError::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            _ => {}
        }
        let given = metadata_text(object, "name").to_owned();
        match name {
            Some(name) if given.is_empty() => object["metadata"]["name"] = name.into(),
            Some(name) if given != name => {
                return Err(StatusError::bad_request(format!(
                    "the name of the object ({given}) does not match the name on the URL ({name})"
                )));
            }
            _ => {}
        }
        Ok(())
    }
}
