//! Encodings of a secret at the place of its placeholder.

use std::io;

use base64::{Engine, engine::general_purpose::STANDARD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use super::SendError;
use crate::contract::bindings::types;

/// Bytes that are escaped in a form (`application/x-www-form-urlencoded`); a space becomes `%20`.
const FORM_ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'*');

/// The encoding of a secret where its placeholder stands.
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

impl Encoding {
    /// The length of an encoded value, computed without the memory that the encoded value would take. The error names
    /// `secret`, not its value.
    pub fn encoded_len(self, value: &[u8], secret: &impl std::fmt::Display) -> Result<usize, SendError> {
        Ok(match self {
            Self::Plain => value.len(),
            Self::JsonString => {
                let mut counter = ByteCounter(0);
                let text = require_utf8(value, secret)?;
                serde_json::to_writer(&mut counter, text).expect("a counter accepts all bytes");
                counter.0 - 2
            }
            Self::Form => percent_encode(value, FORM_ESCAPED).map(str::len).sum(),
            Self::Base64 => value.len().div_ceil(3) * 4,
            Self::Xml => {
                let chars = require_utf8(value, secret)?.chars();
                chars.map(|c| xml_entity(c).map_or(c.len_utf8(), str::len)).sum()
            }
        })
    }

    /// Encodes a value. The error names `secret`, not its value.
    pub fn encode_value(self, value: &[u8], secret: &impl std::fmt::Display) -> Result<Vec<u8>, SendError> {
        Ok(match self {
            Self::Plain => value.to_vec(),
            Self::JsonString => {
                let quoted = serde_json::Value::from(require_utf8(value, secret)?).to_string();
                quoted.as_bytes()[1..quoted.len() - 1].to_vec()
            }
            Self::Form => percent_encode(value, FORM_ESCAPED).to_string().into_bytes(),
            Self::Base64 => STANDARD.encode(value).into_bytes(),
            Self::Xml => escape_xml(require_utf8(value, secret)?).into_bytes(),
        })
    }
}

/// A writer that counts the bytes and keeps none.
struct ByteCounter(usize);

impl io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn require_utf8<'a>(value: &'a [u8], secret: &impl std::fmt::Display) -> Result<&'a str, SendError> {
    std::str::from_utf8(value).map_err(|_| SendError::Invalid(format!("{secret} is not UTF-8")))
}

/// The entity of a character that text of an XML element or attribute cannot contain.
fn xml_entity(c: char) -> Option<&'static str> {
    match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '"' => Some("&quot;"),
        '\'' => Some("&apos;"),
        _ => None,
    }
}

fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match xml_entity(c) {
            Some(entity) => escaped.push_str(entity),
            None => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL_ENCODINGS: [Encoding; 5] = [
        Encoding::Plain,
        Encoding::JsonString,
        Encoding::Form,
        Encoding::Base64,
        Encoding::Xml,
    ];

    proptest! {
        #[test]
        fn computed_length_is_that_of_encoded_value(value in "\\PC{0,20}[\n\"\\\\<&%/ ]{0,5}") {
            for encoding in ALL_ENCODINGS {
                let encoded = encoding.encode_value(value.as_bytes(), &"s").expect("text");
                prop_assert_eq!(encoding.encoded_len(value.as_bytes(), &"s"), Ok(encoded.len()), "{:?}", encoding);
            }
        }
    }

    #[test]
    fn form_value_has_no_character_with_a_meaning() {
        let encoded = Encoding::Form.encode_value(b"a&b=c d", &"s");
        assert_eq!(encoded, Ok(b"a%26b%3Dc%20d".to_vec()));
    }

    #[test]
    fn text_encoding_of_binary_value_is_refused() {
        for encoding in [Encoding::JsonString, Encoding::Xml] {
            let refused = encoding.encode_value(b"\xff", &"Secret n/s key `k`").unwrap_err();
            assert_eq!(refused.to_string(), "Secret n/s key `k` is not UTF-8");
        }
    }
}
