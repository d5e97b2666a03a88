//! The JSON of objects as it is kept: those of a kind say much the same, so only what is an object's own is kept of it,
//! and the rest once for all.

use std::{borrow::Cow, fmt, sync::Arc};

use lz4_flex::block::{compress_into_with_dict, decompress_into_with_dict, get_maximum_output_size};

/// Most bytes of a vocabulary: it is gone through for each object that is packed.
const WORDS: usize = 4096;
/// Most bytes of it that are of one object.
const WORDS_OF_ONE: usize = WORDS / 2;

/// What objects of a kind say: some of them, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    words: Arc<Vec<u8>>,
    /// How many objects had much to say that is not in it.
    strangers: u32,
}

impl Vocabulary {
    /// An object that is not much like those before. The first few of them are learned at once, later ones now and
    /// then: what was packed keeps the vocabulary it was packed with.
    pub fn meet(&mut self, stranger: &[u8]) {
        self.strangers = self.strangers.saturating_add(1);
        if self.strangers.is_power_of_two() {
            let new = &stranger[..stranger.len().min(WORDS_OF_ONE)];
            let old = &self.words[self.words.len().saturating_sub(WORDS - new.len())..];
            self.words = Arc::new([old, new].concat());
        }
    }
}

/// A JSON text: as it is, or packed.
pub struct Json {
    bytes: Box<[u8]>,
    packed: Option<Packed>,
}

struct Packed {
    words: Arc<Vec<u8>>,
    /// Bytes of the text.
    len: u32,
}

impl From<Vec<u8>> for Json {
    fn from(text: Vec<u8>) -> Self {
        Self {
            bytes: text.into(),
            packed: None,
        }
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl Json {
    /// The text.
    pub fn text(&self) -> Cow<'_, [u8]> {
        let Some(Packed { words, len }) = &self.packed else {
            return Cow::Borrowed(&self.bytes);
        };
        let mut text = vec![0; *len as usize];
        decompress_into_with_dict(&self.bytes, &mut text, words).expect("was packed here");
        Cow::Owned(text)
    }

    /// The text as bytes of one's own.
    pub fn to_vec(&self) -> Vec<u8> {
        self.text().into_owned()
    }

    /// Bytes of the text.
    pub fn len(&self) -> usize {
        self.packed.as_ref().map_or(self.bytes.len(), |p| p.len as usize)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Packs it, where that makes it smaller. Gives the text of a stranger, which the vocabulary is to meet.
    pub fn pack(&mut self, vocabulary: &Vocabulary) -> Option<Box<[u8]>> {
        let text = &self.bytes;
        if self.packed.is_some() {
            return None;
        }
        let len = u32::try_from(text.len()).ok()?;
        let mut room = vec![0; get_maximum_output_size(text.len())];
        let packed = compress_into_with_dict(text, &mut room, &vocabulary.words).ok()?;
        let stranger = packed > text.len() / 3;
        if packed >= text.len() {
            return stranger.then(|| text.clone());
        }
        let text = std::mem::replace(&mut self.bytes, room[..packed].into());
        let words = vocabulary.words.clone();
        self.packed = Some(Packed { words, len });
        stranger.then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pack(vocabulary: &mut Vocabulary, text: &str) -> Json {
        let mut json = Json::from(text.as_bytes().to_vec());
        if let Some(stranger) = json.pack(vocabulary) {
            vocabulary.meet(&stranger);
        }
        assert_eq!((&*json.text(), json.len()), (text.as_bytes(), text.len()));
        json
    }

    fn config(i: usize, status: &str) -> String {
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
    fn of_what_is_alike_little_is_kept_and_what_is_new_is_learned() {
        let mut vocabulary = Vocabulary::default();
        let status = r#","status":{"conditions":[{"type":"Ready","status":"True","reason":"Applied","message":"all is there"}]}"#;
        for status in ["", status] {
            for i in 0..100 {
                let packed = pack(&mut vocabulary, &config(i, status));
                if i > 1 {
                    assert!(
                        packed.bytes.len() <= packed.len() / 2,
                        "{} of {packed:?}",
                        packed.bytes.len()
                    );
                }
            }
        }
        assert!(vocabulary.words.len() <= WORDS);
    }

    #[test]
    fn what_says_nothing_twice_is_kept_as_it_is_and_learned_now_and_then() {
        let mut vocabulary = Vocabulary::default();
        let mut x = 1_u64;
        for _ in 0..1000 {
            let mut one = || {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                char::from(b' ' + (x >> 33) as u8 % 95)
            };
            let json = pack(&mut vocabulary, &(0..3000).map(|_| one()).collect::<String>());
            assert!(json.bytes.len() <= json.len());
        }
        assert_eq!((vocabulary.strangers, vocabulary.words.len()), (1000, WORDS));
    }

    proptest! {
        #[test]
        fn a_text_comes_back(texts in prop::collection::vec("[ab]{0,40}|\\PC{0,40}|(x{0,3000}y{0,3000})", 0..20)) {
            let mut vocabulary = Vocabulary::default();
            for text in &texts {
                pack(&mut vocabulary, text);
            }
        }
    }
}
