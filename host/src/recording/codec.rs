//! Conversion between the types of the contract and [`RecordedValue`], by the serde implementations that `bindgen!`
//! derives for them.
//!
//! Names become camelCase, as Kubernetes writes them. A `list<u8>` becomes bytes: serde passes it as a sequence of
//! `u8`, which the contract has nowhere else. An empty list is an empty [`RecordedValue::List`], whatever its items.

use std::fmt;

use serde::{
    Deserializer, Serialize, Serializer,
    de::{
        self, DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
        VariantAccess, Visitor,
    },
    forward_to_deserialize_any,
    ser::{self, Impossible, SerializeSeq, SerializeStruct, SerializeTuple},
};
use serde_json::Number;

use super::value::RecordedValue;

/// A value that can be recorded. While a reconcile runs it is kept as it is; it is converted when a recording is read.
pub trait Recordable: Send + Sync + 'static {
    /// Converts the value.
    fn to_recorded(&self) -> RecordedValue;

    /// Estimates the bytes that the value keeps.
    fn estimate_bytes(&self) -> usize;

    /// Converts a recorded value. The error names the field.
    fn from_recorded(value: RecordedValue) -> Result<Self, String>
    where
        Self: Sized;
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Recordable for T {
    fn to_recorded(&self) -> RecordedValue {
        self.serialize(ValueSerializer)
            .map_or(RecordedValue::Null, Part::into_value)
    }

    fn estimate_bytes(&self) -> usize {
        self.serialize(SizeEstimator).unwrap_or(usize::MAX)
    }

    fn from_recorded(value: RecordedValue) -> Result<Self, String> {
        T::deserialize(ValueDeserializer(value)).map_err(|CodecError(why)| why)
    }
}

/// Converts a Rust name to camelCase: `path_and_query` → `pathAndQuery`, `ref_` → `ref`, `NotFound` → `notFound`.
pub fn to_camel_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut upper = false;
    for c in name.chars() {
        match c {
            '_' => upper = true,
            c if out.is_empty() => out.push(c.to_ascii_lowercase()),
            c if upper => out.push(c.to_ascii_uppercase()),
            c => out.push(c),
        }
        upper &= c == '_';
    }
    out
}

/// Returns the recorded name of a variant; a `Result` is `ok` or `error`.
fn variant_name(variant: &str) -> String {
    if variant == "Err" {
        "error".into()
    } else {
        to_camel_case(variant)
    }
}

/// The error of a conversion.
#[derive(Debug)]
pub struct CodecError(String);

impl CodecError {
    /// Prefixes the error with the field or index that it is about.
    fn within(self, place: &str) -> Self {
        Self(format!("{place}: {}", self.0))
    }

    fn mismatch(expected: &str, found: &RecordedValue) -> Self {
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

/// A serialized value. A sequence of single bytes becomes [`RecordedValue::Bytes`].
enum Part {
    Byte(u8),
    Value(RecordedValue),
}

impl Part {
    fn into_value(self) -> RecordedValue {
        match self {
            Self::Byte(byte) => RecordedValue::Number(byte.into()),
            Self::Value(value) => value,
        }
    }
}

/// Serializes a value of the contract into a [`RecordedValue`].
struct ValueSerializer;

/// The items of a sequence or a tuple.
#[derive(Default)]
struct Items {
    bytes: Vec<u8>,
    values: Vec<RecordedValue>,
}

impl Items {
    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), CodecError> {
        match item.serialize(ValueSerializer)? {
            Part::Byte(byte) => self.bytes.push(byte),
            Part::Value(value) => self.values.push(value),
        }
        Ok(())
    }

    fn into_part(self) -> Part {
        Part::Value(if self.bytes.is_empty() {
            RecordedValue::List(self.values)
        } else {
            RecordedValue::Bytes(self.bytes)
        })
    }
}

impl SerializeSeq for Items {
    type Ok = Part;
    type Error = CodecError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), CodecError> {
        self.push(item)
    }

    fn end(self) -> Result<Part, CodecError> {
        Ok(self.into_part())
    }
}

impl SerializeTuple for Items {
    type Ok = Part;
    type Error = CodecError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), CodecError> {
        self.push(item)
    }

    fn end(self) -> Result<Part, CodecError> {
        Ok(self.into_part())
    }
}

/// The fields of a record.
struct RecordFields(Vec<(String, RecordedValue)>);

impl SerializeStruct for RecordFields {
    type Ok = Part;
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

    fn end(self) -> Result<Part, CodecError> {
        Ok(Part::Value(RecordedValue::Record(self.0)))
    }
}

/// The kinds of values that the contract does not have.
fn unsupported<T>(kind: &str) -> Result<T, CodecError> {
    Err(CodecError(format!("{kind} is not a type of the contract")))
}

macro_rules! serialize_as {
    ($($method:ident($type:ty) => $value:expr;)*) => {
        $(fn $method(self, value: $type) -> Result<Self::Ok, CodecError> {
            let convert: fn($type) -> Self::Ok = $value;
            Ok(convert(value))
        })*
    };
}

macro_rules! refuse_unused_types {
    ($serializer:ty) => {
        type Error = CodecError;
        type SerializeTupleStruct = Impossible<Self::Ok, CodecError>;
        type SerializeTupleVariant = Impossible<Self::Ok, CodecError>;
        type SerializeMap = Impossible<Self::Ok, CodecError>;
        type SerializeStructVariant = Impossible<Self::Ok, CodecError>;

        fn serialize_unit_struct(self, _: &'static str) -> Result<Self::Ok, CodecError> {
            unsupported("a unit struct")
        }

        fn serialize_tuple_struct(
            self,
            _: &'static str,
            _: usize,
        ) -> Result<Self::SerializeTupleStruct, CodecError> {
            unsupported("a tuple struct")
        }

        fn serialize_tuple_variant(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: usize,
        ) -> Result<Self::SerializeTupleVariant, CodecError> {
            unsupported("a tuple variant")
        }

        fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, CodecError> {
            unsupported("a map")
        }

        fn serialize_struct_variant(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: usize,
        ) -> Result<Self::SerializeStructVariant, CodecError> {
            unsupported("a struct variant")
        }

        fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Self::Ok, CodecError> {
            value.serialize(self)
        }

        fn serialize_newtype_struct<T: Serialize + ?Sized>(
            self,
            _: &'static str,
            value: &T,
        ) -> Result<Self::Ok, CodecError> {
            value.serialize(self)
        }
    };
}

fn number(n: impl Into<Number>) -> Part {
    Part::Value(RecordedValue::Number(n.into()))
}

fn text(text: &str) -> Part {
    Part::Value(RecordedValue::Text(text.to_owned()))
}

impl Serializer for ValueSerializer {
    type Ok = Part;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeStruct = RecordFields;

    refuse_unused_types!(ValueSerializer);

    serialize_as! {
        serialize_bool(bool) => |b| Part::Value(RecordedValue::Bool(b));
        serialize_i8(i8) => number;
        serialize_i16(i16) => number;
        serialize_i32(i32) => number;
        serialize_i64(i64) => number;
        serialize_u8(u8) => Part::Byte;
        serialize_u16(u16) => number;
        serialize_u32(u32) => number;
        serialize_u64(u64) => number;
        serialize_f32(f32) => |n| float(n.into());
        serialize_f64(f64) => float;
        serialize_char(char) => |c| text(c.encode_utf8(&mut [0; 4]));
        serialize_str(&str) => text;
        serialize_bytes(&[u8]) => |bytes| Part::Value(RecordedValue::Bytes(bytes.to_vec()));
    }

    fn serialize_none(self) -> Result<Part, CodecError> {
        Ok(Part::Value(RecordedValue::Null))
    }

    fn serialize_unit(self) -> Result<Part, CodecError> {
        Ok(Part::Value(RecordedValue::Null))
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Part, CodecError> {
        Ok(text(&variant_name(variant)))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Part, CodecError> {
        let value = value.serialize(self)?.into_value();
        Ok(Part::Value(RecordedValue::Record(vec![(
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
fn float(n: f64) -> Part {
    Number::from_f64(n).map_or_else(|| text(&n.to_string()), number)
}

/// The estimated bytes of a field or an item besides the bytes of its text: a `String` or a `Vec` has 24.
const FIELD_BYTES: usize = 24;

/// Estimates the bytes that a value keeps.
struct SizeEstimator;

/// A running estimate.
struct SizeSum(usize);

impl SizeSum {
    fn add<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), CodecError> {
        self.0 += item.serialize(SizeEstimator)?;
        Ok(())
    }
}

impl SerializeSeq for SizeSum {
    type Ok = usize;
    type Error = CodecError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), CodecError> {
        self.add(item)
    }

    fn end(self) -> Result<usize, CodecError> {
        Ok(self.0)
    }
}

impl SerializeTuple for SizeSum {
    type Ok = usize;
    type Error = CodecError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), CodecError> {
        self.add(item)
    }

    fn end(self) -> Result<usize, CodecError> {
        Ok(self.0)
    }
}

impl SerializeStruct for SizeSum {
    type Ok = usize;
    type Error = CodecError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        _: &'static str,
        value: &T,
    ) -> Result<(), CodecError> {
        self.0 += FIELD_BYTES;
        self.add(value)
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

/// Deserializes a value of the contract from a [`RecordedValue`].
struct ValueDeserializer(RecordedValue);

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

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::contract::bindings::{http, kubernetes, log, messaging, reconciler, types};

    /// Checks that a value survives a recording file.
    fn assert_round_trip<T: Recordable + PartialEq + Debug>(value: T) {
        let text = serde_json::to_string(&value.to_recorded()).unwrap();
        let read = T::from_recorded(serde_json::from_str(&text).unwrap());
        assert_eq!(read, Ok(value), "{text}");
    }

    fn reference() -> types::ObjectRef {
        types::ObjectRef {
            gvk: types::Gvk {
                group: "a.dev".into(),
                version: "v1".into(),
                kind: "Team".into(),
            },
            cluster: None,
            namespace: Some("n".into()),
            name: "x".into(),
        }
    }

    #[test]
    fn results_and_errors_survive_a_recording() {
        type Answer = Result<Option<Vec<u8>>, types::Error>;
        assert_round_trip::<Answer>(Ok(None));
        assert_round_trip::<Answer>(Ok(Some(br#"{"b":1,"a":{}}"#.to_vec())));
        assert_round_trip::<Answer>(Ok(Some(vec![0xff, 0])));
        assert_round_trip::<Answer>(Ok(Some(Vec::new())));
        for error in [
            types::Error::Denied("no".into()),
            types::Error::Throttled(7),
            types::Error::NotReady(types::NotReady {
                ref_: reference(),
                condition: "Ready".into(),
                status: types::ConditionStatus::True,
                exists: true,
                reason: String::new(),
                message: "m".into(),
            }),
        ] {
            assert_round_trip::<Answer>(Err(error));
        }
        assert_round_trip::<Vec<Result<http::Response, types::Error>>>(vec![Err(types::Error::Throttled(1))]);
        assert_round_trip(());
    }

    #[test]
    fn requests_survive_a_recording_with_kubernetes_names() {
        let request = http::Request {
            upstream: types::UpstreamRef {
                cluster: None,
                namespace: None,
                name: "ci".into(),
            },
            method: http::Method::Put,
            path_and_query: "/a?b=c".into(),
            headers: vec![http::Header {
                name: "accept".into(),
                value: "*/*".into(),
            }],
            body: Some(b"text".to_vec()),
            substitutions: vec![types::Substitution {
                placeholder: "0123456789abcdef".into(),
                source: types::SecretSource::Key(types::SecretKeyRef {
                    cluster: None,
                    namespace: None,
                    name: "s".into(),
                    key: "k".into(),
                }),
                encoding: types::Encoding::JsonString,
            }],
            timeout: Some(5),
        };
        let recorded = request.to_recorded();
        assert_eq!(
            recorded.get("pathAndQuery").and_then(RecordedValue::text),
            Some("/a?b=c")
        );
        assert_eq!(recorded.get("method").and_then(RecordedValue::text), Some("put"));
        assert_eq!(
            recorded.get("body"),
            Some(&RecordedValue::Bytes(b"text".to_vec()))
        );
        assert!(request.estimate_bytes() > 40, "{}", request.estimate_bytes());
        assert_round_trip(request);
        assert_round_trip(kubernetes::ListOptions {
            cluster: None,
            namespace: Some("n".into()),
            label_selector: None,
            field_selector: None,
            projection: kubernetes::Projection::Fields(vec!["spec".into()]),
            limit: Some(3),
            continue_token: None,
            live: false,
        });
        assert_round_trip(vec![("a".to_owned(), "b".to_owned())]);
        assert_round_trip(f64::INFINITY);
        assert_round_trip(1.5);
    }

    #[test]
    fn outcomes_survive_a_recording() {
        for next in [
            reconciler::Next::AwaitChange,
            reconciler::Next::Poll(None),
            reconciler::Next::Poll(Some(1)),
            reconciler::Next::At(2),
        ] {
            assert_round_trip(reconciler::Outcome {
                conditions: vec![types::Condition {
                    type_: "Ready".into(),
                    status: types::ConditionStatus::False,
                    reason: "R".into(),
                    message: "m".into(),
                }],
                status: Some(b"{}".to_vec()),
                next,
            });
        }
    }

    /// No case and no field of the contract reads like bytes in a file (`{"text": …}`).
    #[test]
    fn message_headers_of_every_type_survive_a_recording() {
        use types::HeaderValue as Value;
        let values = [
            Value::String("s".into()),
            Value::Bytes(vec![1, 2]),
            Value::Bytes(Vec::new()),
            Value::Boolean(true),
            Value::Integer(-1),
            Value::Float(0.5),
            Value::Timestamp(1),
            Value::Structure(br#"[{"count":1}]"#.to_vec()),
            Value::Empty,
        ];
        let headers = values.into_iter().map(|value| types::MessageHeader {
            name: "x".into(),
            value,
        });
        assert_round_trip(messaging::Message {
            exchange: String::new(),
            routing_key: "q".into(),
            properties: types::MessageProperties {
                content_type: None,
                content_encoding: None,
                headers: headers.collect(),
                persistent: true,
                priority: Some(3),
                correlation_id: None,
                reply_to: None,
                expiration: None,
                message_id: Some("m".into()),
                timestamp: None,
                type_: None,
                user_id: None,
                app_id: None,
            },
            body: b"{}".to_vec(),
            mandatory: true,
        });
    }

    #[test]
    fn malformed_value_is_an_error_with_its_field() {
        let error =
            |text: &str| http::Response::from_recorded(serde_json::from_str(text).unwrap()).expect_err(text);
        assert_eq!(error("[]"), "a record is needed, not a list");
        assert_eq!(
            error(r#"{"status": "ok"}"#),
            "status: a number is needed, not a text"
        );
        let range = error(r#"{"status": 70000}"#);
        assert!(
            range.starts_with("status: invalid value: integer `70000`"),
            "{range}"
        );
        let header = r#"{"status": 200, "headers": [{"name": "a"}]}"#;
        assert_eq!(
            error(header),
            "headers: [0]: value: a text is needed, not nothing"
        );
        let level = log::Level::from_recorded(RecordedValue::Text("loud".into())).expect_err("no level");
        assert!(level.contains("`loud` is none of trace, debug"), "{level}");
    }

    #[test]
    fn names_become_camel_case() {
        for (name, expected) in [
            ("path_and_query", "pathAndQuery"),
            ("ref_", "ref"),
            ("NotFound", "notFound"),
            ("Yes", "yes"),
            ("namespace", "namespace"),
        ] {
            assert_eq!(to_camel_case(name), expected);
        }
    }
}
