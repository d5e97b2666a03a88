//! Signatures of requests for artifacts. Each Step has a token of its own, derived from the key of the namespace and the UID
//! of the Step. The token itself is never sent: an address may belong to another pod by now, which must not learn it.

use std::{fmt::Write, fs, io, time::SystemTime};

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Name of the scheme in the header `Authorization`.
const SCHEME: &str = "Ostler-HMAC-SHA256 ";

/// Difference of the clocks of two nodes that is accepted, and the life time of a signature that was seen on the way.
const MAX_SKEW_SECONDS: u64 = 300;

/// Size of the shortest key: that of the digest.
const MIN_KEY_BYTES: usize = 32;

/// The token of one Step.
pub struct Token([u8; 32]);

impl Token {
    /// Derives the token of a Step.
    pub fn derive(key: &[u8], step: &str) -> Self {
        Self(sign(key, &["step", step]))
    }

    /// The value of `Authorization` for a request for this path.
    pub fn authorize(&self, path: &str, now: u64) -> String {
        let time = now.to_string();
        let mut text = format!("{SCHEME}{time}:");
        for byte in sign(&self.0, &["GET", path, &time]) {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Returns whether a value of `Authorization` is signed with this token for this path, and is recent.
    pub fn verify(&self, path: &str, value: &str, now: u64) -> bool {
        let parts = value.strip_prefix(SCHEME).and_then(|rest| rest.split_once(':'));
        let Some((time, signature)) = parts else {
            return false;
        };
        let is_recent = time
            .parse::<u64>()
            .is_ok_and(|time| time.abs_diff(now) <= MAX_SKEW_SECONDS);
        let Some(signature) = decode_hex(signature) else {
            return false;
        };
        is_recent
            && build_mac(&self.0, &["GET", path, time])
                .verify_slice(&signature)
                .is_ok()
    }
}

/// Reads the key, and refuses one that could be guessed.
pub fn read_key(path: &str) -> io::Result<Vec<u8>> {
    let key = fs::read(path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    if key.len() < MIN_KEY_BYTES {
        let message = format!(
            "{path}: the key has {} bytes and needs {MIN_KEY_BYTES}",
            key.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(key)
}

/// Seconds since the Unix epoch.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

fn build_mac(key: &[u8], parts: &[&str]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        // With its length each part is unambiguous, whatever it contains.
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part.as_bytes());
    }
    mac
}

fn sign(key: &[u8], parts: &[&str]) -> [u8; 32] {
    build_mac(key, parts).finalize().into_bytes().into()
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    (0..64)
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

    #[test]
    fn signature_is_accepted_for_its_step_path_and_time_only() {
        let token = Token::derive(KEY, "uid-1");
        let value = token.authorize("/v1/artifacts/a", 1000);
        assert!(token.verify("/v1/artifacts/a", &value, 1000));
        assert!(token.verify("/v1/artifacts/a", &value, 1300));
        assert!(!token.verify("/v1/artifacts/a", &value, 1301));
        assert!(!token.verify("/v1/artifacts/b", &value, 1000));
        assert!(!Token::derive(KEY, "uid-2").verify("/v1/artifacts/a", &value, 1000));
        assert!(!Token::derive(b"another key", "uid-1").verify("/v1/artifacts/a", &value, 1000));
        // The time is signed, too.
        assert!(!token.verify("/v1/artifacts/a", &value.replace("1000:", "1001:"), 1000));
    }

    #[test]
    fn malformed_signature_is_refused() {
        let token = Token::derive(KEY, "uid-1");
        let value = token.authorize("/", 0);
        for wrong in [
            "",
            SCHEME,
            "Bearer x",
            "Ostler-HMAC-SHA256 0:",
            &value[..value.len() - 1],
            &value[1..],
        ] {
            assert!(!token.verify("/", wrong, 0), "{wrong}");
        }
        assert!(!token.verify("/", &format!("{SCHEME}0:{}", "ä".repeat(32)), 0));
    }
}
