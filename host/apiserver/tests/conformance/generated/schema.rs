//! Random structural schemas, valid ones and ones with a single mistake.

use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::choice::{Choose as _, insert};

/// Names of properties. Few, so that the parts of a sequence meet in the same fields.
const PROPERTY_NAMES: [&str; 7] = ["name", "size", "mode", "items", "labels", "inner", "when"];
/// Maximum depth of a schema below its root.
const MAX_DEPTH: u32 = 3;

/// A pattern, with texts that match it and texts that don't.
pub struct PatternExample {
    /// The regular expression.
    pub pattern: &'static str,
    /// A text that matches.
    pub matching: &'static str,
    /// A text that does not match.
    pub other: &'static str,
}

/// Patterns of generated strings.
pub const PATTERNS: [PatternExample; 4] = [
    PatternExample {
        pattern: "^https?://",
        matching: "https://a.example",
        other: "ftp://a.example",
    },
    PatternExample {
        pattern: "^[a-z]+$",
        matching: "abc",
        other: "Abc",
    },
    PatternExample {
        pattern: r"^\d{3}$",
        matching: "123",
        other: "12",
    },
    PatternExample {
        pattern: "b",
        matching: "abc",
        other: "xyz",
    },
];

/// A named format, with texts that have it and texts that don't.
pub struct FormatExample {
    /// Name of the format.
    pub format: &'static str,
    /// Texts of the format.
    pub matching: &'static [&'static str],
    /// Texts that are not of the format.
    pub others: &'static [&'static str],
}

/// Formats of generated strings.
pub const FORMATS: [FormatExample; 16] = [
    FormatExample {
        format: "date-time",
        matching: &["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123+02:00"],
        others: &["2026-01-02", "noon", "2026-13-02T03:04:05Z"],
    },
    FormatExample {
        format: "date",
        matching: &["2026-01-02"],
        others: &["2026-1-2", "2026-02-31", "today"],
    },
    FormatExample {
        format: "duration",
        matching: &["1h", "10ms", "1h30m", "2 weeks"],
        others: &["1x", "soon", ""],
    },
    FormatExample {
        format: "uuid",
        matching: &["123e4567-e89b-12d3-a456-426614174000"],
        others: &["123e4567", "z23e4567-e89b-12d3-a456-426614174000"],
    },
    FormatExample {
        format: "ipv4",
        matching: &["10.0.0.1"],
        others: &["10.0.0.256", "::1", "a"],
    },
    FormatExample {
        format: "ipv6",
        matching: &["::1", "2001:db8::1"],
        others: &["10.0.0.1", ":::"],
    },
    FormatExample {
        format: "cidr",
        matching: &["10.0.0.0/8", "2001:db8::/32"],
        others: &["10.0.0.0", "10.0.0.0/33"],
    },
    FormatExample {
        format: "mac",
        matching: &["01:23:45:67:89:ab"],
        others: &["01:23:45", "zz:23:45:67:89:ab"],
    },
    FormatExample {
        format: "byte",
        matching: &["YWJj", "YQ=="],
        others: &["a", "%%%%"],
    },
    FormatExample {
        format: "hostname",
        matching: &["a.example", "localhost"],
        others: &["a..b", "-a.example"],
    },
    FormatExample {
        format: "email",
        matching: &["a@b.example"],
        others: &["a", "@b"],
    },
    FormatExample {
        format: "uri",
        matching: &["https://a.example/b?c=d", "/a/b"],
        others: &["a b", "%zz"],
    },
    FormatExample {
        format: "hexcolor",
        matching: &["#fff", "#a0b1c2"],
        others: &["#ff", "red"],
    },
    FormatExample {
        format: "password",
        matching: &["anything"],
        others: &[],
    },
    FormatExample {
        format: "unheard-of",
        matching: &["anything"],
        others: &[],
    },
    FormatExample {
        format: "k8s-short-name",
        matching: &["abc", "a-1"],
        others: &["a.b", "A"],
    },
];

/// Returns the schema of a kind: an object with a `spec` and a `status`.
pub fn generate_root(rng: &mut Rng) -> Value {
    let mut spec = generate_object(rng, 0);
    spec["properties"]["url"] = json!({"type": "string"});
    spec["properties"]["replicas"] = json!({"type": "integer", "format": "int32"});
    json!({"type": "object", "properties": {
        "spec": spec,
        "status": {"type": "object", "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "replicas": {"type": "integer", "format": "int32"},
            "phase": {"type": "string"},
            "conditions": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": {"type": "object", "required": ["type", "status"], "properties": {
                    "type": {"type": "string"}, "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "reason": {"type": "string"},
                }},
            },
        }},
    }})
}

fn generate_schema(rng: &mut Rng, depth: u32) -> Value {
    let mut schema = match rng.u32(0..if depth < MAX_DEPTH { 12 } else { 7 }) {
        0..3 => generate_string(rng),
        3 | 4 => generate_integer(rng),
        5 => json!({"type": "boolean"}),
        6 => rng.choose(&[
            json!({"x-kubernetes-int-or-string": true}),
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            json!({"type": "number", "minimum": 0.5}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
        ]),
        7 | 8 => generate_object(rng, depth + 1),
        9 => generate_map(rng, depth + 1),
        _ => generate_list(rng, depth + 1),
    };
    if rng.percent(20) {
        insert(&mut schema, "nullable", true);
    }
    if rng.percent(25) && schema.get("default").is_none() {
        let default = super::value::generate_fitting(rng, &schema);
        insert(&mut schema, "default", default);
    }
    schema
}

fn generate_string(rng: &mut Rng) -> Value {
    match rng.u32(0..6) {
        0 => json!({"type": "string", "pattern": PATTERNS[rng.usize(..PATTERNS.len())].pattern}),
        1 => json!({"type": "string", "enum": ["slow", "fast", ""]}),
        2 => json!({"type": "string", "minLength": 1, "maxLength": 5}),
        3 => json!({"type": "string", "format": FORMATS[rng.usize(..FORMATS.len())].format}),
        _ => json!({"type": "string"}),
    }
}

fn generate_integer(rng: &mut Rng) -> Value {
    rng.choose(&[
        json!({"type": "integer"}),
        json!({"type": "integer", "format": "int32"}),
        json!({"type": "integer", "format": "int64", "minimum": 1}),
        json!({"type": "integer", "minimum": 1, "maximum": 10, "exclusiveMaximum": true}),
        json!({"type": "integer", "multipleOf": 5}),
        json!({"type": "integer", "enum": [1, 2, 3]}),
    ])
}

fn generate_object(rng: &mut Rng, depth: u32) -> Value {
    let mut properties = Map::new();
    for _ in 0..rng.usize(1..5) {
        let name = rng.choose(&PROPERTY_NAMES);
        properties.insert(name.to_owned(), generate_schema(rng, depth));
    }
    let mut schema = json!({"type": "object"});
    let required: Vec<&String> = properties.keys().filter(|_| rng.percent(20)).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema["properties"] = properties.into();
    match rng.u32(0..20) {
        0 => insert(&mut schema, "x-kubernetes-preserve-unknown-fields", true),
        1 => insert(&mut schema, "minProperties", 1),
        2 => insert(&mut schema, "maxProperties", 3),
        3 => insert(&mut schema, "x-kubernetes-map-type", "atomic"),
        4 => insert(
            &mut schema,
            "not",
            json!({"required": [rng.choose(&PROPERTY_NAMES)]}),
        ),
        5 => {
            let names: Vec<String> = schema["properties"]
                .as_object()
                .map(|fields| fields.keys().cloned().collect())
                .unwrap_or_default();
            let parts: Vec<Value> = names.iter().map(|name| json!({"required": [name]})).collect();
            let keyword = rng.choose(&["anyOf", "oneOf", "allOf"]);
            insert(&mut schema, keyword, parts);
        }
        7 | 8 => insert(
            &mut schema,
            "x-kubernetes-validations",
            json!([generate_rule(rng)]),
        ),
        6 if depth > 0 => {
            return json!({
                "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
            });
        }
        _ => {}
    }
    schema
}

/// Returns a rule, which may not fit the schema, or cost more than a definition may.
fn generate_rule(rng: &mut Rng) -> Value {
    let name = rng.choose(&PROPERTY_NAMES);
    let other = rng.choose(&PROPERTY_NAMES);
    let mut rule = json!({"rule": rng.choose(&[
        format!("!has(self.{name}) || self.{name}.all(x, x == x)"),
        format!("self.{name}.all(x, self.{name}.exists_one(y, y == x))"),
        format!("self.{name}.all(x, x.{other} == oldSelf.{name}[0].{other})"),
        format!("self.{name}.exists(x, self.{other}.all(y, y != x))"),
        format!("self.{name}.map(x, x.{other}).size() < 10"),
        format!("self.{name}.filter(x, x != '').join(',').size() < 10"),
        format!("self.{name}.matches('^[a-z]+$')"),
        format!("self.{name}.contains(self.{other})"),
        format!("self.{name} + self.{other} != 'ab'"),
        format!("self.{name} in self.{other}"),
        format!("quantity(self.{name}).isLessThan(quantity('1Gi'))"),
        format!("isURL(self.{name}) && url(self.{name}).getHost() != ''"),
        format!("type(self.{name}) == string ? self.{name} == 'a' : self.{name} == 1"),
        format!("sets.contains(self.{name}, self.{other})"),
        format!("has(self.{name})"),
        format!("!has(self.{name}) || has(self.name)"),
        format!("self.{name} == 'a'"),
        format!("self.{name} > 1"),
        format!("!has(self.{name}) || self.{name} == oldSelf.{name}"),
        format!("self.{name}.size() < 3"),
        format!("self.{name}.startsWith('a')"),
        "self.name.".to_owned(),
        "true".to_owned(),
        "false".to_owned(),
        "1".to_owned(),
        String::new(),
        "self == oldSelf".to_owned(),
    ])});
    if rng.percent(40) {
        let (field, value) = rng.choose(&[
            ("message", json!("must be so")),
            ("message", json!(" ")),
            ("message", json!("two\nlines")),
            ("messageExpression", json!("'not ' + 'so'")),
            ("messageExpression", json!("1")),
            ("reason", json!("FieldValueForbidden")),
            ("reason", json!("FieldValueRequired")),
            ("reason", json!("Odd")),
            ("fieldPath", json!(".name")),
            ("fieldPath", json!(".absent")),
            ("fieldPath", json!("name")),
            ("optionalOldSelf", json!(true)),
        ]);
        insert(&mut rule, field, value);
    }
    rule
}

fn generate_map(rng: &mut Rng, depth: u32) -> Value {
    let mut schema = json!({"type": "object", "additionalProperties": generate_schema(rng, depth)});
    if rng.percent(15) {
        insert(&mut schema, "maxProperties", 2);
    }
    if rng.percent(15) {
        insert(&mut schema, "x-kubernetes-map-type", "atomic");
    }
    schema
}

fn generate_list(rng: &mut Rng, depth: u32) -> Value {
    let mut schema = match rng.u32(0..4) {
        0 => {
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": rng.choose(&["string", "integer"])}})
        }
        1 => generate_keyed_list(rng, depth),
        2 => {
            json!({"type": "array", "x-kubernetes-list-type": "atomic", "items": generate_schema(rng, depth)})
        }
        _ => json!({"type": "array", "items": generate_schema(rng, depth)}),
    };
    if rng.percent(15) {
        insert(&mut schema, "minItems", 1);
    }
    if rng.percent(15) {
        insert(&mut schema, "maxItems", 2);
    }
    schema
}

fn generate_keyed_list(rng: &mut Rng, depth: u32) -> Value {
    let mut item = generate_object(rng, depth);
    // Rules about the presence of fields would contradict the keys.
    if let Some(keywords) = item.as_object_mut() {
        keywords.retain(|keyword, _| {
            matches!(
                keyword.as_str(),
                "type" | "properties" | "required" | "x-kubernetes-map-type"
            )
        });
        keywords.entry("properties").or_insert_with(|| json!({}));
    }
    item["properties"]["name"] = json!({"type": "string"});
    let mut required = vec![json!("name")];
    let mut keys = vec!["name"];
    if rng.percent(40) {
        keys.push("port");
        item["properties"]["port"] = if rng.bool() {
            json!({"type": "integer", "default": 80})
        } else {
            required.push("port".into());
            json!({"type": "integer"})
        };
    }
    item["required"] = required.into();
    json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": item,
    })
}

/// Makes a schema invalid, or different from what it was, at a random place.
pub fn add_mistake(rng: &mut Rng, root: &mut Value) {
    let mut places = Vec::new();
    collect_places(root, &mut String::new(), &mut places);
    let place = rng.choose(&places);
    let Some(schema) = root.pointer_mut(&place) else {
        return;
    };
    let is_root = place.is_empty();
    let mistakes: [(&str, Value); 37] = [
        ("type", json!("strin")),
        ("type", Value::Null),
        ("type", json!("")),
        ("default", json!({"a": [1]})),
        ("default", json!(7)),
        ("default", Value::Null),
        ("x-kubernetes-list-type", json!("bag")),
        ("x-kubernetes-list-type", json!("map")),
        ("x-kubernetes-list-type", json!("set")),
        ("x-kubernetes-list-map-keys", json!(["absent"])),
        ("x-kubernetes-list-map-keys", json!(["name", "name"])),
        ("x-kubernetes-map-type", json!("flat")),
        ("x-kubernetes-map-type", json!("granular")),
        ("x-kubernetes-preserve-unknown-fields", json!(false)),
        ("x-kubernetes-preserve-unknown-fields", json!(true)),
        ("x-kubernetes-embedded-resource", json!(true)),
        ("x-kubernetes-int-or-string", json!(true)),
        ("additionalProperties", json!({"type": "string"})),
        ("additionalProperties", json!(false)),
        ("additionalProperties", json!(true)),
        ("uniqueItems", json!(true)),
        ("pattern", json!("(")),
        ("format", json!("int32")),
        ("minimum", json!(5)),
        ("maxLength", json!(-1)),
        ("nullable", json!(true)),
        ("required", json!(["absent"])),
        ("enum", json!([1, "a"])),
        ("enum", json!([])),
        ("items", json!({"type": "string"})),
        ("items", json!([{"type": "string"}])),
        ("properties", json!({"a": {}})),
        ("$ref", json!("#/definitions/a")),
        ("anyOf", json!([{"type": "string"}, {"type": "integer"}])),
        ("anyOf", json!([{"properties": {"undeclared": {"minLength": 1}}}])),
        ("not", json!({"description": "a", "default": 1})),
        ("x-kubernetes-validations", json!([generate_rule(rng)])),
    ];
    let (keyword, value) = rng.choose(&mistakes);
    if is_root && rng.percent(30) {
        let metadata = rng.choose(&[
            json!({"type": "object", "properties": {"labels": {"type": "object"}}}),
            json!({"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}}),
            json!({"type": "string"}),
            json!({"type": "object", "required": ["name"]}),
        ]);
        schema["properties"]["metadata"] = metadata;
        return;
    }
    match value {
        Value::Null => drop(schema.as_object_mut().and_then(|fields| fields.remove(keyword))),
        value => insert(schema, keyword, value),
    }
}

/// Collects the JSON pointers of all schemas below `schema`.
fn collect_places(schema: &Value, pointer: &mut String, places: &mut Vec<String>) {
    if !schema.is_object() {
        return;
    }
    places.push(pointer.clone());
    let properties = schema["properties"].as_object().into_iter().flatten();
    let below = properties
        .map(|(name, below)| (format!("/properties/{name}"), below))
        .chain(["items", "additionalProperties"].map(|keyword| (format!("/{keyword}"), &schema[keyword])));
    for (segment, below) in below {
        let length = pointer.len();
        pointer.push_str(&segment);
        collect_places(below, pointer, places);
        pointer.truncate(length);
    }
}
