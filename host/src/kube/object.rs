//! One Kubernetes object as the host keeps it: its JSON bytes and a small parsed header.

mod depth;
mod json;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use ostler_readiness::{NotReady, check_built_in, is_built_in_group};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, value::RawValue};

use self::depth::DeepField;
pub use self::json::{Dictionary, Json};
use crate::kube::{
    key::{Gvk, ObjectRef},
    raw_json::{Entries, Text, find_scalar, scalar_text},
    uid::Uid,
    well_known::{bookkeeping::HELD_BY, condition_type},
};

/// Labels of an object, sorted by key and stored as one string, because there are many of them in the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<str>);

impl Labels {
    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// Iterates over all labels.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.lines().filter_map(|line| line.split_once('='))
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Labels {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(pairs: T) -> Self {
        let sorted: BTreeMap<_, _> = pairs.into_iter().collect();
        let mut lines = String::with_capacity(sorted.iter().map(|(k, v)| k.len() + v.len() + 2).sum());
        // The separators are safe: API servers accept neither `=` nor a newline in label keys and values.
        for (key, value) in sorted {
            if !lines.is_empty() {
                lines.push('\n');
            }
            lines.extend([key, "=", value]);
        }
        Self(lines.into())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = Option::<BTreeMap<Cow<'de, str>, Cow<'de, str>>>::deserialize(deserializer)?;
        Ok(map.iter().flatten().map(|(k, v)| (&**k, &**v)).collect())
    }
}

/// An object: its JSON without `managedFields`, and the fields that the host needs often.
#[derive(Debug)]
pub struct KubeObject {
    /// The whole object as JSON, `apiVersion` and `kind` included.
    pub json: Json,
    /// Changes with every write. Comparable as a number within one kind.
    pub resource_version: u64,
    /// Distinguishes this object from earlier ones of the same name.
    pub uid: Uid,
    /// Changes with the spec; 0 for kinds without one.
    pub generation: i64,
    /// Its labels.
    pub labels: Labels,
    /// The fields that few objects have.
    rare: Option<Box<RareFields>>,
    /// A digest of the desired state: everything but `status` and the bookkeeping in `metadata`. It stays the same
    /// when only the status is written.
    pub intent: u64,
}

/// Fields that few objects have. Most of the many cached objects save their size by one pointer.
#[derive(Debug, Default, PartialEq, Eq)]
struct RareFields {
    finalizers: Box<[Box<str>]>,
    deletion_timestamp: Option<Box<str>>,
    annotations: Box<[(Box<str>, Box<str>)]>,
    unreadable: Option<Box<str>>,
}

/// Maximum depth of nesting of a field. JSON parsers stop there (serde_json, in the host and in components, at 128),
/// while an API server accepts 10,000 levels.
const MAX_FIELD_DEPTH: usize = 120;

/// The error for bytes that are not a Kubernetes object.
#[derive(Debug, thiserror::Error)]
#[error("not a Kubernetes object: {0}")]
pub struct InvalidObject(String);

impl KubeObject {
    /// Parses an object of a known kind. List items come without `apiVersion` and `kind`; they are added.
    pub fn parse(gvk: &Gvk, json: &[u8]) -> Result<(ObjectRef, Self), InvalidObject> {
        let wrong = |e: serde_json::Error| InvalidObject(e.to_string());
        let top: Entries = serde_json::from_slice(json).map_err(wrong)?;
        let mut intent = DefaultHasher::new();
        let mut out = Vec::with_capacity(json.len());
        let mut meta = Meta::default();
        out.extend_from_slice(b"{\"apiVersion\":");
        match &*gvk.group {
            "" => serde_json::to_writer(&mut out, &*gvk.version),
            group => serde_json::to_writer(&mut out, &format_args!("{group}/{}", gvk.version)),
        }
        .map_err(wrong)?;
        out.extend_from_slice(b",\"kind\":");
        serde_json::to_writer(&mut out, &*gvk.kind).map_err(wrong)?;
        for (key, value) in &top.0 {
            match &**key {
                "apiVersion" | "kind" => continue,
                "metadata" => {
                    out.extend_from_slice(b",\"metadata\":{");
                    let entries: Entries = serde_json::from_str(value.get()).map_err(wrong)?;
                    let mut first = true;
                    for (key, value) in &entries.0 {
                        if &**key == "managedFields" {
                            continue;
                        }
                        meta.set_field(key, value.get()).map_err(wrong)?;
                        if !matches!(&**key, "resourceVersion" | "generation") {
                            (key, value.get()).hash(&mut intent);
                        }
                        if !std::mem::take(&mut first) {
                            out.push(b',');
                        }
                        write_entry(&mut out, key, value).map_err(wrong)?;
                    }
                    out.push(b'}');
                }
                _ => {
                    if &**key != "status" {
                        (key, value.get()).hash(&mut intent);
                    }
                    if depth::exceeds(value.get(), MAX_FIELD_DEPTH) {
                        let field = depth::find_deep_field(key, value.get(), MAX_FIELD_DEPTH);
                        meta.rare
                            .unreadable
                            .get_or_insert_with(|| describe_deep_field(&field).into());
                        continue;
                    }
                    out.push(b',');
                    write_entry(&mut out, key, value).map_err(wrong)?;
                }
            }
        }
        out.push(b'}');
        if meta.name.0.is_empty() {
            return Err(InvalidObject("metadata.name is missing".into()));
        }
        let object = Self {
            json: out.into(),
            resource_version: meta.resource_version.0.parse().unwrap_or(0),
            uid: Uid::from(&*meta.uid.0),
            generation: meta.generation,
            labels: meta.labels,
            rare: (meta.rare != RareFields::default()).then(|| Box::new(meta.rare)),
            intent: intent.finish(),
        };
        Ok((
            ObjectRef::new(gvk.clone(), &meta.namespace.0, &meta.name.0),
            object,
        ))
    }

    /// Its finalizers.
    pub fn finalizers(&self) -> &[Box<str>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.finalizers)
    }

    /// Time at which its deletion was requested (RFC 3339).
    pub fn deletion_timestamp(&self) -> Option<&str> {
        self.rare.as_ref()?.deletion_timestamp.as_deref()
    }

    /// The fields that are nested too deeply to be parsed (`spec.instanceVars is nested 140 levels deep, …`). Their
    /// top-level field is missing in `json`, so that no reader of this object can fail on it.
    pub fn unreadable(&self) -> Option<&str> {
        self.rare.as_ref()?.unreadable.as_deref()
    }

    /// Returns true once its deletion was requested.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp().is_some()
    }

    /// Returns true if it carries this finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers().iter().any(|have| **have == *finalizer)
    }

    /// The whole object as a JSON value. A field that is valid JSON but has no value (the number `1e999`, a lone
    /// surrogate) is left out.
    pub fn to_value(&self) -> Value {
        let text = self.json.text();
        serde_json::from_slice(&text).unwrap_or_else(|_| parse_fields(&text))
    }

    /// Its `status` as a JSON value; none if it has none. The other fields are not parsed.
    pub fn status(&self) -> Option<Value> {
        let text = self.json.text();
        let entries: Entries = serde_json::from_slice(&text).ok()?;
        serde_json::from_str(entries.get("status")?).ok()
    }

    /// The value of one of the host's annotations (`ostler.dev/…`, `held-by.ostler.dev/…`).
    pub fn annotation(&self, name: &str) -> Option<&str> {
        let annotations = &self.rare.as_ref()?.annotations;
        let found = annotations.iter().find(|(key, _)| **key == *name);
        found.map(|(_, value)| &**value)
    }

    /// The scalar at a path of fields (`spec.nodeName`) as text, as a field selector compares it; empty when it
    /// isn't there.
    pub fn field_text(&self, path: &str) -> String {
        let text = self.json.text();
        let json = std::str::from_utf8(&text).unwrap_or_default();
        find_scalar(json, path.split('.')).unwrap_or_default()
    }

    /// The scalars at several paths, as [`KubeObject::field_text`] returns them. The object is parsed once.
    pub fn field_texts(&self, paths: &[&str]) -> Vec<String> {
        match paths {
            [] => Vec::new(),
            [path] => vec![self.field_text(path)],
            _ => {
                let text = self.json.text();
                find_scalars(std::str::from_utf8(&text).unwrap_or_default(), paths)
            }
        }
    }

    /// The value of `data[key]`: base64-decoded for a Secret, verbatim for a ConfigMap.
    pub fn data_value(&self, key: &str) -> Option<Vec<u8>> {
        use base64::Engine;
        #[derive(Deserialize)]
        struct Partial {
            kind: String,
            #[serde(default)]
            data: BTreeMap<String, String>,
        }
        let partial: Partial = serde_json::from_slice(&self.json.text()).ok()?;
        let value = partial.data.get(key)?;
        if partial.kind == "Secret" {
            base64::engine::general_purpose::STANDARD.decode(value).ok()
        } else {
            Some(value.clone().into_bytes())
        }
    }

    /// Its Ready condition, evaluated for the current generation.
    pub fn readiness(&self) -> Readiness {
        self.check_condition(condition_type::READY, "True")
    }

    /// Its readiness for the current generation: by the rule of its kind if that is a built-in one, else by its Ready
    /// condition.
    pub fn check_ready(&self, gvk: &Gvk) -> Readiness {
        if !is_built_in_group(&gvk.group) {
            return self.readiness();
        }
        match check_built_in(&gvk.group, &gvk.kind, &self.to_value()) {
            Ok(()) => Readiness {
                ready: true,
                ..Readiness::default()
            },
            Err(NotReady { reason, message }) => Readiness {
                ready: false,
                reason,
                message,
            },
        }
    }

    /// Returns whether a condition has a status for the current generation, with its reason and message.
    pub fn check_condition(&self, kind: &str, required_status: &str) -> Readiness {
        #[derive(Deserialize)]
        struct Partial {
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            conditions: Vec<Condition>,
            observed_generation: Option<i64>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Condition {
            r#type: String,
            status: String,
            reason: String,
            message: String,
            observed_generation: Option<i64>,
        }
        let Ok(Partial { status }) = serde_json::from_slice(&self.json.text()) else {
            return Readiness::default();
        };
        let observed = status.observed_generation;
        match status.conditions.into_iter().find(|c| c.r#type == kind) {
            None => Readiness::default(),
            Some(c) => Readiness {
                ready: c.status == required_status
                    && !self.is_deleting()
                    && c.observed_generation
                        .or(observed)
                        .is_none_or(|g| g == self.generation),
                reason: c.reason,
                message: c.message,
            },
        }
    }
}

/// The state of a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The condition has the required status for the current generation, and the object is not being deleted.
    pub ready: bool,
    /// The condition's reason; empty without one.
    pub reason: String,
    /// The condition's message; empty without one.
    pub message: String,
}

#[derive(Default)]
struct Meta<'a> {
    name: Text<'a>,
    namespace: Text<'a>,
    uid: Text<'a>,
    resource_version: Text<'a>,
    generation: i64,
    labels: Labels,
    rare: RareFields,
}

impl<'a> Meta<'a> {
    fn set_field(&mut self, key: &str, json: &'a str) -> serde_json::Result<()> {
        match key {
            "name" => self.name = serde_json::from_str(json)?,
            "namespace" => self.namespace = serde_json::from_str(json)?,
            "uid" => self.uid = serde_json::from_str(json)?,
            "resourceVersion" => self.resource_version = serde_json::from_str(json)?,
            "generation" => self.generation = serde_json::from_str(json)?,
            "labels" => self.labels = serde_json::from_str(json)?,
            "finalizers" => {
                self.rare.finalizers = serde_json::from_str::<Option<_>>(json)?.unwrap_or_default()
            }
            "annotations" if json.contains("ostler.dev/") => {
                let all: BTreeMap<Text<'_>, Text<'_>> = serde_json::from_str(json)?;
                // Not those of packs, nor the digests of applies, which are many and rarely needed.
                let is_ours = |key: &str| key.starts_with("ostler.dev/") || key.starts_with(HELD_BY);
                let ours = all.into_iter().filter(|(key, _)| is_ours(&key.0));
                self.rare.annotations = ours.map(|(key, value)| (key.0.into(), value.0.into())).collect();
            }
            "deletionTimestamp" => self.rare.deletion_timestamp = serde_json::from_str(json)?,
            _ => {}
        }
        Ok(())
    }
}

fn describe_deep_field(field: &DeepField) -> String {
    format!(
        "{} is nested {} levels deep, more than the {MAX_FIELD_DEPTH} that can be read: store it flatter",
        field.path, field.depth
    )
}

/// Parses each field of an object and of its metadata separately, without the ones that have no value.
fn parse_fields(json: &[u8]) -> Value {
    let Ok(entries) = serde_json::from_slice::<Entries>(json) else {
        return Value::Object(Map::new());
    };
    let fields = entries.0.iter().filter_map(|(key, value)| {
        let parsed = serde_json::from_str(value.get());
        let value = match &**key {
            "metadata" => parsed.unwrap_or_else(|_| parse_fields(value.get().as_bytes())),
            _ => parsed.ok()?,
        };
        Some((key.to_string(), value))
    });
    Value::Object(fields.collect())
}

/// The scalars at several paths of fields; empty where there is none. Each level is parsed once for all paths.
fn find_scalars(json: &str, paths: &[&str]) -> Vec<String> {
    let mut found = vec![String::new(); paths.len()];
    let mut levels: Vec<(&str, Vec<(usize, &str)>)> =
        vec![(json, paths.iter().copied().enumerate().collect())];
    while let Some((json, wanted)) = levels.pop() {
        let Ok(entries) = serde_json::from_str::<Entries>(json) else {
            continue;
        };
        let mut deeper: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
        for (at, path) in wanted {
            match path.split_once('.') {
                Some((field, rest)) => deeper.entry(field).or_default().push((at, rest)),
                None => found[at] = entries.get(path).and_then(scalar_text).unwrap_or_default(),
            }
        }
        let values = deeper
            .into_iter()
            .filter_map(|(field, rest)| Some((entries.get(field)?, rest)));
        levels.extend(values);
    }
    found
}

fn write_entry(out: &mut Vec<u8>, key: &str, value: &RawValue) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *out, key)?;
    out.push(b':');
    out.extend_from_slice(value.get().as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(extra: &str) -> (ObjectRef, KubeObject) {
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","generation":2,
                "labels":{{"x":"y"}},"managedFields":[{{"manager":"m"}}]}},"spec":{{"b":1}}{extra}}}"#
        );
        KubeObject::parse(&Gvk::new("g.io", "v1", "Team"), json.as_bytes()).unwrap()
    }

    #[test]
    fn parse_keeps_everything_but_managed_fields() {
        let (key, object) = team("");
        assert_eq!(key.to_string(), "Team/n/a");
        assert_eq!(
            object.to_value(),
            serde_json::json!({"apiVersion":"g.io/v1","kind":"Team","metadata":{"name":"a","namespace":"n","uid":"u",
                "resourceVersion":"7","generation":2,"labels":{"x":"y"}},"spec":{"b":1}})
        );
        assert_eq!((object.resource_version, object.generation), (7, 2));
    }

    #[test]
    fn status_change_leaves_the_intent_digest_unchanged() {
        let with_status =
            team(r#","status":{"conditions":[{"type":"Ready","status":"True","observedGeneration":2}]}"#).1;
        assert_eq!(team("").1.intent, with_status.intent);
        assert_ne!(team(r#","data":{}"#).1.intent, with_status.intent);
        assert!(with_status.readiness().ready);
        assert!(
            !team(r#","status":{"conditions":[{"type":"Ready","status":"True","observedGeneration":1}]}"#)
                .1
                .readiness()
                .ready
        );
    }

    #[test]
    fn field_path_yields_the_scalar_or_nothing() {
        let (_, object) = team(r#","status":{"n":3,"s":"x","l":[1],"z":null}"#);
        for (path, value) in [
            ("metadata.name", "a"),
            ("spec.b", "1"),
            ("status.n", "3"),
            ("status.s", "x"),
            ("status.l", ""),
            ("status.z", ""),
            ("status.none.deeper", ""),
            ("", ""),
        ] {
            assert_eq!(object.field_text(path), value, "{path}");
        }
        let paths = [
            "status.none.deeper",
            "status.s",
            "metadata.name",
            "spec.b",
            "status.n",
            "",
            "status.s",
        ];
        let expected: Vec<String> = paths.iter().map(|path| object.field_text(path)).collect();
        assert_eq!(object.field_texts(&paths), expected, "all at once");
        assert_eq!(object.status().as_ref(), object.to_value().get("status"));
        assert_eq!(object.labels.get("x"), Some("y"));
    }

    #[test]
    fn deeply_nested_field_is_left_out_and_named() {
        for levels in [140, 9_000] {
            let deep = format!("{}1{}", r#"{"a":["#.repeat(levels / 2), "]}".repeat(levels / 2));
            let (_, object) = team(&format!(
                r#","status":{{"n":3}},"data":{{"flat":{{}},"vars":{deep}}}"#
            ));
            let problem = object.unreadable().unwrap_or_default();
            assert!(
                problem.starts_with(&format!("data.vars is nested {levels} levels deep")),
                "{problem}"
            );
            let value = object.to_value();
            assert_eq!(
                (&value["data"], &value["status"]["n"]),
                (&Value::Null, &Value::from(3))
            );
            // The desired state changes with what is left out.
            assert_ne!(object.intent, team(r#","data":{"flat":{},"vars":1}"#).1.intent);
        }
    }

    #[test]
    fn nesting_up_to_the_limit_is_kept() {
        let levels = MAX_FIELD_DEPTH - 1;
        let deep = format!(r#"{}"]]}}"{}"#, "[".repeat(levels), "]".repeat(levels));
        let (_, object) = team(&format!(r#","data":{{"x":{deep}}}"#));
        assert_eq!(object.unreadable(), None);
        assert_eq!(
            object.to_value()["data"].to_string(),
            format!(r#"{{"x":{deep}}}"#)
        );
    }

    #[test]
    fn number_out_of_range_is_missing_in_the_value() {
        let (_, object) = team(r#","data":1e999,"status":{"n":3}"#);
        let value = object.to_value();
        assert_eq!(
            (value.get("data"), &value["status"]["n"]),
            (None, &Value::from(3))
        );
        assert_eq!(value["metadata"]["name"], "a");
    }

    #[test]
    fn object_without_a_name_is_rejected_naming_the_field() {
        let error = KubeObject::parse(&Gvk::new("", "v1", "Secret"), b"{\"metadata\":{}}").unwrap_err();
        assert!(error.to_string().contains("metadata.name"), "{error}");
    }
}
