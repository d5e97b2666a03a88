//! Hashes as hexadecimal text and as numbers.

use std::hash::{DefaultHasher, Hasher};

/// Encodes bytes as lower-case hexadecimal digits.
pub fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Computes the 64-bit hash of everything that `hash` feeds into the hasher. Stable within one process only.
pub fn hash_to_u64(hash: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash(&mut hasher);
    hasher.finish()
}
