//! Login requests for tokens, and the parsing of their responses.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Origin, SendError,
    challenge::Challenge,
    redact::Redactor,
    spec::{Login, RegistryLogin},
};

/// Lifetime of a token if neither spec nor server gives one.
const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_secs(300);

/// Maximum length of a server's message in an error.
const MAX_MESSAGE_CHARS: usize = 300;

/// Lifetime of a registry's token if the token server gives none (Docker's token authentication).
const DEFAULT_REGISTRY_TOKEN_LIFETIME: Duration = Duration::from_secs(60);

/// The client that token servers of registries log.
const REGISTRY_CLIENT_ID: &str = "ostler";

/// One way to request a token. Not `Debug`: it holds secrets.
pub struct TokenRequest {
    url: String,
    /// The header that carries the token.
    pub header: HeaderName,
    /// The prefix of the token in that header.
    pub prefix: &'static str,
    kind: TokenRequestKind,
}

enum TokenRequestKind {
    /// OAuth2: RFC 6749, sections 4.3.2 and 4.4.2.
    Oauth2 {
        client: (String, String),
        form: Vec<(&'static str, String)>,
    },
    /// A JSON login of the server itself.
    Login {
        body: Value,
        password: String,
        token: String,
        lifetime: Result<Duration, String>,
    },
    Registry {
        username: String,
        password: String,
        scopes: Vec<String>,
        /// The origins that user name and password may be sent to.
        origins: Vec<Origin>,
        /// The certificates of the servers are not verified.
        unverified: bool,
    },
}

/// The answer to the challenge of a registry.
pub enum ChallengeAnswer {
    /// The value of the authorization header.
    Header(String),
    /// The request for a token.
    TokenRequest(Box<reqwest::RequestBuilder>),
}

impl TokenRequest {
    /// An OAuth2 token request; fields without a value are left out.
    pub fn for_oauth2(
        url: String,
        id: String,
        secret: String,
        mut form: Vec<(&'static str, String)>,
    ) -> Self {
        form.retain(|(_, value)| !value.is_empty());
        let client = (id, secret);
        Self {
            url,
            header: http::header::AUTHORIZATION,
            prefix: "Bearer ",
            kind: TokenRequestKind::Oauth2 { client, form },
        }
    }

    /// A JSON login with user name and password in the body.
    pub fn for_login(url: String, login: &Login, password: String) -> Result<Self, SendError> {
        let (header, prefix) = match &login.header {
            None => (http::header::AUTHORIZATION, "Bearer "),
            Some(name) => {
                let parsed = HeaderName::try_from(name).map_err(|_| {
                    SendError::Invalid(format!("spec.auth.login.header {name:?} is no header name"))
                })?;
                (parsed, "")
            }
        };
        let template = login.body.clone().map_or_else(
            || json!({"username": "$(username)", "password": "$(password)"}),
            Value::Object,
        );
        let lifetime = match (&login.expiration_json_path, login.expiration_seconds) {
            (Some(path), _) => Err(path.clone()),
            (None, Some(seconds)) => Ok(Duration::from_secs(seconds.into())),
            (None, None) => Ok(DEFAULT_TOKEN_LIFETIME),
        };
        let kind = TokenRequestKind::Login {
            body: fill_template(template, &login.username, &password),
            password,
            token: login.token_json_path.clone(),
            lifetime,
        };
        Ok(Self {
            url,
            header,
            prefix,
            kind,
        })
    }

    /// A token request to the server that the registry at `url` names, if its origin is one of `origins`.
    pub fn for_registry(
        url: String,
        login: &RegistryLogin,
        password: String,
        origins: Vec<Origin>,
        unverified: bool,
    ) -> Self {
        Self {
            url,
            header: http::header::AUTHORIZATION,
            prefix: "Bearer ",
            kind: TokenRequestKind::Registry {
                username: login.username.clone(),
                password,
                scopes: login.scopes.clone(),
                origins,
                unverified,
            },
        }
    }

    /// Builds the request whose response has the challenge of a registry; none for other token requests.
    pub fn build_challenge_request(&self, http: &reqwest::Client) -> Option<reqwest::RequestBuilder> {
        matches!(self.kind, TokenRequestKind::Registry { .. }).then(|| http.get(&self.url))
    }

    /// Answers the challenge of a registry. User name and password go only where the spec allows.
    pub fn answer_challenge(
        &self,
        http: &reqwest::Client,
        headers: &HeaderMap,
    ) -> Result<ChallengeAnswer, SendError> {
        let TokenRequestKind::Registry {
            username,
            password,
            scopes,
            origins,
            unverified,
        } = &self.kind
        else {
            return Err(SendError::Invalid("spec.auth is not that of a registry".into()));
        };
        let Challenge::Bearer { realm, service, .. } = Challenge::parse(headers) else {
            // Also without a challenge: a registry may have one for single repositories only.
            let pair = BASE64_STANDARD.encode(format!("{username}:{password}"));
            return Ok(ChallengeAnswer::Header(format!("Basic {pair}")));
        };
        let origin = Origin::of_url(&realm);
        let origin = origin.map(|origin| if *unverified { origin.unverified() } else { origin });
        match origin {
            None => Err(SendError::LoginFailed(
                "the registry names a token server that is no URL".into(),
            )),
            Some(origin) if !origins.contains(&origin) => Err(SendError::LoginFailed(format!(
                "the registry names the token server {origin}, to which no password is sent: set \
                 spec.auth.registry.tokenUrl to a URL of it"
            ))),
            Some(_) => {
                let mut query: Vec<(&str, &str)> = vec![("client_id", REGISTRY_CLIENT_ID)];
                query.extend(service.as_deref().map(|service| ("service", service)));
                query.extend(scopes.iter().map(|scope| ("scope", &**scope)));
                let request = http.get(&realm).query(&query);
                let request = request.basic_auth(username, Some(password));
                Ok(ChallengeAnswer::TokenRequest(Box::new(request)))
            }
        }
    }

    /// Builds the HTTP request.
    pub fn build_request(&self, http: &reqwest::Client) -> reqwest::RequestBuilder {
        let request = http.post(&self.url);
        match &self.kind {
            TokenRequestKind::Oauth2 { client, form } => {
                request.basic_auth(&client.0, Some(&client.1)).form(form)
            }
            TokenRequestKind::Login { body, .. } => request
                .header(http::header::CONTENT_TYPE, "application/json")
                .header(http::header::ACCEPT, "application/json")
                .body(body.to_string()),
            TokenRequestKind::Registry { .. } => http.get(&self.url),
        }
    }

    /// The token of a response, and its lifetime. The error never contains a part of the response.
    pub fn parse_token(&self, answer: &[u8]) -> Result<(String, Duration), String> {
        #[derive(Deserialize)]
        struct OauthToken {
            access_token: String,
            #[serde(default)]
            expires_in: Value,
        }
        match &self.kind {
            TokenRequestKind::Oauth2 { .. } => {
                let granted: OauthToken =
                    serde_json::from_slice(answer).map_err(|_| "the answer is not an OAuth2 token")?;
                let life = parse_lifetime(&granted.expires_in).unwrap_or(DEFAULT_TOKEN_LIFETIME);
                Ok((granted.access_token, life))
            }
            TokenRequestKind::Registry { .. } => {
                let answer: Value = serde_json::from_slice(answer).map_err(|_| "the answer is not JSON")?;
                // Token servers that know OAuth2 give both names.
                let token = [&answer["token"], &answer["access_token"]];
                let token = token
                    .into_iter()
                    .filter_map(Value::as_str)
                    .find(|t| !t.is_empty());
                let token = token.ok_or("the answer has no token")?;
                let life = parse_lifetime(&answer["expires_in"]).unwrap_or(DEFAULT_REGISTRY_TOKEN_LIFETIME);
                Ok((token.to_owned(), life))
            }
            TokenRequestKind::Login { token, lifetime, .. } => {
                let answer: Value = serde_json::from_slice(answer).map_err(|_| "the answer is not JSON")?;
                let found = lookup_path(&answer, token)
                    .and_then(Value::as_str)
                    .filter(|t| !t.is_empty());
                let found = found.ok_or_else(|| format!("the answer has no text at {token}"))?;
                let life = match lifetime {
                    Ok(fixed) => *fixed,
                    Err(path) => {
                        let seconds = lookup_path(&answer, path).and_then(parse_lifetime);
                        seconds.ok_or_else(|| format!("the answer has no number of seconds at {path}"))?
                    }
                };
                Ok((found.to_owned(), life))
            }
        }
    }

    /// The server's message about a rejected login, unless it repeats a secret it was sent, in any encoding.
    pub fn rejection_message(&self, answer: &[u8]) -> String {
        let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
        let words = ["error_description", "error", "message"].map(|f| answer[f].as_str().unwrap_or(""));
        let words = words.into_iter().find(|w| !w.is_empty()).unwrap_or_default();
        let sent: Vec<&str> = match &self.kind {
            TokenRequestKind::Oauth2 { client, form } => {
                let passwords = form.iter().filter(|(name, _)| *name == "password");
                passwords.map(|(_, value)| &**value).chain([&*client.1]).collect()
            }
            TokenRequestKind::Login { password, .. } | TokenRequestKind::Registry { password, .. } => {
                vec![password]
            }
        };
        let mut redactor = Redactor::default();
        for secret in &sent {
            redactor.add_secret(secret.as_bytes());
        }
        if let TokenRequestKind::Oauth2 { client, .. } = &self.kind {
            redactor.add_secret(format!("{}:{}", client.0, client.1).as_bytes());
        }
        if let TokenRequestKind::Registry {
            username, password, ..
        } = &self.kind
        {
            redactor.add_secret(format!("{username}:{password}").as_bytes());
        }
        // Checked before the text is cut: a cut password would no longer be recognized.
        let repeats_secret = sent.iter().any(|s| !s.is_empty() && words.contains(s))
            || redactor.redact_bytes(words.as_bytes()) != words.as_bytes();
        if words.is_empty() || repeats_secret {
            return "no reason given".into();
        }
        words.chars().take(MAX_MESSAGE_CHARS).collect()
    }
}

/// The strings of a body with user name and password in their places. Neither is searched for the other's placeholder.
fn fill_template(value: Value, username: &str, password: &str) -> Value {
    let again = |v| fill_template(v, username, password);
    match value {
        Value::String(text) => {
            let parts = text
                .split("$(password)")
                .map(|part| part.replace("$(username)", username));
            Value::String(parts.collect::<Vec<_>>().join(password))
        }
        Value::Array(items) => items.into_iter().map(again).collect(),
        Value::Object(fields) => {
            let fields: Map<_, _> = fields.into_iter().map(|(k, v)| (k, again(v))).collect();
            Value::Object(fields)
        }
        other => other,
    }
}

/// The value at a path of fields and indexes: `.data.sessions[0].id`, with an optional `$` before it.
fn lookup_path<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let path = path.trim_start_matches('$').replace('[', ".").replace(']', "");
    let steps = path.split('.').filter(|step| !step.is_empty());
    steps.into_iter().try_fold(value, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        Value::Object(fields) => fields.get(step),
        _ => None,
    })
}

/// A lifetime in seconds, as a number or as text. Zero and less, by which some servers mean a token that does not
/// expire, stand for the default.
fn parse_lifetime(value: &Value) -> Option<Duration> {
    let seconds: f64 = value.as_f64().or_else(|| value.as_str()?.parse().ok())?;
    if seconds <= 0.0 {
        return Some(DEFAULT_TOKEN_LIFETIME);
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(spec: Value) -> TokenRequest {
        let mut whole = json!({"path": "/session", "username": "$(password)", "tokenJsonPath": ".token",
            "passwordSecretRef": {"name": "s", "key": "k"}});
        whole
            .as_object_mut()
            .expect("an object")
            .extend(spec.as_object().cloned().unwrap_or_default());
        let spec = serde_json::from_value(whole).expect("a login");
        TokenRequest::for_login("http://h/session".into(), &spec, "pa\"ss$(username)".into())
            .unwrap_or_else(|e| panic!("{e}"))
    }

    fn body(grant: &TokenRequest) -> &Value {
        match &grant.kind {
            TokenRequestKind::Login { body, .. } => body,
            TokenRequestKind::Oauth2 { .. } | TokenRequestKind::Registry { .. } => panic!("a login"),
        }
    }

    #[test]
    fn login_body_follows_spec() {
        let plain = login(json!({}));
        // A user name that looks like a placeholder is taken literally.
        assert_eq!(body(&plain)["password"], "pa\"ss$(username)");
        assert_eq!(
            (plain.header.as_str(), plain.prefix),
            ("authorization", "Bearer ")
        );
        let own = login(
            json!({"header": "X-Token", "body": {"auth": [{"id": "u=$(username)", "pw": "$(password)"}], "n": 1}}),
        );
        assert_eq!(body(&own)["auth"][0]["pw"], "pa\"ss$(username)");
        assert_eq!(
            (own.header.as_str(), own.prefix, &body(&own)["n"]),
            ("x-token", "", &json!(1))
        );
    }

    #[test]
    fn token_and_lifetime_paths_follow_spec() {
        let answer = br#"{"token":"t","data":{"s":[{"id":"x","ttl":"90"}]},"n":1.5}"#;
        for (spec, token, ms) in [
            (json!({}), "t", 300_000),
            (json!({"expirationSeconds": 7}), "t", 7000),
            (json!({"expirationJsonPath": "$.n"}), "t", 1500),
            (
                json!({"tokenJsonPath": ".data.s[0].id", "expirationJsonPath": ".data.s[0].ttl"}),
                "x",
                90_000,
            ),
        ] {
            assert_eq!(
                login(spec).parse_token(answer),
                Ok((token.into(), Duration::from_millis(ms)))
            );
        }
        for (spec, word) in [
            (json!({"tokenJsonPath": ".data.s[1].id"}), ".data.s[1].id"),
            (json!({"tokenJsonPath": ".n"}), "no text"),
            (json!({"expirationJsonPath": ".token"}), "seconds"),
        ] {
            let error = login(spec).parse_token(answer).unwrap_err();
            assert!(error.contains(word) && !error.contains("\"t\""), "{error}");
        }
        assert!(login(json!({})).parse_token(b"<html>").is_err());
    }

    #[test]
    fn oauth2_lifetime_is_a_number_or_text_above_zero() {
        let grant = TokenRequest::for_oauth2("http://h/token".into(), "id".into(), "secret".into(), vec![]);
        for (expires_in, seconds) in [
            ("", 300),
            (r#", "expires_in": null"#, 300),
            (r#", "expires_in": 0"#, 300),
            (r#", "expires_in": -1"#, 300),
            (r#", "expires_in": 3600"#, 3600),
            (r#", "expires_in": "3600""#, 3600),
        ] {
            let answer = format!(r#"{{"access_token": "t"{expires_in}}}"#);
            let token = grant.parse_token(answer.as_bytes());
            assert_eq!(
                token,
                Ok(("t".into(), Duration::from_secs(seconds))),
                "{expires_in}"
            );
        }
        assert!(grant.parse_token(br#"{"expires_in": 1}"#).is_err());
    }

    #[test]
    fn registry_password_goes_only_to_granted_origins() {
        let spec = json!({"username": "robot", "passwordSecretRef": {"name": "s", "key": "k"},
            "scopes": ["repository:a/b:pull", "repository:c:pull"]});
        let spec = serde_json::from_value(spec).expect("a registry login");
        let origins = ["https://r.example", "https://auth.example"];
        let origins = origins.into_iter().filter_map(Origin::of_url).collect();
        let url = "https://r.example/v2/".into();
        let grant = TokenRequest::for_registry(url, &spec, "hush-hush".into(), origins, false);
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(
                rustls::ClientConfig::builder_with_provider(std::sync::Arc::new(
                    rustls::crypto::ring::default_provider(),
                ))
                .with_safe_default_protocol_versions()
                .expect("protocol versions")
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth(),
            )
            .build()
            .expect("a client");
        let answer = |challenge: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("www-authenticate", challenge.parse().expect("a header"));
            grant.answer_challenge(&http, &headers)
        };
        for realm in ["https://r.example/token", "https://auth.example:443/token"] {
            let challenge = format!("Bearer realm=\"{realm}\",service=\"r\"");
            let Ok(ChallengeAnswer::TokenRequest(request)) = answer(&challenge) else {
                panic!("{realm}");
            };
            let request = request.build().expect("a request");
            let query =
                "client_id=ostler&service=r&scope=repository%3Aa%2Fb%3Apull&scope=repository%3Ac%3Apull";
            assert_eq!(request.url().query(), Some(query));
            assert!(request.headers().contains_key("authorization"));
        }
        for realm in [
            "https://evil.example/token",
            "http://auth.example/token",
            "https://auth.example:8443/token",
            "https://r.example@evil.example/token",
            "token",
        ] {
            let answer = answer(&format!("Bearer realm=\"{realm}\""));
            assert!(matches!(answer, Err(SendError::LoginFailed(_))), "{realm}");
        }
        let basic = answer("Basic realm=\"r\"");
        let expected = format!("Basic {}", BASE64_STANDARD.encode("robot:hush-hush"));
        assert!(matches!(basic, Ok(ChallengeAnswer::Header(value)) if value == expected));
    }

    #[test]
    fn registry_token_has_either_name_and_lives_a_minute_by_default() {
        let spec = json!({"username": "u", "passwordSecretRef": {"name": "s", "key": "k"}});
        let spec = serde_json::from_value(spec).expect("a registry login");
        let grant = TokenRequest::for_registry("https://r/v2/".into(), &spec, "p".into(), vec![], false);
        let parse = |answer: &str| grant.parse_token(answer.as_bytes());
        let minute = Duration::from_secs(60);
        assert_eq!(parse(r#"{"token":"t"}"#), Ok(("t".into(), minute)));
        assert_eq!(
            parse(r#"{"token":"","access_token":"a"}"#),
            Ok(("a".into(), minute))
        );
        let hour = parse(r#"{"token":"t","expires_in":3600}"#);
        assert_eq!(hour, Ok(("t".into(), Duration::from_secs(3600))));
        assert!(parse("{}").is_err() && parse("<html>").is_err());
    }

    #[test]
    fn rejection_message_never_repeats_secrets() {
        let grant = login(json!({}));
        assert_eq!(
            grant.rejection_message(br#"{"message":"Invalid username or password"}"#),
            "Invalid username or password"
        );
        assert_eq!(
            grant.rejection_message(br#"{"error":"not pa\"ss$(username)"}"#),
            "no reason given"
        );
        let long = format!("{}pa\"ss$(username)", "x".repeat(295));
        for echo in [
            long.as_str(),
            r#"{"password":"pa\"ss$(username)"}"#,
            "pa%22ss%24%28username%29",
            "cGEic3MkKHVzZXJuYW1lKQ==",
        ] {
            let answer = json!({"message": echo}).to_string();
            assert_eq!(
                grant.rejection_message(answer.as_bytes()),
                "no reason given",
                "{echo}"
            );
        }
        let answer = json!({"message": "x".repeat(400)}).to_string();
        assert_eq!(grant.rejection_message(answer.as_bytes()).len(), 300);
        assert_eq!(grant.rejection_message(b"<html>"), "no reason given");
    }
}
