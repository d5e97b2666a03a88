//! Request handling, from the parsed head to the response.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT, WARNING};
use http::request::Parts;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::deletion::{self, DeleteOptions, Deleted};
use crate::faults::{Effect, RequestAttributes, injected_error};
use crate::kind::{ServedKind, ServedVersion};
use crate::pod::{check_log_container, is_pod_kind};
use crate::rbac::{self, AccessRequest};
use crate::request::{PatchKind, QueryParameters, RequestTarget, RequestVerb, ResponseShape};
use crate::response::{
    Body, ServerResponse, build_response, empty_response, full_body, into_response, json_response,
    text_response,
};
use crate::state::RequestHandler;
use crate::state::ServerState;
use crate::status::StatusError;
use crate::storage::{GroupResource, StoredKey, StoredObject};
use crate::write::{Edit, FieldValidation, WriteOutcome, WriteParameters};
use crate::{control, discovery, limits, protobuf, review, table, token};

/// Answers a request; an error closes the connection without a response.
pub async fn handle_request(
    state: Arc<ServerState>,
    parts: Parts,
    body: Bytes,
) -> Result<Response<Body>, io::Error> {
    let path = parts.uri.path().to_owned();
    if let Some(rest) = path.strip_prefix("/_ostler/") {
        return Ok(into_response(
            control::handle_control(&state, &parts.method, rest, &body)
                .map(|value| json_response(200, &value)),
        ));
    }
    let query = QueryParameters::parse(parts.uri.query());
    let target = RequestTarget::parse(&path);
    let verb = target
        .as_ref()
        .map(|target| RequestVerb::from_request(&parts.method, target, &query, &parts.headers));
    let header = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
            .unwrap_or_default()
    };
    let seen = RequestAttributes {
        method: parts.method.to_string(),
        verb: match &verb {
            Some(Ok(verb)) => verb.as_str(),
            _ => "get",
        },
        path: path.clone(),
        resource: target
            .as_ref()
            .map(RequestTarget::resource_with_subresource)
            .unwrap_or_default(),
        user_agent: header(USER_AGENT).to_owned(),
        dry_run: query.is_dry_run().unwrap_or_default(),
    };
    let writes = matches!(&verb, Some(Ok(verb)) if verb.is_write());
    if target.is_some() {
        state.counters.record_request(&seen, writes);
    }
    tokio::time::sleep(state.faults.latency()).await;
    let mut drop_answer = false;
    match state.faults.take_effect(&seen) {
        Some(Effect::Respond { code, retry_after }) => {
            return Ok(into_response(Err(injected_error(code, retry_after))));
        }
        Some(Effect::Refuse(message)) => {
            return Ok(into_response(Err(StatusError::new(403, "Forbidden", message))));
        }
        Some(Effect::Drop) => return Err(io::Error::other("dropped by an injected fault")),
        Some(Effect::DropAnswer) => drop_answer = true,
        Some(Effect::Delay(ms)) => tokio::time::sleep(std::time::Duration::from_millis(ms)).await,
        None => {}
    }
    let answer = match (target, verb) {
        (Some(target), Some(Ok(verb))) => ResourceRequest {
            state: &state,
            target,
            verb,
            query,
            parts: &parts,
            body,
            seen: &seen,
        }
        .dispatch(),
        (Some(_), Some(Err(error))) => Err(error),
        _ if matches!(path.split('/').nth(1), Some("healthz" | "livez" | "readyz")) => {
            Ok(text_response("ok"))
        }
        _ => discovery::answer_discovery(&state.api.registry, &path, &state.address.to_string())
            .unwrap_or_else(|| Err(StatusError::no_such_path()))
            .map(|value| json_response(200, &value)),
    };
    if drop_answer {
        return Err(io::Error::other("answer dropped by an injected fault"));
    }
    Ok(into_response(answer))
}

/// Turns numbers without a fraction into integers, as which Go writes them, and larger integers into floating-point numbers, as which
/// it reads them.
fn unify_numbers(value: &mut Value) {
    match value {
        Value::Number(number) if !number.is_i64() => {
            let given = number.as_f64().unwrap_or_default();
            let text = given.to_string();
            *value = text
                .parse::<i64>()
                .map(Value::from)
                .or_else(|_| text.parse::<u64>().map(Value::from))
                .unwrap_or_else(|_| given.into());
        }
        Value::Array(items) => items.iter_mut().for_each(unify_numbers),
        Value::Object(fields) => fields.values_mut().for_each(unify_numbers),
        _ => {}
    }
}

/// One request on a resource.
pub(crate) struct ResourceRequest<'a> {
    pub(crate) state: &'a Arc<ServerState>,
    pub(crate) target: RequestTarget,
    pub(crate) verb: RequestVerb,
    pub(crate) query: QueryParameters,
    pub(crate) parts: &'a Parts,
    pub(crate) body: Bytes,
    pub(crate) seen: &'a RequestAttributes,
}

impl ResourceRequest<'_> {
    fn dispatch(self) -> ServerResponse {
        let target = &self.target;
        self.check_authorization()?;
        limits::check_body(self.body.len())?;
        if let Some(reviewed) = self.answer_review() {
            return reviewed;
        }
        let kind = self
            .state
            .api
            .registry
            .get(&target.group, &target.resource)
            .ok_or_else(StatusError::no_such_path)?;
        let version = kind
            .version(&target.version)
            .ok_or_else(StatusError::no_such_path)?;
        if target.namespace.is_some() && !kind.namespaced {
            return Err(StatusError::no_such_path());
        }
        let one_without_namespace = kind.namespaced
            && target.namespace.is_none()
            && (target.name.is_some() || self.verb == RequestVerb::Create);
        if one_without_namespace {
            return Err(StatusError::no_such_path());
        }
        match target.subresource.as_deref() {
            None => {}
            Some("status")
                if version.status
                    && matches!(
                        self.verb,
                        RequestVerb::Get | RequestVerb::Update | RequestVerb::Patch(_)
                    ) => {}
            Some("scale")
                if version.scale.is_some()
                    && matches!(
                        self.verb,
                        RequestVerb::Get | RequestVerb::Update | RequestVerb::Patch(_)
                    ) =>
            {
                return self.answer_scale(&kind, version);
            }
            Some("resize")
                if is_pod_kind(&kind)
                    && matches!(
                        self.verb,
                        RequestVerb::Get | RequestVerb::Update | RequestVerb::Patch(_)
                    ) => {}
            Some("log") if is_pod_kind(&kind) && self.verb == RequestVerb::Get => {
                return self.read_log(&kind);
            }
            Some("finalize") if kind.kind == "Namespace" && self.verb == RequestVerb::Update => {}
            Some("binding") if is_pod_kind(&kind) && self.verb == RequestVerb::Create => {
                let name = target.name.as_deref().unwrap_or_default();
                let key = StoredKey::new(target.namespace.as_deref().unwrap_or_default(), name);
                let bound = self.state.api.bind_pod(&kind, &key, &self.decode_object()?)?;
                return Ok(json_response(201, &bound));
            }
            Some("token") if kind.kind == "ServiceAccount" && self.verb == RequestVerb::Create => {
                let account = self.find_object(&kind)?;
                let issued = token::issue_token(&account.value, &self.decode_object()?);
                return Ok(json_response(201, &issued));
            }
            Some(_) => return Err(StatusError::no_such_path()),
        }
        match self.verb {
            RequestVerb::Get => self.get_object(&kind, version),
            RequestVerb::List => self.list_objects(&kind, version),
            RequestVerb::Watch => self.start_watch(&kind, version),
            RequestVerb::Create if kind.terminating => Err(StatusError {
                message: "create not allowed while custom resource definition is terminating".into(),
                ..StatusError::method_not_allowed()
            }),
            RequestVerb::Create => {
                let object = self.decode_object()?;
                let context = self.write_context(&kind, version)?;
                let outcome = self
                    .state
                    .api
                    .create_object(&context, target.namespace.as_deref(), object)?;
                self.respond_write(&kind, version, &outcome)
            }
            RequestVerb::Update | RequestVerb::Patch(_) => {
                let name = target.name.as_deref().unwrap_or_default();
                let edit = self.decode_edit(&kind)?;
                let context = self.write_context(&kind, version)?;
                let outcome =
                    self.state
                        .api
                        .edit_object(&context, target.namespace.as_deref(), name, &edit)?;
                self.respond_write(&kind, version, &outcome)
            }
            RequestVerb::Delete => self.delete_object(&kind, version),
            RequestVerb::DeleteCollection => self.delete_collection(&kind, version),
        }
    }

    /// Checks the rights of an impersonated user, or of that of a token. An apply that creates the object also needs the verb `create`.
    fn check_authorization(&self) -> Result<(), StatusError> {
        let Some(user) = token::find_requester(&self.state.api, &self.parts.headers) else {
            return Ok(());
        };
        let api = &self.state.api;
        let access = AccessRequest::from_request(&self.target, self.verb);
        rbac::check_access(api, &user, &access)?;
        let kind = api.registry.get(&self.target.group, &self.target.resource);
        if self.verb == RequestVerb::Patch(PatchKind::Apply)
            && let Some(kind) = kind
            && api
                .storage
                .get(&kind.resource, &StoredKey::new(&access.namespace, &access.name))
                .is_none()
        {
            let verb = "create".into();
            rbac::check_access(api, &user, &AccessRequest { verb, ..access })?;
        }
        Ok(())
    }

    fn answer_review(&self) -> Option<ServerResponse> {
        let known = |(group, plural, ..): &&(&str, &str, &str, bool)| {
            *group == self.target.group && *plural == self.target.resource
        };
        let (_, _, kind, _) = discovery::REVIEW_RESOURCES.iter().find(known)?;
        Some(match self.verb {
            RequestVerb::Create => self.decode_object().and_then(|object| {
                let request = review::ReviewRequest {
                    group: &self.target.group,
                    kind,
                    namespace: self.target.namespace.as_deref(),
                    headers: &self.parts.headers,
                    manager: self.field_manager(),
                };
                let answer = review::answer_review(&self.state.api, &request, object)?;
                Ok(json_response(201, &answer))
            }),
            _ => Err(StatusError::method_not_allowed()),
        })
    }

    /// The field manager that the request names, or the name of the program in `User-Agent`.
    fn field_manager(&self) -> &str {
        let program = || {
            self.seen
                .user_agent
                .split('/')
                .next()
                .filter(|name| !name.is_empty())
        };
        self.query
            .get("fieldManager")
            .or_else(program)
            .unwrap_or("unknown")
    }

    /// Decodes the body: JSON, YAML or protobuf.
    fn decode_object(&self) -> Result<Value, StatusError> {
        let media = self
            .parts
            .headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("application/json");
        let media = media.split(';').next().unwrap_or_default().trim();
        if media == "application/vnd.kubernetes.protobuf" {
            let unknown = || StatusError::unsupported_media_type("application/json, application/yaml");
            return protobuf::decode_object(&self.body).ok_or_else(unknown);
        }
        if media.ends_with("cbor") {
            return Err(StatusError::unsupported_media_type(
                "application/json, application/yaml",
            ));
        }
        let yaml = media.ends_with("yaml");
        match serde_json::from_slice(&self.body) {
            Ok(mut value) => {
                // Into a structure, as of a built-in kind, a number with a point is not decoded as an integer.
                let kind = self
                    .state
                    .api
                    .registry
                    .get_by_resource(&GroupResource::new(&self.target.group, &self.target.resource));
                let is_decoded = kind.is_some_and(|kind| !kind.custom && !kind.is_definition())
                    && matches!(
                        self.verb,
                        RequestVerb::Create
                            | RequestVerb::Update
                            | RequestVerb::Patch(PatchKind::Merge | PatchKind::Json)
                    );
                if !is_decoded {
                    unify_numbers(&mut value);
                }
                Ok(value)
            }
            Err(_) if yaml => std::str::from_utf8(&self.body)
                .map_err(|error| error.to_string())
                .and_then(|text| serde_saphyr::from_str(text).map_err(|error| error.to_string()))
                .map_err(|error| StatusError::bad_request(format!("error decoding YAML: {error}"))),
            Err(error) => Err(StatusError::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): {error}",
                self.target.resource
            ))),
        }
    }

    /// Decodes the body of a change.
    fn decode_edit(&self, kind: &ServedKind) -> Result<Edit, StatusError> {
        if kind.custom && self.verb == RequestVerb::Patch(PatchKind::Strategic) {
            return Err(StatusError::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            ));
        }
        let body = self.decode_object()?;
        Ok(match self.verb {
            RequestVerb::Patch(PatchKind::Apply) => Edit::Apply(body, self.query.is_set("force")),
            RequestVerb::Patch(patch) => Edit::Patch(patch, body),
            _ => Edit::Replace(body),
        })
    }

    /// Reads or changes the replicas of an object.
    fn answer_scale(&self, kind: &ServedKind, version: &ServedVersion) -> ServerResponse {
        let Some(paths) = &version.scale else {
            return Err(StatusError::no_such_path());
        };
        let context = self.write_context(kind, version)?;
        let key = StoredKey::new(
            self.target.namespace.as_deref().unwrap_or_default(),
            self.target.name.as_deref().unwrap_or_default(),
        );
        let api = &self.state.api;
        let scale = if self.verb == RequestVerb::Get {
            api.read_scale(&context, paths, &key)?
        } else {
            api.write_scale(&context, paths, &key, &self.decode_edit(kind)?)?
        };
        Ok(json_response(200, &scale))
    }

    fn write_context<'d>(
        &'d self,
        kind: &'d ServedKind,
        version: &'d ServedVersion,
    ) -> Result<WriteParameters<'d>, StatusError> {
        let given = self.query.get("fieldManager");
        if given.is_some_and(|manager| manager.len() > 128) {
            return Err(StatusError::new(
                422,
                "Invalid",
                "fieldManager: Too long: may not be more than 128 bytes",
            ));
        }
        Ok(WriteParameters {
            requester: token::find_requester(&self.state.api, &self.parts.headers),
            kind,
            version,
            subresource: self.target.subresource.as_deref().unwrap_or_default(),
            manager: match self.verb {
                RequestVerb::Patch(PatchKind::Apply) => given.unwrap_or_default(),
                _ => self.field_manager(),
            },
            validation: match self.query.get("fieldValidation") {
                Some("Strict") => FieldValidation::Strict,
                Some("Ignore") => FieldValidation::Ignore,
                None | Some("Warn") => FieldValidation::Warn,
                Some(other) => {
                    return Err(StatusError::new(
                        422,
                        "Invalid",
                        format!(
                            "fieldValidation: Unsupported value: \"{other}\": supported values: \"Ignore\", \"Strict\", \"Warn\""
                        ),
                    ));
                }
            },
            dry_run: self.query.is_dry_run()?,
        })
    }

    pub(crate) fn accepted_shape(&self) -> Result<ResponseShape, StatusError> {
        ResponseShape::negotiate(&self.parts.headers)
    }

    pub(crate) fn include_object(&self) -> &str {
        self.query.get("includeObject").unwrap_or("Metadata")
    }

    fn respond_object(
        &self,
        kind: &ServedKind,
        version: &ServedVersion,
        object: &StoredObject,
        code: u16,
    ) -> ServerResponse {
        let shape = self.accepted_shape()?;
        if shape == ResponseShape::Object
            && object.value["apiVersion"] == kind.api_version(&version.name).as_str()
        {
            return Ok(build_response(
                code,
                "application/json",
                full_body(object.json().clone()),
            ));
        }
        let value = RequestHandler::convert_to_version(kind, version, object);
        Ok(json_response(
            code,
            &match shape {
                ResponseShape::Object => value,
                ResponseShape::Partial => table::partial_object(&value),
                ResponseShape::Table => json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": value["metadata"]["resourceVersion"]},
                    "columnDefinitions": table::column_definitions(kind, version),
                    "rows": [table::build_row(kind, version, &value, self.include_object(), Timestamp::now())],
                }),
            },
        ))
    }

    fn respond_write(
        &self,
        kind: &ServedKind,
        version: &ServedVersion,
        outcome: &WriteOutcome,
    ) -> ServerResponse {
        let mut response = self.respond_object(
            kind,
            version,
            &outcome.object,
            if outcome.created { 201 } else { 200 },
        )?;
        for warning in &outcome.warnings {
            let escaped = warning.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
                response.headers_mut().append(WARNING, value);
            }
        }
        Ok(response)
    }

    fn get_object(&self, kind: &ServedKind, version: &ServedVersion) -> ServerResponse {
        let object = self.find_object(kind)?;
        self.respond_object(kind, version, &object, 200)
    }

    /// The stored object that the path names.
    fn find_object(&self, kind: &ServedKind) -> Result<Arc<StoredObject>, StatusError> {
        let name = self.target.name.as_deref().unwrap_or_default();
        let key = StoredKey::new(self.target.namespace.as_deref().unwrap_or_default(), name);
        let found = self.state.api.storage.get(&kind.resource, &key);
        found.ok_or_else(|| StatusError::not_found(kind.subject(name)))
    }

    /// Answers a read of a container's log. There are no kubelets, so that only a pod without a node has one, which is empty.
    fn read_log(&self, kind: &ServedKind) -> ServerResponse {
        let name = self.target.name.as_deref().unwrap_or_default();
        let pod = self.find_object(kind)?;
        check_log_container(name, &pod.value, self.query.get("container"))?;
        match pod.value["spec"]["nodeName"].as_str() {
            None | Some("") => Ok(empty_response()),
            Some(node) => Err(StatusError::internal(format!(
                "the log of pod {name} is on node {node}, and the embedded API server asks no kubelets"
            ))),
        }
    }

    pub(crate) fn parse_delete_options(&self) -> Result<DeleteOptions, StatusError> {
        let body = if self.body.is_empty() {
            Value::Null
        } else {
            self.decode_object()?
        };
        DeleteOptions::parse(&body, &self.query)
    }

    fn delete_object(&self, kind: &ServedKind, version: &ServedVersion) -> ServerResponse {
        let key = StoredKey::new(
            self.target.namespace.as_deref().unwrap_or_default(),
            self.target.name.as_deref().unwrap_or_default(),
        );
        match self
            .state
            .api
            .delete_object(kind, &key, &self.parse_delete_options()?)?
        {
            Deleted::Waiting(object) => self.respond_object(kind, version, &object, 200),
            Deleted::Gone(object) if deletion::returns_deleted(kind) => {
                let object = deletion::mark_deleted(kind, &object);
                self.respond_object(kind, version, &object, 200)
            }
            Deleted::Gone(object) => {
                let mut details =
                    json!({"name": key.name, "kind": kind.resource.plural, "uid": object.uid()});
                if !kind.resource.group.is_empty() {
                    details["group"] = kind.resource.group.as_str().into();
                }
                Ok(json_response(
                    200,
                    &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
                ))
            }
        }
    }
}
