//! Challenges of OCI registries (`WWW-Authenticate`), which name the token server.

use http::{HeaderMap, header};
use http_auth::parser::ChallengeParser;

/// A challenge of a registry.
#[derive(Debug, PartialEq, Eq)]
pub enum Challenge {
    /// HTTP Basic authentication.
    Basic,
    /// A token of a token server.
    Bearer {
        /// URL of the token server.
        realm: String,
        /// The service to request a token for.
        service: Option<String>,
        /// The scope to request a token for.
        scope: Option<String>,
    },
    /// No challenge, or one that registries do not have.
    Unknown,
}

impl Challenge {
    /// The challenge of a response. A token is preferred to HTTP Basic.
    pub fn parse(headers: &HeaderMap) -> Self {
        let values = headers.get_all(header::WWW_AUTHENTICATE).iter();
        let mut found = Self::Unknown;
        for value in values.filter_map(|v| v.to_str().ok()) {
            for challenge in ChallengeParser::new(value).map_while(Result::ok) {
                let parameter = |name: &str| {
                    let mut parameters = challenge.params.iter();
                    parameters
                        .find(|(n, _)| n.eq_ignore_ascii_case(name))
                        .map(|(_, value)| value.to_unescaped())
                };
                if challenge.scheme.eq_ignore_ascii_case("bearer")
                    && let Some(realm) = parameter("realm")
                {
                    return Self::Bearer {
                        realm,
                        service: parameter("service"),
                        scope: parameter("scope"),
                    };
                }
                if challenge.scheme.eq_ignore_ascii_case("basic") {
                    found = Self::Basic;
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_of_each_scheme_is_parsed() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::WWW_AUTHENTICATE, value.parse().expect("a header"));
            }
            Challenge::parse(&headers)
        };
        assert_eq!(of(&["Basic realm=\"basic-realm\""]), Challenge::Basic);
        assert_eq!(of(&[]), Challenge::Unknown);
        assert_eq!(of(&["Negotiate"]), Challenge::Unknown);
        let bearer = Challenge::Bearer {
            realm: "https://auth.example/token".into(),
            service: Some("r".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        let text =
            r#"Bearer realm="https://auth.example/token",service="r",scope="repository:a/b:pull,push""#;
        assert_eq!(of(&[text]), bearer);
        assert_eq!(of(&["Basic realm=x", text]), bearer);
        assert_eq!(of(&[r#"Bearer service="r""#]), Challenge::Unknown);
    }
}
