//! Reading of typed values from JSON in little code.
//!
//! A component carries one parser, to [`Value`], and types are read from that. Structs with
//! [`macro@crate::api`] are read field by field in the order of their declaration, which takes half the code of a map
//! whose keys are matched against the fields' names.

use std::{fmt, marker::PhantomData};

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, Error as _, Expected, IntoDeserializer,
    SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

/// Error of reading a value of a type. Unlike `serde_json`'s it has no position, since the code that computes
/// positions takes a fair part of a component; it has the path of the field instead.
///
/// Boxed, because the size of an error is the size of each result that may contain one.
#[derive(Debug)]
pub struct Error(Box<Details>);

#[derive(Debug)]
struct Details {
    /// Names of the enclosing fields, such as `spec.vars`; may be empty.
    path: String,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    /// The value is not of the type.
    Mismatch(String),
    /// A sequence ends at this index; for a struct that is the index of a missing field.
    TooShort(usize),
}

impl Error {
    #[cold]
    #[inline(never)]
    fn new(problem: Problem) -> Self {
        let path = String::new();
        Self(Box::new(Details { path, problem }))
    }

    /// Prepends the name of an enclosing field or thing to the path.
    #[cold]
    pub fn within(mut self, name: &str) -> Self {
        let path = &mut self.0.path;
        *path = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{name}.{path}")
        };
        self
    }

    /// The outermost field of the path; may be empty.
    pub fn first_field(&self) -> &str {
        let path = &self.0.path;
        path.split_once('.').map_or(path, |(first, _)| first)
    }

    /// Names the field of a struct that is missing.
    #[cold]
    fn with_field_name(mut self, fields: &[&str]) -> Self {
        if let (Problem::TooShort(index), true) = (&self.0.problem, self.0.path.is_empty()) {
            let name = fields.get(*index).copied().unwrap_or_default();
            self.0.problem = Problem::Mismatch(format!("missing field `{name}`"));
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Details { path, problem } = &*self.0;
        if !path.is_empty() {
            write!(f, "{path}: ")?;
        }
        match problem {
            Problem::Mismatch(message) => f.write_str(message),
            Problem::TooShort(length) => write!(f, "a list of {length} is too short"),
        }
    }
}

impl std::error::Error for Error {}

impl serde::de::Error for Error {
    #[cold]
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Problem::Mismatch(message.to_string()))
    }

    // Serde's code reports a field that [`Fields`] does not have as a sequence that is too short.
    fn invalid_length(length: usize, _: &dyn Expected) -> Self {
        Self::new(Problem::TooShort(length))
    }

    // The found value is not in the message: it may be a secret, and formatting a number takes more code than a parser.
    fn invalid_type(_: Unexpected, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {expected}"))
    }

    fn invalid_value(_: Unexpected, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {expected}"))
    }
}

/// Reads any value: the one place where text is parsed.
#[inline(never)]
pub fn value(bytes: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(bytes).map_err(Error::custom)
}

/// Reads a value of a type.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    from_value(&value(bytes)?)
}

/// A value of a type.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    T::deserialize(Slim(value))
}

#[derive(Clone, Copy)]
struct Slim<'de>(&'de Value);

impl<'de> IntoDeserializer<'de, Error> for Slim<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Slim<'de> {
    /// By the type that is wanted, so that code for floats is there only where one is.
    fn visit_integer<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.as_u64() {
            Some(value) => visitor.visit_u64(value),
            None => match self.0.as_i64() {
                Some(value) => visitor.visit_i64(value),
                None => Err(Error::custom("expected an integer")),
            },
        }
    }

    fn visit_text<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(text) => visitor.visit_borrowed_str(text),
            // No visitor of texts takes it; the error says what is expected.
            _ => visitor.visit_unit(),
        }
    }

    /// The fields of a struct, in the order of its declaration.
    fn visit_fields<V: Visitor<'de>>(
        self,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Value::Object(map) = self.0 else {
            return Err(Error::custom("expected an object"));
        };
        let mut fields = Fields {
            map,
            names: names.iter(),
            error: None,
        };
        let read = visitor.visit_seq(&mut fields);
        match fields.error {
            Some(error) => Err(error),
            None => read.map_err(|error| error.with_field_name(names)),
        }
    }

    fn map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value::Object(map) = self.0 else {
            return Err(Error::custom("expected an object"));
        };
        let entries = map.iter().map(|(key, value)| (key.as_str(), Slim(value)));
        visitor.visit_map(MapDeserializer::new(entries))
    }
}

/// The fields of a struct as a sequence. A missing field ends the sequence only for itself: serde's code takes the
/// field's default, or reports it. As in Kubernetes, `null` is the same as a missing field.
///
/// An error is recorded instead of returned, so that the compiler drops serde's code that cleans up after an error of
/// each field.
struct Fields<'de> {
    map: &'de Map<String, Value>,
    names: std::slice::Iter<'static, &'static str>,
    error: Option<Error>,
}

impl<'de> Fields<'de> {
    #[inline(never)]
    fn next_value(&mut self) -> Option<(&'static str, Slim<'de>)> {
        let name = self.names.next()?;
        let value = self.map.get(*name).filter(|value| !value.is_null())?;
        Some((name, Slim(value)))
    }

    // Shared by all fields of a type.
    #[inline(never)]
    fn next_field<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Option<T::Value> {
        let (name, value) = self.next_value()?;
        match seed.deserialize(value) {
            Ok(field) => Some(field),
            Err(error) => {
                self.record_error(name, error);
                None
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn record_error(&mut self, name: &str, error: Error) {
        self.error.get_or_insert(error.within(name));
    }
}

impl<'de> SeqAccess<'de> for &mut Fields<'de> {
    type Error = Error;

    #[inline(always)]
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        Ok(self.next_field(seed))
    }

    // As the provided method, but inlined: only then does the compiler see that there is no error.
    #[inline(always)]
    fn next_element<T: Deserialize<'de>>(&mut self) -> Result<Option<T>, Error> {
        Ok(self.next_field(PhantomData))
    }
}

macro_rules! by_kind {
    ($($kind:ident: $($name:ident)+,)+) => {
        $($(
            fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
                self.$kind(visitor)
            }
        )+)+
    };
}

impl<'de> Deserializer<'de> for Slim<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => visitor.visit_u64(value),
                (None, Some(value)) => visitor.visit_i64(value),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => visitor.visit_seq(SeqDeserializer::new(items.iter().map(Slim))),
            Value::Object(_) => self.map(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    // A struct with `api` announces itself by an empty name. Only of these it is known that their fields are in the order
    // of serde's list of names: `alias` adds names to the list, and a type that implements `Deserialize` by hand may
    // read a map only. Inlined, so that one of the branches is dropped when the component is compiled.
    #[inline(always)]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name.is_empty() {
            self.visit_fields(fields, visitor)
        } else {
            self.map(visitor)
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.map(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(name) => visitor.visit_enum(name.as_str().into_deserializer()),
            Value::Object(map) => {
                let entries = map.iter().map(|(key, value)| (key.as_str(), Slim(value)));
                visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(entries)))
            }
            _ => Err(Error::custom("expected a text or an object")),
        }
    }

    by_kind! {
        visit_integer: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
            deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64,
        visit_text: deserialize_str deserialize_string,
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Bool(value) => visitor.visit_bool(*value),
            _ => visitor.visit_unit(),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(SeqDeserializer::new(items.iter().map(Slim))),
            _ => visitor.visit_unit(),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A struct that is read field by field.
    #[crate::api]
    #[derive(Default)]
    struct Outer {
        /// A required field.
        name: String,
        /// An optional field.
        inner_part: Option<Inner>,
        /// A field with a default of its own.
        #[serde(default = "three")]
        count: i32,
        /// A list.
        items: Vec<String>,
        /// A sequence of a fixed length.
        #[serde(default)]
        pair: (u8, u8),
    }

    /// A nested struct.
    #[crate::api]
    struct Inner {
        /// A renamed field.
        #[serde(rename = "ID")]
        id: u32,
    }

    fn three() -> i32 {
        3
    }

    #[test]
    fn from_value_reads_api_structs_with_defaults_for_missing_and_null_fields() {
        let full = json!({
            "unknown": [], "name": "a", "innerPart": { "ID": 7 }, "count": 4, "items": ["x"], "pair": [1, 2],
        });
        let expected = Outer {
            name: "a".into(),
            inner_part: Some(Inner { id: 7 }),
            count: 4,
            items: vec!["x".into()],
            pair: (1, 2),
        };
        assert_eq!(from_value::<Outer>(&full).expect("is valid"), expected);
        for least in [
            json!({ "name": "a" }),
            json!({ "name": "a", "innerPart": null, "count": null, "items": null }),
        ] {
            let expected = Outer {
                name: "a".into(),
                count: 3,
                ..Outer::default()
            };
            assert_eq!(from_value::<Outer>(&least).expect("is valid"), expected);
        }
    }

    #[test]
    fn from_value_reports_path_and_problem() {
        let error = |value: Value| from_value::<Outer>(&value).expect_err("is invalid").to_string();
        assert_eq!(error(json!([])), "expected an object");
        assert_eq!(error(json!({})), "missing field `name`");
        assert_eq!(error(json!({ "name": null })), "missing field `name`");
        assert_eq!(error(json!({ "name": 1 })), "name: expected a string");
        let inner = |inner: Value| error(json!({ "name": "a", "innerPart": inner }));
        assert_eq!(inner(json!({})), "innerPart: missing field `ID`");
        assert_eq!(inner(json!({ "ID": "7" })), "innerPart.ID: expected an integer");
        assert_eq!(
            error(json!({ "name": "a", "pair": [1] })),
            "pair: a list of 1 is too short"
        );
    }
}
