//! Interpolation of `((vars))`.

use ostler_sdk::serde_json::{Map, Value, to_string};

/// Replaces every `((name))` and `((name.field))` whose value is given. Others stay for Concourse to resolve by its
/// credential managers, such as `((source:path.field))`. A var that is a whole text keeps the type of its value.
#[must_use]
pub fn interpolate(value: Value, vars: &Map<String, Value>) -> Value {
    match value {
        Value::String(text) => interpolate_text(text, vars),
        Value::Array(items) => items.into_iter().map(|item| interpolate(item, vars)).collect(),
        Value::Object(map) => {
            let mut filled = Map::new();
            for (key, value) in map {
                // A key is a text, of whatever type its var is.
                let key = match interpolate_text(key, vars) {
                    Value::String(key) => key,
                    other => to_string(&other).unwrap_or_default(),
                };
                filled.insert(key, interpolate(value, vars));
            }
            filled.into()
        }
        other => other,
    }
}

/// Position of a doubled ASCII character. The standard library's search, made for long texts, takes more code.
fn find_pair(text: &str, character: u8) -> Option<usize> {
    text.as_bytes()
        .windows(2)
        .position(|pair| pair == [character, character])
}

/// Finds the value of a var or, after a dot, of its field.
fn find_value<'a>(name: &str, vars: &'a Map<String, Value>) -> Option<&'a Value> {
    if let Some(value) = vars.get(name) {
        return Some(value);
    }
    let (name, fields) = name.split_once('.')?;
    vars.get(name)?
        .as_object()
        .and_then(|inner| find_value(fields, inner))
}

/// Replaces the vars in a text.
fn interpolate_text(text: String, vars: &Map<String, Value>) -> Value {
    if find_pair(&text, b'(').is_none() {
        return text.into();
    }
    let mut filled = String::new();
    let mut rest = text.as_str();
    while let Some(start) = find_pair(rest, b'(') {
        let (before, after) = rest.split_at(start);
        filled.push_str(before);
        let found =
            find_pair(&after[2..], b')').and_then(|end| Some((end, find_value(&after[2..2 + end], vars)?)));
        match found {
            Some((end, value)) if end + 4 == text.len() => return value.clone(),
            Some((end, Value::String(value))) => {
                filled.push_str(value);
                rest = &after[end + 4..];
            }
            Some((end, value @ (Value::Number(_) | Value::Bool(_)))) => {
                filled.push_str(&to_string(value).unwrap_or_default());
                rest = &after[end + 4..];
            }
            // Skip one parenthesis only: in `(((name))` the var starts at the second.
            _ => {
                filled.push('(');
                rest = &after[1..];
            }
        }
    }
    filled.push_str(rest);
    filled.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_sdk::serde_json::json;

    fn filled(before: Value, vars: Value) -> Value {
        interpolate(before, vars.as_object().expect("vars"))
    }

    #[test]
    fn interpolate_replaces_given_vars_and_keeps_others() {
        let before = json!({
            "whole": "((a))", "within": "x-((a))-((b-c))", "field": "((a.b)) ((vault:a)) ((\"a\"))",
            "((a))": [1, true, null, "((unknown))"], "odd": "(((a))) ((a) ((", "open": "((a",
            "source": "((vault:path/to.field))", "dotted": "((d.e))",
        });
        let after = json!({
            "whole": "A", "within": "x-A-((a))", "field": "((a.b)) ((vault:a)) ((\"a\"))",
            "A": [1, true, null, "((unknown))"], "odd": "(A) ((a) ((", "open": "((a",
            "source": "((vault:path/to.field))", "dotted": "D",
        });
        assert_eq!(
            filled(before, json!({ "a": "A", "b-c": "((a))", "d.e": "D" })),
            after
        );
    }

    #[test]
    fn interpolate_keeps_type_of_lone_var() {
        let vars = json!({ "n": 8080, "yes": true, "m": { "x": { "y": [1] }, "s": "S" }, "none": null });
        let before = json!({
            "n": "((n))", "port": ":((n))", "yes": "((yes))/((yes))", "m": "((m.x))", "s": "a((m.s))", "((n))": 1,
            "y": "((m.x.y))", "map within": "-((m.x))-", "none": "((none))", "no field": "((m.z))((n.x))",
        });
        let after = json!({
            "n": 8080, "port": ":8080", "yes": "true/true", "m": { "y": [1] }, "s": "aS", "8080": 1,
            "y": [1], "map within": "-((m.x))-", "none": null, "no field": "((m.z))((n.x))",
        });
        assert_eq!(filled(before, vars), after);
    }
}
