//! Patterns of names and namespaces in the entries of permissions. Pure.

use super::SAME_NAMESPACE;

/// Some pattern matches a word: the word itself, `*`, or a prefix followed by `*`. Of a pattern, all that it matches is matched too.
pub(super) fn matches_any(patterns: &[String], word: &str) -> bool {
    patterns
        .iter()
        .any(|p| p == word || p.strip_suffix('*').is_some_and(|start| word.starts_with(start)))
}

/// Some pattern matches a namespace. `own` is the namespace of the reconciled object.
pub(super) fn matches_namespace(patterns: &[String], namespace: &str, own: &str) -> bool {
    let is_same = !namespace.is_empty() && namespace == own;
    matches_any(patterns, namespace) || is_same && patterns.iter().any(|p| p == SAME_NAMESPACE)
}

/// Every pattern asked for is covered by a granted one.
pub(super) fn covers_all(granted: &[String], asked: &[String]) -> bool {
    asked.iter().all(|a| matches_any(granted, a))
}

/// One of the patterns matches everything.
pub fn has_wildcard(patterns: &[String]) -> bool {
    patterns.iter().any(|p| p == "*")
}

/// The namespaces of an entry as the end of its line; empty for all.
pub(super) fn format_namespaces(namespaces: &[String]) -> String {
    if namespaces.is_empty() || has_wildcard(namespaces) {
        return String::new();
    }
    let names = namespaces.iter().map(|n| match n.as_str() {
        SAME_NAMESPACE => "the same namespace",
        name => name,
    });
    format!(" in {}", names.collect::<Vec<_>>().join(","))
}

/// Checks that each of these fields of an entry has values, and no empty one: it would allow nothing. The error names the field.
pub(super) fn require_values(fields: &[(&str, &[String])]) -> Result<(), String> {
    fields.iter().try_for_each(|(field, values)| {
        require_items(field, values)?;
        match values.iter().any(String::is_empty) {
            true => Err(describe_empty(field)),
            false => Ok(()),
        }
    })
}

/// Checks that a field of an entry has items.
pub(super) fn require_items<T>(field: &str, items: &[T]) -> Result<(), String> {
    match items {
        [] => Err(describe_empty(field)),
        _ => Ok(()),
    }
}

fn describe_empty(field: &str) -> String {
    format!("{field} is empty: it allows nothing")
}

/// The default of a list of patterns.
pub(super) fn match_all() -> Vec<String> {
    vec!["*".into()]
}

/// The default of the namespaces of objects that an entry is about.
pub(super) fn same_namespace() -> Vec<String> {
    vec![SAME_NAMESPACE.into()]
}
