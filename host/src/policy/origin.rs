//! Origins (RFC 6454) that the host sends Secrets to, and patterns of them in grants and annotations.

use std::{borrow::Cow, fmt, str::FromStr};

use reqwest::Url;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Schemes of Upstreams, with their default ports and whether TLS protects the connection.
const SCHEMES: [(&str, u16, bool); 4] = [
    ("https", 443, true),
    ("amqps", 5671, true),
    ("http", 80, false),
    ("amqp", 5672, false),
];

/// The origin of a URL: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    scheme: &'static str,
    host: String,
    port: u16,
}

impl Origin {
    /// The origin of the URL of an Upstream; `None` for any other URL.
    pub fn of_url(url: &str) -> Option<Self> {
        let url = Url::parse(url).ok()?;
        let (scheme, default_port, _) = find_scheme(url.scheme())?;
        let host = url.host_str()?.to_ascii_lowercase();
        Some(Self {
            scheme,
            host,
            port: url.port().unwrap_or(default_port),
        })
    }

    /// The origin of a connection whose server is not verified: as with a scheme without TLS, anyone on the way can read
    /// what is sent.
    pub fn unverified(self) -> Self {
        let scheme = match self.scheme {
            "https" => "http",
            "amqps" => "amqp",
            other => other,
        };
        Self { scheme, ..self }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        let is_default = find_scheme(self.scheme).is_some_and(|(_, port, _)| port == self.port);
        if is_default {
            return Ok(());
        }
        write!(f, ":{}", self.port)
    }
}

fn find_scheme(name: &str) -> Option<(&'static str, u16, bool)> {
    SCHEMES.into_iter().find(|(scheme, ..)| *scheme == name)
}

/// A pattern of origins: `https://ci.example.com`, `https://*.example.com`, `http://127.0.0.1:*`, or `*`, which matches
/// every origin with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginPattern {
    text: String,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    AnyWithTls,
    Origin {
        scheme: &'static str,
        /// A name, `*`, or `*.` and a domain.
        host: String,
        /// `None` for any port.
        port: Option<u16>,
    },
}

impl OriginPattern {
    /// The pattern matches an origin.
    pub fn matches(&self, origin: &Origin) -> bool {
        match &self.rule {
            Rule::AnyWithTls => has_tls(origin.scheme),
            Rule::Origin { scheme, host, port } => {
                *scheme == origin.scheme
                    && matches_host(host, &origin.host)
                    && port.is_none_or(|port| port == origin.port)
            }
        }
    }

    /// Every origin that the other pattern matches is matched by this one.
    pub fn covers(&self, other: &Self) -> bool {
        match (&self.rule, &other.rule) {
            (Rule::AnyWithTls, Rule::AnyWithTls) => true,
            (Rule::AnyWithTls, Rule::Origin { scheme, .. }) => has_tls(scheme),
            (Rule::Origin { .. }, Rule::AnyWithTls) => false,
            (
                Rule::Origin { scheme, host, port },
                Rule::Origin {
                    scheme: other_scheme,
                    host: other_host,
                    port: other_port,
                },
            ) => {
                scheme == other_scheme
                    && matches_host(host, other_host)
                    && (port.is_none() || port == other_port)
            }
        }
    }

    /// Parses a comma-separated list, as in an annotation.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(str::parse).collect()
    }
}

fn has_tls(scheme: &str) -> bool {
    find_scheme(scheme).is_some_and(|(.., tls)| tls)
}

fn matches_host(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
        None => pattern == host,
    }
}

impl FromStr for OriginPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rule = parse_rule(text).ok_or_else(|| {
            format!("{text:?} is no origin: it is like https://ci.example.com, https://*.example.com, http://127.0.0.1:* or *")
        })?;
        Ok(Self {
            text: text.into(),
            rule,
        })
    }
}

fn parse_rule(text: &str) -> Option<Rule> {
    if text == "*" {
        return Some(Rule::AnyWithTls);
    }
    let (scheme, rest) = text.split_once("://")?;
    let (scheme, default_port, _) = find_scheme(scheme)?;
    // The colons of an IPv6 address are within brackets.
    let port_at = rest.rfind(':').filter(|at| !rest[*at..].contains(']'));
    let (host, port) = match port_at.map(|at| (&rest[..at], &rest[at + 1..])) {
        None => (rest, Some(default_port)),
        Some((host, "*")) => (host, None),
        Some((host, port)) => (host, Some(port.parse().ok()?)),
    };
    let host = host.to_ascii_lowercase();
    let name = match host.strip_prefix('*') {
        Some("") => "x",
        Some(suffix) => suffix.strip_prefix('.')?,
        None => &host,
    };
    // The host of a URL in its normal form, to which that of an Upstream is compared.
    let normal = Url::parse(&format!("https://{name}/")).ok()?;
    let is_normal = normal.host_str() == Some(name) && !name.contains('*');
    (is_normal && normal.port().is_none() && normal.username().is_empty()).then_some(Rule::Origin {
        scheme,
        host,
        port,
    })
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for OriginPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl Serialize for OriginPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl JsonSchema for OriginPattern {
    fn schema_name() -> Cow<'static, str> {
        "OriginPattern".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> OriginPattern {
        text.parse().expect("parses")
    }

    #[test]
    fn pattern_matches_scheme_host_and_port() {
        for (text, matching, others) in [
            (
                "https://ci.example.com",
                &["https://ci.example.com/a", "https://CI.example.com:443"][..],
                &[
                    "http://ci.example.com",
                    "https://ci.example.com:8443",
                    "https://ci.example.com.attacker.dev",
                    "https://ci.example.com@attacker.dev",
                    "https://xci.example.com",
                ][..],
            ),
            (
                "https://*.example.com",
                &["https://a.example.com", "https://a.b.example.com"],
                &[
                    "https://example.com",
                    "https://aexample.com",
                    "https://a.example.com:1",
                ],
            ),
            (
                "http://127.0.0.1:*",
                &[
                    "http://127.0.0.1:80",
                    "http://127.0.0.1:8080/x",
                    "http://0x7f.1:1",
                ],
                &["https://127.0.0.1", "http://127.0.0.2"],
            ),
            ("http://[::1]:8080", &["http://[0:0::1]:8080"], &["http://[::1]"]),
            (
                "*",
                &["https://a:1", "amqps://b"],
                &["http://a", "amqp://a", "ftp://a", "no URL"],
            ),
            ("amqp://*:*", &["amqp://a", "amqp://A:1"], &["amqps://a"]),
        ] {
            let allows = |url: &str| Origin::of_url(url).is_some_and(|o| pattern(text).matches(&o));
            for url in matching {
                assert!(allows(url), "{text} {url}");
            }
            for url in others {
                assert!(!allows(url), "{text} {url}");
            }
        }
    }

    #[test]
    fn unverified_origin_needs_a_pattern_without_tls() {
        let origin = Origin::of_url("https://ci.example.com")
            .expect("an origin")
            .unverified();
        assert_eq!(origin.to_string(), "http://ci.example.com:443");
        assert!(!pattern("*").matches(&origin) && !pattern("https://ci.example.com").matches(&origin));
        assert!(pattern("http://ci.example.com:*").matches(&origin));
    }

    #[test]
    fn text_that_is_no_pattern_is_refused() {
        for text in [
            "",
            "ci.example.com",
            "https://",
            "https://a/b",
            "https://a?b",
            "https://u@a",
            "https://a*",
            "https://*a.dev",
            "https://a.*",
            "https://**",
            "ftp://a",
            "https://a:x",
            "https://a:1:2",
            "https://0x7f.1",
            "https:// a",
            "https://*.",
            "https://ä.dev",
        ] {
            assert!(text.parse::<OriginPattern>().is_err(), "{text}");
        }
        let list = OriginPattern::parse_list("https://a, https://*.b:*,").expect("parses");
        assert_eq!(list, [pattern("https://a"), pattern("https://*.b:*")]);
        assert!(OriginPattern::parse_list("https://a b").is_err());
    }

    proptest! {
        /// What a covered pattern matches, the covering one matches.
        #[test]
        fn covering_pattern_matches_all_of_the_covered(
            patterns in prop::collection::vec("(\\*|(https|http|amqp)://(\\*|(\\*\\.)?(a\\.)?b\\.c)(:(\\*|1))?)", 2),
            url in "(https|http|amqp)://(a\\.)?b\\.c(:1)?",
        ) {
            let [one, other] = [&patterns[0], &patterns[1]].map(|text| pattern(text));
            let origin = Origin::of_url(&url).expect("an origin");
            if one.covers(&other) && other.matches(&origin) {
                prop_assert!(one.matches(&origin));
            }
            prop_assert!(one.covers(&one));
        }
    }
}
