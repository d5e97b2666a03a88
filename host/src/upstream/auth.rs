//! Credentials: from the spec and its Secrets to a header, by logging in where that is needed.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::{
    SecretKey, SecretValue, Secrets, SendError, missing,
    spec::{Auth, UpstreamObject},
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
    url: String,
    client: (String, String),
    form: Vec<(&'static str, String)>,
    token: Mutex<Held>,
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
    pub fn new(upstream: &UpstreamObject, secrets: &dyn Secrets) -> Result<Self, SendError> {
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
                Self::token(upstream, &grant.token_path, grant.client_id.clone(), secret, form)
            }
            Auth::Oauth2ClientCredentials(grant) => {
                let form = vec![
                    ("grant_type", "client_credentials".to_owned()),
                    ("scope", grant.scopes.join(" ")),
                ];
                let secret = text(&grant.client_secret_ref)?;
                Self::token(upstream, &grant.token_path, grant.client_id.clone(), secret, form)
            }
        })
    }

    fn token(
        upstream: &UpstreamObject,
        path: &str,
        id: String,
        secret: String,
        mut form: Vec<(&'static str, String)>,
    ) -> Self {
        form.retain(|(_, value)| !value.is_empty());
        Self::Token(Box::new(TokenSource {
            url: format!(
                "{}/{}",
                upstream.spec.url.trim_end_matches('/'),
                path.trim_start_matches('/')
            ),
            client: (id, secret),
            form,
            token: Mutex::new(Held::Nothing),
        }))
    }

    /// The header to send. `stale` is one that was just refused: it is not given again.
    pub async fn header(
        &self,
        http: &reqwest::Client,
        stale: Option<&HeaderValue>,
    ) -> Result<Option<(HeaderName, HeaderValue)>, SendError> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(name, value) => Ok(Some((name.clone(), value.clone()))),
            Self::Token(source) => Ok(Some((
                http::header::AUTHORIZATION,
                source.token(http, stale).await?,
            ))),
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
    ) -> Result<HeaderValue, SendError> {
        let mut held = self.token.lock().await;
        match &*held {
            Held::Token(kept) if Instant::now() < kept.until && stale != Some(&kept.header) => {
                return Ok(kept.header.clone());
            }
            Held::Refused(why, at) if at.elapsed() < REFUSED => return Err(why.clone()),
            _ => *held = Held::Nothing,
        }
        match self.login(http).await {
            Ok(fresh) => {
                let header = fresh.header.clone();
                *held = Held::Token(fresh);
                Ok(header)
            }
            Err(e) => {
                if let SendError::LoginFailed(_) = &e {
                    *held = Held::Refused(e.clone(), Instant::now());
                }
                Err(e)
            }
        }
    }

    /// The token request of RFC 6749, sections 4.3.2 and 4.4.2.
    async fn login(&self, http: &reqwest::Client) -> Result<Token, SendError> {
        #[derive(Deserialize)]
        struct Granted {
            access_token: String,
            expires_in: Option<u64>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Refused {
            error: String,
            error_description: String,
        }
        let started = Instant::now();
        let request = http
            .post(&self.url)
            .basic_auth(&self.client.0, Some(&self.client.1))
            .form(&self.form);
        let response = request
            .send()
            .await
            .map_err(|e| SendError::Unavailable(format!("log-in: {}", super::client::cause(&e))))?;
        let status = response.status();
        let body = super::client::limited(response, 64 << 10).await?;
        if status.is_server_error() {
            return Err(SendError::Unavailable(format!(
                "log-in: HTTP {}",
                status.as_u16()
            )));
        }
        if !status.is_success() {
            let refused: Refused = serde_json::from_slice(&body).unwrap_or_default();
            // The server's words, unless it echoes what it was sent.
            let mut words = if refused.error_description.is_empty() {
                refused.error
            } else {
                refused.error_description
            };
            let sent = self
                .form
                .iter()
                .filter(|(name, _)| *name == "password")
                .map(|(_, value)| value);
            if words.is_empty()
                || sent
                    .chain([&self.client.1])
                    .any(|secret| !secret.is_empty() && words.contains(secret))
            {
                words = "no reason given".into();
            }
            return Err(SendError::LoginFailed(format!(
                "HTTP {}: {words}",
                status.as_u16()
            )));
        }
        let granted: Granted = serde_json::from_slice(&body)
            .map_err(|_| SendError::Unavailable("log-in: the answer is not an OAuth2 token".into()))?;
        // Renewed after nine tenths of its life: not when a request meets its end.
        let life = Duration::from_secs(granted.expires_in.unwrap_or(300));
        Ok(Token {
            header: sensitive(&format!("Bearer {}", granted.access_token))?,
            until: started + (life / 10 * 9).min(LONGEST),
        })
    }
}

fn text_of(key: &SecretKey, value: &[u8]) -> Result<String, SendError> {
    let text = std::str::from_utf8(value).map_err(|_| SendError::Invalid(format!("{key} is not UTF-8")))?;
    // Files and `echo` end in a line feed; a credential never does.
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn sensitive(value: &str) -> Result<HeaderValue, SendError> {
    let mut header = HeaderValue::from_str(value).map_err(|_| {
        SendError::Invalid("the credential has a character that no HTTP header may have".into())
    })?;
    header.set_sensitive(true);
    Ok(header)
}
