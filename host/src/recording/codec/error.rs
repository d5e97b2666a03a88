//! The error of a conversion.

use std::fmt;

use serde::{de, ser};

use crate::recording::value::RecordedValue;

/// The error of a conversion.
#[derive(Debug)]
pub struct CodecError(pub String);

impl CodecError {
    /// Prefixes the error with the field or index that it is about.
    pub fn within(self, place: &str) -> Self {
        Self(format!("{place}: {}", self.0))
    }

    /// The error of a value of another type.
    pub fn mismatch(expected: &str, found: &RecordedValue) -> Self {
        let found = match found {
            RecordedValue::Null => "nothing",
            RecordedValue::Bool(_) => "true or false",
            RecordedValue::Number(_) => "a number",
            RecordedValue::Text(_) => "a text",
            RecordedValue::Bytes(_) => "bytes",
            RecordedValue::List(_) => "a list",
            RecordedValue::Record(_) => "a record",
        };
        Self(format!("{expected} is needed, not {found}"))
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CodecError {}

impl ser::Error for CodecError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

impl de::Error for CodecError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// The error of a type that the contract does not have.
pub fn unsupported<T>(kind: &str) -> Result<T, CodecError> {
    Err(CodecError(format!("{kind} is not a type of the contract")))
}
