//! The distribution API of one repository. Responses are bounded, and requests repeated if that may help.

mod token;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use reqwest::{RequestBuilder, Response, Url, redirect};
use serde::Deserialize;

use super::{
    Digest, OciReference, PullError, RegistryAuth,
    auth::RegistryCredential,
    manifest::{self, Descriptor, ImageIndex},
    shorten_text,
};
use crate::{
    kube::backoff::Backoff,
    upstream::{TransportError, TransportErrorKind, retry_after, root_cause},
};

/// Retries of a request, and the delays before them. Jitter keeps hosts that failed together from coming back together.
const MAX_RETRIES: u32 = 3;
const RETRY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(500), Duration::from_secs(2)).with_jitter(50);
/// Maximum wait that a registry can ask for by `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);
/// Maximum size of an error's or a token's body in bytes.
const MAX_ERROR_BYTES: u64 = 64 << 10;

/// Bytes of an upload between two reports of its progress.
const CHUNK_BYTES: usize = 64 << 10;

/// A callback with the number of uploaded bytes.
pub type UploadProgress = Arc<dyn Fn(u64) + Send + Sync>;

/// The HTTP clients of all registries.
#[derive(Clone)]
pub struct HttpClients {
    /// The client of registries.
    registry: reqwest::Client,
    /// The client of token servers. It follows no redirect: some would repeat the body, which has credentials.
    tokens: reqwest::Client,
}

/// Builds the clients of all registries.
pub fn build_clients() -> HttpClients {
    let redirects = redirect::Policy::custom(|attempt| {
        // Blobs are often served from elsewhere. reqwest removes the credentials when the host changes.
        let from_plain = attempt
            .previous()
            .last()
            .is_some_and(|url| url.scheme() == "http");
        match attempt.url().scheme() {
            _ if attempt.previous().len() > 5 => attempt.error("more than 5 redirects"),
            "https" => attempt.follow(),
            "http" if from_plain => attempt.follow(),
            _ => attempt.error("a redirect from https to something else"),
        }
    });
    HttpClients {
        registry: build_client(redirects),
        tokens: build_client(redirect::Policy::none()),
    }
}

fn build_client(redirects: redirect::Policy) -> reqwest::Client {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .tls_backend_preconfigured(build_tls_config())
        .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(10))
        .read_timeout(Duration::from_secs(30))
        .redirect(redirects)
        .build()
        .expect("a client of constants")
}

/// TLS with the system's certificate authorities. reqwest's own verifier refuses to start without any, but a host
/// in an image that has none can still pull over plain HTTP, or not at all.
fn build_tls_config() -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let mut config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// A repository, and the credential for it.
pub struct OciRegistry {
    http: reqwest::Client,
    token_http: reqwest::Client,
    url: Url,
    host: String,
    repository: String,
    credential: Option<RegistryCredential>,
    plain_http: bool,
    /// The authorization header, obtained by answering the first challenge.
    authorization: Mutex<Option<HeaderValue>>,
}

/// The content of a response.
pub struct RegistryContent {
    /// The media type in the response.
    pub media_type: Option<String>,
    /// The content.
    pub bytes: Vec<u8>,
}

/// Checks that bytes have the requested digest.
pub fn check_digest(what: &str, wanted: &Digest, bytes: &[u8]) -> Result<(), PullError> {
    let found = Digest::of_bytes(bytes);
    if found == *wanted {
        return Ok(());
    }
    Err(PullError::DigestMismatch {
        what: what.into(),
        wanted: wanted.to_string(),
        found: found.to_string(),
    })
}

impl OciRegistry {
    /// A repository; sends no request.
    pub fn new(
        http: &HttpClients,
        reference: &OciReference,
        auth: &RegistryAuth,
        plain_http: bool,
    ) -> Result<Self, PullError> {
        let host = match reference.registry() {
            "docker.io" => "registry-1.docker.io",
            host => host,
        };
        let scheme = if plain_http { "http" } else { "https" };
        let url = format!("{scheme}://{host}/v2/{}/", reference.repository());
        let url = Url::parse(&url).map_err(|e| PullError::PullFailed(format!("{reference}: {e}")))?;
        Ok(Self {
            http: http.registry.clone(),
            token_http: http.tokens.clone(),
            url,
            host: reference.registry().into(),
            repository: reference.repository().into(),
            credential: auth.credential_for(reference).cloned(),
            plain_http,
            authorization: Mutex::default(),
        })
    }

    /// The error of a missing item (`NotFound`).
    pub fn not_found_error(&self, what: &str) -> PullError {
        PullError::NotFound(format!("{}/{} has no {what}", self.host, self.repository))
    }

    /// Registry and repository.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    fn join_path(&self, path: &str) -> Result<Url, PullError> {
        let url = self.url.join(path);
        url.map_err(|e| PullError::PullFailed(format!("{}: {e}", self.full_name())))
    }

    /// Fetches the manifest of a tag or digest; `None` if it does not exist.
    pub async fn fetch_manifest(&self, name: &str) -> Result<Option<RegistryContent>, PullError> {
        let url = self.join_path(&format!("manifests/{name}"))?;
        self.fetch_optional(name, &url, manifest::MAX_MANIFEST_BYTES)
            .await
    }

    /// Fetches the referrers of a digest, from the referrers API or else from the tag that replaces it.
    pub async fn fetch_referrers(&self, digest: &Digest) -> Result<Vec<Descriptor>, PullError> {
        let url = self.join_path(&format!("referrers/{digest}"))?;
        let answer = match self
            .fetch_optional("referrers", &url, manifest::MAX_MANIFEST_BYTES)
            .await
        {
            Ok(Some(answer)) => Some(answer),
            Ok(None) => self.fetch_manifest(&format!("sha256-{}", digest.hex())).await?,
            Err(e) => return Err(e),
        };
        let index = answer.map(|answer| serde_json::from_slice::<ImageIndex>(&answer.bytes));
        match index {
            None => Ok(Vec::new()),
            Some(Ok(index)) => Ok(index.manifests),
            Some(Err(e)) => Err(PullError::PullFailed(format!(
                "{}: the list of referrers is no image index ({})",
                self.host,
                shorten_text(e)
            ))),
        }
    }

    /// Fetches content that may not exist.
    async fn fetch_optional(
        &self,
        what: &str,
        url: &Url,
        limit: u64,
    ) -> Result<Option<RegistryContent>, PullError> {
        let what = format!("{} of {}", what, self.repository);
        self.fetch_bounded(
            &what,
            || {
                self.http
                    .get(url.clone())
                    .header(header::ACCEPT, manifest::ACCEPTED_TYPES)
            },
            limit,
        )
        .await
    }

    /// Fetches a blob of exactly this size.
    pub async fn fetch_blob(&self, digest: &Digest, size: u64) -> Result<Vec<u8>, PullError> {
        let url = self.join_path(&format!("blobs/{digest}"))?;
        let what = format!("blob of {}", self.repository);
        let answer = self
            .fetch_bounded(&what, || self.http.get(url.clone()), size)
            .await?;
        let answer = answer
            .ok_or_else(|| self.not_found_error(&format!("blob {digest}, though its manifest names it")))?;
        check_digest("the blob", digest, &answer.bytes)?;
        Ok(answer.bytes)
    }

    /// Sends a request and reads the whole response; both are repeated if the connection breaks.
    async fn fetch_bounded(
        &self,
        what: &str,
        build: impl Fn() -> RequestBuilder,
        limit: u64,
    ) -> Result<Option<RegistryContent>, PullError> {
        let mut retries = 0;
        loop {
            let response = self.send_request(what, &build).await?;
            if response.status() == StatusCode::NOT_FOUND {
                return Ok(None);
            }
            let response = self.check_status(what, response).await?;
            let media_type = response.headers().get(header::CONTENT_TYPE);
            let media_type = media_type.and_then(|v| v.to_str().ok());
            let media_type = media_type.map(|v| v.split(';').next().unwrap_or(v).trim().to_owned());
            match read_body(response, limit).await {
                Ok(bytes) => return Ok(Some(RegistryContent { media_type, bytes })),
                Err(BodyError::TooLarge) => {
                    return Err(PullError::TooLarge(format!(
                        "{}: {what} has more than the {limit} bytes it may have",
                        self.host
                    )));
                }
                Err(BodyError::Broken(why)) if retries == MAX_RETRIES => {
                    return Err(self.pull_failed_error(what, &why));
                }
                Err(BodyError::Broken(_)) => {
                    retries += 1;
                    tokio::time::sleep(RETRY_BACKOFF.delay(retries)).await;
                }
            }
        }
    }

    /// The registry has a blob.
    pub async fn has_blob(&self, digest: &Digest) -> Result<bool, PullError> {
        let url = self.join_path(&format!("blobs/{digest}"))?;
        let response = self.send_request("blob", || self.http.head(url.clone())).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            _ => self.check_status("blob", response).await.map(|_| true),
        }
    }

    /// Uploads a blob and reports the number of uploaded bytes.
    pub async fn upload_blob(
        &self,
        digest: &Digest,
        bytes: &Bytes,
        progress: &UploadProgress,
    ) -> Result<(), PullError> {
        let what = format!("upload to {}", self.repository);
        let start = self.join_path("blobs/uploads/")?;
        let response = self
            .send_request(&what, || {
                self.http.post(start.clone()).header(header::CONTENT_LENGTH, 0)
            })
            .await?;
        let response = self.check_status(&what, response).await?;
        let location = response
            .headers()
            .get(header::LOCATION)
            .and_then(|v| v.to_str().ok());
        let place = location.and_then(|location| response.url().join(location).ok());
        let mut place = place.ok_or_else(|| self.pull_failed_error(&what, "it does not say where to"))?;
        // Otherwise the component would be sent unencrypted.
        if place.scheme() != "https" && !self.plain_http {
            return Err(self.pull_failed_error(&what, "it wants the bytes over plain HTTP"));
        }
        place.query_pairs_mut().append_pair("digest", digest.as_str());
        let response = self
            .send_request(&what, || {
                self.http
                    .put(place.clone())
                    .header(header::CONTENT_TYPE, "application/octet-stream")
                    .header(header::CONTENT_LENGTH, bytes.len())
                    .body(progress_body(bytes, progress))
            })
            .await?;
        self.check_status(&what, response).await?;
        progress(bytes.len() as u64);
        Ok(())
    }

    /// Uploads a manifest under a tag or its digest.
    pub async fn put_manifest(&self, name: &str, bytes: &[u8]) -> Result<(), PullError> {
        let url = self.join_path(&format!("manifests/{name}"))?;
        let what = format!("manifest {name} of {}", self.repository);
        let response = self
            .send_request(&what, || {
                self.http
                    .put(url.clone())
                    .header(header::CONTENT_TYPE, manifest::OCI_MANIFEST)
                    .body(bytes.to_vec())
            })
            .await?;
        let response = self.check_status(&what, response).await?;
        let (wanted, found) = (
            Digest::of_bytes(bytes),
            response.headers().get("docker-content-digest"),
        );
        match found.and_then(|v| v.to_str().ok()) {
            Some(found) if found != wanted.as_str() => Err(PullError::DigestMismatch {
                what: "the manifest as the registry has it".into(),
                wanted: wanted.to_string(),
                found: shorten_text(found),
            }),
            _ => Ok(()),
        }
    }

    /// Sends a request, with a token if the registry challenges; repeats it if the server or the connection fails.
    async fn send_request(
        &self,
        what: &str,
        build: impl Fn() -> RequestBuilder,
    ) -> Result<Response, PullError> {
        let (mut retries, mut challenge_answered) = (0, false);
        loop {
            let request = build()
                .build()
                .map_err(|e| self.pull_failed_error(what, &root_cause(&e)))?;
            let sent = self.http.execute(self.add_authorization(request)).await;
            let (why, wait) = match sent {
                // A challenge after a redirect is another server's: it would name where the credentials are sent to.
                Ok(response)
                    if response.status() == StatusCode::UNAUTHORIZED
                        && !challenge_answered
                        && response.url().origin() == self.url.origin() =>
                {
                    challenge_answered = true;
                    self.answer_challenge(response.headers()).await?;
                    continue;
                }
                Ok(response) if is_retryable(response.status()) => {
                    (format!("HTTP {}", response.status()), retry_after(&response))
                }
                Ok(response) => return Ok(response),
                Err(e) if e.is_redirect() => {
                    return Err(self.pull_failed_error(what, "it redirects where it must not"));
                }
                Err(e) => {
                    let error = TransportError::from_request(&e);
                    if error.kind == TransportErrorKind::NoTls {
                        let why = format!(
                            "{}. Where plain HTTP is intended: --plain-http-registry {} of the host, --plain-http of `ostler plugin`",
                            error.text, self.host
                        );
                        return Err(self.pull_failed_error(what, &why));
                    }
                    (error.text, None)
                }
            };
            if retries == MAX_RETRIES {
                return Err(self.pull_failed_error(what, &why));
            }
            retries += 1;
            let wait = wait.unwrap_or_else(|| RETRY_BACKOFF.delay(retries));
            tokio::time::sleep(wait.min(MAX_RETRY_AFTER)).await;
        }
    }

    /// Adds the credential if the URL is the registry's own: uploads may go elsewhere.
    fn add_authorization(&self, mut request: reqwest::Request) -> reqwest::Request {
        let authorization = self.authorization.lock().clone();
        if let Some(value) = authorization
            && request.url().origin() == self.url.origin()
        {
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        request
    }

    fn pull_failed_error(&self, what: &str, why: &str) -> PullError {
        PullError::PullFailed(format!("{}: {what}: {why}", self.host))
    }

    /// Checks the status of a response; other statuses than 2xx become errors.
    async fn check_status(&self, what: &str, response: Response) -> Result<Response, PullError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let code = read_error_code(response).await;
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(self.unauthorized_error(&format!("HTTP {status}{code}")))
            }
            StatusCode::NOT_FOUND => Err(self.not_found_error(what)),
            StatusCode::PAYLOAD_TOO_LARGE => Err(PullError::TooLarge(format!(
                "{}: {what}: HTTP {status}",
                self.host
            ))),
            _ => Err(self.pull_failed_error(what, &format!("HTTP {status}{code}"))),
        }
    }

    fn unauthorized_error(&self, why: &str) -> PullError {
        let credential = match &self.credential {
            None => "access without credentials".to_owned(),
            Some(RegistryCredential::Basic { username, .. }) => {
                format!("the user {:?}", shorten_text(username))
            }
            Some(RegistryCredential::Refresh(_) | RegistryCredential::Bearer(_)) => "the token".to_owned(),
        };
        PullError::Unauthorized(format!("{} refuses {credential} ({why})", self.full_name()))
    }
}

/// A body that reports how much of it was sent.
fn progress_body(bytes: &Bytes, progress: &UploadProgress) -> reqwest::Body {
    let (bytes, progress) = (bytes.clone(), progress.clone());
    let chunks = (0..bytes.len()).step_by(CHUNK_BYTES).map(move |at| {
        progress(at as u64);
        Ok::<_, std::convert::Infallible>(bytes.slice(at..bytes.len().min(at + CHUNK_BYTES)))
    });
    reqwest::Body::wrap_stream(futures::stream::iter(chunks))
}

fn is_retryable(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

enum BodyError {
    TooLarge,
    Broken(String),
}

/// Reads a body within the limit, by its declared and its actual size.
async fn read_body(response: Response, limit: u64) -> Result<Vec<u8>, BodyError> {
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(BodyError::TooLarge);
    }
    let (mut body, mut chunks) = (Vec::new(), response.bytes_stream());
    while let Some(chunk) = chunks.next().await {
        body.extend_from_slice(&chunk.map_err(|e| BodyError::Broken(root_cause(&e)))?);
        if body.len() as u64 > limit {
            return Err(BodyError::TooLarge);
        }
    }
    Ok(body)
}

/// The code of an error, as ` MANIFEST_UNKNOWN`. Its message may contain anything and is left out.
async fn read_error_code(response: Response) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<Code>,
    }
    #[derive(Deserialize)]
    struct Code {
        code: String,
    }
    let bytes = read_body(response, MAX_ERROR_BYTES).await.unwrap_or_default();
    let errors: Option<Errors> = serde_json::from_slice(&bytes).ok();
    let code = errors
        .and_then(|errors| errors.errors.into_iter().next())
        .map(|e| e.code);
    let plain = |code: &String| code.len() <= 40 && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    code.filter(plain)
        .map(|code| format!(" {code}"))
        .unwrap_or_default()
}
