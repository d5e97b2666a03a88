//! Decoding of Kubernetes' protobuf, which some clients send for built-in kinds in any case.
//!
//! Responses are always JSON, which every client accepts. The messages in `protobuf/messages.json.zlib` are those of the
//! published `generated.proto` files of k8s.io/api and k8s.io/apimachinery v0.36, whose field numbers never change: for each
//! field its number, its name in JSON (empty if its fields are those of the message around it), its type, and 1 if JSON has
//! it with a zero value, too: Go leaves those of other fields out.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::published::read_compressed;

/// The messages, as JSON that zlib has compressed.
const COMPRESSED_MESSAGES: &[u8] = include_bytes!("protobuf/messages.json.zlib");
/// Package of the messages that all kinds share.
const META_PACKAGE: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Package of CustomResourceDefinitions, without its version.
const EXTENSIONS_PACKAGE: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions";

/// A field of a message: its number, its name in JSON, its type, and 1 if JSON has its zero value.
#[derive(Debug, Deserialize)]
struct MessageField(u64, String, String, u8);

static MESSAGES: LazyLock<HashMap<String, Vec<MessageField>>> =
    LazyLock::new(|| read_compressed(COMPRESSED_MESSAGES));

/// Fields of the type in the envelope of an object.
const TYPE_FIELDS: [(u64, &str); 2] = [(1, "apiVersion"), (2, "kind")];

/// Decodes an object in Kubernetes' envelope; `None` for a malformed message or an unknown kind.
pub fn decode_object(bytes: &[u8]) -> Option<Value> {
    let envelope = split_fields(bytes.strip_prefix(b"k8s\0")?)?;
    let raw = |number: u64| {
        envelope
            .iter()
            .find(|(found, _)| *found == number)
            .and_then(|(_, wire)| wire.bytes())
    };
    let mut object = json!({});
    for (number, wire) in split_fields(raw(1)?)? {
        if let Some((_, name)) = TYPE_FIELDS.iter().find(|(known, _)| *known == number) {
            object[*name] = std::str::from_utf8(wire.bytes()?).ok()?.into();
        }
    }
    let message = message_name(object["apiVersion"].as_str()?, object["kind"].as_str()?);
    // The names of a schema's keywords in JSON are not those of its fields.
    if message.starts_with(EXTENSIONS_PACKAGE) {
        return None;
    }
    let mut fields = Map::new();
    decode_message(MESSAGES.get(&message)?, raw(2).unwrap_or_default(), &mut fields)?;
    fields.extend(object.as_object()?.clone());
    Some(fields.into())
}

/// The name of a kind's message.
fn message_name(api_version: &str, kind: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if kind == "DeleteOptions" || group == "meta.k8s.io" {
        return format!("{META_PACKAGE}.{kind}");
    }
    if group.starts_with("apiextensions.") {
        return format!("{EXTENSIONS_PACKAGE}.{version}.{kind}");
    }
    let group = match group {
        "" => "core",
        group => group.split('.').next().unwrap_or(group),
    };
    format!("io.k8s.api.{group}.{version}.{kind}")
}

#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) => None,
        }
    }
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn split_fields(mut bytes: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes)?;
        let length = match key & 7 {
            0 => {
                found.push((key >> 3, Wire::Number(read_varint(&mut bytes)?)));
                continue;
            }
            1 => 8,
            2 => usize::try_from(read_varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (value, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        found.push((key >> 3, Wire::Bytes(value)));
    }
    Some(found)
}

fn decode_message(known: &[MessageField], bytes: &[u8], object: &mut Map<String, Value>) -> Option<()> {
    for (number, wire) in split_fields(bytes)? {
        let Some(MessageField(_, name, kind, keeps_zero)) = known.iter().find(|field| field.0 == number)
        else {
            continue;
        };
        if name.is_empty() {
            decode_message(MESSAGES.get(kind)?, wire.bytes()?, object)?;
        } else if let Some(kind) = kind.strip_prefix("map ") {
            let (key, value) = decode_entry(kind, wire.bytes()?)?;
            let map = object.entry(name).or_insert_with(|| json!({}));
            map.as_object_mut()?.insert(key, value);
        } else if let Some(kind) = kind.strip_prefix("list ") {
            let list = object.entry(name).or_insert_with(|| json!([]));
            list.as_array_mut()?.push(decode_value(kind, wire)?);
        } else {
            let value = decode_value(kind, wire)?;
            // Go encodes fields without a value, too.
            if !value.is_null() && (*keeps_zero == 1 || !is_zero(&value)) {
                object.insert(name.clone(), value);
            }
        }
    }
    Some(())
}

/// Drops the zero values of fields that Go leaves out when it encodes an object of a built-in kind.
pub fn drop_zero_values(object: &mut Value) {
    drop_zero_fields(&message_of(object), object);
}

/// Writes nulls for the fields that Go writes though they have no value: lists and maps, and times that are no pointers.
pub fn write_null_values(object: &mut Value) {
    write_null_fields(&message_of(object), object, EmptyLists::Kept);
}

/// As [`write_null_values`], for an object that is stored: as protobuf an empty list is none.
pub fn write_stored_nulls(object: &mut Value) {
    write_null_fields(&message_of(object), object, EmptyLists::Nulls);
}

/// Empty lists and maps that a client has sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EmptyLists {
    Kept,
    Nulls,
}

/// The name of an object's message.
fn message_of(object: &Value) -> String {
    let name = |field: &str| object[field].as_str().unwrap_or_default();
    message_name(name("apiVersion"), name("kind"))
}

fn write_null_fields(owner: &str, value: &mut Value, lists: EmptyLists) {
    let Some(known) = MESSAGES.get(owner).filter(|_| value.is_object()) else {
        return;
    };
    for MessageField(_, name, kind, keeps_zero) in known {
        if name.is_empty() {
            write_null_fields(kind, value, lists);
            continue;
        }
        let message = kind.rsplit(' ').next().unwrap_or_default();
        let is_container = kind.contains(' ');
        let field = &mut value[name];
        match field {
            Value::Array(items) if !items.is_empty() => {
                items
                    .iter_mut()
                    .for_each(|item| write_null_fields(message, item, lists));
            }
            Value::Object(entries) if is_container && !entries.is_empty() => {
                entries
                    .values_mut()
                    .for_each(|entry| write_null_fields(message, entry, lists));
            }
            Value::Object(_) if !is_container => write_null_fields(message, field, lists),
            Value::Array(_) | Value::Object(_) if is_container && lists == EmptyLists::Kept => {}
            _ if is_container && *keeps_zero == 1 => *field = Value::Null,
            Value::Null if is_time_value(owner, kind, *keeps_zero) => {}
            Value::Null => {
                if let Some(fields) = value.as_object_mut() {
                    fields.remove(name);
                }
            }
            _ => {}
        }
    }
}

/// Returns true for a time that is no pointer, whose zero Go writes as null: `omitempty` leaves out no structure.
fn is_time_value(owner: &str, kind: &str, keeps_zero: u8) -> bool {
    let is_time = matches!(kind.strip_prefix(META_PACKAGE), Some(".Time" | ".MicroTime"));
    // Those without `omitempty` are as marked as pointers are.
    is_time
        && if keeps_zero == 1 {
            owner.ends_with(".meta.v1.Condition") || owner.starts_with("io.k8s.api.events.")
        } else {
            !owner.ends_with(".ObjectMeta")
        }
}

/// Returns the fields of a definition that Go writes in any case, though they are no pointers: lists and maps are null if
/// nobody has set them.
pub fn list_constant_fields(definition: &str) -> impl Iterator<Item = (&'static str, bool)> {
    let known = MESSAGES.get(definition).into_iter().flatten();
    known
        .filter(|field| field.3 == 1)
        .map(|MessageField(_, name, kind, _)| (name.as_str(), kind.contains(' ')))
}

fn drop_zero_fields(message: &str, value: &mut Value) {
    let Some(known) = MESSAGES.get(message) else {
        return;
    };
    for MessageField(_, name, kind, keeps_zero) in known {
        let (is_list, message) = match kind.split_once(' ') {
            Some((_, message)) => (true, message),
            None => (false, kind.as_str()),
        };
        if name.is_empty() {
            drop_zero_fields(message, value);
            continue;
        }
        let Some(field) = value.get_mut(name) else {
            continue;
        };
        match field {
            Value::Array(items) => items.iter_mut().for_each(|item| drop_zero_fields(message, item)),
            Value::Object(entries) if is_list => {
                entries
                    .values_mut()
                    .for_each(|entry| drop_zero_fields(message, entry));
            }
            _ => drop_zero_fields(message, field),
        }
        let is_empty = is_zero(field) || (is_list && is_empty_container(field));
        if *keeps_zero == 0
            && is_empty
            && let Some(fields) = value.as_object_mut()
        {
            fields.remove(name);
        }
    }
}

fn is_zero(value: &Value) -> bool {
    *value == "" || *value == 0 || *value == false
}

fn is_empty_container(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

fn decode_entry(kind: &str, bytes: &[u8]) -> Option<(String, Value)> {
    let (mut key, mut value) = (String::new(), Value::Null);
    for (number, wire) in split_fields(bytes)? {
        match number {
            1 => key = std::str::from_utf8(wire.bytes()?).ok()?.to_owned(),
            2 => value = decode_value(kind, wire)?,
            _ => {}
        }
    }
    if value.is_null() && kind == "string" {
        value = "".into();
    }
    Some((key, value))
}

fn decode_value(kind: &str, wire: Wire<'_>) -> Option<Value> {
    Some(match (kind, wire) {
        ("string", Wire::Bytes(text)) => std::str::from_utf8(text).ok()?.into(),
        ("bytes", Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        ("bool", Wire::Number(number)) => (number != 0).into(),
        // Negative numbers are encoded in two's complement.
        ("int32" | "int64" | "uint32" | "uint64", Wire::Number(number)) => (number as i64).into(),
        (message, Wire::Bytes(bytes)) => match message.rsplit('.').next()? {
            "Time" => decode_time(bytes, false)?,
            "MicroTime" => decode_time(bytes, true)?,
            "Quantity" => decode_fields(message, bytes)?["string"].clone(),
            "IntOrString" => decode_int_or_string(&decode_fields(message, bytes)?),
            "FieldsV1" | "RawExtension" => decode_json(bytes)?,
            _ => decode_fields(message, bytes)?,
        },
        _ => return None,
    })
}

fn decode_fields(message: &str, bytes: &[u8]) -> Option<Value> {
    let mut fields = Map::new();
    decode_message(MESSAGES.get(message)?, bytes, &mut fields)?;
    Some(fields.into())
}

fn decode_int_or_string(fields: &Value) -> Value {
    if fields["type"] == 1 {
        return fields["strVal"].as_str().unwrap_or_default().into();
    }
    fields["intVal"].as_i64().unwrap_or_default().into()
}

/// A message whose only field has JSON.
fn decode_json(bytes: &[u8]) -> Option<Value> {
    let raw = split_fields(bytes)?
        .into_iter()
        .find(|(number, _)| *number == 1)?;
    serde_json::from_slice(raw.1.bytes()?).ok()
}

fn decode_time(bytes: &[u8], has_micros: bool) -> Option<Value> {
    let (mut seconds, mut nanos) = (None, 0);
    for (number, wire) in split_fields(bytes)? {
        match (number, wire) {
            (1, Wire::Number(number)) => seconds = Some(number as i64),
            (2, Wire::Number(number)) => nanos = i32::try_from(number as i64).ok()?,
            _ => return None,
        }
    }
    // An absent time is an empty message.
    let Some(seconds) = seconds else {
        return Some(Value::Null);
    };
    let time = jiff::Timestamp::new(seconds, nanos).ok()?;
    let format = if has_micros {
        "%Y-%m-%dT%H:%M:%S.%6fZ"
    } else {
        "%Y-%m-%dT%H:%M:%SZ"
    };
    Some(time.strftime(format).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let key = number << 3 | 2;
        let key = if key < 128 { vec![key] } else { vec![key, 1] };
        [key.as_slice(), &[content.len() as u8], content].concat()
    }

    fn envelope(api_version: &[u8], kind: &[u8], message: &[u8]) -> Vec<u8> {
        let kind = [field(1, api_version), field(2, kind)].concat();
        [
            b"k8s\0".as_slice(),
            &field(1, &kind),
            &field(2, message),
            &field(3, b""),
        ]
        .concat()
    }

    #[test]
    fn secret_is_decoded_and_truncation_is_refused() {
        let meta = [
            field(1, b"s"),
            field(2, b""),
            field(11, &[field(1, b"l"), field(2, b"v")].concat()),
        ]
        .concat();
        let secret = [
            field(1, &meta),
            field(2, &[field(1, b"k"), field(2, b"b")].concat()),
            field(3, b"Opaque"),
        ]
        .concat();
        let bytes = envelope(b"v1", b"Secret", &secret);
        let expected = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"k": "Yg=="}, "metadata": {"name": "s", "labels": {"l": "v"}},
        });
        assert_eq!(decode_object(&bytes), Some(expected));
        for length in 0..bytes.len() - 4 {
            // A truncated message is refused or decoded in part; it never panics.
            let _ = decode_object(&bytes[..length]);
        }
        assert_eq!(decode_object(b"{}"), None);
    }

    #[test]
    fn fields_of_inline_messages_belong_to_the_one_around_them() {
        // A volume of a ConfigMap: the source is inline, and so is the name in it.
        let source = field(19, &field(1, &field(1, b"settings")));
        let volume = [field(1, b"v"), field(2, &source)].concat();
        let pod = field(2, &field(1, &volume));
        let decoded = decode_object(&envelope(b"v1", b"Pod", &pod)).unwrap();
        assert_eq!(
            decoded["spec"]["volumes"],
            json!([{"name": "v", "configMap": {"name": "settings"}}])
        );
    }

    #[test]
    fn zero_values_are_dropped_as_go_leaves_them_out() {
        let mut deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {
            "replicas": 0, "minReadySeconds": 0, "paused": false,
            "template": {"spec": {"hostNetwork": false, "nodeSelector": {}, "containers": [{"name": "a", "tty": false, "env": []}]}},
        }});
        drop_zero_values(&mut deployment);
        assert_eq!(
            deployment["spec"],
            json!({"replicas": 0, "template": {"spec": {"containers": [{"name": "a"}]}}})
        );
    }

    #[test]
    fn service_port_has_a_number_or_a_name_as_its_target() {
        let port = |target: Vec<u8>| [[3 << 3, 80].as_slice(), &field(4, &target)].concat();
        let service = |target: Vec<u8>| envelope(b"v1", b"Service", &field(2, &field(1, &port(target))));
        let named = decode_object(&service([[8, 1].as_slice(), &field(3, b"web")].concat())).unwrap();
        assert_eq!(named["spec"]["ports"], json!([{"port": 80, "targetPort": "web"}]));
        let numbered = decode_object(&service(vec![8, 0, 16, 81])).unwrap();
        assert_eq!(numbered["spec"]["ports"], json!([{"port": 80, "targetPort": 81}]));
    }
}
