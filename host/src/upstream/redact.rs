//! Redaction: secrets are taken out of responses, in whichever common encoding a server repeats them.
//!
//! Each upstream has a history of the values that were substituted in its requests. Their texts (plain, and in Base64
//! at each alignment) are searched in the response as it is and as [`decoded_text`](super::decoded_text) decodes it, by
//! automata that search all texts in one pass and are built only when a value is new. So a response costs its own
//! length times the few ways to decode it, and the secrets of other upstreams cost nothing.
//!
//! It guards against accidents: a server that repeats a password in an error, or a configuration that is read back.
//! It is no boundary against a hostile server or component, which can transform a text in ways that are not listed
//! here. It also does not know what an earlier process of the host has substituted.

mod history;
mod text_finder;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

pub use self::history::SecretHistory;
use self::text_finder::{SearchedText, TextFinder, list_texts};
use super::{
    decoded_text::{DecodedText, Escapes},
    sse::ServerSentEvent,
};

/// Text in place of a redacted secret.
const REDACTED_TEXT: &[u8] = b"***";

/// Minimum length of a password that is redacted. Shorter ones are ordinary words, and redacting them would garble responses
/// and messages; the header that is sent is redacted in any case.
pub const MIN_PASSWORD_BYTES: usize = 8;

/// Bytes by which a response may grow through placeholders that are longer than their secrets; beyond it secrets are
/// replaced by `***`, which is shorter than any.
const MAX_GROWTH_BYTES: usize = 1 << 20;

/// Size from which a text is redacted in a blocking task: it takes milliseconds, in which no other task could run.
const BLOCKING_BYTES: usize = 128 << 10;

/// Takes secrets out of responses. Not `Debug`: it holds secrets.
#[derive(Default)]
pub struct Redactor {
    /// Shared by all requests until a secret is new.
    history: Vec<Arc<TextFinder>>,
    /// Texts of one request with their placeholders; `None` is `***`.
    own: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Built from `own` when it is first needed.
    finder: OnceLock<Arc<TextFinder>>,
}

impl Clone for Redactor {
    fn clone(&self) -> Self {
        Self {
            history: self.history.clone(),
            own: self.own.clone(),
            finder: self.finder.clone(),
        }
    }
}

impl Redactor {
    /// Redacts a value in every encoding in which a response may contain it.
    pub fn add_secret(&mut self, value: &[u8]) {
        for text in list_texts(value) {
            self.own.entry(text).or_default();
        }
        self.finder = OnceLock::new();
    }

    /// Redacts the value of a header, also without its authentication scheme (`Token abc`).
    pub fn add_credential(&mut self, value: &[u8]) {
        let scheme = value.iter().position(|b| *b == b' ');
        if let Some(end) = scheme.filter(|end| value[..*end].iter().all(u8::is_ascii_alphanumeric)) {
            self.add_secret(&value[end + 1..]);
        }
        self.add_secret(value);
    }

    /// Replaces a text that was put into the request by its placeholder.
    pub fn add_placeholder(&mut self, placeholder: &[u8], text: &[u8]) {
        let replacement = self.own.entry(text.to_vec()).or_default();
        replacement.get_or_insert_with(|| placeholder.to_vec());
        self.finder = OnceLock::new();
    }

    /// Redacts the secrets of another redactor, too, except those of its history.
    pub fn merge_from(&mut self, other: &Self) {
        for (text, placeholder) in &other.own {
            let own = self.own.entry(text.clone()).or_default();
            if own.is_none() {
                own.clone_from(placeholder);
            }
        }
        self.finder = OnceLock::new();
    }

    fn own_finder(&self) -> &Arc<TextFinder> {
        self.finder.get_or_init(|| {
            let texts = self.own.iter().map(|(text, placeholder)| {
                Arc::new(SearchedText {
                    length: text.len(),
                    text: text.clone(),
                    placeholder: placeholder.clone(),
                })
            });
            Arc::new(TextFinder::new(texts.collect()))
        })
    }

    /// All finders; the own one is the first.
    fn finders(&self) -> impl Iterator<Item = &TextFinder> {
        std::iter::once(self.own_finder())
            .chain(&self.history)
            .map(|finder| &**finder)
    }

    /// The bytes with placeholders and `***` in place of secrets.
    ///
    /// Secrets that overlap are replaced as a whole, so that no part of one is left over beside the other.
    pub fn redact_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        if self.finders().all(|finder| finder.texts.is_empty()) {
            return bytes.to_vec();
        }
        let mut findings = Vec::new();
        visit_decodings(bytes, &mut |text, decodings| {
            for finder in self.finders() {
                findings.extend(finder.find_in(text).into_iter().map(|f| f.locate_in(decodings)));
            }
        });
        // A stable sort: of equal ranges the finding in the text as it is comes first, and of those the own one, which
        // may have a placeholder.
        findings.sort_by_key(|finding| finding.start);
        let (mut redacted, mut copied) = (Vec::with_capacity(bytes.len()), 0);
        let mut findings = findings.into_iter().peekable();
        while let Some(mut finding) = findings.next() {
            while let Some(next) = findings.next_if(|next| next.start < finding.end) {
                finding = finding.merge_with(next);
            }
            redacted.extend_from_slice(&bytes[copied..finding.start]);
            let replacement = finding.placeholder.unwrap_or(REDACTED_TEXT);
            let fits = redacted.len() + replacement.len() <= finding.end + MAX_GROWTH_BYTES;
            redacted.extend_from_slice(if fits { replacement } else { REDACTED_TEXT });
            copied = finding.end;
        }
        redacted.extend_from_slice(&bytes[copied..]);
        redacted
    }

    /// Takes over the secrets of a history, which may have grown.
    pub fn update_history(&mut self, history: &SecretHistory) {
        self.history = history.to_redactor().history;
    }

    /// An event with `***` in place of secrets.
    pub fn redact_event(&self, event: &ServerSentEvent) -> ServerSentEvent {
        let redact = |text: &str| {
            if event.is_truncated {
                self.redact_truncated_text(text)
            } else {
                self.redact_text(text)
            }
        };
        ServerSentEvent {
            id: event.id.as_deref().map(redact),
            name: redact(&event.name),
            data: redact(&event.data),
            is_truncated: event.is_truncated,
        }
    }

    /// The text with placeholders and `***` in place of secrets.
    pub fn redact_text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.redact_bytes(text.as_bytes())).into_owned()
    }

    /// Redacts a text whose end was cut off, which may be within a secret: the beginning of one at the end of the text
    /// is redacted, too.
    pub fn redact_truncated_text(&self, text: &str) -> String {
        // The replacement of a character that was cut.
        let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let mut end = text.len();
        visit_decodings(text.as_bytes(), &mut |decoded, decodings| {
            for finder in self.finders() {
                let start = finder.find_cut_text(decoded);
                let cut = start..decoded.len();
                end = end.min(
                    decodings
                        .iter()
                        .rev()
                        .fold(cut, |cut, d| d.encoded_range(cut))
                        .start,
                );
            }
        });
        let end = text.floor_char_boundary(end);
        let mut redacted = self.redact_text(&text[..end]);
        if end < text.len() {
            redacted.push_str("***");
        }
        redacted
    }

    /// Redacts a response's body; a large one in a blocking task.
    pub async fn redact_body(&self, body: Vec<u8>) -> Vec<u8> {
        if body.len() < BLOCKING_BYTES {
            return self.redact_bytes(&body);
        }
        let redactor = self.clone();
        let redacting = tokio::task::spawn_blocking(move || redactor.redact_bytes(&body));
        redacting.await.expect("redaction does not panic")
    }
}

/// Calls `visit` with the text as it is and with each decoding of it that differs, and the steps of the decoding.
fn visit_decodings(text: &[u8], visit: &mut dyn FnMut(&[u8], &[&DecodedText])) {
    visit(text, &[]);
    for (escapes, further) in Escapes::COMBINATIONS {
        let Some(first) = escapes.decode(text) else {
            continue;
        };
        visit(&first.text, &[&first]);
        for escapes in further {
            if let Some(second) = escapes.decode(&first.text) {
                visit(&second.text, &[&first, &second]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::{
        Engine,
        engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
    };
    use proptest::prelude::*;

    use super::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        let mut redactor = Redactor::default();
        for secret in secrets {
            redactor.add_secret(secret.as_bytes());
        }
        redactor
    }

    #[test]
    fn secret_in_any_encoding_is_redacted() {
        for (value, answer, redacted) in [
            ("pa&ss word", r#"{"p":"pa&ss word"}"#, r#"{"p":"***"}"#),
            ("hunter<2&x", r#"{"p":"hunter\u003c2\u0026x"}"#, r#"{"p":"***"}"#),
            (
                "a\"quoted\\secret",
                "bad login a\"quoted\\secret",
                "bad login ***",
            ),
            ("sec ret", "p=sec%20ret&q=1", "p=***&q=1"),
            ("sec ret/1", "p=sec+ret%2f1", "p=***"),
            ("sec/ret", r#"["x","sec\/ret"]"#, r#"["x","***"]"#),
            ("secret>?value", "p=c2VjcmV0Pj92YWx1ZQ==", "p=***=="),
            ("secret>?value", "p=c2VjcmV0Pj92YWx1ZQ", "p=***"),
            ("two\nlines\n", "a:\n  two\n  lines\n", "a:\n  ***\n"),
            ("Bearer abcdef", "abcdef", "***"),
        ] {
            assert_eq!(redactor(&[value]).redact_text(answer), redacted, "{value}");
        }
    }

    #[test]
    fn credential_is_redacted_without_its_scheme() {
        let mut redactor = Redactor::default();
        redactor.add_credential(b"Token abcdef");
        assert_eq!(
            redactor.redact_text("Token abcdef, abcdef, Token"),
            "***, ***, Token"
        );
    }

    #[test]
    fn overlapping_secrets_leave_no_part() {
        let redactor = redactor(&["abcdefgh", "efghijkl", "ghij", "a-secret-of-more-than-16-bytes"]);
        assert_eq!(
            redactor.redact_text("x abcdefghijkl ghijghij y"),
            "x *** ****** y"
        );
        assert_eq!(
            redactor.redact_text("a-secret-of-more-than-16-words"),
            "a-secret-of-more-than-16-words"
        );
        assert_eq!(redactor.redact_text("a-secret-of-more-than-16-bytes!"), "***!");
    }

    #[test]
    fn short_value_is_left() {
        assert_eq!(redactor(&["ab", "a", ""]).redact_text("abab YWI"), "abab YWI");
    }

    #[test]
    fn placeholder_replaces_its_secret_within_bounded_growth() {
        let mut redactor = redactor(&["aaaa"]);
        redactor.add_placeholder(&[b'p'; 1 << 10], b"aaaa");
        assert_eq!(redactor.redact_bytes(b"aaaa"), [b'p'; 1 << 10]);
        let many = b"aaaab".repeat(1 << 16);
        assert!(redactor.redact_bytes(&many).len() <= many.len() + MAX_GROWTH_BYTES);
        // A run of the secret is one finding, however long.
        let run = redactor.redact_bytes(&vec![b'a'; 1 << 20]);
        assert_eq!(run, REDACTED_TEXT);
    }

    #[test]
    fn secret_cut_at_end_of_text_is_redacted() {
        let redactor = redactor(&["correct/horse"]);
        for (text, redacted) in [
            ("x correct/ho", "x ***"),
            (r"x correct\/ho", "x ***"),
            ("x correct%2Fho", "x ***"),
            ("x correct/horse and", "x *** and"),
            ("x correct/horse c", "x *** ***"),
            ("x correct/horse corr\u{fffd}", "x *** ***"),
            ("x", "x"),
            ("", ""),
        ] {
            assert_eq!(redactor.redact_truncated_text(text), redacted, "{text}");
        }
    }

    proptest! {
        #[test]
        fn base64_of_text_around_secret_is_redacted(before in prop::collection::vec(any::<u8>(), 0..9),
            secret in prop::collection::vec(any::<u8>(), 8..40), after in prop::collection::vec(any::<u8>(), 0..9)
        ) {
            let mut redactor = Redactor::default();
            redactor.add_secret(&secret);
            let whole = [&before[..], secret.trim_ascii(), &after].concat();
            prop_assume!(secret.trim_ascii().len() >= 8);
            for alphabet in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
                let encoded = alphabet.encode(&whole);
                let redacted = redactor.redact_text(&encoded);
                // Of the secret at most a character at each end is left, which shares its bits with what stands there.
                let around = (before.len() * 8).div_ceil(6) + (after.len() * 8).div_ceil(6);
                prop_assert!(redacted.len() <= around + 1 + 3, "{} {}", encoded, redacted);
            }
        }

        /// Any escapes of any characters, in any of the encodings and two of them.
        #[test]
        fn any_mixture_of_escapes_is_redacted(choices in prop::collection::vec(0..3u8, 20), twice in any::<bool>()) {
            let secret = "s3/cr=t<\"value\">&'+";
            for way in 0..3 {
                let mut text: String = secret.chars().zip(&choices).map(|(c, choice)| match (way, choice) {
                    (0, 0) => format!("\\u{:04x}", u32::from(c)),
                    (0, 1) if !c.is_ascii_alphanumeric() => format!("\\{c}"),
                    (1, 0) => format!("%{:02X}", u32::from(c)),
                    (1, 1) => format!("%{:02x}", u32::from(c)),
                    (2, 0) => format!("&#{};", u32::from(c)),
                    (2, 1) => format!("&#x{:x};", u32::from(c)),
                    _ => c.to_string(),
                }).collect();
                if twice {
                    let quoted = serde_json::Value::from(text).to_string();
                    text = quoted[1..quoted.len() - 1].to_owned();
                }
                let redacted = redactor(&[secret]).redact_text(&format!("a {text} b"));
                prop_assert_eq!(redacted, "a *** b", "{}", text);
            }
        }
    }
}
