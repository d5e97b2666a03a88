//! The methods, paths and headers that a component may use in a request.

use super::SendError;

/// Request headers that the host sets, or that concern the connection.
const FORBIDDEN_HEADERS: [&str; 24] = [
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
    // Some servers take method or path from these headers: the server would act on something else than was granted.
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    // A part of a response, and one of another encoding or character set, cannot be searched for secrets.
    "accept-charset",
    "accept-encoding",
    "if-range",
    "range",
];

/// Response headers that are withheld from components: sessions and challenges.
const WITHHELD_HEADERS: [&str; 5] = [
    "set-cookie",
    "set-cookie2",
    "www-authenticate",
    "proxy-authenticate",
    "authentication-info",
];

/// Checks that a path stays below the upstream's URL: no other origin, no `..`, and no character that ends the line.
pub fn check_path(path_and_query: &str) -> Result<(), SendError> {
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
    // As decoded by a server that decodes before it splits.
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

/// Checks a method. It must be in upper case, because grants are; CONNECT does not address an upstream, and TRACE would
/// return the credentials.
pub fn check_method(method: &str) -> Result<(), SendError> {
    let token = !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
    if !token || matches!(method, "CONNECT" | "TRACE") {
        return Err(SendError::Invalid(format!("the method {method:?} can't be sent")));
    }
    Ok(())
}

/// Checks that a component may set a header.
pub fn check_header(name: &str, value: &str) -> Result<(), SendError> {
    let lower = name.to_ascii_lowercase();
    if FORBIDDEN_HEADERS.contains(&&*lower)
        || lower.starts_with("proxy-")
        || lower.starts_with("x-forwarded-")
    {
        return Err(SendError::Invalid(format!(
            "the header {name:?} can't be sent: the host sets it, or must not send it"
        )));
    }
    if value.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
        return Err(SendError::Invalid(format!(
            "the value of the header {name:?} has a control character"
        )));
    }
    Ok(())
}

/// A component may see this header of a response.
pub fn is_visible_header(name: &str) -> bool {
    !WITHHELD_HEADERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_outside_upstream_is_refused() {
        for good in ["/", "/api/v1/teams/a%20b?x=../y", "/a..b"] {
            assert!(check_path(good).is_ok(), "{good}");
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
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn method_unless_upper_case_is_refused() {
        for good in ["GET", "PUT", "VERSION-CONTROL"] {
            assert!(check_method(good).is_ok(), "{good}");
        }
        for bad in ["", "get", "TRACE", "CONNECT", "GET ", "GET / HTTP/1.1\r\nX: y"] {
            assert!(check_method(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn header_of_host_is_refused() {
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
            "Range",
            "Accept-Encoding",
        ] {
            assert!(check_header(bad, "x").is_err(), "{bad}");
        }
        assert!(check_header("X-Concourse-Config-Version", "3").is_ok());
        assert!(check_header("X-A", "a\r\nAuthorization: b").is_err());
    }

    /// Accepted heads are one line, stay below the upstream however a server decodes them, and are valid for the HTTP
    /// client.
    #[test]
    fn arbitrary_heads_are_safe_or_refused() {
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
                if check_path(&text).is_ok() {
                    let base = reqwest::Url::parse("http://up.example/base").expect("a URL");
                    let whole = reqwest::Url::parse(&format!("{base}{text}")).expect("a URL");
                    prop_assert_eq!(whole.host_str(), Some("up.example"), "{}", text);
                    prop_assert!(whole.path().starts_with("/base/"), "{} is {}", text, whole.path());
                    prop_assert!(!whole.as_str().contains(['\r', '\n', ' ']), "{}", whole);
                }
                if check_header(&name, &value).is_ok() {
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
