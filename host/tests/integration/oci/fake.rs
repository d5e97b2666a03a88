//! A fake registry, whose responses a test can replace.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use ostler::testing::{
    oci::{Digest, OciReference, PullError, RegistryAuth},
    signature::SignaturePolicy,
};
use serde_json::{Value, json};

use super::store;

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const CONFIG: &str = "application/vnd.wasm.config.v0+json";
pub const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
pub const PASSWORD: &str = "registry-pass-0003";

/// A request: its path, and its header `authorization`.
pub type Asked = (String, Option<String>);
/// A replacement for the response to the nth request of a path.
pub type Twist = dyn Fn(&Fake, &Request, usize) -> Option<Response> + Send + Sync;

/// A fake registry, whose responses a test can replace.
pub struct Fake {
    pub address: String,
    /// Content by path.
    pub things: Mutex<BTreeMap<String, (String, Bytes)>>,
    asked: Mutex<Vec<Asked>>,
    twist: Box<Twist>,
}

pub fn wasm() -> Bytes {
    Bytes::from_static(b"\0asm\x0d\0\x01\0")
}

pub fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": Digest::of_bytes(bytes).to_string(), "size": bytes.len()})
}

pub fn answer(media_type: &str, bytes: Bytes) -> Response {
    ([(header::CONTENT_TYPE, media_type.to_owned())], bytes).into_response()
}

pub fn status(status: u16, body: &str) -> Response {
    (StatusCode::from_u16(status).expect("a status"), body.to_owned()).into_response()
}

impl Fake {
    pub async fn start(
        twist: impl Fn(&Fake, &Request, usize) -> Option<Response> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let fake = Arc::new(Self {
            address: listener.local_addr().expect("an address").to_string(),
            things: Mutex::default(),
            asked: Mutex::default(),
            twist: Box::new(twist),
        });
        let serving = fake.clone();
        let router = Router::new().fallback(move |request: Request| {
            let fake = serving.clone();
            async move { fake.say(&request) }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        fake
    }

    /// A registry without replaced responses.
    pub async fn plain() -> Arc<Self> {
        Self::start(|_, _, _| None).await
    }

    fn say(&self, request: &Request) -> Response {
        let path = request.uri().path().to_owned();
        let authorization = request.headers().get(header::AUTHORIZATION);
        let authorization = authorization.map(|v| v.to_str().expect("text").to_owned());
        let nth = {
            let mut asked = self.asked.lock().expect("lock");
            asked.push((path.clone(), authorization));
            asked.iter().filter(|(p, _)| *p == path).count()
        };
        if let Some(response) = (self.twist)(self, request, nth) {
            return response;
        }
        match self.things.lock().expect("lock").get(&path) {
            Some((media_type, bytes)) => answer(media_type, bytes.clone()),
            None => status(404, ""),
        }
    }

    pub fn put(&self, path: &str, media_type: &str, bytes: impl Into<Bytes>) {
        let thing = (media_type.to_owned(), bytes.into());
        self.things
            .lock()
            .expect("lock")
            .insert(format!("/v2/a/b/{path}"), thing);
    }

    pub fn blob(&self, media_type: &str, bytes: impl Into<Bytes>) -> Value {
        let bytes = bytes.into();
        let described = descriptor(media_type, &bytes);
        self.put(
            &format!("blobs/{}", Digest::of_bytes(&bytes)),
            "application/octet-stream",
            bytes,
        );
        described
    }

    /// Adds a manifest under its digest.
    pub fn manifest(&self, manifest: &Value) -> Digest {
        let bytes = manifest.to_string();
        let digest = Digest::of_bytes(bytes.as_bytes());
        self.put(&format!("manifests/{digest}"), MANIFEST, bytes);
        digest
    }

    /// Adds a component.
    pub fn component(&self) -> OciReference {
        let layer = self.blob("application/wasm", wasm());
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, b"{}"), "layers": [layer]});
        self.reference().with_digest(self.manifest(&manifest))
    }

    pub fn reference(&self) -> OciReference {
        format!("{}/a/b:1", self.address).parse().expect("a reference")
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("lock").clone()
    }

    pub async fn pull(&self, reference: &OciReference) -> Result<Vec<u8>, PullError> {
        store()
            .pull_component(reference, &RegistryAuth::anonymous(), &SignaturePolicy::none())
            .await
            .map(|pulled| pulled.wasm)
    }
}
