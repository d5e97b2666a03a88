//! Puts values in place of `((vars))`.

use ostler_sdk::serde_json::{Map, Value};

/// Replaces every `((name))` whose exact name is given; all others are left to
/// Concourse (credential managers, `((source:path.field))`).
#[must_use]
pub fn interpolate(value: Value, vars: &[(&str, String)]) -> Value {
    match value {
        Value::String(text) => Value::String(fill(text, vars)),
        Value::Array(items) => items.into_iter().map(|item| interpolate(item, vars)).collect(),
        Value::Object(map) => {
            let mut filled = Map::new();
            for (key, value) in map {
                filled.insert(fill(key, vars), interpolate(value, vars));
            }
            filled.into()
        }
        other => other,
    }
}

/// Where this (ASCII) character is twice. Std's search is made for long texts, and large.
fn find(text: &str, twice: u8) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| pair == [twice, twice])
}

/// The last one counts.
fn value<'a>(name: &str, vars: &'a [(&str, String)]) -> Option<&'a str> {
    let var = vars.iter().rev().find(|var| var.0 == name)?;
    Some(&var.1)
}

fn fill(text: String, vars: &[(&str, String)]) -> String {
    if find(&text, b'(').is_none() {
        return text;
    }
    let mut filled = String::new();
    let mut rest = text.as_str();
    while let Some(start) = find(rest, b'(') {
        let (before, after) = rest.split_at(start);
        filled.push_str(before);
        let found = find(&after[2..], b')').and_then(|end| Some((end, value(&after[2..2 + end], vars)?)));
        if let Some((end, value)) = found {
            filled.push_str(value);
            rest = &after[end + 4..];
        } else {
            // Only one parenthesis on: `(((name))` holds a var from the second.
            filled.push('(');
            rest = &after[1..];
        }
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_sdk::serde_json::json;

    #[test]
    fn given_vars_are_filled_in_and_others_left_alone() {
        let vars = [
            ("a", "earlier".to_owned()),
            ("a", "A".to_owned()),
            ("b-c", "((a))".to_owned()),
        ];
        let before = json!({
            "whole": "((a))", "within": "x-((a))-((b-c))", "field": "((a.b)) ((vault:a)) ((\"a\"))",
            "((a))": [1, true, null, "((unknown))"], "odd": "(((a))) ((a) ((", "open": "((a",
        });
        let after = json!({
            "whole": "A", "within": "x-A-((a))", "field": "((a.b)) ((vault:a)) ((\"a\"))",
            "A": [1, true, null, "((unknown))"], "odd": "(A) ((a) ((", "open": "((a",
        });
        assert_eq!(interpolate(before, &vars), after);
    }
}
