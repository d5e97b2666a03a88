//! Comparison of two answers: identities and times are masked, messages are not compared.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::target::ObservedResponse;

/// Fields whose values are times of the server.
const TIME_FIELDS: [&str; 5] = [
    "creationTimestamp",
    "deletionTimestamp",
    "time",
    "lastTransitionTime",
    "lastUpdateTime",
];
/// Fields whose values the real server allocates.
const ALLOCATED_FIELDS: [&str; 4] = ["clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort"];

/// The identities that a server gave to the objects of a sequence.
#[derive(Debug, Default)]
pub struct SeenIdentities {
    /// `uid` and `resourceVersion` of the object that was answered last, by path without query.
    objects: HashMap<String, (String, String)>,
    /// Resource versions in the order in which they were seen, by uid.
    revisions: HashMap<String, Vec<String>>,
}

impl SeenIdentities {
    /// Remembers the object of an answer.
    pub fn record(&mut self, path: &str, body: &Value) {
        let metadata = &body["metadata"];
        let (Some(uid), Some(revision)) = (metadata["uid"].as_str(), metadata["resourceVersion"].as_str())
        else {
            return;
        };
        let mut object = path.split('?').next().unwrap_or(path).to_owned();
        let name = metadata["name"].as_str().unwrap_or_default();
        for subresource in ["/status", "/scale"] {
            object = object.strip_suffix(subresource).unwrap_or(&object).to_owned();
        }
        if !object.ends_with(&format!("/{name}")) {
            object = format!("{object}/{name}");
        }
        self.objects.insert(object, (uid.to_owned(), revision.to_owned()));
    }

    /// Returns the uid of the object seen last at a path.
    pub fn uid(&self, path: &str) -> &str {
        self.objects.get(path).map_or("unknown", |(uid, _)| uid)
    }

    /// Returns the resource version of the object seen last at a path.
    pub fn revision(&self, path: &str) -> &str {
        self.objects.get(path).map_or("1", |(_, revision)| revision)
    }

    /// Returns the number of versions of an object seen before this one.
    fn ordinal(&mut self, uid: &str, revision: &str) -> usize {
        let seen = self.revisions.entry(uid.to_owned()).or_default();
        match seen.iter().position(|one| one == revision) {
            Some(at) => at,
            None => {
                seen.push(revision.to_owned());
                seen.len() - 1
            }
        }
    }
}

/// Returns what is compared of an answer.
pub fn normalize_answer(answer: &ObservedResponse, seen: &mut SeenIdentities) -> Value {
    let body = &answer.body;
    if answer.code >= 400 {
        let mut causes: Vec<Value> = body["details"]["causes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|cause| json!([cause["field"], cause["reason"]]))
            .collect();
        causes.sort_by_key(Value::to_string);
        causes.dedup();
        return json!({"code": answer.code, "reason": body["reason"], "causes": causes});
    }
    let body = match body {
        // A watch: one event per line.
        Value::String(text) => text
            .lines()
            .map(|line| serde_json::from_str(line).map_or_else(|_| "text".into(), |event| mask(&event, seen)))
            .collect(),
        body => mask(body, seen),
    };
    json!({"code": answer.code, "body": body})
}

fn mask(value: &Value, seen: &mut SeenIdentities) -> Value {
    match value {
        Value::Object(fields) => {
            let mut masked: Map<String, Value> = fields
                .iter()
                .map(|(name, value)| {
                    let is_identity = name.starts_with("k:{\"uid\":");
                    let shown = if is_identity { "k:{UID}" } else { name };
                    (shown.to_owned(), mask_field(name, value, seen))
                })
                .collect();
            if let (Some(uid), Some(revision)) = (fields.get("uid"), fields.get("resourceVersion")) {
                let (uid, revision) = (
                    uid.as_str().unwrap_or_default(),
                    revision.as_str().unwrap_or_default(),
                );
                let ordinal = seen.ordinal(uid, revision);
                masked.insert("resourceVersion".into(), format!("version {ordinal}").into());
            }
            masked.into()
        }
        Value::Array(items) => items.iter().map(|item| mask(item, seen)).collect(),
        other => other.clone(),
    }
}

fn mask_field(name: &str, value: &Value, seen: &mut SeenIdentities) -> Value {
    match (name, value) {
        ("uid", Value::String(_)) => "UID".into(),
        (name, Value::String(_)) if name.ends_with("controller-uid") => "UID".into(),
        ("resourceVersion", Value::String(_)) => "VERSION".into(),
        ("continue", Value::String(token)) if !token.is_empty() => "TOKEN".into(),
        ("name", Value::String(name)) if name.starts_with("prefix-") => "prefix-…".into(),
        ("managedFields", Value::Array(entries)) => {
            let mut entries: Vec<Value> = entries.iter().map(|entry| mask(entry, seen)).collect();
            // By time first, which two servers need not pass in the same second.
            entries.sort_by_key(|entry| {
                format!(
                    "{} {} {}",
                    entry["operation"], entry["manager"], entry["subresource"]
                )
            });
            entries.into()
        }
        ("cells", Value::Array(cells)) => cells
            .iter()
            .map(|cell| match cell.as_str() {
                Some(age) if is_age(age) => "AGE".into(),
                _ => cell.clone(),
            })
            .collect(),
        (field, Value::String(time)) if TIME_FIELDS.contains(&field) && time.contains('T') => "TIME".into(),
        (field, Value::Number(_)) if ALLOCATED_FIELDS.contains(&field) => "ALLOCATED".into(),
        (field, Value::String(address)) if ALLOCATED_FIELDS.contains(&field) && address != "None" => {
            "ALLOCATED".into()
        }
        (field, Value::Array(addresses)) if ALLOCATED_FIELDS.contains(&field) => addresses
            .iter()
            .map(|address| if address == "None" { "None" } else { "ALLOCATED" })
            .collect(),
        (_, value) => mask(value, seen),
    }
}

fn is_age(text: &str) -> bool {
    text.strip_suffix('s')
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Describes the first difference of two normalized answers, without names of a single sequence, so that differences of
/// one kind have one description.
pub fn describe_difference(embedded: &Value, real: &Value) -> Option<String> {
    if embedded == real {
        return None;
    }
    let failed = |answer: &Value| answer["code"].as_u64().is_some_and(|code| code >= 400);
    if failed(embedded) || failed(real) {
        let causes = |answer: &Value| -> Vec<String> {
            let causes = answer["causes"].as_array().into_iter().flatten();
            causes
                .map(|cause| format!("{}: {}", generalize(text(&cause[0])), text(&cause[1])))
                .collect()
        };
        let (mut too_much, mut missing) = (causes(embedded), causes(real));
        let mut beside = "";
        if embedded["code"] == real["code"] && embedded["reason"] == real["reason"] {
            let common: Vec<String> = too_much
                .iter()
                .filter(|cause| missing.contains(cause))
                .cloned()
                .collect();
            too_much.retain(|cause| !common.contains(cause));
            missing.retain(|cause| !common.contains(cause));
            if !common.is_empty() {
                beside = ", beside others";
            }
        }
        let describe = |answer: &Value, causes: &[String]| {
            format!(
                "{} {} [{}]",
                answer["code"],
                text(&answer["reason"]),
                causes.join(", ")
            )
        };
        return Some(format!(
            "{} instead of {}{beside}",
            describe(embedded, &too_much),
            describe(real, &missing)
        ));
    }
    if embedded["code"] != real["code"] {
        return Some(format!("{} instead of {}", embedded["code"], real["code"]));
    }
    let mut path = String::new();
    let (left, right) = find_first_difference(&embedded["body"], &real["body"], &mut path);
    let kind = match (left, right) {
        (None, _) => "is missing",
        (_, None) => "is too much",
        _ => "differs",
    };
    Some(format!("{} {kind}", generalize(&path)))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn find_first_difference<'a>(
    left: &'a Value,
    right: &'a Value,
    path: &mut String,
) -> (Option<&'a Value>, Option<&'a Value>) {
    match (left, right) {
        (Value::Object(a), Value::Object(b)) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort();
            names.dedup();
            // The fields that managers own follow from the content.
            names.sort_by_key(|name| name.as_str() == "metadata");
            names.sort_by_key(|name| name.as_str() == "managedFields");
            for name in names {
                let (x, y) = (a.get(name), b.get(name));
                if x == y {
                    continue;
                }
                path.push('.');
                path.push_str(name);
                return match (x, y) {
                    (Some(x), Some(y)) => find_first_difference(x, y, path),
                    other => other,
                };
            }
            (None, None)
        }
        (Value::Array(a), Value::Array(b)) => {
            for index in 0..a.len().max(b.len()) {
                let (x, y) = (a.get(index), b.get(index));
                if x == y {
                    continue;
                }
                path.push_str("[]");
                return match (x, y) {
                    (Some(x), Some(y)) => find_first_difference(x, y, path),
                    other => other,
                };
            }
            (None, None)
        }
        _ => (Some(left), Some(right)),
    }
}

/// Drops indexes, keys and what is below the fourth field of a path.
fn generalize(path: &str) -> String {
    let mut general = String::new();
    let mut brackets = 0;
    for character in path.chars() {
        match character {
            '[' => {
                brackets += 1;
                general.push('[');
            }
            ']' => {
                brackets -= 1;
                general.push(']');
            }
            other if brackets == 0 => general.push(other),
            _ => {}
        }
    }
    let fields: Vec<&str> = general.split('.').collect();
    match fields.len() {
        0..=5 => general,
        count => format!("{}.….{}", fields[..4].join("."), fields[count - 1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_with_other_identities_are_alike() {
        let answer = |uid: &str, revision: &str, time: &str| ObservedResponse {
            code: 200,
            body: json!({"metadata": {"uid": uid, "resourceVersion": revision, "creationTimestamp": time}}),
            warnings: Vec::new(),
        };
        let (mut left, mut right) = (SeenIdentities::default(), SeenIdentities::default());
        let first = normalize_answer(&answer("a", "5", "2026-01-02T03:04:05Z"), &mut left);
        let other = normalize_answer(&answer("b", "77", "2026-01-02T03:04:06Z"), &mut right);
        assert_eq!(describe_difference(&first, &other), None);
        // One server has a new version, the other has not.
        let first = normalize_answer(&answer("a", "6", "2026-01-02T03:04:05Z"), &mut left);
        let other = normalize_answer(&answer("b", "77", "2026-01-02T03:04:05Z"), &mut right);
        let difference = describe_difference(&first, &other);
        assert_eq!(difference.as_deref(), Some(".metadata.resourceVersion differs"));
    }

    #[test]
    fn differences_of_one_kind_have_one_description() {
        let refused =
            |field: &str| json!({"code": 422, "reason": "Invalid", "causes": [[field, "FieldValueInvalid"]]});
        let created = json!({"code": 201, "body": {}});
        assert_eq!(
            describe_difference(&created, &refused("spec.items[3].name")),
            describe_difference(&created, &refused("spec.items[0].name")),
        );
    }
}
