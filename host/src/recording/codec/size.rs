//! Estimates the size of values of the contract, by which the length of a recording is limited.

use serde::{
    Serialize, Serializer,
    ser::{Impossible, SerializeSeq, SerializeStruct, SerializeTuple},
};

use super::error::{CodecError, unsupported};

/// The estimated bytes of a field or an item besides the bytes of its text: a `String` or a `Vec` has 24.
const FIELD_BYTES: usize = 24;

/// Estimates the bytes that a value occupies.
pub struct SizeEstimator;

/// A running estimate.
pub struct SizeSum(usize);

impl SizeSum {
    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), CodecError> {
        self.0 += item.serialize(SizeEstimator)?;
        Ok(())
    }

    fn finish(self) -> usize {
        self.0
    }
}

serialize_items!(SizeSum => usize);

impl SerializeStruct for SizeSum {
    type Ok = usize;
    type Error = CodecError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        _: &'static str,
        value: &T,
    ) -> Result<(), CodecError> {
        self.0 += FIELD_BYTES;
        self.push(value)
    }

    fn end(self) -> Result<usize, CodecError> {
        Ok(self.0)
    }
}

impl Serializer for SizeEstimator {
    type Ok = usize;
    type SerializeSeq = SizeSum;
    type SerializeTuple = SizeSum;
    type SerializeStruct = SizeSum;

    refuse_unused_types!(SizeEstimator);

    serialize_as! {
        serialize_bool(bool) => |_| 0;
        serialize_i8(i8) => |_| 0;
        serialize_i16(i16) => |_| 0;
        serialize_i32(i32) => |_| 0;
        serialize_i64(i64) => |_| 0;
        serialize_u8(u8) => |_| 1;
        serialize_u16(u16) => |_| 0;
        serialize_u32(u32) => |_| 0;
        serialize_u64(u64) => |_| 0;
        serialize_f32(f32) => |_| 0;
        serialize_f64(f64) => |_| 0;
        serialize_char(char) => |_| 0;
        serialize_str(&str) => str::len;
        serialize_bytes(&[u8]) => |bytes| bytes.len();
    }

    fn serialize_none(self) -> Result<usize, CodecError> {
        Ok(0)
    }

    fn serialize_unit(self) -> Result<usize, CodecError> {
        Ok(0)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<usize, CodecError> {
        Ok(0)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<usize, CodecError> {
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<SizeSum, CodecError> {
        Ok(SizeSum(0))
    }

    fn serialize_tuple(self, length: usize) -> Result<SizeSum, CodecError> {
        Ok(SizeSum(length * FIELD_BYTES))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<SizeSum, CodecError> {
        Ok(SizeSum(0))
    }
}
