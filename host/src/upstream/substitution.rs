//! Substitution: secrets replace the placeholders that a component has written into the body of a request, or into an
//! object of the API server.
//!
//! It is the last step before a request is sent, so that no other part of the host has a body with secrets in it. All
//! sizes are computed before memory is taken: a short placeholder may stand for a large secret any number of times.

use aho_corasick::{AhoCorasick, MatchKind};

use super::{
    SendError, UpstreamSecretKey,
    encoding::Encoding,
    missing_secret,
    redact::{Redactor, SecretHistory},
};

/// Minimum length of a placeholder. A shorter one may occur in a body by accident.
const MIN_PLACEHOLDER_BYTES: usize = 16;
/// Maximum length of a placeholder. The automaton that finds placeholders takes time in the square of their length to build, where
/// they repeat a character.
const MAX_PLACEHOLDER_BYTES: usize = 1024;

/// Maximum size of all encoded secrets of a request, each counted once.
const MAX_SUBSTITUTED_BYTES: usize = 8 << 20;

/// The user name of a pair of credentials.
#[derive(Clone, Debug)]
pub enum Username {
    /// The user name itself.
    Literal(String),
    /// The value of a secret.
    Secret(UpstreamSecretKey),
}

/// The source of a substituted value.
#[derive(Clone, Debug)]
pub enum SecretSource {
    /// The value of a secret.
    Key(UpstreamSecretKey),
    /// `user:password`.
    Basic {
        /// The user name.
        username: Username,
        /// The password.
        password: UpstreamSecretKey,
    },
}

/// A placeholder and the value that replaces it.
#[derive(Clone, Debug)]
pub struct Substitution {
    /// At least 16 characters.
    pub placeholder: String,
    /// The source of the value.
    pub source: SecretSource,
    /// The encoding of the value in the body.
    pub encoding: Encoding,
}

impl Substitution {
    /// The secrets whose values it sends.
    pub fn secret_keys(&self) -> impl Iterator<Item = &UpstreamSecretKey> {
        let (first, second) = match &self.source {
            SecretSource::Key(key) => (key, None),
            SecretSource::Basic {
                username: Username::Secret(username),
                password,
            } => (password, Some(username)),
            SecretSource::Basic { password, .. } => (password, None),
        };
        [first].into_iter().chain(second)
    }
}

/// The secrets of one request. Not `Debug`: it holds secrets.
pub struct RequestSecrets {
    /// Placeholders with the texts that replace them.
    replacements: Vec<(Vec<u8>, Vec<u8>)>,
    /// Finds the placeholders; none without substitutions.
    finder: Option<AhoCorasick>,
    /// Takes the secrets out of the response again.
    pub redactor: Redactor,
}

impl RequestSecrets {
    /// Reads the secrets of a request by `get`, and records their values in the history of the upstream: from now on
    /// they are redacted in all its responses.
    pub fn resolve(
        substitutions: &[Substitution],
        get: impl Fn(&UpstreamSecretKey) -> Option<Vec<u8>>,
        history: &SecretHistory,
    ) -> Result<Self, SendError> {
        let (mut replacements, mut own) = (Vec::with_capacity(substitutions.len()), Redactor::default());
        let mut size_bytes = 0usize;
        for s in substitutions {
            let placeholder = &s.placeholder;
            if placeholder.len() < MIN_PLACEHOLDER_BYTES {
                return Err(SendError::Invalid(format!(
                    "the placeholder {placeholder:?} has fewer than {MIN_PLACEHOLDER_BYTES} characters"
                )));
            }
            if placeholder.len() > MAX_PLACEHOLDER_BYTES {
                return Err(SendError::Invalid(format!(
                    "a placeholder has {} bytes, more than {MAX_PLACEHOLDER_BYTES}",
                    placeholder.len()
                )));
            }
            let resolve = |secret: &UpstreamSecretKey| {
                let value = get(secret).ok_or_else(|| missing_secret(secret))?;
                history.record_value(secret, &value)?;
                Ok::<_, SendError>(value)
            };
            let (value, secret) = match &s.source {
                SecretSource::Key(secret) => (resolve(secret)?, secret),
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
                    own.add_secret(&pair);
                    (pair, password)
                }
            };
            size_bytes = size_bytes.saturating_add(s.encoding.encoded_len(&value, secret)?);
            if size_bytes > MAX_SUBSTITUTED_BYTES {
                return Err(SendError::TooLarge(format!(
                    "the substituted secrets have more than {MAX_SUBSTITUTED_BYTES} bytes"
                )));
            }
            let text = s.encoding.encode_value(&value, secret)?;
            own.add_placeholder(placeholder.as_bytes(), &text);
            if matches!(s.encoding, Encoding::JsonString | Encoding::Xml) {
                // The same string with other escapes than this host's.
                own.add_placeholder(placeholder.as_bytes(), &value);
            }
            replacements.push((placeholder.clone().into_bytes(), text));
        }
        let finder = if replacements.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(replacements.iter().map(|(placeholder, _)| placeholder));
            Some(built.map_err(|e| SendError::Invalid(format!("the placeholders are too large: {e}")))?)
        };
        // Secrets of other requests, too: the response may repeat them.
        let mut redactor = history.to_redactor();
        redactor.merge_from(&own);
        Ok(Self {
            replacements,
            finder,
            redactor,
        })
    }

    /// The body with secrets in place of placeholders, of at most `max_bytes`.
    pub fn fill_body(&self, body: &[u8], max_bytes: usize) -> Result<Vec<u8>, SendError> {
        self.fill_text(body, max_bytes)
            .ok_or_else(|| SendError::TooLarge(format!("the request's body has more than {max_bytes} bytes")))
    }

    /// A text with secrets in place of placeholders; `None` if it has more than `max_bytes`. Placeholders that a secret
    /// contains are left: only those that the component has written are replaced.
    pub fn fill_text(&self, text: &[u8], max_bytes: usize) -> Option<Vec<u8>> {
        let value = |found: &aho_corasick::Match| &self.replacements[found.pattern().as_usize()].1;
        let matches = || self.finder.iter().flat_map(|finder| finder.find_iter(text));
        let (mut removed, mut added) = (0, 0usize);
        for found in matches() {
            removed += found.len();
            added = added.saturating_add(value(&found).len());
        }
        let filled_bytes = (text.len() - removed).saturating_add(added);
        if filled_bytes > max_bytes {
            return None;
        }
        let (mut filled, mut copied) = (Vec::with_capacity(filled_bytes), 0);
        for found in matches() {
            filled.extend_from_slice(&text[copied..found.start()]);
            filled.extend_from_slice(value(&found));
            copied = found.end();
        }
        filled.extend_from_slice(&text[copied..]);
        Some(filled)
    }

    /// A text contains a placeholder.
    pub fn has_placeholder(&self, text: &[u8]) -> bool {
        self.finder.as_ref().is_some_and(|finder| finder.is_match(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret_key() -> UpstreamSecretKey {
        UpstreamSecretKey {
            namespace: "n".into(),
            name: "s".into(),
            key: "k".into(),
        }
    }

    fn substitution(encoding: Encoding) -> Substitution {
        Substitution {
            placeholder: "{{placeholder-1}}".into(),
            source: SecretSource::Key(secret_key()),
            encoding,
        }
    }

    fn resolve_all(
        substitutions: &[Substitution],
        value: &str,
        history: &SecretHistory,
    ) -> Result<RequestSecrets, SendError> {
        RequestSecrets::resolve(substitutions, |_| Some(value.as_bytes().to_vec()), history)
    }

    fn resolve_secret(encoding: Encoding, value: &str, history: &SecretHistory) -> RequestSecrets {
        resolve_all(&[substitution(encoding)], value, history).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn secret_enters_body_and_placeholder_returns() {
        let body = br#"{"a":"x {{placeholder-1}} y","b":"{{placeholder-1}}"}"#;
        let secrets = resolve_secret(Encoding::JsonString, "p\"w\\d\n1/", &SecretHistory::default());
        let filled = secrets.fill_body(body, 1000).expect("small");
        let parsed: serde_json::Value = serde_json::from_slice(&filled).expect("valid JSON");
        assert_eq!(parsed["b"], "p\"w\\d\n1/");
        assert_eq!(secrets.redactor.redact_bytes(&filled), body);
        let other_escapes = String::from_utf8(filled).expect("text").replace('/', "\\/");
        assert_eq!(secrets.redactor.redact_bytes(other_escapes.as_bytes()), body);
    }

    #[test]
    fn placeholder_above_its_limit_is_refused_before_it_is_searched() {
        let long = Substitution {
            placeholder: "p".repeat(1 << 20),
            ..substitution(Encoding::Plain)
        };
        let error = resolve_all(&[long], "the-value", &SecretHistory::default()).err();
        let error = error.map(|e| e.to_string());
        assert_eq!(
            error.as_deref(),
            Some("a placeholder has 1048576 bytes, more than 1024")
        );
    }

    #[test]
    fn rotated_value_stays_redacted_without_placeholder() {
        let history = SecretHistory::default();
        resolve_secret(Encoding::Plain, "the-old-value", &history);
        let secrets = resolve_secret(Encoding::Plain, "the-new-value", &history);
        let redacted = secrets.redactor.redact_text("a=the-old-value b=the-new-value");
        assert_eq!(redacted, "a=*** b={{placeholder-1}}");
    }

    #[test]
    fn basic_pair_in_base64_is_filled_and_redacted() {
        let pair = |username: &str| Substitution {
            source: SecretSource::Basic {
                username: Username::Literal(username.into()),
                password: secret_key(),
            },
            ..substitution(Encoding::Base64)
        };
        let history = SecretHistory::default();
        let secrets =
            resolve_all(&[pair("ada")], "correct horse", &history).unwrap_or_else(|e| panic!("{e}"));
        let filled = secrets
            .fill_body(br#"{"auth":"{{placeholder-1}}"}"#, 100)
            .expect("small");
        assert_eq!(filled, br#"{"auth":"YWRhOmNvcnJlY3QgaG9yc2U="}"#);
        assert_eq!(
            secrets.redactor.redact_bytes(&filled),
            br#"{"auth":"{{placeholder-1}}"}"#
        );
        for answer in ["ada:correct horse", "password=correct%20horse", "correct horse"] {
            let redacted = secrets.redactor.redact_text(answer);
            assert!(!redacted.contains("horse"), "{answer}");
        }
        let colon = resolve_all(&[pair("a:b")], "correct horse", &history);
        assert!(matches!(colon, Err(SendError::Invalid(_))));
    }

    #[test]
    fn xml_text_is_escaped_and_redacted() {
        let secrets = resolve_secret(Encoding::Xml, "a<b>&\"c'd", &SecretHistory::default());
        let body = b"<password>{{placeholder-1}}</password>";
        let filled = secrets.fill_body(body, 1000).expect("small");
        assert_eq!(filled, b"<password>a&lt;b&gt;&amp;&quot;c&apos;d</password>");
        assert_eq!(secrets.redactor.redact_bytes(&filled), body);
        // Numeric entities, as other servers write them.
        let redacted = secrets
            .redactor
            .redact_text("again a&#60;b&#x3E;&amp;&#34;c&#39;d");
        assert_eq!(redacted, "again {{placeholder-1}}");
    }

    #[test]
    fn body_is_measured_with_its_secrets() {
        let secrets = resolve_secret(Encoding::Plain, &"x".repeat(50), &SecretHistory::default());
        let body = b"{{placeholder-1}}{{placeholder-1}}";
        assert_eq!(secrets.fill_body(body, 100).expect("fits"), b"x".repeat(100));
        assert!(matches!(secrets.fill_body(body, 99), Err(SendError::TooLarge(_))));
        // A TiB: the size is computed, the body is not built.
        let secrets = resolve_secret(Encoding::Plain, &"x".repeat(1 << 20), &SecretHistory::default());
        let many = b"{{placeholder-1}}".repeat(1 << 20);
        assert!(matches!(
            secrets.fill_body(&many, 8 << 20),
            Err(SendError::TooLarge(_))
        ));
    }

    #[test]
    fn secrets_of_one_request_are_bounded_together() {
        let many: Vec<_> = (0..100)
            .map(|i| Substitution {
                placeholder: format!("(placeholder-{i:010})"),
                ..substitution(Encoding::Base64)
            })
            .collect();
        let refused = resolve_all(&many, &"x".repeat(1 << 20), &SecretHistory::default());
        assert!(matches!(refused, Err(SendError::TooLarge(_))));
    }

    #[test]
    fn placeholder_within_secret_is_left() {
        let history = SecretHistory::default();
        let secrets = resolve_secret(Encoding::Plain, "a{{placeholder-1}}b", &history);
        let filled = secrets.fill_body(b"{{placeholder-1}}", 100).expect("small");
        assert_eq!(filled, b"a{{placeholder-1}}b");
    }
}
