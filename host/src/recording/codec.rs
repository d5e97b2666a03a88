//! Conversion between the types of the contract and [`RecordedValue`], by the serde implementations that `bindgen!`
//! derives for them.
//!
//! Names become camelCase, as Kubernetes writes them. A `list<u8>` becomes bytes: serde passes it as a sequence of
//! `u8`, which the contract has nowhere else. An empty list is an empty [`RecordedValue::List`], whatever its items.

#[macro_use]
mod macros;
mod deserializer;
mod error;
mod serializer;
mod size;

use serde::{Serialize, de::DeserializeOwned};

use self::{
    deserializer::ValueDeserializer,
    error::CodecError,
    serializer::{SerializedPart, ValueSerializer},
    size::SizeEstimator,
};
use super::value::RecordedValue;

/// A value that can be recorded. It is kept unconverted while the reconcile runs, and converted when a recording is read.
pub trait Recordable: Send + Sync + 'static {
    /// Converts the value.
    fn to_recorded(&self) -> RecordedValue;

    /// Estimates the bytes that the value occupies.
    fn estimate_bytes(&self) -> usize;

    /// Converts a recorded value. The error names the field.
    fn from_recorded(value: RecordedValue) -> Result<Self, String>
    where
        Self: Sized;
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Recordable for T {
    fn to_recorded(&self) -> RecordedValue {
        self.serialize(ValueSerializer)
            .map_or(RecordedValue::Null, SerializedPart::into_value)
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

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use wit_parser::TypeDefKind;

    use super::{super::value::BYTES_KEYS, *};
    use crate::contract::{
        bindings::{http, kubernetes, log, messaging, reconciler, types},
        inspection::host_contract,
    };

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

    /// A record with one field and a case with a value are objects with one key in a file, as bytes are (`{"text": …}`).
    #[test]
    fn contract_has_no_type_that_reads_like_bytes() {
        let (contract, _) = host_contract();
        let mut checked = 0;
        for (_, ty) in &contract.types {
            let keys: Vec<&str> = match &ty.kind {
                TypeDefKind::Record(record) if record.fields.len() == 1 => vec![&record.fields[0].name],
                TypeDefKind::Variant(variant) => {
                    let cases = variant.cases.iter().filter(|case| case.ty.is_some());
                    cases.map(|case| &*case.name).collect()
                }
                _ => continue,
            };
            for key in keys {
                assert!(!BYTES_KEYS.contains(&key), "{:?} has `{key}`", ty.name);
                checked += 1;
            }
        }
        assert!(checked > 10, "{checked}");
    }

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
