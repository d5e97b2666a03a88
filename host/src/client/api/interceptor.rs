//! What may lie over the API server, and answer in its place.

use std::{collections::HashSet, pin::Pin};

use bytes::Bytes;
use serde::Deserialize;

use super::{ApiError, Cluster};

/// Lies over the API server: writes end in it, and reads see what it has.
pub trait Layer: Send + Sync {
    /// What a GET of this path gives; none where the server is to be asked.
    fn read(&self, path: &str) -> Option<Result<Bytes, ApiError>>;

    /// What is here of the collection that a list asks for; none where that is nothing.
    fn collected(&self, path: &str) -> Option<Collected>;

    /// Sees what the server answers about a path.
    fn passes(&self, path: &str, answer: &[u8]);

    /// Takes a write and answers as the server would have. It may ask that through `under`.
    fn write<'a>(&'a self, under: &'a Cluster, write: Write<'a>) -> Written<'a>;
}

/// The answer to a write, when it is there.
pub type Written<'a> = Pin<Box<dyn Future<Output = Result<Bytes, ApiError>> + Send + 'a>>;

/// A write on its way.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The HTTP method.
    pub method: &'static str,
    /// Path and query.
    pub path: &'a str,
    /// Of the body.
    pub content_type: &'static str,
    /// What is sent.
    pub body: &'a [u8],
}

/// What a layer has of a collection.
pub struct Collected {
    /// Namespaces and names: of these the server's own are not to be seen.
    pub names: HashSet<(String, String)>,
    /// The objects that would be in it, as JSON.
    pub objects: Vec<String>,
}

impl Collected {
    /// Whether an object of the server is here, too, and is not to be seen as it is there.
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
