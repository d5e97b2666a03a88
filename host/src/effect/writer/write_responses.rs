//! What the API server answers, taken into the store: whom it wakes, and whom not; no I/O.

use std::sync::Arc;

use crate::{
    cache::store::{Source, Put, Store},
    client::api::ApiError,
    kube::{key::ObjectRef, object::Object, scope::Form},
    schedule::dispatcher::{Router, Writing},
};

/// Takes answers in.
pub(super) struct Answers {
    store: Arc<Store>,
    router: Arc<Router>,
}

/// A request whose answer is not there yet. Dropped, whoever was to be woken meanwhile is.
pub(super) struct Awaiting<'a> {
    answers: &'a Answers,
    key: &'a ObjectRef,
    by: &'a ObjectRef,
    writing: Writing,
}

impl Answers {
    pub(super) fn new(store: Arc<Store>, router: Arc<Router>) -> Self {
        Self { store, router }
    }

    /// A request about an object is about to be sent for the reconcile of another, or of itself.
    pub(super) fn awaiting<'a>(&'a self, key: &'a ObjectRef, by: &'a ObjectRef) -> Awaiting<'a> {
        let writing = self.router.writing(key, by);
        Awaiting {
            answers: self,
            key,
            by,
            writing,
        }
    }

    /// An object as it was just read: news to whoever it concerns.
    pub(super) fn learn(&self, key: &ObjectRef, answer: &[u8]) -> Result<(), ApiError> {
        let (key, object) = parse(key, answer)?;
        if let Put::Changed(change) = self.store.put(&key, object, Form::Whole, Source::WriteResponse) {
            self.router.changed(&change, Source::WriteResponse, None);
        }
        Ok(())
    }
}

impl Awaiting<'_> {
    /// Puts the answer into the store, and gives the object as it is now. What is `ours` is no news to who asked;
    /// anything else is, whether the watch told it before the answer did or not.
    pub(super) fn keep(self, answer: &[u8], mut ours: bool) -> Result<Arc<Object>, ApiError> {
        let Answers { store, router } = self.answers;
        let (key, object) = parse(self.key, answer)?;
        let version = object.resource_version;
        let kept = match store.put(&key, object, Form::Whole, Source::WriteResponse) {
            Put::Changed(change) => {
                // Somebody has deleted the one before.
                ours &= !change.replaced();
                router.changed(&change, Source::WriteResponse, Some(self.by).filter(|_| ours));
                change.new
            }
            // The watch was faster, or has something newer still.
            Put::Unchanged => store.get(&key, Form::Whole),
            Put::Superseded(newer) => Some(newer),
            Put::Unwatched(object) => Some(object),
        };
        if ours {
            self.writing.done(version);
        }
        match kept {
            Some(object) => Ok(object),
            None => Ok(Arc::new(parse(self.key, answer)?.1)),
        }
    }
}

fn parse(key: &ObjectRef, answer: &[u8]) -> Result<(ObjectRef, Object), ApiError> {
    let (parsed, object) = Object::parse(&key.gvk, answer).map_err(|e| ApiError::Garbage(e.to_string()))?;
    // One copy of the name for all who keep it.
    let key = if parsed == *key { key.clone() } else { parsed };
    Ok((key, object))
}
