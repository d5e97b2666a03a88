//! Sequences about CustomResourceDefinitions.

use fastrand::Rng;
use serde_json::{Value, json};

use super::choice::{Choose as _, insert};
use super::schema::{add_mistake, generate_root};
use super::sequence::{RequestStep, Step};

/// Path of the definitions.
pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Returns the definition of a kind `Thing` in a group.
pub fn build_definition(group: &str, schema: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"], "categories": ["generated"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
                "additionalPrinterColumns": [
                    {"name": "URL", "type": "string", "jsonPath": ".spec.url"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "selectableFields": [{"jsonPath": ".spec.url"}],
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

/// Generates a definition with a mistake, and its creation without storing it.
pub fn generate_steps(rng: &mut Rng) -> Vec<Step> {
    let mut schema = generate_root(rng);
    for _ in 0..rng.usize(0..3) {
        add_mistake(rng, &mut schema);
    }
    let mut definition = build_definition("§id.example.com", &schema);
    if rng.percent(35) {
        add_spec_mistake(rng, &mut definition);
    }
    let query = if rng.percent(20) {
        "&fieldValidation=Strict"
    } else {
        ""
    };
    vec![RequestStep::post(format!("{DEFINITIONS}?dryRun=All{query}"), definition).into()]
}

/// Makes the definition invalid, or different, outside of its schema.
fn add_spec_mistake(rng: &mut Rng, definition: &mut Value) {
    let names = &mut definition["spec"]["names"];
    match rng.u32(0..6) {
        0 => {
            let (field, value) = rng.choose(&[
                ("plural", json!("Things")),
                ("plural", json!("others")),
                ("plural", Value::Null),
                ("kind", json!("thing")),
                ("kind", json!("Th ing")),
                ("kind", json!("ThingList")),
                ("singular", json!("thing")),
                ("singular", json!("Th")),
                ("listKind", json!("ThingList")),
                ("listKind", json!("Thing")),
                ("shortNames", json!(["TH"])),
                ("shortNames", json!(["th", "th"])),
                ("categories", json!(["All"])),
            ]);
            return insert(names, field, value);
        }
        1 => {
            let (field, value) = rng.choose(&[
                ("group", json!("example")),
                ("group", json!("Example.com")),
                ("group", json!("")),
                ("scope", json!("Namespace")),
                ("scope", Value::Null),
                ("scope", json!("Cluster")),
                ("versions", json!([])),
                ("versions", Value::Null),
                ("preserveUnknownFields", json!(true)),
                ("preserveUnknownFields", json!(false)),
                ("conversion", json!({"strategy": "None"})),
                ("conversion", json!({"strategy": "Odd"})),
                ("conversion", json!({"strategy": "Webhook"})),
                (
                    "conversion",
                    json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://a.example/b"}}}),
                ),
                ("unknownField", json!(1)),
            ]);
            return insert(&mut definition["spec"], field, value);
        }
        2 => {
            let name = rng.choose(&["things.other.example.com", "Things", ""]);
            return insert(&mut definition["metadata"], "name", name);
        }
        3 => {
            let mut second = definition["spec"]["versions"][0].clone();
            insert(
                &mut second,
                "name",
                rng.choose(&["v2", "v1", "v1beta1", "V2", ""]),
            );
            insert(&mut second, "storage", rng.bool());
            insert(&mut second, "served", rng.bool());
            if let Some(versions) = definition["spec"]["versions"].as_array_mut() {
                versions.push(second);
            }
            return;
        }
        _ => {}
    }
    let (field, value) = rng.choose(&[
        ("name", json!("1")),
        ("name", json!("v1alpha")),
        ("served", json!(false)),
        ("served", Value::Null),
        ("storage", json!(false)),
        ("schema", Value::Null),
        ("schema", json!({})),
        ("deprecated", json!(true)),
        ("deprecationWarning", json!("old")),
        ("subresources", json!({"status": {}, "other": {}})),
        ("subresources", json!({"scale": {}})),
        (
            "subresources",
            json!({"scale": {"specReplicasPath": ".status.a", "statusReplicasPath": ".spec.a"}}),
        ),
        (
            "subresources",
            json!({"scale": {"specReplicasPath": "spec.size", "statusReplicasPath": ".status.replicas"}}),
        ),
        (
            "subresources",
            json!({"scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}}),
        ),
        ("additionalPrinterColumns", json!([{"name": "A"}])),
        (
            "additionalPrinterColumns",
            json!([{"name": "A", "type": "odd", "jsonPath": ".a"}]),
        ),
        (
            "additionalPrinterColumns",
            json!([{"name": "A", "type": "string", "jsonPath": "a"}]),
        ),
        (
            "additionalPrinterColumns",
            json!([{"name": "A", "type": "integer", "format": "int32", "priority": 1, "jsonPath": ".a[?(@.b==1)].c"}]),
        ),
        (
            "additionalPrinterColumns",
            json!([{"name": "A", "type": "string", "format": "odd", "jsonPath": ".a"}]),
        ),
        (
            "additionalPrinterColumns",
            json!([{"name": "", "type": "string", "jsonPath": ""}]),
        ),
        ("selectableFields", json!([{"jsonPath": ".spec.absent"}])),
        ("selectableFields", json!([{"jsonPath": ".metadata.name"}])),
        ("selectableFields", json!([{"jsonPath": "spec.url"}])),
        (
            "selectableFields",
            json!([{"jsonPath": ".spec.url"}, {"jsonPath": ".spec.url"}]),
        ),
        ("selectableFields", json!([{"jsonPath": ".spec"}])),
        ("unknownField", json!(1)),
    ]);
    insert(&mut definition["spec"]["versions"][0], field, value);
}
