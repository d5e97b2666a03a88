//! References of artifacts: `registry/repository:tag@sha256:…`.
//!
//! Our own parser: that of `oci-spec` accepts names without a registry as Docker Hub's, which would make a typing error
//! a pull from elsewhere.

use std::{fmt, net::IpAddr, str::FromStr};

use sha2::Sha256;

use crate::kube::hash::encode_hex;

/// A SHA-256 digest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(String);

impl Digest {
    /// The digest of these bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(format!("sha256:{}", encode_hex(&Sha256::digest(bytes))))
    }

    /// Parses `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let digits = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (hex.len() == 64 && digits).then(|| Self(text.to_owned()))
    }

    /// The hexadecimal digits.
    pub fn hex(&self) -> &str {
        &self.0["sha256:".len()..]
    }

    /// The digest with its prefix `sha256:`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A reference of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OciReference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// The error of an invalid reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no reference: {why} (REGISTRY/REPOSITORY:TAG@sha256:…, ghcr.io/example/plugin:1.0.0 say)"
)]
pub struct ReferenceError {
    text: String,
    why: &'static str,
}

impl FromStr for OciReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let fail = |why| ReferenceError {
            // The text may contain a password.
            text: if text.contains("://") || text.matches('@').count() > 1 {
                "…".into()
            } else {
                text.chars().take(256).collect()
            },
            why,
        };
        let rest = text.strip_prefix("oci://").unwrap_or(text);
        if rest.contains("://") {
            return Err(fail("it is a URL; leave the scheme out"));
        }
        let (rest, digest) = match rest.split_once('@') {
            None => (rest, None),
            Some((rest, digest)) => {
                let digest = Digest::parse(digest)
                    .ok_or_else(|| fail("what follows @ is not sha256: and 64 digits (0-9, a-f)"))?;
                (rest, Some(digest))
            }
        };
        let Some((registry, path)) = rest.split_once('/') else {
            return Err(fail("it names no registry"));
        };
        let (repository, tag) = match path.split_once(':') {
            None => (path, None),
            Some((repository, tag)) => (repository, Some(tag)),
        };
        if !(registry.contains(['.', ':']) || registry == "localhost") {
            return Err(fail(
                "it names no registry: what comes before the first / has no dot",
            ));
        }
        if !is_authority(registry) {
            return Err(fail("its registry is no host name"));
        }
        if !is_repository(repository) {
            return Err(fail(
                "its repository has other characters than a-z, 0-9, and . _ - between them",
            ));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(fail(
                "its tag has other characters than A-Z, a-z, 0-9, _ . -, or more than 128",
            ));
        }
        Ok(Self {
            registry: match registry {
                "index.docker.io" | "registry-1.docker.io" => "docker.io".into(),
                registry => registry.into(),
            },
            repository: repository.into(),
            tag: tag.map(Into::into),
            digest,
        })
    }
}

/// The text is a host with an optional port, and nothing that changes the URL.
fn is_authority(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    text.len() <= 255
        && text.bytes().all(allowed)
        && reqwest::Url::parse(&format!("https://{text}/"))
            .is_ok_and(|url| url.has_host() && url.path() == "/" && url.username().is_empty())
}

fn is_repository(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= 255
        && text.split('/').all(|part| {
            let bytes = part.as_bytes();
            bytes.iter().all(|&b| word(b) || b"._-".contains(&b))
                && bytes.first().is_some_and(|&b| word(b))
                && bytes.last().is_some_and(|&b| word(b))
                && !part.contains("..")
        })
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| word(b) || b == b'.' || b == b'-')
        && text.bytes().next().is_some_and(word)
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.full_name())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl OciReference {
    /// The registry: a host with an optional port.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Registry and repository.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The tag.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, which takes precedence over the tag.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The reference with this digest.
    #[must_use]
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self {
            digest: Some(digest),
            ..self.clone()
        }
    }

    /// The registry is on this machine.
    pub fn is_loopback(&self) -> bool {
        let Ok(url) = reqwest::Url::parse(&format!("http://{}/", self.registry)) else {
            return false;
        };
        is_loopback(&url)
    }
}

/// The URL leads to this machine.
pub(super) fn is_loopback(url: &reqwest::Url) -> bool {
    url.host_str().is_some_and(|host| {
        let ip: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn reference_survives_round_trip() {
        for (text, registry, repository, tag, pinned) in [
            ("ghcr.io/a/b:1.0", "ghcr.io", "a/b", Some("1.0"), false),
            ("localhost/a", "localhost", "a", None, false),
            ("127.0.0.1:5000/a__b", "127.0.0.1:5000", "a__b", None, false),
            ("[::1]:5000/a", "[::1]:5000", "a", None, false),
            (&format!("r.io/a:t@sha256:{HEX}"), "r.io", "a", Some("t"), true),
            (&format!("r.io/a@sha256:{HEX}"), "r.io", "a", None, true),
        ] {
            let reference: OciReference = text.parse().expect(text);
            assert_eq!(reference.to_string(), text);
            assert_eq!(
                (reference.registry(), reference.repository()),
                (registry, repository)
            );
            assert_eq!((reference.tag(), reference.digest().is_some()), (tag, pinned));
        }
        let docker: OciReference = "oci://index.docker.io/library/a".parse().expect("docker's");
        assert_eq!(docker.to_string(), "docker.io/library/a");
        assert_eq!(Digest::of_bytes(b"").hex(), HEX);
    }

    #[test]
    fn invalid_reference_error_names_cause() {
        for (text, why) in [
            ("plugin:1", "names no registry"),
            ("example/plugin", "has no dot"),
            ("https://ghcr.io/a", "leave the scheme out"),
            ("ghcr.io/A", "its repository"),
            ("ghcr.io/a/../b", "its repository"),
            ("ghcr.io/", "its repository"),
            ("ghcr.io/a:", "its tag"),
            ("ghcr.io/a:b/c", "its tag"),
            ("ghcr.io/a@sha512:00", "what follows @"),
            ("ghcr.io/a@sha256:E3B0", "what follows @"),
            ("a.io:x/y", "no host name"),
            ("a b.io/y", "no host name"),
        ] {
            let error = text.parse::<OciReference>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let secret = "https://me:hunter2@ghcr.io/a"
            .parse::<OciReference>()
            .expect_err("a URL");
        assert!(!secret.to_string().contains("hunter2"), "{secret}");
    }

    #[test]
    fn loopback_registry_is_recognized() {
        for (text, loopback) in [
            ("localhost:1/a", true),
            ("127.9.9.9/a", true),
            ("[::1]:2/a", true),
            ("10.0.0.1/a", false),
            ("localhost.example.com/a", false),
        ] {
            let reference: OciReference = text.parse().expect(text);
            assert_eq!(reference.is_loopback(), loopback, "{text}");
        }
    }

    proptest! {
        /// Arbitrary text never panics, and a reference survives a round trip.
        #[test]
        fn any_text(text in "[a-z0-9.:/@\\[\\]_ A-Z-]{0,40}|.{0,20}", pinned: bool) {
            let text = if pinned { format!("{text}@sha256:{HEX}") } else { text };
            if let Ok(reference) = text.parse::<OciReference>() {
                prop_assert_eq!(reference.to_string().parse::<OciReference>(), Ok(reference.clone()));
                let _ = reference.is_loopback();
            }
        }
    }
}
