//! Interpretation of list items and watch events, which go into the store; no I/O.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::warn;

use crate::{
    cache::store::{ListQuery, ObjectChange, Put, Store, VersionSource},
    client::api::{ApiError, parse_response, status_error},
    kube::{
        key::ObjectRef,
        object::KubeObject,
        raw_json::Text,
        scope::{Projection, Scope},
        uid::Uid,
    },
};

/// A callback for each change, in order per object. It must not block.
pub type ChangeHandler = Arc<dyn Fn(ObjectChange, VersionSource) + Send + Sync>;

/// The path of one informer's objects into the store.
pub(super) struct Ingest {
    pub(super) store: Arc<Store>,
    pub(super) handler: ChangeHandler,
    pub(super) scope: Scope,
}

/// An interpreted watch event.
pub(super) enum WatchEvent {
    /// An object was added, modified or deleted; the key is none after a deletion.
    Object {
        /// The object.
        key: Option<ObjectRef>,
        /// Its resourceVersion.
        version: String,
    },
    /// All changes up to a version have been delivered.
    Bookmark {
        /// The resourceVersion.
        version: String,
        /// True for the bookmark that ends the list part of a streaming list.
        ends_initial_events: bool,
    },
    /// The server no longer knows the version (`410 Gone`): list again.
    Expired,
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The fields by which an object of an event is recognized, without the rest of it.
#[derive(Deserialize)]
struct ObjectHeader<'a> {
    #[serde(borrow)]
    metadata: HeaderMeta<'a>,
}

/// Identity and version of an object. Where one is missing or null, the object is not recognized and parsed as a whole.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeaderMeta<'a> {
    #[serde(borrow)]
    namespace: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    uid: Option<Text<'a>>,
    #[serde(borrow)]
    resource_version: Option<Text<'a>>,
}

impl HeaderMeta<'_> {
    fn resource_version(&self) -> &str {
        self.resource_version.as_ref().map_or("", |text| &text.0)
    }
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

impl Ingest {
    /// Applies one watch event to the store.
    pub(super) fn apply_event(&self, line: &[u8], source: VersionSource) -> Result<WatchEvent, ApiError> {
        let event: RawEvent = parse_response(line)?;
        let json = event.object.get();
        let header = || parse_response::<ObjectHeader>(json.as_bytes()).map(|header| header.metadata);
        match event.r#type {
            "ERROR" => {
                let error = status_error(0, None, json.as_bytes());
                if error.is_gone() {
                    Ok(WatchEvent::Expired)
                } else {
                    Err(error)
                }
            }
            "DELETED" => {
                if let Ok((key, object)) = KubeObject::parse(&self.scope.gvk, json.as_bytes()) {
                    let key = key.with_cluster(&self.scope.cluster);
                    let version = object.resource_version;
                    let change = self.store.remove(&self.scope, &key, &object.uid, version);
                    self.report_change(change, source);
                }
                Ok(WatchEvent::Object {
                    key: None,
                    version: header()?.resource_version().to_owned(),
                })
            }
            "BOOKMARK" => {
                let Bookmark { metadata: meta } = parse_response(json.as_bytes())?;
                let end = meta.annotations.get("k8s.io/initial-events-end");
                Ok(WatchEvent::Bookmark {
                    version: meta.resource_version,
                    ends_initial_events: end.is_some_and(|e| e == "true"),
                })
            }
            _ => {
                let header = header()?;
                let cached = self.find_cached(&header, source);
                Ok(WatchEvent::Object {
                    key: cached.or_else(|| self.apply_object(json, source)),
                    version: header.resource_version().to_owned(),
                })
            }
        }
    }

    /// The object of a watch's event whose version is cached: mostly that of a write of the host's own, whose response came before.
    /// The rest of it needs no parsing. A list shows the same version anew after a change of the schema.
    fn find_cached(&self, header: &HeaderMeta, source: VersionSource) -> Option<ObjectRef> {
        if source != VersionSource::Watch || self.scope.projection != Projection::Full {
            return None;
        }
        let Scope { gvk, cluster, .. } = &self.scope;
        let version = header.resource_version().parse().ok()?;
        let namespace = header.namespace.as_ref().map_or("", |text| &text.0);
        let key = ObjectRef::new_in_cluster(gvk, cluster, namespace, (&*header.name.as_ref()?.0).into());
        let uid = Uid::from(&*header.uid.as_ref()?.0);
        let is_cached = self.store.confirm_version(&self.scope, &key, &uid, version);
        is_cached.then_some(key)
    }

    /// Puts an object into the store. An unreadable one is skipped with a warning, so that it does not block its
    /// neighbours.
    pub(super) fn apply_object(&self, json: &str, source: VersionSource) -> Option<ObjectRef> {
        match KubeObject::parse(&self.scope.gvk, json.as_bytes()) {
            Ok((key, object)) => {
                let key = key.with_cluster(&self.scope.cluster);
                let change = match self.store.put(&key, object, self.scope.projection, source) {
                    Put::Changed(change) => Some(change),
                    Put::Unchanged | Put::Unwatched(_) => None,
                    Put::Superseded(newer) => Some(ObjectChange {
                        key: key.clone(),
                        old: Some(newer.clone()),
                        new: Some(newer),
                    }),
                };
                self.report_change(change, source);
                Some(key)
            }
            Err(e) => {
                warn!(kind = %self.scope.gvk, error = %e, "skipping malformed object");
                None
            }
        }
    }

    /// Ends a list as of `version`: cached objects that it did not contain were deleted while no watch ran. A version
    /// that is not a number orders nothing, so then no late write response is refused because of it.
    pub(super) fn complete_list(
        &self,
        seen: &HashSet<ObjectRef>,
        version: Option<u64>,
        source: VersionSource,
    ) {
        self.store.complete_list(&self.scope, version.unwrap_or(0));
        for (key, object) in self.store.list(&self.scope, &ListQuery::default()) {
            if !seen.contains(&key) {
                let as_of = version.unwrap_or(u64::MAX);
                let change = self.store.remove(&self.scope, &key, &object.uid, as_of);
                self.report_change(change, source);
            }
        }
    }

    /// Reports all cached objects as new: after a panic, changes may have been stored and not reported. An object whose
    /// report panics again is skipped.
    pub(super) fn report_all(&self) {
        for (key, object) in self.store.list(&self.scope, &ListQuery::default()) {
            let change = ObjectChange {
                key,
                old: None,
                new: Some(object),
            };
            let report = || (self.handler)(change, VersionSource::InitialList);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(report));
        }
    }

    fn report_change(&self, change: Option<ObjectChange>, source: VersionSource) {
        if let Some(change) = change {
            (self.handler)(change, source);
        }
    }
}
