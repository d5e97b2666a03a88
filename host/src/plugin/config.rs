//! A plugin's configuration, held to the schema of its manifest.

use jsonschema::PatternOptions;
use serde_json::Value;

/// Problems told at once.
const TOLD: usize = 5;

/// Whether a configuration is what a plugin's own schema says. The error names the fields.
pub fn check(config: &Value, schema: &Value) -> Result<(), String> {
    // A schema comes with the component and is not trusted: nothing is fetched for it, and its patterns are matched in
    // linear time.
    let validator = jsonschema::options()
        .with_pattern_options(PatternOptions::regex())
        .build(schema)
        .map_err(|e| format!("the plugin's own schema of it is none: {e}"))?;
    let mut problems = validator.iter_errors(config).map(|e| {
        let path = e.instance_path().to_string();
        match path.trim_start_matches('/').replace('/', ".") {
            field if field.is_empty() => format!("config: {e}"),
            field => format!("config.{field}: {e}"),
        }
    });
    let told: Vec<String> = problems.by_ref().take(TOLD).collect();
    if told.is_empty() {
        return Ok(());
    }
    let more = match problems.count() {
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
    fn names_the_field() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["url"],
            "properties": {
                "url": {"type": "string", "pattern": "^https://"},
                "retry": {"$ref": "#/$defs/Retry"},
            },
            "$defs": {"Retry": {"type": "object", "properties": {"times": {"type": "integer", "minimum": 1}}}},
        });
        let good = json!({"url": "https://a", "retry": {"times": 1}});
        assert_eq!(check(&good, &schema), Ok(()));
        for (config, words) in [
            (json!({}), "\"url\" is a required property"),
            (json!({"url": "http://a"}), "config.url: "),
            (json!({"url": "https://a", "retry": {"times": 0}}), "config.retry.times: 0 is less"),
            (json!({"url": "https://a", "extra": 1}), "'extra' was unexpected"),
        ] {
            let error = check(&config, &schema).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_schema_is_not_trusted() {
        for schema in [json!({"$ref": "http://127.0.0.1:1/x"}), json!({"type": 7})] {
            let error = check(&json!({}), &schema).expect_err("no schema");
            assert!(error.contains("own schema"), "{error}");
        }
        // One that goes round in circles says nothing, and ends.
        let round = json!({"allOf": [{"$ref": "#"}]});
        assert_eq!(check(&json!({}), &round), Ok(()));
    }
}
