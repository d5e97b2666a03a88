//! The client of one upstream, in one version of its spec and Secrets.

use std::{error::Error, sync::Arc, time::Duration};

use futures::StreamExt;
use http::{HeaderName, HeaderValue, Method};
use tokio::sync::Semaphore;

use super::{
    Gate, Request, Response, SecretKey, Secrets, SendError,
    auth::Credentials,
    masking::{Former, Masks},
    missing, rules,
    shared::Shared,
    spec::UpstreamObject,
};

/// One upstream's client: connections, credentials, limits.
pub struct Client {
    pub(super) http: reqwest::Client,
    pub(super) url: String,
    pub(super) credentials: Credentials,
    in_flight: Arc<Semaphore>,
    /// Answers that may serve several.
    pub shared: Shared,
    body_bytes: usize,
    timeout: Duration,
}

impl Client {
    /// A client for the spec and the Secrets as they are.
    pub fn new(upstream: &UpstreamObject, secrets: &dyn Secrets) -> Result<Self, SendError> {
        let spec = &upstream.spec;
        let url = spec.url.trim_end_matches('/').to_owned();
        let parsed =
            reqwest::Url::parse(&url).map_err(|e| SendError::Invalid(format!("spec.url {url:?}: {e}")))?;
        if !matches!(parsed.scheme(), "http" | "https")
            || !parsed.username().is_empty()
            || parsed.password().is_some()
        {
            return Err(SendError::Invalid(format!(
                "spec.url {:?}: an http(s) URL without credentials is needed",
                parsed.host_str()
            )));
        }
        let timeout = Duration::from_secs(u64::from(spec.timeout_seconds.unwrap_or(30).max(1)));
        let mut builder = reqwest::Client::builder()
            // A redirect would carry the credentials elsewhere: the component gets the 3xx as it is.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(timeout.min(Duration::from_secs(10)))
            .pool_idle_timeout(Duration::from_secs(60));
        if let Some(tls) = &spec.tls {
            if let Some(selector) = &tls.ca_secret_ref {
                let key = upstream.secret_key(selector);
                let pem = secrets.get(&key).ok_or_else(|| missing(&key))?;
                let certificates = reqwest::Certificate::from_pem_bundle(pem.value.expose())
                    .map_err(|_| SendError::Invalid(format!("{key} has no PEM certificates")))?;
                for certificate in certificates {
                    builder = builder.add_root_certificate(certificate);
                }
            }
            builder = builder.danger_accept_invalid_certs(tls.insecure_skip_verify);
        }
        let http = builder
            .build()
            .map_err(|e| SendError::Invalid(format!("the client: {}", cause(&e))))?;
        let limits = spec.limits.clone().unwrap_or_default();
        Ok(Self {
            http,
            url,
            credentials: Credentials::new(upstream, secrets)?,
            shared: Shared::default(),
            in_flight: Arc::new(Semaphore::new(limits.in_flight.unwrap_or(16).max(1) as usize)),
            body_bytes: limits.body_bytes.unwrap_or(8 << 20) as usize,
            timeout,
        })
    }

    /// Sends a request; once more after a fresh log-in when it is refused with 401.
    pub async fn send(
        &self,
        request: Request,
        secrets: &dyn Secrets,
        former: &Former,
        gate: &Gate,
    ) -> Result<Response, SendError> {
        rules::path(&request.path_and_query)?;
        let method = Method::from_bytes(request.method.as_bytes())
            .ok()
            .filter(|m| m.as_str().bytes().all(|b| b.is_ascii_uppercase()))
            .ok_or_else(|| {
                SendError::Invalid(format!(
                    "method {:?} is no HTTP method in upper case",
                    request.method
                ))
            })?;
        let mut headers = http::HeaderMap::new();
        for (name, value) in &request.headers {
            rules::header(name, value)?;
            let invalid = |what: &str| SendError::Invalid(format!("header {name:?}: no {what}"));
            let name = HeaderName::try_from(name).map_err(|_| invalid("name"))?;
            headers.append(name, HeaderValue::from_str(value).map_err(|_| invalid("value"))?);
        }
        let value = |key: &SecretKey| secrets.get(key).map(|s| s.value.expose().to_vec());
        let masks = Masks::new(&request.substitutions, value, former)?;
        let body = request.body.as_deref().map(|body| masks.fill(body));
        if body.as_ref().is_some_and(|b| b.len() > self.body_bytes) {
            return Err(SendError::TooLarge(format!(
                "the request's body has more than {} bytes",
                self.body_bytes
            )));
        }
        let timeout = request.timeout.map_or(self.timeout, |t| t.min(self.timeout));
        let url = format!("{}{}", self.url, request.path_and_query);
        let answering = async {
            let _permit = self.in_flight.acquire().await;
            let mut stale = None;
            loop {
                let credential = self.credentials.header(&self.http, stale.as_ref()).await?;
                let mut headers = headers.clone();
                let mut masks = masks.clone();
                if let Some((name, value)) = &credential {
                    // The only one of its name, whatever the component has set; and never to be seen in an answer.
                    headers.insert(name, value.clone());
                    masks.never_show(value.as_bytes());
                }
                let mut sending = self.http.request(method.clone(), &url).headers(headers);
                if let Some(body) = &body {
                    sending = sending.body(body.clone());
                }
                if !method.is_safe() {
                    gate.check()?;
                }
                let response = sending
                    .send()
                    .await
                    .map_err(|e| SendError::Unavailable(cause(&e)))?;
                if response.status() == 401 && stale.is_none() && self.credentials.renewable() {
                    stale = credential.map(|(_, value)| value);
                    continue;
                }
                return self.read(response, &masks).await;
            }
        };
        let waited = tokio::time::timeout(timeout, answering).await;
        waited.unwrap_or_else(|_| Err(SendError::Unavailable(format!("no answer within {timeout:?}"))))
    }

    async fn read(&self, response: reqwest::Response, masks: &Masks) -> Result<Response, SendError> {
        let status = response.status().as_u16();
        let shown = response
            .headers()
            .iter()
            .filter(|(name, _)| rules::shown(name.as_str()));
        let headers = shown
            .map(|(name, value)| {
                (
                    name.as_str().to_owned(),
                    String::from_utf8_lossy(&masks.hide(value.as_bytes())).into_owned(),
                )
            })
            .collect();
        let body = masks.hide(&limited(response, self.body_bytes).await?);
        Ok(Response {
            status,
            headers,
            body,
        })
    }
}

/// The body of an answer, if it has no more than so many bytes.
pub async fn limited(response: reqwest::Response, limit: usize) -> Result<Vec<u8>, SendError> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        body.extend_from_slice(&chunk.map_err(|e| SendError::Unavailable(cause(&e)))?);
        if body.len() > limit {
            return Err(SendError::TooLarge(format!(
                "the answer has more than {limit} bytes"
            )));
        }
    }
    Ok(body)
}

/// What a person can act on: the innermost cause, never the URL (its query may be anything).
pub fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".into();
    }
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let what = if error.is_connect() { "can't connect: " } else { "" };
    if std::ptr::addr_eq(cause, error) {
        return format!("{what}the connection failed");
    }
    format!("{what}{cause}")
}
