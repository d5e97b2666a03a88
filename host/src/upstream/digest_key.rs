//! The key of the digests by which plugins notice that a secret has changed.
//!
//! Plugins keep digests in the status of objects. They would all differ after a restart, on another replica and in a plan
//! if each process had a key of its own, so the key is a Secret in the namespace of the host, made on first use.

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tracing::warn;

use super::{SendError, UpstreamSecretKey};
use crate::{
    client::api::{ApiClient, ApiError},
    kube::{hash::encode_hex, secret_view::DIGEST_KEY_SECRET, well_known::HOST_FIELD_MANAGER},
};

/// Key in the data of the Secret.
const DATA_KEY: &str = "key";

const KEY_BYTES: usize = 32;
/// Bytes of a digest: 128 bits suffice to tell values apart.
const DIGEST_BYTES: usize = 16;

/// The key of digests.
pub struct DigestKey {
    source: Option<DigestKeySource>,
    key: OnceCell<hmac::Key>,
}

/// The Secret that has the key.
struct DigestKeySource {
    client: ApiClient,
    namespace: String,
    /// False in a plan, which writes nothing.
    may_create: bool,
}

impl Default for DigestKey {
    /// A random key of this process.
    fn default() -> Self {
        Self {
            source: None,
            key: OnceCell::new(),
        }
    }
}

impl DigestKey {
    /// The key in the Secret of this namespace. The client has no write fence: a standby may make the Secret, too.
    pub fn in_namespace(client: ApiClient, namespace: &str, may_create: bool) -> Self {
        let source = DigestKeySource {
            client,
            namespace: namespace.to_owned(),
            may_create,
        };
        Self {
            source: Some(source),
            key: OnceCell::new(),
        }
    }

    /// The first of these namespaces with the Secret, or the first of all: a plan may run on a machine that does not know
    /// the namespace of the host.
    pub async fn find_namespace<'a>(client: &ApiClient, candidates: &[&'a str]) -> &'a str {
        for namespace in candidates {
            let path = format!("/api/v1/namespaces/{namespace}/secrets/{DIGEST_KEY_SECRET}");
            if client.get(&path).await.is_ok() {
                return namespace;
            }
        }
        candidates[0]
    }

    /// An HMAC-SHA256 of a value and the name of its secret, truncated to 128 bits: it changes with the value, reveals
    /// nothing about it, and does not show that two secrets have the same value.
    pub async fn digest(&self, secret: &UpstreamSecretKey, value: &[u8]) -> Result<String, SendError> {
        let key = self.key.get_or_try_init(|| self.load()).await?;
        let mut context = hmac::Context::with_key(key);
        // A zero byte occurs in no name, so that no two inputs are the same.
        for part in [&secret.namespace, &secret.name, &secret.key] {
            context.update(part.as_bytes());
            context.update(&[0]);
        }
        context.update(value);
        Ok(encode_hex(&context.sign().as_ref()[..DIGEST_BYTES]))
    }

    async fn load(&self) -> Result<hmac::Key, SendError> {
        let random = random_bytes();
        let Some(source) = &self.source else {
            return Ok(new_key(&random));
        };
        let path = format!("Secret {}/{DIGEST_KEY_SECRET}", source.namespace);
        match source.read_or_create(&random).await {
            Ok(Some(key)) => Ok(new_key(&key)),
            Ok(None) => {
                warn!(
                    secret = path,
                    "it has no usable key: digests of secrets differ in each process. Delete it"
                );
                Ok(new_key(&random))
            }
            // Nothing that a retry cures: no permission, or no such namespace.
            Err(e) if matches!(e.code(), 403 | 404 | 405 | 422) => {
                warn!(secret = path, error = %e, "the key of digests is not available: digests of secrets differ in each process");
                Ok(new_key(&random))
            }
            Err(e) => Err(SendError::Unavailable(format!("reading the {path}: {e}"))),
        }
    }
}

impl DigestKeySource {
    /// Reads the key, or creates the Secret with `new` as its key. `None` if the Secret has another form.
    async fn read_or_create(&self, new: &[u8]) -> Result<Option<Vec<u8>>, ApiError> {
        let collection = format!("/api/v1/namespaces/{}/secrets", self.namespace);
        let path = format!("{collection}/{DIGEST_KEY_SECRET}");
        match self.client.get(&path).await {
            Err(e) if e.code() == 404 && self.may_create => {}
            answer => return answer.map(|body| parse_key(&body)),
        }
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": DIGEST_KEY_SECRET, "namespace": self.namespace },
            "type": "Opaque",
            "immutable": true,
            "data": { DATA_KEY: BASE64_STANDARD.encode(new) },
        });
        let create = format!("{collection}?fieldManager={HOST_FIELD_MANAGER}");
        match self.client.create(&create, secret.to_string().into_bytes()).await {
            // HTTP 409: another replica was faster, and its key counts.
            Err(e) if e.code() == 409 => self.client.get(&path).await.map(|body| parse_key(&body)),
            created => created.map(|_| Some(new.to_vec())),
        }
    }
}

fn parse_key(body: &[u8]) -> Option<Vec<u8>> {
    let secret: Value = serde_json::from_slice(body).ok()?;
    let key = BASE64_STANDARD.decode(secret["data"][DATA_KEY].as_str()?).ok()?;
    (key.len() >= KEY_BYTES).then_some(key)
}

fn new_key(bytes: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, bytes)
}

fn random_bytes() -> [u8; KEY_BYTES] {
    let mut bytes = [0; KEY_BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the system has randomness");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, key: &str) -> UpstreamSecretKey {
        UpstreamSecretKey {
            namespace: "ci".into(),
            name: name.into(),
            key: key.into(),
        }
    }

    fn with_key(bytes: &[u8]) -> DigestKey {
        DigestKey {
            source: None,
            key: OnceCell::new_with(Some(new_key(bytes))),
        }
    }

    #[tokio::test]
    async fn digest_depends_on_key_secret_and_value_only() {
        let digest = async |key: &DigestKey, name: &str, of: &str, value: &[u8]| {
            key.digest(&secret(name, of), value).await.expect("a digest")
        };
        let (one, same, other) = (with_key(b"1"), with_key(b"1"), with_key(b"2"));
        let expected = digest(&one, "s", "k", b"value").await;
        assert_eq!(expected.len(), 2 * DIGEST_BYTES);
        assert_eq!(expected, digest(&same, "s", "k", b"value").await);
        for differs in [
            digest(&other, "s", "k", b"value").await,
            digest(&one, "s", "k", b"other").await,
            digest(&one, "t", "k", b"value").await,
            digest(&one, "s", "kv", b"alue").await,
        ] {
            assert_ne!(expected, differs);
        }
        let (one, other) = (DigestKey::default(), DigestKey::default());
        assert_ne!(
            digest(&one, "s", "k", b"v").await,
            digest(&other, "s", "k", b"v").await,
            "without a Secret each process has a random key"
        );
    }

    #[tokio::test]
    async fn namespace_with_the_key_is_found() {
        let service = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
            let (status, body) = if request.uri().path().contains("/namespaces/here/") {
                (200, "{}")
            } else {
                (404, r#"{"kind": "Status", "code": 404}"#)
            };
            let response = http::Response::builder().status(status);
            Ok::<_, std::io::Error>(response.body(axum::body::Body::from(body)).expect("a response"))
        });
        let client = ApiClient::new(kube::Client::new(service, "default"));
        assert_eq!(
            DigestKey::find_namespace(&client, &["there", "here"]).await,
            "here"
        );
        assert_eq!(
            DigestKey::find_namespace(&client, &["there", "nowhere"]).await,
            "there"
        );
    }

    #[test]
    fn key_that_is_missing_short_or_no_base64_is_not_used() {
        for body in [
            "{}",
            r#"{"data": {"key": "c2hvcnQ="}}"#,
            r#"{"data": {"key": "*"}}"#,
            "no JSON",
        ] {
            assert_eq!(parse_key(body.as_bytes()), None, "{body}");
        }
        let good = json!({ "data": { DATA_KEY: BASE64_STANDARD.encode([7; KEY_BYTES]) } });
        assert_eq!(parse_key(good.to_string().as_bytes()), Some(vec![7; KEY_BYTES]));
    }
}
