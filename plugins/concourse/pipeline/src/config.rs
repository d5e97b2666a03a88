//! Comparison and hash of a pipeline's config, and the parts of it that the status shows.

use concourse_api::{PipelineGroup, PipelineJob, PipelineResource, PipelineResourceType, rest};
use ostler_sdk::serde_json::{Map, Value, json, to_vec};
use sha2::{Digest, Sha256};

/// Keys whose values are not Concourse's own. They are kept as they are, because `false` or an empty text may have a
/// meaning to a resource.
pub const FREE_FORM_KEYS: [&str; 8] = [
    "source",
    "params",
    "get_params",
    "vars",
    "version",
    "defaults",
    "instance_vars",
    // The values of a step's `across`.
    "values",
];

/// Keys that Concourse leaves out when they are false.
const OMITTED_WHEN_FALSE: &[&str] = &[
    "disable_manual_trigger",
    "disable_reruns",
    "expose_build_created_by",
    "fail_fast",
    "hermetic",
    "interruptible",
    "no_get",
    "optional",
    "privileged",
    "public",
    "reveal",
    "serial",
    "trigger",
    "unique_version_history",
];

/// Keys that Concourse leaves out when they are an empty list, map or text. Not among them: `inputs` of a put step, where
/// `[]` means none and a missing key all, and `values` of an across step.
const OMITTED_WHEN_EMPTY: &[&str] = &[
    "args",
    "background_filter",
    "background_image",
    "caches",
    "check_every",
    "check_timeout",
    "defaults",
    "dir",
    "format",
    "get_params",
    "groups",
    "icon",
    "image",
    "input_mapping",
    "instance_vars",
    "jobs",
    "old_name",
    "output_mapping",
    "outputs",
    "params",
    "passed",
    "prototypes",
    "resource",
    "resource_types",
    "resources",
    "serial_groups",
    "source",
    "tags",
    "team",
    "timeout",
    "user",
    "var_files",
    "var_sources",
    "vars",
    "webhook_token",
];

/// Returns whether two configs are equal to Concourse. Equal configs may compare as different, since not every default of
/// Concourse is known here, but never the other way round.
#[must_use]
pub fn is_equivalent(a: &Value, b: &Value) -> bool {
    normalize(a) == normalize(b)
}

/// Removes what Concourse leaves out when it writes a config.
fn normalize(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut kept = Map::new();
            for (key, value) in map {
                let value = match key.as_str() {
                    key if key == "var_sources" || FREE_FORM_KEYS.contains(&key) => value.clone(),
                    // A list of steps is short for steps without a limit.
                    "in_parallel" if value.is_array() => json!({ "steps": normalize(value) }),
                    _ => normalize(value),
                };
                if !is_omitted(key, &value) {
                    kept.insert(key.clone(), value);
                }
            }
            kept.into()
        }
        Value::Array(items) => items.iter().map(normalize).collect(),
        other => other.clone(),
    }
}

/// Returns whether Concourse leaves out a key with this value. To it `null` and a missing key are the same.
fn is_omitted(key: &str, value: &Value) -> bool {
    let is_empty = match value {
        Value::Null => return true,
        Value::Bool(value) => return !value && OMITTED_WHEN_FALSE.contains(&key),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) => false,
    };
    is_empty && OMITTED_WHEN_EMPTY.contains(&key)
}

/// SHA-256, in hexadecimal, of the config and the digests of its secrets.
#[must_use]
pub fn hash_config(config: &Value, secret_digests: &[String]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(to_vec(config).unwrap_or_default());
    for digest in secret_digests {
        hasher.update([0]);
        hasher.update(digest);
    }
    format!("{:x}", hasher.finalize())
}

/// Groups for the status, as Concourse shows them.
#[must_use]
pub fn describe_groups(shown: &[rest::Group]) -> Vec<PipelineGroup> {
    let groups = shown.iter().map(|group| PipelineGroup {
        name: group.name.clone(),
        jobs: group.jobs.clone(),
        resources: group.resources.clone(),
    });
    groups.collect()
}

/// The config's jobs for the status: as Concourse lists them, read as JSON since few fields matter, or as the last status has them if they were not read.
#[must_use]
pub fn describe_jobs(config: &Value, shown: Option<&Value>, last: &[PipelineJob]) -> Vec<PipelineJob> {
    let describe = |config: &Value| {
        let name = config["name"].as_str()?;
        let Some(shown) = shown else {
            let last = last.iter().find(|job| job.name == name).cloned();
            return Some(last.unwrap_or_else(|| PipelineJob {
                name: name.to_owned(),
                paused: None,
                last_build_status: None,
            }));
        };
        let shown = find_named(shown, name);
        Some(PipelineJob {
            name: name.to_owned(),
            paused: Some(shown["paused"] == true),
            last_build_status: text_of(&shown["finished_build"], "status"),
        })
    };
    config_items(config, "jobs").filter_map(describe).collect()
}

/// The config's resources for the status, as [`describe_jobs`]. Config and API can pin them.
#[must_use]
pub fn describe_resources(
    config: &Value,
    shown: Option<&Value>,
    last: &[PipelineResource],
) -> Vec<PipelineResource> {
    let describe = |config: &Value| {
        let name = config["name"].as_str()?;
        let pinned = match shown {
            _ if config["version"].is_object() => Some(true),
            Some(shown) => Some(!find_named(shown, name)["pinned_version"].is_null()),
            None => last
                .iter()
                .find(|resource| resource.name == name)
                .and_then(|resource| resource.pinned),
        };
        Some(PipelineResource {
            name: name.to_owned(),
            kind: text_of(config, "type"),
            pinned,
        })
    };
    config_items(config, "resources").filter_map(describe).collect()
}

/// The config's resource types for the status.
#[must_use]
pub fn describe_resource_types(config: &Value) -> Vec<PipelineResourceType> {
    let describe = |config: &Value| {
        let tags = config["tags"].as_array().into_iter().flatten();
        Some(PipelineResourceType {
            name: text_of(config, "name")?,
            kind: text_of(config, "type").unwrap_or_default(),
            privileged: config["privileged"].as_bool(),
            tags: tags.filter_map(|tag| Some(tag.as_str()?.to_owned())).collect(),
        })
    };
    config_items(config, "resource_types")
        .filter_map(describe)
        .collect()
}

/// The item of a list with this name; null if there is none.
fn find_named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut items = list.as_array().into_iter().flatten();
    items.find(|item| item["name"] == name).unwrap_or(&Value::Null)
}

fn config_items<'a>(config: &'a Value, section: &str) -> impl Iterator<Item = &'a Value> {
    config[section].as_array().into_iter().flatten()
}

fn text_of(item: &Value, field: &str) -> Option<String> {
    item[field].as_str().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_that_differ_in_defaults_and_order_are_equivalent() {
        let written = json!({
            "jobs": [{ "name": "a", "serial": false, "plan": [
                { "in_parallel": [{ "get": "src", "trigger": false }] },
            ]}],
            "groups": [],
        });
        let read = json!({ "jobs": [{ "plan": [
            { "in_parallel": { "steps": [{ "get": "src" }] } },
        ], "name": "a" }] });
        assert!(is_equivalent(&written, &read));
    }

    /// All empty values at all known keys, and at keys where they have a meaning.
    #[test]
    fn only_keys_that_concourse_omits_may_be_left_out() {
        let empty = [json!(false), json!([]), json!({}), json!("")];
        let step = |key: &str, value: &Value| json!({ "jobs": [{ "plan": [{ "put": "x", key: value }] }] });
        let without = json!({ "jobs": [{ "plan": [{ "put": "x" }] }] });
        for value in &empty {
            for key in OMITTED_WHEN_FALSE {
                assert_eq!(
                    is_equivalent(&step(key, value), &without),
                    *value == false,
                    "{key}: {value}"
                );
            }
            for key in OMITTED_WHEN_EMPTY {
                assert_eq!(
                    is_equivalent(&step(key, value), &without),
                    *value != false,
                    "{key}: {value}"
                );
            }
            for key in [
                "inputs",
                "values",
                "version",
                "across",
                "do",
                "config",
                "on_failure",
                "unknown",
            ] {
                assert!(!is_equivalent(&step(key, value), &without), "{key}: {value}");
                assert!(
                    is_equivalent(&step(key, value), &step(key, value)),
                    "{key}: {value}"
                );
            }
        }
        for inputs in [
            json!(null),
            json!([]),
            json!("all"),
            json!("detect"),
            json!(["a"]),
        ] {
            let differs = !is_equivalent(&step("inputs", &inputs), &without);
            assert_eq!(differs, !inputs.is_null(), "{inputs}");
        }
    }

    #[test]
    fn configs_that_differ_in_free_form_values_are_not_equivalent() {
        let with = |source: Value| json!({ "resources": [{ "name": "r", "source": source }] });
        assert!(!is_equivalent(&with(json!({ "a": false })), &with(json!({}))));
        assert!(!is_equivalent(
            &with(json!({ "a": "" })),
            &with(json!({ "a": null }))
        ));
        assert!(is_equivalent(
            &with(json!({ "a": [] })),
            &with(json!({ "a": [] }))
        ));
        let order = |names: [&str; 2]| json!({ "jobs": names });
        assert!(!is_equivalent(&order(["a", "b"]), &order(["b", "a"])));
    }

    #[test]
    fn hash_config_depends_on_config_and_secrets() {
        let config = json!({ "jobs": [] });
        let before = hash_config(&config, &["1".into()]);
        assert_eq!(before.len(), 64);
        assert_eq!(before, hash_config(&config, &["1".into()]));
        assert_ne!(before, hash_config(&config, &["2".into()]));
        assert_ne!(before, hash_config(&json!({ "jobs": [1] }), &["1".into()]));
    }
}
