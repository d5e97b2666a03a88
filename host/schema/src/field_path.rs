//! Paths of fields, in error texts and in definitions.

use serde_json::Value;

/// The path of a field below `parent`, which is empty at the root.
pub(crate) fn field_path(parent: &str, field: &str) -> String {
    if parent.is_empty() {
        field.to_owned()
    } else {
        format!("{parent}.{field}")
    }
}

/// Joins a path that may begin with an index or a key in brackets.
pub(crate) fn join_path(parent: &str, below: &str) -> String {
    if below.starts_with('[') {
        format!("{parent}{below}")
    } else {
        field_path(parent, below)
    }
}

/// Finds the schema of a field by a path such as `.spec.labels['a.b']`.
///
/// # Errors
/// What is wrong with the path: it is malformed, or names a field that the schema does not declare.
pub fn find_declared_field<'a>(declared: &'a Value, path: &str) -> Result<&'a Value, String> {
    let mut schema = declared;
    let mut rest = path.trim();
    if rest.is_empty() {
        return Err("path is empty".into());
    }
    while !rest.is_empty() {
        let name;
        (name, rest) = take_segment(rest)?;
        schema = match schema["properties"].get(&name) {
            Some(property) => property,
            None if schema["additionalProperties"].is_object() => &schema["additionalProperties"],
            None => return Err(format!("does not refer to a valid field: {name}")),
        };
    }
    Ok(schema)
}

/// Takes the first name from a path.
fn take_segment(path: &str) -> Result<(String, &str), String> {
    if let Some(rest) = path.strip_prefix("['") {
        let (name, rest) = rest.split_once("']").ok_or("unterminated ['")?;
        return Ok((name.to_owned(), rest));
    }
    let rest = path
        .strip_prefix('.')
        .ok_or_else(|| format!("expected a field or ['…'], but found {path:?}"))?;
    let end = rest.find(['.', '[']).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    if name.is_empty() {
        return Err("a name is empty".into());
    }
    Ok((name.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn path_finds_declared_fields_only() {
        let declared = json!({"properties": {"spec": {"properties": {
            "url": {"type": "string"}, "labels": {"additionalProperties": {"type": "integer"}},
        }}}});
        for (path, kind) in [
            (".spec.url", "string"),
            (".spec.labels['a.b']", "integer"),
            (".spec['url']", "string"),
        ] {
            assert_eq!(
                find_declared_field(&declared, path).unwrap()["type"],
                kind,
                "{path}"
            );
        }
        for path in ["", "spec.url", ".spec.absent", ".spec..url", ".spec['url"] {
            assert!(find_declared_field(&declared, path).is_err(), "{path}");
        }
    }
}
