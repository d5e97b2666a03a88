//! The UID of an object. API servers generate random UUIDs (RFC 9562), and there is one per cached object, so that it is
//! kept as a number and not as text.

use std::{fmt, num::NonZero, ops::Deref};

use serde::{Serialize, Serializer};
use uuid::{Uuid, fmt::Hyphenated};

/// The UID of an object (`metadata.uid`), which distinguishes it from earlier ones of the same name. Any text is allowed;
/// that of a UUID takes no memory of its own.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Uid(Form);

/// Two words: the niche of the first half tells the variants apart.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Form {
    /// A UUID in the form that API servers write: hyphens and small letters.
    Uuid(NonZero<u64>, u64),
    /// Any other text; none if empty.
    Text(Option<Box<Box<str>>>),
}

/// The text of a [`Uid`].
pub enum UidText<'a> {
    /// It is kept as text.
    Kept(&'a str),
    /// The text of a UUID.
    Formatted([u8; Hyphenated::LENGTH]),
}

impl Uid {
    /// The text as an API server writes it.
    pub fn text(&self) -> UidText<'_> {
        match &self.0 {
            Form::Uuid(high, low) => UidText::Formatted(format_uuid(Uuid::from_u64_pair(high.get(), *low))),
            Form::Text(text) => UidText::Kept(text.as_deref().map_or("", |text| text)),
        }
    }

    /// Returns true without a UID: objects that no server has stored have none.
    pub fn is_empty(&self) -> bool {
        self.0 == Form::Text(None)
    }
}

fn format_uuid(uuid: Uuid) -> [u8; Hyphenated::LENGTH] {
    let mut text = [0; Hyphenated::LENGTH];
    uuid.as_hyphenated().encode_lower(&mut text);
    text
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        // Other forms of a UUID, such as with capitals, are other UIDs to an API server.
        let uuid = Uuid::try_parse(text).ok();
        let uuid = uuid.filter(|uuid| format_uuid(*uuid) == *text.as_bytes());
        let (high, low) = uuid.unwrap_or_default().as_u64_pair();
        Self(match NonZero::new(high) {
            Some(high) => Form::Uuid(high, low),
            None => Form::Text((!text.is_empty()).then(|| Box::new(text.into()))),
        })
    }
}

impl Default for Uid {
    fn default() -> Self {
        Self(Form::Text(None))
    }
}

impl PartialEq<str> for Uid {
    fn eq(&self, other: &str) -> bool {
        *self.text() == *other
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text(), f)
    }
}

impl Serialize for Uid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl Deref for UidText<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Self::Kept(text) => text,
            Self::Formatted(text) => std::str::from_utf8(text).expect("hexadecimal digits and hyphens"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uid_takes_two_words() {
        assert_eq!(size_of::<Uid>(), 16);
    }

    #[test]
    fn uid_of_a_uuid_allocates_no_text() {
        for (text, is_number) in [
            ("0e7a8c9e-7a51-4c1e-9d3f-0123456789ab", true),
            ("ffffffff-ffff-ffff-ffff-ffffffffffff", true),
            ("0E7A8C9E-7A51-4C1E-9D3F-0123456789AB", false),
            ("{0e7a8c9e-7a51-4c1e-9d3f-0123456789ab}", false),
            ("0e7a8c9e7a514c1e9d3f0123456789ab", false),
            ("00000000-0000-0000-0000-000000000001", false),
            ("00000000-0000-0000-0000-000000000000", false),
            ("planned-7", false),
            ("", false),
        ] {
            let uid = Uid::from(text);
            assert_eq!(matches!(uid.0, Form::Uuid(..)), is_number, "{text}");
            assert_eq!((&*uid.text(), uid.is_empty()), (text, text.is_empty()));
        }
    }

    proptest! {
        #[test]
        fn uid_has_the_text_that_it_was_made_from(
            text in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-fA-F{}-]{0,40}|.*",
            other in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|.*",
        ) {
            let (uid, other_uid) = (Uid::from(&*text), Uid::from(&*other));
            prop_assert_eq!(&*uid.text(), &*text);
            prop_assert!(uid == *text);
            prop_assert_eq!(uid == other_uid, text == other);
        }
    }
}
