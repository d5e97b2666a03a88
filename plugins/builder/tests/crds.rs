//! The CRDs of types in JavaScript: those in Go and Python are tested in their SDKs.

use std::{fs, path::Path};

use ostler_builder::crds::generate_crds;
use serde_json::{Value, json};

const TYPES: &str = "/** A port. */
export interface Port {
  /**
   * Number of the port.
   * @minimum 1
   * @asType integer
   */
  number: number;
}
";

const MODULE: &str = r#"import { awaitChange, plugin } from "ostler";

/**
 * A thing,
 * of two lines.
 * @typedef {object} ThingSpec
 * @property {string} hostName Name of
 *   the host. {@minLength 1} {@pattern ^[a-z]{1,3}$}
 * @property {import("./types.ts").Port[]} [ports] Its ports.
 * @property {"on" | "off"} [mode]
 * @property {Record<string, string>} [labels]
 * @property {number | bigint} [size]
 * @property {MORE} [more]
 */

/**
 * @typedef {object} ThingStatus
 * @property {boolean} open
 */

const GROUP = "a.dev";
const version = "v1";
/** @type {import("ostler").Reconcile<ThingSpec>} */
const reconcile = ({ spec }) => awaitChange();
export const reconciler = plugin({
  name: "p",
  version: "1",
  kinds: [
    { group: GROUP, version, kind: "Thing", columns: [{ name: "Host", jsonPath: ".spec.hostName" }], reconcile },
    { group: GROUP, version, kind: "Untyped", reconcile },
  ],
});
"#;

fn generate(folder: &Path, more: &str) -> anyhow::Result<Vec<(String, String)>> {
    fs::write(folder.join("package.json"), r#"{"name": "p"}"#)?;
    fs::write(folder.join("types.ts"), TYPES)?;
    fs::write(folder.join("index.js"), MODULE.replace("MORE", more))?;
    generate_crds(folder, &mut |_| {})
}

#[test]
fn schema_of_jsdoc_has_the_types_texts_and_constraints_of_the_fields() {
    let folder = tempfile::tempdir().unwrap();
    let files = generate(folder.path(), "any").unwrap();
    let [(name, text)] = &files[..] else {
        panic!("{files:?}")
    };
    assert_eq!(name, "a.dev_things.yaml");
    assert!(
        text.starts_with("# Generated from the JavaScript types."),
        "{text}"
    );
    let crd: Value = serde_saphyr::from_str(text).unwrap();
    let version = &crd["spec"]["versions"][0];
    assert_eq!(
        version["additionalPrinterColumns"],
        json!([{"name": "Host", "jsonPath": ".spec.hostName", "type": "string"}])
    );
    let schema = &version["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(
        schema["spec"],
        json!({
            "type": "object",
            "description": "A thing, of two lines.",
            "required": ["hostName"],
            "properties": {
                "hostName": {
                    "type": "string",
                    "description": "Name of the host.",
                    "minLength": 1,
                    "pattern": "^[a-z]{1,3}$",
                },
                "ports": {"type": "array", "description": "Its ports.", "items": {
                    "type": "object",
                    "description": "A port.",
                    "required": ["number"],
                    "properties": {"number": {
                        "type": "integer",
                        "format": "int64",
                        "minimum": 1,
                        "description": "Number of the port.",
                    }},
                }},
                "mode": {"type": "string", "enum": ["on", "off"]},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "size": {"type": "integer", "format": "int64"},
                "more": {"x-kubernetes-preserve-unknown-fields": true},
            },
        })
    );
    assert_eq!(schema["status"]["properties"]["open"], json!({"type": "boolean"}));
}

#[test]
fn type_without_a_schema_is_refused_with_its_field_or_line() {
    let folder = tempfile::tempdir().unwrap();
    for (more, words) in [
        (
            "() => string",
            &["Thing.spec.more", "no schema for the type () => string"][..],
        ),
        ("ThingSpec", &["index.js:", "Thing.spec.more", "contains itself"]),
        ("Missing", &["index.js:13:", "Cannot find name 'Missing'"]),
    ] {
        let error = format!("{:#}", generate(folder.path(), more).expect_err(more));
        assert!(
            words.iter().all(|word| error.contains(word)),
            "{words:?} in {error}"
        );
    }
}
