//! Random values: ones that fit a schema, and ones with a single mistake.

use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::choice::{Choose as _, list_pointers, remove_at};
use super::schema::{FORMATS, PATTERNS};

/// Returns a value that fits a schema, as far as one can be found without solving its rules.
pub fn generate_fitting(rng: &mut Rng, schema: &Value) -> Value {
    if schema["nullable"] == true && rng.percent(10) {
        return Value::Null;
    }
    if let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.is_empty()) {
        return rng.choose(allowed);
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return rng.choose(&[json!(80), json!("http"), json!("50%")]);
    }
    match schema["type"].as_str() {
        Some("string") => generate_text(rng, schema).into(),
        Some("integer") => generate_integer(rng, schema).into(),
        Some("number") => rng.choose(&[json!(0.5), json!(1), json!(1.5), json!(2.0), json!(1e3)]),
        Some("boolean") => rng.bool().into(),
        Some("array") => generate_list(rng, schema),
        Some("object") => generate_object(rng, schema),
        _ => rng.choose(&[json!("a"), json!(1), json!({"a": 1}), json!([1, "b"])]),
    }
}

fn generate_text(rng: &mut Rng, schema: &Value) -> String {
    if let Some(example) = PATTERNS
        .iter()
        .find(|example| schema["pattern"] == example.pattern)
    {
        return example.matching.to_owned();
    }
    if let Some(example) = FORMATS.iter().find(|example| schema["format"] == example.format) {
        return rng.choose(example.matching).to_owned();
    }
    rng.choose(&["a", "b", "abc", "x-1"]).to_owned()
}

fn generate_integer(rng: &mut Rng, schema: &Value) -> i64 {
    let factor = schema["multipleOf"].as_i64().unwrap_or(1);
    rng.i64(1..10) * factor
}

fn generate_list(rng: &mut Rng, schema: &Value) -> Value {
    let limit = schema["maxItems"].as_u64().unwrap_or(3).min(3);
    let least = schema["minItems"].as_u64().unwrap_or(0);
    let count = rng.u64(least..=limit);
    let mut items: Vec<Value> = Vec::new();
    for index in 0..count {
        let mut item = generate_fitting(rng, &schema["items"]);
        match schema["x-kubernetes-list-type"].as_str() {
            Some("set") if schema["items"]["type"] == "integer" => item = (index + 1).into(),
            Some("set") => item = format!("s{index}").into(),
            Some("map") => {
                if item.is_null() {
                    item = json!({});
                }
                item["name"] = format!("n{index}").into();
            }
            _ => {}
        }
        items.push(item);
    }
    items.into()
}

fn generate_object(rng: &mut Rng, schema: &Value) -> Value {
    if schema["x-kubernetes-embedded-resource"] == true {
        return json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "inner", "labels": {"a": "b"}}, "data": {"a": "b"},
        });
    }
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut fields = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if required.contains(&name.as_str()) || rng.percent(60) {
            fields.insert(name.clone(), generate_fitting(rng, property));
        }
    }
    if schema["additionalProperties"].is_object() {
        let limit = schema["maxProperties"].as_u64().unwrap_or(2);
        for name in ["k1", "k2"].iter().take(usize::try_from(limit).unwrap_or(2)) {
            if rng.percent(60) {
                let value = generate_fitting(rng, &schema["additionalProperties"]);
                fields.insert((*name).to_owned(), value);
            }
        }
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == true && rng.percent(50) {
        fields.insert("unknown".into(), json!({"a": [1, null]}));
    }
    fields.into()
}

/// Adds one mistake, or a surprise, at a random place below the root of a value.
pub fn add_mistake(rng: &mut Rng, value: &mut Value) {
    let pointers = list_pointers(value);
    if pointers.is_empty() {
        return;
    }
    let pointer = rng.choose(&pointers);
    match rng.u32(0..10) {
        0 => drop(remove_at(value, &pointer)),
        1 | 2 => set_at(value, &pointer, Value::Null),
        3 => {
            // An unknown field beside it.
            let parent = pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
            if let Some(Value::Object(fields)) = value.pointer_mut(parent) {
                fields.insert("unknownField".into(), json!("x"));
            }
        }
        4 => {
            // A list item twice.
            if let Some(Value::Array(items)) = value.pointer_mut(&pointer)
                && let Some(first) = items.first().cloned()
            {
                items.push(first);
            }
        }
        _ => {
            let other = generate_other(rng, value.pointer(&pointer));
            set_at(value, &pointer, other);
        }
    }
}

/// Returns a value of another type than the given one, or with an extreme content.
fn generate_other(rng: &mut Rng, value: Option<&Value>) -> Value {
    let mut others = vec![
        json!("text"),
        json!(""),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(2.0),
        json!(3_000_000_000_i64),
        json!(9_223_372_036_854_775_807_i64),
        json!(9_223_372_036_854_775_808_u64),
        json!(1e30),
        json!(true),
        json!({}),
        json!({"a": 1}),
        json!([]),
        json!(["a"]),
        json!([null]),
        json!("a-text-that-is-longer-than-five"),
    ];
    if value.is_some_and(Value::is_string) {
        let texts = PATTERNS.iter().map(|example| example.other).chain(
            FORMATS
                .iter()
                .flat_map(|example| example.others.iter().chain(example.matching))
                .copied(),
        );
        others.extend(texts.map(Value::from));
    }
    rng.choose(&others)
}

fn set_at(value: &mut Value, pointer: &str, new: Value) {
    if let Some(place) = value.pointer_mut(pointer) {
        *place = new;
    }
}

/// Returns a merge patch that makes a part of `wanted` from an object, and perhaps removes a field.
pub fn generate_merge_patch(rng: &mut Rng, wanted: &Value) -> Value {
    let Value::Object(fields) = wanted else {
        return wanted.clone();
    };
    let mut patch = Map::new();
    for (name, value) in fields {
        match rng.u32(0..5) {
            0 => drop(patch.insert(name.clone(), Value::Null)),
            1 | 2 => drop(patch.insert(name.clone(), generate_merge_patch(rng, value))),
            _ => {}
        }
    }
    patch.into()
}

/// Returns a JSON patch of one to three operations on an object like `sample`.
pub fn generate_json_patch(rng: &mut Rng, sample: &Value) -> Value {
    let mut pointers = list_pointers(sample);
    pointers.extend(["/spec/absent", "/spec/absent/below", "/metadata/labels/a", ""].map(str::to_owned));
    let mut operations = Vec::new();
    for _ in 0..rng.usize(1..4) {
        let path = rng.choose(&pointers);
        let from = rng.choose(&pointers);
        let value = sample.pointer(&from).cloned().unwrap_or_else(|| json!("x"));
        operations.push(match rng.u32(0..8) {
            0 => json!({"op": "remove", "path": path}),
            1 => json!({"op": "replace", "path": path, "value": value}),
            2 => json!({"op": "test", "path": path, "value": sample.pointer(&path)}),
            3 => json!({"op": "test", "path": path, "value": "other"}),
            4 => json!({"op": "copy", "from": from, "path": path}),
            5 => json!({"op": "move", "from": from, "path": path}),
            6 => rng.choose(&[
                json!({"op": "add", "path": format!("{path}/-"), "value": value}),
                json!({"op": "bad", "path": path}),
                json!({"op": "add", "path": path}),
                json!({"path": path}),
            ]),
            _ => json!({"op": "add", "path": path, "value": value}),
        });
    }
    operations.into()
}
