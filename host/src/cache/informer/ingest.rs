//! What lists and watches bring, taken into the store; no I/O.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::warn;

use crate::{
    cache::store::{Change, Origin, Put, Query, Store},
    client::api::{ApiError, parse, status_error},
    kube::{key::ObjectRef, object::Object, scope::Scope},
};

/// Told of each change, in order per object. Must not block.
pub type Listener = Arc<dyn Fn(Change, Origin) + Send + Sync>;

/// Takes in what one informer brings.
pub(super) struct Intake {
    pub(super) store: Arc<Store>,
    pub(super) listener: Listener,
    pub(super) scope: Scope,
}

/// What an event of a watch was.
pub(super) enum Seen {
    /// About an object, with its version; the key where the object is there.
    Object(Option<ObjectRef>, String),
    /// So far everything was told; `true` at the end of a streaming list.
    Bookmark(String, bool),
    /// The version is not known any more.
    TooOld,
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

impl Intake {
    /// Takes one event in.
    pub(super) fn event(&self, line: &[u8], origin: Origin) -> Result<Seen, ApiError> {
        let event: Event = parse(line)?;
        let json = event.object.get();
        #[derive(Deserialize)]
        struct Versioned {
            metadata: EventMeta,
        }
        let meta = |json: &str| parse::<Versioned>(json.as_bytes()).map(|v| v.metadata);
        match event.r#type {
            "ERROR" => match status_error(0, None, json.as_bytes()) {
                e if e.code() == 410 => Ok(Seen::TooOld),
                e => Err(e),
            },
            "DELETED" => {
                if let Ok((key, object)) = Object::parse(&self.scope.gvk, json.as_bytes()) {
                    let key = key.in_cluster(&self.scope.cluster);
                    let version = object.resource_version;
                    self.tell(self.store.remove(&self.scope, &key, &object.uid, version), origin);
                }
                Ok(Seen::Object(None, meta(json)?.resource_version))
            }
            "BOOKMARK" => {
                let meta = meta(json)?;
                let end = meta.annotations.get("k8s.io/initial-events-end");
                Ok(Seen::Bookmark(
                    meta.resource_version,
                    end.is_some_and(|e| e == "true"),
                ))
            }
            _ => Ok(Seen::Object(self.put(json, origin), meta(json)?.resource_version)),
        }
    }

    /// Takes an object in. One that can't be read is skipped and said so; its neighbours go on.
    pub(super) fn put(&self, json: &str, origin: Origin) -> Option<ObjectRef> {
        match Object::parse(&self.scope.gvk, json.as_bytes()) {
            Ok((key, object)) => {
                let key = key.in_cluster(&self.scope.cluster);
                let change = match self.store.put(&key, object, self.scope.form, origin) {
                    Put::News(change) => Some(change),
                    Put::Known | Put::Stray(_) => None,
                    Put::Overtaken(newer) => Some(Change {
                        key: key.clone(),
                        old: Some(newer.clone()),
                        new: Some(newer),
                    }),
                };
                self.tell(change, origin);
                Some(key)
            }
            Err(e) => {
                warn!(kind = %self.scope.gvk, error = %e, "skipping malformed object");
                None
            }
        }
    }

    /// A list is done, as of a version: what it did not have has gone while nobody watched.
    pub(super) fn listed(&self, seen: &HashSet<ObjectRef>, gone: u64, complete: u64, origin: Origin) {
        self.store.listed(&self.scope, complete);
        for (key, object) in self.store.list(&self.scope, &Query::default()) {
            if !seen.contains(&key) {
                self.tell(self.store.remove(&self.scope, &key, &object.uid, gone), origin);
            }
        }
    }

    fn tell(&self, change: Option<Change>, origin: Origin) {
        if let Some(change) = change {
            (self.listener)(change, origin);
        }
    }
}
