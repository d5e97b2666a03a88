//! Write responses go into the store, and wake the objects that they concern; no I/O.

use std::sync::Arc;

use serde::Deserialize;

use crate::{
    cache::store::{ObjectChange, Put, Store, VersionSource},
    client::api::ApiError,
    kube::{key::ObjectRef, object::KubeObject, scope::Projection, uid::Uid},
    schedule::dispatcher::{Dispatcher, WriteExpectation},
};

/// The origin of the changes that a response shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Authorship {
    /// The requesting reconcile knows everything in the response: it knew the previous version and wrote the rest.
    Own,
    /// The response may show foreign changes that the requesting reconcile has not seen.
    Foreign,
}

impl Authorship {
    /// [`Authorship::Own`] if the condition holds.
    pub(super) fn own_if(own: bool) -> Self {
        if own { Self::Own } else { Self::Foreign }
    }
}

/// Callback for a change of the store that a response shows, before it wakes anything. The watch does not report it again.
pub type ChangeObserver = Arc<dyn Fn(&ObjectChange) + Send + Sync>;

/// Stores the responses to requests about objects.
pub(super) struct WriteResponses {
    store: Arc<Store>,
    dispatcher: Arc<Dispatcher>,
    observer: ChangeObserver,
}

/// A request without a response yet. On drop, wake-ups that were held meanwhile are delivered.
pub(super) struct PendingResponse<'a> {
    responses: &'a WriteResponses,
    key: &'a ObjectRef,
    by: &'a ObjectRef,
    expectation: WriteExpectation,
}

impl WriteResponses {
    pub(super) fn new(store: Arc<Store>, dispatcher: Arc<Dispatcher>) -> Self {
        Self {
            store,
            dispatcher,
            observer: Arc::new(|_| {}),
        }
    }

    /// Sets the callback for changes.
    pub(super) fn set_observer(&mut self, observer: ChangeObserver) {
        self.observer = observer;
    }

    /// Reports a change of the store, which was made for the reconcile of `by` if that is known.
    fn report_change(&self, change: &ObjectChange, by: Option<&ObjectRef>) {
        (self.observer)(change);
        self.dispatcher
            .on_change(change, VersionSource::WriteResponse, by);
    }

    /// Announces a request about the object `key`, sent for the reconcile of `by`.
    pub(super) fn expect_response<'a>(
        &'a self,
        key: &'a ObjectRef,
        by: &'a ObjectRef,
    ) -> PendingResponse<'a> {
        let expectation = self.dispatcher.expect_write(key, by);
        PendingResponse {
            responses: self,
            key,
            by,
            expectation,
        }
    }

    /// Stores an object that was just read, and wakes its dependants.
    pub(super) fn store_read(&self, key: &ObjectRef, response: &[u8]) -> Result<(), ApiError> {
        let (key, object) = parse_object(key, response)?;
        let put = self
            .store
            .put(&key, object, Projection::Full, VersionSource::WriteResponse);
        if let Put::Changed(change) = put {
            self.report_change(&change, None);
        }
        Ok(())
    }
}

impl PendingResponse<'_> {
    /// Stores the response and returns the current object. With [`Authorship::Own`] the requesting reconcile is not
    /// woken; otherwise it is, no matter if the watch or the response delivered the version first.
    pub(super) fn store_response(
        self,
        response: &[u8],
        authorship: Authorship,
    ) -> Result<Arc<KubeObject>, ApiError> {
        self.store_response_of(response, |_| authorship)
    }

    /// Stores the response as [`PendingResponse::store_response`] does, with the authorship that follows from the object in it.
    pub(super) fn store_response_of(
        self,
        response: &[u8],
        judge: impl FnOnce(&KubeObject) -> Authorship,
    ) -> Result<Arc<KubeObject>, ApiError> {
        let store = &self.responses.store;
        let (key, object) = parse_object(self.key, response)?;
        let mut authorship = judge(&object);
        let version = object.resource_version;
        let put = store.put(&key, object, Projection::Full, VersionSource::WriteResponse);
        let is_stored = matches!(put, Put::Unchanged | Put::Superseded(_));
        let cached = match put {
            Put::Changed(change) => {
                // Another client deleted the predecessor.
                if change.is_replacement() {
                    authorship = Authorship::Foreign;
                }
                let by = Some(self.by).filter(|_| authorship == Authorship::Own);
                self.responses.report_change(&change, by);
                change.new
            }
            // The watch delivered this version or a newer one first.
            Put::Unchanged => store.get(&key, Projection::Full),
            Put::Superseded(newer) => Some(newer),
            Put::Unwatched(object) => Some(object),
        };
        if authorship == Authorship::Own {
            self.expectation.fulfil(version, is_stored);
        }
        match cached {
            Some(object) => Ok(object),
            None => Ok(Arc::new(parse_object(self.key, response)?.1)),
        }
    }

    /// Stores the response to a deletion: the object that now waits for its finalizers, or a `Status` or the last
    /// state of one that is gone. `before` is the object as it was cached when the request was sent.
    pub(super) fn store_deletion(self, response: &[u8], before: Option<&KubeObject>) {
        let status: DeletionStatus = serde_json::from_slice(response).unwrap_or_default();
        let marked = parse_object(self.key, response).ok().map(|(_, object)| object);
        if status.kind != "Status"
            && let Some(marked) = marked.as_ref().filter(|object| object.is_deleting())
        {
            // The object itself must be reconciled again, for its clean-up.
            let own = self.key != self.by && before.is_some_and(|before| is_only_marked(before, marked));
            let _ = self.store_response(response, Authorship::own_if(own));
            return;
        }
        let uid = match &marked {
            _ if !status.details.uid.is_empty() => Uid::from(&*status.details.uid),
            Some(object) if status.kind != "Status" => object.uid.clone(),
            _ => before.map(|before| before.uid.clone()).unwrap_or_default(),
        };
        if uid.is_empty() {
            return;
        }
        let by = Some(self.by).filter(|by| *by != self.key);
        let removed = self.responses.store.remove_deleted(self.key, &uid);
        if let Some(change) = &removed {
            self.responses.report_change(change, by);
        }
        if by.is_some() {
            self.expectation.fulfil_deletion(&uid, removed.is_none());
        }
    }
}

/// The response to a deletion, as far as it shows what was deleted.
#[derive(Default, Deserialize)]
#[serde(default)]
struct DeletionStatus {
    kind: String,
    details: DeletionDetails,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DeletionDetails {
    uid: String,
}

/// Returns true if a deletion changed nothing but what marks an object as being deleted.
fn is_only_marked(before: &KubeObject, after: &KubeObject) -> bool {
    let unmarked = |object: &KubeObject| {
        let mut value = object.to_value();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            for mark in [
                "deletionGracePeriodSeconds",
                "deletionTimestamp",
                "finalizers",
                "generation",
                "resourceVersion",
            ] {
                metadata.remove(mark);
            }
        }
        value
    };
    unmarked(before) == unmarked(after)
}

fn parse_object(key: &ObjectRef, response: &[u8]) -> Result<(ObjectRef, KubeObject), ApiError> {
    let (parsed, object) =
        KubeObject::parse(&key.gvk, response).map_err(|e| ApiError::InvalidResponse(e.to_string()))?;
    // The response does not name its cluster. All users of the name share one copy.
    let parsed = parsed.with_cluster(&key.cluster);
    let key = if parsed == *key { key.clone() } else { parsed };
    Ok((key, object))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::{
        kube::{
            backoff::Backoff,
            key::Gvk,
            scope::{NamespaceScope, Scope},
        },
        schedule::queue::Queue,
    };

    /// Two clusters have objects of the same name, and their resourceVersions have nothing to do with each other.
    #[test]
    fn response_of_another_cluster_is_stored_for_that_cluster_only() {
        let store = Arc::new(Store::default());
        let gvk = Gvk::new("", "v1", "ConfigMap");
        let (home, east) = (
            ObjectRef::new(gvk.clone(), "n", "c"),
            ObjectRef::new(gvk.clone(), "n", "c").with_cluster("fleet/east"),
        );
        for key in [&home, &east] {
            store.open_collection(&Scope {
                gvk: gvk.clone(),
                cluster: key.cluster.clone(),
                namespace: "n".into(),
                selector: None,
                projection: Projection::Full,
            });
        }
        let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
        let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
        let responses = WriteResponses::new(store.clone(), dispatcher);
        for (key, version) in [(&home, "90"), (&east, "7")] {
            let metadata = json!({"name": "c", "namespace": "n", "uid": version, "resourceVersion": version});
            let response = json!({"metadata": metadata}).to_string();
            let pending = responses.expect_response(key, &home);
            let stored = pending.store_response(response.as_bytes(), Authorship::Own);
            stored.expect("an object");
        }
        let version = |key| store.get(key, Projection::Full).map(|o| o.resource_version);
        assert_eq!((version(&home), version(&east)), (Some(90), Some(7)));
    }

    /// An event stream must close at once when a plugin changes or deletes its Upstream, as after a change by a user.
    #[test]
    fn every_change_that_a_response_shows_is_observed_once() {
        let store = Arc::new(Store::default());
        let upstream = ObjectRef::new(Gvk::new("ostler.dev", "v1alpha1", "Upstream"), "n", "u");
        store.open_collection(&Scope {
            gvk: upstream.gvk.clone(),
            cluster: "".into(),
            namespace: "n".into(),
            selector: None,
            projection: Projection::Full,
        });
        let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
        let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
        let mut responses = WriteResponses::new(store, dispatcher);
        let observed: Arc<Mutex<Vec<Option<u64>>>> = Arc::default();
        let log = observed.clone();
        responses.set_observer(Arc::new(move |change| {
            log.lock().push(change.new.as_ref().map(|o| o.resource_version));
        }));
        let by = ObjectRef::new(Gvk::new("g", "v1", "Thing"), "n", "t");
        let response = |version: u64| {
            let metadata =
                json!({"name": "u", "namespace": "n", "uid": "1", "resourceVersion": version.to_string()});
            json!({"metadata": metadata, "spec": {"url": version}}).to_string()
        };
        for version in [1, 2, 2] {
            let pending = responses.expect_response(&upstream, &by);
            let stored = pending.store_response(response(version).as_bytes(), Authorship::Own);
            stored.expect("an object");
        }
        responses
            .store_read(&upstream, response(3).as_bytes())
            .expect("an object");
        let deleted = json!({"kind": "Status", "status": "Success", "details": {"uid": "1"}}).to_string();
        responses
            .expect_response(&upstream, &by)
            .store_deletion(deleted.as_bytes(), None);
        assert_eq!(*observed.lock(), [Some(1), Some(2), Some(3), None]);
    }
}
