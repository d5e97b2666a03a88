//! A plugin's configuration, held to the schema of its manifest.
//!
//! That schema is a structural one, as CustomResourceDefinitions have: what is not named in it is a mistake, what has a
//! default gets it, and nothing can be fetched for it.

use serde_json::Value;

/// Problems told at once.
const TOLD: usize = 5;

/// A configuration with its defaults, if it is what a plugin's own schema says. The error names the fields.
pub fn check(config: Value, schema: &Value) -> Result<Value, String> {
    let completed = ostler_schema::complete_value("config", config, schema)
        .map_err(|e| format!("config: the plugin's own schema cannot be used: {e}"))?;
    let errors = completed.errors;
    if errors.is_empty() {
        return Ok(completed.value);
    }
    let told: Vec<String> = errors.iter().take(TOLD).map(ToString::to_string).collect();
    let more = match errors.len() - told.len() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Err(format!("{}{more}", told.join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_the_field_and_fills_in_defaults() {
        let schema = json!({
            "type": "object", "required": ["url"],
            "properties": {
                "url": {"type": "string", "pattern": "^https://"},
                "retry": {"type": "object", "default": {}, "properties": {
                    "times": {"type": "integer", "minimum": 1, "default": 3},
                }},
                "more": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            },
        });
        let good = json!({"url": "https://a", "more": {"any": [1]}});
        let filled = json!({"url": "https://a", "more": {"any": [1]}, "retry": {"times": 3}});
        assert_eq!(check(good, &schema), Ok(filled));
        for (config, words) in [
            (json!({}), "config.url: Required value"),
            (json!({"url": "http://a"}), "config.url: Invalid value"),
            (json!({"url": 7}), "config.url: Invalid value"),
            (
                json!({"url": "https://a", "retry": {"times": 0}}),
                "config.retry.times: Invalid value",
            ),
            (
                json!({"url": "https://a", "extra": 1}),
                "config.extra: unknown field",
            ),
            (
                json!({"url": "https://a", "retry": {"tims": 1}}),
                "config.retry.tims: unknown field",
            ),
        ] {
            let error = check(config, &schema).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
        let many = Value::Object((0..9).map(|i| (format!("x{i}"), json!(1))).collect());
        let error = check(many, &schema).expect_err("unknown");
        assert!(error.ends_with("; and 5 more"), "{error}");
    }

    #[test]
    fn a_schema_that_is_none_is_said_to_be() {
        let error = check(json!({}), &json!({"type": 7})).expect_err("no schema");
        assert!(error.contains("own schema"), "{error}");
    }
}
