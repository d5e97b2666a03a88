//! JSON of which fields are parsed when they are needed.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// A JSON object as its entries in order, values unparsed.
pub struct Entries<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Entries<'a> {
    /// The text of a field's value. Of equal keys the last one counts, as in `serde_json::Value`.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let found = self.0.iter().rfind(|(k, _)| k == key);
        found.map(|(_, value)| value.get())
    }
}

/// Entries in the order of their keys, in which many fields are found quickly.
pub struct SortedEntries<'a>(Entries<'a>);

impl<'a> From<Entries<'a>> for SortedEntries<'a> {
    fn from(mut entries: Entries<'a>) -> Self {
        // Stable, so that of equal keys the last one stays the last.
        entries.0.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self(entries)
    }
}

impl<'a> SortedEntries<'a> {
    /// The text of a field's value, as [`Entries::get`] returns it.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let end = self.0.0.partition_point(|(k, _)| **k <= *key);
        let (found, value) = self.0.0.get(end.checked_sub(1)?)?;
        (found == key).then(|| value.get())
    }
}

/// The text of the value at a path of fields. Steps down field by field, because a plugin may choose the length of the path.
pub fn find_field<'a, 'p>(json: &'a str, path: impl IntoIterator<Item = &'p str>) -> Option<&'a str> {
    path.into_iter().try_fold(json, |json, field| {
        let entries: Entries = serde_json::from_str(json).ok()?;
        entries.get(field)
    })
}

/// The scalar at a path of fields as text; none for null, a list or an object.
pub fn find_scalar<'p>(json: &str, path: impl IntoIterator<Item = &'p str>) -> Option<String> {
    find_field(json, path).and_then(scalar_text)
}

/// The text of a scalar: that of a string without its quotes; none for null, a list or an object.
pub fn scalar_text(json: &str) -> Option<String> {
    match json.as_bytes().first()? {
        b'"' => serde_json::from_str(json).ok(),
        b'{' | b'[' | b'n' => None,
        _ => Some(json.to_owned()),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Entries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some(entry) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    entries.push((entry.0.0, entry.1));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(V)
    }
}

/// A JSON string, borrowed where it has no escape.
#[derive(Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;

    #[test]
    fn field_at_a_path_is_found_in_its_last_version() {
        let json = r#"{"a":{"b":1,"c.d":"x","b":[2]},"n":null}"#;
        for (path, value) in [
            (&["a", "b"][..], Some("[2]")),
            (&["a", "c.d"], Some(r#""x""#)),
            (&["n"], Some("null")),
            (&[], Some(json)),
            (&["n", "b"], None),
            (&["a", "b", "0"], None),
            (&["z"], None),
        ] {
            assert_eq!(find_field(json, path.iter().copied()), value, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn entries_of_any_order_are_found_as_in_a_map(pairs in prop::collection::vec(("[a-d\"]{0,2}", 0u8..9), 0..20)) {
            let fields: Vec<String> = pairs.iter().map(|(key, n)| format!("{}:{n}", Value::from(key.as_str()))).collect();
            let json = format!("{{{}}}", fields.join(","));
            let model: Map<String, Value> = serde_json::from_str(&json).expect("an object");
            let entries: Entries = serde_json::from_str(&json).expect("an object");
            let found: Vec<_> = pairs.iter().map(|(key, _)| entries.get(key)).collect();
            let sorted = SortedEntries::from(entries);
            for ((key, _), found) in pairs.iter().zip(found) {
                prop_assert_eq!(found.map(str::to_owned), model.get(key).map(Value::to_string));
                prop_assert_eq!(sorted.get(key), found);
            }
            prop_assert_eq!(sorted.get("zz"), None);
        }
    }
}
