//! Macros for the parts that the serializers of this codec have in common.

/// Implements serializer methods by a function that takes the value.
macro_rules! serialize_as {
    ($($method:ident($type:ty) => $value:expr;)*) => {
        $(fn $method(self, value: $type) -> Result<Self::Ok, CodecError> {
            let convert: fn($type) -> Self::Ok = $value;
            Ok(convert(value))
        })*
    };
}

/// Implements the serializer methods of types that the contract does not have: they fail.
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

/// Implements the sequence and the tuple of a serializer by its methods `push` and `finish`.
macro_rules! serialize_items {
    ($items:ty => $output:ty) => {
        serialize_items!(SerializeSeq for $items => $output);
        serialize_items!(SerializeTuple for $items => $output);
    };
    ($trait:ident for $items:ty => $output:ty) => {
        impl $trait for $items {
            type Ok = $output;
            type Error = CodecError;

            fn serialize_element<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), CodecError> {
                self.push(item)
            }

            fn end(self) -> Result<$output, CodecError> {
                Ok(self.finish())
            }
        }
    };
}
