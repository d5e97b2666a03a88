//! What a component may say in a request.

use super::SendError;

/// Set by the host, or about the connection: not a component's business.
const FORBIDDEN: [&str; 20] = [
    "authorization",
    "cookie",
    "host",
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "forwarded",
    // Some servers take these for the method and the path: what was granted would not be what is asked.
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
];

/// Not given to a component: sessions and challenges.
const WITHHELD: [&str; 5] = [
    "set-cookie",
    "set-cookie2",
    "www-authenticate",
    "proxy-authenticate",
    "authentication-info",
];

/// The path stays below the upstream's URL: no other origin, no climbing, nothing that ends a line.
pub fn path(path_and_query: &str) -> Result<(), SendError> {
    let wrong = |what: &str| {
        Err(SendError::Invalid(format!(
            "path-and-query {path_and_query:?} {what}"
        )))
    };
    if !path_and_query.starts_with('/') || path_and_query.starts_with("//") {
        return wrong("must start with one `/`");
    }
    if path_and_query
        .bytes()
        .any(|b| b <= b' ' || b == 0x7f || b == b'\\' || b == b'#')
    {
        return wrong("has a character that must be escaped");
    }
    let path = path_and_query.split('?').next().unwrap_or_default();
    // As a server may read it that decodes before it splits.
    let decoded = path
        .to_ascii_lowercase()
        .replace("%2e", ".")
        .replace("%2f", "/")
        .replace("%5c", "/");
    if decoded
        .split('/')
        .any(|segment| segment == "." || segment == "..")
    {
        return wrong("has a `.` or `..` segment");
    }
    Ok(())
}

/// A method in upper case: `get` would not be what was granted. CONNECT and TRACE are no requests to an upstream, and
/// TRACE gives back the credentials.
pub fn method(method: &str) -> Result<(), SendError> {
    let token = !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
    match token && !matches!(method, "CONNECT" | "TRACE") {
        true => Ok(()),
        false => Err(SendError::Invalid(format!("the method {method:?} can't be sent"))),
    }
}

/// Whether a component may set a header.
pub fn header(name: &str, value: &str) -> Result<(), SendError> {
    let lower = name.to_ascii_lowercase();
    if FORBIDDEN.contains(&&*lower) || lower.starts_with("proxy-") || lower.starts_with("x-forwarded-") {
        return Err(SendError::Invalid(format!(
            "the header {name:?} is set by the host"
        )));
    }
    if value.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
        return Err(SendError::Invalid(format!(
            "the value of the header {name:?} has a control character"
        )));
    }
    Ok(())
}

/// Whether a component gets to see a header of the answer.
pub fn shown(name: &str) -> bool {
    !WITHHELD.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_upstream() {
        for good in ["/", "/api/v1/teams/a%20b?x=../y", "/a..b"] {
            assert!(path(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a",
            "//evil.example",
            "/a/../b",
            "/%2e%2E/b",
            "/a/./b",
            "/a b",
            "/a\r\nX: y",
            "/a#b",
            "/\\evil",
            "/a%2f..%2fb",
            "/a/..%2fb",
            "/%2e%2e%2fb",
            "/x%2f%2e%2e%2fb",
            "/a/..%5cb",
        ] {
            assert!(path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn methods() {
        for good in ["GET", "PUT", "VERSION-CONTROL"] {
            assert!(method(good).is_ok(), "{good}");
        }
        for bad in ["", "get", "TRACE", "CONNECT", "GET ", "GET / HTTP/1.1\r\nX: y"] {
            assert!(method(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn headers_of_the_host_are_refused() {
        for bad in [
            "Authorization",
            "COOKIE",
            "Host",
            "Proxy-Anything",
            "X-Forwarded-For",
            "Transfer-Encoding",
            "X-HTTP-Method-Override",
            "x-http-method",
            "X-Method-Override",
            "X-Original-URL",
            "X-Rewrite-URL",
        ] {
            assert!(header(bad, "x").is_err(), "{bad}");
        }
        assert!(header("X-Concourse-Config-Version", "3").is_ok());
        assert!(header("X-A", "a\r\nAuthorization: b").is_err());
    }

    /// Whatever is let through: one line, below the upstream, however a server decodes it; and it is a head that the
    /// HTTP client takes.
    #[test]
    fn heads() {
        use proptest::prelude::*;
        let piece = prop::sample::select(vec![
            "/", "a", ".", "..", "%2e", "%2E", "%2f", "%5c", "\\", "?", "#", " ", "\r\n", "@", ":", "//",
            "%25", "\0", "é", "http:",
        ]);
        let paths = prop::collection::vec(piece, 0..8).prop_map(|p| format!("/{}", p.concat()));
        let name = prop_oneof![
            prop::sample::select(vec![
                "Host",
                "x-a",
                "TE",
                "Transfer-Encoding",
                "proxy-x",
                "X-Forwarded-Host"
            ])
            .prop_map(String::from),
            "\\PC{0,6}",
        ];
        let value = prop_oneof!["[ -~]{0,8}", any::<String>(), Just("a\r\nX: y".to_owned())];
        crate::fuzz::fuzz(
            "http heads",
            20_000,
            (paths, name, value),
            |(text, name, value)| {
                if path(&text).is_ok() {
                    let base = reqwest::Url::parse("http://up.example/base").expect("a URL");
                    let whole = reqwest::Url::parse(&format!("{base}{text}")).expect("a URL");
                    prop_assert_eq!(whole.host_str(), Some("up.example"), "{}", text);
                    prop_assert!(whole.path().starts_with("/base/"), "{} is {}", text, whole.path());
                    prop_assert!(!whole.as_str().contains(['\r', '\n', ' ']), "{}", whole);
                }
                if header(&name, &value).is_ok() {
                    prop_assert!(!value.contains(['\r', '\n', '\0']), "{:?}", value);
                    prop_assert!(
                        !name.eq_ignore_ascii_case("host")
                            && !name.to_ascii_lowercase().starts_with("proxy-")
                    );
                }
                Ok(())
            },
        );
    }
}
