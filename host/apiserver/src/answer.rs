//! From a request to its response.

use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT, WARNING};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::{Api, DeleteOptions, Deleted, Door, Edit, FieldValidation, Wrote};
use crate::faults::{Effect, Seen, injected};
use crate::registry::{Kind, Version};
use crate::request::{ListOptions, PatchKind, Query, Shape, Target, Verb};
use crate::server::{Body, State};
use crate::status::ApiError;
use crate::storage::{Key, Stored};
use crate::watch::Watch;
use crate::{control, discovery, protobuf, review, table};

type Answer = Result<Response<Body>, ApiError>;

/// Answers a request; an error closes the connection instead.
pub async fn answer(
    state: Arc<State>,
    parts: Parts,
    body: Bytes,
) -> Result<Response<Body>, io::Error> {
    let path = parts.uri.path().to_owned();
    if let Some(rest) = path.strip_prefix("/_ostler/") {
        return Ok(result(
            control::answer(&state, &parts.method, rest, &body)
                .map(|value| json_response(200, &value)),
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

fn result(answer: Answer) -> Response<Body> {
    answer.unwrap_or_else(|error| {
        let mut response = json_response(error.code, &error.to_value());
        if let Some(seconds) = error.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    })
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn response(code: u16, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json_response(code: u16, value: &Value) -> Response<Body> {
    response(code, "application/json", whole(value.to_string().into()))
}

fn text_response(text: &'static str) -> Response<Body> {
    response(
        200,
        "text/plain; charset=utf-8",
        whole(Bytes::from_static(text.as_bytes())),
    )
}

/// One request on a resource.
struct Call<'a> {
    state: &'a Arc<State>,
    target: Target,
    verb: Verb,
    query: Query,
    parts: &'a Parts,
    body: Bytes,
    seen: &'a Seen,
}

impl Call<'_> {
    fn run(self) -> Answer {
        let target = &self.target;
        if let Some(reviewed) = self.review() {
            return reviewed;
        }
        let kind = self
            .state
            .api
            .registry
            .get(&target.group, &target.resource)
            .ok_or_else(ApiError::no_such_path)?;
        let version = kind
            .version(&target.version)
            .ok_or_else(ApiError::no_such_path)?;
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
                if version.status
                    && matches!(self.verb, Verb::Get | Verb::Update | Verb::Patch(_)) => {}
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
                    Verb::Patch(PatchKind::Apply) => {
                        Edit::Apply(self.object()?, self.query.flag("force"))
                    }
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

    fn review(&self) -> Option<Answer> {
        let known = |(group, plural, ..): &&(&str, &str, &str, bool)| {
            *group == self.target.group && *plural == self.target.resource
        };
        let (_, _, kind, _) = discovery::REVIEWS.iter().find(known)?;
        Some(match self.verb {
            Verb::Create => self
                .object()
                .map(|object| json_response(201, &review::answer(kind, object))),
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

    fn shape(&self) -> Result<Shape, ApiError> {
        Shape::accepted(&self.parts.headers)
    }

    fn include(&self) -> &str {
        self.query.get("includeObject").unwrap_or("Metadata")
    }

    fn one(&self, kind: &Kind, version: &Version, object: &Stored, code: u16) -> Answer {
        let shape = self.shape()?;
        if shape == Shape::Object
            && object.value["apiVersion"] == kind.api_version(&version.name).as_str()
        {
            return Ok(response(
                code,
                "application/json",
                whole(object.json().clone()),
            ));
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

    fn options(&self, kind: &Kind, version: &Version) -> Result<ListOptions, ApiError> {
        let options = self.query.list_options()?;
        for field in options.fields.fields() {
            let known = field == "metadata.name"
                || (field == "metadata.namespace" && kind.namespaced)
                || version.selectable.iter().any(|one| one == field);
            if !known {
                return Err(ApiError::bad_request(format!(
                    "field label not supported: {field}"
                )));
            }
        }
        Ok(options)
    }

    fn list(&self, kind: &Kind, version: &Version) -> Answer {
        let options = self.options(kind, version)?;
        let storage = &self.state.api.storage;
        let namespace = self.target.namespace.as_deref();
        if options.revision_match.is_some() && options.revision.is_none() {
            return Err(ApiError::new(
                422,
                "Invalid",
                "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        let (objects, revision, after) = if let Some(token) = &options.resume {
            let (revision, after) = Token::read(token)?;
            let objects = storage.list_at(&kind.resource, namespace, revision).map_err(|_| {
                ApiError::expired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.")
            })?;
            (objects, revision, Some(after))
        } else if let Some(revision) = options.revision.filter(|_| options.exact) {
            let objects = storage
                .list_at(&kind.resource, namespace, revision)
                .map_err(|compacted| {
                    ApiError::expired(format!(
                        "The resourceVersion for the provided list is too old. (oldest: {})",
                        compacted.oldest
                    ))
                })?;
            (objects, revision, None)
        } else {
            let (objects, revision) = storage.list(&kind.resource, namespace);
            (objects, revision, None)
        };
        if let Some(asked) = options.revision.filter(|asked| *asked > revision) {
            return Err(ApiError::too_large_revision(asked, revision));
        }
        let mut chosen: Vec<Arc<Stored>> = objects
            .into_iter()
            .filter(|object| after.as_ref().is_none_or(|after| object.key() > *after))
            .filter(|object| {
                options.labels.matches(&object.value) && options.fields.matches(&object.value)
            })
            .collect();
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if kind.custom {
            // Lists of custom kinds always have one.
            metadata["continue"] = "".into();
        }
        if let Some(limit) = options.limit.filter(|limit| *limit < chosen.len()) {
            let remaining = chosen.len() - limit;
            chosen.truncate(limit);
            if let Some(last) = chosen.last() {
                metadata["continue"] = Token::write(revision, &last.key()).into();
            }
            if self.query.get("labelSelector").is_none()
                && self.query.get("fieldSelector").is_none()
            {
                metadata["remainingItemCount"] = remaining.into();
            }
        }
        self.many(kind, version, &chosen, &metadata)
    }

    fn many(
        &self,
        kind: &Kind,
        version: &Version,
        objects: &[Arc<Stored>],
        metadata: &Value,
    ) -> Answer {
        let api_version = kind.api_version(&version.name);
        let shape = self.shape()?;
        if shape == Shape::Table {
            let now = Timestamp::now();
            let rows: Vec<Value> = objects
                .iter()
                .map(|object| {
                    table::row(
                        kind,
                        version,
                        &Api::present(kind, version, object),
                        self.include(),
                        now,
                    )
                })
                .collect();
            return Ok(json_response(
                200,
                &json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                    "columnDefinitions": table::headings(kind, version), "rows": rows,
                }),
            ));
        }
        let (list_kind, list_version) = match shape {
            Shape::Partial => ("PartialObjectMetadataList", "meta.k8s.io/v1"),
            _ => (kind.list_kind.as_str(), api_version.as_str()),
        };
        // Objects are written as the text they are kept as, without building the whole list as a value.
        let mut text =
            format!("{{\"apiVersion\":{},\"items\":[", Value::from(list_version)).into_bytes();
        for (index, object) in objects.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            if shape == Shape::Object && object.value["apiVersion"] == api_version.as_str() {
                text.extend_from_slice(object.json());
                continue;
            }
            let value = Api::present(kind, version, object);
            let value = if shape == Shape::Partial {
                table::partial(&value)
            } else {
                value
            };
            text.extend_from_slice(value.to_string().as_bytes());
        }
        text.extend_from_slice(
            format!(
                "],\"kind\":{},\"metadata\":{metadata}}}",
                Value::from(list_kind)
            )
            .as_bytes(),
        );
        Ok(response(200, "application/json", whole(text.into())))
    }

    fn watch(&self, kind: &Arc<Kind>, version: &Version) -> Answer {
        let options = self.options(kind, version)?;
        Watch::check(&options)?;
        let watch = Watch {
            state: self.state.clone(),
            kind: kind.clone(),
            version: version.name.clone(),
            namespace: self.target.namespace.clone(),
            name: self.target.name.clone(),
            options,
            shape: self.shape()?,
            include: self.include().to_owned(),
        };
        let (sender, receiver) = mpsc::channel(64);
        tokio::spawn(watch.run(sender));
        let lines = futures::stream::unfold(receiver, |mut receiver| async move {
            let line = receiver.recv().await?;
            Some((line.map(Frame::data), receiver))
        });
        Ok(response(
            200,
            "application/json;stream=watch",
            StreamBody::new(lines).boxed_unsync(),
        ))
    }

    fn delete_options(&self) -> Result<DeleteOptions, ApiError> {
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

    fn delete_all(&self, kind: &Kind, version: &Version) -> Answer {
        let options = self.options(kind, version)?;
        let how = self.delete_options()?;
        let (objects, revision) = self
            .state
            .api
            .storage
            .list(&kind.resource, self.target.namespace.as_deref());
        let mut deleted = Vec::new();
        for object in objects {
            if !options.labels.matches(&object.value) || !options.fields.matches(&object.value) {
                continue;
            }
            match self.state.api.delete(kind, &object.key(), &how) {
                Ok(Deleted::Gone(object) | Deleted::Waiting(object)) => deleted.push(object),
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        self.many(
            kind,
            version,
            &deleted,
            &json!({"resourceVersion": revision.to_string()}),
        )
    }
}

/// Page tokens: the revision of the list and the last key sent.
struct Token;

impl Token {
    fn write(revision: u64, last: &Key) -> String {
        URL_SAFE_NO_PAD.encode(json!([revision, last.namespace, last.name]).to_string())
    }

    fn read(token: &str) -> Result<(u64, Key), ApiError> {
        let (revision, namespace, name): (u64, String, String) = URL_SAFE_NO_PAD
            .decode(token)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .ok_or_else(|| {
                ApiError::bad_request("continue key is not valid: it was not made by this server")
            })?;
        Ok((revision, Key { namespace, name }))
    }
}
