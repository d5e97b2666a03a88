//! Estimates the size of values of the contract, by which the length of a recording is limited.

use std::any::type_name;

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

    /// Counts bytes instead of visiting each: every host call of a recorded reconcile is estimated, and most of what it
    /// passes is the JSON of objects. The name of the type only selects the shortcut, whose result is the same.
    fn collect_seq<I>(self, items: I) -> Result<usize, CodecError>
    where
        I: IntoIterator,
        I::Item: Serialize,
    {
        if type_name::<I::Item>() == type_name::<&u8>() {
            return Ok(items.into_iter().count());
        }
        items
            .into_iter()
            .try_fold(0, |sum, item| Ok(sum + item.serialize(Self)?))
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

#[cfg(test)]
mod tests {
    use super::super::Recordable;

    #[test]
    fn bytes_and_texts_count_their_length() {
        assert_eq!(vec![0_u8; 1000].estimate_bytes(), 1000);
        assert_eq!(vec!["ab".to_owned(), "c".to_owned()].estimate_bytes(), 3);
        assert_eq!(vec![vec![1_u8, 2], Vec::new()].estimate_bytes(), 2);
        assert_eq!(Vec::<u8>::new().estimate_bytes(), 0);
    }
}
