//! One repository of a registry: the requests of the distribution API, each bounded, repeated where that may help.

mod token;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderValue, StatusCode, header};
use reqwest::{RequestBuilder, Response, Url, redirect};
use serde::Deserialize;

use super::{
    Auth, Digest, PullError, Reference,
    auth::Credential,
    manifest::{self, Descriptor, Index},
    short,
};
use crate::upstream::{asked_to_wait, cause};

/// Pauses before a request is repeated, jittered.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_millis(800),
    Duration::from_secs(3),
];
/// The longest that a registry which asks to be left alone is.
const WAIT: Duration = Duration::from_secs(10);
/// Bytes of an error's or a token's body.
const SMALL: u64 = 64 << 10;

/// Bytes of an upload between two tellings.
const CHUNK: usize = 64 << 10;

/// Told how many bytes of an upload have left.
pub type Progress = Arc<dyn Fn(u64) + Send + Sync>;

/// The client of all registries.
pub fn client() -> reqwest::Client {
    // Fails only when somebody was faster, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(10))
        .read_timeout(Duration::from_secs(30))
        .redirect(redirect::Policy::custom(|attempt| {
            // Blobs are often elsewhere. Credentials don't go there: reqwest takes them off.
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
        }))
        .build()
        .expect("a client of constants")
}

/// A repository, and who we are in it.
pub struct Registry {
    http: reqwest::Client,
    url: Url,
    host: String,
    repository: String,
    credential: Option<Credential>,
    plain: bool,
    /// What the registry wants to see; found out by its first refusal.
    authorization: Mutex<Option<HeaderValue>>,
}

/// A manifest, or something in its place.
pub struct Answer {
    /// What the registry calls it.
    pub media_type: Option<String>,
    /// It.
    pub bytes: Vec<u8>,
}

/// Fails where bytes have another digest than they should.
pub fn matches(what: &str, wanted: &Digest, bytes: &[u8]) -> Result<(), PullError> {
    let found = Digest::of(bytes);
    match found == *wanted {
        true => Ok(()),
        false => Err(PullError::DigestMismatch {
            what: what.into(),
            wanted: wanted.to_string(),
            found: found.to_string(),
        }),
    }
}

impl Registry {
    /// Says nothing to it yet.
    pub fn new(
        http: &reqwest::Client,
        reference: &Reference,
        auth: &Auth,
        plain: bool,
    ) -> Result<Self, PullError> {
        let host = match reference.registry() {
            "docker.io" => "registry-1.docker.io",
            host => host,
        };
        let scheme = if plain { "http" } else { "https" };
        let url = format!("{scheme}://{host}/v2/{}/", reference.repository());
        let url = Url::parse(&url).map_err(|e| PullError::PullFailed(format!("{reference}: {e}")))?;
        Ok(Self {
            http: http.clone(),
            url,
            host: reference.registry().into(),
            repository: reference.repository().into(),
            credential: auth.credential(reference).cloned(),
            plain,
            authorization: Mutex::default(),
        })
    }

    /// What there is no such thing of.
    pub fn missing(&self, what: &str) -> PullError {
        PullError::NotFound(format!("{}/{} has no {what}", self.host, self.repository))
    }

    /// Registry and repository.
    pub fn place(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    fn at(&self, path: &str) -> Result<Url, PullError> {
        let url = self.url.join(path);
        url.map_err(|e| PullError::PullFailed(format!("{}: {e}", self.place())))
    }

    /// The manifest of a tag or digest; none where there is none.
    pub async fn manifest(&self, name: &str) -> Result<Option<Answer>, PullError> {
        let url = self.at(&format!("manifests/{name}"))?;
        self.read(name, &url, manifest::BYTES).await
    }

    /// What refers to a digest: what the registry says, or the tag that stands for it where it can't.
    pub async fn referrers(&self, digest: &Digest) -> Result<Vec<Descriptor>, PullError> {
        let url = self.at(&format!("referrers/{digest}"))?;
        let answer = match self.read("referrers", &url, manifest::BYTES).await {
            Ok(Some(answer)) => Some(answer),
            Ok(None) => self.manifest(&format!("sha256-{}", digest.hex())).await?,
            Err(e) => return Err(e),
        };
        let index = answer.map(|answer| serde_json::from_slice::<Index>(&answer.bytes));
        match index {
            None => Ok(Vec::new()),
            Some(Ok(index)) => Ok(index.manifests),
            Some(Err(e)) => Err(PullError::PullFailed(format!(
                "{}: the list of referrers is no image index ({})",
                self.host,
                short(e)
            ))),
        }
    }

    /// Reads what may be missing.
    async fn read(&self, what: &str, url: &Url, limit: u64) -> Result<Option<Answer>, PullError> {
        let what = format!("{} of {}", what, self.repository);
        self.whole(
            &what,
            || self.http.get(url.clone()).header(header::ACCEPT, manifest::ANY),
            limit,
        )
        .await
    }

    /// A blob of exactly so many bytes.
    pub async fn blob(&self, digest: &Digest, size: u64) -> Result<Vec<u8>, PullError> {
        let url = self.at(&format!("blobs/{digest}"))?;
        let what = format!("blob of {}", self.repository);
        let answer = self.whole(&what, || self.http.get(url.clone()), size).await?;
        let answer =
            answer.ok_or_else(|| self.missing(&format!("blob {digest}, though its manifest names it")))?;
        matches("the blob", digest, &answer.bytes)?;
        Ok(answer.bytes)
    }

    /// Sends, and reads the whole answer; both are repeated where the connection breaks.
    async fn whole(
        &self,
        what: &str,
        build: impl Fn() -> RequestBuilder,
        limit: u64,
    ) -> Result<Option<Answer>, PullError> {
        let mut pauses = PAUSES.iter();
        loop {
            let response = self.send(what, &build).await?;
            if response.status() == StatusCode::NOT_FOUND {
                return Ok(None);
            }
            let response = self.good(what, response).await?;
            let media_type = response.headers().get(header::CONTENT_TYPE);
            let media_type = media_type.and_then(|v| v.to_str().ok());
            let media_type = media_type.map(|v| v.split(';').next().unwrap_or(v).trim().to_owned());
            match body(response, limit).await {
                Ok(bytes) => return Ok(Some(Answer { media_type, bytes })),
                Err(Unread::TooLarge) => {
                    return Err(PullError::TooLarge(format!(
                        "{}: {what} has more than the {limit} bytes it may have",
                        self.host
                    )));
                }
                Err(Unread::Broken(why)) => match pauses.next() {
                    Some(pause) => tokio::time::sleep(jittered(*pause)).await,
                    None => return Err(self.failed(what, &why)),
                },
            }
        }
    }

    /// Whether it has a blob.
    pub async fn has(&self, digest: &Digest) -> Result<bool, PullError> {
        let url = self.at(&format!("blobs/{digest}"))?;
        let response = self.send("blob", || self.http.head(url.clone())).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            _ => self.good("blob", response).await.map(|_| true),
        }
    }

    /// Writes a blob. Told how many bytes have left so far.
    pub async fn upload(&self, digest: &Digest, bytes: &Bytes, progress: &Progress) -> Result<(), PullError> {
        let what = format!("upload to {}", self.repository);
        let start = self.at("blobs/uploads/")?;
        let response = self
            .send(&what, || {
                self.http.post(start.clone()).header(header::CONTENT_LENGTH, 0)
            })
            .await?;
        let response = self.good(&what, response).await?;
        let location = response
            .headers()
            .get(header::LOCATION)
            .and_then(|v| v.to_str().ok());
        let place = location.and_then(|location| response.url().join(location).ok());
        let mut place = place.ok_or_else(|| self.failed(&what, "it does not say where to"))?;
        // Or else the component would go where nobody looks.
        if place.scheme() != "https" && !self.plain {
            return Err(self.failed(&what, "it wants the bytes over plain HTTP"));
        }
        place.query_pairs_mut().append_pair("digest", digest.as_str());
        let response = self
            .send(&what, || {
                self.http
                    .put(place.clone())
                    .header(header::CONTENT_TYPE, "application/octet-stream")
                    .header(header::CONTENT_LENGTH, bytes.len())
                    .body(told(bytes, progress))
            })
            .await?;
        self.good(&what, response).await?;
        progress(bytes.len() as u64);
        Ok(())
    }

    /// Writes a manifest under a tag or its digest.
    pub async fn put_manifest(&self, name: &str, bytes: &[u8]) -> Result<(), PullError> {
        let url = self.at(&format!("manifests/{name}"))?;
        let what = format!("manifest {name} of {}", self.repository);
        let response = self
            .send(&what, || {
                self.http
                    .put(url.clone())
                    .header(header::CONTENT_TYPE, manifest::MANIFEST)
                    .body(bytes.to_vec())
            })
            .await?;
        let response = self.good(&what, response).await?;
        let (wanted, found) = (Digest::of(bytes), response.headers().get("docker-content-digest"));
        match found.and_then(|v| v.to_str().ok()) {
            Some(found) if found != wanted.as_str() => Err(PullError::DigestMismatch {
                what: "the manifest as the registry has it".into(),
                wanted: wanted.to_string(),
                found: short(found),
            }),
            _ => Ok(()),
        }
    }

    /// Sends a request: with a token where one is wanted, again where the server or the way to it fails.
    async fn send(&self, what: &str, build: impl Fn() -> RequestBuilder) -> Result<Response, PullError> {
        let (mut pauses, mut introduced) = (PAUSES.iter(), false);
        loop {
            let request = build().build().map_err(|e| self.failed(what, &cause(&e)))?;
            let sent = self.http.execute(self.authorized(request)).await;
            let (why, wait) = match sent {
                Ok(response) if response.status() == StatusCode::UNAUTHORIZED && !introduced => {
                    introduced = true;
                    self.introduce(response.headers()).await?;
                    continue;
                }
                Ok(response) if again(response.status()) => {
                    (format!("HTTP {}", response.status()), asked_to_wait(&response))
                }
                Ok(response) => return Ok(response),
                Err(e) if e.is_redirect() => return Err(self.failed(what, "it redirects where it must not")),
                Err(e) => (cause(&e), None),
            };
            let Some(pause) = pauses.next() else {
                return Err(self.failed(what, &why));
            };
            tokio::time::sleep(wait.unwrap_or_else(|| jittered(*pause)).min(WAIT)).await;
        }
    }

    /// Credentials go to the registry itself, not where it wants uploads to go.
    fn authorized(&self, mut request: reqwest::Request) -> reqwest::Request {
        let authorization = self.authorization.lock().expect("lock").clone();
        if let Some(value) = authorization
            && request.url().origin() == self.url.origin()
        {
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        request
    }

    fn failed(&self, what: &str, why: &str) -> PullError {
        PullError::PullFailed(format!("{}: {what}: {why}", self.host))
    }

    /// The answer where it is a good one; what went wrong otherwise.
    async fn good(&self, what: &str, response: Response) -> Result<Response, PullError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let code = code(response).await;
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(self.refused(&format!("HTTP {status}{code}")))
            }
            StatusCode::NOT_FOUND => Err(self.missing(what)),
            StatusCode::PAYLOAD_TOO_LARGE => Err(PullError::TooLarge(format!(
                "{}: {what}: HTTP {status}",
                self.host
            ))),
            _ => Err(self.failed(what, &format!("HTTP {status}{code}"))),
        }
    }

    fn refused(&self, why: &str) -> PullError {
        let who = match &self.credential {
            None => "nobody in particular: it may need credentials".to_owned(),
            Some(Credential::Basic { username, .. }) => format!("the user {:?}", short(username)),
            Some(Credential::Refresh(_) | Credential::Bearer(_)) => "the owner of the token given".to_owned(),
        };
        PullError::Unauthorized(format!("{} refuses {who} ({why})", self.place()))
    }
}

/// A body that tells how much of it has left.
fn told(bytes: &Bytes, progress: &Progress) -> reqwest::Body {
    let (bytes, progress) = (bytes.clone(), progress.clone());
    let chunks = (0..bytes.len()).step_by(CHUNK).map(move |at| {
        progress(at as u64);
        Ok::<_, std::convert::Infallible>(bytes.slice(at..bytes.len().min(at + CHUNK)))
    });
    reqwest::Body::wrap_stream(futures::stream::iter(chunks))
}

fn again(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// Between half of it and all, so that hosts that fail together don't come back together.
fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(()) % 1000;
    pause.mul_f64(0.5 + random as f64 / 2000.0)
}

enum Unread {
    TooLarge,
    Broken(String),
}

/// A body of no more than so many bytes: by what is said of it, and by what comes.
async fn body(response: Response, limit: u64) -> Result<Vec<u8>, Unread> {
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(Unread::TooLarge);
    }
    let (mut body, mut chunks) = (Vec::new(), response.bytes_stream());
    while let Some(chunk) = chunks.next().await {
        body.extend_from_slice(&chunk.map_err(|e| Unread::Broken(cause(&e)))?);
        if body.len() as u64 > limit {
            return Err(Unread::TooLarge);
        }
    }
    Ok(body)
}

/// The code of an error, as ` MANIFEST_UNKNOWN`; messages may be anything and are not told.
async fn code(response: Response) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<Code>,
    }
    #[derive(Deserialize)]
    struct Code {
        code: String,
    }
    let bytes = body(response, SMALL).await.unwrap_or_default();
    let errors: Option<Errors> = serde_json::from_slice(&bytes).ok();
    let code = errors
        .and_then(|errors| errors.errors.into_iter().next())
        .map(|e| e.code);
    let plain = |code: &String| code.len() <= 40 && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    code.filter(plain)
        .map(|code| format!(" {code}"))
        .unwrap_or_default()
}
