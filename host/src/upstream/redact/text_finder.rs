//! The texts in which a response may contain a secret, and their search.

use std::sync::Arc;

use aho_corasick::AhoCorasick;
use base64::{
    Engine,
    engine::general_purpose::{GeneralPurpose, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};

use crate::upstream::decoded_text::{DecodedText, remove_line_breaks};

/// Minimum length of a redacted text. Shorter values are no secrets worth the name, and redacting them would garble
/// responses.
const MIN_SECRET_BYTES: usize = 4;

/// Minimum length of a redacted part of Base64, in which shorter texts occur by chance.
const MIN_BASE64_BYTES: usize = 8;

/// Bytes of a text that the automaton searches for; the rest is compared where these are found. It bounds the memory
/// of the automaton, which is much larger than the texts.
const SEARCHED_BYTES: usize = 16;

/// The texts in which a response may contain a secret, once its escapes are decoded.
pub(super) fn list_texts(value: &[u8]) -> Vec<Vec<u8>> {
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
pub(super) struct SearchedText {
    /// The text, or the beginning of it.
    pub text: Vec<u8>,
    /// The length of the whole text.
    pub length: usize,
    /// Replaces the text; `None` is `***`.
    pub placeholder: Option<Vec<u8>>,
}

/// A secret found in a response, or several that overlap.
pub(super) struct Finding<'a> {
    pub start: usize,
    pub end: usize,
    pub placeholder: Option<&'a [u8]>,
}

impl Finding<'_> {
    pub fn merge_with(self, other: Self) -> Self {
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
    pub fn locate_in(self, decodings: &[&DecodedText]) -> Self {
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
pub(super) struct TextFinder {
    pub texts: Vec<Arc<SearchedText>>,
    /// Finds the first bytes of each text; `None` without texts.
    automaton: Option<AhoCorasick>,
}

impl TextFinder {
    pub fn new(mut texts: Vec<Arc<SearchedText>>) -> Self {
        texts.retain(|t| t.text.len() >= MIN_SECRET_BYTES);
        let automaton = (!texts.is_empty()).then(|| {
            let searched = texts.iter().map(|t| &t.text[..t.text.len().min(SEARCHED_BYTES)]);
            AhoCorasick::new(searched).expect("few bytes of each text stay within the limits of an automaton")
        });
        Self { texts, automaton }
    }

    /// The texts in some bytes, in order; overlapping ones as one.
    pub fn find_in<'a>(&'a self, bytes: &[u8]) -> Vec<Finding<'a>> {
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
    pub fn find_cut_text(&self, bytes: &[u8]) -> usize {
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

    proptest! {
        #[test]
        fn overlap_is_that_of_naive_search(bytes in "[ab]{0,12}", text in "[ab]{1,8}") {
            let naive = (0..=text.len()).rev().find(|n| bytes.ends_with(&text[..*n]));
            prop_assert_eq!(Some(measure_overlap(bytes.as_bytes(), text.as_bytes())), naive);
        }
    }
}
