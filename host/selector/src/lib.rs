//! Kubernetes selectors: by label, and by field.
//!
//! Syntax: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors> and
//! <https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/>. A field selector
//! here accepts any scalar field of any kind.

use std::{borrow::Cow, fmt, sync::Arc};

use serde_json::Value;

/// The labels of an object.
pub trait LabelSet {
    /// The value of a label.
    fn find_label(&self, key: &str) -> Option<&str>;
}

/// The field `metadata.labels` of an object.
impl LabelSet for Value {
    fn find_label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

/// A conjunction of requirements on labels, shared by its clones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct LabelSelector(Arc<[Requirement]>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Requirement {
    In(Box<str>, Vec<Box<str>>),
    NotIn(Box<str>, Vec<Box<str>>),
    Exists(Box<str>),
    Absent(Box<str>),
    /// The value is a number above this one.
    Above(Box<str>, i64),
    /// The value is a number below this one.
    Below(Box<str>, i64),
}

/// The error for a text that is not a selector. It names the part that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} at `{at}`: selectors are like `app=web,tier in (a, b),!old` (labels) or `spec.x=1,status.y!=z` (fields)"
)]
pub struct SelectorError {
    what: &'static str,
    at: String,
}

impl LabelSelector {
    /// Parses a selector; the empty text selects everything.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for part in split_requirements(text)? {
            requirements.push(parse_requirement(part.trim())?);
        }
        Ok(Self(requirements.into()))
    }

    /// A selector of the objects with a label of this name, whatever its value.
    pub fn exists(label: &str) -> Self {
        Self(Arc::new([Requirement::Exists(label.into())]))
    }

    /// Returns true if an object with these labels is selected.
    pub fn matches(&self, labels: &impl LabelSet) -> bool {
        self.0.iter().all(|r| match r {
            Requirement::In(key, values) => labels
                .find_label(key)
                .is_some_and(|v| values.iter().any(|x| **x == *v)),
            Requirement::NotIn(key, values) => labels
                .find_label(key)
                .is_none_or(|v| !values.iter().any(|x| **x == *v)),
            Requirement::Exists(key) => labels.find_label(key).is_some(),
            Requirement::Absent(key) => labels.find_label(key).is_none(),
            Requirement::Above(key, bound) => number(labels, key).is_some_and(|v| v > *bound),
            Requirement::Below(key, bound) => number(labels, key).is_some_and(|v| v < *bound),
        })
    }

    /// A label and the one value it must have, if there is such a requirement. An index can answer it.
    pub fn equality_term(&self) -> Option<(&str, &str)> {
        self.0.iter().find_map(|r| match r {
            Requirement::In(key, values) if values.len() == 1 => Some((&**key, &*values[0])),
            _ => None,
        })
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match r {
                Requirement::In(key, values) if values.len() == 1 => write!(f, "{key}={}", values[0])?,
                Requirement::NotIn(key, values) if values.len() == 1 => write!(f, "{key}!={}", values[0])?,
                Requirement::In(key, values) => write!(f, "{key} in ({})", values.join(","))?,
                Requirement::NotIn(key, values) => write!(f, "{key} notin ({})", values.join(","))?,
                Requirement::Exists(key) => write!(f, "{key}")?,
                Requirement::Absent(key) => write!(f, "!{key}")?,
                Requirement::Above(key, bound) => write!(f, "{key}>{bound}")?,
                Requirement::Below(key, bound) => write!(f, "{key}<{bound}")?,
            }
        }
        Ok(())
    }
}

/// The value of a label that is a number.
fn number(labels: &impl LabelSet, key: &str) -> Option<i64> {
    labels.find_label(key)?.parse().ok()
}

/// A conjunction of comparisons of fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct FieldSelector(Vec<Comparison>);

/// Path of an object's name.
pub const NAME_PATH: &str = "metadata.name";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Comparison {
    path: Box<str>,
    equal: bool,
    value: Box<str>,
}

impl FieldSelector {
    /// Parses a selector; the empty text selects everything.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut comparisons = Vec::new();
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let (path, equal, value) = match (part.split_once("!="), part.split_once('=')) {
                (Some((path, value)), _) => (path, false, value),
                (None, Some((path, value))) => (path, true, value.strip_prefix('=').unwrap_or(value)),
                (None, None) => return parse_error("`=` or `!=` is missing", part),
            };
            let path = path.trim();
            if path.is_empty() || path.split('.').any(str::is_empty) || path.contains(char::is_whitespace) {
                return parse_error("not the path of a field", part);
            }
            comparisons.push(Comparison {
                path: path.into(),
                equal,
                value: value.trim().into(),
            });
        }
        Ok(Self(comparisons))
    }

    /// Returns true if an object is selected whose field at each path has this text.
    pub fn matches_texts<T: AsRef<str>>(&self, text: impl Fn(&str) -> T) -> bool {
        self.0
            .iter()
            .all(|c| (text(&c.path).as_ref() == &*c.value) == c.equal)
    }

    /// Returns true if an object is selected. A field that is missing counts as empty.
    pub fn matches_json(&self, object: &Value) -> bool {
        self.matches_texts(
            |path| match path.split('.').fold(object, |value, part| &value[part]) {
                Value::Null => Cow::Borrowed(""),
                Value::String(text) => Cow::Borrowed(&**text),
                other => Cow::Owned(other.to_string()),
            },
        )
    }

    /// Returns true if an object is selected whose fields at the [`Self::paths`] have these texts, in their order.
    pub fn matches_list(&self, texts: &[String]) -> bool {
        let mut compared = self.0.iter().zip(texts);
        compared.all(|(c, text)| (*text == *c.value) == c.equal)
    }

    /// The paths of the compared fields.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|c| &*c.path)
    }

    /// A field and the value it must have, if there is such a comparison. An index can answer it.
    pub fn equality_term(&self) -> Option<(&str, &str)> {
        let mut equal = self.0.iter().filter(|c| c.equal);
        equal.next().map(|c| (&*c.path, &*c.value))
    }

    /// The name that an object must have, if it is compared. It selects one object of a namespace.
    pub fn required_name(&self) -> Option<&str> {
        let mut equal = self.0.iter().filter(|c| c.equal);
        equal.find(|c| *c.path == *NAME_PATH).map(|c| &*c.value)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, c) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let operator = if c.equal { "=" } else { "!=" };
            write!(f, "{comma}{}{operator}{}", c.path, c.value)?;
        }
        Ok(())
    }
}

fn parse_error<T>(what: &'static str, at: &str) -> Result<T, SelectorError> {
    let at = at.to_owned();
    Err(SelectorError { what, at })
}

/// Splits at commas that are not inside parentheses.
fn split_requirements(text: &str) -> Result<Vec<&str>, SelectorError> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' if depth == 0 => depth = 1,
            ')' if depth == 1 => depth = 0,
            '(' | ')' => return parse_error("unbalanced parenthesis", &text[i..]),
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return parse_error("unbalanced parenthesis", text);
    }
    if !text.trim().is_empty() {
        parts.push(&text[start..]);
    }
    Ok(parts)
}

fn parse_requirement(part: &str) -> Result<Requirement, SelectorError> {
    if let Some(rest) = part.strip_prefix('!') {
        return Ok(Requirement::Absent(parse_key(rest.trim(), part)?));
    }
    for (operator, build) in [
        ('>', Requirement::Above as fn(Box<str>, i64) -> Requirement),
        ('<', Requirement::Below),
    ] {
        if let Some((left, right)) = part.split_once(operator) {
            let Ok(bound) = right.trim().parse() else {
                return parse_error("not a whole number", part);
            };
            return Ok(build(parse_key(left.trim(), part)?, bound));
        }
    }
    if let Some((left, right)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(
            parse_key(left.trim(), part)?,
            vec![parse_value(right.trim(), part)?],
        ));
    }
    if let Some((left, right)) = part.split_once('=') {
        let right = right.strip_prefix('=').unwrap_or(right);
        return Ok(Requirement::In(
            parse_key(left.trim(), part)?,
            vec![parse_value(right.trim(), part)?],
        ));
    }
    let Some((left, set)) = part.split_once('(') else {
        return Ok(Requirement::Exists(parse_key(part, part)?));
    };
    let set = set
        .strip_suffix(')')
        .map_or_else(|| parse_error("a set ends in `)`", part), Ok)?;
    let values: Result<Vec<_>, _> = set.split(',').map(|v| parse_value(v.trim(), part)).collect();
    match left.trim().rsplit_once(char::is_whitespace) {
        Some((k, "in")) => Ok(Requirement::In(parse_key(k.trim(), part)?, values?)),
        Some((k, "notin")) => Ok(Requirement::NotIn(parse_key(k.trim(), part)?, values?)),
        _ => parse_error("`in` or `notin` is expected before a set", part),
    }
}

fn is_label_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    text.len() <= 63 && text.bytes().all(inner) && edge(text.bytes().next()) && edge(text.bytes().last())
}

fn parse_key(text: &str, part: &str) -> Result<Box<str>, SelectorError> {
    let valid = match text.split_once('/') {
        Some((prefix, rest)) => {
            !prefix.is_empty()
                && prefix.len() <= 253
                && prefix.split('.').all(is_label_name)
                && is_label_name(rest)
        }
        None => is_label_name(text),
    };
    if valid {
        Ok(text.into())
    } else {
        parse_error("not a label key", part)
    }
}

fn parse_value(text: &str, part: &str) -> Result<Box<str>, SelectorError> {
    if text.is_empty() || is_label_name(text) {
        Ok(text.into())
    } else {
        parse_error("not a label value", part)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn label_selectors_select_as_kubernetes_does() {
        let web = json!({"app": "web", "tier": "a"});
        for (text, selected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=b", true),
            ("app in (web, db),tier", true),
            ("tier notin (a)", false),
            ("missing notin (a)", true),
            ("!app", false),
            ("!old,example.org/x!=1", true),
        ] {
            let selector = LabelSelector::parse(text).expect(text);
            assert_eq!(selector.matches(&web), selected, "{text}");
            assert_eq!(
                LabelSelector::parse(&selector.to_string()),
                Ok(selector),
                "{text}"
            );
        }
    }

    #[test]
    fn field_selectors_compare_scalar_fields() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"team": {"name": "x"}, "n": 2}});
        for (text, selected) in [
            ("", true),
            ("spec.team.name=x", true),
            ("spec.team.name==x,spec.n=2", true),
            ("spec.n!=2", false),
            ("spec.none=", true),
            ("spec.none!=x", true),
        ] {
            let selector = FieldSelector::parse(text).expect(text);
            assert_eq!(selector.matches_json(&object), selected, "{text}");
            assert_eq!(
                FieldSelector::parse(&selector.to_string()),
                Ok(selector),
                "{text}"
            );
        }
        for text in ["spec.a", "=x", "a..b=1", "a b=1"] {
            assert!(FieldSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn malformed_selector_is_rejected_naming_the_part() {
        for text in [
            "app in web",
            "app in (a",
            "a=b=c",
            "=x",
            "a,,b",
            "a near (b)",
            "a b",
        ] {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
        let error = LabelSelector::parse("app=web,-x=1").unwrap_err().to_string();
        assert!(error.contains("`-x=1`"), "{error}");
    }
}
