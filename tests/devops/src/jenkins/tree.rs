//! The query parameter `tree` of the JSON API: `name,jobs[name,url],builds[number]{0,10}`.

use serde_json::{Map, Value};

/// Reduces a document to the selected properties. A property that the document does not have is ignored, as Jenkins
/// does; `_class` is always there.
pub fn select(document: &Value, tree: &str) -> Value {
    let mut rest = tree;
    select_node(document, &parse(&mut rest))
}

struct Selection {
    name: String,
    children: Vec<Selection>,
    range: Option<(usize, usize)>,
}

fn parse(rest: &mut &str) -> Vec<Selection> {
    let mut selections = Vec::new();
    loop {
        let end = rest.find([',', '[', ']', '{']).unwrap_or(rest.len());
        let mut selection = Selection {
            name: rest[..end].to_owned(),
            children: Vec::new(),
            range: None,
        };
        *rest = &rest[end..];
        if let Some(inner) = rest.strip_prefix('[') {
            *rest = inner;
            selection.children = parse(rest);
            *rest = rest.strip_prefix(']').unwrap_or(rest);
        }
        if let Some((range, after)) = rest.strip_prefix('{').and_then(|range| range.split_once('}')) {
            let (from, to) = range.split_once(',').unwrap_or((range, ""));
            selection.range = Some((from.parse().unwrap_or(0), to.parse().unwrap_or(usize::MAX)));
            *rest = after;
        }
        selections.push(selection);
        match rest.strip_prefix(',') {
            Some(next) => *rest = next,
            None => return selections,
        }
    }
}

fn select_node(value: &Value, selections: &[Selection]) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| select_node(item, selections)).collect(),
        Value::Object(fields) => {
            let mut selected = Map::new();
            if let Some(class) = fields.get("_class") {
                selected.insert("_class".into(), class.clone());
            }
            for selection in selections {
                let Some(field) = fields.get(&selection.name) else {
                    continue;
                };
                let mut field = match selection.children.is_empty() {
                    true => field.clone(),
                    false => select_node(field, &selection.children),
                };
                if let (Some((from, to)), Value::Array(items)) = (selection.range, &mut field) {
                    items.truncate(to);
                    items.drain(..from.min(items.len()));
                }
                selected.insert(selection.name.clone(), field);
            }
            Value::Object(selected)
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::select;

    #[test]
    fn tree_selects_nested_properties_and_ranges() {
        let document = json!({"_class": "c", "name": "n", "url": "u",
            "builds": [{"number": 3, "result": null}, {"number": 2}, {"number": 1}]});
        assert_eq!(
            select(&document, "name,missing"),
            json!({"_class": "c", "name": "n"})
        );
        assert_eq!(
            select(&document, "builds[number]{0,2},url"),
            json!({"_class": "c", "builds": [{"number": 3}, {"number": 2}], "url": "u"})
        );
        assert_eq!(
            select(&document, "builds[number,result[x]]{2,9}"),
            json!({"_class": "c", "builds": [{"number": 1}]})
        );
    }
}
