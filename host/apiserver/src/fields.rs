//! Sets of field paths (`fieldsV1`), and the comparison, merge and removal of fields along them.

use std::collections::BTreeMap;

use ostler_schema::{ListType, Schema};
use serde_json::{Map, Value, json};

/// A set of field paths. Path elements are those of `fieldsV1`: `f:name`, `k:{…}`, `v:…`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeMap<String, Node>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Node {
    member: bool,
    children: FieldSet,
}

impl FieldSet {
    /// Returns true for the empty set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The field that a JSON pointer addresses, which leads through objects only.
    pub fn of_pointer(pointer: &str) -> Self {
        let mut set = Self::default();
        let path: Vec<String> = pointer
            .split('/')
            .skip(1)
            .map(|name| format!("f:{name}"))
            .collect();
        set.insert_path(&path);
        set
    }

    /// Parses `fieldsV1`.
    pub fn from_json(value: &Value) -> Self {
        let fields = value
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(element, _)| *element != ".");
        Self(
            fields
                .map(|(element, below)| {
                    let children = Self::from_json(below);
                    let member = below.get(".").is_some() || children.is_empty();
                    (element.clone(), Node { member, children })
                })
                .collect(),
        )
    }

    /// Formats the set as `fieldsV1`.
    pub fn to_json(&self) -> Value {
        let fields = self.0.iter().map(|(element, node)| {
            let mut below = node.children.to_json();
            if node.member && !node.children.is_empty() {
                below["."] = json!({});
            }
            (element.clone(), below)
        });
        Value::Object(fields.collect())
    }

    fn insert_path(&mut self, path: &[String]) {
        let [parents @ .., last] = path else { return };
        let mut set = self;
        for element in parents {
            set = &mut set.0.entry(element.clone()).or_default().children;
        }
        set.0.entry(last.clone()).or_default().member = true;
    }

    fn remove_member(&mut self, path: &[String]) {
        let [first, rest @ ..] = path else { return };
        let Some(node) = self.0.get_mut(first) else {
            return;
        };
        if rest.is_empty() {
            node.member = false;
        } else {
            node.children.remove_member(rest);
        }
        if !node.member && node.children.is_empty() {
            self.0.remove(first);
        }
    }

    /// Paths in either set.
    pub fn union(mut self, other: &Self) -> Self {
        for (element, node) in &other.0 {
            let mine = self.0.entry(element.clone()).or_default();
            mine.member |= node.member;
            mine.children = std::mem::take(&mut mine.children).union(&node.children);
        }
        self
    }

    /// Paths in this set and not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        self.combine_with(other, |mine, theirs| mine && !theirs)
    }

    /// Paths in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine_with(other, |mine, theirs| mine && theirs)
    }

    fn combine_with(&self, other: &Self, keep: fn(bool, bool) -> bool) -> Self {
        let none = Node::default();
        let nodes = self.0.iter().filter_map(|(element, node)| {
            let theirs = other.0.get(element).unwrap_or(&none);
            let member = keep(node.member, theirs.member);
            let children = node.children.combine_with(&theirs.children, keep);
            (member || !children.is_empty()).then(|| (element.clone(), Node { member, children }))
        });
        Self(nodes.collect())
    }

    /// Keeps the top-level fields for which `keep` holds.
    pub fn retain_fields(&mut self, keep: impl Fn(&str) -> bool) {
        self.0
            .retain(|element, _| keep(element.strip_prefix("f:").unwrap_or(element)));
    }

    /// Drops the fields that no manager owns: the object's identity and the metadata of the server.
    pub fn strip_system(&mut self) {
        self.retain_fields(|field| field != "apiVersion" && field != "kind");
        if let Some(metadata) = self.0.get_mut("f:metadata") {
            metadata.member = false;
            metadata.children.retain_fields(|field| {
                !matches!(
                    field,
                    "name"
                        | "namespace"
                        | "creationTimestamp"
                        | "selfLink"
                        | "uid"
                        | "generation"
                        | "managedFields"
                        | "resourceVersion"
                )
            });
            if metadata.children.is_empty() {
                self.0.remove("f:metadata");
            }
        }
    }

    /// All paths, in the form of conflict messages: `.spec.list[name="x"].field`.
    pub fn list_paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        for (element, node) in &self.0 {
            let path = format!("{prefix}{}", format_element(element));
            if node.member {
                paths.push(path.clone());
            }
            node.children.collect_paths(&path, paths);
        }
    }
}

fn format_element(element: &str) -> String {
    match element.split_at(2.min(element.len())) {
        ("f:", name) => format!(".{name}"),
        ("k:", keys) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        ("v:", value) => format!("[={value}]"),
        (_, rest) => format!("[{rest}]"),
    }
}

/// The structure of a value by its schema: atomic values are leaves.
enum Structure<'a> {
    Leaf,
    Map(&'a Map<String, Value>),
    List(&'a [Value]),
}

fn structure_of<'a>(schema: &Schema, value: &'a Value) -> Structure<'a> {
    match value {
        Value::Object(map) if !schema.is_atomic_map() => Structure::Map(map),
        Value::Array(items) if schema.list_type() != ListType::Atomic => Structure::List(items),
        _ => Structure::Leaf,
    }
}

fn field_schema<'a>(schema: &'a Schema, unknown: &'a Schema, field: &str) -> &'a Schema {
    schema.field(field).unwrap_or(unknown)
}

fn item_schema<'a>(schema: &'a Schema, unknown: &'a Schema) -> &'a Schema {
    schema.items.as_deref().unwrap_or(unknown)
}

/// The paths that an applied configuration sets.
pub fn owned_fields(schema: &Schema, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    collect_owned(schema, value, &mut Vec::new(), &mut set);
    set
}

fn collect_owned(schema: &Schema, value: &Value, path: &mut Vec<String>, set: &mut FieldSet) {
    let unknown = Schema::default();
    match structure_of(schema, value) {
        Structure::Leaf => set.insert_path(path),
        Structure::Map(map) => {
            for (name, value) in map {
                path.push(format!("f:{name}"));
                // A map key is owned as such, a declared field only by its content.
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                if empty || !schema.declares(name) {
                    set.insert_path(path);
                }
                collect_owned(field_schema(schema, &unknown, name), value, path, set);
                path.pop();
            }
        }
        Structure::List(items) => {
            for item in items {
                path.push(schema.item_path_element(item));
                set.insert_path(path);
                collect_owned(item_schema(schema, &unknown), item, path, set);
                path.pop();
            }
        }
    }
}

/// The difference between two states of an object.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Paths that are new or have a different value.
    pub changed: FieldSet,
    /// Paths that were removed.
    pub removed: FieldSet,
}

/// Compares two states of an object.
pub fn compare_values(schema: &Schema, before: &Value, after: &Value) -> Comparison {
    let mut comparison = Comparison::default();
    compare_at(
        schema,
        Some(before),
        Some(after),
        &mut Vec::new(),
        &mut comparison,
    );
    comparison
}

fn compare_at(
    schema: &Schema,
    before: Option<&Value>,
    after: Option<&Value>,
    path: &mut Vec<String>,
    out: &mut Comparison,
) {
    let unknown = Schema::default();
    let shape = |value: Option<&Value>| match value.map(|value| structure_of(schema, value)) {
        None => 0,
        Some(Structure::Leaf) => 1,
        Some(Structure::Map(_)) => 2,
        Some(Structure::List(_)) => 3,
    };
    match (shape(before), shape(after)) {
        (2, 2) | (2, 0) | (0, 2) => {
            let empty = Map::new();
            let (old, new) = (
                as_fields(before).unwrap_or(&empty),
                as_fields(after).unwrap_or(&empty),
            );
            for name in old
                .keys()
                .chain(new.keys().filter(|name| !old.contains_key(*name)))
            {
                path.push(format!("f:{name}"));
                compare_at(
                    field_schema(schema, &unknown, name),
                    old.get(name),
                    new.get(name),
                    path,
                    out,
                );
                path.pop();
            }
        }
        (3, 3) | (3, 0) | (0, 3) => {
            let (old, new) = (index_items(schema, before), index_items(schema, after));
            for element in old
                .keys()
                .chain(new.keys().filter(|element| !old.contains_key(*element)))
            {
                let old = old.get(element).cloned().unwrap_or_default();
                let new = new.get(element).cloned().unwrap_or_default();
                path.push(element.clone());
                if old.len().max(new.len()) <= 1 {
                    let (old, new) = (old.first().copied(), new.first().copied());
                    compare_at(item_schema(schema, &unknown), old, new, path, out);
                } else if new.is_empty() {
                    out.removed.insert_path(path);
                } else if let [only] = old.as_slice() {
                    // As one, they have no members.
                    compare_at(item_schema(schema, &unknown), Some(only), None, path, out);
                    out.removed.remove_member(path);
                    out.changed.insert_path(path);
                } else if let [only] = new.as_slice() {
                    // Which of the former ones it was is not known.
                    compare_at(item_schema(schema, &unknown), None, Some(only), path, out);
                } else if old != new {
                    // Items with one key are compared as one.
                    out.changed.insert_path(path);
                }
                path.pop();
            }
        }
        _ if before.is_some() && after.is_some() && before != after => {
            // Of another shape: what was below it is gone, and what is below it is new. A null is a container without members, and
            // another value than one that is empty.
            compare_at(schema, before, None, path, out);
            let has_members =
                |value: Option<&Value>| shape(value) > 1 && !value.is_some_and(is_empty_container);
            if after.is_some_and(Value::is_null) && has_members(before) {
                return out.removed.remove_member(path);
            }
            if before.is_some_and(Value::is_null) && has_members(after) {
                compare_at(schema, None, after, path, out);
                out.removed.remove_member(path);
                return out.changed.remove_member(path);
            }
            compare_at(schema, None, after, path, out);
            out.removed.remove_member(path);
            return out.changed.insert_path(path);
        }
        _ => {}
    }
    match (before, after) {
        (None, Some(_)) => out.changed.insert_path(path),
        (Some(_), None) => out.removed.insert_path(path),
        _ => {}
    }
}

/// The items of a list by their keys, of which several may have the same.
fn index_items<'a>(schema: &Schema, list: Option<&'a Value>) -> BTreeMap<String, Vec<&'a Value>> {
    let mut index: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for item in list.and_then(Value::as_array).into_iter().flatten() {
        index
            .entry(schema.item_path_element(item))
            .or_default()
            .push(item);
    }
    index
}

fn as_fields(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

/// Merges an applied configuration into the live object.
pub fn merge_values(schema: &Schema, live: &Value, applied: &Value) -> Value {
    let unknown = Schema::default();
    match (structure_of(schema, live), structure_of(schema, applied)) {
        (Structure::Map(old), Structure::Map(new)) => {
            let mut merged = old.clone();
            for (name, value) in new {
                let value = match old.get(name) {
                    Some(old) => merge_values(field_schema(schema, &unknown, name), old, value),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Structure::List(old), Structure::List(new)) => Value::Array(merge_lists(schema, old, new)),
        // A null has no members to merge, and takes none away.
        (Structure::Map(old), _) if applied.is_null() && !old.is_empty() => live.clone(),
        (Structure::List(old), _) if applied.is_null() && !old.is_empty() => live.clone(),
        _ => applied.clone(),
    }
}

/// Applied items keep their order; live items that are not applied keep their place between them.
fn merge_lists(schema: &Schema, old: &[Value], new: &[Value]) -> Vec<Value> {
    let unknown = Schema::default();
    let name = |item: &Value| schema.item_path_element(item);
    let old_index: BTreeMap<String, &Value> = old.iter().map(|item| (name(item), item)).collect();
    let new_names: Vec<String> = new.iter().map(name).collect();
    let mut shared = new_names
        .iter()
        .filter(|name| old_index.contains_key(*name))
        .peekable();
    let mut merged = Vec::with_capacity(old.len() + new.len());
    let (mut left, mut right) = (0, 0);
    while left < old.len() || right < new.len() {
        if let Some(item) = old.get(left) {
            let this = name(item);
            if !new_names.contains(&this) {
                merged.push(item.clone());
                left += 1;
                continue;
            }
            // Also applied, but another applied item comes first: this one is taken at its applied place.
            if right >= new.len() || (new_names[right] != this && shared.peek() != Some(&&this)) {
                left += 1;
                continue;
            }
        }
        let this = &new_names[right];
        merged.push(match old_index.get(this) {
            Some(item) => merge_values(item_schema(schema, &unknown), item, &new[right]),
            None => new[right].clone(),
        });
        if shared.peek() == Some(&this) {
            shared.next();
        }
        if old.get(left).is_some_and(|item| name(item) == *this) {
            left += 1;
        }
        right += 1;
    }
    merged
}

/// Removes the paths of `gone`; a container that contains a path of `kept` stays.
pub fn remove_fields(schema: &Schema, value: &mut Value, gone: &FieldSet, kept: &FieldSet) {
    let (unknown, none) = (Schema::default(), Node::default());
    match value {
        Value::Object(map) if !schema.is_atomic_map() => {
            let mut emptied = Vec::new();
            map.retain(|name, value| {
                let element = format!("f:{name}");
                let Some(node) = gone.0.get(&element) else {
                    return true;
                };
                let keep = kept.0.get(&element).unwrap_or(&none);
                let below = field_schema(schema, &unknown, name);
                if is_empty_keyed_list(below, value) {
                    // Without items it has no path.
                    return true;
                }
                // A declared field goes with all that is in it, of which defaults have no owner, unless somebody owns a part of it. A
                // key goes unless somebody owns the key itself.
                let is_declared = schema.declares(name);
                let is_kept = keep.member || (is_declared && !keep.children.is_empty());
                // Of one that is applied as empty, lists without a path are not seen, as if all of it were gone.
                let is_overlooked = keep.children.is_empty() && has_pathless_field(below, value);
                if (node.member || is_declared) && (!is_kept || is_overlooked) {
                    return false;
                }
                let was_empty = is_empty_container(value);
                remove_fields(below, value, &node.children, &keep.children);
                if !was_empty && is_empty_container(value) {
                    if is_kept {
                        // One that somebody still owns, or a part of it, is left as a null, which a schema need not allow.
                        *value = Value::Null;
                    } else {
                        emptied.push(name.clone());
                    }
                }
                true
            });
            // A container that held removed fields only is removed, too.
            for name in emptied {
                map.remove(&name);
            }
        }
        Value::Array(items) if schema.list_type() != ListType::Atomic => items.retain_mut(|item| {
            let element = schema.item_path_element(item);
            let Some(node) = gone.0.get(&element) else {
                return true;
            };
            let keep = kept.0.get(&element).unwrap_or(&none);
            if node.member && !keep.member {
                return false;
            }
            remove_fields(
                item_schema(schema, &unknown),
                item,
                &node.children,
                &keep.children,
            );
            true
        }),
        _ => {}
    }
}

/// Returns true for a list whose items have paths, and that has none.
fn is_empty_keyed_list(schema: &Schema, value: &Value) -> bool {
    matches!(structure_of(schema, value), Structure::List(items) if items.is_empty())
}

/// Returns true for an object with a declared field in which nothing has a path.
fn has_pathless_field(schema: &Schema, value: &Value) -> bool {
    let mut fields = value.as_object().into_iter().flatten();
    fields.any(|(name, value)| is_pathless_field(schema, name, value))
}

/// Returns true for a declared field that is an empty list of items with paths, or that has no other fields than such.
fn is_pathless_field(schema: &Schema, name: &str, value: &Value) -> bool {
    let unknown = Schema::default();
    let below = field_schema(schema, &unknown, name);
    schema.declares(name)
        && match value {
            Value::Object(fields) if !fields.is_empty() && !below.is_atomic_map() => fields
                .iter()
                .all(|(name, value)| is_pathless_field(below, name, value)),
            _ => is_empty_keyed_list(below, value),
        }
}

fn is_empty_container(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {
            "a": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                     "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "integer"}}}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "atomic": {"type": "array", "items": {"type": "string"}},
        }}))
        .unwrap()
    }

    #[test]
    fn applied_configuration_owns_its_leaves() {
        let set = owned_fields(
            &schema(),
            &json!({"a": "x", "labels": {"k": "v"}, "list": [{"name": "n", "v": 1}], "set": ["s"], "atomic": ["q"]}),
        );
        let expected = json!({
            "f:a": {}, "f:labels": {"f:k": {}}, "f:list": {"k:{\"name\":\"n\"}": {".": {}, "f:name": {}, "f:v": {}}},
            "f:set": {"v:\"s\"": {}}, "f:atomic": {},
        });
        assert_eq!(set.to_json(), expected);
        assert_eq!(FieldSet::from_json(&expected), set);
        assert!(set.list_paths().contains(&".list[name=\"n\"].v".to_owned()));
    }

    #[test]
    fn new_container_is_a_changed_path() {
        let difference = compare_values(
            &schema(),
            &json!({"a": "x"}),
            &json!({"a": "y", "labels": {"k": "v"}}),
        );
        assert_eq!(
            difference.changed.to_json(),
            json!({"f:a": {}, "f:labels": {".": {}, "f:k": {}}})
        );
        assert!(difference.removed.is_empty());
        assert!(
            compare_values(&schema(), &json!({"a": "x"}), &json!({"a": "x"}))
                .changed
                .is_empty()
        );
    }

    #[test]
    fn merged_list_keeps_items_that_are_not_applied() {
        let live =
            json!({"list": [{"name": "a", "v": 1}, {"name": "b", "v": 2}], "set": ["x"], "atomic": ["1"]});
        let merged = merge_values(
            &schema(),
            &live,
            &json!({"list": [{"name": "b", "v": 3}, {"name": "c"}], "set": ["y"], "atomic": ["2"]}),
        );
        assert_eq!(
            merged["list"],
            json!([{"name": "a", "v": 1}, {"name": "b", "v": 3}, {"name": "c"}])
        );
        assert_eq!(merged["set"], json!(["x", "y"]));
        assert_eq!(merged["atomic"], json!(["2"]));
        let reordered = merge_values(&schema(), &live, &json!({"list": [{"name": "b"}, {"name": "a"}]}));
        assert_eq!(
            reordered["list"],
            json!([{"name": "b", "v": 2}, {"name": "a", "v": 1}])
        );
    }

    #[test]
    fn removal_keeps_fields_of_other_managers() {
        let mut value =
            json!({"a": "x", "list": [{"name": "a", "v": 1}, {"name": "b"}], "labels": {"k": "v"}});
        let gone = owned_fields(
            &schema(),
            &json!({"a": "x", "list": [{"name": "a", "v": 1}, {"name": "b"}], "labels": {"k": "v"}}),
        );
        let kept = owned_fields(&schema(), &json!({"list": [{"name": "a"}]}));
        remove_fields(&schema(), &mut value, &gone.difference(&kept), &kept);
        assert_eq!(value, json!({"list": [{"name": "a"}]}));
    }

    #[test]
    fn container_with_nothing_but_lists_without_a_path_is_removed() {
        let schema = Schema::parse(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "a": {"type": "string"}, "default": {"type": "string"},
                "list": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            }}}}),
        )
        .unwrap();
        let gone = owned_fields(&schema, &json!({"spec": {"a": "x"}}));
        let kept = owned_fields(&schema, &json!({"spec": {}}));
        for (live, left) in [
            (json!({"spec": {"a": "x", "default": "y", "list": []}}), json!({})),
            (
                json!({"spec": {"a": "x", "default": "y"}}),
                json!({"spec": {"default": "y"}}),
            ),
            (json!({"spec": {"a": "x"}}), json!({"spec": null})),
        ] {
            let mut value = live.clone();
            remove_fields(&schema, &mut value, &gone, &kept);
            assert_eq!(value, left, "{live}");
        }
    }
}
