//! Requests on collections: list with pagination, watch, deletecollection.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use ostler_schema::FieldError;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::deletion::Deleted;
use crate::handler::ResourceRequest;
use crate::kind::{ServedKind, ServedVersion};
use crate::request::{ListOptions, ResponseShape};
use crate::response::{ServerResponse, build_response, full_body, json_response};
use crate::state::RequestHandler;
use crate::status::StatusError;
use crate::storage::{StoredKey, StoredObject};
use crate::table;
use crate::watch::WatchRequest;

impl ResourceRequest<'_> {
    /// The options of a request, after `validate` has checked how they fit together: the real server does so before it looks at the
    /// fields that they select by.
    fn list_options(
        &self,
        kind: &ServedKind,
        version: &ServedVersion,
        validate: impl FnOnce(&ListOptions) -> Result<(), StatusError>,
    ) -> Result<ListOptions, StatusError> {
        let options = self.query.parse_list_options()?;
        validate(&options)?;
        for field in options.fields.paths() {
            let known = field == "metadata.name"
                || (field == "metadata.namespace" && kind.namespaced)
                || version.selectable.iter().any(|one| one == field);
            if !known {
                return Err(StatusError::bad_request(format!(
                    "field label not supported: {field}"
                )));
            }
        }
        Ok(options)
    }

    pub(crate) fn list_objects(&self, kind: &ServedKind, version: &ServedVersion) -> ServerResponse {
        let options = self.list_options(kind, version, validate_list_options)?;
        let storage = &self.state.api.storage;
        let namespace = self.target.namespace.as_deref();
        let (objects, revision, after) = if let Some(token) = &options.resume {
            let (revision, after) = PageToken::decode(token)?;
            let objects = storage.list_at(&kind.resource, namespace, revision).map_err(|_| {
                StatusError::expired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.")
            })?;
            (objects, revision, Some(after))
        } else if let Some(revision) = options.revision.filter(|_| options.exact) {
            let objects = storage
                .list_at(&kind.resource, namespace, revision)
                .map_err(|compacted| {
                    StatusError::expired(format!(
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
            return Err(StatusError::too_large_revision(asked, revision));
        }
        // A list of one name reads that object only.
        let has_one_place = namespace.is_some() || !kind.namespaced;
        let name = options.fields.required_name().filter(|_| has_one_place);
        let mut objects = objects.into_iter().filter(|object| {
            let key = object.key();
            name.is_none_or(|name| key.name == name) && after.as_ref().is_none_or(|after| key > *after)
        });
        let selected = objects.by_ref().filter(|object| options.selects(&object.value));
        let chosen: Vec<Arc<StoredObject>> = selected.take(options.limit.unwrap_or(usize::MAX)).collect();
        // A page that is full is followed by another one if there are more objects, whether or not these are selected.
        let remaining = objects.count();
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if let Some(last) = chosen.last().filter(|_| remaining > 0) {
            metadata["continue"] = PageToken::encode(revision, &last.key()).into();
            if self.query.get("labelSelector").is_none() && self.query.get("fieldSelector").is_none() {
                metadata["remainingItemCount"] = remaining.into();
            }
        } else if kind.custom && self.accepted_shape()? == ResponseShape::Object {
            // The real server sends an empty token in lists of custom kinds.
            metadata["continue"] = "".into();
        }
        self.respond_list(kind, version, &chosen, &metadata)
    }

    pub(crate) fn respond_list(
        &self,
        kind: &ServedKind,
        version: &ServedVersion,
        objects: &[Arc<StoredObject>],
        metadata: &Value,
    ) -> ServerResponse {
        let api_version = kind.api_version(&version.name);
        let shape = self.accepted_shape()?;
        if shape == ResponseShape::Table {
            let now = Timestamp::now();
            let rows: Vec<Value> = objects
                .iter()
                .map(|object| {
                    table::build_row(
                        kind,
                        version,
                        &RequestHandler::convert_to_version(kind, version, object),
                        self.include_object(),
                        now,
                    )
                })
                .collect();
            return Ok(json_response(
                200,
                &json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                    "columnDefinitions": table::column_definitions(kind, version), "rows": rows,
                }),
            ));
        }
        let (list_kind, list_version) = match shape {
            ResponseShape::Partial => ("PartialObjectMetadataList", "meta.k8s.io/v1"),
            _ => (kind.list_kind.as_str(), api_version.as_str()),
        };
        if objects.is_empty() && shape == ResponseShape::Partial {
            let empty =
                json!({"apiVersion": list_version, "kind": list_kind, "metadata": metadata, "items": null});
            return Ok(json_response(200, &empty));
        }
        // Objects are copied as stored JSON text, without building the list as a value.
        let mut text = format!("{{\"apiVersion\":{},\"items\":[", Value::from(list_version)).into_bytes();
        for (index, object) in objects.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            let is_stored_version = object.value["apiVersion"] == api_version.as_str();
            if kind.custom && shape == ResponseShape::Object && is_stored_version {
                text.extend_from_slice(object.json());
                continue;
            }
            let mut value = RequestHandler::convert_to_version(kind, version, object);
            if shape == ResponseShape::Partial {
                value = table::partial_object(&value);
            } else if !kind.custom
                && let Some(fields) = value.as_object_mut()
            {
                // The type of built-in objects is that of their list.
                fields.remove("apiVersion");
                fields.remove("kind");
            }
            text.extend_from_slice(value.to_string().as_bytes());
        }
        text.extend_from_slice(
            format!("],\"kind\":{},\"metadata\":{metadata}}}", Value::from(list_kind)).as_bytes(),
        );
        Ok(build_response(200, "application/json", full_body(text.into())))
    }

    pub(crate) fn start_watch(&self, kind: &Arc<ServedKind>, version: &ServedVersion) -> ServerResponse {
        let options = self.list_options(kind, version, WatchRequest::validate_options)?;
        let watch = WatchRequest {
            state: self.state.clone(),
            kind: kind.clone(),
            version: version.name.clone(),
            namespace: self.target.namespace.clone(),
            name: self.target.name.clone(),
            options,
            shape: self.accepted_shape()?,
            include: self.include_object().to_owned(),
        };
        let (sender, receiver) = mpsc::channel(64);
        tokio::spawn(watch.run_watch(sender));
        let lines = futures::stream::unfold(receiver, |mut receiver| async move {
            let line = receiver.recv().await?;
            Some((line.map(Frame::data), receiver))
        });
        Ok(build_response(
            200,
            "application/json;stream=watch",
            StreamBody::new(lines).boxed_unsync(),
        ))
    }

    pub(crate) fn delete_collection(&self, kind: &ServedKind, version: &ServedVersion) -> ServerResponse {
        let options = self.list_options(kind, version, |_| Ok(()))?;
        let how = self.parse_delete_options()?;
        let (objects, revision) = self
            .state
            .api
            .storage
            .list(&kind.resource, self.target.namespace.as_deref());
        let mut deleted = Vec::new();
        for object in objects {
            if !options.selects(&object.value) {
                continue;
            }
            match self.state.api.delete_object(kind, &object.key(), &how) {
                Ok(Deleted::Gone(object) | Deleted::Waiting(object)) => deleted.push(object),
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        self.respond_list(
            kind,
            version,
            &deleted,
            &json!({"resourceVersion": revision.to_string()}),
        )
    }
}

fn validate_list_options(options: &ListOptions) -> Result<(), StatusError> {
    let refuse = |field: &str, why: &str| {
        let cause = FieldError::forbidden(field, why);
        Err(StatusError::invalid_options("ListOptions", cause))
    };
    if options.initial_events.is_some() {
        return refuse("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    if options.revision_match.is_some() && options.revision.is_none() {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        return refuse("resourceVersionMatch", why);
    }
    if options.exact && options.revision == Some(0) {
        let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
        return refuse("resourceVersionMatch", why);
    }
    Ok(())
}

/// The continue token of a list: its revision and the last key sent.
struct PageToken;

impl PageToken {
    fn encode(revision: u64, last: &StoredKey) -> String {
        URL_SAFE_NO_PAD.encode(json!([revision, last.namespace, last.name]).to_string())
    }

    fn decode(token: &str) -> Result<(u64, StoredKey), StatusError> {
        let (revision, namespace, name): (u64, String, String) = URL_SAFE_NO_PAD
            .decode(token)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .ok_or_else(|| {
                StatusError::bad_request("continue key is not valid: it was not made by this server")
            })?;
        Ok((revision, StoredKey { namespace, name }))
    }
}
