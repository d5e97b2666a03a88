//! Authentication and access reviews, decided by [`crate::rbac`]. They are answered and not stored.

use http::HeaderMap;
use ostler_schema::FieldError;
use serde_json::{Map, Value, json};

use crate::object::current_time;
use crate::rbac::{self, AccessRequest, RequestUser};
use crate::state::RequestHandler;
use crate::status::{ErrorSubject, StatusError};
use crate::token;

/// The kind of a review, and the request that contains it.
pub struct ReviewRequest<'a> {
    /// API group.
    pub group: &'a str,
    /// Kind.
    pub kind: &'a str,
    /// Namespace of the path, if it has one.
    pub namespace: Option<&'a str>,
    /// Headers, which identify the requester.
    pub headers: &'a HeaderMap,
    /// Field manager of the request.
    pub manager: &'a str,
}

/// Answers a review.
///
/// # Errors
///
/// 422 for an access review without attributes or a user, 400 for a review that lacks what it asks about.
pub fn answer_review(
    api: &RequestHandler,
    request: &ReviewRequest<'_>,
    object: Value,
) -> Result<Value, StatusError> {
    let given = if object.is_object() { object } else { json!({}) };
    let kind = given["kind"].as_str().filter(|kind| !kind.is_empty());
    if let Some(other) = kind.filter(|kind| *kind != request.kind) {
        return Err(StatusError::bad_request(format!(
            "{other} in version \"v1\" cannot be handled as a {}: no kind \"{other}\" is registered for version \"{}/v1\"",
            request.kind, request.group
        )));
    }
    let requester = token::find_requester(api, request.headers).unwrap_or_else(RequestUser::admin);
    let mut spec = given["spec"].clone();
    let mut metadata = given["metadata"].as_object().cloned().unwrap_or_default();
    let text = |field: &str| spec[field].as_str().unwrap_or_default();
    let status = match request.kind {
        "SelfSubjectReview" => {
            metadata.insert("creationTimestamp".into(), current_time().into());
            json!({"userInfo": requester.to_user_info()})
        }
        "TokenReview" if text("token").is_empty() => {
            return Err(StatusError::bad_request(
                "token is required for TokenReview in authentication",
            ));
        }
        "TokenReview" => match token::find_user(api, text("token")) {
            Some(user) => json!({
                "authenticated": true,
                "user": user.to_user_info(),
                "audiences": ["https://kubernetes.default.svc"],
            }),
            None => json!({"user": {}, "error": "invalid bearer token"}),
        },
        "SelfSubjectRulesReview" if text("namespace").is_empty() => {
            return Err(StatusError::bad_request("no namespace on request"));
        }
        "SelfSubjectRulesReview" => {
            let rules = rbac::list_user_rules(api, &requester, text("namespace"));
            spec = json!({});
            let (paths, resources): (Vec<Value>, Vec<Value>) = rules
                .into_iter()
                .partition(|rule| rule["nonResourceURLs"].is_array());
            json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false})
        }
        kind => {
            check_access_review(request, &metadata, &spec)?;
            let user = match kind {
                "SelfSubjectAccessReview" => requester,
                _ => RequestUser::from_review(&spec),
            };
            match find_grant(api, &user, &spec) {
                Some(reason) => describe_decision(true, reason),
                None => {
                    let namespace = spec["resourceAttributes"]["namespace"]
                        .as_str()
                        .unwrap_or_default();
                    describe_decision(false, rbac::describe_absent_roles(api, &user, namespace))
                }
            }
        }
    };
    if let Some(fields) = own_fields(&spec).filter(|_| request.kind != "SelfSubjectReview") {
        metadata.insert("managedFields".into(), json!([{
            "manager": request.manager, "operation": "Update", "apiVersion": format!("{}/v1", request.group),
            "time": current_time(), "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields},
        }]));
    }
    let mut answer = json!({
        "kind": request.kind, "apiVersion": format!("{}/v1", request.group), "metadata": metadata, "status": status,
    });
    if request.kind != "SelfSubjectReview" {
        answer["spec"] = if spec.is_object() { spec } else { json!({}) };
    }
    Ok(answer)
}

/// Checks that an access review asks about one request of one user.
fn check_access_review(
    request: &ReviewRequest<'_>,
    metadata: &Map<String, Value>,
    spec: &Value,
) -> Result<(), StatusError> {
    let is_local = request.kind == "LocalSubjectAccessReview";
    let is_set = |field: &str| spec[field].is_object();
    let mut errors = Vec::new();
    match (is_set("resourceAttributes"), is_set("nonResourceAttributes")) {
        (true, true) => errors.push(FieldError::invalid(
            "spec.nonResourceAttributes",
            &spec["nonResourceAttributes"],
            "cannot be specified in combination with resourceAttributes",
        )),
        (false, false) => errors.push(FieldError::invalid(
            "spec.resourceAttributes",
            &Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => {}
    }
    let has_user = spec["user"].as_str().is_some_and(|user| !user.is_empty());
    let has_groups = spec["groups"].as_array().is_some_and(|groups| !groups.is_empty());
    if request.kind != "SelfSubjectAccessReview" && !has_user && !has_groups {
        let why = "at least one of user or group must be specified";
        errors.push(FieldError::invalid("spec.user", &"".into(), why));
    }
    let is_allowed = |field: &str| field == "managedFields" || (is_local && field == "namespace");
    if metadata
        .iter()
        .any(|(field, value)| !value.is_null() && !is_allowed(field))
    {
        let given = Value::Object(metadata.clone());
        errors.push(FieldError::invalid("metadata", &given, "must be empty"));
    }
    let asked = spec["resourceAttributes"]["namespace"]
        .as_str()
        .unwrap_or_default();
    if is_local && is_set("resourceAttributes") && Some(asked) != request.namespace {
        let why = "must match metadata.namespace";
        errors.push(FieldError::invalid(
            "spec.resourceAttributes.namespace",
            &asked.into(),
            why,
        ));
    }
    if is_local && is_set("nonResourceAttributes") {
        errors.push(FieldError::invalid(
            "spec.nonResourceAttributes",
            &spec["nonResourceAttributes"],
            "disallowed on this kind of request",
        ));
    }
    if errors.is_empty() {
        return Ok(());
    }
    let subject = ErrorSubject {
        group: request.group,
        resource: "",
        kind: "",
        name: "",
    };
    Err(StatusError::invalid(subject, errors))
}

/// The fields that a value sets, as in `fieldsV1`; `None` if it sets none.
fn own_fields(value: &Value) -> Option<Value> {
    let mut fields = Map::new();
    for (name, value) in value.as_object()? {
        let inner = match value {
            Value::Object(_) => {
                let mut inner = own_fields(value).unwrap_or_else(|| json!({}));
                inner["."] = json!({});
                inner
            }
            Value::Null => continue,
            Value::String(text) if text.is_empty() => continue,
            _ => json!({}),
        };
        fields.insert(format!("f:{name}"), inner);
    }
    (!fields.is_empty()).then_some(Value::Object(fields))
}

fn describe_decision(allowed: bool, reason: String) -> Value {
    let mut status = json!({"allowed": allowed});
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    status
}

fn find_grant(api: &RequestHandler, user: &RequestUser, spec: &Value) -> Option<String> {
    let path = &spec["nonResourceAttributes"];
    if path.is_object() {
        let text = |field: &str| path[field].as_str().unwrap_or_default();
        return rbac::find_path_grant(api, user, text("verb"), text("path"));
    }
    let access = AccessRequest::from_review(&spec["resourceAttributes"]);
    rbac::find_grant(api, user, &access)
}
