//! Go declarations of the contract's types.

use std::fmt::Write;

use anyhow::{Result, bail};
use wit_parser::{Docs, InterfaceId, TypeDefKind, TypeId};

use super::{Generator, names::to_pascal_case};

impl Generator<'_> {
    pub(super) fn declare_types(&mut self, interface: InterfaceId) -> Result<()> {
        if !self.declared.insert(interface) {
            return Ok(());
        }
        for id in self.resolve.interfaces[interface].types.values() {
            self.declare_type(*id)?;
        }
        Ok(())
    }

    fn declare_type(&mut self, id: TypeId) -> Result<()> {
        let ty = &self.resolve.types[id];
        let name = self.type_name(id);
        let mut out = String::new();
        match &ty.kind {
            TypeDefKind::Record(record) => {
                write_comment(&mut out, "", &name, &ty.docs);
                writeln!(out, "type {name} struct {{")?;
                for field in &record.fields {
                    write_comment(&mut out, "\t", "", &field.docs);
                    writeln!(
                        out,
                        "\t{} {}",
                        to_pascal_case(&field.name),
                        self.go_type(&field.ty)?
                    )?;
                }
                out.push_str("}\n\n");
            }
            TypeDefKind::Enum(e) => {
                write_comment(&mut out, "", &name, &ty.docs);
                writeln!(out, "type {name} uint8\n\n// The cases of [{name}].\nconst (")?;
                for (i, case) in e.cases.iter().enumerate() {
                    write_comment(&mut out, "\t", "", &case.docs);
                    writeln!(out, "\t{name}{} {name} = {i}", to_pascal_case(&case.name))?;
                }
                out.push_str(")\n\n");
            }
            TypeDefKind::Variant(variant) => {
                write_comment(&mut out, "", &name, &ty.docs);
                writeln!(out, "type {name} struct {{\n\tCase {name}Case")?;
                for case in &variant.cases {
                    if let Some(ty) = &case.ty {
                        writeln!(out, "\t{} {}", to_pascal_case(&case.name), self.go_type(ty)?)?;
                    }
                }
                writeln!(
                    out,
                    "}}\n\n// {name}Case says which of a {name} it is.\ntype {name}Case uint8\n\n\
                     // The cases of [{name}].\nconst ("
                )?;
                for (i, case) in variant.cases.iter().enumerate() {
                    write_comment(&mut out, "\t", "", &case.docs);
                    writeln!(out, "\t{name}{} {name}Case = {i}", to_pascal_case(&case.name))?;
                }
                out.push_str(")\n\n");
            }
            // Written inline where they are used.
            TypeDefKind::Type(_) | TypeDefKind::List(_) | TypeDefKind::Option(_) | TypeDefKind::Tuple(_) => {}
            other => bail!("{name}: {} is not supported", other.as_str()),
        }
        self.types.push_str(&out);
        Ok(())
    }
}

pub(super) fn write_comment(out: &mut String, indent: &str, name: &str, docs: &Docs) {
    let Some(text) = docs.contents.as_deref().map(str::trim) else {
        if !name.is_empty() {
            out.push_str(&format!("{indent}// {name} is of the contract.\n"));
        }
        return;
    };
    if !name.is_empty() {
        out.push_str(&format!("{indent}// {name}:\n"));
    }
    for line in text.lines() {
        out.push_str(format!("{indent}// {}", line.trim()).trim_end());
        out.push('\n');
    }
}
