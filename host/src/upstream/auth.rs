//! Credentials: from the spec and its Secrets to a header, by logging in where that is needed.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue};
use tokio::sync::Mutex;

use super::{
    SecretKey, SecretValue, Secrets, SendError, fault::Fault, grant::Grant, missing, network::Network,
    object::UpstreamObject, spec::Auth,
};

/// However long a token is said to last: by then there is another one.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// A refused log-in is not tried again before: those who wait for it would lock the account.
const REFUSED: Duration = Duration::from_secs(5);

/// How requests are authenticated.
pub enum Credentials {
    /// Not at all.
    None,
    /// The same header each time.
    Fixed(HeaderName, HeaderValue),
    /// A token that is fetched, kept while it lasts, and fetched again.
    Token(Box<TokenSource>),
}

/// Fetches tokens; one log-in at a time, however many wait for it.
pub struct TokenSource {
    grant: Grant,
    token: Mutex<Held>,
}

/// Why there is no credential.
pub enum Refusal {
    /// The log-in met no answer.
    Fault(Fault),
    /// It met one that is no token.
    Answer(SendError),
}

impl From<SendError> for Refusal {
    fn from(e: SendError) -> Self {
        Self::Answer(e)
    }
}

impl From<Refusal> for SendError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Fault(fault) => fault.error("log-in: "),
            Refusal::Answer(e) => e,
        }
    }
}

/// What the last log-in came to.
enum Held {
    Nothing,
    Token(Token),
    Refused(SendError, Instant),
}

#[derive(Clone)]
struct Token {
    header: HeaderValue,
    until: Instant,
}

impl Credentials {
    /// Reads what the spec says with its Secrets as they are.
    pub fn new(
        upstream: &UpstreamObject,
        secrets: &dyn Secrets,
        network: &Network,
    ) -> Result<Self, SendError> {
        let text = |selector: &super::SecretKeySelector| {
            let key = upstream.secret_key(selector);
            let SecretValue { value, .. } = secrets.get(&key).ok_or_else(|| missing(&key))?;
            text_of(&key, value.expose())
        };
        let auth = &upstream.spec.auth;
        Ok(match auth {
            Auth::None {} => Self::None,
            Auth::Basic(basic) => {
                let pair = STANDARD.encode(format!(
                    "{}:{}",
                    basic.username,
                    text(&basic.password_secret_ref)?
                ));
                Self::Fixed(http::header::AUTHORIZATION, sensitive(&format!("Basic {pair}"))?)
            }
            Auth::Bearer(bearer) => {
                let token = text(&bearer.token_secret_ref)?;
                Self::Fixed(
                    http::header::AUTHORIZATION,
                    sensitive(&format!("Bearer {token}"))?,
                )
            }
            Auth::Header(header) => {
                let name = HeaderName::try_from(&header.name).map_err(|_| {
                    SendError::Invalid(format!(
                        "spec.auth.header.name {:?} is no header name",
                        header.name
                    ))
                })?;
                Self::Fixed(name, sensitive(&text(&header.value_secret_ref)?)?)
            }
            Auth::Oauth2Password(grant) => {
                let form = vec![
                    ("grant_type", "password".to_owned()),
                    ("username", grant.username.clone()),
                    ("password", text(&grant.password_secret_ref)?),
                    ("scope", grant.scopes.join(" ")),
                ];
                let secret = match (&grant.client_secret_ref, &grant.client_secret) {
                    (Some(selector), _) => text(selector)?,
                    (None, Some(secret)) => secret.clone(),
                    (None, None) => String::new(),
                };
                let endpoint = (grant.token_path.as_deref(), grant.token_url.as_deref());
                let url = token_endpoint(upstream, network, endpoint)?;
                Self::token(Grant::oauth2(url, grant.client_id.clone(), secret, form))
            }
            Auth::Oauth2ClientCredentials(grant) => {
                let form = vec![
                    ("grant_type", "client_credentials".to_owned()),
                    ("scope", grant.scopes.join(" ")),
                ];
                let secret = text(&grant.client_secret_ref)?;
                let endpoint = (grant.token_path.as_deref(), grant.token_url.as_deref());
                let url = token_endpoint(upstream, network, endpoint)?;
                Self::token(Grant::oauth2(url, grant.client_id.clone(), secret, form))
            }
            Auth::Login(login) => {
                let password = text(&login.password_secret_ref)?;
                Self::token(Grant::login(below(upstream, &login.path), login, password)?)
            }
        })
    }

    fn token(grant: Grant) -> Self {
        Self::Token(Box::new(TokenSource {
            grant,
            token: Mutex::new(Held::Nothing),
        }))
    }

    /// The header to send. `stale` is one that was just refused: it is not given again.
    pub async fn header(
        &self,
        http: &reqwest::Client,
        stale: Option<&HeaderValue>,
    ) -> Result<Option<(HeaderName, HeaderValue)>, Refusal> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(name, value) => Ok(Some((name.clone(), value.clone()))),
            Self::Token(source) => {
                let name = source.grant.header.clone();
                Ok(Some((name, source.token(http, stale).await?)))
            }
        }
    }

    /// Whether a refused request may succeed after another log-in.
    pub fn renewable(&self) -> bool {
        matches!(self, Self::Token(_))
    }
}

impl TokenSource {
    async fn token(
        &self,
        http: &reqwest::Client,
        stale: Option<&HeaderValue>,
    ) -> Result<HeaderValue, Refusal> {
        let mut held = self.token.lock().await;
        match &*held {
            Held::Token(kept) if Instant::now() < kept.until && stale != Some(&kept.header) => {
                return Ok(kept.header.clone());
            }
            Held::Refused(why, at) if at.elapsed() < REFUSED => return Err(why.clone().into()),
            _ => *held = Held::Nothing,
        }
        match self.login(http).await {
            Ok(fresh) => {
                let header = fresh.header.clone();
                *held = Held::Token(fresh);
                Ok(header)
            }
            Err(e) => {
                if let Refusal::Answer(why @ SendError::LoginFailed(_)) = &e {
                    *held = Held::Refused(why.clone(), Instant::now());
                }
                Err(e)
            }
        }
    }

    async fn login(&self, http: &reqwest::Client) -> Result<Token, Refusal> {
        let started = Instant::now();
        let response = self
            .grant
            .request(http)
            .send()
            .await
            .map_err(|e| Refusal::Fault(Fault::of(&e)))?;
        let status = response.status();
        let wait = super::answer::asked_to_wait(&response);
        let body = super::answer::limited(response, 64 << 10).await?;
        if let Some(wait) = wait {
            let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            return Err(SendError::Throttled(wait).into());
        }
        if status.is_server_error() {
            return Err(SendError::Unavailable(format!("log-in: HTTP {}", status.as_u16())).into());
        }
        if !status.is_success() {
            let words = self.grant.refusal(&body);
            return Err(SendError::LoginFailed(format!("HTTP {}: {words}", status.as_u16())).into());
        }
        let (token, life) = self
            .grant
            .granted(&body)
            .map_err(|what| SendError::Unavailable(format!("log-in: {what}")))?;
        Ok(Token {
            header: sensitive(&format!("{}{token}", self.grant.prefix))?,
            // Renewed after nine tenths of its life: not when a request meets its end.
            until: started + (life / 10 * 9).min(LONGEST),
        })
    }
}

/// A path below the Upstream's URL.
fn below(upstream: &UpstreamObject, path: &str) -> String {
    let url = upstream.spec.url.trim_end_matches('/');
    format!("{url}/{}", path.trim_start_matches('/'))
}

/// Where tokens are fetched: below the URL, or at a place of its own that is as safe to send a password to.
fn token_endpoint(
    upstream: &UpstreamObject,
    network: &Network,
    (path, url): (Option<&str>, Option<&str>),
) -> Result<String, SendError> {
    let invalid = |what: String| SendError::Invalid(format!("spec.auth: tokenUrl {what}"));
    match (path, url) {
        (Some(path), None) => Ok(below(upstream, path)),
        (None, Some(text)) => {
            let url = reqwest::Url::parse(text).map_err(|e| invalid(format!("{text:?}: {e}")))?;
            let own = reqwest::Url::parse(&upstream.spec.url).is_ok_and(|u| u.origin() == url.origin());
            if url.scheme() != "https" && !own {
                return Err(invalid(
                    "must be https: it is not of the same origin as spec.url, and a password goes there"
                        .into(),
                ));
            }
            network
                .check(&url)
                .map_err(|e| SendError::NotAllowed(e.to_string()))?;
            Ok(text.to_owned())
        }
        _ => Err(SendError::Invalid(
            "spec.auth: exactly one of tokenPath and tokenUrl is needed".into(),
        )),
    }
}

fn text_of(key: &SecretKey, value: &[u8]) -> Result<String, SendError> {
    let text = std::str::from_utf8(value).map_err(|_| SendError::Invalid(format!("{key} is not UTF-8")))?;
    // Files and `echo` end in a line feed; a credential never does.
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn sensitive(value: &str) -> Result<HeaderValue, Refusal> {
    let mut header = HeaderValue::from_str(value).map_err(|_| {
        SendError::Invalid("the credential has a character that no HTTP header may have".into())
    })?;
    header.set_sensitive(true);
    Ok(header)
}
