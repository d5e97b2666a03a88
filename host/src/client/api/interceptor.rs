//! Interception of requests to the API server, by which `ostler plan` runs reconcilers without effects.

use std::{collections::HashSet, pin::Pin};

use bytes::Bytes;
use serde::Deserialize;

use super::{ApiClient, ApiError};

/// An interceptor of an [`ApiClient`]: it receives the writes, and reads see its state.
pub trait Interceptor: Send + Sync {
    /// The response to a GET of this path; none to ask the server.
    fn intercept_get(&self, path: &str) -> Option<Result<Bytes, ApiError>>;

    /// The changes to the collection that a list asks for; none if there are none.
    fn overlay_collection(&self, path: &str) -> Option<CollectionOverlay>;

    /// Observes a response of the server.
    fn observe_response(&self, path: &str, response: &[u8]);

    /// Executes a write and responds as the server would have. It may send requests through `client`.
    fn intercept_write<'a>(&'a self, client: &'a ApiClient, request: WriteRequest<'a>) -> WriteResponse<'a>;
}

/// The pending response to a write.
pub type WriteResponse<'a> = Pin<Box<dyn Future<Output = Result<Bytes, ApiError>> + Send + 'a>>;

/// A write request.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// HTTP method.
    pub method: &'static str,
    /// Path and query.
    pub path: &'a str,
    /// Content type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: &'a [u8],
}

/// The state of an interceptor that replaces part of a collection.
pub struct CollectionOverlay {
    /// Namespaces and names of the server's objects to be hidden.
    pub names: HashSet<(String, String)>,
    /// Objects to be shown in addition, as JSON.
    pub objects: Vec<String>,
}

impl CollectionOverlay {
    /// Returns true if the overlay replaces or deletes this object of the server.
    pub fn hides(&self, item: &str) -> bool {
        #[derive(Deserialize)]
        struct Item {
            metadata: Meta,
        }
        #[derive(Deserialize)]
        struct Meta {
            name: String,
            #[serde(default)]
            namespace: String,
        }
        let item: Result<Item, _> = serde_json::from_str(item);
        item.is_ok_and(|i| self.names.contains(&(i.metadata.namespace, i.metadata.name)))
    }
}
