//! Secrets into a body on the way out, and placeholders back in their place on the way in.

use super::{SecretKey, SendError};
use crate::bindings::http;

/// How a secret is written where its placeholder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As it is.
    Plain,
    /// Escaped for the inside of a JSON string.
    JsonString,
    /// Percent-encoded for a form.
    Form,
}

impl From<http::Encoding> for Encoding {
    fn from(e: http::Encoding) -> Self {
        match e {
            http::Encoding::Plain => Self::Plain,
            http::Encoding::JsonString => Self::JsonString,
            http::Encoding::Form => Self::Form,
        }
    }
}

/// A placeholder and what it stands for.
#[derive(Clone, Debug)]
pub struct Substitution {
    /// At least 16 characters.
    pub placeholder: String,
    /// The secret.
    pub secret: SecretKey,
    /// How it is written.
    pub encoding: Encoding,
}

/// Placeholders with the bytes that go in their place. Not `Debug`: it holds secrets.
pub struct Masks(Vec<(Vec<u8>, Vec<u8>)>);

/// Shorter values are no secrets worth the name, and putting placeholders in their place would garble an answer.
const SHORTEST: usize = 4;

impl Masks {
    /// Resolves substitutions; `get` gives a secret's bytes.
    pub fn new(substitutions: &[Substitution], get: impl Fn(&SecretKey) -> Option<Vec<u8>>) -> Result<Self, SendError> {
        let mut masks = Vec::with_capacity(substitutions.len());
        for s in substitutions {
            if s.placeholder.len() < 16 {
                let placeholder = &s.placeholder;
                return Err(SendError::Invalid(format!("the placeholder {placeholder:?} has fewer than 16 characters")));
            }
            let value = get(&s.secret).ok_or_else(|| super::missing(&s.secret))?;
            masks.push((s.placeholder.clone().into_bytes(), encode(&value, s)?));
        }
        Ok(Self(masks))
    }

    /// The body with the secrets in it.
    pub fn fill(&self, body: &[u8]) -> Vec<u8> {
        self.0.iter().fold(body.to_vec(), |body, (placeholder, value)| replace(&body, placeholder, value))
    }

    /// An answer with placeholders in place of the secrets, longest first so that none hides in another.
    pub fn hide(&self, body: &[u8]) -> Vec<u8> {
        let mut masks: Vec<_> = self.0.iter().filter(|(_, value)| value.len() >= SHORTEST).collect();
        masks.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
        masks.into_iter().fold(body.to_vec(), |body, (placeholder, value)| replace(&body, value, placeholder))
    }
}

fn encode(value: &[u8], s: &Substitution) -> Result<Vec<u8>, SendError> {
    match s.encoding {
        Encoding::Plain => Ok(value.to_vec()),
        Encoding::JsonString => {
            let text = std::str::from_utf8(value).map_err(|_| SendError::Invalid(format!("{} is not UTF-8", s.secret)))?;
            let quoted = serde_json::Value::from(text).to_string();
            Ok(quoted.as_bytes()[1..quoted.len() - 1].to_vec())
        }
        Encoding::Form => {
            let escaped = value.iter().map(|b| match b {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' => char::from(*b).to_string(),
                b => format!("%{b:02X}"),
            });
            Ok(escaped.collect::<String>().into_bytes())
        }
    }
}

fn replace(body: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.windows(from.len()).position(|w| w == from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(encoding: Encoding, value: &str) -> Masks {
        let secret = SecretKey {
            namespace: "n".into(),
            name: "s".into(),
            key: "k".into(),
        };
        let substitution = Substitution {
            placeholder: "{{placeholder-1}}".into(),
            secret,
            encoding,
        };
        let Ok(masks) = Masks::new(&[substitution], |_| Some(value.as_bytes().to_vec())) else { panic!("resolves") };
        masks
    }

    #[test]
    fn there_and_back() {
        let body = br#"{"a":"x {{placeholder-1}} y","b":"{{placeholder-1}}"}"#;
        let masks = masks(Encoding::JsonString, "p\"w\\d\n1");
        let filled = masks.fill(body);
        let parsed: serde_json::Value = serde_json::from_slice(&filled).expect("valid JSON");
        assert_eq!(parsed["b"], "p\"w\\d\n1");
        assert_eq!(masks.hide(&filled), body);
    }

    #[test]
    fn forms_are_escaped() {
        let filled = masks(Encoding::Form, "a&b=c d").fill(b"p={{placeholder-1}}");
        assert_eq!(filled, b"p=a%26b%3Dc%20d");
    }
}
