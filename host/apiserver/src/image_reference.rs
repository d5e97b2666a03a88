//! References to container images, by the grammar of the distribution project, which kubelets and API servers use.

use std::sync::LazyLock;

use regex::Regex;

/// Maximum length of a host and a path together.
const MAX_NAME_LENGTH: usize = 255;

/// A name with its host, a tag and a digest.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    let label = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let host = format!(r"(?:{label}(?:\.{label})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?");
    let component = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*";
    let digest = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}";
    let pattern = format!(
        r"^(?<name>{host}/{component}(?:/{component})*)(?::(?<tag>[0-9A-Za-z_][0-9A-Za-z_.-]{{0,127}}))?(?:@(?<digest>{digest}))?$"
    );
    Regex::new(&pattern).expect("a valid pattern")
});

/// Returns the tag of an image: `latest` without a tag and a digest. None without a tag, and for what is no reference.
pub fn find_image_tag(image: &str) -> Option<String> {
    // The identifier of an image, not a name.
    if is_hex(image, 64) {
        return None;
    }
    let is_host = |part: &str| {
        part.contains(['.', ':']) || part == "localhost" || part.contains(|c: char| c.is_ascii_uppercase())
    };
    let has_host = image.split_once('/').is_some_and(|(first, _)| is_host(first));
    let full = if has_host {
        image.to_owned()
    } else if image.contains('/') {
        format!("docker.io/{image}")
    } else {
        format!("docker.io/library/{image}")
    };
    let parts = REFERENCE.captures(&full)?;
    let digest = parts.name("digest").map(|digest| digest.as_str());
    if parts["name"].len() > MAX_NAME_LENGTH || !digest.is_none_or(is_digest) {
        return None;
    }
    let tag = parts.name("tag").map(|tag| tag.as_str());
    let tag = tag.or(digest.is_none().then_some("latest"));
    tag.map(str::to_owned)
}

/// Returns true for a digest of an algorithm that images use, in its length.
fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let digits = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    is_hex(hex, digits)
}

/// Returns true for this number of hexadecimal digits in lower case.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_is_that_of_a_reference_and_latest_without_one() {
        let digest = "b".repeat(64);
        for (image, tag) in [
            ("a", Some("latest")),
            ("a:latest", Some("latest")),
            ("a:1", Some("1")),
            ("a__b/c-d.e:1.0-x", Some("1.0-x")),
            ("registry:5000/a", Some("latest")),
            ("registry:5000/a:1", Some("1")),
            ("localhost/a:2", Some("2")),
            ("[::1]:5000/a:2", Some("2")),
            ("Host/a", Some("latest")),
            (&*format!("a@sha256:{digest}"), None),
            (&*format!("a:latest@sha256:{digest}"), Some("latest")),
            // No references.
            (&*digest, None),
            ("", None),
            ("A", None),
            ("a b", None),
            ("a/B:1", None),
            ("a..b:1", None),
            ("a:", None),
            ("a:latest@sha256:0123", None),
            (&*format!("a:latest@md5:{digest}"), None),
            ("https://a.example/b", None),
            (&*format!("{}:latest", "a".repeat(256)), None),
        ] {
            assert_eq!(find_image_tag(image).as_deref(), tag, "{image}");
        }
    }
}
