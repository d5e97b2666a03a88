//! Serializes values of the contract into [`RecordedValue`].

use serde::{
    Serialize, Serializer,
    ser::{Impossible, SerializeSeq, SerializeStruct, SerializeTuple},
};
use serde_json::Number;

use super::{
    error::{CodecError, unsupported},
    to_camel_case, variant_name,
};
use crate::recording::value::RecordedValue;

/// A serialized value. A sequence of single bytes becomes [`RecordedValue::Bytes`].
pub enum SerializedPart {
    Byte(u8),
    Value(RecordedValue),
}

impl SerializedPart {
    /// The value; a single byte is a number.
    pub fn into_value(self) -> RecordedValue {
        match self {
            Self::Byte(byte) => RecordedValue::Number(byte.into()),
            Self::Value(value) => value,
        }
    }
}

/// Serializes a value of the contract into a [`RecordedValue`].
pub struct ValueSerializer;

/// The items of a sequence or a tuple.
#[derive(Default)]
pub struct Items {
    bytes: Vec<u8>,
    values: Vec<RecordedValue>,
}

impl Items {
    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), CodecError> {
        match item.serialize(ValueSerializer)? {
            SerializedPart::Byte(byte) => self.bytes.push(byte),
            SerializedPart::Value(value) => self.values.push(value),
        }
        Ok(())
    }

    fn finish(self) -> SerializedPart {
        SerializedPart::Value(if self.bytes.is_empty() {
            RecordedValue::List(self.values)
        } else {
            RecordedValue::Bytes(self.bytes)
        })
    }
}

serialize_items!(Items => SerializedPart);

/// The fields of a record.
pub struct RecordFields(Vec<(String, RecordedValue)>);

impl SerializeStruct for RecordFields {
    type Ok = SerializedPart;
    type Error = CodecError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), CodecError> {
        let value = value.serialize(ValueSerializer)?.into_value();
        self.0.push((to_camel_case(name), value));
        Ok(())
    }

    fn end(self) -> Result<SerializedPart, CodecError> {
        Ok(SerializedPart::Value(RecordedValue::Record(self.0)))
    }
}

fn number_part(n: impl Into<Number>) -> SerializedPart {
    SerializedPart::Value(RecordedValue::Number(n.into()))
}

fn text_part(text: &str) -> SerializedPart {
    SerializedPart::Value(RecordedValue::Text(text.to_owned()))
}

impl Serializer for ValueSerializer {
    type Ok = SerializedPart;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeStruct = RecordFields;

    refuse_unused_types!(ValueSerializer);

    serialize_as! {
        serialize_bool(bool) => |b| SerializedPart::Value(RecordedValue::Bool(b));
        serialize_i8(i8) => number_part;
        serialize_i16(i16) => number_part;
        serialize_i32(i32) => number_part;
        serialize_i64(i64) => number_part;
        serialize_u8(u8) => SerializedPart::Byte;
        serialize_u16(u16) => number_part;
        serialize_u32(u32) => number_part;
        serialize_u64(u64) => number_part;
        serialize_f32(f32) => |n| float_part(n.into());
        serialize_f64(f64) => float_part;
        serialize_char(char) => |c| text_part(c.encode_utf8(&mut [0; 4]));
        serialize_str(&str) => text_part;
        serialize_bytes(&[u8]) => |bytes| SerializedPart::Value(RecordedValue::Bytes(bytes.to_vec()));
    }

    fn serialize_none(self) -> Result<SerializedPart, CodecError> {
        Ok(SerializedPart::Value(RecordedValue::Null))
    }

    fn serialize_unit(self) -> Result<SerializedPart, CodecError> {
        Ok(SerializedPart::Value(RecordedValue::Null))
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<SerializedPart, CodecError> {
        Ok(text_part(&variant_name(variant)))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<SerializedPart, CodecError> {
        let value = value.serialize(self)?.into_value();
        Ok(SerializedPart::Value(RecordedValue::Record(vec![(
            variant_name(variant),
            value,
        )])))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items, CodecError> {
        Ok(Items::default())
    }

    fn serialize_tuple(self, _: usize) -> Result<Items, CodecError> {
        Ok(Items::default())
    }

    fn serialize_struct(self, _: &'static str, length: usize) -> Result<RecordFields, CodecError> {
        Ok(RecordFields(Vec::with_capacity(length)))
    }
}

/// Converts a float; JSON has no NaN and no infinity, so they become text.
fn float_part(n: f64) -> SerializedPart {
    Number::from_f64(n).map_or_else(|| text_part(&n.to_string()), number_part)
}
