//! Kubernetes selectors: by label, and by field.
//!
//! Syntax: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors> and
//! <https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/>. A field selector
//! here accepts any scalar field of any kind, because the host compares the objects itself.

use std::{fmt, sync::Arc};

use crate::kube::object::{KubeObject, Labels};

/// A conjunction of requirements on labels, shared by its clones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Selector(Arc<[Requirement]>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Requirement {
    In(Box<str>, Vec<Box<str>>),
    NotIn(Box<str>, Vec<Box<str>>),
    Exists(Box<str>),
    Absent(Box<str>),
}

/// The error for a text that is not a selector. It names the part that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} at `{at}`: selectors are like `app=web,tier in (a, b),!old` (labels) or `spec.x=1,status.y!=z` (fields)"
)]
pub struct ParseError {
    what: &'static str,
    at: String,
}

impl Selector {
    /// Parses a selector; the empty text selects everything.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
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
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|r| match r {
            Requirement::In(key, values) => labels.get(key).is_some_and(|v| values.iter().any(|x| **x == *v)),
            Requirement::NotIn(key, values) => {
                labels.get(key).is_none_or(|v| !values.iter().any(|x| **x == *v))
            }
            Requirement::Exists(key) => labels.get(key).is_some(),
            Requirement::Absent(key) => labels.get(key).is_none(),
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

impl fmt::Display for Selector {
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
            }
        }
        Ok(())
    }
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
    pub fn parse(text: &str) -> Result<Self, ParseError> {
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

    /// Returns true if an object is selected.
    pub fn matches(&self, object: &KubeObject) -> bool {
        let paths: Vec<&str> = self.paths().collect();
        let texts = object.field_texts(&paths);
        let mut compared = self.0.iter().zip(texts);
        compared.all(|(c, text)| (text == *c.value) == c.equal)
    }

    /// Returns true if an object is selected whose field at each path has this text.
    pub fn matches_texts<'a>(&self, text: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|c| (*text(&c.path) == *c.value) == c.equal)
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

fn parse_error<T>(what: &'static str, at: &str) -> Result<T, ParseError> {
    let at = at.to_owned();
    Err(ParseError { what, at })
}

/// Splits at commas that are not inside parentheses.
fn split_requirements(text: &str) -> Result<Vec<&str>, ParseError> {
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

fn parse_requirement(part: &str) -> Result<Requirement, ParseError> {
    if let Some(rest) = part.strip_prefix('!') {
        return Ok(Requirement::Absent(parse_key(rest.trim(), part)?));
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

/// Returns true for a DNS label (RFC 1123): at most 63 letters a-z, digits and dashes, with none of these at an end.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_label_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    text.len() <= 63 && text.bytes().all(inner) && edge(text.bytes().next()) && edge(text.bytes().last())
}

fn parse_key(text: &str, part: &str) -> Result<Box<str>, ParseError> {
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

fn parse_value(text: &str, part: &str) -> Result<Box<str>, ParseError> {
    if text.is_empty() || is_label_name(text) {
        Ok(text.into())
    } else {
        parse_error("not a label value", part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().copied().collect()
    }

    #[test]
    fn label_selectors_select_as_kubernetes_does() {
        let web = labels(&[("app", "web"), ("tier", "a")]);
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
            let selector = Selector::parse(text).expect(text);
            assert_eq!(selector.matches(&web), selected, "{text}");
            assert_eq!(Selector::parse(&selector.to_string()), Ok(selector), "{text}");
        }
    }

    #[test]
    fn field_selectors_compare_scalar_fields() {
        let json = br#"{"metadata":{"name":"a"},"spec":{"team":{"name":"x"},"n":2}}"#;
        let (_, object) =
            KubeObject::parse(&crate::kube::key::Gvk::new("", "v1", "K"), json).expect("an object");
        for (text, selected) in [
            ("", true),
            ("spec.team.name=x", true),
            ("spec.team.name==x,spec.n=2", true),
            ("spec.n!=2", false),
            ("spec.none=", true),
            ("spec.none!=x", true),
        ] {
            let selector = FieldSelector::parse(text).expect(text);
            assert_eq!(selector.matches(&object), selected, "{text}");
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
            assert!(Selector::parse(text).is_err(), "{text}");
        }
        let error = Selector::parse("app=web,-x=1").unwrap_err().to_string();
        assert!(error.contains("`-x=1`"), "{error}");
    }

    #[test]
    fn dns_label_has_small_letters_digits_and_inner_dashes() {
        for text in ["a", "process-1", "0", &"a".repeat(63)] {
            assert!(is_dns_label(text), "{text}");
        }
        for text in [
            "",
            "-a",
            "a-",
            "A",
            "a.b",
            "a&follow=true",
            "a b",
            "a/b",
            "a%26b",
            &"a".repeat(64),
        ] {
            assert!(!is_dns_label(text), "{text}");
        }
    }
}
