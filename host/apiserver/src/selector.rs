//! Label and field selectors.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::status::StatusError;

/// A conjunction of label requirements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    Missing(String),
}

impl LabelSelector {
    /// Parses the query syntax: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    pub fn parse(text: &str) -> Result<Self, StatusError> {
        split_outside_parentheses(text)
            .into_iter()
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(Requirement::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns true if the object's labels satisfy every requirement.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels[key].as_str().is_some_and(|value| values.contains(value)),
            Requirement::NotIn(key, values) => {
                labels[key].as_str().is_none_or(|value| !values.contains(value))
            }
            Requirement::Exists(key) => labels.get(key).is_some(),
            Requirement::Missing(key) => labels.get(key).is_none(),
        })
    }
}

impl Requirement {
    fn parse(text: &str) -> Result<Self, StatusError> {
        let bad = || {
            StatusError::bad_request(format!(
                "unable to parse requirement: found '{text}', expected: a label selector"
            ))
        };
        let key = |key: &str| {
            let key = key.trim();
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
            if !key.is_empty() && key.chars().all(allowed) {
                Ok(key.to_owned())
            } else {
                Err(bad())
            }
        };
        if let Some(list) = text.strip_suffix(')') {
            let (head, values) = list.split_once('(').ok_or_else(bad)?;
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            let mut words = head.split_whitespace();
            return match (words.next(), words.next(), words.next()) {
                (Some(name), Some("in"), None) => Ok(Self::In(key(name)?, values)),
                (Some(name), Some("notin"), None) => Ok(Self::NotIn(key(name)?, values)),
                _ => Err(bad()),
            };
        }
        let one = |value: &str| BTreeSet::from([value.trim().to_owned()]);
        if let Some((name, value)) = text.split_once("!=") {
            Ok(Self::NotIn(key(name)?, one(value)))
        } else if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
            Ok(Self::In(key(name)?, one(value)))
        } else if let Some(name) = text.strip_prefix('!') {
            Ok(Self::Missing(key(name)?))
        } else {
            Ok(Self::Exists(key(text)?))
        }
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// A conjunction of field requirements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldRequirements(Vec<(String, bool, String)>);

impl FieldRequirements {
    /// Parses `metadata.name=x,spec.y!=z`.
    pub fn parse(text: &str) -> Result<Self, StatusError> {
        text.split(',')
            .filter(|part| !part.trim().is_empty())
            .map(|part| {
                let (field, equal, value) = if let Some((field, value)) = part.split_once("!=") {
                    (field, false, value)
                } else if let Some((field, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                    (field, true, value)
                } else {
                    return Err(StatusError::bad_request(format!(
                        "invalid selector: '{text}'; can't understand '{part}'"
                    )));
                };
                Ok((field.trim().to_owned(), equal, value.trim().to_owned()))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The field paths of the requirements.
    pub fn list_fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(field, ..)| field.as_str())
    }

    /// Returns true if the object satisfies every requirement; a missing field counts as empty.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(field, equal, expected)| {
            let found = field.split('.').fold(object, |value, part| &value[part]);
            let same = match found {
                Value::Null => expected.is_empty(),
                Value::String(text) => text == expected,
                other => serde_json::from_str(expected).is_ok_and(|expected: Value| *other == expected),
            };
            same == *equal
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn label_selector_matches_as_in_kubernetes() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front"}}});
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=back", true),
            ("app!=web", false),
            ("absent!=x", true),
            ("app in (api, web),tier", true),
            ("app notin (api,web)", false),
            ("absent notin (x)", true),
            ("!absent", true),
            ("!app", false),
            ("absent", false),
        ] {
            assert_eq!(
                LabelSelector::parse(selector).unwrap().matches(&object),
                expected,
                "{selector}"
            );
        }
        assert!(LabelSelector::parse("app within (x)").is_err());
        assert!(LabelSelector::parse("a b").is_err());
    }

    #[test]
    fn field_selector_matches_as_in_kubernetes() {
        let object = json!({"metadata": {"name": "x"}, "spec": {"paused": true}});
        let matches = |text: &str| FieldRequirements::parse(text).unwrap().matches(&object);
        assert!(matches("metadata.name=x,spec.paused==true,spec.absent="));
        assert!(!matches("metadata.name!=x"));
        assert!(FieldRequirements::parse("metadata.name").is_err());
    }
}
