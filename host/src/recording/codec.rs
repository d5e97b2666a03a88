//! How each type of the contract is put on the tape, and taken from it.

use serde_json::Number;

use super::value::Shown;
use crate::contract::bindings::{events, http, kubernetes, log, messaging, reconciler, types};

/// A value that can be on the tape. Kept as it is while a reconcile runs; shown when a recording is looked at.
pub trait Taped: Send + Sync + 'static {
    /// As a tree.
    fn shown(&self) -> Shown;
    /// About how many bytes it keeps.
    fn weight(&self) -> usize;
    /// From a tree; the error says which field is wrong.
    fn read(shown: Shown) -> Result<Self, String>
    where
        Self: Sized;
}

/// `path_and_query` → `pathAndQuery`, `ref_` → `ref`, `NotFound` → `notFound`: names as Kubernetes writes them.
pub fn camel(name: &str) -> String {
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

fn wrong<T>(wanted: &str, shown: &Shown) -> Result<T, String> {
    let is = match shown {
        Shown::Null => "nothing",
        Shown::Bool(_) => "true or false",
        Shown::Number(_) => "a number",
        Shown::Text(_) => "a text",
        Shown::Bytes(_) => "bytes",
        Shown::List(_) => "a list",
        Shown::Record(_) => "a record",
    };
    Err(format!("{wanted} is needed, not {is}"))
}

/// The fields of a record that is being read.
struct Fields(Vec<(String, Shown)>);

impl Fields {
    fn of(shown: Shown) -> Result<Self, String> {
        match shown {
            Shown::Record(fields) => Ok(Self(fields)),
            other => wrong("a record", &other),
        }
    }

    fn take<T: Taped>(&mut self, field: &str) -> Result<T, String> {
        let name = camel(field);
        let found = self.0.iter_mut().find(|(n, _)| *n == name);
        let value = found.map(|(_, value)| std::mem::take(value)).unwrap_or_default();
        T::read(value).map_err(|e| format!("{name}: {e}"))
    }
}

macro_rules! numbers {
    ($($type:ty)*) => { $(
        impl Taped for $type {
            fn shown(&self) -> Shown {
                Shown::Number((*self).into())
            }
            fn weight(&self) -> usize {
                0
            }
            fn read(shown: Shown) -> Result<Self, String> {
                match &shown {
                    Shown::Number(n) => {
                        let n = n.as_u64().and_then(|n| n.try_into().ok());
                        n.ok_or_else(|| format!("{shown:?} is out of range"))
                    }
                    other => wrong("a number", other),
                }
            }
        }
    )* };
}

macro_rules! records {
    ($($type:ty { $($field:ident),* })*) => { $(
        impl Taped for $type {
            fn shown(&self) -> Shown {
                Shown::Record(vec![$((camel(stringify!($field)), self.$field.shown())),*])
            }
            fn weight(&self) -> usize {
                size_of::<Self>() $(+ self.$field.weight())*
            }
            fn read(shown: Shown) -> Result<Self, String> {
                let mut fields = Fields::of(shown)?;
                Ok(Self { $($field: fields.take(stringify!($field))?),* })
            }
        }
    )* };
}

macro_rules! variants {
    ($($type:ty { $($plain:ident)* ; $($case:ident($of:ty))* })*) => { $(
        impl Taped for $type {
            fn shown(&self) -> Shown {
                match self {
                    $(Self::$plain => Shown::Text(camel(stringify!($plain))),)*
                    $(Self::$case(value) => Shown::Record(vec![(camel(stringify!($case)), value.shown())]),)*
                }
            }
            fn weight(&self) -> usize {
                match self {
                    $(Self::$plain => 0,)*
                    $(Self::$case(value) => value.weight(),)*
                }
            }
            #[allow(unused_variables)] // where no case has a value
            fn read(shown: Shown) -> Result<Self, String> {
                let names = [$(camel(stringify!($plain)),)* $(camel(stringify!($case)),)*].join(", ");
                match shown {
                    Shown::Text(name) => {
                        $(if name == camel(stringify!($plain)) {
                            return Ok(Self::$plain);
                        })*
                        Err(format!("`{name}` is none of {names}"))
                    }
                    Shown::Record(fields) if fields.len() == 1 => {
                        for (name, value) in fields {
                            $(if name == camel(stringify!($case)) {
                                return <$of>::read(value).map(Self::$case).map_err(|e| format!("{name}: {e}"));
                            })*
                        }
                        Err(format!("one of {names} is needed"))
                    }
                    other => wrong(&names, &other),
                }
            }
        }
    )* };
}

numbers! { u16 u32 u64 }

records! {
    types::Gvk { group, version, kind }
    types::ObjectRef { gvk, cluster, namespace, name }
    types::Condition { type_, status, reason, message }
    types::NotReady { ref_, exists, reason, message }
    kubernetes::GetOptions { live, fields }
    kubernetes::ListOptions {
        cluster, namespace, label_selector, field_selector, fields, limit, continue_token, live
    }
    kubernetes::Page { items, continue_token }
    kubernetes::WriteOptions { owned, force }
    kubernetes::DeleteOptions { propagation, uid }
    http::Upstream { namespace, name }
    http::Header { name, value }
    http::Substitution { placeholder, namespace, secret, key, encoding }
    http::Request { upstream, method, path_and_query, headers, body, substitutions, timeout }
    http::Response { status, headers, body }
    http::EventMatch { name, data }
    http::Subscription { upstream, path_and_query, wake, until }
    http::Event { id, name, data }
    http::EventQuery { upstream, path_and_query, select, until, last, bytes, timeout }
    http::EventTail { events, skipped, complete }
    messaging::Message { exchange, routing_key, headers, content_type, body, persistent }
    reconciler::Request { object, ref_, attempt, causes }
    reconciler::Outcome { conditions, status, next }
    reconciler::Failure { resolution, reason, message, conditions, status }
}

variants! {
    types::TriState { Yes No Unknown; }
    types::Error {
        ;
        Denied(String) NotFound(String) Conflict(String) Invalid(String) Throttled(u64) Unavailable(String)
        NotReady(types::NotReady) Budget(String) Unsupported(String)
    }
    http::Encoding { Plain JsonString Form; }
    events::EventType { Normal Warning; }
    log::Level { Trace Debug Info Warn Error; }
    reconciler::Next { Settled; Poll(Option<u64>) After(u64) At(u64) }
    reconciler::Resolution { Retry Yield Parked; Throttled(u64) Denied(String) }
}

impl Taped for () {
    fn shown(&self) -> Shown {
        Shown::Null
    }
    fn weight(&self) -> usize {
        0
    }
    fn read(_: Shown) -> Result<Self, String> {
        Ok(())
    }
}

impl Taped for bool {
    fn shown(&self) -> Shown {
        Shown::Bool(*self)
    }
    fn weight(&self) -> usize {
        0
    }
    fn read(shown: Shown) -> Result<Self, String> {
        match shown {
            Shown::Bool(b) => Ok(b),
            other => wrong("true or false", &other),
        }
    }
}

impl Taped for f64 {
    /// What is no number in JSON (NaN, infinity) is a text.
    fn shown(&self) -> Shown {
        Number::from_f64(*self).map_or_else(|| Shown::Text(self.to_string()), Shown::Number)
    }
    fn weight(&self) -> usize {
        0
    }
    fn read(shown: Shown) -> Result<Self, String> {
        match &shown {
            Shown::Number(n) => n.as_f64().ok_or_else(|| "out of range".into()),
            Shown::Text(text) => text.parse().map_err(|_| format!("`{text}` is no number")),
            other => wrong("a number", other),
        }
    }
}

impl Taped for String {
    fn shown(&self) -> Shown {
        Shown::Text(self.clone())
    }
    fn weight(&self) -> usize {
        self.len()
    }
    fn read(shown: Shown) -> Result<Self, String> {
        match shown {
            Shown::Text(text) => Ok(text),
            other => wrong("a text", &other),
        }
    }
}

impl Taped for Vec<u8> {
    fn shown(&self) -> Shown {
        Shown::Bytes(self.clone())
    }
    fn weight(&self) -> usize {
        self.len()
    }
    fn read(shown: Shown) -> Result<Self, String> {
        match shown {
            Shown::Bytes(bytes) => Ok(bytes),
            other => wrong("bytes ({\"json\": …}, {\"text\": …} or {\"base64\": …})", &other),
        }
    }
}

impl<T: Taped> Taped for Vec<T> {
    fn shown(&self) -> Shown {
        Shown::List(self.iter().map(T::shown).collect())
    }
    fn weight(&self) -> usize {
        size_of::<T>() * self.len() + self.iter().map(T::weight).sum::<usize>()
    }
    fn read(shown: Shown) -> Result<Self, String> {
        match shown {
            Shown::List(items) => {
                let read = items.into_iter().enumerate();
                read.map(|(i, item)| T::read(item).map_err(|e| format!("[{i}]: {e}")))
                    .collect()
            }
            other => wrong("a list", &other),
        }
    }
}

impl<T: Taped> Taped for Option<T> {
    fn shown(&self) -> Shown {
        self.as_ref().map(T::shown).unwrap_or_default()
    }
    fn weight(&self) -> usize {
        self.as_ref().map_or(0, T::weight)
    }
    fn read(shown: Shown) -> Result<Self, String> {
        match shown {
            Shown::Null => Ok(None),
            some => T::read(some).map(Some),
        }
    }
}

impl<T: Taped, E: Taped> Taped for Result<T, E> {
    fn shown(&self) -> Shown {
        Shown::Record(vec![match self {
            Ok(value) => ("ok".into(), value.shown()),
            Err(error) => ("error".into(), error.shown()),
        }])
    }
    fn weight(&self) -> usize {
        match self {
            Ok(value) => value.weight(),
            Err(error) => error.weight(),
        }
    }
    fn read(shown: Shown) -> Result<Self, String> {
        let mut fields = Fields::of(shown)?;
        match fields.0.first().map(|(name, _)| &**name) {
            Some("ok") => fields.take("ok").map(Ok),
            Some("error") => fields.take("error").map(Err),
            _ => Err("`ok` or `error` is needed".into()),
        }
    }
}

impl<A: Taped, B: Taped> Taped for (A, B) {
    fn shown(&self) -> Shown {
        Shown::List(vec![self.0.shown(), self.1.shown()])
    }
    fn weight(&self) -> usize {
        self.0.weight() + self.1.weight()
    }
    fn read(shown: Shown) -> Result<Self, String> {
        match shown {
            Shown::List(items) => match <[Shown; 2]>::try_from(items) {
                Ok([a, b]) => Ok((A::read(a)?, B::read(b)?)),
                Err(_) => Err("two values are needed".into()),
            },
            other => wrong("a list", &other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    fn round<T: Taped + PartialEq + Debug>(value: T) {
        let text = serde_json::to_string(&value.shown()).unwrap();
        assert_eq!(T::read(serde_json::from_str(&text).unwrap()), Ok(value), "{text}");
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
    fn what_the_contract_has_goes_onto_the_tape_and_back() {
        type Answer = Result<Option<Vec<u8>>, types::Error>;
        round::<Answer>(Ok(None));
        round::<Answer>(Ok(Some(br#"{"b":1,"a":{}}"#.to_vec())));
        round::<Answer>(Ok(Some(vec![0xff, 0])));
        for error in [
            types::Error::Denied("no".into()),
            types::Error::Throttled(7),
            types::Error::NotReady(types::NotReady {
                ref_: reference(),
                exists: true,
                reason: String::new(),
                message: "m".into(),
            }),
        ] {
            round::<Answer>(Err(error));
        }
        let request = http::Request {
            upstream: http::Upstream {
                namespace: None,
                name: "ci".into(),
            },
            method: "PUT".into(),
            path_and_query: "/a?b=c".into(),
            headers: vec![http::Header {
                name: "accept".into(),
                value: "*/*".into(),
            }],
            body: Some(b"text".to_vec()),
            substitutions: vec![http::Substitution {
                placeholder: "0123456789abcdef".into(),
                namespace: None,
                secret: "s".into(),
                key: "k".into(),
                encoding: http::Encoding::JsonString,
            }],
            timeout: 5,
        };
        assert_eq!(
            request.shown().get("pathAndQuery").and_then(Shown::text),
            Some("/a?b=c")
        );
        round(request);
        for next in [
            reconciler::Next::Settled,
            reconciler::Next::Poll(None),
            reconciler::Next::Poll(Some(1)),
            reconciler::Next::At(2),
        ] {
            round(reconciler::Outcome {
                conditions: vec![types::Condition {
                    type_: "Ready".into(),
                    status: types::TriState::No,
                    reason: "R".into(),
                    message: "m".into(),
                }],
                status: Some(b"{}".to_vec()),
                next,
            });
        }
        round(vec![("a".to_owned(), "b".to_owned())]);
        round(f64::INFINITY);
        round(1.5);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |text: &str| http::Response::read(serde_json::from_str(text).unwrap()).expect_err(text);
        assert_eq!(said("[]"), "a record is needed, not a list");
        assert_eq!(
            said(r#"{"status": "ok"}"#),
            "status: a number is needed, not a text"
        );
        assert!(said(r#"{"status": 70000}"#).contains("out of range"));
        let header = r#"{"status": 200, "headers": [{"name": "a"}]}"#;
        assert_eq!(said(header), "headers: [0]: value: a text is needed, not nothing");
        let level = log::Level::read(Shown::Text("loud".into())).expect_err("no level");
        assert!(level.contains("`loud` is none of trace, debug"), "{level}");
    }

    #[test]
    fn names_are_as_kubernetes_writes_them() {
        for (name, wanted) in [
            ("path_and_query", "pathAndQuery"),
            ("ref_", "ref"),
            ("NotFound", "notFound"),
            ("Yes", "yes"),
            ("namespace", "namespace"),
        ] {
            assert_eq!(camel(name), wanted);
        }
    }
}
