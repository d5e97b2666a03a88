//! A pipeline's config: is it the same, what is its hash, what is in it.

use ostler_sdk::serde_json::{Map, Value, json, to_vec};
use sha2::{Digest, Sha256};

/// Keys whose values are not Concourse's own: kept as they are, for `false` or
/// an empty text may mean something to a resource.
pub const FREE_FORM: [&str; 7] = [
    "source",
    "params",
    "get_params",
    "vars",
    "version",
    "defaults",
    "instance_vars",
];

/// The same config, as far as Concourse is concerned. It may say no where the
/// two are equal (it doesn't know every default), but never yes where they aren't.
#[must_use]
pub fn same(a: &Value, b: &Value) -> bool {
    normal(a) == normal(b)
}

/// Without what Concourse leaves out when it writes a config.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut kept = Map::new();
            for (key, value) in map {
                let value = match key.as_str() {
                    key if FREE_FORM.contains(&key) => value.clone(),
                    // A list of steps is short for steps without a limit.
                    "in_parallel" if value.is_array() => {
                        let mut steps = Map::new();
                        steps.insert("steps".to_owned(), normal(value));
                        steps.into()
                    }
                    _ => normal(value),
                };
                if !is_empty(&value) {
                    kept.insert(key.clone(), value);
                }
            }
            kept.into()
        }
        Value::Array(items) => items.iter().map(normal).collect(),
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// SHA-256 of the config and the digests of the secrets that go into it.
#[must_use]
pub fn hash(config: &Value, digests: &[String]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(to_vec(config).unwrap_or_default());
    for digest in digests {
        hasher.update([0]);
        hasher.update(digest);
    }
    hex(&hasher.finalize())
}

/// Lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digit = |digit: u8| char::from_digit(digit.into(), 16);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .flatten()
        .collect()
}

/// What the status says of the groups Concourse shows.
#[must_use]
pub fn groups(shown: &Value) -> Value {
    let of = |group: &Value| picked(group, &["name", "jobs", "resources"]);
    list(shown.as_array().into_iter().flatten().map(of).collect())
}

/// What the status says of the config's jobs: as Concourse shows them, or else as they were last seen.
#[must_use]
pub fn jobs(config: &Value, shown: &Value, last: &Value) -> Value {
    let job = |job: &Value| {
        let name = &job["name"];
        if shown.is_null() {
            return find(last, name)
                .cloned()
                .unwrap_or_else(|| json!({ "name": name }));
        }
        let shown = find(shown, name).unwrap_or(&Value::Null);
        let mut status = json!({ "name": name, "paused": shown["paused"] == true });
        let last = &shown["finished_build"]["status"];
        if last.is_string() {
            status["lastBuildStatus"] = last.clone();
        }
        status
    };
    list(parts(config, "jobs").map(job).collect())
}

/// The same of the resources. They can be pinned in the config, or for a while.
#[must_use]
pub fn resources(config: &Value, shown: &Value, last: &Value) -> Value {
    let resource = |resource: &Value| {
        let mut status = picked(resource, &["name", "type"]);
        let of = |list| find(list, &resource["name"]).unwrap_or(&Value::Null);
        let pinned = match shown.is_null() {
            true => of(last)["pinned"].as_bool(),
            false => Some(of(shown)["pinned_version"].is_object()),
        };
        if resource["version"].is_object() {
            status["pinned"] = true.into();
        } else if let Some(pinned) = pinned {
            status["pinned"] = pinned.into();
        }
        status
    };
    list(parts(config, "resources").map(resource).collect())
}

/// What the status says of the config's resource types.
#[must_use]
pub fn resource_types(config: &Value) -> Value {
    let of = |kind: &Value| picked(kind, &["name", "type", "privileged", "tags"]);
    list(parts(config, "resource_types").map(of).collect())
}

/// The items of a list that have a name.
fn parts<'a>(config: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    let items = config[key].as_array().into_iter().flatten();
    items.filter(|item| item["name"].is_string())
}

/// The item of this name.
fn find<'a>(list: &'a Value, name: &Value) -> Option<&'a Value> {
    list.as_array()?.iter().find(|item| item["name"] == *name)
}

/// Some fields of an object, where they have a value.
fn picked(from: &Value, fields: &[&str]) -> Value {
    let mut kept = Map::new();
    for field in fields {
        set(&mut kept, field, from[*field].clone());
    }
    kept.into()
}

/// Sets a field, unless the value is null.
pub fn set(map: &mut Map<String, Value>, field: &str, value: Value) {
    if !value.is_null() {
        map.insert(field.to_owned(), value);
    }
}

/// A list, or null: an empty one is left out of the status.
fn list(items: Vec<Value>) -> Value {
    if items.is_empty() {
        Value::Null
    } else {
        items.into()
    }
}

/// The texts of a list.
pub fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_sdk::serde_json::json;

    #[test]
    fn defaults_and_order_make_no_difference() {
        let written = json!({
            "jobs": [{ "name": "a", "serial": false, "plan": [
                { "in_parallel": [{ "get": "src", "trigger": false }] },
            ]}],
            "groups": [],
        });
        let read = json!({ "jobs": [{ "plan": [
            { "in_parallel": { "steps": [{ "get": "src" }] } },
        ], "name": "a" }] });
        assert!(same(&written, &read));
    }

    #[test]
    fn what_a_resource_is_told_is_compared_exactly() {
        let with = |source: Value| json!({ "resources": [{ "name": "r", "source": source }] });
        assert!(!same(&with(json!({ "a": false })), &with(json!({}))));
        assert!(!same(&with(json!({ "a": "" })), &with(json!({ "a": null }))));
        assert!(same(&with(json!({ "a": [] })), &with(json!({ "a": [] }))));
        let order = |names: [&str; 2]| json!({ "jobs": names });
        assert!(!same(&order(["a", "b"]), &order(["b", "a"])));
    }

    #[test]
    fn the_hash_follows_config_and_secrets() {
        let config = json!({ "jobs": [] });
        let before = hash(&config, &["1".into()]);
        assert_eq!(before.len(), 64);
        assert_eq!(before, hash(&config, &["1".into()]));
        assert_ne!(before, hash(&config, &["2".into()]));
        assert_ne!(before, hash(&json!({ "jobs": [1] }), &["1".into()]));
    }
}
