//! Deserializes values of the contract from [`RecordedValue`].

use serde::{
    Deserializer,
    de::{self, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor},
    forward_to_deserialize_any,
};

use super::{
    error::{CodecError, unsupported},
    to_camel_case, variant_name,
};
use crate::recording::value::RecordedValue;

/// Deserializes a value of the contract from a [`RecordedValue`].
pub struct ValueDeserializer(pub RecordedValue);

impl<'de> Deserializer<'de> for ValueDeserializer {
    type Error = CodecError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match &self.0 {
            RecordedValue::Number(n) => match (n.as_u64(), n.as_i64()) {
                (Some(n), _) => visitor.visit_u64(n),
                (None, Some(n)) => visitor.visit_i64(n),
                (None, None) => visitor.visit_f64(n.as_f64().unwrap_or(f64::NAN)),
            },
            other => Err(CodecError::mismatch("a number", other)),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match &self.0 {
            RecordedValue::Text(text) => {
                let parsed = text
                    .parse()
                    .map_err(|_| CodecError(format!("`{text}` is not a number")));
                visitor.visit_f64(parsed?)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match self.0 {
            RecordedValue::Bool(b) => visitor.visit_bool(b),
            other => Err(CodecError::mismatch("true or false", &other)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match self.0 {
            RecordedValue::Text(text) => visitor.visit_string(text),
            other => Err(CodecError::mismatch("a text", &other)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match self.0 {
            RecordedValue::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        visitor.visit_unit()
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match self.0 {
            RecordedValue::List(items) => visitor.visit_seq(ListItems {
                items: items.into_iter(),
                next: 0,
            }),
            RecordedValue::Bytes(bytes) => {
                visitor.visit_seq(de::value::SeqDeserializer::new(bytes.into_iter()))
            }
            other => Err(CodecError::mismatch(
                "a list, or bytes ({\"json\": …}, {\"text\": …} or {\"base64\": …}),",
                &other,
            )),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, CodecError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        match self.0 {
            RecordedValue::Record(recorded) => visitor.visit_map(Fields {
                recorded,
                expected: fields.iter(),
                current: "",
            }),
            other => Err(CodecError::mismatch("a record", &other)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        let names = || {
            variants
                .iter()
                .map(|v| variant_name(v))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (name, value) = match self.0 {
            RecordedValue::Text(name) => (name, RecordedValue::Null),
            RecordedValue::Record(mut fields) if fields.len() == 1 => fields.remove(0),
            other => return Err(CodecError::mismatch(&format!("one of {}", names()), &other)),
        };
        match variants.iter().find(|variant| variant_name(variant) == name) {
            Some(variant) => visitor.visit_enum(Variant { variant, name, value }),
            None => Err(CodecError(format!("`{name}` is none of {}", names()))),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit_struct tuple_struct map identifier
    }
}

/// The items of a recorded list.
struct ListItems {
    items: std::vec::IntoIter<RecordedValue>,
    next: usize,
}

impl<'de> SeqAccess<'de> for ListItems {
    type Error = CodecError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, CodecError> {
        let Some(item) = self.items.next() else {
            return Ok(None);
        };
        let place = format!("[{}]", self.next);
        self.next += 1;
        let value = seed.deserialize(ValueDeserializer(item));
        value.map(Some).map_err(|e| e.within(&place))
    }
}

/// The fields of a recorded record, in the order of the type. A field that is missing is null.
struct Fields {
    recorded: Vec<(String, RecordedValue)>,
    expected: std::slice::Iter<'static, &'static str>,
    current: &'static str,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = CodecError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, CodecError> {
        let Some(field) = self.expected.next() else {
            return Ok(None);
        };
        self.current = field;
        seed.deserialize(self.current.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, CodecError> {
        let name = to_camel_case(self.current);
        let found = self.recorded.iter_mut().find(|(recorded, _)| *recorded == name);
        let value = found.map(|(_, value)| std::mem::take(value)).unwrap_or_default();
        seed.deserialize(ValueDeserializer(value))
            .map_err(|e| e.within(&name))
    }
}

/// A recorded case of a variant or an enum.
struct Variant {
    variant: &'static str,
    name: String,
    value: RecordedValue,
}

impl<'de> EnumAccess<'de> for Variant {
    type Error = CodecError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), CodecError> {
        Ok((seed.deserialize(self.variant.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant {
    type Error = CodecError;

    fn unit_variant(self) -> Result<(), CodecError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, CodecError> {
        seed.deserialize(ValueDeserializer(self.value))
            .map_err(|e| e.within(&self.name))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, CodecError> {
        unsupported("a tuple variant")
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, CodecError> {
        unsupported("a struct variant")
    }
}
