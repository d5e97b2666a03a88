//! Loads and stores of values in linear memory, in the layout of the canonical ABI.

use std::fmt::Write;

use anyhow::{Result, bail};
use wit_parser::{Type, TypeDefKind};

use super::{Generator, Shape, names::to_pascal_case};

impl Generator<'_> {
    pub(super) fn size_and_align(&self, ty: &Type) -> (usize, usize) {
        (
            self.sizes.size(ty).size_wasm32(),
            self.sizes.align(ty).align_wasm32(),
        )
    }

    /// Returns the offsets of a record's fields.
    pub(super) fn field_offsets(&self, types: &[Type]) -> Vec<usize> {
        let offsets = self.sizes.field_offsets(types);
        offsets.iter().map(|(at, _)| at.size_wasm32()).collect()
    }

    /// Returns a statement that stores `value` at `address`.
    pub(super) fn store_statement(&mut self, ty: &Type, address: &str, value: &str) -> Result<String> {
        self.write_functions(ty)?;
        Ok(match self.resolve_shape(ty)? {
            Shape::Plain("bool") => format!("store(uint32({address}), uint8(flag({value})))"),
            Shape::Plain(_) => format!("store(uint32({address}), {value})"),
            _ => format!("store{}({address}, {value})", self.mangle_name(ty)?),
        })
    }

    /// Returns an expression that loads the value at `address`.
    pub(super) fn load_expression(&mut self, ty: &Type, address: &str) -> Result<String> {
        self.write_functions(ty)?;
        Ok(match self.resolve_shape(ty)? {
            Shape::Plain("bool") => format!("load[uint8]({address}) != 0"),
            Shape::Plain(name) => format!("load[{name}]({address})"),
            _ => format!("load{}({address})", self.mangle_name(ty)?),
        })
    }

    /// Writes the functions that load and store a type, and for a list also the one that lowers it.
    pub(super) fn write_functions(&mut self, ty: &Type) -> Result<()> {
        let Shape::Kind(_, kind) = self.resolve_shape(ty)? else {
            return Ok(());
        };
        let name = self.mangle_name(ty)?;
        if !self.done.insert(name.clone()) {
            return Ok(());
        }
        let go = self.go_type(ty)?;
        let (mut load, mut store) = (String::new(), String::new());
        match kind {
            TypeDefKind::Record(record) => {
                let types: Vec<_> = record.fields.iter().map(|f| f.ty).collect();
                let names: Vec<_> = record.fields.iter().map(|f| to_pascal_case(&f.name)).collect();
                self.write_fields(&types, &names, &mut load, &mut store)?;
            }
            TypeDefKind::Tuple(tuple) => {
                let names: Vec<_> = (0..tuple.types.len()).map(|i| format!("F{i}")).collect();
                self.write_fields(&tuple.types, &names, &mut load, &mut store)?;
            }
            TypeDefKind::Enum(_) => {
                writeln!(load, "\tv = load[{go}](p)")?;
                writeln!(store, "\tstore(p, v)")?;
            }
            TypeDefKind::Option(some) => {
                let offset = self
                    .sizes
                    .payload_offset(wit_parser::Int::U8, [None, Some(some)])
                    .size_wasm32();
                let at = format!("p+{offset}");
                let (inner, set) = (
                    self.load_expression(some, &at)?,
                    self.store_statement(some, &at, "*v")?,
                );
                writeln!(
                    load,
                    "\tif load[uint8](p) != 0 {{\n\t\tsome := {inner}\n\t\tv = &some\n\t}}"
                )?;
                writeln!(
                    store,
                    "\tstore(p, uint8(flag(v != nil)))\n\tif v != nil {{\n\t\t{set}\n\t}}"
                )?;
            }
            TypeDefKind::Result(result) => {
                let cases = [result.ok.as_ref(), result.err.as_ref()];
                let offset = self
                    .sizes
                    .payload_offset(wit_parser::Int::U8, cases)
                    .size_wasm32();
                let at = format!("p+{offset}");
                let (mut ok, mut set_ok) = (String::new(), String::new());
                if let Some(ty) = cases[0] {
                    ok = format!("v.Ok = {}", self.load_expression(ty, &at)?);
                    set_ok = self.store_statement(ty, &at, "v.Ok")?;
                }
                let err_go = self.go_type_or_unit(cases[1])?;
                let (mut err, mut set_err) = (format!("failed := {err_go}{{}}"), String::new());
                if let Some(ty) = cases[1] {
                    err = format!("failed := {}", self.load_expression(ty, &at)?);
                    set_err = self.store_statement(ty, &at, "*v.Err")?;
                }
                writeln!(
                    load,
                    "\tif load[uint8](p) == 0 {{\n\t\t{ok}\n\t}} else {{\n\t\t{err}\n\t\tv.Err = &failed\n\t}}"
                )?;
                writeln!(
                    store,
                    "\tstore(p, uint8(flag(v.Err != nil)))\n\tif v.Err == nil {{\n\t\t{set_ok}\n\t}} else {{\n\t\t{set_err}\n\t}}"
                )?;
            }
            TypeDefKind::Variant(variant) => {
                let payloads: Vec<_> = variant.cases.iter().map(|c| c.ty.as_ref()).collect();
                let offset = self.sizes.payload_offset(variant.tag(), payloads).size_wasm32();
                let at = format!("p+{offset}");
                writeln!(load, "\tv.Case = load[{name}Case](p)\n\tswitch v.Case {{")?;
                writeln!(store, "\tstore(p, v.Case)\n\tswitch v.Case {{")?;
                for case in &variant.cases {
                    if let Some(ty) = &case.ty {
                        let field = to_pascal_case(&case.name);
                        let (inner, set) = (
                            self.load_expression(ty, &at)?,
                            self.store_statement(ty, &at, &format!("v.{field}"))?,
                        );
                        writeln!(load, "\tcase {name}{field}:\n\t\tv.{field} = {inner}")?;
                        writeln!(store, "\tcase {name}{field}:\n\t\t{set}")?;
                    }
                }
                load.push_str("\t}\n");
                store.push_str("\t}\n");
            }
            TypeDefKind::List(item) => {
                let (size, align) = self.size_and_align(item);
                let (inner, set) = (
                    self.load_expression(item, "item")?,
                    self.store_statement(item, "item", "v[i]")?,
                );
                writeln!(
                    load,
                    "\titem, count := load[uint32](p), load[uint32](p+4)\n\tfor range count {{\n\
                     \t\tv = append(v, {inner})\n\t\titem += {size}\n\t}}"
                )?;
                writeln!(
                    store,
                    "\taddress, count := lower{name}(v)\n\tstore(p, address)\n\tstore(p+4, count)"
                )?;
                write!(
                    self.abi,
                    "func lower{name}(v {go}) (uint32, uint32) {{\n\taddress := allocate(uint32(len(v))*{size}, {align})\n\
                     \titem := address\n\tfor i := range v {{\n\t\t{set}\n\t\titem += {size}\n\t}}\n\
                     \treturn address, uint32(len(v))\n}}\n\n"
                )?;
            }
            other => bail!("{} is not supported", other.as_str()),
        }
        write!(
            self.abi,
            "func load{name}(p uint32) (v {go}) {{\n{load}\treturn v\n}}\n\nfunc store{name}(p uint32, v {go}) {{\n{store}}}\n\n"
        )?;
        Ok(())
    }

    fn write_fields(
        &mut self,
        types: &[Type],
        names: &[String],
        load: &mut String,
        store: &mut String,
    ) -> Result<()> {
        let offsets = self.field_offsets(types);
        for ((ty, name), offset) in types.iter().zip(names).zip(offsets) {
            let at = format!("p+{offset}");
            let value = format!("v.{name}");
            writeln!(load, "\t{value} = {}", self.load_expression(ty, &at)?)?;
            writeln!(store, "\t{}", self.store_statement(ty, &at, &value)?)?;
        }
        Ok(())
    }
}
