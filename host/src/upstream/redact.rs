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

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use aho_corasick::AhoCorasick;
use base64::{
    Engine,
    engine::general_purpose::{GeneralPurpose, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::{
    SecretKey, SendError,
    decoded_text::{DecodedText, Escapes, remove_line_breaks},
    sse::ServerSentEvent,
};

/// Minimum length of a redacted text. Shorter values are no secrets worth the name, and redacting them would garble
/// responses.
const MIN_SECRET_BYTES: usize = 4;

/// Minimum length of a redacted part of Base64, in which shorter texts occur by chance.
const MIN_BASE64_BYTES: usize = 8;

/// Text in place of a redacted secret.
const REDACTED_TEXT: &[u8] = b"***";

/// Bytes of a text that the automaton searches for; the rest is compared where these are found. It bounds the memory
/// of the automaton, which is much larger than the texts.
const SEARCHED_BYTES: usize = 16;

/// Bytes of a text that a history keeps. Where they are found, as many bytes are redacted as the whole text has.
const KEPT_BYTES: usize = 1 << 10;

/// Bytes by which a response may grow through placeholders that are longer than their secrets; beyond it secrets are
/// replaced by `***`, which is shorter than any.
const MAX_GROWTH_BYTES: usize = 1 << 20;

/// Values kept per secret. More rotations than these within the life of a process put out the oldest value.
const MAX_VALUES_PER_SECRET: usize = 64;

/// Bytes that the history of an upstream may take.
const MAX_HISTORY_BYTES: usize = 32 << 20;

/// Estimated memory of a value besides its texts: states of an automaton.
const VALUE_OVERHEAD_BYTES: usize = 2 << 10;

/// Factor by which a finder has more texts than the next smaller one.
const FINDER_SIZE_RATIO: usize = 4;

/// Age of the last use after which a value makes room if the history is full.
const RETENTION_PERIOD: Duration = Duration::from_secs(30 * 24 * 3600);

/// Size from which a text is redacted in a blocking task: it takes milliseconds, in which no other task could run.
const BLOCKING_BYTES: usize = 128 << 10;

/// The values that were substituted in requests to one upstream. A response may contain a value that was put into
/// another request, or that has been rotated since. Not `Debug`: it holds secrets.
///
/// A value is never dropped because others are new: a component could fill the history in order to read a secret in
/// clear. When it is full, values that no request has used for 30 days make room; without such values the substitution
/// is refused.
#[derive(Default)]
pub struct SecretHistory(Mutex<HistoryState>);

#[derive(Default)]
struct HistoryState {
    secrets: HashMap<SecretKey, VecDeque<SecretTexts>>,
    size_bytes: usize,
    /// Texts that are new since the finders were built.
    unsearched: Vec<Arc<SearchedText>>,
    /// Find all other texts, the largest finder first. A new text is first in a small finder, which is then merged with
    /// larger ones: one finder of all texts would be built again for each of ten thousand secrets.
    finders: Vec<Arc<TextFinder>>,
}

/// A value with the texts in which it is searched.
struct SecretTexts {
    digest: [u8; 32],
    texts: Vec<Arc<SearchedText>>,
    last_used: Instant,
}

impl SecretTexts {
    fn size_bytes(&self) -> usize {
        self.texts.iter().map(|t| t.text.len()).sum::<usize>() + VALUE_OVERHEAD_BYTES
    }
}

impl SecretHistory {
    /// Adds the current value of a secret. Fails if the history is full.
    pub fn record_value(&self, secret: &SecretKey, current: &[u8]) -> Result<(), SendError> {
        self.record_value_at(secret, current, Instant::now())
    }

    fn record_value_at(&self, secret: &SecretKey, current: &[u8], now: Instant) -> Result<(), SendError> {
        let digest = Sha256::digest(current).into();
        let state = &mut *self.0.lock();
        let known = state.secrets.get_mut(secret);
        if let Some(value) = known.and_then(|values| values.iter_mut().find(|v| v.digest == digest)) {
            value.last_used = now;
            return Ok(());
        }
        let texts = list_texts(current).into_iter().map(|text| {
            Arc::new(SearchedText {
                length: text.len(),
                text: text[..text.len().min(KEPT_BYTES)].to_vec(),
                placeholder: None,
            })
        });
        let value = SecretTexts {
            digest,
            texts: texts.collect(),
            last_used: now,
        };
        if state.size_bytes + value.size_bytes() > MAX_HISTORY_BYTES {
            state.remove_unused(now);
        }
        if state.size_bytes + value.size_bytes() > MAX_HISTORY_BYTES {
            return Err(SendError::TooLarge(format!(
                "{secret} cannot be substituted: the secrets that were substituted for this upstream within \
                 {} days take {MAX_HISTORY_BYTES} bytes already, and each must be redacted in its responses",
                RETENTION_PERIOD.as_secs() / (24 * 3600)
            )));
        }
        state.size_bytes += value.size_bytes();
        state.unsearched.extend(value.texts.iter().cloned());
        let values = state.secrets.entry(secret.clone()).or_default();
        values.push_back(value);
        if values.len() > MAX_VALUES_PER_SECRET
            && let Some(oldest) = values.pop_front()
        {
            state.size_bytes -= oldest.size_bytes();
            state.reset_finders();
        }
        Ok(())
    }

    /// No value was substituted so far.
    pub fn is_empty(&self) -> bool {
        self.0.lock().secrets.is_empty()
    }

    /// A redactor of all values.
    pub fn to_redactor(&self) -> Redactor {
        let state = &mut *self.0.lock();
        state.build_finders();
        Redactor {
            history: state.finders.clone(),
            ..Redactor::default()
        }
    }
}

impl HistoryState {
    fn remove_unused(&mut self, now: Instant) {
        self.secrets.retain(|_, values| {
            values.retain(|v| now.saturating_duration_since(v.last_used) < RETENTION_PERIOD);
            !values.is_empty()
        });
        self.size_bytes = self.secrets.values().flatten().map(SecretTexts::size_bytes).sum();
        self.reset_finders();
    }

    /// Has all finders built again, without the texts of removed values.
    fn reset_finders(&mut self) {
        self.finders.clear();
        let texts = self.secrets.values().flatten().flat_map(|v| &v.texts);
        self.unsearched = texts.cloned().collect();
    }

    /// Puts new texts into a finder, with those of all finders that are not much larger.
    fn build_finders(&mut self) {
        if self.unsearched.is_empty() {
            return;
        }
        let mut texts = std::mem::take(&mut self.unsearched);
        let is_similar =
            |finder: &mut Arc<TextFinder>, texts: usize| finder.texts.len() < FINDER_SIZE_RATIO * texts;
        while let Some(smaller) = self.finders.pop_if(|finder| is_similar(finder, texts.len())) {
            texts.extend(smaller.texts.iter().cloned());
        }
        self.finders.push(Arc::new(TextFinder::new(texts)));
    }
}

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

/// The texts in which a response may contain a secret, once its escapes are decoded.
fn list_texts(value: &[u8]) -> Vec<Vec<u8>> {
    let value = value
        .strip_prefix(b"Bearer ")
        .or_else(|| value.strip_prefix(b"Basic "))
        .unwrap_or(value);
    // Files and `echo` end in a line feed, which servers strip.
    let trimmed = value.trim_ascii();
    let mut texts = vec![value.to_vec(), trimmed.to_vec()];
    texts.extend(remove_line_breaks(trimmed));
    if trimmed.contains(&b' ') {
        // A form: percent-encoding leaves the plus sign that it writes for a space.
        texts.push(
            trimmed
                .iter()
                .map(|b| if *b == b' ' { b'+' } else { *b })
                .collect(),
        );
    }
    for alphabet in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
        let aligned = (0..3).map(|offset| encode_inner_base64(alphabet, trimmed, offset));
        texts.extend(aligned.filter(|text| text.len() >= MIN_BASE64_BYTES));
        texts.push(alphabet.encode(value).into_bytes());
        texts.push(alphabet.encode(trimmed).into_bytes());
    }
    texts.retain(|text| text.len() >= MIN_SECRET_BYTES);
    texts.sort();
    texts.dedup();
    texts
}

/// The characters of Base64 that depend on nothing but the value, if it stands `offset` bytes behind a multiple of
/// three in the encoded text.
fn encode_inner_base64(alphabet: &GeneralPurpose, value: &[u8], offset: usize) -> Vec<u8> {
    let mut padded = vec![0; offset];
    padded.extend_from_slice(value);
    let encoded = alphabet.encode(&padded).into_bytes();
    // A character has six bits. The first one and the last one may share theirs with what stands beside the value.
    let (start, end) = ((offset * 8).div_ceil(6), padded.len() * 8 / 6);
    encoded.get(start..end).unwrap_or_default().to_vec()
}

/// A text to find.
#[derive(Clone)]
struct SearchedText {
    /// The text, or the beginning of it.
    text: Vec<u8>,
    /// The length of the whole text.
    length: usize,
    /// Replaces the text; `None` is `***`.
    placeholder: Option<Vec<u8>>,
}

/// A secret found in a response, or several that overlap.
struct Finding<'a> {
    start: usize,
    end: usize,
    placeholder: Option<&'a [u8]>,
}

impl Finding<'_> {
    fn merge_with(self, other: Self) -> Self {
        let (start, end) = (self.start.min(other.start), self.end.max(other.end));
        let placeholder = if (self.start, self.end) == (start, end) {
            self.placeholder
        } else if (other.start, other.end) == (start, end) {
            other.placeholder
        } else {
            None
        };
        Self {
            start,
            end,
            placeholder,
        }
    }

    /// The finding in the text as it was before these decodings.
    fn locate_in(self, decodings: &[&DecodedText]) -> Self {
        let found = self.start..self.end;
        let range = decodings
            .iter()
            .rev()
            .fold(found, |range, d| d.encoded_range(range));
        Self {
            start: range.start,
            end: range.end,
            placeholder: self.placeholder,
        }
    }
}

/// Finds texts in a response.
#[derive(Default)]
struct TextFinder {
    texts: Vec<Arc<SearchedText>>,
    /// Finds the first bytes of each text; `None` without texts.
    automaton: Option<AhoCorasick>,
}

impl TextFinder {
    fn new(mut texts: Vec<Arc<SearchedText>>) -> Self {
        texts.retain(|t| t.text.len() >= MIN_SECRET_BYTES);
        let automaton = (!texts.is_empty()).then(|| {
            let searched = texts.iter().map(|t| &t.text[..t.text.len().min(SEARCHED_BYTES)]);
            AhoCorasick::new(searched).expect("few bytes of each text stay within the limits of an automaton")
        });
        Self { texts, automaton }
    }

    /// The texts in some bytes, in order; overlapping ones as one.
    fn find_in<'a>(&'a self, bytes: &[u8]) -> Vec<Finding<'a>> {
        let mut found: Vec<Finding<'a>> = Vec::new();
        let automaton = self.automaton.iter();
        for hit in automaton.flat_map(|automaton| automaton.find_overlapping_iter(bytes)) {
            let searched = &self.texts[hit.pattern().as_usize()];
            if !bytes[hit.start()..].starts_with(&searched.text) {
                continue;
            }
            let mut finding = Finding {
                start: hit.start(),
                end: (hit.start() + searched.length).min(bytes.len()),
                placeholder: searched.placeholder.as_deref(),
            };
            // Hits come in the order of their ends, so this one ends behind the start of all before: it overlaps the
            // last ones or lies behind them. Merged at once, a response full of secrets takes little memory.
            while let Some(last) = found.pop_if(|last| finding.start < last.end) {
                finding = last.merge_with(finding);
            }
            found.push(finding);
        }
        found
    }

    /// The start of the longest beginning of a text that the bytes end in; their length if there is none.
    fn find_cut_text(&self, bytes: &[u8]) -> usize {
        let lengths = self.texts.iter().map(|t| measure_overlap(bytes, &t.text));
        bytes.len() - lengths.max().unwrap_or_default()
    }
}

/// The length of the longest beginning of `text` that `bytes` end in, by the algorithm of Knuth, Morris and Pratt.
fn measure_overlap(bytes: &[u8], text: &[u8]) -> usize {
    let mut borders = vec![0; text.len()];
    let mut matched = 0;
    for i in 1..text.len() {
        while matched > 0 && text[i] != text[matched] {
            matched = borders[matched - 1];
        }
        matched += usize::from(text[i] == text[matched]);
        borders[i] = matched;
    }
    matched = 0;
    for byte in &bytes[bytes.len().saturating_sub(text.len())..] {
        while matched > 0 && (matched == text.len() || *byte != text[matched]) {
            matched = borders[matched - 1];
        }
        matched += usize::from(*byte == text[matched]);
    }
    matched
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        let mut redactor = Redactor::default();
        for secret in secrets {
            redactor.add_secret(secret.as_bytes());
        }
        redactor
    }

    fn secret_key(name: &str) -> SecretKey {
        SecretKey {
            namespace: "n".into(),
            name: name.into(),
            key: "k".into(),
        }
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

    #[test]
    fn long_secret_is_found_by_its_beginning_and_redacted_whole() {
        let history = SecretHistory::default();
        let long: String = (0..4000).map(|n| format!("{n:04}")).collect();
        history
            .record_value(&secret_key("s"), long.as_bytes())
            .expect("room");
        let redactor = history.to_redactor();
        assert_eq!(redactor.redact_text(&format!("x{long}y")), "x***y");
        assert_eq!(redactor.redact_text(&format!("x{}", &long[..5000])), "x***");
    }

    #[test]
    fn full_history_refuses_new_secrets_until_others_are_unused() {
        let history = SecretHistory::default();
        let now = Instant::now();
        let value = |n: usize| format!("{n:05} is the number of this value{}", "!".repeat(1000));
        let record = |n: usize, at: Instant| {
            history.record_value_at(&secret_key(&n.to_string()), value(n).as_bytes(), at)
        };
        let refused = (0..20_000).find_map(|n| Some((n, record(n, now).err()?)));
        let (n, error) = refused.expect("it is bounded");
        assert!(
            n > 2000 && error.to_string().contains("Secret n/"),
            "{n}: {error}"
        );
        assert!(!error.to_string().contains("the number"), "{error}");
        let is_kept = |n: usize| history.to_redactor().redact_text(&format!("x {} y", value(n))) == "x *** y";
        assert!(is_kept(0) && is_kept(n - 1) && !is_kept(n));
        // One is used, the others make room after their time.
        let later = now + RETENTION_PERIOD - Duration::from_secs(1);
        record(7, later).expect("known");
        assert!(record(n, later).is_err());
        let later = now + RETENTION_PERIOD;
        record(n, later).expect("room");
        assert!(is_kept(7) && is_kept(n) && !is_kept(8));
        let state = history.0.lock();
        let size_bytes: usize = state
            .secrets
            .values()
            .flatten()
            .map(SecretTexts::size_bytes)
            .sum();
        assert_eq!((state.size_bytes, state.secrets.len()), (size_bytes, 2));
    }

    #[test]
    fn rotation_keeps_last_values_of_secret() {
        let history = SecretHistory::default();
        for n in 0..=MAX_VALUES_PER_SECRET {
            history
                .record_value(&secret_key("s"), format!("value-number-{n:03}").as_bytes())
                .expect("room");
        }
        let redactor = history.to_redactor();
        assert_eq!(redactor.redact_text("value-number-001"), "***");
        assert_eq!(redactor.redact_text("value-number-064"), "***");
        assert_eq!(redactor.redact_text("value-number-000"), "value-number-000");
    }

    #[test]
    fn finders_are_shared_and_few_and_built_rarely() {
        let history = SecretHistory::default();
        let (mut last, mut built_texts) = (Vec::<Arc<TextFinder>>::new(), 0);
        for n in 0..500 {
            let value = format!("the value of secret {n}");
            history
                .record_value(&secret_key(&n.to_string()), value.as_bytes())
                .expect("room");
            let finders = history.to_redactor().history;
            let is_new = |finder: &&Arc<TextFinder>| !last.iter().any(|known| Arc::ptr_eq(known, finder));
            built_texts += finders
                .iter()
                .filter(is_new)
                .map(|finder| finder.texts.len())
                .sum::<usize>();
            assert!(finders.len() <= 8, "{}", finders.len());
            last = finders;
        }
        let texts: usize = last.iter().map(|finder| finder.texts.len()).sum();
        assert!(built_texts < 40 * texts, "{built_texts} for {texts}");
        history
            .record_value(&secret_key("7"), b"the value of secret 7")
            .expect("known");
        let again = history.to_redactor().history;
        assert!(
            again.iter().zip(&last).all(|(a, b)| Arc::ptr_eq(a, b)),
            "nothing is new"
        );
        let redactor = history.to_redactor();
        for n in [0, 99, 498, 499] {
            assert_eq!(
                redactor.redact_text(&format!("x the value of secret {n}.")),
                "x ***.",
                "{n}"
            );
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

        #[test]
        fn overlap_is_that_of_naive_search(bytes in "[ab]{0,12}", text in "[ab]{1,8}") {
            let naive = (0..=text.len()).rev().find(|n| bytes.ends_with(&text[..*n]));
            prop_assert_eq!(Some(measure_overlap(bytes.as_bytes(), text.as_bytes())), naive);
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
