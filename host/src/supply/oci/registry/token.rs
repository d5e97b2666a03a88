//! Authentication at a registry: answers to its challenges, and the tokens of token servers.

use http::{HeaderMap, HeaderValue};
use reqwest::Url;
use serde::Deserialize;

use super::{
    super::{PullError, auth::RegistryCredential, reference::is_loopback},
    BodyError, MAX_ERROR_BYTES, MAX_RETRIES, OciRegistry, RETRY_BACKOFF, is_retryable, read_body,
};
use crate::upstream::{Challenge, root_cause};

impl OciRegistry {
    /// Answers a challenge: stores the authorization header of the next requests.
    pub(super) async fn answer_challenge(&self, headers: &HeaderMap) -> Result<(), PullError> {
        let value = match (Challenge::parse(headers), &self.credential) {
            (_, Some(RegistryCredential::Bearer(token))) => bearer_header(token),
            (
                Challenge::Bearer {
                    realm,
                    service,
                    scope,
                },
                _,
            ) => bearer_header(&self.fetch_token(&realm, service, scope).await?),
            (Challenge::Basic, Some(RegistryCredential::Basic { username, password })) => {
                basic_header(username, password)
            }
            (Challenge::Basic | Challenge::Unknown, _) => {
                return Err(self.unauthorized_error("HTTP 401 Unauthorized"));
            }
        };
        let mut value = value.ok_or_else(|| self.unauthorized_error("its token can't be sent"))?;
        value.set_sensitive(true);
        *self.authorization.lock() = Some(value);
        Ok(())
    }

    /// Fetches a token from the registry's token server.
    async fn fetch_token(
        &self,
        realm: &str,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<String, PullError> {
        let url = Url::parse(realm)
            .map_err(|_| self.unauthorized_error("it names a token server that is no URL"))?;
        // Credentials are sent there.
        if url.scheme() != "https"
            && !(self.plain_http && (is_loopback(&url) || url.host() == self.url.host()))
        {
            return Err(self.unauthorized_error("it names a token server without https"));
        }
        let mut parameters = Vec::new();
        parameters.extend(service.map(|service| ("service", service)));
        parameters.extend(scope.map(|scope| ("scope", scope)));
        let build = || match &self.credential {
            Some(RegistryCredential::Refresh(token)) => {
                let mut form = parameters.clone();
                form.push(("grant_type", "refresh_token".into()));
                form.push(("client_id", "ostler".into()));
                form.push(("refresh_token", token.clone()));
                self.token_http.post(url.clone()).form(&form)
            }
            Some(RegistryCredential::Basic { username, password }) => self
                .token_http
                .get(url.clone())
                .query(&parameters)
                .basic_auth(username, Some(password)),
            _ => self.token_http.get(url.clone()).query(&parameters),
        };
        #[derive(Deserialize)]
        struct Token {
            #[serde(alias = "access_token")]
            token: String,
        }
        let mut retries = 0;
        loop {
            let why = match build().send().await {
                Ok(response) if is_retryable(response.status()) => format!("HTTP {}", response.status()),
                Ok(response) if !response.status().is_success() => {
                    return Err(
                        self.unauthorized_error(&format!("its token server says HTTP {}", response.status()))
                    );
                }
                Ok(response) => match read_body(response, MAX_ERROR_BYTES).await {
                    Ok(bytes) => {
                        let token = serde_json::from_slice::<Token>(&bytes).ok();
                        let token = token.map(|t| t.token).filter(|token| !token.is_empty());
                        return token
                            .ok_or_else(|| self.unauthorized_error("its token server gives no token"));
                    }
                    Err(BodyError::TooLarge) => return Err(self.unauthorized_error("its token is too large")),
                    Err(BodyError::Broken(why)) => why,
                },
                Err(e) => root_cause(&e),
            };
            if retries == MAX_RETRIES {
                return Err(self.pull_failed_error("token server", &why));
            }
            retries += 1;
            tokio::time::sleep(RETRY_BACKOFF.delay(retries)).await;
        }
    }
}

fn bearer_header(token: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("Bearer {token}")).ok()
}

fn basic_header(username: &str, password: &str) -> Option<HeaderValue> {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let pair = BASE64_STANDARD.encode(format!("{username}:{password}"));
    HeaderValue::from_str(&format!("Basic {pair}")).ok()
}
