//! Compressed JSON of cached objects. Objects of one kind resemble each other, so each is compressed with Zstandard
//! (RFC 8878) against a dictionary that is learned per kind.

use std::{borrow::Cow, cell::RefCell, fmt, sync::Arc};

use zstd_safe::{CCtx, CompressionLevel, DCtx, ErrorCode, compress_bound, get_frame_content_size};

/// Compression level of Zstandard: the lowest that codes bytes by their frequency, which halves hexadecimal digits.
const COMPRESSION_LEVEL: CompressionLevel = 1;
/// The level that finds the same matches and leaves the other bytes as they are: the tables of their code take longer to read than
/// all the rest of a small object.
const UNCODED_LEVEL: CompressionLevel = -1;
/// Maximum size of a text that is compressed without the code first.
const MAX_UNCODED_TEXT_BYTES: usize = 1024;
/// Maximum size of what is kept of such a text. Of more, the code saves more than some 15 bytes.
const MAX_UNCODED_BYTES: usize = 160;
/// Maximum size of a dictionary in bytes: all of it is scanned for each object that is compressed.
const MAX_DICTIONARY_BYTES: usize = 4096;
/// Maximum number of bytes that one sample adds to a dictionary.
const MAX_SAMPLE_BYTES: usize = MAX_DICTIONARY_BYTES / 2;

thread_local! {
    /// Work memory of the compression. Allocating it takes longer than compressing an object.
    static COMPRESSOR: RefCell<CCtx<'static>> = RefCell::default();
    /// Work memory of the decompression.
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::default();
}

/// The dictionary of one kind: the concatenated text of sample objects.
#[derive(Clone, Debug, Default)]
pub struct Dictionary {
    bytes: Arc<Vec<u8>>,
    /// Number of objects offered as samples because they compressed badly.
    samples: u32,
}

impl Dictionary {
    /// Learns from an object that compressed badly. Only the samples whose number is a power of two are taken: the
    /// first few at once, later ones ever more rarely, because each change allocates a new dictionary while texts
    /// compressed before keep the old one alive.
    pub fn train(&mut self, sample: &[u8]) {
        self.samples = self.samples.saturating_add(1);
        if self.samples.is_power_of_two() {
            let new = &sample[..sample.len().min(MAX_SAMPLE_BYTES)];
            let old = &self.bytes[self.bytes.len().saturating_sub(MAX_DICTIONARY_BYTES - new.len())..];
            self.bytes = Arc::new([old, new].concat());
        }
    }
}

/// A JSON text, plain or compressed.
pub struct Json {
    /// The text, or a frame of Zstandard, which has the length of the text in its header.
    bytes: Box<[u8]>,
    /// The dictionary of a compressed text.
    dictionary: Option<Arc<Vec<u8>>>,
}

impl From<Vec<u8>> for Json {
    fn from(text: Vec<u8>) -> Self {
        Self {
            bytes: text.into(),
            dictionary: None,
        }
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl Json {
    /// The plain text. Decompresses on each call, so do not call it while holding a lock.
    pub fn text(&self) -> Cow<'_, [u8]> {
        let Some(dictionary) = &self.dictionary else {
            return Cow::Borrowed(&self.bytes);
        };
        let mut text = Vec::with_capacity(self.len());
        DECOMPRESSOR
            .with_borrow_mut(|context| context.decompress_using_dict(&mut text, &self.bytes, dictionary))
            .expect("was compressed here");
        Cow::Owned(text)
    }

    /// The plain text as an owned vector.
    pub fn to_vec(&self) -> Vec<u8> {
        self.text().into_owned()
    }

    /// Length of the plain text in bytes.
    pub fn len(&self) -> usize {
        if self.dictionary.is_none() {
            return self.bytes.len();
        }
        let len = get_frame_content_size(&self.bytes).ok().flatten();
        usize::try_from(len.expect("was compressed here")).expect("was a text in memory")
    }

    /// Returns true for an empty text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Compresses the text if that makes it smaller. Returns the plain text of an object that compressed to more than
    /// a third: the dictionary should be trained with it.
    pub fn compress(&mut self, dictionary: &Dictionary) -> Option<Box<[u8]>> {
        let text = &self.bytes;
        if self.dictionary.is_some() {
            return None;
        }
        let compressed = compress_text(text, dictionary).ok()?;
        let is_sample = compressed.len() > text.len() / 3;
        if compressed.len() >= text.len() {
            return is_sample.then(|| text.clone());
        }
        // A copy: the buffer, cut to this length, would leave a gap in the heap behind each of many small blocks.
        let text = std::mem::replace(&mut self.bytes, compressed.as_slice().into());
        self.dictionary = Some(dictionary.bytes.clone());
        is_sample.then_some(text)
    }
}

/// Compresses a text, at the level by which it is read fastest or takes least memory.
fn compress_text(text: &[u8], dictionary: &Dictionary) -> Result<Vec<u8>, ErrorCode> {
    let mut compressed = Vec::with_capacity(compress_bound(text.len()));
    COMPRESSOR.with_borrow_mut(|context| {
        if text.len() <= MAX_UNCODED_TEXT_BYTES {
            context.compress_using_dict(&mut compressed, text, &dictionary.bytes, UNCODED_LEVEL)?;
            if compressed.len() <= MAX_UNCODED_BYTES {
                return Ok(());
            }
        }
        let coded = context.compress_using_dict(&mut compressed, text, &dictionary.bytes, COMPRESSION_LEVEL);
        coded.map(drop)
    })?;
    Ok(compressed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compress_and_train(dictionary: &mut Dictionary, text: &str) -> Json {
        let mut json = Json::from(text.as_bytes().to_vec());
        if let Some(sample) = json.compress(dictionary) {
            dictionary.train(&sample);
        }
        assert_eq!((&*json.text(), json.len()), (text.as_bytes(), text.len()));
        json
    }

    fn config_map(i: usize, status: &str) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"config-{i}","namespace":"default","uid":"{:08x}-7a51-4c1e-9d3f-{:012x}","resourceVersion":"{}","creationTimestamp":"2026-01-01T10:{:02}:{:02}Z"}},"data":{{"mode":"fast"}}{status}}}"#,
            i.wrapping_mul(2_654_435_761) & 0xffff_ffff,
            i * 7919,
            i + 1000,
            i / 60 % 60,
            i % 60,
        )
    }

    #[test]
    fn similar_objects_compress_to_half_also_after_the_shape_changes() {
        let mut dictionary = Dictionary::default();
        let status = r#","status":{"conditions":[{"type":"Ready","status":"True","reason":"Applied","message":"all is there"}]}"#;
        for status in ["", status] {
            for i in 0..100 {
                let json = compress_and_train(&mut dictionary, &config_map(i, status));
                if i > 1 {
                    assert!(
                        json.bytes.len() <= json.len() / 2,
                        "{} of {json:?}",
                        json.bytes.len()
                    );
                }
            }
        }
        assert!(dictionary.bytes.len() <= MAX_DICTIONARY_BYTES);
    }

    /// Without the code, which a small text goes without, they would stay as long as they are.
    #[test]
    fn hexadecimal_digits_are_halved_in_texts_of_any_size() {
        let mut dice = fastrand::Rng::with_seed(7);
        for len in [600, MAX_UNCODED_TEXT_BYTES, MAX_UNCODED_TEXT_BYTES + 1, 5_000] {
            let digits: String = std::iter::repeat_with(|| dice.digit(16)).take(len).collect();
            let json = compress_and_train(&mut Dictionary::default(), &digits);
            assert!(json.bytes.len() < len * 6 / 10, "{} of {len}", json.bytes.len());
        }
    }

    #[test]
    fn incompressible_objects_stay_plain_and_bound_the_dictionary() {
        let mut dictionary = Dictionary::default();
        let mut x = 1_u64;
        for _ in 0..1000 {
            let mut one = || {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                char::from(b' ' + (x >> 33) as u8 % 95)
            };
            let text: String = (0..3000).map(|_| one()).collect();
            let json = compress_and_train(&mut dictionary, &text);
            assert!(json.bytes.len() <= json.len());
        }
        assert_eq!(
            (dictionary.samples, dictionary.bytes.len()),
            (1000, MAX_DICTIONARY_BYTES)
        );
    }

    proptest! {
        #[test]
        fn any_text_survives_compression(texts in prop::collection::vec("[ab]{0,40}|\\PC{0,40}|(x{0,3000}y{0,3000})", 0..20)) {
            let mut dictionary = Dictionary::default();
            for text in &texts {
                compress_and_train(&mut dictionary, text);
            }
        }
    }
}
