//! Credentials from the spec of an Upstream and its Secrets, one function for each method.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderName, header::AUTHORIZATION};

use super::{AuthMethod, TokenSource, UpstreamCredentials, join_url, parse_secret_text, sensitive_header};
use crate::{
    policy::network::NetworkPolicy,
    upstream::{
        SecretStore, SendError,
        grant::TokenRequest,
        missing_secret,
        object::UpstreamObject,
        redact::{MIN_PASSWORD_BYTES, Redactor},
        spec::{
            Basic, Bearer, Header, Login, Oauth2ClientCredentials, Oauth2Password, RegistryLogin,
            SecretKeySelector, UpstreamAuth,
        },
    },
};

/// Builds the credentials of an Upstream.
pub(super) struct CredentialsBuilder<'a> {
    pub upstream: &'a UpstreamObject,
    pub secrets: &'a dyn SecretStore,
    pub network: &'a NetworkPolicy,
    /// Maximum duration of a login.
    pub timeout: Duration,
    /// Gets the secrets that are read.
    pub redactor: Redactor,
}

impl CredentialsBuilder<'_> {
    /// Reads the Secrets and builds the credentials.
    ///
    /// # Errors
    /// A Secret or its key is missing, or a field has an invalid value.
    pub fn build(mut self) -> Result<UpstreamCredentials, SendError> {
        let method = match &self.upstream.spec.auth {
            UpstreamAuth::None {} => AuthMethod::None,
            UpstreamAuth::Basic(basic) => self.build_basic(basic)?,
            UpstreamAuth::Bearer(bearer) => self.build_bearer(bearer)?,
            UpstreamAuth::Header(header) => self.build_header(header)?,
            UpstreamAuth::Oauth2Password(grant) => self.build_token(Self::request_by_password, grant)?,
            UpstreamAuth::Oauth2ClientCredentials(grant) => {
                self.build_token(Self::request_by_client, grant)?
            }
            UpstreamAuth::Login(login) => self.build_token(Self::request_by_login, login)?,
            UpstreamAuth::Registry(login) => self.build_token(Self::request_at_registry, login)?,
        };
        Ok(UpstreamCredentials {
            method,
            redactor: self.redactor,
        })
    }

    fn read_text(&mut self, selector: &SecretKeySelector) -> Result<String, SendError> {
        let key = self.upstream.secret_key(selector);
        let value = self.secrets.get(&key).ok_or_else(|| missing_secret(&key))?;
        let text = parse_secret_text(&key, value.expose())?;
        if text.len() >= MIN_PASSWORD_BYTES {
            self.redactor.add_secret(text.as_bytes());
        }
        Ok(text)
    }

    fn build_basic(&mut self, basic: &Basic) -> Result<AuthMethod, SendError> {
        let password = self.read_text(&basic.password_secret_ref)?;
        let pair = STANDARD.encode(format!("{}:{password}", basic.username));
        Ok(AuthMethod::Fixed(
            AUTHORIZATION,
            sensitive_header(&format!("Basic {pair}"))?,
        ))
    }

    fn build_bearer(&mut self, bearer: &Bearer) -> Result<AuthMethod, SendError> {
        let token = self.read_text(&bearer.token_secret_ref)?;
        Ok(AuthMethod::Fixed(
            AUTHORIZATION,
            sensitive_header(&format!("Bearer {token}"))?,
        ))
    }

    fn build_header(&mut self, header: &Header) -> Result<AuthMethod, SendError> {
        let name = HeaderName::try_from(&header.name).map_err(|_| {
            SendError::Invalid(format!(
                "spec.auth.header.name {:?} is no header name",
                header.name
            ))
        })?;
        let value = self.read_text(&header.value_secret_ref)?;
        let prefix = header.prefix.as_deref().unwrap_or_default();
        let sent = sensitive_header(&format!("{prefix}{value}"))?;
        // A server that echoes `KEY:SECRET` shows one of them rather than both.
        for part in value.split(':').filter(|part| part.len() >= MIN_PASSWORD_BYTES) {
            self.redactor.add_secret(part.as_bytes());
        }
        Ok(AuthMethod::Fixed(name, sent))
    }

    fn build_token<T>(
        &mut self,
        build_request: fn(&mut Self, &T) -> Result<TokenRequest, SendError>,
        spec: &T,
    ) -> Result<AuthMethod, SendError> {
        let request = build_request(self, spec)?;
        Ok(AuthMethod::Token(Arc::new(TokenSource::new(
            request,
            self.timeout,
        ))))
    }

    fn request_by_password(&mut self, grant: &Oauth2Password) -> Result<TokenRequest, SendError> {
        let form = vec![
            ("grant_type", "password".to_owned()),
            ("username", grant.username.clone()),
            ("password", self.read_text(&grant.password_secret_ref)?),
            ("scope", grant.scopes.join(" ")),
        ];
        let secret = match (&grant.client_secret_ref, &grant.client_secret) {
            (Some(selector), _) => self.read_text(selector)?,
            (None, Some(secret)) => secret.clone(),
            (None, None) => String::new(),
        };
        let url = self.resolve_endpoint(grant.token_path.as_deref(), grant.token_url.as_deref())?;
        let id = grant.client_id.clone();
        Ok(TokenRequest::for_oauth2(url, id, secret, form))
    }

    fn request_by_client(&mut self, grant: &Oauth2ClientCredentials) -> Result<TokenRequest, SendError> {
        let form = vec![
            ("grant_type", "client_credentials".to_owned()),
            ("scope", grant.scopes.join(" ")),
        ];
        let secret = self.read_text(&grant.client_secret_ref)?;
        let url = self.resolve_endpoint(grant.token_path.as_deref(), grant.token_url.as_deref())?;
        let id = grant.client_id.clone();
        Ok(TokenRequest::for_oauth2(url, id, secret, form))
    }

    fn request_by_login(&mut self, login: &Login) -> Result<TokenRequest, SendError> {
        let password = self.read_text(&login.password_secret_ref)?;
        TokenRequest::for_login(join_url(self.upstream, &login.path), login, password)
    }

    fn request_at_registry(&mut self, login: &RegistryLogin) -> Result<TokenRequest, SendError> {
        let password = self.read_text(&login.password_secret_ref)?;
        if login.token_url.is_some() {
            self.resolve_endpoint(None, login.token_url.as_deref())?;
        }
        let origins = self.upstream.credential_origins().map_err(SendError::Invalid)?;
        let tls = self.upstream.spec.tls.as_ref();
        let unverified = tls.is_some_and(|tls| tls.insecure_skip_verify);
        let url = join_url(self.upstream, "/v2/");
        Ok(TokenRequest::for_registry(
            url, login, password, origins, unverified,
        ))
    }

    /// The token endpoint: a path below the Upstream's URL, or another URL that is as safe to send a password to.
    fn resolve_endpoint(&self, path: Option<&str>, url: Option<&str>) -> Result<String, SendError> {
        let invalid = |what: String| SendError::Invalid(format!("spec.auth: tokenUrl {what}"));
        match (path, url) {
            (Some(path), None) => Ok(join_url(self.upstream, path)),
            (None, Some(text)) => {
                let url = reqwest::Url::parse(text).map_err(|e| invalid(format!("{text:?}: {e}")))?;
                let own =
                    reqwest::Url::parse(&self.upstream.spec.url).is_ok_and(|u| u.origin() == url.origin());
                if url.scheme() != "https" && !own {
                    return Err(invalid(
                        "must be https: it is not of the same origin as spec.url, and a password goes there"
                            .into(),
                    ));
                }
                self.network
                    .check_url(&url)
                    .map_err(|e| SendError::NotAllowed(e.to_string()))?;
                Ok(text.to_owned())
            }
            _ => Err(SendError::Invalid(
                "spec.auth: exactly one of tokenPath and tokenUrl is needed".into(),
            )),
        }
    }
}
