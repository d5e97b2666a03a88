//! Validation of a plugin's configuration against the schema of its manifest.
//!
//! The schema is a structural one, as in CustomResourceDefinitions: unknown fields are errors, defaults are filled in,
//! and it can't refer to anything outside of it.

use serde_json::Value;

/// Limit of the problems in one error.
const MAX_SHOWN_PROBLEMS: usize = 5;

/// Validates a configuration and fills in its defaults. The error names the fields.
pub fn validate_config(config: Value, schema: &Value) -> Result<Value, String> {
    let completed = ostler_schema::complete_value("config", config, schema)
        .map_err(|e| format!("config: the plugin's own schema is not valid: {e}"))?;
    let problems = completed.errors;
    if problems.is_empty() {
        return Ok(completed.value);
    }
    let shown: Vec<String> = problems
        .iter()
        .take(MAX_SHOWN_PROBLEMS)
        .map(ToString::to_string)
        .collect();
    let more = match problems.len() - shown.len() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Err(format!("{}{more}", shown.join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn config_is_validated_with_field_names_and_defaults() {
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
        assert_eq!(validate_config(good, &schema), Ok(filled));
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
            let error = validate_config(config, &schema).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
        let many = Value::Object((0..9).map(|i| (format!("x{i}"), json!(1))).collect());
        let error = validate_config(many, &schema).expect_err("unknown");
        assert!(error.ends_with("; and 5 more"), "{error}");
    }

    #[test]
    fn config_with_invalid_schema_blames_the_schema() {
        let error = validate_config(json!({}), &json!({"type": 7})).expect_err("no schema");
        assert!(error.contains("own schema"), "{error}");
    }
}
