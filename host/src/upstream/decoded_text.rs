//! Decoded texts: the escapes of one encoding replaced by what they stand for, with the places of both.
//!
//! A server may escape any character of a secret, so the texts in which it may repeat one cannot be listed. Instead
//! the whole text is decoded, however the escapes are spread, and what is found there is redacted in the original. The
//! decoders accept escapes anywhere: a text needs not be valid JSON or HTML to contain a secret.

use std::ops::Range;

use memchr::{memchr, memchr2};

/// An encoding whose escapes are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escapes {
    /// A backslash before a character, `\n`, `\u00e9` and `\xe9`: JSON, and strings of most languages.
    Backslash,
    /// `%2F`: URLs and forms.
    Percent,
    /// `&lt;`, `&#60;` and `&#x3c;`: HTML and XML.
    Entity,
    /// Line breaks with the blanks around them: Base64 in lines (RFC 2045), and YAML that indents a text.
    LineBreak,
}

impl Escapes {
    /// The encodings that are first decoded, each with those that are then decoded in its result. Combinations that
    /// no common software produces are left out, as each costs a pass over the text.
    pub const COMBINATIONS: [(Self, &[Self]); 4] = [
        // JSON in a JSON string; HTML or Base64 in lines in a JSON string.
        (Self::Backslash, &[Self::Backslash, Self::Entity, Self::LineBreak]),
        // JSON in a form; a URL in the query of a URL.
        (Self::Percent, &[Self::Backslash, Self::Percent]),
        // JSON in an attribute of HTML.
        (Self::Entity, &[Self::Backslash]),
        (Self::LineBreak, &[]),
    ];

    /// Decodes a text; `None` if it has no such escapes.
    pub fn decode(self, text: &[u8]) -> Option<DecodedText> {
        let mut decoder = Decoder {
            encoded: text,
            copied: 0,
            decoded: DecodedText::default(),
        };
        match self {
            Self::Backslash => decoder.decode_backslashes(),
            Self::Percent => decoder.decode_percents(),
            Self::Entity => decoder.decode_entities(),
            Self::LineBreak => decoder.remove_line_breaks(),
        }
        decoder.finish()
    }
}

/// A decoded text that knows where its bytes were in the encoded one.
#[derive(Default)]
pub struct DecodedText {
    /// The text.
    pub text: Vec<u8>,
    /// Positions in the text and in the encoded text from which on both advance alike, in order.
    shifts: Vec<(u32, u32)>,
}

impl DecodedText {
    /// The range of the encoded text that was decoded to a range of the text.
    pub fn encoded_range(&self, range: Range<usize>) -> Range<usize> {
        // Of a line break at the start nothing is included, nor of one at the end.
        let start = self
            .shifts
            .partition_point(|(decoded, _)| *decoded as usize <= range.start);
        let end = self
            .shifts
            .partition_point(|(decoded, _)| (*decoded as usize) < range.end);
        let at_end = self
            .shifts
            .get(end)
            .filter(|(decoded, _)| *decoded as usize == range.end);
        let end = at_end.map_or_else(
            || self.shift_position(end, range.end),
            |(_, encoded)| *encoded as usize,
        );
        self.shift_position(start, range.start)..end
    }

    /// The place of a position by the shift before `next`.
    fn shift_position(&self, next: usize, position: usize) -> usize {
        let last = next.checked_sub(1).map(|i| self.shifts[i]);
        let (decoded, encoded) = last.unwrap_or_default();
        encoded as usize + (position - decoded as usize)
    }
}

struct Decoder<'a> {
    encoded: &'a [u8],
    /// The encoded bytes that are done.
    copied: usize,
    decoded: DecodedText,
}

impl Decoder<'_> {
    /// Replaces a range of the encoded text, which lies behind those replaced before.
    fn replace_range(&mut self, range: Range<usize>, decoded: &[u8]) {
        self.decoded
            .text
            .extend_from_slice(&self.encoded[self.copied..range.start]);
        self.push_shift(range.start);
        self.decoded.text.extend_from_slice(decoded);
        self.push_shift(range.end);
        self.copied = range.end;
    }

    fn push_shift(&mut self, encoded: usize) {
        // Bodies are smaller than 4 GiB: their limit is an `u32`.
        let shift = (self.decoded.text.len() as u32, encoded as u32);
        if self.decoded.shifts.last() != Some(&shift) {
            self.decoded.shifts.push(shift);
        }
    }

    fn finish(mut self) -> Option<DecodedText> {
        if self.copied == 0 {
            return None;
        }
        self.decoded.text.extend_from_slice(&self.encoded[self.copied..]);
        Some(self.decoded)
    }

    fn decode_backslashes(&mut self) {
        let mut at = 0;
        while let Some(found) = memchr(b'\\', &self.encoded[at..]) {
            let start = at + found;
            let rest = &self.encoded[start + 1..];
            let mut utf8 = [0; 4];
            let (len, decoded): (usize, &[u8]) = match rest.first() {
                None => return,
                Some(b'u') => match parse_unicode_escape(rest) {
                    Some((c, len)) => (len, c.encode_utf8(&mut utf8).as_bytes()),
                    None => (0, b""),
                },
                Some(b'x') => match rest.get(1..3).and_then(parse_hex) {
                    Some(code) => (3, char::from(code as u8).encode_utf8(&mut utf8).as_bytes()),
                    None => (0, b""),
                },
                Some(b'n') => (1, b"\n"),
                Some(b'r') => (1, b"\r"),
                Some(b't') => (1, b"\t"),
                Some(b'b') => (1, b"\x08"),
                Some(b'f') => (1, b"\x0c"),
                Some(_) => (1, &rest[..1]),
            };
            at = start + 1 + len;
            if len > 0 {
                self.replace_range(start..at, decoded);
            }
        }
    }

    fn decode_percents(&mut self) {
        let mut at = 0;
        while let Some(found) = memchr(b'%', &self.encoded[at..]) {
            let start = at + found;
            at = start + 1;
            if let Some(code) = self.encoded.get(at..at + 2).and_then(parse_hex) {
                at += 2;
                self.replace_range(start..at, &[code as u8]);
            }
        }
    }

    fn decode_entities(&mut self) {
        let mut at = 0;
        while let Some(found) = memchr(b'&', &self.encoded[at..]) {
            let start = at + found;
            at = start + 1;
            let rest = &self.encoded[at..self.encoded.len().min(at + MAX_ENTITY_BYTES)];
            let Some(end) = memchr(b';', rest) else { continue };
            if let Some(c) = parse_entity(&rest[..end]) {
                at += end + 1;
                self.replace_range(start..at, c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }

    fn remove_line_breaks(&mut self) {
        let mut at = 0;
        while let Some(found) = memchr2(b'\r', b'\n', &self.encoded[at..]) {
            let before = &self.encoded[self.copied..at + found];
            let blanks = before
                .iter()
                .rev()
                .take_while(|b| matches!(b, b' ' | b'\t'))
                .count();
            let start = at + found - blanks;
            let after = self.encoded[at + found..].iter();
            at += found
                + after
                    .take_while(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n'))
                    .count();
            self.replace_range(start..at, b"");
        }
    }
}

/// Maximum length of an entity between `&` and `;`, which is included.
const MAX_ENTITY_BYTES: usize = 10;

fn parse_hex(digits: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// The character of `u0041`, or of two such escapes that are a surrogate pair, and the length of what was parsed.
fn parse_unicode_escape(text: &[u8]) -> Option<(char, usize)> {
    let first = parse_hex(text.get(1..5)?)?;
    if let Some(c) = char::from_u32(first) {
        return Some((c, 5));
    }
    let second = text.get(5..11)?.strip_prefix(b"\\u").and_then(parse_hex)?;
    let pair = [first as u16, second as u16];
    let c = char::decode_utf16(pair).next()?.ok()?;
    Some((c, 11))
}

fn parse_entity(name: &[u8]) -> Option<char> {
    match name {
        b"amp" => Some('&'),
        b"lt" => Some('<'),
        b"gt" => Some('>'),
        b"quot" => Some('"'),
        b"apos" => Some('\''),
        [b'#', b'x' | b'X', digits @ ..] => char::from_u32(parse_hex(digits)?),
        [b'#', digits @ ..] => char::from_u32(std::str::from_utf8(digits).ok()?.parse().ok()?),
        _ => None,
    }
}

/// A text without its line breaks and the blanks around them.
pub fn remove_line_breaks(text: &[u8]) -> Option<Vec<u8>> {
    Escapes::LineBreak.decode(text).map(|decoded| decoded.text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(escapes: Escapes, text: &str) -> String {
        let decoded = escapes.decode(text.as_bytes()).map(|d| d.text);
        String::from_utf8(decoded.unwrap_or_else(|| text.into())).expect("text")
    }

    #[test]
    fn escapes_are_decoded_and_other_text_is_left() {
        for (escapes, text, decoded) in [
            (
                Escapes::Backslash,
                r"a\/b\u0041\u00E9\ud83d\ude00\x3d\n\\n\'\$",
                "a/bAé😀=\n\\n'$",
            ),
            (
                Escapes::Backslash,
                r"\ud83d \u12 \uZZZZ \x9",
                r"\ud83d \u12 \uZZZZ \x9",
            ),
            (Escapes::Backslash, r"end\", r"end\"),
            (Escapes::Percent, "a%2Fb%2f%41+%4", "a/b/A+%4"),
            (Escapes::Percent, "100% of %zz", "100% of %zz"),
            (
                Escapes::Entity,
                "&lt;&amp;lt;&#60;&#x3C;&#X3c;&quot;&apos;",
                "<&lt;<<<\"'",
            ),
            (Escapes::Entity, "a & b; &unknown; &#;", "a & b; &unknown; &#;"),
            (Escapes::LineBreak, "a \r\n  b\n\n\tc d", "abc d"),
            (Escapes::LineBreak, "a b", "a b"),
        ] {
            assert_eq!(decode(escapes, text), decoded, "{escapes:?} {text}");
        }
    }

    #[test]
    fn ranges_cover_escapes_and_no_line_break_at_their_ends() {
        let range = |escapes: Escapes, text: &str, part: &str| {
            let decoded = escapes.decode(text.as_bytes()).expect("has escapes");
            let start = memchr::memmem::find(&decoded.text, part.as_bytes()).expect("is there");
            text[decoded.encoded_range(start..start + part.len())].to_owned()
        };
        assert_eq!(
            range(Escapes::Backslash, r"x\/a\u0041\n\/y", "/aA\n"),
            r"\/a\u0041\n"
        );
        assert_eq!(range(Escapes::Percent, "%20%41b%43%20", "AbC"), "%41b%43");
        assert_eq!(
            range(Escapes::LineBreak, "x\n  ab\n  cd\n  y", "abcd"),
            "ab\n  cd"
        );
        assert_eq!(range(Escapes::LineBreak, "x\n  abcd\n  y", "abcd"), "abcd");
    }

    proptest! {
        /// Decoding a range alone gives that range of the decoded text, for escapes that do not reach over its ends.
        #[test]
        fn encoded_range_decodes_to_its_range(parts in prop::collection::vec(
            prop::sample::select(vec!["a", "é", "\\u0041", "\\/", "\\n", "%2F", "%41", "&lt;", "&#65;"]), 0..20),
            bounds in (0..60usize, 0..60usize),
        ) {
            let text = parts.concat();
            for escapes in [Escapes::Backslash, Escapes::Percent, Escapes::Entity] {
                let Some(decoded) = escapes.decode(text.as_bytes()) else { continue };
                let len = decoded.text.len();
                let (start, end) = (bounds.0.min(bounds.1).min(len), bounds.0.max(bounds.1).min(len));
                let encoded = &text.as_bytes()[decoded.encoded_range(start..end)];
                let again = escapes.decode(encoded).map_or_else(|| encoded.to_vec(), |d| d.text);
                prop_assert_eq!(&again[..], &decoded.text[start..end]);
            }
        }

        /// Arbitrary bytes never panic, and the whole text maps to the whole encoded text but line breaks at its ends.
        #[test]
        fn arbitrary_bytes_are_decoded(text in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b"\\u%&#x;0aF\r\n \t".to_vec())], 0..60),
        ) {
            for escapes in [Escapes::Backslash, Escapes::Percent, Escapes::Entity, Escapes::LineBreak] {
                if let Some(decoded) = escapes.decode(&text).filter(|decoded| !decoded.text.is_empty()) {
                    let all = decoded.encoded_range(0..decoded.text.len());
                    prop_assert!(all.start <= all.end && all.end <= text.len());
                }
            }
        }
    }
}
