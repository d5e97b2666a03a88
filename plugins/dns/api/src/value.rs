//! Values of records in canonical form, in which those of a spec and of a provider are compared.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use ostler_sdk::api;

use crate::{canonical_zone, check_name};

/// Length of a character string of a TXT record (RFC 1035, section 3.3).
const MAX_STRING_BYTES: usize = 255;

/// The type of records.
#[api]
#[derive(Copy, Eq)]
#[allow(clippy::upper_case_acronyms)]
pub enum RecordType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    AAAA,
    /// The name that this one is an alias of.
    CNAME,
    /// Texts.
    TXT,
    /// Mail servers.
    MX,
    /// Services.
    SRV,
}

impl RecordType {
    /// All types.
    pub const ALL: [Self; 6] = [Self::A, Self::AAAA, Self::CNAME, Self::TXT, Self::MX, Self::SRV];

    /// The type as DNS writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::AAAA => "AAAA",
            Self::CNAME => "CNAME",
            Self::TXT => "TXT",
            Self::MX => "MX",
            Self::SRV => "SRV",
        }
    }
}

/// A value in canonical form: addresses in their shortest form, names in lower case without a dot at the end, texts as
/// they are.
///
/// # Errors
/// The text of the problem.
pub fn canonical_value(kind: RecordType, value: &str) -> Result<String, String> {
    let text = value;
    let value = value.trim();
    let problem = |expected: &str| format!("{value} is not {expected}");
    match kind {
        RecordType::TXT => Ok(decode_text(text)),
        RecordType::A => {
            let address: Result<Ipv4Addr, _> = value.parse();
            Ok(address.map_err(|_| problem("an IPv4 address"))?.to_string())
        }
        RecordType::AAAA => {
            let address: Result<Ipv6Addr, _> = value.parse();
            Ok(address.map_err(|_| problem("an IPv6 address"))?.to_string())
        }
        RecordType::CNAME => canonical_target(value),
        RecordType::MX => canonical_service(value, 1).ok_or_else(|| problem("a preference and a name"))?,
        RecordType::SRV => {
            canonical_service(value, 3).ok_or_else(|| problem("a priority, a weight, a port and a name"))?
        }
    }
}

/// Numbers of 16 bits, and a name.
fn canonical_service(value: &str, numbers: usize) -> Option<Result<String, String>> {
    let words: Vec<&str> = value.split_ascii_whitespace().collect();
    let (target, fields) = words.split_last()?;
    if fields.len() != numbers {
        return None;
    }
    let mut canonical = String::new();
    for field in fields {
        let number: u16 = field.parse().ok()?;
        canonical.push_str(&number.to_string());
        canonical.push(' ');
    }
    Some(canonical_target(target).map(|target| canonical + &target))
}

fn canonical_target(name: &str) -> Result<String, String> {
    // The root: the target of a null MX (RFC 7505), and of a service that is not offered.
    if name == "." {
        return Ok(".".into());
    }
    let name = canonical_zone(name);
    check_name(&name)?;
    Ok(name)
}

/// The canonical values of a set.
///
/// # Errors
/// The text of the first problem.
pub fn canonical_values(kind: RecordType, values: &[String]) -> Result<BTreeSet<String>, String> {
    values.iter().map(|value| canonical_value(kind, value)).collect()
}

/// The text of a TXT record: of quoted character strings their concatenation, of anything else the text itself.
#[must_use]
pub fn decode_text(value: &str) -> String {
    parse_strings(value).unwrap_or_else(|| value.to_owned())
}

/// Reads character strings in quotes, with the escapes of master files (RFC 1035, section 5.1).
fn parse_strings(value: &str) -> Option<String> {
    let mut text = Vec::new();
    let mut bytes = value.trim().bytes().peekable();
    if bytes.peek() != Some(&b'"') {
        return None;
    }
    while let Some(byte) = bytes.next() {
        if byte == b' ' || byte == b'\t' {
            continue;
        }
        if byte != b'"' {
            return None;
        }
        loop {
            match bytes.next()? {
                b'"' => break,
                b'\\' => {
                    let first = bytes.next()?;
                    if !first.is_ascii_digit() {
                        text.push(first);
                        continue;
                    }
                    let mut number = u32::from(first - b'0');
                    for _ in 0..2 {
                        let digit = bytes.next().filter(u8::is_ascii_digit)?;
                        number = number * 10 + u32::from(digit - b'0');
                    }
                    text.push(u8::try_from(number).ok()?);
                }
                other => text.push(other),
            }
        }
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// A text as quoted character strings of at most 255 bytes each.
#[must_use]
pub fn encode_text(text: &str) -> String {
    let mut encoded = String::new();
    let bytes = text.as_bytes();
    let count = bytes.len().div_ceil(MAX_STRING_BYTES).max(1);
    for index in 0..count {
        let end = bytes.len().min((index + 1) * MAX_STRING_BYTES);
        if index > 0 {
            encoded.push(' ');
        }
        encoded.push('"');
        for &byte in &bytes[index * MAX_STRING_BYTES..end] {
            match byte {
                b'"' | b'\\' => {
                    encoded.push('\\');
                    encoded.push(char::from(byte));
                }
                b' '..=b'~' => encoded.push(char::from(byte)),
                _ => {
                    encoded.push('\\');
                    for divisor in [100, 10, 1] {
                        encoded.push(char::from(b'0' + byte / divisor % 10));
                    }
                }
            }
        }
        encoded.push('"');
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_have_one_canonical_form() {
        for (kind, value, canonical) in [
            (RecordType::A, " 192.0.2.1", "192.0.2.1"),
            (RecordType::AAAA, "2001:DB8:0:0::1", "2001:db8::1"),
            (RecordType::CNAME, "WWW.Example.com.", "www.example.com"),
            (RecordType::MX, "010  Mail.example.com.", "10 mail.example.com"),
            (RecordType::MX, "0 .", "0 ."),
            (
                RecordType::SRV,
                "0 5 5060 sip.example.com.",
                "0 5 5060 sip.example.com",
            ),
            (RecordType::TXT, "v=spf1 -all", "v=spf1 -all"),
            (RecordType::TXT, "\"v=spf1\" \" -all\"", "v=spf1 -all"),
            (RecordType::TXT, "say \"hi\"", "say \"hi\""),
            (RecordType::TXT, " blanks ", " blanks "),
            (RecordType::TXT, "\"\\\"quoted\\\"\"", "\"quoted\""),
        ] {
            assert_eq!(canonical_value(kind, value), Ok(canonical.into()));
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for (kind, value) in [
            (RecordType::A, "2001:db8::1"),
            (RecordType::A, "192.0.2"),
            (RecordType::AAAA, "192.0.2.1"),
            (RecordType::CNAME, "a b"),
            (RecordType::CNAME, ""),
            (RecordType::MX, "mail.example.com"),
            (RecordType::MX, "70000 mail.example.com"),
            (RecordType::SRV, "0 5060 sip.example.com"),
        ] {
            assert!(canonical_value(kind, value).is_err(), "{kind:?} {value}");
        }
    }

    #[test]
    fn long_text_is_split_and_escaped() {
        let text = "a".repeat(300);
        let encoded = encode_text(&text);
        assert_eq!(encoded.split(' ').map(str::len).collect::<Vec<_>>(), [257, 47]);
        assert_eq!(encode_text("é\"\\"), "\"\\195\\169\\\"\\\\\"");
        assert_eq!(encode_text(""), "\"\"");
    }

    proptest! {
        #[test]
        fn encoded_text_is_decoded(text in "\\PC{0,600}") {
            prop_assert_eq!(decode_text(&encode_text(&text)), text);
        }
    }
}
