//! A pipeline's config: is it the same, what is its hash, what is in it.

use concourse_api::{GroupStatus, JobStatus, PipelineStatus, ResourceStatus, ResourceTypeStatus};
use ostler_sdk::serde_json::{Map, Value, to_vec};
use sha2::{Digest, Sha256};

/// Keys whose values are not Concourse's own: kept as they are, for `false` or
/// an empty text may mean something to a resource.
const FREE_FORM: [&str; 7] = [
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

/// Fills in what the status says about the config's parts.
pub fn describe(config: &Value, status: &mut PipelineStatus) {
    let groups = parts(config, "groups").into_iter();
    status.groups = groups
        .map(|(name, group)| GroupStatus {
            name,
            jobs: strings(&group["jobs"]),
            resources: strings(&group["resources"]),
        })
        .collect();
    status.group_count = i32::try_from(status.groups.len()).ok();
    let jobs = parts(config, "jobs").into_iter();
    status.jobs = jobs
        .map(|(name, _)| JobStatus {
            name,
            paused: None,
            last_build_status: None,
        })
        .collect();
    let resources = parts(config, "resources").into_iter();
    status.resources = resources
        .map(|(name, resource)| ResourceStatus {
            name,
            kind: text(&resource["type"]),
            pinned: resource["version"].is_object().then_some(true),
        })
        .collect();
    let types = parts(config, "resource_types").into_iter();
    status.resource_types = types
        .map(|(name, kind)| ResourceTypeStatus {
            name,
            kind: text(&kind["type"]).unwrap_or_default(),
            privileged: kind["privileged"].as_bool(),
            tags: strings(&kind["tags"]),
        })
        .collect();
}

/// The items of a list that have a name.
fn parts<'a>(config: &'a Value, key: &str) -> Vec<(String, &'a Value)> {
    let items = config[key].as_array().into_iter().flatten();
    items
        .filter_map(|item| Some((text(&item["name"])?, item)))
        .collect()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(ToOwned::to_owned)
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(text).collect()
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
