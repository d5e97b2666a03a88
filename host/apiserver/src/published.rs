//! Files of the program with data that the real server publishes, as JSON that zlib has compressed.

use serde::de::DeserializeOwned;

/// The data of a file. It is a part of the program, and its tests read all of it: it has no error that a user could meet.
pub fn read_compressed<T: DeserializeOwned + Default>(file: &[u8]) -> T {
    let json = miniz_oxide::inflate::decompress_to_vec_zlib(file).unwrap_or_default();
    serde_json::from_slice(&json).unwrap_or_default()
}
