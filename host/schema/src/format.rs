//! Named string formats (`format: date-time`), as the API server validates them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use regex::Regex;

/// Units of a duration: a word is one of them if it is one of the names, or begins with the last one.
const DURATION_UNITS: [&[&str]; 8] = [
    &["ns", "nano"],
    &["us", "µs", "micro"],
    &["ms", "milli"],
    &["s", "sec"],
    &["m", "min"],
    &["h", "hr", "hour"],
    &["d", "day"],
    &["w", "wk", "week"],
];

/// Tests a text against a named format. Unknown formats match everything, as on the API server.
pub(crate) fn matches_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => is_date_time(text),
        "date" => is_date(text),
        "duration" => is_go_duration(text) || is_worded_duration(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uri" => is_request_uri(text),
        "byte" => !text.is_empty() && STANDARD.decode(text).is_ok(),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "hexcolor" => is_hex_color(text),
        "hostname" => is_hostname(text),
        "k8s-short-name" => is_dns_label(text),
        "k8s-long-name" => is_dns_subdomain(text),
        "email" => text
            .split_once('@')
            .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@')),
        _ => true,
    }
}

fn is_date(text: &str) -> bool {
    let has_shape = text.len() == 10
        && text.bytes().enumerate().all(|(index, byte)| {
            if matches!(index, 4 | 7) {
                byte == b'-'
            } else {
                byte.is_ascii_digit()
            }
        });
    has_shape && text.parse::<jiff::civil::Date>().is_ok()
}

/// A date and a time with an offset (RFC 3339). The offset itself is not checked.
fn is_date_time(text: &str) -> bool {
    static TIME: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$").ok()
    });
    let lower = text.to_lowercase();
    let Some((date, time)) = lower.split_once('t') else {
        return false;
    };
    is_date(date) && TIME.as_ref().is_some_and(|pattern| pattern.is_match(time))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let max_bits = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|bits| bits <= max_bits)
}

/// Six or eight bytes, separated by colons or hyphens.
fn is_mac(text: &str) -> bool {
    [':', '-'].into_iter().any(|separator| {
        let parts: Vec<&str> = text.split(separator).collect();
        let is_byte = |part: &&str| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
        matches!(parts.len(), 6 | 8 | 20) && parts.iter().all(is_byte)
    })
}

/// An absolute URI, or an absolute path. Spaces and invalid escapes are refused.
fn is_request_uri(text: &str) -> bool {
    let has_scheme = text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let is_escape = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit());
        if byte <= b' '
            || byte == 0x7f
            || (byte == b'%' && !(is_escape(bytes.next()) && is_escape(bytes.next())))
        {
            return false;
        }
    }
    has_scheme || text.starts_with('/')
}

fn is_uuid(text: &str, version: Option<char>) -> bool {
    let digits: Vec<char> = text.chars().filter(|c| *c != '-').collect();
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    let has_shape = !text.contains('-') || groups == [8, 4, 4, 4, 12];
    has_shape
        && digits.len() == 32
        && digits.iter().all(char::is_ascii_hexdigit)
        && version.is_none_or(|version| digits[12] == version)
}

fn is_hex_color(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or(text);
    matches!(digits.len(), 3 | 6) && digits.chars().all(|c| c.is_ascii_hexdigit())
}

/// Returns true for a DNS label (RFC 1123), of at most 63 characters.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_label_text(text)
}

/// Returns true for a DNS subdomain (RFC 1123) as Kubernetes has it: of at most 253 characters, with labels of any length.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_text)
}

fn is_label_text(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Host names as the API server knows them: one label, of which a hyphen can only be the second character, or several, of which the last
/// consists of letters.
static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    let (inner, letter) = (r"[a-zA-Z0-9\p{S}\p{L}]", r"[a-zA-Z\p{L}]");
    let with_hyphens = r"[a-zA-Z0-9\-\p{S}\p{L}]";
    let several = format!("(?:{inner}(?:{with_hyphens}{{0,61}}{inner})?\\.)+{letter}{{2,63}}");
    let pattern = format!("^(?:{inner}(?:-?{inner}{{0,62}})?|{several})$");
    #[expect(clippy::expect_used, reason = "a constant, which a test uses")]
    Regex::new(&pattern).expect("a regular expression")
});

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && text.split('.').all(|label| label.len() <= 63) && HOSTNAME.is_match(text)
}

/// Durations as Go prints them: `1h30m`, `1.5s`, `-2ms`.
pub(crate) fn is_go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let Some(tail) = ["ns", "us", "µs", "ms", "s", "m", "h"].iter().find_map(|unit| {
            let tail = tail.strip_prefix(unit)?;
            tail.chars()
                .next()
                .is_none_or(|c| c.is_ascii_digit() || c == '.')
                .then_some(tail)
        }) else {
            return false;
        };
        if number.parse::<f64>().is_err() {
            return false;
        }
        rest = tail;
    }
    true
}

/// Texts with a number and a unit in them, such as `2 weeks`.
fn is_worded_duration(text: &str) -> bool {
    static PARTS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\d+\s*([A-Za-zµ]+)").ok());
    let is_unit = |word: &str| {
        let word = word.to_lowercase();
        DURATION_UNITS.iter().any(|names| {
            names.contains(&word.as_str()) || names.last().is_some_and(|last| word.starts_with(last))
        })
    };
    let parts = PARTS.as_ref().map(|pattern| pattern.captures_iter(text));
    parts.into_iter().flatten().any(|part| is_unit(&part[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_formats_accept_good_and_refuse_bad_texts() {
        for (format, good, bad) in [
            ("date-time", "2026-01-01T00:00:00Z", "yesterday"),
            ("date-time", "2026-01-01t00:00:00.5+02:00", "2026-01-01T24:00:00Z"),
            ("date", "2026-01-31", "2026-02-31"),
            ("duration", "1h30m", "1 fortnight"),
            ("duration", "1.5ms", "ms"),
            ("duration", "2 weeks", "soon"),
            ("ipv4", "1.2.3.4", "1.2.3"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "01:23:45:67:89:ab", "01:23:45"),
            ("uri", "https://a/b", "not a uri"),
            ("uri", "/a%20b", "/a%zz"),
            ("byte", "YQ==", "?"),
            (
                "uuid",
                "123e4567-e89b-12d3-a456-426614174000",
                "123e4567-e89b12d3-a456-426614174000",
            ),
            ("hexcolor", "#fff", "red"),
            ("hostname", "a-1.example", "-a"),
            ("hostname", "a1", "10.0.0.1"),
            ("hostname", "a-b", "ab-c"),
            ("byte", "YWJj", ""),
            ("k8s-short-name", "a-1", "a.b"),
        ] {
            assert!(matches_format(format, good), "{format} {good}");
            assert!(!matches_format(format, bad), "{format} {bad}");
        }
    }
}
