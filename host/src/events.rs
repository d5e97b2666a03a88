//! Kubernetes Events: the same one again is counted, not repeated, and not too often.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{effects::Effects, key::ObjectRef, object::Object};

/// The same event within this time is only counted.
const QUIET: Duration = Duration::from_secs(60);
/// Distinct events remembered.
const REMEMBERED: usize = 4096;

/// Writes Events.
#[derive(Default)]
pub struct Recorder {
    known: Mutex<HashMap<Key, Known>>,
}

type Key = (Box<str>, bool, String, String);

struct Known {
    name: String,
    count: u64,
    written: Instant,
}

impl Recorder {
    /// Records an event about an object; gives whether something was sent. A failure is logged and the
    /// event dropped: an Event is news, not state.
    #[allow(clippy::too_many_arguments)]
    pub async fn record(
        &self,
        effects: &Effects,
        component: &str,
        key: &ObjectRef,
        object: &Object,
        warning: bool,
        reason: &str,
        note: &str,
    ) -> bool {
        let kind = if warning { "Warning" } else { "Normal" };
        let note: String = note.chars().take(1000).collect();
        tracing::info!(object = %key, plugin = component, kind, reason, "{note}");
        let namespace = if key.namespace.is_empty() {
            "default"
        } else {
            &key.namespace
        };
        let now = crate::time::now_rfc3339();
        let known = {
            let id = (object.uid.clone(), warning, reason.to_owned(), note.clone());
            let mut known = self.known.lock().expect("lock");
            if known.len() >= REMEMBERED {
                known.retain(|_, k| k.written.elapsed() < QUIET);
            }
            match known.get_mut(&id) {
                Some(k) => {
                    k.count += 1;
                    if k.written.elapsed() < QUIET {
                        return false;
                    }
                    k.written = Instant::now();
                    Some((k.name.clone(), k.count))
                }
                None => {
                    let name = format!("{}.{:x}", key.name, crate::time::unique());
                    let first = Known {
                        name: name.clone(),
                        count: 1,
                        written: Instant::now(),
                    };
                    known.insert(id, first);
                    Some((name, 1))
                }
            }
        };
        let Some((name, count)) = known else { return false };
        let sent = if count > 1 {
            let patch = json!({"count": count, "lastTimestamp": now});
            effects.event_again(namespace, &name, &patch).await
        } else {
            let event = json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "apiVersion": key.gvk.api_version(),
                    "kind": &*key.gvk.kind,
                    "namespace": &*key.namespace,
                    "name": &*key.name,
                    "uid": &*object.uid,
                    "resourceVersion": object.resource_version.to_string(),
                },
                "type": kind,
                "reason": reason,
                "message": note,
                "source": {"component": component},
                "reportingComponent": format!("ostler.dev/{component}"),
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            });
            effects.event(namespace, &event).await.map(drop)
        };
        if let Err(e) = &sent {
            tracing::warn!(object = %key, reason, "event dropped: {e}");
        }
        sent.is_ok()
    }
}
