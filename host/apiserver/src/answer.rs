//! From a request to its response.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT, WARNING};
use http::request::Parts;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{Api, Door, Edit, FieldValidation, Wrote};
use crate::deletion::{DeleteOptions, Deleted};
use crate::faults::{Effect, Seen, injected};
use crate::kind::{Kind, Version};
use crate::rbac::{self, User, Wish};
use crate::request::{PatchKind, Query, Shape, Target, Verb};
use crate::response::{Answer, Body, json_response, response, result, text_response, whole};
use crate::state::State;
use crate::status::ApiError;
use crate::storage::{Key, Stored};
use crate::{control, discovery, protobuf, review, table};

/// Answers a request; an error closes the connection instead.
pub async fn answer(state: Arc<State>, parts: Parts, body: Bytes) -> Result<Response<Body>, io::Error> {
    let path = parts.uri.path().to_owned();
    if let Some(rest) = path.strip_prefix("/_ostler/") {
        return Ok(result(
            control::answer(&state, &parts.method, rest, &body).map(|value| json_response(200, &value)),
        ));
    }
    let query = Query::parse(parts.uri.query());
    let target = Target::parse(&path);
    let verb = target
        .as_ref()
        .map(|target| Verb::of(&parts.method, target, &query, &parts.headers));
    let header = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
            .unwrap_or_default()
    };
    let seen = Seen {
        method: parts.method.to_string(),
        verb: match &verb {
            Some(Ok(verb)) => verb.as_str(),
            _ => "get",
        },
        path: path.clone(),
        resource: target.as_ref().map(Target::counted_as).unwrap_or_default(),
        user_agent: header(USER_AGENT).to_owned(),
        dry_run: query.dry_run().unwrap_or_default(),
    };
    let writes = matches!(&verb, Some(Ok(verb)) if verb.writes());
    if target.is_some() {
        state.counters.record(&seen, writes);
    }
    tokio::time::sleep(state.faults.latency()).await;
    let mut drop_answer = false;
    match state.faults.meet(&seen) {
        Some(Effect::Respond { code, retry_after }) => {
            return Ok(result(Err(injected(code, retry_after))));
        }
        Some(Effect::Drop) => return Err(io::Error::other("dropped by an injected fault")),
        Some(Effect::DropAnswer) => drop_answer = true,
        Some(Effect::Delay(ms)) => tokio::time::sleep(std::time::Duration::from_millis(ms)).await,
        None => {}
    }
    let answer = match (target, verb) {
        (Some(target), Some(Ok(verb))) => Call {
            state: &state,
            target,
            verb,
            query,
            parts: &parts,
            body,
            seen: &seen,
        }
        .run(),
        (Some(_), Some(Err(error))) => Err(error),
        _ if matches!(path.split('/').nth(1), Some("healthz" | "livez" | "readyz")) => {
            Ok(text_response("ok"))
        }
        _ => discovery::answer(&state.api.registry, &path, &state.address.to_string())
            .unwrap_or_else(|| Err(ApiError::no_such_path()))
            .map(|value| json_response(200, &value)),
    };
    if drop_answer {
        return Err(io::Error::other("answer dropped by an injected fault"));
    }
    Ok(result(answer))
}

/// One request on a resource.
pub(crate) struct Call<'a> {
    pub(crate) state: &'a Arc<State>,
    pub(crate) target: Target,
    pub(crate) verb: Verb,
    pub(crate) query: Query,
    pub(crate) parts: &'a Parts,
    pub(crate) body: Bytes,
    pub(crate) seen: &'a Seen,
}

impl Call<'_> {
    fn run(self) -> Answer {
        let target = &self.target;
        self.authorized()?;
        if let Some(reviewed) = self.review() {
            return reviewed;
        }
        let kind = self
            .state
            .api
            .registry
            .get(&target.group, &target.resource)
            .ok_or_else(ApiError::no_such_path)?;
        let version = kind.version(&target.version).ok_or_else(ApiError::no_such_path)?;
        if target.namespace.is_some() && !kind.namespaced {
            return Err(ApiError::no_such_path());
        }
        let one_without_namespace = kind.namespaced
            && target.namespace.is_none()
            && (target.name.is_some() || self.verb == Verb::Create);
        if one_without_namespace {
            return Err(ApiError::no_such_path());
        }
        match target.subresource.as_deref() {
            None => {}
            Some("status")
                if version.status && matches!(self.verb, Verb::Get | Verb::Update | Verb::Patch(_)) => {}
            Some("finalize") if kind.kind == "Namespace" && self.verb == Verb::Update => {}
            Some(_) => return Err(ApiError::no_such_path()),
        }
        match self.verb {
            Verb::Get => self.get(&kind, version),
            Verb::List => self.list(&kind, version),
            Verb::Watch => self.watch(&kind, version),
            Verb::Create => {
                let object = self.object()?;
                let door = self.door(&kind, version)?;
                let wrote = self
                    .state
                    .api
                    .create(&door, target.namespace.as_deref(), object)?;
                self.wrote(&kind, version, &wrote)
            }
            Verb::Update | Verb::Patch(_) => {
                let name = target.name.as_deref().unwrap_or_default();
                let edit = match self.verb {
                    Verb::Patch(PatchKind::Apply) => Edit::Apply(self.object()?, self.query.flag("force")),
                    Verb::Patch(patch) => Edit::Patch(patch, self.object()?),
                    _ => Edit::Replace(self.object()?),
                };
                if kind.custom && self.verb == Verb::Patch(PatchKind::Strategic) {
                    return Err(ApiError::unsupported_media_type(
                        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                    ));
                }
                let door = self.door(&kind, version)?;
                let wrote = self
                    .state
                    .api
                    .edit(&door, target.namespace.as_deref(), name, &edit)?;
                self.wrote(&kind, version, &wrote)
            }
            Verb::Delete => self.delete(&kind, version),
            Verb::DeleteCollection => self.delete_all(&kind, version),
        }
    }

    /// Whether whoever is impersonated may do this. An apply that creates needs to be allowed to, as well.
    fn authorized(&self) -> Result<(), ApiError> {
        let Some(user) = User::impersonated(&self.parts.headers) else {
            return Ok(());
        };
        let api = &self.state.api;
        let wish = Wish::of(&self.target, self.verb);
        rbac::check(api, &user, &wish)?;
        let kind = api.registry.get(&self.target.group, &self.target.resource);
        if self.verb == Verb::Patch(PatchKind::Apply)
            && let Some(kind) = kind
            && api
                .storage
                .get(&kind.resource, &Key::new(&wish.namespace, &wish.name))
                .is_none()
        {
            let verb = "create".into();
            rbac::check(api, &user, &Wish { verb, ..wish })?;
        }
        Ok(())
    }

    fn review(&self) -> Option<Answer> {
        let known = |(group, plural, ..): &&(&str, &str, &str, bool)| {
            *group == self.target.group && *plural == self.target.resource
        };
        let (_, _, kind, _) = discovery::REVIEWS.iter().find(known)?;
        Some(match self.verb {
            Verb::Create => {
                // Nobody is refused, so what the client asks for in an encoding not read here doesn't matter.
                let named = json!({"apiVersion": format!("{}/v1", self.target.group), "kind": kind});
                let object = self.object().unwrap_or(named);
                Ok(json_response(
                    201,
                    &review::answer(&self.state.api, &self.parts.headers, kind, object),
                ))
            }
            _ => Err(ApiError::method_not_allowed()),
        })
    }

    /// The body as JSON; YAML is read too.
    fn object(&self) -> Result<Value, ApiError> {
        let media = self
            .parts
            .headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("application/json");
        let media = media.split(';').next().unwrap_or_default().trim();
        if media == "application/vnd.kubernetes.protobuf" {
            let unknown = || ApiError::unsupported_media_type("application/json, application/yaml");
            return protobuf::read(&self.body).ok_or_else(unknown);
        }
        if media.ends_with("cbor") {
            return Err(ApiError::unsupported_media_type(
                "application/json, application/yaml",
            ));
        }
        let yaml = media.ends_with("yaml");
        match serde_json::from_slice(&self.body) {
            Ok(value) => Ok(value),
            Err(_) if yaml => std::str::from_utf8(&self.body)
                .map_err(|error| error.to_string())
                .and_then(|text| serde_saphyr::from_str(text).map_err(|error| error.to_string()))
                .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}"))),
            Err(error) => Err(ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): {error}",
                self.target.resource
            ))),
        }
    }

    fn door<'d>(&'d self, kind: &'d Kind, version: &'d Version) -> Result<Door<'d>, ApiError> {
        let given = self.query.get("fieldManager");
        if given.is_some_and(|manager| manager.len() > 128) {
            return Err(ApiError::new(
                422,
                "Invalid",
                "fieldManager: Too long: may not be more than 128 bytes",
            ));
        }
        // Clients that say no name are known by their program's.
        let program = self
            .seen
            .user_agent
            .split('/')
            .next()
            .filter(|name| !name.is_empty())
            .unwrap_or("unknown");
        Ok(Door {
            kind,
            version,
            subresource: self.target.subresource.as_deref().unwrap_or_default(),
            manager: match self.verb {
                Verb::Patch(PatchKind::Apply) => given.unwrap_or_default(),
                _ => given.unwrap_or(program),
            },
            validation: match self.query.get("fieldValidation") {
                Some("Strict") => FieldValidation::Strict,
                Some("Ignore") => FieldValidation::Ignore,
                None | Some("Warn") => FieldValidation::Warn,
                Some(other) => {
                    return Err(ApiError::new(
                        422,
                        "Invalid",
                        format!(
                            "fieldValidation: Unsupported value: \"{other}\": supported values: \"Ignore\", \"Strict\", \"Warn\""
                        ),
                    ));
                }
            },
            dry_run: self.query.dry_run()?,
        })
    }

    pub(crate) fn shape(&self) -> Result<Shape, ApiError> {
        Shape::accepted(&self.parts.headers)
    }

    pub(crate) fn include(&self) -> &str {
        self.query.get("includeObject").unwrap_or("Metadata")
    }

    fn one(&self, kind: &Kind, version: &Version, object: &Stored, code: u16) -> Answer {
        let shape = self.shape()?;
        if shape == Shape::Object && object.value["apiVersion"] == kind.api_version(&version.name).as_str() {
            return Ok(response(code, "application/json", whole(object.json().clone())));
        }
        let value = Api::present(kind, version, object);
        Ok(json_response(
            code,
            &match shape {
                Shape::Object => value,
                Shape::Partial => table::partial(&value),
                Shape::Table => json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": value["metadata"]["resourceVersion"]},
                    "columnDefinitions": table::headings(kind, version),
                    "rows": [table::row(kind, version, &value, self.include(), Timestamp::now())],
                }),
            },
        ))
    }

    fn wrote(&self, kind: &Kind, version: &Version, wrote: &Wrote) -> Answer {
        let mut response = self.one(
            kind,
            version,
            &wrote.object,
            if wrote.created { 201 } else { 200 },
        )?;
        for warning in &wrote.warnings {
            let escaped = warning.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
                response.headers_mut().append(WARNING, value);
            }
        }
        Ok(response)
    }

    fn get(&self, kind: &Kind, version: &Version) -> Answer {
        let name = self.target.name.as_deref().unwrap_or_default();
        let key = Key::new(self.target.namespace.as_deref().unwrap_or_default(), name);
        let object = self
            .state
            .api
            .storage
            .get(&kind.resource, &key)
            .ok_or_else(|| ApiError::not_found(kind.subject(name)))?;
        self.one(kind, version, &object, 200)
    }

    pub(crate) fn delete_options(&self) -> Result<DeleteOptions, ApiError> {
        let body = if self.body.is_empty() {
            Value::Null
        } else {
            self.object()?
        };
        DeleteOptions::read(&body, &self.query)
    }

    fn delete(&self, kind: &Kind, version: &Version) -> Answer {
        let key = Key::new(
            self.target.namespace.as_deref().unwrap_or_default(),
            self.target.name.as_deref().unwrap_or_default(),
        );
        match self.state.api.delete(kind, &key, &self.delete_options()?)? {
            Deleted::Waiting(object) => self.one(kind, version, &object, 200),
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
