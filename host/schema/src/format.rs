//! Named string formats (`format: date-time`), as the API server validates them.

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Tests a text against a named format. Unknown formats match everything, as on the API server.
pub(crate) fn matches_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => is_go_duration(text),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "uri" => text
            .parse::<http::Uri>()
            .is_ok_and(|uri| uri.scheme().is_some() || uri.path().starts_with('/')),
        "byte" => STANDARD.decode(text).is_ok(),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => is_uuid(text),
        "hostname" => is_hostname(text),
        "email" => text
            .split_once('@')
            .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@')),
        _ => true,
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let max_bits = match address.parse() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|bits| bits <= max_bits)
}

fn is_uuid(text: &str) -> bool {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit())
}

fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    !text.is_empty() && text.len() <= 255 && text.split('.').all(is_label)
}

/// Durations as Go prints them: `1h30m`, `1.5s`, `-2ms`.
fn is_go_duration(text: &str) -> bool {
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
        let Some(tail) = ["ns", "us", "µs", "ms", "s", "m", "h", "d", "w"]
            .iter()
            .find_map(|unit| {
                let tail = tail.strip_prefix(unit)?;
                tail.chars()
                    .next()
                    .is_none_or(|c| c.is_ascii_digit() || c == '.')
                    .then_some(tail)
            })
        else {
            return false;
        };
        if number.parse::<f64>().is_err() {
            return false;
        }
        rest = tail;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_formats_accept_good_and_refuse_bad_texts() {
        for (format, good, bad) in [
            ("date-time", "2026-01-01T00:00:00Z", "yesterday"),
            ("duration", "1h30m", "1 hour"),
            ("duration", "1.5ms", "ms"),
            ("ipv4", "1.2.3.4", "1.2.3"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("uri", "https://a/b", "not a uri"),
            ("byte", "YQ==", "?"),
            ("hostname", "a.b-c", "-a"),
        ] {
            assert!(matches_format(format, good), "{format} {good}");
            assert!(!matches_format(format, bad), "{format} {bad}");
        }
    }
}
