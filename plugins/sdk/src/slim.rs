//! Typed values from JSON in little code: a component carries one parser, to
//! [`Value`], and structs are read from that as maps only.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeOwned, Deserializer, Error as _, Expected, IntoDeserializer, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// Why a value is not of a type. Unlike `serde_json`'s it knows no positions:
/// to look for them in texts takes a fair part of a component.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// As a failure to do something with this.
    pub fn within(self, what: &str) -> Self {
        Self([what, ": ", &self.0].concat())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }

    // What is there is left unsaid: it may be a secret, and a number that is
    // written takes more code than a parser.
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
    serde_json::from_slice(bytes).map_err(|error| Error(error.to_string()))
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
    fn integer<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.as_u64() {
            Some(value) => visitor.visit_u64(value),
            None => match self.0.as_i64() {
                Some(value) => visitor.visit_i64(value),
                None => Err(Error::custom("expected an integer")),
            },
        }
    }

    fn text<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(text) => visitor.visit_borrowed_str(text),
            // No visitor of texts takes it; the error says what is expected.
            _ => visitor.visit_unit(),
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

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.map(visitor)
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
        integer: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
            deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64,
        text: deserialize_str deserialize_string,
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
