//! Reading what a request brings: whose object it is, which fields it may have.

use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::api::{Api, Door, FieldValidation};
use crate::object::text;
use crate::status::ApiError;

impl Api {
    /// Checks an applied configuration.
    pub(crate) fn applied(
        &self,
        door: &Door<'_>,
        namespace: Option<&str>,
        name: &str,
        config: &Value,
    ) -> Result<Value, ApiError> {
        let given = text(config, "namespace");
        let mut config = config.clone();
        if door.manager.is_empty() {
            let cause = FieldError::required("fieldManager", "is required for apply patch");
            return Err(ApiError::invalid(
                crate::status::Subject {
                    group: "meta.k8s.io",
                    resource: "",
                    kind: "PatchOptions",
                    name: "",
                },
                vec![cause],
            ));
        }
        self.identify(door, namespace, Some(name), &mut config)?;
        if config["metadata"]
            .get("managedFields")
            .is_some_and(|fields| fields.as_array().is_none_or(|fields| !fields.is_empty()))
        {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        let unknown = door.version.schema.prune(&mut config.clone());
        if let Some(field) = unknown.first() {
            return Err(ApiError::new(
                500,
                "",
                format!(
                    "failed to create typed patch object ({given}/{name}; {}, Kind={}): .{field}: field not declared in schema",
                    door.kind.api_version(&door.version.name),
                    door.kind.kind
                ),
            ));
        }
        Ok(config)
    }

    /// Reads content: unknown fields are met as the request wishes, missing ones get their defaults.
    pub(crate) fn receive(
        &self,
        door: &Door<'_>,
        object: &mut Value,
        whole: bool,
    ) -> Result<Vec<String>, ApiError> {
        let expected = door.kind.api_version(&door.version.name);
        if !object.is_object() {
            return Err(ApiError::bad_request("the body is not an object"));
        }
        if object["kind"].is_null() && whole {
            object["kind"] = door.kind.kind.as_str().into();
        }
        if object["apiVersion"].is_null() && whole {
            object["apiVersion"] = expected.as_str().into();
        }
        if object["apiVersion"] != expected.as_str() || object["kind"] != door.kind.kind.as_str() {
            let (found_version, found_kind) = (
                object["apiVersion"].as_str().unwrap_or_default(),
                object["kind"].as_str().unwrap_or_default(),
            );
            return Err(ApiError::bad_request(if found_version == expected {
                format!(
                    "{} in version \"{}\" cannot be handled as a {}: no kind \"{found_kind}\" is registered for version \"{expected}\"",
                    found_kind, door.version.name, door.kind.kind
                )
            } else {
                format!(
                    "the API version in the data ({found_version}) does not match the expected API version ({expected})"
                )
            }));
        }
        if !object["metadata"].is_object() {
            if !object["metadata"].is_null() {
                return Err(ApiError::bad_request(format!(
                    "{} in version \"{}\" cannot be handled as a {}: metadata is not an object",
                    door.kind.kind, door.version.name, door.kind.kind
                )));
            }
            object["metadata"] = json!({});
        }
        let unknown = door.version.schema.prune(object);
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|_, value| !value.is_null());
        }
        let unknown: Vec<String> = unknown
            .iter()
            .map(|field| format!("unknown field \"{field}\""))
            .collect();
        if door.validation == FieldValidation::Strict && !unknown.is_empty() {
            return Err(ApiError::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: strict decoding error: {}",
                door.kind.kind,
                door.version.name,
                door.kind.kind,
                unknown.join(", ")
            )));
        }
        door.version.schema.apply_defaults(object);
        Ok(if door.validation == FieldValidation::Warn {
            unknown
        } else {
            Vec::new()
        })
    }

    /// Makes name and namespace agree with the path.
    pub(crate) fn identify(
        &self,
        door: &Door<'_>,
        namespace: Option<&str>,
        name: Option<&str>,
        object: &mut Value,
    ) -> Result<(), ApiError> {
        let expected = door.kind.api_version(&door.version.name);
        if object["apiVersion"] != expected.as_str() || object["kind"] != door.kind.kind.as_str() {
            return Err(ApiError::bad_request(format!(
                "the object provided is {}, Kind={}, expected {expected}, Kind={}",
                object["apiVersion"].as_str().unwrap_or_default(),
                object["kind"].as_str().unwrap_or_default(),
                door.kind.kind
            )));
        }
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        let given = text(object, "namespace").to_owned();
        match namespace {
            Some(namespace) if given.is_empty() => object["metadata"]["namespace"] = namespace.into(),
            Some(namespace) if given != namespace => {
                return Err(ApiError::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            None if !given.is_empty() => {
                return Err(ApiError::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            _ => {}
        }
        let given = text(object, "name").to_owned();
        match name {
            Some(name) if given.is_empty() => object["metadata"]["name"] = name.into(),
            Some(name) if given != name => {
                return Err(ApiError::bad_request(format!(
                    "the name of the object ({given}) does not match the name on the URL ({name})"
                )));
            }
            _ => {}
        }
        Ok(())
    }
}
