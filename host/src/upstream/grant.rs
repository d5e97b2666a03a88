//! What a login sends, and what it reads from the answer.

use std::time::Duration;

use http::HeaderName;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{SendError, masking::Masks, spec::Login};

/// How long a token is taken to last where nobody says.
const LIFETIME: Duration = Duration::from_secs(300);

/// One way to get a token. Not `Debug`: it holds secrets.
pub struct Grant {
    url: String,
    /// The header that the token goes into.
    pub header: HeaderName,
    /// What stands before it there.
    pub prefix: &'static str,
    kind: Kind,
}

enum Kind {
    /// RFC 6749, sections 4.3.2 and 4.4.2.
    Oauth2 {
        client: (String, String),
        form: Vec<(&'static str, String)>,
    },
    /// A server's own.
    Login {
        body: Value,
        password: String,
        token: String,
        lifetime: Result<Duration, String>,
    },
}

impl Grant {
    /// An OAuth2 token request; fields without a value are left out.
    pub fn oauth2(url: String, id: String, secret: String, mut form: Vec<(&'static str, String)>) -> Self {
        form.retain(|(_, value)| !value.is_empty());
        let client = (id, secret);
        Self {
            url,
            header: http::header::AUTHORIZATION,
            prefix: "Bearer ",
            kind: Kind::Oauth2 { client, form },
        }
    }

    /// A JSON body with user name and password.
    pub fn login(url: String, login: &Login, password: String) -> Result<Self, SendError> {
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
            (None, None) => Ok(LIFETIME),
        };
        let kind = Kind::Login {
            body: filled(template, &login.username, &password),
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

    /// The request.
    pub fn request(&self, http: &reqwest::Client) -> reqwest::RequestBuilder {
        let request = http.post(&self.url);
        match &self.kind {
            Kind::Oauth2 { client, form } => request.basic_auth(&client.0, Some(&client.1)).form(form),
            Kind::Login { body, .. } => request
                .header(http::header::CONTENT_TYPE, "application/json")
                .header(http::header::ACCEPT, "application/json")
                .body(body.to_string()),
        }
    }

    /// The token in an answer, and how long it lasts. The error never has a part of the answer in it.
    pub fn granted(&self, answer: &[u8]) -> Result<(String, Duration), String> {
        #[derive(Deserialize)]
        struct Granted {
            access_token: String,
            expires_in: Option<u64>,
        }
        match &self.kind {
            Kind::Oauth2 { .. } => {
                let granted: Granted =
                    serde_json::from_slice(answer).map_err(|_| "the answer is not an OAuth2 token")?;
                let life = granted.expires_in.map_or(LIFETIME, Duration::from_secs);
                Ok((granted.access_token, life))
            }
            Kind::Login { token, lifetime, .. } => {
                let answer: Value = serde_json::from_slice(answer).map_err(|_| "the answer is not JSON")?;
                let found = at(&answer, token)
                    .and_then(Value::as_str)
                    .filter(|t| !t.is_empty());
                let found = found.ok_or_else(|| format!("the answer has no text at {token}"))?;
                let life = match lifetime {
                    Ok(fixed) => *fixed,
                    Err(path) => {
                        let seconds = at(&answer, path).and_then(seconds);
                        seconds.ok_or_else(|| format!("the answer has no number of seconds at {path}"))?
                    }
                };
                Ok((found.to_owned(), life))
            }
        }
    }

    /// The server's words in a refusal, unless it echoes what it was sent, in whichever way.
    pub fn refusal(&self, answer: &[u8]) -> String {
        let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
        let words = ["error_description", "error", "message"].map(|f| answer[f].as_str().unwrap_or(""));
        let words = words.into_iter().find(|w| !w.is_empty()).unwrap_or_default();
        let sent: Vec<&str> = match &self.kind {
            Kind::Oauth2 { client, form } => {
                let passwords = form.iter().filter(|(name, _)| *name == "password");
                passwords.map(|(_, value)| &**value).chain([&*client.1]).collect()
            }
            Kind::Login { password, .. } => vec![password],
        };
        let mut masks = Masks::default();
        for secret in &sent {
            masks.never_show(secret.as_bytes());
        }
        if let Kind::Oauth2 { client, .. } = &self.kind {
            masks.never_show(format!("{}:{}", client.0, client.1).as_bytes());
        }
        // Before it is cut: of a password that is cut a part would be seen.
        let echoed = sent.iter().any(|s| !s.is_empty() && words.contains(s))
            || masks.hide(words.as_bytes()) != words.as_bytes();
        match words.is_empty() || echoed {
            true => "no reason given".into(),
            false => words.chars().take(300).collect(),
        }
    }
}

/// The texts of a body with user name and password in their places. Neither is looked through for the other's.
fn filled(value: Value, username: &str, password: &str) -> Value {
    let again = |v| filled(v, username, password);
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

/// The value at a path of fields and indexes: `.data.sessions[0].id`, with or without `$` before it.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let path = path.trim_start_matches('$').replace('[', ".").replace(']', "");
    let steps = path.split('.').filter(|step| !step.is_empty());
    steps.into_iter().try_fold(value, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        Value::Object(fields) => fields.get(step),
        _ => None,
    })
}

fn seconds(value: &Value) -> Option<Duration> {
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok())?;
    Duration::try_from_secs_f64(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(spec: Value) -> Grant {
        let mut whole = json!({"path": "/session", "username": "$(password)", "tokenJsonPath": ".token",
            "passwordSecretRef": {"name": "s", "key": "k"}});
        whole
            .as_object_mut()
            .expect("an object")
            .extend(spec.as_object().cloned().unwrap_or_default());
        let spec = serde_json::from_value(whole).expect("a login");
        Grant::login("http://h/session".into(), &spec, "pa\"ss$(username)".into())
            .unwrap_or_else(|e| panic!("{e}"))
    }

    fn body(grant: &Grant) -> &Value {
        match &grant.kind {
            Kind::Login { body, .. } => body,
            Kind::Oauth2 { .. } => panic!("a login"),
        }
    }

    #[test]
    fn the_body_is_as_the_spec_says() {
        let plain = login(json!({}));
        // A user name that looks like a placeholder is a user name.
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
    fn token_and_lifetime_are_where_the_spec_says() {
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
                login(spec).granted(answer),
                Ok((token.into(), Duration::from_millis(ms)))
            );
        }
        for (spec, word) in [
            (json!({"tokenJsonPath": ".data.s[1].id"}), ".data.s[1].id"),
            (json!({"tokenJsonPath": ".n"}), "no text"),
            (json!({"expirationJsonPath": ".token"}), "seconds"),
        ] {
            let error = login(spec).granted(answer).unwrap_err();
            assert!(error.contains(word) && !error.contains("\"t\""), "{error}");
        }
        assert!(login(json!({})).granted(b"<html>").is_err());
    }

    #[test]
    fn a_refusal_never_echoes() {
        let grant = login(json!({}));
        assert_eq!(
            grant.refusal(br#"{"message":"Invalid username or password"}"#),
            "Invalid username or password"
        );
        assert_eq!(
            grant.refusal(br#"{"error":"not pa\"ss$(username)"}"#),
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
            assert_eq!(grant.refusal(answer.as_bytes()), "no reason given", "{echo}");
        }
        let answer = json!({"message": "x".repeat(400)}).to_string();
        assert_eq!(grant.refusal(answer.as_bytes()).len(), 300);
        assert_eq!(grant.refusal(b"<html>"), "no reason given");
    }
}
