//! The methods, paths and headers that a component may use in a request.

use percent_encoding::percent_decode_str;

use super::SendError;

/// Request headers that the host sets, that concern the connection, or that a server may trust as those of a proxy.
/// Compared with [`normalize_header_name`].
const FORBIDDEN_HEADERS: [&str; 32] = [
    "authorization",
    "cookie",
    "host",
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    // A part of a response, and one of another encoding or character set, cannot be searched for secrets.
    "accept-charset",
    "accept-encoding",
    "if-range",
    "range",
    // Some servers take method or path from these headers: the server would act on something else than was granted.
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-uri",
    "x-rewrite-url",
    // Some servers take the client's address or user from these headers, which are for the proxy in front of them.
    "cf-connecting-ip",
    "client-ip",
    "forwarded",
    "remote-addr",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-host",
    "x-real-ip",
];

/// Prefixes of forbidden request headers.
const FORBIDDEN_HEADER_PREFIXES: [&str; 11] = [
    "impersonate-",
    "proxy-",
    "remote-",
    "ssl-client-",
    "x-auth-request-",
    "x-authenticated-",
    "x-forwarded-",
    "x-original-forwarded-",
    "x-remote-",
    "x-ssl-client-",
    "x-webauth-",
];

/// Response headers that are withheld from components: sessions and challenges.
const WITHHELD_HEADERS: [&str; 5] = [
    "set-cookie",
    "set-cookie2",
    "www-authenticate",
    "proxy-authenticate",
    "authentication-info",
];

/// Checks that a path stays below the upstream's URL and below a granted prefix: no other origin, no dot segment in any
/// notation that a server may decode, and no character that ends the line.
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
    let path = decode_path(path_and_query.split('?').next().unwrap_or_default());
    if path.bytes().any(|b| b.is_ascii_control()) {
        return wrong("has an escaped control character");
    }
    if path.split(['/', '\\']).any(is_dot_segment) {
        return wrong("has a `.` or `..` segment");
    }
    Ok(())
}

/// Percent-decodes a path until nothing is left to decode: a proxy and the server behind it may each decode once.
fn decode_path(path: &str) -> String {
    let mut decoded = path.to_owned();
    loop {
        let next = percent_decode_str(&decoded).decode_utf8_lossy();
        if next == decoded {
            return decoded;
        }
        decoded = next.into_owned();
    }
}

/// A segment that a server takes for `.` or `..`: servlet containers cut the parameters at `;` first, and Windows the
/// blanks at the end.
fn is_dot_segment(segment: &str) -> bool {
    let name = segment.split(';').next().unwrap_or_default();
    matches!(name.trim(), "." | "..")
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
    let normalized = normalize_header_name(name);
    let has_prefix = |prefix: &&str| normalized.starts_with(*prefix);
    if FORBIDDEN_HEADERS.contains(&&*normalized) || FORBIDDEN_HEADER_PREFIXES.iter().any(has_prefix) {
        return Err(SendError::Invalid(format!(
            "the header {name:?} can't be sent: the host sets it, or a server may trust it as a proxy's"
        )));
    }
    if value.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
        return Err(SendError::Invalid(format!(
            "the value of the header {name:?} has a control character"
        )));
    }
    Ok(())
}

/// The name as CGI, WSGI, Rack and PHP see it: they make every character but letters and digits the same one, so that
/// `X_Forwarded_For` is `X-Forwarded-For`.
pub fn normalize_header_name(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect()
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
        for good in [
            "/",
            "/api/v1/teams/a%20b?x=../y",
            "/a..b",
            "/a/...",
            "/a;v=1/b",
            "/a%2Fb",
            "/a%252Fb",
            "/100%25",
            "/a%ff",
        ] {
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
            "/a/..;/b",
            "/a/.;x=y/b",
            "/a/%2e%2e;/b",
            "/a/..%3b/b",
            "/a/%252e%252e%252fb",
            "/a/%25252E./b",
            "/a/..%255cb",
            "/a/..%20/b",
            "/a/..%00/b",
            "/a%0d%0ab",
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
            "X_HTTP_METHOD_OVERRIDE",
            "X_Original_URL",
            "X_Forwarded_For",
            "x-forwarded_host",
            "Transfer_Encoding",
            "Impersonate-User",
            "Impersonate-Extra-x",
            "Remote-User",
            "REMOTE_USER",
            "X-Remote-Group",
            "X-Real-IP",
            "X.Real.IP",
        ] {
            assert!(check_header(bad, "x").is_err(), "{bad}");
        }
        for good in [
            "X-Concourse-Config-Version",
            "Accept",
            "If-None-Match",
            "Content-Type",
            "X-A_b",
        ] {
            assert!(check_header(good, "3").is_ok(), "{good}");
        }
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

    /// The depths below the root that servers may find for a path: each decodes it some number of times before it splits
    /// at slashes, and may cut parameters and take backslashes for slashes.
    fn lowest_depths(path: &str) -> Vec<i32> {
        let mut depths = Vec::new();
        let mut decoded = path.as_bytes().to_vec();
        for _ in 0..5 {
            for (cuts, backslash) in [(false, false), (true, false), (false, true), (true, true)] {
                let (mut depth, mut lowest) = (0, 0);
                for segment in decoded.split(|b| *b == b'/' || (backslash && *b == b'\\')) {
                    let end = segment.iter().position(|b| cuts && *b == b';');
                    match &segment[..end.unwrap_or(segment.len())] {
                        b"" | b"." => {}
                        b".." => depth -= 1,
                        _ => depth += 1,
                    }
                    lowest = lowest.min(depth);
                }
                depths.push(lowest);
            }
            decoded = percent_encoding::percent_decode(&decoded).collect();
        }
        depths
    }

    /// No server leaves the granted prefix for an accepted path, however often it decodes and wherever it cuts.
    #[test]
    fn accepted_path_stays_below_prefix_for_every_server() {
        use proptest::prelude::*;
        let piece = prop::sample::select(vec![
            "/", "a", ".", "..", ";", "%3b", "%", "25", "2e", "2E", "2f", "5C", "%2e", "%2F", "%5c", "%25",
            "%20", "%00",
        ]);
        let paths = prop::collection::vec(piece, 0..12).prop_map(|p| p.concat());
        crate::fuzz::fuzz("http paths", 20_000, paths, |path| {
            if check_path(&format!("/granted/{path}")).is_ok() {
                for depth in lowest_depths(&path) {
                    prop_assert!(depth >= 0, "{}", path);
                }
            }
            Ok(())
        });
    }

    /// No accepted header becomes a CGI variable that a server trusts.
    #[test]
    fn accepted_header_is_no_trusted_variable() {
        use proptest::prelude::*;
        let trusted = [
            "HTTP_HOST",
            "HTTP_COOKIE",
            "HTTP_X_FORWARDED_FOR",
            "HTTP_X_FORWARDED_PROTO",
            "HTTP_X_REAL_IP",
            "HTTP_PROXY_AUTHORIZATION",
            "HTTP_IMPERSONATE_USER",
            "HTTP_REMOTE_USER",
            "HTTP_X_REMOTE_USER",
            "HTTP_X_HTTP_METHOD_OVERRIDE",
            "HTTP_X_ORIGINAL_URL",
        ];
        let separators =
            prop::collection::vec(prop::sample::select(vec!['-', '_', '.', '~', '!', '\'', '*']), 4);
        let cases = (prop::sample::select(trusted.to_vec()), separators, any::<u32>());
        crate::fuzz::fuzz(
            "http header names",
            5_000,
            cases,
            |(variable, separators, case)| {
                let mut separators = separators.into_iter().cycle();
                let name: String = variable["HTTP_".len()..]
                    .chars()
                    .enumerate()
                    .map(|(i, c)| match c {
                        '_' => separators.next().unwrap_or('-'),
                        c if case >> (i % 32) & 1 == 0 => c.to_ascii_lowercase(),
                        c => c,
                    })
                    .collect();
                prop_assert!(check_header(&name, "x").is_err(), "{} becomes {}", name, variable);
                Ok(())
            },
        );
    }
}
