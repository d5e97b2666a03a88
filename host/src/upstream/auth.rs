//! Credentials: from the spec and its Secrets to a header, by logging in where that is needed.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex as SyncMutex},
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue};
use tokio::sync::Mutex;

use super::{
    SecretKey, SecretValue, Secrets, SendError,
    grant::Grant,
    masking::Masks,
    missing,
    object::UpstreamObject,
    spec::Auth,
    transport_error::{Fault, Kind},
};
use crate::policy::network::Network;

/// However long a token is said to last: by then there is another one.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// A refused log-in is not tried again before: those who wait for it would lock the account.
const REFUSED: Duration = Duration::from_secs(5);
/// Nor is one that failed: those who wait for it would fail one after the other.
const FAILED: Duration = Duration::from_secs(1);

/// Shorter passwords are ordinary words: hiding them would garble answers. What is sent is hidden in any case.
const PASSWORD: usize = 8;

/// Tokens remembered: what is still being read may have the one before.
const TOKENS: usize = 4;

/// How requests are authenticated.
pub struct Credentials {
    way: Way,
    /// Hides what they are made of.
    masks: Masks,
}

enum Way {
    /// Not at all.
    None,
    /// The same header each time.
    Fixed(HeaderName, HeaderValue),
    /// A token that is fetched, kept while it lasts, and fetched again.
    Token(Arc<TokenSource>),
}

/// Fetches tokens; one log-in at a time, however many wait for it.
struct TokenSource {
    grant: Grant,
    timeout: Duration,
    held: Arc<Mutex<Held>>,
    given: SyncMutex<VecDeque<HeaderValue>>,
}

/// Why there is no credential.
#[derive(Clone)]
pub enum Refusal {
    /// The log-in met no answer.
    Fault(Fault),
    /// It met one that is no token.
    Answer(SendError),
    /// An earlier one failed, which was told by who asked for it.
    Earlier(SendError),
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
            Refusal::Answer(e) | Refusal::Earlier(e) => e,
        }
    }
}

/// What the last log-in came to.
enum Held {
    Nothing,
    Token(Token),
    /// Why there is none, and until when that stands.
    Failed(SendError, Instant),
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
        timeout: Duration,
    ) -> Result<Self, SendError> {
        let mut masks = Masks::default();
        let mut text = |selector: &super::SecretKeySelector| {
            let key = upstream.secret_key(selector);
            let SecretValue { value, .. } = secrets.get(&key).ok_or_else(|| missing(&key))?;
            let text = text_of(&key, value.expose())?;
            if text.len() >= PASSWORD {
                masks.never_show(text.as_bytes());
            }
            Ok::<_, SendError>(text)
        };
        let token = |grant| {
            Way::Token(Arc::new(TokenSource {
                grant,
                timeout,
                held: Arc::new(Mutex::new(Held::Nothing)),
                given: SyncMutex::default(),
            }))
        };
        let auth = &upstream.spec.auth;
        let way = match auth {
            Auth::None {} => Way::None,
            Auth::Basic(basic) => {
                let pair = STANDARD.encode(format!(
                    "{}:{}",
                    basic.username,
                    text(&basic.password_secret_ref)?
                ));
                Way::Fixed(http::header::AUTHORIZATION, sensitive(&format!("Basic {pair}"))?)
            }
            Auth::Bearer(bearer) => {
                let token = text(&bearer.token_secret_ref)?;
                Way::Fixed(
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
                Way::Fixed(name, sensitive(&text(&header.value_secret_ref)?)?)
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
                token(Grant::oauth2(url, grant.client_id.clone(), secret, form))
            }
            Auth::Oauth2ClientCredentials(grant) => {
                let form = vec![
                    ("grant_type", "client_credentials".to_owned()),
                    ("scope", grant.scopes.join(" ")),
                ];
                let secret = text(&grant.client_secret_ref)?;
                let endpoint = (grant.token_path.as_deref(), grant.token_url.as_deref());
                let url = token_endpoint(upstream, network, endpoint)?;
                token(Grant::oauth2(url, grant.client_id.clone(), secret, form))
            }
            Auth::Login(login) => {
                let password = text(&login.password_secret_ref)?;
                token(Grant::login(below(upstream, &login.path), login, password)?)
            }
        };
        Ok(Self { way, masks })
    }

    /// Whether there are none.
    pub fn none(&self) -> bool {
        matches!(self.way, Way::None)
    }

    /// Hides them, what they are made of, and the last ones before.
    pub fn never_show(&self, masks: &mut Masks) {
        masks.also(&self.masks);
        match &self.way {
            Way::None => {}
            Way::Fixed(_, value) => masks.never_show(value.as_bytes()),
            Way::Token(source) => {
                for token in &*source.given.lock().expect("lock") {
                    masks.never_show(token.as_bytes());
                }
            }
        }
    }

    /// The header to send. `stale` is one that was just refused: it is not given again.
    pub async fn header(
        &self,
        http: &reqwest::Client,
        stale: Option<&HeaderValue>,
    ) -> Result<Option<(HeaderName, HeaderValue)>, Refusal> {
        match &self.way {
            Way::None => Ok(None),
            Way::Fixed(name, value) => Ok(Some((name.clone(), value.clone()))),
            Way::Token(source) => {
                let name = source.grant.header.clone();
                Ok(Some((name, source.token(http, stale).await?)))
            }
        }
    }

    /// Whether a refused request may succeed after another log-in.
    pub fn renewable(&self) -> bool {
        matches!(self.way, Way::Token(_))
    }
}

impl TokenSource {
    async fn token(
        self: &Arc<Self>,
        http: &reqwest::Client,
        stale: Option<&HeaderValue>,
    ) -> Result<HeaderValue, Refusal> {
        let mut held = self.held.clone().lock_owned().await;
        let now = Instant::now();
        match &*held {
            Held::Token(kept) if now < kept.until && stale != Some(&kept.header) => {
                return Ok(kept.header.clone());
            }
            Held::Failed(why, until) if now < *until => {
                return Err(Refusal::Earlier(match why {
                    SendError::Throttled(_) => SendError::Throttled(milliseconds(*until - now)),
                    other => other.clone(),
                }));
            }
            _ => *held = Held::Nothing,
        }
        let (source, http) = (self.clone(), http.clone());
        // A task of its own: who gives up takes it from nobody else, and all share what comes of it.
        let login = tokio::spawn(async move {
            let login = tokio::time::timeout(source.timeout, source.login(&http)).await;
            let late = || Fault {
                kind: Kind::Broken,
                text: "no answer in time".into(),
            };
            let fresh = login.unwrap_or_else(|_| Err(Refusal::Fault(late())));
            *held = match &fresh {
                Ok(token) => {
                    source.remember(&token.header);
                    Held::Token(token.clone())
                }
                Err(e) => {
                    let why = SendError::from(e.clone());
                    let stands = match &why {
                        SendError::LoginFailed(_) => REFUSED,
                        SendError::Throttled(ms) => Duration::from_millis(*ms),
                        _ => FAILED,
                    };
                    Held::Failed(why, Instant::now() + stands)
                }
            };
            fresh.map(|token| token.header)
        });
        let ended = || SendError::Unavailable("log-in: broken off".into()).into();
        login.await.unwrap_or_else(|_| Err(ended()))
    }

    fn remember(&self, token: &HeaderValue) {
        let mut given = self.given.lock().expect("lock");
        given.retain(|t| t != token);
        given.push_back(token.clone());
        if given.len() > TOKENS {
            given.pop_front();
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
        let wait = wait.or((status == 429).then_some(FAILED));
        if let Some(wait) = wait {
            return Err(SendError::Throttled(milliseconds(wait)).into());
        }
        if status.is_server_error() || matches!(status.as_u16(), 408 | 425) {
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

fn milliseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
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
