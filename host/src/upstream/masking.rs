//! Secrets into a body on the way out, and placeholders back in their place on the way in.

use std::collections::{BTreeSet, HashMap};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use memchr::memmem;
use parking_lot::Mutex;

use super::{SecretKey, SendError};
use crate::contract::bindings::types;

/// How a secret is written where its placeholder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// As it is.
    Plain,
    /// Escaped for the inside of a JSON string.
    JsonString,
    /// Percent-encoded for a form.
    Form,
    /// Base64 with padding.
    Base64,
    /// Escaped for the text of an XML element or attribute.
    Xml,
}

impl From<types::Encoding> for Encoding {
    fn from(e: types::Encoding) -> Self {
        match e {
            types::Encoding::Plain => Self::Plain,
            types::Encoding::JsonString => Self::JsonString,
            types::Encoding::Form => Self::Form,
            types::Encoding::Base64 => Self::Base64,
            types::Encoding::Xml => Self::Xml,
        }
    }
}

/// The user name of a pair of credentials.
#[derive(Clone, Debug)]
pub enum Username {
    /// The user name itself.
    Literal(String),
    /// The value of a secret.
    Secret(SecretKey),
}

/// The source of a substituted value.
#[derive(Clone, Debug)]
pub enum SecretSource {
    /// The value of a secret.
    Key(SecretKey),
    /// `user:password`.
    Basic {
        /// The user name.
        username: Username,
        /// The password.
        password: SecretKey,
    },
}

/// A placeholder and what it stands for.
#[derive(Clone, Debug)]
pub struct Substitution {
    /// At least 16 characters.
    pub placeholder: String,
    /// The source of the value.
    pub source: SecretSource,
    /// How it is written.
    pub encoding: Encoding,
}

/// Values that secrets had before, as they were written. Not `Debug`: it holds secrets.
#[derive(Default)]
pub struct PreviousSecrets(Mutex<SecretHistory>);

#[derive(Default)]
struct SecretHistory {
    secrets: HashMap<SecretKey, SecretValues>,
    bytes: usize,
    clock: u64,
}

#[derive(Default)]
struct SecretValues {
    values: Vec<Vec<u8>>,
    used: u64,
}

impl SecretValues {
    fn size_bytes(&self) -> usize {
        self.values.iter().map(|v| v.len() + OVERHEAD).sum()
    }
}

/// Former values remembered per secret, and bytes of all.
const REMEMBERED: (usize, usize) = (4, 4 << 20);

/// What remembering a value takes besides its bytes, about.
const OVERHEAD: usize = 256;

impl PreviousSecrets {
    /// Takes the present value in and gives the others. What was used longest ago makes room.
    fn record_current(&self, secret: &SecretKey, present: &[u8]) -> Vec<Vec<u8>> {
        let all = &mut *self.0.lock();
        all.clock += 1;
        let values = all.secrets.entry(secret.clone()).or_default();
        let before = values.size_bytes();
        values.used = all.clock;
        values.values.retain(|v| v != present);
        let others = values.values.clone();
        values.values.push(present.to_vec());
        if values.values.len() > REMEMBERED.0 {
            values.values.remove(0);
        }
        all.bytes = all.bytes + values.size_bytes() - before;
        while all.bytes > REMEMBERED.1 && all.secrets.len() > 1 {
            let oldest = all.secrets.iter().min_by_key(|(_, values)| values.used);
            let Some(oldest) = oldest.map(|(secret, _)| secret.clone()) else {
                break;
            };
            all.bytes -= all.secrets.remove(&oldest).map_or(0, |gone| gone.size_bytes());
        }
        others
    }

    /// All values there have been, the present ones included.
    fn all_values(&self) -> Vec<Vec<u8>> {
        let all = self.0.lock();
        let values = all.secrets.values().flat_map(|v| &v.values);
        values.cloned().collect()
    }
}

/// Placeholders with the bytes that go in their place. Not `Debug`: it holds secrets.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Placeholder and present value, as it is written.
    present: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whatever else must not be seen: former values, and all values as others may write them.
    hidden: BTreeSet<Vec<u8>>,
}

/// Shorter values are no secrets worth the name, and putting placeholders in their place would garble an answer.
const MIN_SECRET_BYTES: usize = 4;

/// In place of a former value.
const REDACTED_TEXT: &[u8] = b"***";

impl Redactor {
    /// Resolves substitutions; `get` gives a secret's bytes.
    pub fn new(
        substitutions: &[Substitution],
        get: impl Fn(&SecretKey) -> Option<Vec<u8>>,
        previous: &PreviousSecrets,
    ) -> Result<Self, SendError> {
        let mut redactor = Self {
            present: Vec::with_capacity(substitutions.len()),
            hidden: BTreeSet::new(),
        };
        for s in substitutions {
            if s.placeholder.len() < 16 {
                let placeholder = &s.placeholder;
                return Err(SendError::Invalid(format!(
                    "the placeholder {placeholder:?} has fewer than 16 characters"
                )));
            }
            let mut resolve = |secret: &SecretKey| {
                let value = get(secret).ok_or_else(|| super::missing_secret(secret))?;
                for before in previous.record_current(secret, &value) {
                    redactor.add_secret(&before);
                }
                redactor.add_secret(&value);
                Ok::<_, SendError>(value)
            };
            let value = match &s.source {
                SecretSource::Key(secret) => resolve(secret)?,
                SecretSource::Basic { username, password } => {
                    let mut pair = match username {
                        Username::Literal(name) => name.clone().into_bytes(),
                        Username::Secret(secret) => resolve(secret)?,
                    };
                    if pair.contains(&b':') {
                        return Err(SendError::Invalid(
                            "a user name of basic credentials contains a colon (RFC 7617, section 2)".into(),
                        ));
                    }
                    pair.push(b':');
                    pair.extend(resolve(password)?);
                    redactor.add_secret(&pair);
                    pair
                }
            };
            redactor
                .present
                .push((s.placeholder.clone().into_bytes(), encode_secret(&value, s)?));
        }
        Ok(redactor)
    }

    /// Hides whatever a placeholder has stood for so far.
    pub fn for_previous(previous: &PreviousSecrets) -> Self {
        let mut redactor = Self::default();
        for value in previous.all_values() {
            redactor.add_secret(&value);
        }
        redactor
    }

    /// Hides a value in whichever way an answer may have it.
    pub fn add_secret(&mut self, value: &[u8]) {
        let bearer = value
            .strip_prefix(b"Bearer ")
            .or_else(|| value.strip_prefix(b"Basic "))
            .unwrap_or(value);
        let form = percent_encode(bearer);
        if form.contains(&b'%') {
            let text = String::from_utf8_lossy(&form).into_owned();
            self.add_written(text.replace("%20", "+"));
            self.add_written(text.to_lowercase());
        }
        self.add_written(form);
        self.add_written(STANDARD_NO_PAD.encode(bearer));
        self.add_written(URL_SAFE_NO_PAD.encode(bearer));
        self.add_written(bearer);
        if let Ok(text) = std::str::from_utf8(bearer) {
            let json = escape_json(text);
            // Go escapes these in JSON, so that it can stand in HTML.
            self.add_written(
                json.replace('&', "\\u0026")
                    .replace('<', "\\u003c")
                    .replace('>', "\\u003e"),
            );
            self.add_written(json);
            let xml = escape_xml(text);
            if xml != text {
                self.add_written(xml);
            }
        }
    }

    /// Most values have but one or two ways to be written.
    fn add_written(&mut self, written: impl Into<Vec<u8>>) {
        self.hidden.insert(written.into());
    }

    /// Hides what another hides.
    pub fn merge_from(&mut self, other: &Self) {
        for value in &other.hidden {
            self.add_written(&**value);
        }
    }

    /// The body with the secrets in it.
    pub fn fill_body(&self, body: &[u8]) -> Vec<u8> {
        self.present
            .iter()
            .fold(body.to_vec(), |body, (placeholder, value)| {
                replace(body, placeholder, value)
            })
    }

    /// An answer with placeholders in place of the secrets, longest first so that none hides in another.
    pub fn redact_bytes(&self, body: &[u8]) -> Vec<u8> {
        let present = self
            .present
            .iter()
            .map(|(placeholder, value)| (&**value, &**placeholder));
        let hidden = self.hidden.iter().map(|value| (&**value, REDACTED_TEXT));
        let mut redactor: Vec<(&[u8], &[u8])> = present
            .chain(hidden)
            .filter(|(value, _)| value.len() >= MIN_SECRET_BYTES)
            .collect();
        redactor.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        redactor
            .into_iter()
            .fold(body.to_vec(), |body, (value, mask)| replace(body, value, mask))
    }
}

fn encode_secret(value: &[u8], s: &Substitution) -> Result<Vec<u8>, SendError> {
    let text = || {
        let secret = match &s.source {
            SecretSource::Key(secret) | SecretSource::Basic { password: secret, .. } => secret,
        };
        std::str::from_utf8(value).map_err(|_| SendError::Invalid(format!("{secret} is not UTF-8")))
    };
    match s.encoding {
        Encoding::Plain => Ok(value.to_vec()),
        Encoding::JsonString => Ok(escape_json(text()?).into_bytes()),
        Encoding::Form => Ok(percent_encode(value)),
        Encoding::Base64 => Ok(STANDARD.encode(value).into_bytes()),
        Encoding::Xml => Ok(escape_xml(text()?).into_bytes()),
    }
}

/// Escapes the text of an XML element or attribute.
fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The inside of a JSON string.
fn escape_json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn percent_encode(value: &[u8]) -> Vec<u8> {
    let escaped = value.iter().map(|b| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' => char::from(*b).to_string(),
        b => format!("%{b:02X}"),
    });
    escaped.collect::<String>().into_bytes()
}

fn replace(body: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut found = memmem::find_iter(&body, from).peekable();
    if found.peek().is_none() {
        return body;
    }
    let (mut out, mut rest) = (Vec::with_capacity(body.len()), 0);
    for at in found {
        out.extend_from_slice(&body[rest..at]);
        out.extend_from_slice(to);
        rest = at + from.len();
    }
    out.extend_from_slice(&body[rest..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn substitution(encoding: Encoding) -> Substitution {
        Substitution {
            placeholder: "{{placeholder-1}}".into(),
            source: SecretSource::Key(SecretKey {
                namespace: "n".into(),
                name: "s".into(),
                key: "k".into(),
            }),
            encoding,
        }
    }

    fn redactor(encoding: Encoding, value: &str, previous: &PreviousSecrets) -> Redactor {
        let value = |_: &SecretKey| Some(value.as_bytes().to_vec());
        let Ok(redactor) = Redactor::new(&[substitution(encoding)], value, previous) else {
            panic!("resolves")
        };
        redactor
    }

    #[test]
    fn there_and_back() {
        let body = br#"{"a":"x {{placeholder-1}} y","b":"{{placeholder-1}}"}"#;
        let redactor = redactor(Encoding::JsonString, "p\"w\\d\n1", &PreviousSecrets::default());
        let filled = redactor.fill_body(body);
        let parsed: serde_json::Value = serde_json::from_slice(&filled).expect("valid JSON");
        assert_eq!(parsed["b"], "p\"w\\d\n1");
        assert_eq!(redactor.redact_bytes(&filled), body);
    }

    #[test]
    fn hidden_however_it_comes_back() {
        for (encoding, value, answer) in [
            (Encoding::Form, "pa&ss word", r#"{"p":"pa&ss word"}"#),
            (
                Encoding::JsonString,
                "hunter<2&x",
                r#"{"p":"hunter\u003c2\u0026x"}"#,
            ),
            (
                Encoding::JsonString,
                "a\"quoted\\secret",
                "bad login a\"quoted\\secret",
            ),
            (Encoding::Plain, "sec ret", "p=sec%20ret"),
            (Encoding::Plain, "sec ret", "p=sec+ret"),
            (Encoding::Plain, "sec/ret", "p=sec%2fret"),
            (Encoding::Plain, "secret>?value", "p=c2VjcmV0Pj92YWx1ZQ=="),
            (Encoding::Plain, "secret>?value", "p=c2VjcmV0Pj92YWx1ZQ"),
        ] {
            let hidden =
                redactor(encoding, value, &PreviousSecrets::default()).redact_bytes(answer.as_bytes());
            let hidden = String::from_utf8_lossy(&hidden);
            for part in ["pa&ss", "hunter", "quoted", "sec ret", "sec%20ret", "ret", "c2Vj"] {
                assert!(!hidden.contains(part), "{hidden}");
            }
        }
    }

    #[test]
    fn a_rotated_value_stays_hidden_and_is_not_the_present_one() {
        let previous = PreviousSecrets::default();
        redactor(Encoding::Plain, "the-old-value", &previous);
        let hidden = redactor(Encoding::Plain, "the-new-value", &previous)
            .redact_bytes(b"a=the-old-value b=the-new-value");
        assert_eq!(hidden, b"a=*** b={{placeholder-1}}");
    }

    #[test]
    fn basic_pair_in_base64_is_filled_and_redacted() {
        let pair = Substitution {
            source: SecretSource::Basic {
                username: Username::Literal("ada".into()),
                password: SecretKey {
                    namespace: "n".into(),
                    name: "s".into(),
                    key: "k".into(),
                },
            },
            ..substitution(Encoding::Base64)
        };
        let value = |_: &SecretKey| Some(b"correct horse".to_vec());
        let Ok(masks) = Redactor::new(std::slice::from_ref(&pair), value, &PreviousSecrets::default()) else {
            panic!("resolves")
        };
        let filled = masks.fill_body(br#"{"auth":"{{placeholder-1}}"}"#);
        assert_eq!(filled, br#"{"auth":"YWRhOmNvcnJlY3QgaG9yc2U="}"#);
        assert_eq!(masks.redact_bytes(&filled), br#"{"auth":"{{placeholder-1}}"}"#);
        for answer in ["ada:correct horse", "password=correct%20horse", "correct horse"] {
            let hidden = masks.redact_bytes(answer.as_bytes());
            assert!(!String::from_utf8_lossy(&hidden).contains("horse"), "{answer}");
        }
        let colon = Substitution {
            source: SecretSource::Basic {
                username: Username::Literal("a:b".into()),
                password: SecretKey {
                    namespace: "n".into(),
                    name: "s".into(),
                    key: "k".into(),
                },
            },
            ..pair
        };
        assert!(matches!(
            Redactor::new(&[colon], value, &PreviousSecrets::default()),
            Err(SendError::Invalid(_))
        ));
    }

    #[test]
    fn xml_text_is_escaped_and_redacted() {
        let masks = redactor(Encoding::Xml, "a<b>&\"c'd", &PreviousSecrets::default());
        let filled = masks.fill_body(b"<password>{{placeholder-1}}</password>");
        assert_eq!(filled, b"<password>a&lt;b&gt;&amp;&quot;c&apos;d</password>");
        assert_eq!(
            masks.redact_bytes(&filled),
            b"<password>{{placeholder-1}}</password>"
        );
        assert!(
            !masks
                .redact_bytes(b"again a&lt;b&gt;&amp;&quot;c&apos;d")
                .windows(3)
                .any(|w| w == b"&lt")
        );
    }

    #[test]
    fn forms_are_escaped() {
        let filled = redactor(Encoding::Form, "a&b=c d", &PreviousSecrets::default())
            .fill_body(b"p={{placeholder-1}}");
        assert_eq!(filled, b"p=a%26b%3Dc%20d");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_least_used_goes() {
        let previous = PreviousSecrets::default();
        let secret = |n: u8| SecretKey {
            namespace: "n".into(),
            name: n.to_string(),
            key: "k".into(),
        };
        let value = |n: u8| vec![n; REMEMBERED.1 / 8];
        for n in 0..20 {
            previous.record_current(&secret(n), &value(n));
            previous.record_current(&secret(0), &value(0));
            let all = previous.0.lock();
            assert!(all.bytes <= REMEMBERED.1);
            assert_eq!(
                all.bytes,
                all.secrets.values().map(SecretValues::size_bytes).sum::<usize>()
            );
        }
        let all = previous.all_values();
        assert!(all.contains(&value(0)) && all.contains(&value(19)) && !all.contains(&value(1)));
    }
}
