//! Credentials of an upstream: built from the spec and its Secrets, and turned into a request header, after a login if
//! the method needs one.

mod builder;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::sync::Mutex;

use self::builder::CredentialsBuilder;
use super::{
    SecretStore, SendError, UpstreamSecretKey,
    grant::{ChallengeAnswer, TokenRequest},
    object::UpstreamObject,
    redact::Redactor,
    transport_error::{TransportError, TransportErrorKind},
};
use crate::policy::network::NetworkPolicy;

/// Maximum lifetime of a token, whatever the server promises.
const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// Minimum delay between logins, however short a lifetime the server gives its tokens.
const MIN_TOKEN_LIFETIME: Duration = Duration::from_secs(10);

/// Interval during which a token that replaced a rejected one is not replaced again: a server that rejects also new
/// tokens (401 instead of 403, or a wrong clock) would get a login for each request.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(30);

/// Interval during which a rejected login is not repeated: repeats by all waiting requests would lock the account.
const REFUSED_LOGIN_INTERVAL: Duration = Duration::from_secs(5);
/// Interval during which a failed login is not repeated: all waiting requests would fail one after the other.
const FAILED_LOGIN_INTERVAL: Duration = Duration::from_secs(1);

/// Number of issued tokens that are redacted: a response still being read may contain an earlier one.
const MAX_REMEMBERED_TOKENS: usize = 4;

/// The authentication of requests.
pub struct UpstreamCredentials {
    method: AuthMethod,
    /// Redacts the secrets that the credentials are made of.
    redactor: Redactor,
}

enum AuthMethod {
    /// No authentication.
    None,
    /// The same header for each request.
    Fixed(HeaderName, HeaderValue),
    /// A token that is fetched, kept for its lifetime, and fetched again.
    Token(Arc<TokenSource>),
}

/// A source of tokens. One login runs at a time, and all waiting requests share its result.
struct TokenSource {
    grant: TokenRequest,
    timeout: Duration,
    state: Arc<Mutex<LoginState>>,
    issued: parking_lot::Mutex<VecDeque<HeaderValue>>,
    /// The last time that a login replaced a token that the server had rejected.
    renewed_at: parking_lot::Mutex<Option<Instant>>,
}

impl TokenSource {
    fn new(grant: TokenRequest, timeout: Duration) -> Self {
        Self {
            grant,
            timeout,
            state: Arc::new(Mutex::new(LoginState::Empty)),
            issued: parking_lot::Mutex::default(),
            renewed_at: parking_lot::Mutex::default(),
        }
    }
}

/// The reason for a missing credential.
#[derive(Clone)]
pub enum CredentialError {
    /// The login met no response.
    Transport(TransportError),
    /// The login met a response without a token.
    Rejected(SendError),
    /// An earlier login failed; the request that started it has recorded the failure.
    Cached(SendError),
}

impl From<SendError> for CredentialError {
    fn from(e: SendError) -> Self {
        Self::Rejected(e)
    }
}

impl From<CredentialError> for SendError {
    fn from(refusal: CredentialError) -> Self {
        match refusal {
            CredentialError::Transport(error) => error.into_send_error("login: "),
            CredentialError::Rejected(e) | CredentialError::Cached(e) => e,
        }
    }
}

/// The result of the last login.
enum LoginState {
    Empty,
    Token(AccessToken),
    /// The error, and the time until which the login is not repeated.
    Failed(SendError, Instant),
}

#[derive(Clone)]
struct AccessToken {
    header: HeaderValue,
    renew_at: Instant,
}

impl UpstreamCredentials {
    /// Builds the credentials of an Upstream from the current values of its Secrets.
    pub fn new(
        upstream: &UpstreamObject,
        secrets: &dyn SecretStore,
        network: &NetworkPolicy,
        timeout: Duration,
    ) -> Result<Self, SendError> {
        let builder = CredentialsBuilder {
            upstream,
            secrets,
            network,
            timeout,
            redactor: Redactor::default(),
        };
        builder.build()
    }

    /// The Upstream needs no credentials.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.method, AuthMethod::None)
    }

    /// Redacts the credentials, the secrets they are made of, and the last tokens.
    pub fn add_to_redactor(&self, redactor: &mut Redactor) {
        redactor.merge_from(&self.redactor);
        match &self.method {
            AuthMethod::None => {}
            AuthMethod::Fixed(_, value) => redactor.add_credential(value.as_bytes()),
            AuthMethod::Token(source) => {
                for token in &*source.issued.lock() {
                    redactor.add_credential(token.as_bytes());
                }
            }
        }
    }

    /// The header to send. `stale` is a header that the server has just rejected: it is not returned again.
    pub async fn resolve_header(
        &self,
        http: &reqwest::Client,
        stale: Option<&HeaderValue>,
    ) -> Result<Option<(HeaderName, HeaderValue)>, CredentialError> {
        match &self.method {
            AuthMethod::None => Ok(None),
            AuthMethod::Fixed(name, value) => Ok(Some((name.clone(), value.clone()))),
            AuthMethod::Token(source) => {
                let name = source.grant.header.clone();
                Ok(Some((name, source.fetch_token(http, stale).await?)))
            }
        }
    }

    /// Requests carry a token that a login has issued.
    pub fn is_renewable(&self) -> bool {
        matches!(self.method, AuthMethod::Token(_))
    }

    /// A request that was rejected (HTTP 401) with this header may succeed with a newer token.
    pub fn can_replace(&self, rejected: Option<&HeaderValue>) -> bool {
        match &self.method {
            AuthMethod::Token(source) => source.can_replace(rejected),
            AuthMethod::None | AuthMethod::Fixed(..) => false,
        }
    }
}

impl TokenSource {
    fn can_replace(&self, rejected: Option<&HeaderValue>) -> bool {
        let is_newest = self.issued.lock().back() == rejected;
        let renewed_at = *self.renewed_at.lock();
        !is_newest || renewed_at.is_none_or(|at| at.elapsed() >= RENEWAL_INTERVAL)
    }

    async fn fetch_token(
        self: &Arc<Self>,
        http: &reqwest::Client,
        stale: Option<&HeaderValue>,
    ) -> Result<HeaderValue, CredentialError> {
        let mut held = self.state.clone().lock_owned().await;
        let now = Instant::now();
        match &*held {
            LoginState::Token(kept) if now < kept.renew_at && stale != Some(&kept.header) => {
                return Ok(kept.header.clone());
            }
            LoginState::Failed(why, until) if now < *until => {
                return Err(CredentialError::Cached(match why {
                    SendError::Throttled(_) => SendError::Throttled(saturating_millis(*until - now)),
                    other => other.clone(),
                }));
            }
            _ => {}
        }
        let is_renewal = matches!(&*held, LoginState::Token(kept) if stale == Some(&kept.header));
        *held = LoginState::Empty;
        let (source, http) = (self.clone(), http.clone());
        // The login runs in its own task: a caller that is cancelled does not cancel it for the others.
        let login = tokio::spawn(async move {
            let login = tokio::time::timeout(source.timeout, source.request_token(&http)).await;
            let late = || TransportError {
                kind: TransportErrorKind::Broken,
                text: "no answer in time".into(),
            };
            let fresh = login.unwrap_or_else(|_| Err(CredentialError::Transport(late())));
            *held = match &fresh {
                Ok(token) => {
                    source.remember_token(&token.header);
                    if is_renewal {
                        *source.renewed_at.lock() = Some(Instant::now());
                    }
                    LoginState::Token(token.clone())
                }
                Err(e) => {
                    let why = SendError::from(e.clone());
                    let stands = match &why {
                        SendError::LoginFailed(_) => REFUSED_LOGIN_INTERVAL,
                        SendError::Throttled(ms) => Duration::from_millis(*ms),
                        _ => FAILED_LOGIN_INTERVAL,
                    };
                    LoginState::Failed(why, Instant::now() + stands)
                }
            };
            fresh.map(|token| token.header)
        });
        let ended = || SendError::Unavailable("login: broken off".into()).into();
        login.await.unwrap_or_else(|_| Err(ended()))
    }

    fn remember_token(&self, token: &HeaderValue) {
        let mut given = self.issued.lock();
        given.retain(|t| t != token);
        given.push_back(token.clone());
        if given.len() > MAX_REMEMBERED_TOKENS {
            given.pop_front();
        }
    }

    async fn request_token(&self, http: &reqwest::Client) -> Result<AccessToken, CredentialError> {
        let started = Instant::now();
        let request = match self.grant.build_challenge_request(http) {
            None => self.grant.build_request(http),
            Some(probe) => {
                let (status, headers, _) = send_login(probe).await?;
                if !status.is_success() && status != 401 {
                    let code = status.as_u16();
                    let why = format!("HTTP {code} of /v2/: spec.url is not the URL of a registry");
                    return Err(SendError::LoginFailed(why).into());
                }
                match self.grant.answer_challenge(http, &headers)? {
                    ChallengeAnswer::TokenRequest(request) => *request,
                    ChallengeAnswer::Header(value) => {
                        return Ok(AccessToken {
                            header: sensitive_header(&value)?,
                            renew_at: started + MAX_TOKEN_LIFETIME,
                        });
                    }
                }
            }
        };
        let (status, _, body) = send_login(request).await?;
        if !status.is_success() {
            let words = self.grant.rejection_message(&body);
            return Err(SendError::LoginFailed(format!("HTTP {}: {words}", status.as_u16())).into());
        }
        let (token, life) = self
            .grant
            .parse_token(&body)
            .map_err(|what| SendError::Unavailable(format!("login: {what}")))?;
        Ok(AccessToken {
            header: sensitive_header(&format!("{}{token}", self.grant.prefix))?,
            renew_at: started + renewal_delay(life),
        })
    }
}

/// Sends a request of a login. The error is one that a repetition may mend.
async fn send_login(
    request: reqwest::RequestBuilder,
) -> Result<(StatusCode, HeaderMap, Vec<u8>), CredentialError> {
    let response = request
        .send()
        .await
        .map_err(|e| CredentialError::Transport(TransportError::from_request(&e)))?;
    let (status, headers) = (response.status(), response.headers().clone());
    let wait = super::answer::retry_after(&response);
    let body = super::answer::limited(response, 64 << 10).await?;
    let wait = wait.or((status == 429).then_some(FAILED_LOGIN_INTERVAL));
    if let Some(wait) = wait {
        return Err(SendError::Throttled(saturating_millis(wait)).into());
    }
    if status.is_server_error() || matches!(status.as_u16(), 408 | 425) {
        return Err(SendError::Unavailable(format!("login: HTTP {}", status.as_u16())).into());
    }
    Ok((status, headers, body))
}

/// The age at which a token is renewed: nine tenths of its lifetime, so that it does not expire during a request.
fn renewal_delay(lifetime: Duration) -> Duration {
    (lifetime / 10 * 9).clamp(MIN_TOKEN_LIFETIME, MAX_TOKEN_LIFETIME)
}

/// A URL below the Upstream's URL.
fn join_url(upstream: &UpstreamObject, path: &str) -> String {
    let url = upstream.spec.url.trim_end_matches('/');
    format!("{url}/{}", path.trim_start_matches('/'))
}

fn saturating_millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

fn parse_secret_text(key: &UpstreamSecretKey, value: &[u8]) -> Result<String, SendError> {
    let text = std::str::from_utf8(value).map_err(|_| SendError::Invalid(format!("{key} is not UTF-8")))?;
    // Files and `echo` end in a line feed; a credential never does.
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn sensitive_header(value: &str) -> Result<HeaderValue, CredentialError> {
    let mut header = HeaderValue::from_str(value).map_err(|_| {
        SendError::Invalid("the credential has a character that no HTTP header may have".into())
    })?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_renewed_before_its_lifetime_ends_within_bounds() {
        for (lifetime, delay) in [
            (3600, 3240),
            (100, 90),
            (10, 10),
            (0, 10),
            (u64::MAX, 7 * 24 * 3600),
        ] {
            let delay = Duration::from_secs(delay);
            assert_eq!(renewal_delay(Duration::from_secs(lifetime)), delay, "{lifetime}");
        }
    }
}
