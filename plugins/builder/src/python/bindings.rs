//! Generator of the contract's types for native tests in Python. In a component componentize-py has them: a record is a data
//! class, an enum an `Enum`, and a case of a variant is a class of its own with the payload in `value`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use wit_parser::{InterfaceId, Resolve, TypeDefKind, WorldItem};

use crate::contract;

const HEADER: &str = "\"\"\"The types of the contract, for native tests. Generated from wit/ by ostler-builder. DO NOT EDIT.\"\"\"

from dataclasses import dataclass
from enum import Enum
";

/// Generates the module: a class per interface, with the interface's types in it.
///
/// # Errors
/// Names the feature of the contract that is not supported.
pub fn generate_types() -> Result<String> {
    let (resolve, world) = contract::resolve_world(&[], "full-plugin")?;
    let world = &resolve.worlds[world];
    let items = world.imports.values().chain(world.exports.values());
    let mut done = BTreeSet::new();
    let mut text = HEADER.to_owned();
    for item in items {
        if let WorldItem::Interface { id, .. } = item
            && done.insert(*id)
        {
            write_interface(&resolve, *id, &mut text)?;
        }
    }
    Ok(text)
}

fn write_interface(resolve: &Resolve, id: InterfaceId, text: &mut String) -> Result<()> {
    let interface = &resolve.interfaces[id];
    let name = interface.name.as_deref().context("an interface without a name")?;
    write!(
        text,
        "\n\nclass {}:\n    \"\"\"Types of the interface `{name}`.\"\"\"\n",
        to_snake_case(name)
    )?;
    for (name, id) in &interface.types {
        let class = to_pascal_case(name);
        match &resolve.types[*id].kind {
            // Another name of a type.
            TypeDefKind::Type(_) | TypeDefKind::List(_) => {}
            TypeDefKind::Record(record) => {
                let fields = record.fields.iter().map(|field| to_snake_case(&field.name));
                write_class(text, &class, &fields.collect::<Vec<_>>())?;
            }
            TypeDefKind::Enum(cases) => {
                write!(text, "\n    class {class}(Enum):\n")?;
                for (i, case) in cases.cases.iter().enumerate() {
                    writeln!(text, "        {} = {i}", to_snake_case(&case.name).to_uppercase())?;
                }
            }
            TypeDefKind::Variant(variant) => {
                for case in &variant.cases {
                    let fields = case.ty.iter().map(|_| "value".to_owned());
                    let case = format!("{class}_{}", to_pascal_case(&case.name));
                    write_class(text, &case, &fields.collect::<Vec<_>>())?;
                }
            }
            other => bail!("{name}: {} is not supported", other.as_str()),
        }
    }
    Ok(())
}

fn write_class(text: &mut String, name: &str, fields: &[String]) -> Result<()> {
    write!(text, "\n    @dataclass\n    class {name}:\n")?;
    for field in fields {
        writeln!(text, "        {field}: object")?;
    }
    if fields.is_empty() {
        text.push_str("        pass\n");
    }
    Ok(())
}

fn to_snake_case(name: &str) -> String {
    name.replace('-', "_")
}

fn to_pascal_case(name: &str) -> String {
    let upper = |word: &str| word[..1].to_uppercase() + &word[1..];
    name.split('-').map(upper).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Compares the checked-in file; `UPDATE_BINDINGS=1 cargo test -p ostler-builder` writes it.
    #[test]
    fn checked_in_types_of_python_are_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk-python/ostler_wit.py");
        let text = generate_types().unwrap();
        if std::env::var_os("UPDATE_BINDINGS").is_some() {
            crate::replace_file(&path, text.as_bytes()).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            checked_in == text,
            "ostler_wit.py: run it again with UPDATE_BINDINGS=1"
        );
    }
}
