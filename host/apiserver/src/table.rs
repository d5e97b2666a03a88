//! Tables for `kubectl get`, with the JSONPath and the durations of their cells.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::builtin_table;
use crate::kind::{Column, ServedKind, ServedVersion};

/// Description of names in the API server's own tables.
const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

/// Column definitions, starting with the name.
pub fn column_definitions(kind: &ServedKind, version: &ServedVersion) -> Value {
    if !kind.custom {
        return builtin_table::column_definitions(kind);
    }
    let mut headings = vec![json!({
        "name": "Name", "type": "string", "format": "name", "priority": 0,
        "description": NAME_DESCRIPTION,
    })];
    headings.extend(effective_columns(version).iter().map(|column| {
        json!({
            "name": column.name, "type": column.kind,
            "format": column.format, "description": column.description, "priority": column.priority,
        })
    }));
    headings.into()
}

fn effective_columns(version: &ServedVersion) -> Vec<Column> {
    match &version.columns {
        Some(columns) if !columns.is_empty() => columns.clone(),
        _ => vec![Column {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description:
                "CreationTimestamp is a timestamp representing the server time when this object was created."
                    .into(),
            priority: 0,
            path: ".metadata.creationTimestamp".into(),
        }],
    }
}

/// A row, with the object as `includeObject` demands: `None`, `Metadata` or `Object`.
pub fn build_row(
    kind: &ServedKind,
    version: &ServedVersion,
    object: &Value,
    include: &str,
    now: Timestamp,
) -> Value {
    let cells = if kind.custom {
        let columns = effective_columns(version);
        let of_columns = columns.iter().map(|column| build_cell(column, object, now));
        std::iter::once(object["metadata"]["name"].clone())
            .chain(of_columns)
            .collect()
    } else {
        builtin_table::build_cells(kind, object, now)
    };
    let mut row = json!({"cells": cells});
    match include {
        "None" => {}
        "Object" => row["object"] = object.clone(),
        _ => row["object"] = partial_object(object),
    }
    row
}

/// The object's metadata alone.
pub fn partial_object(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn build_cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    let Some(value) = find_path(&column.path, object).cloned() else {
        return Value::Null;
    };
    match column.kind.as_str() {
        "date" => match value.as_str().map(str::parse::<Timestamp>) {
            Some(Ok(then)) => format_age(now.as_second() - then.as_second()).into(),
            Some(Err(_)) => "<invalid>".into(),
            None => "<unknown>".into(),
        },
        "integer" => value
            .as_i64()
            .or_else(|| value.as_f64().map(|number| number as i64))
            .map_or(Value::Null, Into::into),
        "number" if value.is_number() => value,
        "boolean" if value.is_boolean() => value,
        "number" | "boolean" => Value::Null,
        _ => match value {
            Value::String(_) => value,
            Value::Null => Value::Null,
            other => other.to_string().into(),
        },
    }
}

/// Formats an age as kubectl does.
pub fn format_age(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{big_unit}"),
        _ => format!("{big}{big_unit}{small}{small_unit}"),
    };
    match () {
        () if seconds < -1 => "<invalid>".into(),
        () if seconds < 0 => "0s".into(),
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => two(days, "d", hours % 24, "h"),
        () if days < 730 => format!("{days}d"),
        () if days < 2920 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

/// The first value of a simple JSONPath: fields, indices, `[*]` and filters such as `[?(@.type=="Ready")]`.
pub fn find_path<'a>(path: &str, value: &'a Value) -> Option<&'a Value> {
    let path = path
        .trim()
        .trim_start_matches('{')
        .trim_end_matches('}')
        .trim_start_matches('$');
    walk_path(path, value)
}

fn walk_path<'a>(path: &str, value: &'a Value) -> Option<&'a Value> {
    if path.is_empty() || path == "." {
        return Some(value).filter(|value| !value.is_null());
    }
    if let Some(rest) = path.strip_prefix('[') {
        let (inside, rest) = split_bracket(rest)?;
        return match inside.trim() {
            "*" => match value {
                Value::Array(items) => items.iter().find_map(|item| walk_path(rest, item)),
                Value::Object(fields) => fields.values().find_map(|item| walk_path(rest, item)),
                _ => None,
            },
            filter if filter.starts_with("?(") => {
                let filter = filter.strip_prefix("?(")?.strip_suffix(')')?;
                value
                    .as_array()?
                    .iter()
                    .filter(|item| filter_matches(filter, item))
                    .find_map(|item| walk_path(rest, item))
            }
            quoted if quoted.starts_with(['\'', '"']) => {
                walk_path(rest, value.get(quoted.trim_matches(['\'', '"']))?)
            }
            index => {
                let items = value.as_array()?;
                let index: i64 = index.parse().ok()?;
                let index = if index < 0 {
                    items.len().checked_sub(index.unsigned_abs() as usize)?
                } else {
                    index as usize
                };
                walk_path(rest, items.get(index)?)
            }
        };
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    if path.starts_with('[') {
        return walk_path(path, value);
    }
    let (mut name, mut end, mut escaped) = (String::new(), path.len(), false);
    for (at, character) in path.char_indices() {
        match character {
            '\\' if !escaped => escaped = true,
            '.' | '[' if !escaped => {
                end = at;
                break;
            }
            _ => {
                name.push(character);
                escaped = false;
            }
        }
    }
    walk_path(&path[end..], value.get(&name)?)
}

/// Splits the text after an opening bracket into its content and the rest. Quoted brackets do not count.
fn split_bracket(text: &str) -> Option<(&str, &str)> {
    let (mut depth, mut quote) = (0, None);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some((&text[..at], &text[at + 1..])),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn filter_matches(filter: &str, item: &Value) -> bool {
    for operator in ["==", "!=", ">=", "<=", ">", "<"] {
        let Some((left, right)) = filter.split_once(operator) else {
            continue;
        };
        let Some(found) = walk_path(left.trim().trim_start_matches('@'), item) else {
            return false;
        };
        let right = right.trim();
        let wanted = match right.trim_matches(['\'', '"']) {
            text if text.len() < right.len() => Value::from(text),
            literal => serde_json::from_str(literal).unwrap_or_else(|_| literal.into()),
        };
        let order = match (found.as_f64(), wanted.as_f64()) {
            (Some(a), Some(b)) => a.partial_cmp(&b),
            _ => found.as_str().zip(wanted.as_str()).map(|(a, b)| a.cmp(b)),
        };
        return match operator {
            "==" => *found == wanted || order.is_some_and(std::cmp::Ordering::is_eq),
            "!=" => *found != wanted && !order.is_some_and(std::cmp::Ordering::is_eq),
            ">=" => order.is_some_and(std::cmp::Ordering::is_ge),
            "<=" => order.is_some_and(std::cmp::Ordering::is_le),
            ">" => order.is_some_and(std::cmp::Ordering::is_gt),
            _ => order.is_some_and(std::cmp::Ordering::is_lt),
        };
    }
    walk_path(filter.trim().trim_start_matches('@'), item).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_path_finds_values() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "dotted"}},
            "spec": {"list": [{"n": 1}, {"n": 2}]},
            "status": {"conditions": [{"type": "Synced", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        for (path, expected) in [
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type=='Ready')].status", json!("True")),
            (".spec.list[1].n", json!(2)),
            (".spec.list[-1].n", json!(2)),
            (".spec.list[*].n", json!(1)),
            (".spec.list[?(@.n>1)].n", json!(2)),
            (".metadata.annotations['a.b/c']", json!("dotted")),
            (".metadata.annotations.a\\.b/c", json!("dotted")),
        ] {
            assert_eq!(find_path(path, &object), Some(&expected), "{path}");
        }
        assert_eq!(
            find_path(".status.conditions[?(@.type==\"Gone\")].status", &object),
            None
        );
        assert_eq!(find_path(".spec.list[7]", &object), None);
        assert_eq!(find_path(".spec.list[", &object), None);
    }

    #[test]
    fn ages_are_formatted_as_by_kubectl() {
        let minute = 60;
        let hour = 60 * minute;
        let day = 24 * hour;
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (10 * minute + 5, "10m"),
            (3 * hour, "3h"),
            (7 * hour + 5 * minute, "7h5m"),
            (9 * hour + 59, "9h"),
            (50 * hour, "2d2h"),
            (48 * hour, "2d"),
            (9 * day, "9d"),
            (800 * day, "2y70d"),
            (3000 * day, "8y"),
        ] {
            assert_eq!(format_age(seconds), expected);
        }
    }
}
