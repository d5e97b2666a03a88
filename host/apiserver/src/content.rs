//! Request bodies: type, identity, unknown fields and defaults.

use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::builtin_defaults::apply_dependent_defaults;
use crate::metadata::unify_metadata;
use crate::object::metadata_text;
use crate::protobuf;
use crate::quantity::{find_invalid_quantity, unify_quantities};
use crate::state::RequestHandler;
use crate::status::StatusError;
use crate::write::{FieldValidation, WriteParameters};

/// 400: a changed object must name itself.
pub(crate) fn undeterminable_name(name: &str) -> StatusError {
    StatusError::bad_request(format!(
        "the name of the object ({name} based on URL) was undeterminable: name must be provided"
    ))
}

/// 500, as the real server answers an applied configuration that it cannot merge by the schema.
fn untyped_config(context: &WriteParameters<'_>, config: &Value, why: &str) -> StatusError {
    let described = describe_converted(context, config);
    let message = format!("failed to create typed patch object ({described}): .{why}");
    StatusError::new(500, "", message)
}

/// Checks that what an applied configuration has been merged into can be decoded as an object of a built-in kind: 500 otherwise.
pub(crate) fn decode_applied(context: &WriteParameters<'_>, object: &mut Value) -> Result<(), StatusError> {
    if context.kind.custom {
        return Ok(());
    }
    context.version.schema.cut_integers(object);
    match find_undecodable(context, object) {
        Some(why) => {
            let described = describe_converted(context, object);
            let kind = describe_kind(context);
            let message = format!(
                "failed to convert new object ({described}) to proper version: unable to convert unstructured object to {kind}: {why}"
            );
            Err(StatusError::new(500, "", message))
        }
        None => Ok(()),
    }
}

/// Checks that the stored object can be compared by the schema, as a configuration can be applied to no other: 500 otherwise.
pub(crate) fn check_applied_base(context: &WriteParameters<'_>, live: &Value) -> Result<(), StatusError> {
    match context.version.schema.find_untyped_update(live) {
        Some(why) => {
            let described = describe_converted(context, live);
            let message = format!(
                "failed to create manager for existing fields: failed to convert new object ({described}) to smd typed: .{why}"
            );
            Err(StatusError::new(500, "", message))
        }
        None => Ok(()),
    }
}

/// The object in errors of conversions.
fn describe_converted(context: &WriteParameters<'_>, object: &Value) -> String {
    format!(
        "{}/{}; {}",
        metadata_text(object, "namespace"),
        metadata_text(object, "name"),
        describe_kind(context)
    )
}

/// The kind in errors of conversions.
fn describe_kind(context: &WriteParameters<'_>) -> String {
    let version = context.kind.api_version(&context.version.name);
    format!("{version}, Kind={}", context.kind.kind)
}

/// The first part of an object that cannot be decoded: of a custom kind only metadata is decoded into a structure.
fn find_undecodable(context: &WriteParameters<'_>, object: &Value) -> Option<String> {
    let schema = &context.version.schema;
    if context.kind.custom {
        return find_metadata_mismatch(context, object).or_else(|| schema.find_undecodable_embedded(object));
    }
    let invalid = || find_invalid_quantity(schema, object).map(str::to_owned);
    schema.find_type_mismatch(object).or_else(invalid)
}

/// Brings the metadata of an object, and of those that are embedded in it, into the form in which the API server writes it.
fn unify_all_metadata(context: &WriteParameters<'_>, object: &mut Value) {
    unify_metadata(&mut object["metadata"]);
    if context.kind.custom {
        let schema = &context.version.schema;
        schema.change_embedded_metadata(object, &|metadata| {
            if metadata.is_null() {
                // As it is decoded.
                *metadata = json!({});
            }
            unify_metadata(metadata);
        });
    }
}

fn find_metadata_mismatch(context: &WriteParameters<'_>, object: &Value) -> Option<String> {
    let schema = context.version.schema.field("metadata")?;
    schema.find_type_mismatch(&object["metadata"])
}

impl RequestHandler {
    /// Checks and completes an applied configuration.
    pub(crate) fn check_applied_config(
        &self,
        context: &WriteParameters<'_>,
        namespace: Option<&str>,
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
        // Another namespace is an error of the result, after conflicts, as is another name or none.
        let asked = if given.is_empty() { namespace } else { Some(given) };
        self.set_identity(context, asked, None, &mut config)?;
        if !config["metadata"]["managedFields"].is_null() {
            return Err(StatusError::bad_request("metadata.managedFields must be nil"));
        }
        if let Some(why) = context.version.schema.find_untyped(&config) {
            return Err(untyped_config(context, &config, &why));
        }
        if let Some(field) = context.version.schema.find_undeclared(&config) {
            let why = format!("{field}: field not declared in schema");
            return Err(untyped_config(context, &config, &why));
        }
        Ok(config)
    }

    /// Prepares the result of a patch as [`Self::prepare_content`] does. It must name the object that is patched.
    pub(crate) fn prepare_patched(
        &self,
        context: &WriteParameters<'_>,
        namespace: Option<&str>,
        name: &str,
        object: &mut Value,
        patch: &Value,
    ) -> Result<Vec<String>, StatusError> {
        let is_missing = |value: &Value| value.is_null() || *value == "";
        if !context.kind.custom && is_missing(&object["kind"]) {
            // The patch is decoded as an object of the kind.
            object["kind"] = context.kind.kind.as_str().into();
        }
        if context.kind.custom {
            if is_missing(&object["kind"]) {
                return Err(StatusError::invalid_patch(object, "Object 'Kind' is missing"));
            }
            if object
                .get("apiVersion")
                .is_some_and(|version| !version.is_string())
            {
                return Err(StatusError::invalid_patch(object, "apiVersion is not a string"));
            }
        }
        if context.kind.custom
            && let Some(why) = find_undecodable(context, object)
        {
            return Err(StatusError::invalid_patch(object, &why));
        }
        if context.kind.custom && is_missing(&object["apiVersion"]) {
            if object["metadata"].is_null() {
                return Err(undeterminable_name(name));
            }
            let why = "Object 'apiVersion' is missing in 'object has no apiVersion field'";
            return Err(StatusError::internal(why));
        }
        let warnings = self.prepare_content(context, object, false).map_err(|error| {
            match error.message.split_once("strict decoding error") {
                // The error names the whole patch.
                Some((_, found)) => {
                    StatusError::invalid_patch(patch, &format!("strict decoding error{found}"))
                }
                None if object["apiVersion"] == context.kind.api_version(&context.version.name) => {
                    StatusError::invalid_patch(object, &error.message)
                }
                None => error,
            }
        })?;
        self.require_identity(namespace, name, object)?;
        Ok(warnings)
    }

    /// Checks that a changed object has the name and namespace of the path.
    pub(crate) fn require_identity(
        &self,
        namespace: Option<&str>,
        name: &str,
        object: &Value,
    ) -> Result<(), StatusError> {
        let given = metadata_text(object, "name");
        if given.is_empty() {
            return Err(undeterminable_name(name));
        }
        if given != name {
            return Err(StatusError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        let given = metadata_text(object, "namespace");
        if !given.is_empty() && namespace.is_none_or(|namespace| namespace != given) {
            return Err(StatusError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Ok(())
    }

    /// Applies the defaults of a kind to an object that server-side apply has merged, whose nulls stay.
    pub(crate) fn complete_applied(&self, context: &WriteParameters<'_>, object: &mut Value) {
        unify_all_metadata(context, object);
        if context.kind.custom {
            context.version.schema.fill_defaults(object);
        } else {
            self.complete_content(context, object);
        }
    }

    /// Applies the defaults of a kind.
    pub(crate) fn complete_content(&self, context: &WriteParameters<'_>, object: &mut Value) {
        let schema = &context.version.schema;
        if context.kind.custom {
            return schema.apply_defaults(object);
        }
        // Empty lists of a schema are a part of what is validated.
        let drops_zero_values = !context.kind.is_definition();
        if drops_zero_values {
            protobuf::drop_zero_values(object);
        }
        schema.apply_defaults(object);
        apply_dependent_defaults(context.kind, object);
        unify_quantities(schema, object);
        if drops_zero_values {
            protobuf::drop_zero_values(object);
        }
        protobuf::write_null_values(object);
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
        // An object of a built-in kind is decoded as one of the kind that the path names.
        if whole && !context.kind.custom {
            if object["kind"].is_null() {
                object["kind"] = context.kind.kind.as_str().into();
            }
            if object["apiVersion"].is_null() {
                object["apiVersion"] = expected.as_str().into();
            }
        }
        // Another kind of a custom resource is an error of its validation.
        let is_other_kind = object["kind"] != context.kind.kind.as_str();
        let is_refused = is_other_kind && (!context.kind.custom || !object["kind"].is_string());
        if object["apiVersion"] != expected.as_str() || is_refused {
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
        if let Some(mismatch) = find_undecodable(context, object) {
            return Err(StatusError::bad_request(format!(
                "{kind} in version \"{}\" cannot be handled as a {kind}: {mismatch}",
                context.version.name,
                kind = context.kind.kind
            )));
        }
        let schema = &context.version.schema;
        if !context.kind.custom {
            schema.encode_byte_lists(object);
        }
        let unknown = if is_other_kind {
            Vec::new()
        } else {
            schema.prune(object)
        };
        // An empty list of managed fields, which decoding drops, stands for one without owners.
        let resets_owners = !context.kind.custom && object["metadata"]["managedFields"] == json!([]);
        unify_all_metadata(context, object);
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
        self.complete_content(context, object);
        if resets_owners {
            object["metadata"]["managedFields"] = json!([{}]);
        }
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
        let is_other_kind = object["kind"] != context.kind.kind.as_str() && !context.kind.custom;
        if object["apiVersion"] != expected.as_str() || is_other_kind {
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
